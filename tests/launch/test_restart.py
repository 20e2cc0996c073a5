"""One policy of restarts and of the order of an end, for rlinf up and for ROS's launch."""

import signal
from pathlib import Path

import pytest

from rlinf_core.core.errors import NODE_FAILED, REFUSED, WRONG_USAGE
from rlinf_core.launch.graph import ONCE, RESPAWN, SHUTDOWN, Process
from rlinf_core.launch.restart import (
    LONG_S,
    MAX_RESTARTS,
    RESTART_WINDOW_S,
    History,
    last_error_in,
    shutdown_groups,
)

ROOT = Path(__file__).resolve().parents[2]


def history(restart):
    return History(Process("uplink", "", "", "", "", restart=restart), 0.0)


@pytest.mark.parametrize("restart", [RESPAWN, SHUTDOWN])
def test_a_process_that_says_why_it_cannot_go_on_ends_the_station(restart):
    outcome = history(restart).record_end(REFUSED, 1.0, "the certificate has expired")
    assert (outcome.restarts, outcome.text, outcome.refusal, outcome.exit_code) == (
        False,
        "uplink cannot continue",
        "the certificate has expired",
        REFUSED,
    )


@pytest.mark.parametrize(
    "code, words", [(-signal.SIGKILL, "killed by SIGKILL"), (0, "exit code 0"), (1, "exit code 1")]
)
def test_what_the_station_cannot_go_on_without_ends_it_however_it_ended(code, words):
    outcome = history(SHUTDOWN).record_end(code, 1.0)
    assert outcome.exit_code == (1 if code else REFUSED)  # a person has ended it
    assert (
        not outcome.restarts
        and f"uplink ended ({words}). The station cannot continue without it" in outcome.text
    )


@pytest.mark.parametrize("code", [0, 1, REFUSED, -9])
def test_the_end_of_a_process_that_runs_once_is_left_to_others(code):
    assert all(history(ONCE).record_end(code, 1.0).restarts for _ in range(MAX_RESTARTS + 2))


def test_the_sixth_end_within_a_minute_ends_the_station_and_the_sixth_within_more_does_not():
    quick, slow = history(RESPAWN), history(RESPAWN)
    assert [quick.record_end(-9, float(n)).restarts for n in range(MAX_RESTARTS + 1)] == [
        True
    ] * MAX_RESTARTS + [False]
    interval = RESTART_WINDOW_S / MAX_RESTARTS
    assert all(slow.record_end(-9, n * interval).restarts for n in range(3 * MAX_RESTARTS))


def test_six_ends_for_one_reason_end_the_station_whatever_time_they_take():
    def ends(reasons, interval=2 * RESTART_WINDOW_S):
        one = history(RESPAWN)
        return [one.record_end(1, n * interval, reason) for n, reason in enumerate(reasons)]

    alike = ends(["no room"] * (MAX_RESTARTS + 1))
    assert [outcome.restarts for outcome in alike] == [True] * MAX_RESTARTS + [False]
    assert (alike[-1].text, alike[-1].refusal) == (
        "uplink ended 6 times for the same reason",
        "no room",
    )
    assert all(outcome.restarts for outcome in ends(["no room", "no disk"] * MAX_RESTARTS))
    assert all(outcome.restarts for outcome in ends([""] * 3 * MAX_RESTARTS))
    assert all(outcome.restarts for outcome in ends(["no room"] * 3 * MAX_RESTARTS, LONG_S))


def test_what_commands_ends_before_interlock_and_robot_side_the_last_started_first():
    names = {"sim_bridge": SHUTDOWN, "interlock": SHUTDOWN, "policy": RESPAWN, "director": ONCE}
    assert shutdown_groups(
        Process(name, "", "", "", "", restart=restart) for name, restart in names.items()
    ) == [["director", "policy"], ["interlock", "sim_bridge"]]


@pytest.mark.parametrize(
    "text, refusal",
    [
        ("", ""),
        ("started\nrlinf: no disk\n", "no disk"),
        ("rlinf: one\nrlinf: two\n  and more\n", "two\n  and more"),
        ("[INFO] rlinf: no error", ""),
    ],
)
def test_the_last_error_of_a_log(text, refusal):
    assert last_error_in(text) == refusal


def test_systemd_starts_no_station_again_that_refuses_its_settings_or_that_a_person_has_ended():
    unit = ROOT / "ros_ws/src/rlinf_bringup/systemd/rlinf@.service"
    lines = unit.read_text().splitlines()
    assert f"RestartPreventExitStatus={WRONG_USAGE} {REFUSED}" in lines
    assert "Restart=on-failure" in lines


def outcome_fields(outcome):
    return outcome.restarts, outcome.text, outcome.refusal, outcome.exit_code


def test_a_process_that_dies_is_started_again_with_its_reason():
    one = history(RESPAWN)
    assert outcome_fields(one.record_end(-signal.SIGSEGV, 5.0, "no room")) == (
        True,
        "uplink ended (killed by SIGSEGV) and was restarted",
        "",
        1,
    ), "a reason is that of an exit code 1 alone"
    assert outcome_fields(one.record_end(1, 6.0, "no room " + "x" * 400)) == (
        True,
        "uplink ended (exit code 1) and was restarted",
        "no room " + "x" * 292,
        1,
    )
    assert (one.started, one.restarts, one.equal_failures) == (6.0, [5.0, 6.0], 0)


def test_who_ends_too_often_is_named_with_the_last_end():
    one = history(RESPAWN)
    for n in range(MAX_RESTARTS):
        one.record_end(2, float(n))
    assert outcome_fields(one.record_end(-9, 10.0)) == (
        False,
        "uplink ended 6 times within 60 s (last: killed by SIGKILL)",
        "",
        1,
    )


def test_a_minute_is_a_minute():
    one = history(RESPAWN)
    one.restarts = [0.0] * MAX_RESTARTS
    assert not one.record_end(2, 59.9).restarts
    one.restarts = [0.0] * MAX_RESTARTS
    assert one.record_end(2, 60.0).restarts and one.restarts == [60.0]


def test_an_equal_reason_counts_while_the_process_lives_less_than_an_hour():
    one = history(RESPAWN)
    for n in range(4):
        one.record_end(1, 100.0 * n, "no room")
    assert one.equal_failures == 3
    one.record_end(1, 300.0 + LONG_S - 0.1, "no room")
    assert one.equal_failures == 4
    one.record_end(1, 300.0 + 2 * LONG_S, "no room")
    assert one.equal_failures == 0 and one.reason == "no room"


def hosts(*restarts):
    nodes = tuple(
        Process(name, "", "", "", "", restart=restart)
        for name, restart in zip(("recorder", "interlock", "operator"), restarts, strict=True)
    )
    return History(Process("station", "", "", "", "", nodes=nodes), 0.0)


@pytest.mark.parametrize(
    "index, restart, fields",
    [
        (0, RESPAWN, (True, "recorder ended (in the process 'station', with all its nodes) and")),
        (
            1,
            SHUTDOWN,
            (False, "interlock ended (in the process 'station', with all its nodes). Th"),
        ),
        (2, ONCE, (True, "operator ended (in the process 'station', with all its nodes)")),
    ],
)
def test_of_several_nodes_in_one_process_the_one_that_failed_decides(index, restart, fields):
    outcome = hosts(RESPAWN, SHUTDOWN, ONCE).record_end(NODE_FAILED + index, 1.0)
    assert (outcome.restarts, outcome.text[: len(fields[1])]) == fields
    assert ("was restarted" in outcome.text) == (restart == RESPAWN)


@pytest.mark.parametrize("code", [NODE_FAILED - 1, NODE_FAILED + 3, 1])
def test_other_exit_codes_of_such_a_process_are_its_own(code):
    outcome = hosts(SHUTDOWN, SHUTDOWN, SHUTDOWN).record_end(code, 1.0)
    assert outcome.text == f"station ended (exit code {code}) and was restarted"


def test_a_process_that_runs_once_may_end():
    assert outcome_fields(history(ONCE).record_end(3, 1.0, "done")) == (
        True,
        "uplink ended (exit code 3)",
        "",
        1,
    )
