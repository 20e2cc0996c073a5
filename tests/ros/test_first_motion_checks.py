"""The judgements and settings of `rlinf first-motion`, without ROS."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rcl_interfaces.msg import ParameterValue, SetParametersResult
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState

from rlinf_core.core.errors import RlinfError
from rlinf_tools import first_motion, first_motion_watch
from rlinf_tools.first_motion import _moves, _row
from rlinf_tools.first_motion_watch import Watcher

LIMITS = "sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml"  # 0.25 m/s


def watched(metres_per_s, scale=1.0):
    """Return the watch over an arm that moved along x for 0.6 s, as commanded or the other way."""
    watcher = Watcher.__new__(Watcher)
    watcher.poses = watcher.measured = [
        (0.01 * k, (0.01 * k * metres_per_s, 0.0, 0.0)) for k in range(60)
    ]
    watcher.targets = [(at, (scale * x, y, z)) for at, (x, y, z) in watcher.poses]
    watcher.by_joints, watcher.started_at, watcher.limits = False, 0.0, SimpleNamespace(speed=0.25)
    watcher.spin = lambda *_: None
    return watcher


@pytest.mark.parametrize(
    "metres_per_s, scale, held",
    [
        (0.025, 1.0, True),
        (0.029, 1.0, True),
        (0.032, 1.0, False),
        (0.25, 1.0, False),
        (0.025, -1.0, False),
    ],
)
def test_an_arm_that_is_faster_than_a_tenth_or_goes_elsewhere_is_found(
    monkeypatch, metres_per_s, scale, held
):
    monkeypatch.setattr(first_motion, "_moving", lambda watcher: None)
    assert _moves(watched(metres_per_s, scale), 0.025).held is held


@pytest.mark.parametrize(
    "metres_per_s, took_ms, held",
    [(0.025, 9.0, True), (0.25, 9.0, False), (0.0, 11.0, False), (0.25, 11.0, False)],
)
def test_an_arm_that_stops_late_or_far_is_found(metres_per_s, took_ms, held):
    assert _row(watched(metres_per_s), "S2", "x", 0.0, took_ms, 10.0).held is held


class Interlock:
    """An arm's interlock that answers a watcher's requests for its speeds."""

    def __init__(self, speed, refuses=""):
        self.values, self.refuses, self.requests = {"limits.speed": speed}, refuses, []

    def get(self, request):
        return self._answer(
            values=[
                ParameterValue(type=3, double_value=self.values.get(name, float("inf")))
                for name in request.names
            ]
        )

    def set(self, request):
        self.requests.append(
            {
                parameter.name: pytest.approx(parameter.value.double_value)
                for parameter in request.parameters
            }
        )
        return self._answer(
            results=[SetParametersResult(successful=not self.refuses, reason=self.refuses)]
        )

    def _answer(self, **fields):
        future = Future()
        future.set_result(SimpleNamespace(**fields))
        return future


@pytest.fixture
def slowed(monkeypatch):
    """A watcher of the left arm, whose interlock runs as its file says; the right one's was set to
    less.
    """
    monkeypatch.setattr(first_motion_watch, "DELIVERY_S", 0.0)
    watcher, arms = Watcher.__new__(Watcher), {"left": Interlock(0.25), "right": Interlock(0.02)}
    watcher.getting, watcher.setting = (
        {
            name: SimpleNamespace(call_async=getattr(arm, call), service_is_ready=lambda: True)
            for name, arm in arms.items()
        }
        for call in ("get", "set")
    )
    watcher.robot = SimpleNamespace(limits_by_arm=dict.fromkeys(arms, LIMITS))
    watcher.arm = "left"
    watcher.slowed = {}
    watcher.node, watcher.safety_by_arm = MagicMock(), {}
    watcher.states = [(0.0, SafetyState(state=SafetyState.ARMED))]
    states = {name: SafetyState(limits_hash=f"slow {name}") for name in arms}

    def subscribe_arms(*_, **__):
        watcher.safety_by_arm.update(states)

    monkeypatch.setattr(first_motion_watch.rclpy, "spin_once", subscribe_arms)
    return watcher, arms, states


def test_every_arm_goes_at_a_tenth_none_faster_than_it_was_set_and_afterwards_as_before(
    slowed,
):
    watcher, arms, _ = slowed
    before, speeds = watcher.slow_down(0.1)
    assert speeds == {"speed": pytest.approx(0.025)} and arms["left"].requests == [
        {"limits.speed": 0.025}
    ]
    assert arms["right"].requests == [{"limits.speed": 0.02}], "less than a tenth already"
    watcher.speed_up(before)
    assert [arm.requests[-1] for arm in arms.values()] == [
        {"limits.speed": 0.25},
        {"limits.speed": 0.02},
    ]


@pytest.mark.parametrize("arm", ["left", "right"])
def test_an_interlock_that_was_started_anew_or_set_meanwhile_ends_it(slowed, arm):
    watcher, _, states = slowed
    watcher.slow_down(0.1)
    done = iter([False, True])
    watcher.spin(lambda: next(done), 1.0, "something")  # nothing has changed
    states[arm] = SafetyState(limits_hash="as its file says")
    done = iter([False, True])
    with pytest.raises(
        RlinfError, match=f"the interlock of {arm} was restarted, .*no longer a tenth. Disarm"
    ):
        watcher.spin(lambda: next(done), 1.0, "something")
    assert not watcher.lowered, "nobody says then that they stay so"


def test_one_that_takes_no_other_speeds_or_is_armed_is_said(slowed):
    watcher, arms, _ = slowed
    arms["right"].refuses = "no"
    with pytest.raises(
        RlinfError, match=r"of right refuses other speeds: no. Those of left now have other speeds"
    ):
        watcher.slow_down(0.1)
    watcher.poses = watcher.measured = [(0.0, (0.0, 0.0, 0.0))]
    with pytest.raises(
        RlinfError, match="expected the interlock DISARMED before the first motion, got ARMED"
    ):
        watcher.meet()


class Person(Watcher):
    """Somebody who does what the drill asks for, at an arm and an interlock that react after a
    while. Their time passes only while the drill waits.
    """

    def __init__(self, monkeypatch, **reactions):
        self.now, self.velocity, self.mode, self.cause = 100.0, 0.0, SafetyState.DISARMED, ""
        self.commanding, self.silent, self.last_report, self.last_command = False, False, 0.0, 0.0
        # seconds; 1.0 comes to rest at once
        self.reactions = {"hold": 0.2, "disarm": 0.0, "estop": 0.05, "robot": 0.03} | reactions
        self.speed, self.robot = 0.02, SimpleNamespace(estops=("pendant",))
        self.limits = SimpleNamespace(speed=0.25, lost_state=0.1)
        self.period_s, self.by_joints, self.started_at = 0.1, False, 0.0
        self.states, self.poses, self.targets, self.event_times = [], [], [], {}
        self.measured = self.poses
        self.pending = []
        self.waits = []
        self.slow = []
        self.lowered = False
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(first_motion, "time", clock)
        monkeypatch.setattr(first_motion_watch, "time", clock)
        for _ in range(50):
            self.step()

    def step(self):
        self.now += 0.01
        for entry in [entry for entry in self.pending if entry[0] <= self.now]:
            self.pending.remove(entry)
            entry[1]()
        x = self.poses[-1][1][0] if self.poses else 0.0
        if not self.silent:
            self.poses.append((self.now, (x + 0.01 * self.velocity, 0.0, 0.1)))
        self.targets.append((self.now, (x + 0.01 * self.velocity, 0.0, 0.1)))
        if self.commanding and self.now - self.last_command > 0.095:
            self.event_times["command"] = self.last_command = self.now
        if self.now - self.last_report > 0.095:
            self.report()

    def report(self):
        self.last_report = self.now
        self.states.append((self.now, SafetyState(state=self.mode, cause=self.cause)))

    def stop(self, mode, cause=""):
        self.mode, self.cause, self.velocity = mode, cause, self.velocity * self.creeps
        self.report()

    creeps = 0.0

    def after(self, seconds, mode, cause=""):
        self.pending.append((self.now + seconds, lambda: self.stop(mode, cause)))

    def do(self, name):
        if name == "the arm to move by a person's hand":
            self.mode, self.cause, self.velocity = SafetyState.ACTIVE, "", self.speed
            self.commanding, self.silent = True, False
        elif name == "the arm to rest again":
            self.velocity, self.commanding = 0.0, False
        elif "let go of your device" in name and "answer" not in name:
            self.commanding = False
            self.after(self.reactions["hold"], SafetyState.HOLD, "silent")
        elif "disarm it: q" in name and "answer" not in name:
            self.after(self.reactions["disarm"], SafetyState.DISARMED)
        elif "e-stop 'pendant'" in name and "answer" not in name:
            self.event_times["estop:pendant"] = self.now
            self.after(self.reactions["estop"], SafetyState.FAULT, "estop:pendant")
        elif "robot's own stop" in name and self.reactions["robot"] is not None:
            self.event_times["robot:reflex"] = self.now
            self.after(self.reactions["robot"], SafetyState.FAULT, "robot:reflex")
        elif "robot's own stop" in name:
            self.silent, self.velocity = True, 0.0
            self.after(self.reactions["lost"], SafetyState.FAULT, "stale_state")
        elif name.startswith("the reset of") or name == "the disarming":
            self.silent, self.velocity = False, 0.0
            self.after(0.5, SafetyState.DISARMED)

    def spin(self, is_done, seconds, condition_name):
        self.waits.append((condition_name, seconds))
        self.do(condition_name)
        end = self.now + seconds
        while not is_done():
            self.step()
            if self.now > end:
                raise RlinfError(f"waited {seconds:g} s for {condition_name}")

    def meet(self):
        pass

    def slow_down(self, factor):
        self.slow.append(factor)
        self.lowered = True
        return {"": {"speed": 0.25}}, {"speed": 0.025, "rotation_speed": 0.1}

    def speed_up(self, before):
        self.slow.append(before)
        self.lowered = False


SPEEDS = {"speed": 0.025, "joint_speed": 0.3}


def test_a_drill_of_an_arm_and_an_interlock_that_do_as_they_should(monkeypatch, capsys):
    person = Person(monkeypatch)
    rows = list(first_motion.drill(person, SPEEDS))
    assert [(row.requirement, row.trap, row.held) for row in rows] == [
        (name, 0, True) for name in ("S9", "S2", "S13", "S14", "S17")
    ]
    assert [row.bound for row in rows] == [
        "0.030 m/s, 0.9 of 1 alike",
        "within 350 ms; 22 mm",
        "within 10 ms; 22 mm",
        "within 135 ms; 22 mm",
        "within 55 ms; 22 mm",
    ]
    assert rows[0].measured == "0.020 m/s, 1.00 alike"
    assert person.now - 100.0 < 12.0, "nobody waits longer than it takes"
    took = [int(row.measured.split()[1]) for row in rows[1:]]
    assert took == pytest.approx([240, 0, 50, 30], abs=21), "the last command was 40 ms ago"
    moved = [float(row.measured.split()[-2]) for row in rows[1:]]
    assert moved == pytest.approx([4.8, 0.0, 1.0, 0.6], abs=0.5), "at 20 mm a second"
    assert [row.name for row in rows] == [
        "the first motion: follows the command, at a tenth of the speed",
        "the device was let go",
        "disarmed by a person",
        "e-stop pendant pressed",
        "the robot stopped by itself, and was reset",
    ]
    printed = capsys.readouterr().out
    instructions = [line for line in printed.splitlines() if line]
    assert instructions == [
        ">>> clear the table, hold the hardware e-stop, arm (e), and move the tool a little, then "
        "stop",
        ">>> arm (e) and move the tool; then, let go of your device while the arm moves",
        ">>> arm (e) and move the tool; then, while the arm moves, disarm it: q",
        ">>> arm (e) and move the tool; then, while the arm moves, press the e-stop 'pendant'",
        ">>> release it, then: rlinf fault reset --cause 'estop:pendant'",
        ">>> arm (e) and move the tool; then, while the arm moves, press the robot's own stop (or "
        "touch it until it stops by itself)",
        ">>> release it, then: rlinf fault reset --cause 'robot:reflex'",
    ]
    times = dict(person.waits)
    assert (
        times["the arm to move by a person's hand"] == times["the reset of robot:reflex"] == 180.0
    )
    assert times["the arm to rest"] == 5.0 and times["the arm to rest again"] == 180.0
    assert times["let go of your device while the arm moves"] == 180.0
    assert times["the interlock to answer: while the arm moves, disarm it: q"] == 2.0


@pytest.mark.parametrize(
    "reactions, requirement",
    [
        ({"hold": 0.4}, "S2"),
        ({"estop": 0.16}, "S14"),
        ({"robot": 0.08}, "S17"),
    ],
)
def test_a_drill_finds_what_reacts_too_late(monkeypatch, reactions, requirement):
    rows = list(first_motion.drill(Person(monkeypatch, **reactions), SPEEDS))
    assert [row.requirement for row in rows if not row.held] == [requirement]


def test_a_drill_finds_an_arm_that_goes_on_after_a_stop(monkeypatch):
    person = Person(monkeypatch)
    person.creeps = 0.05  # slower than what counts as motion, for ever
    rows = list(first_motion.drill(person, SPEEDS))
    assert [row.held for row in rows] == [True] * 5
    person = Person(monkeypatch)
    person.creeps = 0.5
    with pytest.raises(RlinfError, match="waited 5 s for the arm to rest"):
        list(first_motion.drill(person, SPEEDS))


@pytest.mark.parametrize("lost_s, held, took", [(0.15, True, 150), (0.25, False, 250)])
def test_a_robot_that_falls_silent_has_stopped_at_its_last_pose(monkeypatch, lost_s, held, took):
    rows = list(first_motion.drill(Person(monkeypatch, robot=None, lost=lost_s), SPEEDS))
    assert rows[-1].bound.startswith("within 200 ms") and rows[-1].held is held
    assert int(rows[-1].measured.split()[1]) == pytest.approx(took, abs=21)
    assert all(row.held for row in rows[:-1])


def test_who_does_not_do_it_in_time_ends_the_drill(monkeypatch):
    monkeypatch.setattr(first_motion, "PATIENCE_S", 5.0)
    person = Person(monkeypatch)
    person.speed = 0.0
    with pytest.raises(RlinfError, match="waited 5 s for the arm to move by a person's hand"):
        list(first_motion.drill(person, SPEEDS))
    person = Person(monkeypatch, disarm=999.0)
    with pytest.raises(RlinfError, match="waited 5 s for while the arm moves, disarm it: q"):
        list(first_motion.drill(person, SPEEDS))


def test_an_arm_that_moves_without_a_command_is_found(monkeypatch):
    monkeypatch.setattr(first_motion, "_moving", lambda watcher: None)
    watcher = watched(0.02)
    watcher.targets = []
    with pytest.raises(RlinfError, match="expected commands of the interlock while the arm moved"):
        _moves(watcher, 0.025)


@pytest.mark.parametrize("rad_per_s, held", [(0.25, True), (0.35, True), (0.4, False)])
def test_the_speed_of_an_arm_by_joints_is_that_of_its_fastest_joint(monkeypatch, rad_per_s, held):
    monkeypatch.setattr(first_motion, "_moving", lambda watcher: None)
    watcher = watched(rad_per_s)
    watcher.measured = [(at, (-x, 0.5 * x, x)) for at, (x, *_) in watcher.poses]
    watcher.targets, watcher.by_joints = list(watcher.measured), True
    row = _moves(watcher, 0.3)
    assert row.held is held and row.bound == "0.360 rad/s, 0.9 of 1 alike"
    assert row.measured == f"{rad_per_s:.3f} rad/s, 1.00 alike", "not 1.5 times as much"


def test_a_motion_that_is_too_short_for_a_speed_has_none(monkeypatch):
    monkeypatch.setattr(first_motion, "_moving", lambda watcher: None)
    watcher = watched(0.25)
    del watcher.measured[8:]
    assert _moves(watcher, 0.025).measured == "0.000 m/s, 1.00 alike"


def test_an_arm_that_did_not_move_is_not_alike(monkeypatch):
    monkeypatch.setattr(first_motion, "_moving", lambda watcher: None)
    row = _moves(watched(0.0), 0.025)
    assert not row.held and row.measured == "0.000 m/s, 0.00 alike"


@pytest.fixture
def person(monkeypatch):
    walker = Person(monkeypatch)
    arguments = []
    monkeypatch.setattr(
        first_motion, "Watcher", lambda recipe, arm: arguments.append((recipe, arm)) or walker
    )
    yield walker
    assert arguments in ([("recipe", "")], [("recipe", "left")])


def test_a_drill_that_is_held_restores_the_speeds_after_a_disarming(person, capsys, tmp_path):
    assert first_motion.first_motion("recipe", "", tmp_path / "rows.json") == 0
    assert person.slow == [0.1, {"": {"speed": 0.25}}] and person.waits[-1] == (
        "the disarming",
        180.0,
    )
    printed = capsys.readouterr().out
    assert "the interlock's speeds are now a tenth: speed 0.025, rotation_speed 0.1\n" in printed
    assert (
        "held     S9   the first motion: follows the command, at a tenth of the speed: bound 0.030 "
        "m/s, 0.9 of 1 alike, measured 0.020 m/s, 1.00 alike\n" in printed
    )
    assert "\n>>> all requirements held. Disarm to restore the speeds\n" in printed
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["requirement"], row["held"]) for row in rows] == [
        (name, True) for name in ("S9", "S2", "S13", "S14", "S17")
    ]


def test_a_drill_ends_with_what_is_not_held_and_the_speeds_stay(person, capsys, tmp_path):
    person.reactions["hold"] = 0.5
    assert first_motion.first_motion("recipe", "left", tmp_path / "rows.json") == 1
    printed = capsys.readouterr().out
    assert "; so are those of every arm. Move 'left' with your device\n" in printed
    assert "NOT HELD S2   the device was let go: bound within 350 ms" in printed
    assert "this requirement was not held, so the drill ends" in printed and "S13" not in printed
    assert person.slow == [0.1] and len(json.loads((tmp_path / "rows.json").read_text())) == 2


@pytest.mark.parametrize("lowered", [True, False])
@pytest.mark.parametrize("error", [RlinfError("no"), KeyboardInterrupt()])
def test_a_drill_that_is_ended_early_says_that_the_speeds_stay(
    person, capsys, tmp_path, error, lowered
):
    def slow_down(factor):
        person.lowered = lowered
        raise error

    person.slow_down = slow_down
    with pytest.raises(type(error)):
        first_motion.first_motion("recipe", "", tmp_path / "rows.json")
    line = "ended early: the speeds stay at a tenth until the interlock is restarted\n"
    assert capsys.readouterr().out == line * lowered
    assert json.loads((tmp_path / "rows.json").read_text()) == []


@pytest.mark.parametrize(
    "words, recipe, arm, file",
    [
        (["ur5e"], ("ur5e", []), "", None),
        (["demo", "seed=3", "--arm", "left"], ("demo", ["seed=3"]), "left", None),
        (["demo", "--json", "rows.json"], ("demo", []), "", Path("rows.json")),
    ],
)
def test_the_command_drills_the_arm_of_its_recipe(monkeypatch, words, recipe, arm, file):
    monkeypatch.setattr(first_motion, "command_context", contextlib.nullcontext)
    monkeypatch.setattr(first_motion, "load_recipe", lambda *arguments: arguments)
    monkeypatch.setattr(
        first_motion, "first_motion", lambda *arguments: drilled.append(arguments) or 3
    )
    monkeypatch.setattr("sys.argv", ["first-motion", *words])
    drilled = []
    with pytest.raises(SystemExit) as ended:
        first_motion.main()
    assert ended.value.code == 3 and drilled == [(recipe, arm, file)]
