"""The fuzzer's short run, and whether its independent model can fail: one changed line of the core
each is caught.
"""

import ast
import importlib.machinery
import importlib.util
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from benchmarks import fuzz_interlock, interlock_world
from benchmarks.interlock_oracle import Oracle, relative_turn
from rlinf_core.interlock import Inputs, Mode
from tests.interlock.conftest import Rig, chunk, limits, stream

ROOT = Path(__file__).parents[2]
BROKEN = {
    "a speed 1 % too large": (
        "motion",
        "fastest = group.speed * share",
        "fastest = 1.01 * group.speed * share",
    ),
    "an acceleration 5 % too large": (
        "motion",
        "group.distance(goal, velocity), group.step",
        "group.distance(goal, velocity), 1.05 * group.step",
    ),
    "a jerk filter that is too short": (
        "motion",
        "math.ceil(2.0 * self.acceleration",
        "math.ceil(1.5 * self.acceleration",
    ),
    "walls 2 mm further out": (
        "motion",
        "return Walls.of(self, -_ROUNDING)",
        "return Walls.of(self, -0.002)",
    ),
    "a tightened acceleration in the last step towards rest": (
        "tick",
        "if reshaped and not motion.settled:",
        "if reshaped and not motion.still:",
    ),
    "a hold that covers the one of a new session": (
        "tick",
        'if self.mode is not Mode.HOLD or self.cause != "new_session":',
        "if True:",
    ),
    "an e-stop that is not heard": (
        "safety_checks",
        "for e in inputs.estops if e.pressed]",
        "for e in inputs.estops[1:] if e.pressed]",
    ),
    "a silent e-stop": (
        "safety_checks",
        "and not e.age_s <= limits.estop_silence\n",
        "and not e.age_s <= 100.0\n",
    ),
    "a reset by any name": (
        "core",
        "and self.inputs.reset_fault == self.cause\n",
        "and self.inputs.reset_fault\n",
    ),
    "a gripper's fault without a gripper": (
        "tick",
        "has_gripper = limits.gripper_width > 0.0",
        "has_gripper = True",
    ),
    "a chunk played past its end": (
        "core",
        "if index > count:  #",
        "if index > count + NS // dt_ns:  #",
    ),
    "a set-point that runs away from the arm": (
        "trajectory",
        "if not error > largest:",
        "if not error > 100.0 * largest:",
    ),
    "another arm's fault": (
        "safety_checks",
        'if arm.blocked not in ("", *ignored)',
        'if arm.blocked not in ("", "fault", *ignored)',
    ),
    "a stall that motion goes on from": (
        "tick",
        "            self.trajectory.rest()",
        "            pass",
    ),
    "fast beside an obstacle": (
        "trajectory",
        "        self.share = fraction",
        "        self.share = 1.0",
    ),
    "no pause after an operator": (
        "core",
        "(moved or self.pauses_now or self.operator.has_takeover)",
        "(self.pauses_now or self.operator.has_takeover)",
    ),
    "an operator who needs not let go": (
        "core",
        "(moved or self.pauses_now or self.operator.has_takeover)",
        "(moved or self.pauses_now)",
    ),
    "a reset that arms": ("core", "Mode.FAULT and not resets_fault:", "Mode.FAULT:"),
    "an arming from where the arm does not rest": (
        "core",
        "was_suppressed\n            or not measured_at_rest(self.limits, self.track)\n",
        "was_suppressed\n            or False\n",
    ),
    "an arm that was carried out of its workspace": (
        "trajectory",
        "if error > largest and not group.inside(at):",
        "if False:",
    ),
    "a contact that counts for nothing": (
        "safety_checks",
        'causes = ["contact"] if contacts[0] >=',
        'causes = ["contact"] if -contacts[0] >=',
    ),
    "an enable that is never old": (
        "safety_checks",
        "inputs.enable and inputs.enable_age_s <= limits.enable_lease",
        "inputs.enable",
    ),
}


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a module with one line changed."""

    def __init__(self, name, path, old, new):
        super().__init__(name, path)
        self.old, self.new = old, new

    def get_code(self, fullname):
        source = Path(self.path).read_text()
        assert source.count(self.old) == 1, f"{self.path}: expected '{self.old}' once"
        return compile(source.replace(self.old, self.new), self.path, "exec")


class Finder:
    """Finds that module before anybody else does."""

    def __init__(self, name, old, new):
        self.name, self.old, self.new = f"rlinf_core.interlock.{name}", old, new

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        file = str(ROOT / "rlinf_core/interlock" / f"{name.rpartition('.')[2]}.py")
        return importlib.util.spec_from_file_location(
            name, file, loader=Changed(name, file, self.old, self.new)
        )


def forget():
    """The next import reads the core and the fuzzer's world anew."""
    for module in list(sys.modules):
        if module.startswith(("rlinf_core.interlock", "benchmarks.interlock_w")):
            del sys.modules[module]


@pytest.fixture
def changed(monkeypatch):
    """Provide the fuzzer's world over a core with one line changed."""
    before = dict(sys.modules)

    def load(name, old, new):
        forget()
        monkeypatch.setattr(sys, "meta_path", [Finder(name, old, new), *sys.meta_path])
        world = importlib.import_module("benchmarks.interlock_world")
        assert world is not interlock_world
        return world

    yield load
    forget()
    sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})
    sys.modules["benchmarks"].interlock_world = interlock_world
    sys.modules["rlinf_core"].interlock = before["rlinf_core.interlock"]


def test_random_limits_worlds_and_people_break_nothing():
    result = fuzz_interlock.fuzz(range(20), 1000)
    assert result["messages"] == []
    assert result["ticks"] >= 20_000
    for mode in ("armed", "active", "hold", "fault", "disarmed"):
        assert result[mode] > 0.05 * result["ticks"], f"hardly ever {mode}"


@pytest.mark.parametrize("what", BROKEN)
def test_the_model_catches_a_changed_line(what, changed):
    world = changed(*BROKEN[what])
    for seed in range(300):
        if any(problems for _, problems, _ in world.run_stretch(seed, 400)):
            return
    raise AssertionError("300 worlds, and nothing is broken")


def test_the_model_shares_no_code_with_the_core():
    tree = ast.parse((ROOT / "benchmarks/interlock_oracle.py").read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name.startswith(("rlinf", "benchmarks", "tests"))]


def test_words_are_those_of_the_code():
    words = interlock_world.vocabulary()
    assert {
        "gripper",
        "frozen",
        "unreadable",
        "target_pose",
        "stale_state",
        "operator",
        "base_link",
    } <= set(words)


def test_the_whole_table_is_drawn():
    from random import Random

    drawn = [interlock_world.draw_limits(Random(seed)) for seed in range(300)]
    table = interlock_world.TABLE
    fixed = {
        "frame",
        "control_mode",
        "joint_names",
        "orientation",
        "box_low",
        "box_high",
        "joint_low",
        "joint_high",
    }
    for name in set(table) - fixed:
        values = [getattr(limits, name) for limits in drawn]
        assert len(set(values)) > 2, name
    for name in ("speed", "acceleration", "divergence", "stale_state", "refusals_to_fault"):
        low, high = table[name].metadata["range"]
        assert {low, high} <= {getattr(limits, name) for limits in drawn}, name


def test_a_violation_names_the_seed_that_replays_it(changed, monkeypatch, capsys):
    world = changed(*BROKEN["a speed 1 % too large"])
    monkeypatch.setattr(fuzz_interlock, "run_stretch", world.run_stretch)
    result = fuzz_interlock.fuzz(range(40), 300)
    assert result["violations"] == len(result["messages"]) > 0
    seed = int(result["messages"][0].split()[1].rstrip(","))
    assert fuzz_interlock.replay(seed, 300) > 0
    assert f"seed {seed}:" in capsys.readouterr().out


@pytest.mark.parametrize("w, turn", [(1.0, (0.0, 0.0, 0.0)), (0.0, (3.141592653589793, 0.0, 0.0))])
def test_the_models_own_rotation(w, turn):
    assert relative_turn(
        (0.0, 0.0, 0.0, 1.0), ((1.0 - w * w) ** 0.5, 0.0, 0.0, w), None
    ) == pytest.approx(turn)


def test_the_models_rotation_goes_on_beyond_pi():
    q = (-0.9999, 0.0, 0.0, 0.0141418)  # 3.11 rad about -x, which is 3.17 about x
    assert relative_turn((0.0, 0.0, 0.0, 1.0), q, (3.13, 0.0, 0.0))[0] == pytest.approx(
        3.1699, abs=1e-3
    )


def test_limits_that_only_loosen_are_not_tightened():
    from random import Random

    original = interlock_world.draw_limits(Random(3))
    for seed in range(200):
        new = interlock_world.draw_changed_limits(Random(seed), original, original, False)
        assert new is None or not interlock_world.loosened_limits(original, new)


@dataclass
class Judged(Rig):
    """A rig whose every tick the independent model judges."""

    def __post_init__(self):
        self.oracle, self.problems = Oracle(asdict(self.limits)), []

    def tick(self, *chunks, **inputs):
        inputs = {"pose": self.pose, "enable": True, "enable_age_s": 0.0} | inputs
        now = self.now
        output = super().tick(*chunks, **inputs)
        self.problems += self.oracle.check(
            Inputs(chunks=chunks, **inputs), output, self.events, now
        )
        return output


@pytest.mark.parametrize("wait_s, moves", [(0.55, True), (0.45, False)])
def test_the_end_of_an_operators_newest_command_counts_although_the_one_before_lasts_longer(
    wait_s, moves
):
    """Seed 40000942: the model waited for the end of a command that a newer one had replaced."""
    rig = Judged().arm()
    step_m = (0.001, 0.0, 0.0)
    rig.tick(chunk(1, rig.now, (step_m,) * 8, source="operator"))  # until 0.9 s from now
    newest = chunk(2, rig.now, (step_m,), source="operator")  # until 0.2 s from now
    rig.tick(newest)
    while rig.now < newest.valid_until_ns + wait_s * 1e9:
        rig.tick()
    rig.tick(arm=True)  # a person gives the enable back, or the takeover goes on
    for seq in range(1, 4):
        output = rig.tick(chunk(seq, rig.now, (step_m,)))
    assert (output.source == "policy") is moves
    assert rig.problems == []


def test_a_set_point_may_brake_although_the_arm_came_to_rest_beyond_its_divergence():
    """Seed 40001140: somebody moved the arm away from a moving set-point, which needs time."""
    rig = Judged(limits(speed=0.01, acceleration=1.0, jerk=2.0, divergence=0.001)).arm()
    stream(rig, (0.001, 0.0, 0.0), actions=5)
    far, rig.follow = rig.pose[0], False
    rig.pose = (far - 0.02, *rig.pose[1:])
    outputs = stream(rig, (0.001, 0.0, 0.0), actions=3, seq=6)
    assert rig.state.mode is Mode.ACTIVE
    assert max(output.target[0] for output in outputs) > far + 0.0005  # it brakes
    assert rig.problems == []
    ahead = replace(rig.output, target=(rig.output.target[0] + 0.1, *rig.output.target[1:]))
    problems = rig.oracle.check(  # but it may not go on
        Inputs(pose=rig.pose, enable=True, chunks=(chunk(9, rig.now),)), ahead, (), rig.now
    )
    assert any("from an arm that does not move" in problem for problem in problems), problems
