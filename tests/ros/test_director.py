"""Which rule of the recipe ends training at a station, and what counts as success there."""

import contextlib
import json
import time
from collections import deque
from unittest.mock import MagicMock

import builtin_interfaces.msg
import pytest
from rclpy.task import Future
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import Applied, EpisodeEvent, PolicyStatus, SafetyState, TrainerStatus

from rlinf_core.cli.compare import compare
from rlinf_core.cli.sweep import table
from rlinf_core.reports.curves import draw, read_evaluations
from rlinf_ros.station_state import GOES_ON_S, SettledCount, caught_up, refused
from rlinf_station import director as director_module
from rlinf_station.director import Director
from rlinf_station.director_status import Lines, Recent, RunStopped, ending, write_status

CODES = RunEpisodes.Result


@pytest.mark.parametrize(
    "recent, steps, minutes, why",
    [
        ([1] * 5, 10, 1, "5 of the last 5 training episodes succeeded (online.stop_at_success)"),
        (
            [0, 0, 1, 1, 0, 1, 1],
            10,
            1,
            "4 of the last 5 training episodes succeeded (online.stop_at_success)",
        ),
        ([1] * 4, 10, 1, ""),
        ([1, 1, 1, 0, 0, 1, 1], 10, 1, ""),
        ([1, 0], 500, 1, "500 time steps were played (online.max_env_steps)"),
        ([1, 0], 10, -1, "3 minutes have passed (online.max_minutes)"),
        ([], 0, 1, ""),
    ],
)
def test_it_says_why_training_ends(recent, steps, minutes, why):
    of_this_run = Recent.__new__(Recent)  # without ROS
    of_this_run.ended = deque((bool(success), 0.0) for success in recent)
    online = {"stop_at_success": 0.8, "stop_episodes": 5, "max_env_steps": 500, "max_minutes": 3.0}
    assert ending(of_this_run, steps, online, time.monotonic() + 60 * minutes) == why
    assert of_this_run.success(2) == pytest.approx(sum(recent[-2:]) / max(len(recent[-2:]), 1))


@pytest.mark.parametrize(
    "set_aside, read, count", [(0, 0.0, 0), (2, 1.0, 3), (1, float("nan"), 1), (0, float("inf"), 0)]
)
def test_what_the_trainer_refused_of_a_station_is_counted_whatever_it_says(set_aside, read, count):
    status = TrainerStatus(
        set_aside=set_aside, names=["other/refused", "station_a/refused"], values=[7.0, read]
    )
    assert refused(status, "station_a") == count


@pytest.mark.parametrize("collect", [{"episodes": 2}, {"episodes": 0, "share": 2}])
def test_a_trainer_that_refuses_more_than_it_needs_ends_the_run(tmp_path, monkeypatch, collect):
    director = Director.__new__(Director)  # without ROS
    director.lines, director.plan, director.station = Lines(tmp_path), {"collect": collect}, "a"
    director.refused = 0
    director.policy, director.trainer = (
        MagicMock(version=0, error=""),
        TrainerStatus(connected=True),
    )
    requests = []

    def recorded(count, seed):
        requests.append((count, seed))
        return seed + count

    monkeypatch.setattr(director, "_demonstrations", recorded)
    monkeypatch.setattr(
        director,
        "_turn",
        lambda _: setattr(director.trainer, "set_aside", director.trainer.set_aside + 1),
    )
    with pytest.raises(
        RunStopped, match=r"the trainer refused 3 episodes\. The reasons .*; expected at most 2"
    ):
        director._first_policy(7)
    assert requests == [(1, 7), (1, 8)]


def test_its_evaluation_is_a_trainers_record_that_every_reader_of_evaluations_takes(
    tmp_path, monkeypatch
):
    director = Director.__new__(Director)  # without ROS
    director.lines, director.plan = (
        Lines(tmp_path),
        {"evaluate": {"episodes": 4, "first_seed": 7, "control_hz": 10.0}},
    )
    director.env_steps, director.trainer, director.started = (
        120,
        MagicMock(updates=60),
        time.monotonic(),
    )
    ended = [
        EpisodeEvent(
            episode_id=f"e{n}",
            success=n == 0,
            failure=n == 1,
            episode_return=value,
            policy_version=5,
            steps=20 + n,
        )
        for n, value in enumerate((1.5, -0.5, 0.25, 0.75))
    ]
    monkeypatch.setattr(director, "_episodes", lambda *_: ended)
    director._evaluate("before")
    [entry] = read_evaluations(tmp_path)
    volatile_keys = {"event", "time", "name", "successes", "episode_ids", "seconds"}
    assert {key: value for key, value in entry.items() if key not in volatile_keys} == {
        "env_steps": 120,
        "updates": 60,
        "policy_version": 5,
        "episodes": 4,
        "success": 0.25,
        "failure": 0.25,
        "return": 0.5,
        "robot_minutes": 0.2,
        "longest_run": 1,
        "time_to_success_s": 2.0,
        "time_to_success_s_low": 2.0,
        "time_to_success_s_high": 2.0,
    } | {name: entry[name] for name in entry if name.startswith("successes_per_hour")}
    assert entry["successes_per_hour"] == pytest.approx(3600 / 8.6)
    assert (
        0.0 <= entry["seconds"] < 60.0
        and entry["successes"] == 1
        and entry["episode_ids"] == ["e0", "e1", "e2", "e3"]
    )
    compare([tmp_path], tmp_path / "curve.png")
    draw({"returns": [[entry]]}, tmp_path / "return.png", "return")
    assert "0.50" in table({tmp_path: ([], [entry])}, tmp_path / "sweep.csv")


def test_what_succeeded_with_a_persons_help_is_no_success_of_the_policy():
    recent = Recent(MagicMock(), [])
    stamp = builtin_interfaces.msg.Time

    def episode(success, sources, mode="train"):
        recent.begin()
        for number, source in enumerate(sources):
            for _ in range(2):  # by two arms
                recent._on_applied(Applied(source=source, observation_stamp=stamp(sec=number)))
        return recent.close(EpisodeEvent(success=success, mode=mode, steps=len(sources)))

    assert episode(True, ["operator"] * 4, "demonstration") == 0
    assert episode(True, ["policy", "operator"], "evaluate") == 1, (
        "in an evaluation it counts as help too"
    )
    recent.ended.clear()
    assert episode(True, ["policy", "policy", "operator", "operator"]) == 2
    assert (recent.success(50), recent.intervened(50)) == (0.0, 0.5)
    assert episode(True, ["policy"] * 4) == 0 and episode(False, ["policy"] * 4) == 0
    assert (recent.success(50), recent.success(2)) == (pytest.approx(1 / 3), 0.5)
    assert (recent.intervened(50), recent.intervened(2)) == (pytest.approx(1 / 6), 0.0)


def test_only_episodes_of_what_was_asked_for_count_as_answers_to_it(tmp_path):
    director = Director.__new__(Director)  # without ROS
    director.mode, director.phase, director.recent = (
        "evaluate",
        "evaluate_after",
        MagicMock(close=lambda event: 0),
    )
    director.lines, director.trainer, director._closed_ids, director._safe = (
        Lines(tmp_path),
        TrainerStatus(),
        set(),
        [],
    )
    director.done = director.successes = director.env_steps = 0
    for number, mode in enumerate(("train", "evaluate", "demonstration")):
        director._on_episode(
            EpisodeEvent(
                kind=EpisodeEvent.CLOSED, episode_id=f"e{number}", mode=mode, success=True, steps=7
            )
        )
    assert [event.episode_id for event in director._safe] == ["e1"] and (
        director.done,
        director.successes,
    ) == (1, 1)
    assert (
        director.env_steps == 7 and len((tmp_path / "progress.jsonl").read_text().splitlines()) == 3
    ), "all are told"


def test_of_an_evaluation_what_a_person_did_counts_nowhere(tmp_path):
    director = Director.__new__(Director)  # without ROS
    director.mode, director.phase = "evaluate", "evaluate_after"
    director.recent = MagicMock(close=lambda event: event.steps - 7)
    director.lines, director.trainer, director._closed_ids, director._safe = (
        Lines(tmp_path),
        TrainerStatus(),
        set(),
        [],
    )
    director.done = director.successes = director.env_steps = 0
    for number in range(2):  # in the second a person had three of its steps
        director._on_episode(
            EpisodeEvent(
                kind=EpisodeEvent.CLOSED,
                episode_id=f"e{number}",
                mode="evaluate",
                success=True,
                steps=7 + 3 * number,
            )
        )
    assert ([event.success for event in director._safe], director.done, director.successes) == (
        [True, False],
        2,
        1,
    )
    entries = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [(line["success"], line["intervened"]) for line in entries] == [(True, 0), (True, 3)], (
        "as it ended, and by whom"
    )


@pytest.mark.parametrize(
    "statuses, refused_since",
    [
        ([(False, None), (True, 3), (True, 3)], 0),
        ([(True, 3), (True, 4)], 1),
        ([(True, 2), (True, 0), (True, 1)], 1),
        ([(False, None), (False, None)], 0),
        ([(True, 3), (True, None), (True, 3)], 0),
        ([(True, None), (True, 3)], 3),
        ([(True, None), (True, 2), (True, 3)], 1),
    ],
)
def test_what_was_refused_before_is_not_recorded_anew_and_what_is_since_is(statuses, refused_since):
    director = Director.__new__(Director)  # without ROS
    director.station, director.refused, director._closed_ids, director.counted = (
        "a",
        -1,
        set(),
        False,
    )
    for number, (connected, count) in enumerate(statuses):
        names, values = (
            ([], []) if count is None else (["refused", "a/refused"], [9.0, float(count)])
        )
        director._on_trainer(TrainerStatus(connected=connected, names=names, values=values))
        if number == len(statuses) - 2:
            director._closed_ids.add("the first of this run")
    assert max(0, refused(director.trainer, "a") - max(director.refused, 0)) == refused_since


def test_a_full_disk_keeps_its_lines_for_later_and_ends_nothing(tmp_path, monkeypatch):
    lines = Lines(tmp_path / "gone")
    lines.add({"event": "one"})
    lines.add({"event": "two"})
    assert "2 lines wait and are written later. Free disk space" in lines.trouble
    write_status(tmp_path / "gone", {"phase": "online"})
    (tmp_path / "gone").mkdir()
    lines.add({"event": "three"})
    assert lines.trouble == "" and [
        json.loads(line)["event"] for line in lines.path.read_text().splitlines()
    ] == ["one", "two", "three"]


@pytest.mark.parametrize(
    "trainer, version, episodes, is_so",
    [
        ({}, 3, 5, True),
        ({"accepting": False}, 3, 5, False),
        ({"backlog": 1}, 3, 5, False),
        ({}, 2, 5, False),
        ({}, 3, 6, False),
        ({"policy_version": 4}, 3, 5, False),
        ({"names": ["b/episodes"]}, 3, 5, False),
    ],
)
def test_the_learner_is_caught_up_with_once_it_has_all_owes_nothing_and_its_policy_plays(
    trainer, version, episodes, is_so
):
    status = TrainerStatus(
        **{"accepting": True, "names": ["a/episodes"], "values": [5.0], "policy_version": 3}
        | trainer
    )
    assert caught_up(status, PolicyStatus(version=version), "a", episodes) is is_so


def test_what_is_on_its_way_has_come_once_its_number_has_been_the_same_for_a_while(monkeypatch):
    now, number = [0.0], [0]
    settled = SettledCount(lambda: number[0])
    monkeypatch.setattr("rlinf_ros.station_state.time", MagicMock(monotonic=lambda: now[0]))
    results = [
        settled()
        for now[0], number[0] in ((0.0, 1), (1.9, 1), (2.0, 2), (3.9, 2), (4.1, 2), (4.2, 3))
    ]
    assert results == [False, False, False, False, True, False]


@pytest.mark.parametrize("synchronous, waited_for", [(True, [6, 7, 0]), (False, [0])])
def test_in_turns_each_question_waits_until_the_trainer_has_its_episodes(
    synchronous, waited_for, tmp_path, monkeypatch
):
    director = Director.__new__(Director)  # without ROS
    director.lines, director.recent, director.env_steps = Lines(tmp_path), MagicMock(ended=[]), 0
    director.trainer, director._safe, waited, orders = (
        TrainerStatus(names=["a/episodes"], values=[4.0]),
        [],
        [],
        [],
    )
    director.station, come = "a", iter([4.0, 5.0])  # the evaluation before it comes now
    director._within = lambda seconds, ready: (
        [ready() for director.trainer.values in ([episode_count] for episode_count in come)]
        and not ready()
    )
    ends = iter(["", "", "the end"])
    monkeypatch.setattr("rlinf_station.director.ending", lambda *_: next(ends))

    def play(count, mode, seed, deadline):
        orders.append((count, mode, seed))
        director._safe = [EpisodeEvent(episode_id=f"e{seed}")]

    def catch_up(seconds, episodes=0):
        waited.append(episodes)
        director.trainer.values = [max(director.trainer.values[0], float(episodes))]

    monkeypatch.setattr(director, "_episodes", play)
    monkeypatch.setattr(director, "_catch_up", catch_up)
    online = {
        "first_seed": 9,
        "max_minutes": 1.0,
        "request_episodes": 1,
        "drain_timeout_s": 3.0,
        "synchronous": synchronous,
    }
    assert (
        director._online(online) == "the end"
        and orders == [(1, "train", 9), (1, "train", 10)]
        and waited == waited_for
    )


@pytest.mark.parametrize(
    "mode, state, waits",
    [
        ("train", {"accepting": True}, False),
        ("train", {"connected": True}, True),
        ("evaluate", {"connected": True}, False),
        ("train", {"connected": False}, False),
        ("evaluate", {"held": True, "accepting": True}, True),
        ("evaluate", {"spool_full": 1.0, "accepting": True}, True),
    ],
)
def test_an_environment_that_is_silent_is_asked_again_but_where_it_waits_for_the_trainer(
    monkeypatch, tmp_path, mode, state, waits
):
    now = [0.0]
    monkeypatch.setattr(
        director_module, "time", MagicMock(monotonic=lambda: now[0], time=time.time)
    )
    director, answer = Director.__new__(Director), Future()  # without ROS
    director.trainer, director.safety = TrainerStatus(**state), SafetyState(state=SafetyState.ARMED)
    director.operator, director.lines = MagicMock(prompt=""), Lines(tmp_path)
    director.runner = MagicMock()
    director.runner.send_goal_async.return_value.result.return_value.get_result_async.return_value = answer
    answer.result = lambda: MagicMock(result=MagicMock(success=True))

    def turn(seconds):
        now[0] += 1.0
        if now[0] > 100.0:
            answer.set_result(None)

    director._turn, director._within = turn, lambda seconds, ready: ready()
    director._ask(1, mode, 0, 0.0)
    cancelled = director.runner._cancel_goal_async.called
    assert (now[0] > 100.0, cancelled) == (waits, not waits), "after 20 s"


@pytest.mark.parametrize(
    "states, armed_s",
    [
        ([SafetyState.FAULT] * 5 + [SafetyState.DISARMED] * 5 + [SafetyState.ARMED] * 99, 10.0),
        (
            [SafetyState.DISARMED] * 3
            + [SafetyState.ARMED] * 2
            + [SafetyState.DISARMED] * 4
            + [SafetyState.ACTIVE] * 99,
            9.0,
        ),
    ],
)
def test_after_a_stop_a_run_goes_on_a_while_after_a_person_has_armed_for_good(
    monkeypatch, tmp_path, states, armed_s
):
    now, warnings = [0.0], []
    monkeypatch.setattr(
        director_module, "time", MagicMock(monotonic=lambda: now[0], time=time.time)
    )
    director = Director.__new__(Director)  # without ROS
    director.safety, director.lines, director.get_logger = (
        SafetyState(state=states[0]),
        Lines(tmp_path),
        MagicMock(),
    )
    director.get_logger().warning = warnings.append

    def turn(_):
        now[0] += 1.0
        director.safety.state = states[int(now[0])]

    director._turn = turn
    director._await_arming(0.0)
    assert armed_s + GOES_ON_S - 1.0 <= now[0] <= armed_s + GOES_ON_S + 1.0, (
        "seen in turns of a second"
    )
    assert "moves the arm as soon as it is armed" in warnings[0]
    line = json.loads((tmp_path / "progress.jsonl").read_text().splitlines()[0])
    assert line["event"] == "stopped_by_interlock"


def test_after_a_stop_a_run_waits_no_longer_than_its_time(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(
        director_module, "time", MagicMock(monotonic=lambda: now[0], time=time.time)
    )
    director = Director.__new__(Director)  # without ROS
    director.safety, director.lines = (
        SafetyState(state=SafetyState.FAULT, cause="estop:x"),
        Lines(tmp_path),
    )
    director.get_logger, director._turn = MagicMock(), lambda _: now.__setitem__(0, now[0] + 1.0)
    director._await_arming(20.0)
    assert 20.0 < now[0] <= 21.0


@pytest.mark.parametrize(
    "code, waits, stops",
    [
        (CODES.INTERLOCK_STOPPED, [7.0], False),
        (CODES.CANCELLED, [], False),
        (CODES.NONE, [], False),
        (CODES.EPISODES_FAILED, [], True),
    ],
)
def test_a_request_that_the_interlock_stopped_ends_no_run(
    monkeypatch, tmp_path, code, waits, stops
):
    director, answer, waited = Director.__new__(Director), Future(), []  # without ROS
    director.trainer, director.safety = TrainerStatus(), SafetyState(state=SafetyState.ARMED)
    director.operator, director.lines, director.runner = (
        MagicMock(prompt=""),
        Lines(tmp_path),
        MagicMock(),
    )
    director.runner.send_goal_async.return_value.result.return_value.get_result_async.return_value = answer
    answer.set_result(MagicMock(result=CODES(success=code == CODES.NONE, error_code=code)))
    director._within, director._await_arming = lambda seconds, ready: ready(), waited.append
    with pytest.raises(RunStopped) if stops else contextlib.nullcontext():
        director._ask(1, "train", 0, 7.0)
    assert waited == waits


def test_in_a_fault_nothing_is_asked_before_a_person_has_armed(tmp_path):
    director, order = Director.__new__(Director), []  # without ROS
    director.safety, director.runner, director.lines = (
        SafetyState(state=SafetyState.FAULT),
        MagicMock(),
        Lines(tmp_path),
    )
    director._await_arming = lambda deadline: order.append("waited")
    director._within = lambda seconds, ready: order.append("asked") or True
    director.runner.send_goal_async.return_value.result.return_value.accepted = False
    director._ask(1, "train", 0, 0.0)
    assert order[:2] == ["waited", "asked"]
