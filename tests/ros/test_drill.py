"""The fault injector, kind by kind, and the drill as a user runs it."""

import json
import math
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from builtin_interfaces.msg import Time
from rlinf_msgs.msg import ActionChunk, SafetyState
from std_msgs.msg import Header, String

import rlinf_tools.drill
from rlinf_core.interlock.latch import exclusive_command
from rlinf_core.interlock.scenarios import FAULTS, Drop
from rlinf_core.launch.graph import RESPAWN, Process
from rlinf_core.launch.supervisor import only_station
from rlinf_ros.conversions import to_ns
from rlinf_ros.qos import profile
from rlinf_tools import drill_checks
from rlinf_tools.drill_checks import check_fault_evidence
from rlinf_tools.fault_injector import FaultInjector

pytestmark = [pytest.mark.ros, pytest.mark.timeout(900)]


@pytest.mark.domain(73)
def test_the_fault_injector_does_what_each_kind_says(peer):
    got, announced = [], []
    peer.node.create_subscription(ActionChunk, "drill/action", got.append, profile("policy/action"))
    peer.node.create_subscription(Header, "injected", announced.append, 10)
    chunks = peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    inject = peer.node.create_publisher(String, "inject", 10)
    peer.supervisor.start(
        Process(
            "fault_injector",
            "rlinf_tools",
            "fault_injector",
            "rlinf_tools.fault_injector",
            "/station_a",
            {"routes": ["policy/action:drill/action:rlinf_msgs/msg/ActionChunk"]},
            (),
            RESPAWN,
        )
    )
    peer.spin(
        lambda: chunks.get_subscription_count() and inject.get_subscription_count(),
        what="the injector",
    )
    peer.spin(lambda: peer.node.count_publishers("/station_a/drill/action"), what="its output")
    seq = 0

    def passed(fault, expected, count=2):
        nonlocal seq
        inject.publish(String(data=yaml.safe_dump({"route": "policy/action"} | fault)))
        peer.for_s(0.3)
        got.clear()
        first = seq + 1
        for _ in range(count):
            seq += 1
            chunk = ActionChunk(seq=seq, data=[0.1 * seq])
            chunk.header.stamp.sec = chunk.observation_stamp.sec = 100 + seq
            chunks.publish(chunk)
            peer.for_s(0.05)
        peer.spin(lambda: len(got) >= len(expected), what=f"{fault}")
        peer.for_s(0.3)
        assert [m.seq - first for m in got] == expected
        return True

    assert passed({"kind": "none"}, [0, 1]) and not announced
    assert passed({"kind": "drop"}, []) and [h.frame_id for h in announced] == ["policy/action"]
    assert passed({"kind": "drop", "fraction": 0.5}, [0, 2], 4)
    assert passed({"kind": "reorder"}, [1, 0])
    assert passed({"kind": "repeat", "times": 2}, [0, 0, 0, 1, 1, 1])
    assert passed({"kind": "delay", "seconds": 0.2}, [0, 1])
    assert passed({"kind": "corrupt", "value": "nan"}, [0, 1]) and all(
        math.isnan(m.data[0]) for m in got
    )
    assert passed({"kind": "scale", "value": 10}, [0, 1]) and got[1].data[0] == pytest.approx(
        1.0 * seq
    )
    assert passed({"kind": "offset", "value": 5}, [0, 1]) and got[1].data[0] == pytest.approx(
        0.1 * seq + 5
    )
    assert (
        passed({"kind": "corrupt", "field": "source", "value": "x"}, [0, 1])
        and got[0].source == "x"
    )
    assert (
        passed({"kind": "freeze"}, [0, 0])
        and got[0].data == got[1].data
        and got[0].header != got[1].header
    )
    assert passed({"kind": "shift", "seconds": -50}, [0, 1])
    assert to_ns(got[1].observation_stamp) == (50 + seq) * 10**9 == to_ns(got[1].header.stamp)
    for wrong in (
        {"kind": "nonsense"},
        {"kind": "drop", "times": 3},
        {"kind": "drop", "route": "policy/acton"},
    ):
        assert passed(wrong, [0, 1]) and got[1].observation_stamp.sec == 50 + seq, (
            "the last fault goes on"
        )
    inject.publish(String(data="[not YAML"))
    assert passed({"kind": "offset", "field": "dta", "value": 1}, [0, 1]) and got[1].data[
        0
    ] == pytest.approx(0.1 * seq)
    assert passed({"kind": "corrupt", "value": "soon"}, [0, 1]) and got[1].data[0] == pytest.approx(
        0.1 * seq
    )
    log = (peer.supervisor.run_dir / "logs/fault_injector.log").read_text()
    for words in (
        "'inject.kind': expected one of none, drop",
        "unknown key 'inject.times'; known here: fraction, kind",
        "'inject.route': expected one of policy/action, got 'policy/acton'",
        "message: expected readable YAML",
        "expected a field and a value that fit ActionChunk, got route='policy/action' "
        "kind='offset' field='dta'",
    ):
        assert words in log, log
    assert set(FAULTS) == {
        "none",
        "drop",
        "delay",
        "reorder",
        "repeat",
        "corrupt",
        "offset",
        "scale",
        "freeze",
        "shift",
    }


def drill(tmp_path, domain, *options):
    path = tmp_path / "drill.json"
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "drill",
            "--out",
            str(tmp_path / "run"),
            "--json",
            str(path),
            "--domain",
            str(domain),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert path.exists(), result.stdout + result.stderr
    return json.loads(path.read_text()), result


def test_the_drill_prints_bound_measured_and_verdict_also_of_a_list_of_ones_own(tmp_path):
    ours = [
        scenario
        for scenario in yaml.safe_load(Path("configs/drill.yaml").read_text())
        if "NaN" in scenario["name"]
    ]
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        yaml.safe_dump([scenario | {"name": f"mine: {scenario['name']}"} for scenario in ours])
    )
    measured, result = drill(tmp_path, 105, "--scenarios", str(mine), "--only", "NaN")
    rows = measured["rows"]
    assert [row["name"] for row in rows] == [
        "mine: actions are NaN",
        "mine: the measured pose is NaN",
    ]
    results = "\n".join(row["measured"] for row in rows)
    assert "never" not in results and results.count("then 0 mm by itself") == len(rows), results
    assert result.returncode == (1 if measured["not_held"] else 0), (
        "a loaded machine may take longer than a bound"
    )
    assert "measured: HOLD invalid_command after" in result.stdout
    assert "bound: HOLD stale_state within 35 ms" in result.stdout


@pytest.mark.parametrize(
    "faults, events, recordings, held",
    [
        (0, 0, 0, True),
        (2, 2, 2, True),
        (2, 2, 1, False),
        (2, 1, 2, False),
        (16, 51, 5, True),
        (16, 50, 5, False),
        (16, 1000, 4, False),
    ],
)
def test_every_fault_leaves_an_event_and_a_recording_be_the_list_short_or_long(
    tmp_path, faults, events, recordings, held
):
    rows = []
    good, bad = (SafetyState(state=kind) for kind in (SafetyState.ACTIVE, SafetyState.FAULT))
    for number in range(recordings):
        (tmp_path / f"faults/closed/{number}").mkdir(parents=True)
    states = [(0.0, state) for _ in range(faults) for state in (good, bad, bad)]
    check_fault_evidence(
        SimpleNamespace(run_dir=tmp_path, states=states, events=events, add=rows.append)
    )
    assert [row.held for row in rows] == [held]
    assert rows[0].measured == f"{faults} faults, {events} events, {recordings} recordings"


@pytest.mark.parametrize("fraction, announced_at", [(1.0, 0), (0.5, 1), (0.25, 3)])
def test_a_fault_is_announced_with_the_first_message_that_it_alters(fraction, announced_at):
    injector, passed, announced = FaultInjector.__new__(FaultInjector), [], []
    injector.faults = {"here": Drop(route="here", kind="drop", fraction=fraction)}
    injector.route_state = {}
    injector.altered = set()
    injector.outputs = {"here": SimpleNamespace(publish=passed.append)}
    injector.injected = SimpleNamespace(publish=announced.append)
    injector.get_clock = lambda: SimpleNamespace(now=lambda: SimpleNamespace(to_msg=Time))
    for number in range(4):
        injector._on_message("here", number)
        assert bool(announced) is (number >= announced_at)
        assert (number in passed) is not (number % round(1 / fraction) == announced_at)


class FakeObserver:
    """An observer of a drill with given records of interlock, target and arm."""

    _continues, _stays_stopped, _fresh, _has_state, _state_text = (
        getattr(rlinf_tools.drill.Drill, name)
        for name in ("_continues", "_stays_stopped", "_fresh", "_has_state", "_state_text")
    )

    def __init__(self, states, places=((0.0, 0.0),) * 3):
        self.states = [
            (time.time() + at, SafetyState(state=state, cause=cause)) for at, state, cause in states
        ]
        self.places, self.waited_s = list(places), []
        self.spin_for(0.0)

    def spin_for(self, seconds):
        target, arm = self.places.pop(0) if self.places else (0.0, 0.0)
        self.targets, self.pose = [(0.0, 0, (target, 0.0, 0.0))], (arm, 0.0, 0.0)
        self.waited_s.append(seconds)

    def spin(self, until, seconds):
        return bool(until())

    def state(self):
        return self.states[-1][1]

    def _restore(self, scenario):
        pass


@pytest.mark.parametrize(
    "last, held, words",
    [
        ((0.0, SafetyState.ACTIVE, ""), True, "continued"),
        ((-1.2, SafetyState.ACTIVE, ""), False, "no message from the interlock any more"),
        ((0.0, SafetyState.DISARMED, ""), False, "the interlock is in DISARMED"),
        ((0.0, SafetyState.ARMED, ""), False, "the interlock is in ARMED"),
        ((0.0, SafetyState.HOLD, "contact"), False, "stopped: contact"),
    ],
)
def test_the_arm_goes_on_only_where_its_interlock_says_so_now(last, held, words):
    observer = FakeObserver([(-1.4, SafetyState.ACTIVE, ""), last])
    scenario = SimpleNamespace(expect="ACTIVE", counts=None, process="")
    assert observer._continues(scenario, SafetyState(), time.time() - 1.5) == (
        held,
        words,
        "the arm continues",
    )
    scenario.counts, observer.states[-1][1].dropped = "dropped", 3
    held_too, counted, _ = observer._continues(scenario, SafetyState(), time.time() - 1.5)
    assert held_too is held and counted == ("3 dropped" if held else f"3 dropped, {words}")


@pytest.mark.parametrize(
    "target, arm, seconds, still, words",
    [
        (0.1, [0.1], None, True, "0 mm"),
        (0.1, [0.13], None, False, "30 mm"),
        (0.1, [0.1], 1.5, True, "0 mm"),
        (0.2, [0.1], None, False, "100 mm"),
        (0.1001, [0.1], None, True, "0 mm"),
        (0.1, [0.1009, 0.1013], None, True, "0 mm"),
        (0.1, [0.1009, 0.1018, 0.1027], None, False, "1 mm"),
        (0.1, [0.1009, 0.1109], None, False, "10 mm"),
        (0.2, [0.1009, 0.1013], None, False, "100 mm"),
    ],
    ids=[
        "both rest",
        "the arm continues",
        "after a stop",
        "the target goes on",
        "begun from where it is found",
        "the arm creeps to its rest",
        "the arm creeps on",
        "the arm creeps and goes",
        "the target goes, the arm creeps",
    ],
)
def test_a_fault_moves_neither_the_target_nor_the_arm(target, arm, seconds, still, words):
    observer = FakeObserver(
        [(0.0, SafetyState.FAULT, "x")], [(0.0, 0.0), (0.1, 0.1), *((target, at) for at in arm)]
    )
    assert observer._stays_stopped(SimpleNamespace(seconds=seconds)) == (
        still,
        f"then {words} by itself",
    )
    assert observer.waited_s[1:] == [0.7 + (seconds or 0.0), *(0.7 for _ in arm)]


@pytest.mark.parametrize(
    "options, row, message",
    [
        (
            [],
            "inject: {route: wench, kind: drop}",
            "'inject.route': expected one of policy/action, current_pose, wrench",
        ),
        (
            [],
            "process: interlock_left, signal: KILL",
            "'process': expected one of sim_bridge, interlock, environment",
        ),
        (
            [],
            "process: policy, signal: KILL, others: HOLD",
            "'others': expected none at a station with one arm",
        ),
        (
            ["--two-arms"],
            "process: interlock, signal: KILL",
            "got 'interlock' (did you mean 'interlock_",
        ),
        (
            [],
            "proces: policy",
            "mine.yaml, line 1: unknown key 'scenarios[0].proces' (did you mean 'process'?)",
        ),
    ],
)
def test_what_is_wrong_in_a_list_of_scenarios_is_told_before_a_folder_is_made(
    tmp_path, monkeypatch, capsys, options, row, message
):
    (tmp_path / "mine.yaml").write_text(f"- {{name: a, {row}, expect: HOLD, within_ms: 30}}")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "drill",
            "--scenarios",
            str(tmp_path / "mine.yaml"),
            "--out",
            str(tmp_path / "run"),
            *options,
        ],
    )
    with pytest.raises(SystemExit):
        rlinf_tools.drill.main()
    output = capsys.readouterr().err
    assert "rlinf: " in output and message in output and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (
            ["--only", "nonsuch"],
            "--only: expected words of a scenario's name, got 'nonsuch', which no scenario has. "
            "Scenarios: ",
        ),
        (
            ["--only", "NaN", "--out", "."],
            "expected a new folder, got: File exists. Choose another folder",
        ),
        (
            ["--only", "NaN", "--out", "/proc/none"],
            "--out /proc/none: expected a new folder, got: No such file or directory",
        ),
    ],
)
def test_a_drill_that_cannot_be_says_so_before_anything_starts(
    tmp_path, monkeypatch, capsys, options, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["drill", *options])
    # tests beside this one may hold the lock of a station in the domain of all tests
    monkeypatch.setenv("ROS_DOMAIN_ID", "39")
    with pytest.raises(SystemExit):
        rlinf_tools.drill.main()
    output = capsys.readouterr().err
    assert "rlinf: " in output and message in output and not list(tmp_path.iterdir())


def test_a_drill_beside_another_one_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["drill", "--only", "NaN", "--out", str(tmp_path / "run")])
    monkeypatch.setenv("ROS_DOMAIN_ID", "39")
    with only_station("station_a", 39), pytest.raises(SystemExit):
        rlinf_tools.drill.main()
    assert "rlinf: station 'station_a' is already running" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_drill_into_a_folder_that_exists_names_the_folder_beside_another_drill_too(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["drill", "--only", "NaN", "--out", str(tmp_path)])
    monkeypatch.setenv("ROS_DOMAIN_ID", "39")
    with only_station("station_a", 39), pytest.raises(SystemExit):
        rlinf_tools.drill.main()
    assert f"--out {tmp_path}: expected a new folder" in capsys.readouterr().err


@pytest.mark.parametrize("shell", [None, ""])
def test_where_the_shell_says_no_domain_the_drill_listens_where_its_station_is(monkeypatch, shell):
    domains = []
    monkeypatch.setattr(sys, "argv", ["drill"])
    monkeypatch.setenv("ROS_DOMAIN_ID", "39")
    if shell is None:
        monkeypatch.delenv("ROS_DOMAIN_ID")
    else:
        monkeypatch.setenv("ROS_DOMAIN_ID", shell)
    monkeypatch.setattr(
        rlinf_tools.drill,
        "command_context",
        lambda: domains.append(os.environ["ROS_DOMAIN_ID"]) or nullcontext(),
    )
    monkeypatch.setattr(rlinf_tools.drill, "perform", lambda options: 0)
    with pytest.raises(SystemExit):
        rlinf_tools.drill.main()
    assert domains == ["42"]


@pytest.mark.parametrize("namespace", ["/station_a", "/station_a/right"])
def test_a_drill_beside_a_station_that_ros2_launch_has_started_says_so_and_resets_nothing_there(
    tmp_path, monkeypatch, capsys, namespace
):
    monkeypatch.setattr(sys, "argv", ["drill", "--only", "NaN", "--out", str(tmp_path / "run")])
    monkeypatch.setenv("ROS_DOMAIN_ID", "39")
    with exclusive_command(namespace), pytest.raises(SystemExit):
        rlinf_tools.drill.main()
    assert (
        f"another interlock commands station '{namespace}' in ROS_DOMAIN" in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_whole_drill_holds(tmp_path):
    measured, result = drill(tmp_path, 140)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (measured["requirements_held"], measured["traps_held"]) == (26, 19)


@pytest.mark.slow
def test_with_two_arms_what_goes_wrong_at_one_stops_the_other_and_the_table_says_when(tmp_path):
    measured, result = drill(tmp_path, 134, "--two-arms", "--only", "reflex")
    [row] = measured["rows"]
    assert (
        row["requirement"] == "S17"
        and "FAULT robot:reflex after" in row["measured"]
        and "never" not in row["measured"]
    )
    assert "right: HOLD arm:left after" in row["measured"] and row["measured"].endswith(
        "then 0 mm"
    ), row
    assert "after inf ms" not in row["measured"]
    assert result.returncode == (1 if measured["not_held"] else 0), (
        "a loaded machine may take longer than a bound"
    )


@pytest.mark.slow
def test_the_whole_drill_holds_for_two_arms(tmp_path):
    measured, result = drill(tmp_path, 135, "--two-arms")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(measured["rows"]) == 21 and not measured["not_held"]


@pytest.mark.parametrize("most, held", [(500, True), (199, False)])
def test_s1_waits_for_enough_answers_and_is_not_held_without_them(most, held, monkeypatch):
    monkeypatch.setattr(drill_checks, "REACTIONS_TIMEOUT_S", 0.2)
    rows, reaction = [], {"reaction_p99_ms": "3.0", "reaction_worst_ms": "9.0"}

    def spin_for(seconds):
        time.sleep(0.01)
        answers = int(reaction.get("reaction_samples", 0)) + 60
        reaction["reaction_samples"] = str(min(answers, most))

    drill_checks.check_reaction_time(
        SimpleNamespace(
            ready=lambda: None,
            spin_for=spin_for,
            reaction=reaction,
            limits=SimpleNamespace(tick=0.01),
            add=rows.append,
        )
    )
    assert rows[0].held == held and int(reaction["reaction_samples"]) == min(most, 240)
