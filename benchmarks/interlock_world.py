"""Random limits, arms and people for the fuzzer of the interlock's core (``fuzz_interlock.py``).

Words (fault words, causes, frames, names of inputs) are drawn from the code's own vocabulary: every
string in the interlock's core, its node, the drivers and the robot interface.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.interlock_oracle import Oracle
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.rotation import product, to_quaternion
from rlinf_core.interlock import (
    ArmReport,
    Chunk,
    EStop,
    Inputs,
    Limits,
    Mode,
    State,
    adopt_limits,
    loosened_limits,
    step,
    with_values,
)
from rlinf_core.interlock.limits import FIXED, TABLE

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "rlinf_core/interlock",
    "rlinf_core/robots/drivers",
    "rlinf_core/specs/topics.py",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("ros_ws/src/rlinf_*/rlinf_*"))),
)
ODD_NUMBERS = (math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, -0.0)
JOINTS = 7
FIXED_LIMITS = (
    "joint_names",
    "joint_low",
    "joint_high",
    "box_low",
    "box_high",
    "orientation",
    "frame",
    "control_mode",
    "tick",
    "joint_margin",
)
TICKS = (0.001, 0.002, 0.004, 0.01, 0.01, 0.01, 0.02, 0.1)


@functools.cache
def vocabulary() -> tuple[str, ...]:
    """Return every short string of the sources."""
    words = {"reflex", "camera", "tool0", "base", ""}
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and len(node.value) <= 30
                    and "\n" not in node.value
                ):
                    words.add(node.value)
    return tuple(sorted(words))


def number(random: Random, low: float, high: float, default: float) -> float:
    """Return a legal value: the default, an end of the range, or anything between."""
    kind = random.random()
    if kind < 0.5:
        return default
    if kind < 0.58:
        return low
    if kind < 0.66:
        return high
    if low > 0.0 and kind < 0.9:
        return float(math.exp(random.uniform(math.log(low), math.log(high))))
    return random.uniform(low, high)


def unit_quaternion(random: Random) -> tuple[float, ...]:
    values = [random.gauss(0.0, 1.0) for _ in range(4)]
    size = math.hypot(*values)
    return tuple(value / size for value in values)


def draw_limits(random: Random) -> Limits:
    """Return random limits from the whole table that the reader of limits files accepts."""
    while True:
        joint, gripper = random.random() < 0.35, random.random() < 0.3
        centre = [random.uniform(-1.0, 1.0) for _ in range(3)]
        half = [random.choice((0.02, 0.1, 0.5, 2.0)) * random.uniform(0.5, 1.0) for _ in range(3)]
        angles = [random.uniform(-2.0, 2.0) for _ in range(JOINTS)]
        spread = [random.choice((0.15, 0.3, 2.0)) for _ in range(JOINTS)]
        values: dict[str, Any] = {
            "box_low": [max(-3.0, c - h) for c, h in zip(centre, half, strict=True)],
            "box_high": [min(3.0, c + h) for c, h in zip(centre, half, strict=True)],
            "orientation": random.choice(
                ((0.0, 1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), unit_quaternion(random))
            ),
            "control_mode": "joint_delta" if joint else "tcp_delta",
            "tick": random.choice(TICKS),
            "gripper_width": random.choice((0.08, 0.5, 1e-3)) if gripper else 0.0,
            "frame": random.choice(("base_link", "base", "camera")),
            "joint_margin": random.choice((0.0, 0.05, 0.1)),
        }
        if joint or random.random() < 0.2:
            values |= {
                "joint_names": [f"joint{index}" for index in range(JOINTS)],
                "joint_low": [max(-7.0, a - s) for a, s in zip(angles, spread, strict=True)],
                "joint_high": [min(7.0, a + s) for a, s in zip(angles, spread, strict=True)],
            }
        defaults = {
            "speed": 0.25,
            "acceleration": 1.0,
            "jerk": 10.0,
            "divergence": 0.03,
            "cone": 0.5,
        }
        for name, item in TABLE.items():
            if name in FIXED_LIMITS or name == "gripper_width":
                continue
            default = defaults.get(name, item.default)
            low, high = item.metadata["range"]
            values[name] = number(random, low, high, default)
            if random.random() < 0.01 and name != "cone":
                values[name] = "unlimited"
        base = Limits(
            box_low=(-1.0,) * 3,
            box_high=(1.0,) * 3,
            speed=0.25,
            acceleration=1.0,
            jerk=10.0,
            divergence=0.03,
            orientation=(0.0, 1.0, 0.0, 0.0),
            cone=0.5,
        )
        try:
            limits = with_values(base, values)
        except RecipeError:
            continue
        longest = max(group.points for group in limits.groups)
        if longest <= 60 or random.random() < 0.01:  # a long filter is slow here, and no different
            return limits


def draw_changed_limits(
    random: Random, limits: Limits, original: Limits, disarmed: bool
) -> Limits | None:
    """Return limits with some values tighter, or looser while disarmed."""
    changes: dict[str, Any] = {}
    names = [name for name, item in TABLE.items() if item.metadata["tighter"] != FIXED]
    speeds = [
        name for name in names if "speed" in name or name in ("cone", "box_high", "joint_high")
    ]
    shapes = [name for name in names if name.endswith(("acceleration", "jerk"))]
    for name in random.sample(random.choice((names, speeds, shapes)), random.choice((1, 1, 2, 3))):
        value, (low, high) = getattr(limits, name), TABLE[name].metadata["range"]
        if isinstance(value, tuple):
            amount = random.choice((1e-4, 3e-3, 0.05)) * (
                1 if TABLE[name].metadata["tighter"] == "higher" else -1
            )
            changes[name] = [min(max(part + amount, low), high) for part in value]
        elif TABLE[name].metadata["tighter"] == "higher":
            changes[name] = min(high, value + random.choice((1e-3, 0.05)))
        elif math.isinf(value):
            changes[name] = random.uniform(low, high)
        else:
            changes[name] = min(
                high, max(low, value * random.choice((0.999, 0.95, 0.9, 0.5, 0.01)))
            )
    if disarmed and random.random() < 0.5:
        changes = {name: getattr(original, name) for name in changes}
        changes = {
            name: "unlimited" if value == math.inf else value for name, value in changes.items()
        }
    try:
        new = with_values(limits, changes, "limits", original)
    except RecipeError:
        return None
    return None if loosened_limits(limits, new) and not disarmed else new


class World:
    """One interlock with a random arm, random reports of it and random people."""

    def __init__(self, random: Random) -> None:
        self.random, self.original = random, draw_limits(random)
        self.limits, self.state, self.oracle = self.original, State(), Oracle(asdict(self.original))
        self.joint = self.limits.control_mode == "joint_delta"
        self.home = self._home()
        self.arm = self.home
        self.tool = self._tool()
        self.angles = tuple(
            random.uniform(low + 0.1, high - 0.1) if high - low > 0.2 else 0.5 * (low + high)
            for low, high in zip(self.limits.joint_low, self.limits.joint_high, strict=True)
        )
        self.width = random.uniform(0.0, min(self.limits.gripper_width, 1.0))
        self.now, self.seq, self.enable_s = 10**9, 0, 0.0
        self.follow_rate = 1.0  # part of its error that the arm makes up for in a tick
        self.conditions: dict[str, tuple[Any, int]] = {}  # value and remaining ticks
        self.command_stream: tuple[str, tuple[float, ...], float, int] | None = None
        self.session = {"policy": "a", "operator": "b"}
        self.blocked, self.output = "", None
        self.events: tuple[Any, ...] = ()
        self.has_few_faults = random.random() < 0.5  # such a world gets further
        self.estops = random.choice(((), ("pendant",), ("pendant", "page")))

    # The arm
    def _home(self) -> tuple[float, ...]:
        limits, random = self.limits, self.random
        if self.joint:
            margin = limits.joint_margin
            return tuple(
                random.uniform(low + margin, high - margin)
                for low, high in zip(limits.joint_low, limits.joint_high, strict=True)
            )
        place = [
            random.uniform(low, high)
            for low, high in zip(limits.box_low, limits.box_high, strict=True)
        ]
        turn = [random.gauss(0.0, 1.0) for _ in range(3)]
        size = random.uniform(0.0, min(limits.cone, 3.0)) / math.hypot(*turn)
        if random.random() < 0.1:  # first seen outside
            place, size = [value + 0.05 for value in place], size * 1.1
        return (*place, *product(limits.nominal, to_quaternion([value * size for value in turn])))

    def _tool(self) -> tuple[float, ...]:
        """Return the tool's place while joints are commanded."""
        limits = self.limits
        middle = [
            0.5 * (low + high) for low, high in zip(limits.box_low, limits.box_high, strict=True)
        ]
        return (*middle, *limits.nominal)

    def follow(self, target: tuple[float, ...]) -> None:
        """Move the arm: with its target, late, not at all, or by somebody who carries it."""
        carry = self.take_condition("carry")
        if carry is not None:
            self.arm = tuple(q + d for q, d in zip(self.arm, carry, strict=False)) + tuple(
                self.arm[len(carry) :]
            )
        elif self.follow_rate:
            sign = (
                -1.0
                if not self.joint
                and sum(a * b for a, b in zip(self.arm[3:], target[3:], strict=True)) < 0.0
                else 1.0
            )
            aim = target if self.joint else (*target[:3], *[sign * value for value in target[3:]])
            self.arm = tuple(
                q + self.follow_rate * (t - q) for q, t in zip(self.arm, aim, strict=True)
            )
            if not self.joint:
                size = math.hypot(*self.arm[3:])
                self.arm = (*self.arm[:3], *[value / size for value in self.arm[3:]])

    # Conditions that last for a while
    def start_condition(self, name: str, value: Any, ticks: int) -> None:
        self.conditions[name] = value, ticks

    def take_condition(self, name: str) -> Any:
        value, ticks = self.conditions.get(name, (None, 0))
        if ticks <= 0:
            return None
        self.conditions[name] = value, ticks - 1
        return value

    def change_conditions(self) -> None:
        """Change some condition of the world once in a while."""
        random, fault_rate = self.random, 0.3 if self.has_few_faults else 1.0
        self.follow_rate = random.choice((1.0, 1.0, 1.0, 0.3, 0.05, 0.0))
        duration = random.choice((1, 1, 2, 5, 15, 70))

        def happens(chance: float) -> bool:
            return random.random() < chance * fault_rate

        if happens(0.06):
            amount = random.choice((1e-5, 0.002, 0.01))
            self.start_condition(
                "carry",
                tuple(random.uniform(-amount, amount) for _ in range(7 if self.joint else 3)),
                4 * duration,
            )
        if happens(0.1):
            self.start_condition(
                "pose_error",
                random.choice(
                    (
                        "jump",
                        "nan",
                        "frame",
                        "freeze",
                        "none",
                        "old",
                        "noise",
                        "size",
                        "half",
                        "sign",
                        "units",
                    )
                ),
                duration,
            )
            self.false_pose = tuple(q + random.uniform(-0.3, 0.3) for q in self.arm)
            self.foreign_frame = random.choice(vocabulary())
        if happens(0.05):
            self.start_condition(
                "fault",
                random.choice(vocabulary()) + random.choice(("", "", " refused", ":x")),
                duration,
            )
        if happens(0.05):
            self.start_condition("estop", random.choice(("pressed", "old", "nan")), duration)
        if happens(0.04):
            self.start_condition(
                "silent",
                (
                    random.choice(
                        (
                            "wrench",
                            "joint_states",
                            "gripper/state",
                            "robot/fault",
                            random.choice(vocabulary()),
                        )
                    ),
                ),
                duration,
            )
        if happens(0.02):
            topics = ("policy/action", "teleop/action", random.choice(vocabulary()))
            self.start_condition("doubled", (random.choice(topics),), duration)
        if happens(0.02):
            self.start_condition("foreign", (random.choice(vocabulary()),), duration)
        if happens(0.03):
            self.start_condition("clock_stepped", True, duration)
        if happens(0.08):
            force = self.limits.contact_fault if math.isfinite(self.limits.contact_fault) else 40.0
            self.start_condition(
                "wrench",
                random.choice(
                    (
                        (0.0, 0.0),
                        (0.7 * force, 0.0),
                        (1.1 * force, 0.0),
                        (0.0, 60.0),
                        (math.nan, 0.0),
                        (1.0, math.nan),
                    )
                ),
                duration,
            )
        if happens(0.08):
            slow = self.limits.slow_distance if math.isfinite(self.limits.slow_distance) else 0.02
            metres = random.choice(
                (slow * random.random(), slow, 2.0 * slow, 0.0, -1.0, 500.0, math.nan, math.inf)
            )
            self.start_condition(
                "distance", (metres, random.choice((0.0, 0.0, 0.0, 3.0))), 4 * duration
            )
        if happens(0.08):
            self.start_condition("enable", random.choice((None, "old", "never")), duration)
        if happens(0.08):
            self.start_condition(
                "other",
                random.choice(
                    (
                        *vocabulary(),
                        "disarmed",
                        "fault",
                        "stale_command",
                        "enable",
                        "handing_back",
                        "realigning",
                    )
                ),
                duration,
            )
        if happens(0.04):
            self.start_condition("tool", random.choice(("away", "turned", "nan", "none")), duration)
        if happens(0.04):
            self.start_condition("angles", random.choice(("away", "nan", "none")), duration)

    # Inputs
    def pose_inputs(self) -> dict[str, Any]:
        """Return the inputs about the arm's place."""
        random, limits, pose_error = self.random, self.limits, self.take_condition("pose_error")
        at = self.arm
        if pose_error in ("jump", "freeze"):
            at = self.false_pose
            if not self.joint and pose_error == "freeze":
                size = math.hypot(*at[3:]) or 1.0
                at = (*at[:3], *[value / size for value in at[3:]])
        elif pose_error == "nan":
            at = tuple(
                random.choice(ODD_NUMBERS[:3]) if random.random() < 0.3 else value for value in at
            )
        elif pose_error == "noise":
            at = (*[value + random.gauss(0.0, 0.004) for value in at[:3]], *at[3:])
        elif pose_error == "size":
            at = at[:-1]
        elif pose_error == "units":  # millimetres, degrees
            at = (
                tuple(math.degrees(q) for q in at)
                if self.joint
                else (*[1000.0 * value for value in at[:3]], *at[3:])
            )
        elif pose_error == "half":
            at = tuple(0.5 * value for value in at)
        elif pose_error == "sign" and not self.joint:
            at = (*at[:3], *[-value for value in at[3:]])
        inputs: dict[str, Any] = {
            "frame": self.foreign_frame
            if pose_error == "frame"
            else random.choice(("", limits.frame)),
            "pose_age_ns": random.choice((60_000_000, 10**9, 10**18)) if pose_error == "old" else 0,
            "gripper": self.width if limits.gripper_width else None,
        }
        if pose_error == "units" and limits.gripper_width and random.random() < 0.5:
            inputs["gripper"] = 1000.0 * self.width
        if pose_error == "none":
            at = None
        other_pose = self.take_condition("tool" if self.joint else "angles")
        if self.joint:
            tool: Any = self.tool
            if other_pose == "away":
                tool = (9.0, *tool[1:])
            elif other_pose == "turned":
                tool = (*tool[:3], *product(limits.nominal, to_quaternion((3.0, 0.0, 0.0))))
            elif other_pose == "nan":
                tool = (*tool[:6], math.nan)
            return inputs | {"joints": at, "pose": None if other_pose == "none" else tool}
        angles: Any = self.angles or None
        if angles and other_pose:
            angles = {"away": (99.0, *angles[1:]), "nan": (math.nan, *angles[1:]), "none": None}[
                other_pose
            ]
        return inputs | {"pose": at, "joints": angles}

    def chunks(self) -> tuple[Chunk, ...]:
        """Return the commands of this tick."""
        random, limits = self.random, self.limits
        if self.command_stream is None:
            if random.random() < 0.9:
                return ()
            dt = random.choice((max(0.001, limits.tick), 0.05, 0.1))
            size = random.choice(limits.action_sizes)
            self.command_stream = (
                random.choice(("policy", "policy", "operator")),
                self._action(size, dt),
                dt,
                random.randint(1, 300),
            )
        source, action, dt, remaining = self.command_stream
        # an operator who does not let go falls silent
        if remaining == 1 and source == "operator" and random.random() < 0.8:
            self.command_stream = None
            release = self._release(dt) if random.random() < 0.8 else ()
            if random.random() < 0.4:
                return release
            # has waited, or goes on as if nobody had it
            self.command_stream = (
                "policy",
                action,
                dt,
                random.randint(1, 300),
            )
            return (
                *release,
                *[self._chunk("policy", action, dt) for _ in range(random.choice((0, 1, 2)))],
            )
        self.command_stream = (source, action, dt, remaining - 1) if remaining > 1 else None
        period_ticks = max(1, round(dt / limits.tick))
        if remaining % period_ticks and random.random() < 0.98:
            return ()
        if random.random() < 0.2:
            action = self._action(len(action), dt)
        return tuple(self._chunk(source, action, dt) for _ in range(random.choice((1, 1, 1, 1, 2))))

    def _release(self, dt: float) -> tuple[Chunk, ...]:
        """Return the operator's release of a takeover."""
        self.seq += 1
        return (
            Chunk(
                "operator",
                self.session["operator"],
                self.seq,
                -1,
                self.now,
                dt,
                self.limits.control_mode,
                (),
                execute=0,
                is_release=True,
            ),
        )

    def _action(self, size: int, dt: float) -> tuple[float, ...]:
        limits, random = self.limits, self.random
        scale = random.choice((0.3, 1.0, 1.0, 3.0)) * random.choice((1.0, 1.0, -1.0))
        groups = limits.groups
        speeds = (
            [groups[0].speed] * JOINTS
            if self.joint
            else [groups[0].speed] * 3 + [groups[1].speed] * 3
        )
        arm = size if self.joint else 6 if size >= 6 else 3
        values = [
            scale * dt * min(speed, 3.0) * random.uniform(-1.0, 1.0) for speed in speeds[:arm]
        ]
        if self.joint and size > JOINTS:
            values = values[:JOINTS]
        values += [random.uniform(-0.5, 0.5) * dt * min(limits.gripper_speed, 0.5)] * (
            size - len(values)
        )
        return tuple(values)

    def _chunk(self, source: str, action: tuple[float, ...], dt: float) -> Chunk:
        random, limits, now = self.random, self.limits, self.now
        self.seq += 1
        chunk = Chunk(
            source,
            self.session[source],
            self.seq,
            0,
            now,
            dt,
            limits.control_mode,
            (action,) * random.choice((1, 2, 8)),
        )
        kind = random.random() * (5.0 if self.has_few_faults else 1.0)
        if kind < 0.02:
            junk = tuple(
                random.choice(ODD_NUMBERS) if random.random() < 0.3 else value for value in action
            )
            return replace(chunk, actions=(*chunk.actions[1:], junk))
        if kind < 0.08:
            field, value = random.choice(
                (
                    ("dt_s", random.choice((0.0, -0.1, math.nan, math.inf, 1e9, 1e-3))),
                    ("seq", self.seq - 3),
                    ("seq", 2**62),
                    ("seq", self.seq + 200_000),
                    ("source", random.choice(vocabulary())),
                    ("frame", random.choice(vocabulary())),
                    ("control_mode", random.choice(vocabulary())),
                    ("joint_names", (random.choice(vocabulary()),)),
                    ("joint_names", limits.joint_names),
                    ("actions", ()),
                    ("actions", (action, action[:-1])),
                    ("actions", ((*action, 0.0, 0.0),)),
                    ("actions", tuple(tuple(1e3 * value for value in action) for _ in range(2))),
                    ("observation_stamp_ns", now + random.randint(-100, 100) * 10_000_000),
                )
            )
            return replace(chunk, **{field: value})
        if kind < 0.085:
            self.session[source] = random.choice("abc")
        return chunk

    def request_inputs(self) -> dict[str, Any]:
        """Return the requests of people and the reports of other arms."""
        random = self.random
        requests: dict[str, Any] = {}
        mode = self.state.mode
        if random.random() < (0.15 if mode is Mode.DISARMED else 0.01):
            requests["arm"] = random.random() < (0.97 if mode is Mode.DISARMED else 0.6)
        if mode is Mode.FAULT and random.random() < 0.1:
            requests["reset_fault"] = (
                self.state.cause if random.random() < 0.8 else random.choice(vocabulary())
            )
        if random.random() < 0.003:
            requests["end_episode"] = True
        if random.random() < 0.001:
            requests["restart"] = True
        if random.random() < (0.05 if mode is Mode.FAULT else 0.001):
            requests["recover"] = True
        estop, enable = self.take_condition("estop"), self.take_condition("enable")
        held = self.conditions.get("enable", (None, 0))[1] > 0
        requests["estops"] = tuple(
            EStop(name, estop == "pressed", {"old": 9.0, "nan": math.nan}.get(estop or "", 0.0))
            for name in self.estops
        )
        requests["enable"] = not (held and enable is None)
        presses = random.random() < 0.01
        self.enable_s = (
            0.0 if presses or self.limits.enable_lease < 10.0 else self.enable_s + self.limits.tick
        )
        requests["enable_age_s"] = {"old": 61.0, "never": math.inf}.get(enable or "", self.enable_s)
        requests["enable_renewed"] = presses and requests["enable"] and enable is None
        for name, key in (
            ("silent", "silent"),
            ("doubled", "doubled"),
            ("foreign", "foreign"),
            ("clock_stepped", "clock_stepped"),
            ("wrench", "wrench"),
            ("distance", "distance"),
            ("fault", "robot_fault"),
        ):
            value = self.take_condition(name)
            if value is not None:
                requests[key] = value
        other = self.take_condition("other")
        if other is not None:
            requests["others"] = (ArmReport("left", other),)
        return requests

    # One tick
    def tick(self, neighbour: World | None = None) -> list[str]:
        """Run a tick of the interlock; return its violations."""
        random, limits = self.random, self.limits
        late_s = (
            random.choice((0.5, 1.5, 3.0, 10.0)) * limits.tick if random.random() < 0.004 else 0.0
        )
        late_s = random.choice((0.15, 0.5, 2.0)) if random.random() < 3e-4 else late_s
        self.now += round((limits.tick + late_s) * 1e9)
        if random.random() < 3e-4:
            self.now += random.choice((-(10**9), 10**9, -3 * 10**7, 10**15, 7_000_000))
        nearly_rests = self.state.still and any(not motion.settled for motion in self.state.motions)
        # the last steps towards rest are where limits change hardest
        if random.random() < (0.1 if nearly_rests else 0.002):
            self.tighten()
        inputs = Inputs(
            chunks=self.chunks(), late_s=late_s, **self.pose_inputs(), **self.request_inputs()
        )
        if neighbour is not None:
            inputs = replace(inputs, others=(*inputs.others, ArmReport("right", neighbour.blocked)))
        try:
            self.state, self.output, self.events = step(self.limits, self.state, inputs, self.now)
        except Exception as error:
            return [f"an exception: {type(error).__name__}: {error}"]
        self.blocked = self.output.blocked or ("disarmed" if neighbour is None else "")
        problems = self.oracle.check(inputs, self.output, self.events, self.now)
        target = self.output.joints or self.output.target
        if inputs.restart and random.random() < 0.5:
            self.arm = self.home
        elif target is not None and not self.output.suppress_setpoint:
            self.follow(target)
        elif self.take_condition("carry") is not None:
            self.follow(self.arm)
        if self.output.gripper is not None and random.random() < 0.8:
            self.width = self.output.gripper
        return problems

    def tighten(self) -> None:
        new = draw_changed_limits(
            self.random, self.limits, self.original, self.state.mode is Mode.DISARMED
        )
        if new is None:
            return
        state, refused = adopt_limits(new, self.state, self.limits)
        if not refused:
            self.state, self.limits = state, new
            self.oracle.limit(asdict(new))


def run_stretch(seed: int, ticks: int) -> Iterator[tuple[int, list[str], World]]:
    """Yield each tick of a random world, or of two waiting arms, with its violations."""
    random = Random(seed)
    worlds = [World(random)]
    if random.random() < 0.25:
        worlds.append(World(random))
    for number in range(ticks):
        for index, world in enumerate(worlds):
            if number % 20 == 0:
                world.change_conditions()
            yield number, world.tick(worlds[1 - index] if len(worlds) > 1 else None), world
