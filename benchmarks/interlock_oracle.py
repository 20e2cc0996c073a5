"""An independent model of the interlock: lists violations of docs/safety.md in inputs and outputs.

It is written from docs/safety.md and shares no code with the core: it imports nothing of
``rlinf_core`` (tests/interlock/test_fuzz.py checks that). It sees what a driver sees: limits as a
mapping, inputs and outputs by attribute. Units are SI, quaternions are x y z w, times are
nanoseconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
STOPPED = (DISARMED, FAULT)
# robot faults that do not stop the arm, and those from which that is unknown
FAULTS_WITHOUT_STOP = ("gripper", "silent", "frozen", "error")
UNCLEAR_FAULTS = ("", "recovering", "unreadable", "interlock")
# reports of other arms that hold the policy alone
POLICY_ONLY_BLOCKS = (
    "enable",
    "handing_back",
    "operator_silent",
)
TOPICS = {"policy": "policy/action", "operator": "teleop/action"}  # of their commands
STALL_S = 0.1  # a longer gap between two ticks is a hold
SECOND = 1_000_000_000
MAX_SEQ, MAX_ACTIONS = 2**40, 1024

Vector = tuple[float, ...]


def relative_turn(nominal: Sequence[float], q: Sequence[float], near: Vector | None) -> Vector:
    """Return the rotation vector [rad] from ``nominal`` to ``q``, nearest to ``near``."""
    a, b, c, d = nominal
    x, y, z, w = q
    i = d * x - a * w - b * z + c * y
    j = d * y + a * z - b * w - c * x
    k = d * z - a * y + b * x - c * w
    r = d * w + a * x + b * y + c * z
    sine = math.sqrt(i * i + j * j + k * k)
    if r < 0.0:
        i, j, k, r = -i, -j, -k, -r
    if sine < 1e-12:
        return 2.0 * i, 2.0 * j, 2.0 * k
    size = 2.0 * math.atan2(sine, r)
    turn = i * size / sine, j * size / sine, k * size / sine
    if near is None or size < 2.9:
        return turn
    back = tuple(value * (1.0 - 2.0 * math.pi / size) for value in turn)
    return back if math.dist(back, near) < math.dist(turn, near) else turn


class Bounds:
    """One group of coordinates and its limits of position, speed, acceleration and jerk.

    Attributes:
        last_excess: how far the last target was outside of the workspace.
        speed_bounds: speed bounds of the last ticks, over the length of the jerk filter.
        worst: largest excess of speed, acceleration and jerk, by name.

    The speed bound after a tightening is that of docs/safety.md: the mean, over the ticks of the
    jerk filter, of a speed that falls by the acceleration until it meets the new limit.
    """

    def __init__(self, name: str, uses_max_norm: bool) -> None:
        self.name, self.uses_max_norm = name, uses_max_norm
        self.position: Vector | None = None
        self.velocity: Vector = ()
        self.acceleration: Vector = ()
        self.last_excess = 0.0
        self.speed_bounds: deque[float] = deque()
        self.worst: dict[str, float] = {}

    def limit(
        self,
        tick: float,
        speed: float,
        acceleration: float,
        jerk: float,
        low: Vector,
        high: Vector,
        radius: float,
    ) -> None:
        """Set the limits from the next tick on."""
        before = self.position is not None
        was_outside = before and self.last_excess > 1e-9
        self.tick, self.max_speed = tick, speed
        self.max_acceleration, self.max_jerk = acceleration, jerk
        self.low, self.high, self.radius = low, high, radius
        count = 1
        if not math.isinf(jerk) and not math.isinf(acceleration):
            count = max(1, math.ceil(2.0 * acceleration / (jerk * tick) - 1e-9))
        if count != len(self.speed_bounds):
            self.speed_bounds = deque([speed] * count, count)
        self.tolerance = {
            "speed": 1e-9 + 2e-14 / tick,
            "acceleration": 1e-8 + 5e-14 / tick**2,
            "jerk": 1e-5 + 1e-13 / tick**3,
        }
        if self.position is not None:
            self.last_excess = max(0.0, self.excess(self.position)) if was_outside else 0.0

    def size(self, vector: Sequence[float]) -> float:
        return max(map(abs, vector)) if self.uses_max_norm else math.hypot(*vector)

    def excess(self, position: Vector) -> float:
        """Return how far a position is outside of its workspace; negative inside."""
        out = -math.inf if math.isinf(self.radius) else math.hypot(*position) - self.radius
        for lo, p, hi in zip(self.low, position, self.high, strict=False):
            out = max(out, lo - p, p - hi)
        return out

    def reset_to(self, position: Vector) -> None:
        self.position, self.last_excess = position, max(0.0, self.excess(position))
        self.restart_at_rest()

    def restart_at_rest(self) -> None:
        """Restart from rest, after or before a time without ticks."""
        self.velocity = self.acceleration = (0.0,) * len(self.position or ())
        self.speed_bounds.extend([0.0] * len(self.speed_bounds))

    def stop_ticks(self) -> float:
        """Return the number of ticks until rest from any allowed speed (S12)."""
        braking = (
            0.0
            if math.isinf(self.max_acceleration)
            else self.speed_bounds[-1] / (self.max_acceleration * self.tick)
        )
        return math.inf if math.isinf(braking) else math.ceil(braking) + len(self.speed_bounds) + 2

    def next_speed_bound(self, share: float) -> float:
        """Return the speed bound of the next tick, with ``share`` of the speed allowed."""
        cap = self.max_speed * share
        step = self.max_acceleration * self.tick
        self.speed_bounds.append(
            max(cap, self.speed_bounds[-1] - step) if not math.isinf(step) else cap
        )
        if math.isinf(cap):
            return math.inf
        return math.fsum(self.speed_bounds) / len(self.speed_bounds)

    def problem(
        self,
        position: Vector,
        start: Vector,
        velocity: Vector,
        acceleration: Vector,
        allowed_excess: float,
        speed_bound: float,
    ) -> str:
        """Return the violation of a step; empty if there is none.

        Keeps the step's velocity and acceleration for ``accept``.
        """
        tick = self.tick
        v = tuple([(p - s) / tick for p, s in zip(position, start, strict=True)])
        a = tuple([(x - y) / tick for x, y in zip(v, velocity, strict=True)])
        excess = self.excess(position)
        self.candidate = position, v, a, max(0.0, excess)
        excesses = {
            "speed": self.size(v) - speed_bound,
            "acceleration": self.size(a) - self.max_acceleration,
        }
        if not math.isinf(self.max_jerk):
            change = [x - y for x, y in zip(a, acceleration, strict=True)]
            excesses["jerk"] = self.size(change) / tick - self.max_jerk
        self.excesses = excesses
        for name, value in excesses.items():
            if not value <= self.tolerance[name]:
                return f"{self.name}: {name} exceeded by {value:.3g}"
        if not excess <= allowed_excess + 1e-9:
            return (
                f"{self.name}: outside of its workspace by {excess:.3g}, "
                f"{allowed_excess:.3g} before"
            )
        return ""

    def accept(self, is_violation: bool) -> None:
        """Make the checked position the present one, and note its margins unless it violates."""
        self.position, self.velocity, self.acceleration, self.last_excess = self.candidate
        if is_violation:
            return
        for name, value in self.excesses.items():
            if value > self.worst.get(name, -math.inf):
                self.worst[name] = value


class Handovers:
    """Checks the way from operator to policy: a release, or a person's arming.

    After a long silence an enable is needed, too.
    """

    ENDED_S = 0.5  # after so long an arming may already be the one that gives the enable back

    def __init__(self) -> None:
        self.has_takeover, self.needs_enable, self.ends_ns = False, False, 0
        self.newest_seq, self.newest_ends_ns = -1, 0
        self.last_ns = 0  # time of the tick before

    def note_commands(self, commands: list[tuple[int, int]], source: str) -> None:
        """Note when the operator's newest command ends, at the earliest.

        A newer command replaces the one before it, and may end before it. One that may have been
        dropped never postpones that end.
        """
        for seq, ends_ns in commands:
            plays = source == "operator" and seq > self.newest_seq
            self.newest_ends_ns = ends_ns if plays else min(self.newest_ends_ns, ends_ns)
            self.newest_seq = max(self.newest_seq, seq)

    def check(
        self,
        inputs: Any,
        mode: int,
        source: str,
        ends_ns: int,
        commands: list[tuple[int, int]],
        now_ns: int,
    ) -> str:
        """Return the violations of a tick.

        ``ends_ns`` is when all commands of the operator have ended; ``commands`` are those of this
        tick, each with its number and its end.
        """
        released = TOPICS["operator"] not in inputs.doubled and any(
            chunk.is_release and chunk.source == "operator" for chunk in inputs.chunks
        )
        set_back_ns = min(0, now_ns - self.last_ns)  # of a clock; the silence lasts on
        self.last_ns = now_ns
        self.ends_ns += set_back_ns
        self.newest_ends_ns += set_back_ns
        has_operator = any(chunk.source == "operator" for chunk in inputs.chunks)
        silence_s = 0.0 if has_operator else (now_ns - self.ends_ns) * 1e-9
        if inputs.arm or inputs.restart or mode in STOPPED:
            self.needs_enable = False
        ended_s = (now_ns - self.newest_ends_ns) * 1e-9
        if (
            mode in STOPPED
            or inputs.restart
            or (inputs.arm and (silence_s > 0.0 or ended_s > self.ENDED_S))
        ):
            self.has_takeover = False
        if inputs.arm:
            self.newest_seq = -1  # after an arming, numbers may begin anew
        self.note_commands(commands, source)
        self.needs_enable = self.needs_enable or (
            self.has_takeover and silence_s > self.ENDED_S + 0.2
        )
        if has_operator:
            # also one that is held or refused is no silent one
            self.ends_ns = max(self.ends_ns, ends_ns, now_ns)
        # a person gives it back, from this tick on
        if self.needs_enable and not self.has_takeover and inputs.enable_renewed:
            self.needs_enable = False
        is_violation = source == "policy" and (self.has_takeover or self.needs_enable)
        if source == "operator":
            self.has_takeover, self.ends_ns = True, max(ends_ns, now_ns)
        if released:
            self.has_takeover = False
        return "the policy moves although an operator has not let go" if is_violation else ""


class Oracle:
    """Checks everything that docs/safety.md promises of one interlock, after each tick.

    Attributes:
        problems: what the last tick broke.
        counts: ticks per mode, and jumps that the documents allow.
    """

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self.joint = limits["control_mode"] == "joint_delta"
        names = ("joints",) if self.joint else ("position", "rotation")
        self.arm_groups = [Bounds(name, self.joint) for name in names]
        self.groups = [
            *self.arm_groups,
            *([Bounds("gripper", False)] if limits["gripper_width"] else []),
        ]
        self.problems: list[str] = []
        self.counts = dict.fromkeys(("disarmed", "armed", "active", "hold", "fault", "anew"), 0)
        self.mode, self.cause, self.suppress_setpoint, self.source = DISARMED, "", False, ""
        self.has_new_session = False  # also while another cause covers it
        self.quaternion: tuple[float, ...] = ()
        self.contacts = [0, 0]
        self.refused_ns: list[int] = []
        self.valid_until: dict[str, int] = {}
        self.ended_ns = self.armed_ns = -(1 << 63)
        self.operator_moved = False  # since the arm last rested
        self.handovers = Handovers()
        self.gripper_lost = False
        self.ticks_since_motion = 0  # since motion was last allowed
        self.stop_ticks = [0.0] * len(self.groups)
        self.unseen_s = 0.0  # time without a valid sample
        self.rest_ticks, self.last_place = 0, ()  # of the measured arm
        self.recent_places: deque[Any] = deque(maxlen=max(3, round(0.1 / limits["tick"])))
        self.target_rest_ticks = 0
        self.stopped_s = 0.0  # time in DISARMED or FAULT
        self.last_seq: dict[tuple[str, str], int] = {}
        self.last_errors = [0.0] * len(self.arm_groups)
        self.errors_at_rest = [math.inf] * len(self.arm_groups)  # as the arm came to rest
        self.leaving_speeds = [0.0] * len(self.arm_groups)
        self.limit(limits)

    def limit(self, limits: Mapping[str, Any]) -> None:
        """Set the limits in force from now on."""
        self.limits = limits
        tick = limits["tick"]
        if self.joint:
            margin = limits["joint_margin"]
            low = tuple(value + margin for value in limits["joint_low"])
            high = tuple(value - margin for value in limits["joint_high"])
            self.groups[0].limit(
                tick,
                limits["joint_speed"],
                limits["joint_acceleration"],
                limits["joint_jerk"],
                low,
                high,
                math.inf,
            )
            self.divergences = (limits["joint_divergence"],)
        else:
            self.groups[0].limit(
                tick,
                limits["speed"],
                limits["acceleration"],
                limits["jerk"],
                limits["box_low"],
                limits["box_high"],
                math.inf,
            )
            self.groups[1].limit(
                tick,
                limits["rotation_speed"],
                limits["rotation_acceleration"],
                limits["rotation_jerk"],
                (),
                (),
                limits["cone"],
            )
            self.divergences = (limits["divergence"], limits["rotation_divergence"])
        if limits["gripper_width"]:
            self.groups[-1].limit(
                tick,
                limits["gripper_speed"],
                math.inf,
                math.inf,
                (0.0,),
                (limits["gripper_width"],),
                math.inf,
            )
        size = math.hypot(*limits["orientation"])
        self.nominal = tuple(value / size for value in limits["orientation"])
        self.settle_ticks = max(3, round(0.1 / tick))

    # Inputs
    def read_sample(self, inputs: Any) -> tuple[Vector, ...] | None:
        """Return the measured place of each group, however old; None if it is invalid (S5)."""
        limits = self.limits
        if inputs.frame not in ("", limits["frame"]):
            return None
        if self.joint:
            angles = inputs.joints
            if (
                angles is None
                or len(angles) != len(limits["joint_low"])
                or not all(map(math.isfinite, angles))
            ):
                return None
            if any(
                not lo - math.tau <= q <= hi + math.tau
                for lo, q, hi in zip(limits["joint_low"], angles, limits["joint_high"], strict=True)
            ):
                return None  # degrees
            place: tuple[Vector, ...] = (tuple(angles),)
        else:
            pose = inputs.pose
            if pose is None or len(pose) != 7 or not all(map(math.isfinite, pose)):
                return None
            size = math.hypot(*pose[3:])
            if not abs(size - 1.0) < 0.01:
                return None
            if any(
                not lo - 10.0 <= p <= hi + 10.0
                for lo, p, hi in zip(limits["box_low"], pose, limits["box_high"], strict=False)
            ):
                return None  # millimetres
            near = self.groups[1].position
            turn = relative_turn(self.nominal, [value / size for value in pose[3:]], near)
            place = (tuple(pose[:3]), turn)
        if not limits["gripper_width"]:
            return place
        width = inputs.gripper
        if (
            width is None
            or not math.isfinite(width)
            or not abs(width) <= max(0.5, 2.0 * limits["gripper_width"])
        ):
            return None
        return (*place, (min(max(width, 0.0), limits["gripper_width"]),))

    def latching_causes(self, inputs: Any) -> list[str]:
        """Return the faults that must latch now (S10, S14, S17, S23, S24)."""
        limits, causes = self.limits, []
        for stop in inputs.estops:
            if stop.pressed or not stop.age_s <= limits["estop_silence"]:
                causes.append(f"e-stop {stop.name}")
        if inputs.estops and inputs.late_s > limits["estop_silence"]:
            causes.append("stalled")
        causes += [f"foreign {topic}" for topic in inputs.foreign]
        if inputs.robot_fault:
            causes.append(f"robot fault {inputs.robot_fault}")
        if inputs.wrench is not None:
            force, torque = inputs.wrench
            beyond = not (force <= limits["contact_force"] and torque <= limits["contact_torque"])
            self.contacts[0] = self.contacts[0] + 1 if beyond else 0
            self.contacts[1] = 0 if force <= limits["contact_fault"] else self.contacts[1] + 1
        if self.contacts[1] >= limits["contact_samples"]:
            causes.append("contact")
        return causes

    def enabled(self, inputs: Any) -> bool:
        lease = self.limits["enable_lease"]
        if math.isinf(lease):
            return bool(inputs.enable) or inputs.enable_age_s > 1e8
        return bool(inputs.enable) and inputs.enable_age_s <= lease

    def hold_reasons(self, inputs: Any) -> list[str]:
        """Return the reasons to hold a moving arm (S10, S11, S22, S23, S24)."""
        limits, causes = self.limits, []
        if self.contacts[0] >= limits["contact_samples"]:
            causes.append("contact")
        if inputs.distance is not None:
            metres, age_s = inputs.distance
            if (
                not math.isfinite(metres)
                or not age_s <= limits["stale_distance"]
                or not 0.0 < metres <= 100.0
            ):
                causes.append("distance")
        causes += [f"silent {name}" for name in inputs.silent]
        causes += [f"doubled {name}" for name in inputs.doubled]
        if inputs.clock_stepped:
            causes.append("clock")
        if inputs.late_s > STALL_S:
            causes.append("stalled")
        if self.joint:
            if inputs.pose is not None:
                low, high = limits["box_low"], limits["box_high"]
                inside = all(
                    lo <= p <= hi for lo, p, hi in zip(low, inputs.pose, high, strict=False)
                )
                size = math.hypot(*inputs.pose[3:])
                unit = abs(size - 1.0) < 0.01
                turn = math.inf
                if unit:
                    turn = math.hypot(
                        *relative_turn(self.nominal, [q / size for q in inputs.pose[3:]], None)
                    )
                if not inside or not turn <= limits["cone"] + 1e-9:
                    causes.append("tool outside")
        elif inputs.joints is not None:
            margin = limits["joint_margin"]
            ends = zip(limits["joint_low"], inputs.joints, limits["joint_high"], strict=False)
            if not all(lo + margin <= q <= hi - margin for lo, q, hi in ends):
                causes.append("joints outside")
        return causes

    def invalid(self, chunk: Any, now_ns: int) -> bool:
        """Return whether a chunk must be refused (S4, S5, S6, S7)."""
        limits, dt = self.limits, chunk.dt_s
        if (
            chunk.source not in ("policy", "operator")
            or chunk.control_mode != limits["control_mode"]
        ):
            return True
        if chunk.frame not in ("", limits["frame"]) or len(chunk.actions) > MAX_ACTIONS:
            return True
        if chunk.joint_names and tuple(chunk.joint_names) != limits["joint_names"]:
            return True
        if not math.isfinite(dt) or dt < 0.001 or dt > 10.0 or chunk.seq >= MAX_SEQ:
            return True
        if not chunk.actions:
            ahead = (chunk.observation_stamp_ns - now_ns) / 1e9 > limits["future_stamp"]
            return ahead or not chunk.is_release
        arm = (len(limits["joint_low"]),) if self.joint else (3, 6)
        sizes = {*arm, *((size + 1 for size in arm) if limits["gripper_width"] else ())}
        size = len(chunk.actions[0])
        if (
            size not in sizes
            or (chunk.observation_stamp_ns - now_ns) / 1e9 > limits["future_stamp"]
        ):
            return True
        for action in chunk.actions:
            if len(action) != size or not all(math.isfinite(value / dt) for value in action):
                return True
            duration_s = limits["jump_factor"] * dt * (1.0 + 1e-9)
            if self.joint:
                parts = [(max(map(abs, action[: arm[0]])), limits["joint_speed"])]
                rest = action[arm[0] :]
            else:
                parts = [(math.hypot(*action[:3]), limits["speed"])]
                turns = len(action) >= 6
                if turns:
                    parts.append((math.hypot(*action[3:6]), limits["rotation_speed"]))
                rest = action[6 if turns else 3 :]
            if rest:
                parts.append((abs(rest[0]), limits["gripper_speed"]))
            if any(distance > duration_s * speed for distance, speed in parts):
                return True
        return False

    # One tick
    def check(self, inputs: Any, output: Any, events: Sequence[Any], now_ns: int) -> list[str]:
        """Return the violation of this tick; empty if there is none."""
        self.problems = []
        mode = int(output.mode)
        place = self.read_sample(inputs)
        fresh = inputs.pose_age_ns <= self.limits["stale_state"] * SECOND  # S3
        sample = place if fresh else None
        latching = self.latching_causes(inputs)
        self.check_modes(inputs, output, mode, sample, latching, now_ns)
        self.check_commands(inputs, output, mode, sample, now_ns)
        if mode != self.mode and not any(event.kind == "mode" for event in events):
            self.problems.append("the mode changed without an event")
        self.check_target(inputs, output, events, mode, sample, place)
        self.counts[("disarmed", "armed", "active", "hold", "fault")[mode]] += 1
        self.mode, self.cause, self.source = mode, output.cause, output.source
        self.suppress_setpoint = output.suppress_setpoint
        return self.problems

    def check_modes(
        self, inputs: Any, output: Any, mode: int, sample: Any, latching: list[str], now_ns: int
    ) -> None:
        """Check latches, arming and disarming (S13)."""
        before, problems = self.mode, self.problems
        enabled = self.enabled(inputs)
        reset = (
            before == FAULT
            and inputs.reset_fault is not None
            and inputs.reset_fault == self.cause
            and not latching
            and enabled
        )
        if latching and before != DISARMED and mode != FAULT:
            problems.append(f"no fault although {latching[0]} stands")
        if before == FAULT and mode == FAULT and output.cause != self.cause:
            problems.append("the cause of a fault changed")
        if before == FAULT and mode != FAULT and not reset:
            problems.append("a fault ended without a reset by name")
        if before == FAULT and mode not in STOPPED:
            problems.append("armed by a reset")
        if (
            reset
            and mode == FAULT
            and self.cause not in ("stale_state", "state_frame", "state_units")
        ):
            problems.append("a reset by name was refused")
        if before == DISARMED and mode != DISARMED and not inputs.arm:
            problems.append("armed without a request")
        missing = inputs.silent or inputs.doubled or inputs.clock_stepped
        if before == DISARMED and mode != DISARMED and (latching or missing or sample is None):
            problems.append("armed although something stands, is missing, or the arm is not seen")
        if inputs.arm is False and before != FAULT and mode not in STOPPED:
            problems.append("a disarming was not taken")
        if inputs.arm is False and before != FAULT and not latching and mode != DISARMED:
            problems.append("a disarming became a fault")
        if output.suppress_setpoint and mode not in STOPPED:
            problems.append("no target is told while armed")
        if mode in (HOLD, FAULT) and not output.cause:
            problems.append("a hold or fault without a cause")
        self.check_new_session(inputs, output, mode)

    def check_new_session(self, inputs: Any, output: Any, mode: int) -> None:
        """Check that only an arming ends the hold of a restarted commander (S6).

        The other holds that wait for a person end by inputs: ``clock_stepped`` stays until a
        disarming, and ``Handovers`` checks an operator who fell silent.
        """
        if mode in STOPPED or inputs.arm:
            self.has_new_session = False
        if self.has_new_session and mode != HOLD:
            self.problems.append("the hold 'new_session' ended without an arming")
            self.has_new_session = False
        self.has_new_session |= mode == HOLD and output.cause == "new_session"

    def check_commands(self, inputs: Any, output: Any, mode: int, sample: Any, now_ns: int) -> None:
        """Check which commands play (S2, S5, S6, S7, S15, S16, S27, trap 9)."""
        problems, before = self.problems, self.mode
        self.refused_ns = [at for at in self.refused_ns if 0 <= now_ns - at < SECOND]
        if self.ended_ns > now_ns:
            self.ended_ns = -(1 << 63)
        if inputs.end_episode:
            self.ended_ns = now_ns
            self.valid_until.clear()
        if inputs.arm:
            self.last_seq.clear()
            self.armed_ns = now_ns
        if before == FAULT and mode != FAULT:
            self.refused_ns.clear()
        rests = inputs.end_episode and self.target_rests()
        if (
            (inputs.restart and sample is not None and before != FAULT)
            or inputs.late_s > self.limits["tick"]
            or rests
        ):
            self.operator_moved = False  # the arm was put elsewhere, or has stood, and rests there
        refused = False
        commands, has_unknown_sender = [], False
        for chunk in inputs.chunks:
            if TOPICS.get(chunk.source) in inputs.doubled:  # S23: of an unknown sender
                has_unknown_sender = True
                continue
            if self.invalid(chunk, now_ns):
                refused = True
                if before not in STOPPED and mode != DISARMED:
                    self.refused_ns.append(now_ns)
                continue
            if chunk.source == "policy" and chunk.observation_stamp_ns < self.ended_ns:
                continue
            if chunk.is_release:
                continue
            end_ns = chunk.observation_stamp_ns + (len(chunk.actions) + 1) * round(chunk.dt_s * 1e9)
            if chunk.source == "operator" and now_ns < end_ns - round(chunk.dt_s * 1e9):
                commands.append((chunk.seq, end_ns))
            self.valid_until[chunk.source] = max(end_ns, self.valid_until.get(chunk.source, end_ns))
        if refused and before not in STOPPED and mode in (ARMED, ACTIVE):
            problems.append("a refused chunk did not hold")
        if has_unknown_sender and before not in STOPPED and mode in (ARMED, ACTIVE):
            problems.append("a command of a topic with two publishers did not hold")
        is_fault = len(self.refused_ns) >= self.limits["refusals_to_fault"]
        if (
            refused
            and is_fault
            and before not in STOPPED
            and mode != FAULT
            and inputs.arm is not False
        ):
            problems.append("refusals did not latch")
        source = output.source
        if mode != ACTIVE:
            self.valid_until.clear()
            if source:
                problems.append("a commander is named while nobody commands")
        else:
            if not self.valid_until.get(source, -(1 << 63)) > now_ns:
                problems.append(f"active without a valid chunk of '{source}'")
            causes = self.hold_reasons(inputs)
            if causes:
                problems.append(f"active although in the way: {causes[0]}")
            if sample is None:
                problems.append("active although the arm is not seen")
            if source == "policy" and not self.enabled(inputs):
                problems.append("the policy moves without the enable")
            allowed = ("", *(POLICY_ONLY_BLOCKS if source == "operator" else ()))
            blocking = [
                arm.name
                for arm in inputs.others
                if arm.blocked not in allowed
                and (arm.blocked in ("disarmed", "fault") or not inputs.restart)
            ]
            if blocking:
                problems.append(f"active although the arm '{blocking[0]}' may not move")
            operator_plays = self.valid_until.get("operator", now_ns) > now_ns
            restarts = inputs.restart and sample is not None and not operator_plays
            if source == "policy" and (
                self.operator_moved or (self.source == "operator" and not restarts)
            ):
                problems.append("from the operator to the policy without a pause")
        if mode == ACTIVE and source == "operator":
            self.operator_moved = True
        ends_ns = self.valid_until.get("operator", 0)
        if problem := self.handovers.check(inputs, mode, source, ends_ns, commands, now_ns):
            problems.append(problem)
        for record in output.applied:
            key = record.source, record.session
            if record.observation_stamp_ns >= self.armed_ns:
                if record.seq < self.last_seq.get(key, record.seq):
                    problems.append("an older chunk was played after a newer one")
                self.last_seq[key] = record.seq
            if not all(map(math.isfinite, record.executed)):
                problems.append("an applied action that is not finite")

    def check_target(
        self, inputs: Any, output: Any, events: Sequence[Any], mode: int, sample: Any, place: Any
    ) -> None:
        """Check the commanded target (S8, S12, S21, S24)."""
        problems, limits = self.problems, self.limits
        target = self.target(output)
        gripper_was_lost = self.gripper_lost
        gripper_lost = (
            "gripper/state" in inputs.silent
            or inputs.robot_fault.startswith("gripper")
            or (self.gripper_lost and inputs.robot_fault == "recovering")
        )
        self.gripper_lost = gripper_lost or (
            self.gripper_lost and self.mode in STOPPED and place is None
        )
        self.track_arm(sample, inputs.restart)
        if target is None:
            if self.groups[0].position is not None:
                problems.append("a target is missing")
            return
        if not all(math.isfinite(value) for part in target for value in part):
            problems.append("a target that is not finite")
            return
        if self.groups[0].position is None:
            if sample is None:
                problems.append("a target before the arm was seen")
                return
            for group, part in zip(self.groups, sample, strict=True):
                group.reset_to(part)
            self.quaternion = tuple(output.target[3:]) if not self.joint else ()
        if inputs.late_s > limits["tick"]:
            for group in self.groups:
                group.restart_at_rest()
        is_published = not output.suppress_setpoint and not self.suppress_setpoint
        before = [group.position for group in self.groups]
        jumped = self.check_groups(inputs, events, target, mode, sample, place, gripper_was_lost)
        self.check_rest(output, mode, target, before, sample, jumped)
        if not self.joint:
            q = output.target[3:]
            if abs(math.hypot(*q) - 1.0) > 1e-9:
                problems.append("a target's quaternion is not of length 1")
            if is_published and not jumped and not math.isinf(limits["rotation_speed"]):
                dot = abs(sum(a * b for a, b in zip(q, self.quaternion, strict=True)))
                cross = math.sqrt(max(0.0, 1.0 - min(1.0, dot) ** 2))
                bounds = self.groups[1].speed_bounds
                fast = math.fsum(bounds) / len(bounds)
                if 2.0 * math.atan2(cross, dot) > fast * limits["tick"] + 1e-7:
                    problems.append("the tool turns faster than it may")
            self.quaternion = tuple(q)

    def check_groups(
        self,
        inputs: Any,
        events: Sequence[Any],
        target: Sequence[Vector],
        mode: int,
        sample: Any,
        place: Any,
        gripper_was_lost: bool,
    ) -> bool:
        """Check that each group moves within its limits, or restarts at the arm where it may."""
        causes = {event.cause for event in events if event.kind == "reseeded"}
        arm_restarts = bool(causes & {"restart", "recover", "robot", "adrift"})
        gripper_restarts = bool(causes & {"restart", "gripper"})
        if arm_restarts and (sample is None or not self.may_restart(inputs, mode)):
            self.problems.append(
                f"the set-point was put where the arm is ({', '.join(causes)}), which may follow it"
            )
        if "adrift" in causes and not self.has_rested():
            self.problems.append("armed from where the arm does not rest")
        if gripper_restarts and (
            place is None or not (inputs.restart or (gripper_was_lost and self.mode in STOPPED))
        ):
            self.problems.append("the gripper's set-point was put where it is, which may follow it")
        self.counts["anew"] += arm_restarts
        share = 1.0
        if inputs.distance is not None and inputs.distance[0] >= 0.0 and mode == ACTIVE:
            share = min(1.0, inputs.distance[0] / self.limits["slow_distance"])
        for index, (group, part) in enumerate(zip(self.groups, target, strict=True)):
            if place is not None and (
                arm_restarts if index < len(self.arm_groups) else gripper_restarts
            ):
                group.reset_to(place[index])
            near = (
                index < len(self.divergences)
                and self.last_errors[index] <= 0.99 * self.divergences[index]
            )
            speed_bound = group.next_speed_bound(share if near else 1.0)
            assert group.position is not None
            problem = group.problem(
                part,
                group.position,
                group.velocity,
                group.acceleration,
                group.last_excess,
                speed_bound,
            )
            if problem:
                self.problems.append(problem)
            group.accept(is_violation=bool(problem))
        return arm_restarts

    def may_restart(self, inputs: Any, mode: int) -> bool:
        """Return whether the set-point may restart at the arm, because no robot follows it."""
        if inputs.restart and self.mode != FAULT:
            return True
        if self.mode in STOPPED and self.suppress_setpoint:
            return True
        stopped = mode in STOPPED or self.mode in STOPPED
        word = inputs.robot_fault
        follows = word in UNCLEAR_FAULTS or word.startswith(FAULTS_WITHOUT_STOP)
        return stopped and (not follows or (inputs.recover and word != ""))

    def track_arm(self, sample: Any, restart: bool) -> None:
        """Update how long the arm has not been seen, and how long it has been at one place."""
        tick = self.limits["tick"]
        self.unseen_s = 0.0 if sample is not None else self.unseen_s + tick
        place = sample[: len(self.arm_groups)] if sample is not None else ()
        same = (
            bool(place)
            and len(place) == len(self.last_place)
            and all(
                max(map(abs, (x - y for x, y in zip(a, b, strict=True)))) < 1e-12
                for a, b in zip(place, self.last_place, strict=True)
            )
        )
        self.rest_ticks = self.rest_ticks + 1 if same else 0
        if not same:
            self.last_place = place
        self.recent_places.extend([place] * (self.settle_ticks if restart and place else 1))

    def has_rested(self) -> bool:
        """Return whether the arm has rested, apart from noise, for the required time."""
        recent = list(self.recent_places)[-self.settle_ticks :]
        noise = (0.02,) if self.joint else (0.004, 0.02)  # [m, rad]
        return (
            len(recent) == self.settle_ticks
            and all(recent)
            and all(
                group.size([x - y for x, y in zip(a, b, strict=True)]) <= max_error + 1e-9
                for at in recent
                for group, a, b, max_error in zip(
                    self.arm_groups, at, recent[-1], noise, strict=False
                )
            )
        )

    def check_rest(
        self,
        output: Any,
        mode: int,
        target: Sequence[Vector],
        before: Sequence[Any],
        sample: Any,
        jumped: bool,
    ) -> None:
        """Check that nothing moves without a command (S2, S12, S21).

        A set-point far from the arm must not be published.
        """
        moves = [
            max(map(abs, (x - y for x, y in zip(a, b, strict=True)))) > 1e-12
            for a, b in zip(target, before, strict=True)
        ]
        self.target_rest_ticks = (
            0 if any(moves[: len(self.arm_groups)]) or jumped else self.target_rest_ticks + 1
        )
        if mode != ACTIVE and self.target_rests():
            self.operator_moved = False
        may_move = mode in (ACTIVE, ARMED) or (mode == HOLD and output.cause == "realigning")
        self.ticks_since_motion = 0 if may_move or jumped else self.ticks_since_motion + 1
        if self.ticks_since_motion == 0:
            self.stop_ticks = [group.stop_ticks() for group in self.groups]
        for group, moving, stop_ticks in zip(self.groups, moves, self.stop_ticks, strict=True):
            if moving and self.ticks_since_motion > stop_ticks and not jumped:
                self.problems.append(
                    f"{group.name}: moves {self.ticks_since_motion} ticks after it was held"
                )
        settled = 3 * self.settle_ticks + 2
        errors = [
            group.size([t - s for t, s in zip(part, place, strict=True)])
            for group, part, place in zip(self.arm_groups, target, self.last_place, strict=False)
        ]
        if mode in STOPPED and not output.suppress_setpoint:
            far = [
                error > 1.5 * max_error + 1e-9
                for error, max_error in zip(errors, self.divergences, strict=False)
            ]
            if any(far) and min(self.rest_ticks, self.target_rest_ticks) > settled:
                self.problems.append("a set-point far from the arm is told while disarmed")
            lost = max(self.limits["lost_state"], 0.0) + 3 * self.limits["tick"]
            if self.unseen_s > lost and self.stopped_s > lost:
                self.problems.append("a target is told although the arm was lost")
        self.stopped_s = self.stopped_s + self.limits["tick"] if mode in STOPPED else 0.0
        self.check_divergence(mode, errors)

    def target_rests(self) -> bool:
        """Return whether the set-point rests, or has made its last step."""
        return all(
            group.size(group.velocity)
            <= group.max_acceleration * group.tick / len(group.speed_bounds) + 1e-12
            for group in self.groups
            if group.velocity
        )

    def check_divergence(self, mode: int, errors: Sequence[float]) -> None:
        """Check that the set-point brakes beyond ``divergence`` of a resting arm (S8)."""
        settled = self.rest_ticks > self.settle_ticks and bool(errors)
        for index, group in enumerate(self.arm_groups if settled else ()):
            max_error = self.divergences[index]
            out = group.excess(self.last_place[index]) > 1e-9
            if (
                mode == ACTIVE
                and out
                and errors[index] > max_error + group.max_speed * group.tick + 1e-9
            ):
                self.problems.append(
                    f"{group.name}: moves although the arm stands outside of its workspace"
                )
            # a tightened speed holds only once the set-point has braked
            speed = max(group.max_speed, *group.speed_bounds)
            if errors[index] > max_error:
                speed = max(speed, self.leaving_speeds[index])
            self.leaving_speeds[index] = speed
            if math.isinf(speed) or math.isinf(max_error):
                continue
            delay = speed * group.tick * (len(group.speed_bounds) + 2)
            # 0 without a limit of acceleration
            braking = speed**2 / (2.0 * group.max_acceleration)
            room = max(self.last_errors[index], max_error + braking + delay)
            if self.rest_ticks <= group.stop_ticks():
                # the arm came to rest far away: the set-point needs its braking distance
                room = max(room, self.errors_at_rest[index] + braking + delay)
            if mode == ACTIVE and self.mode == ACTIVE and errors[index] > room + 1e-9:
                self.problems.append(
                    f"{group.name}: {errors[index]:.3g} from an arm that does not move"
                )
        if self.rest_ticks == 0:
            self.errors_at_rest = list(errors) or [math.inf] * len(self.arm_groups)
        self.last_errors = list(errors) if errors else [math.inf] * len(self.arm_groups)

    def target(self, output: Any) -> tuple[Vector, ...] | None:
        """Return the commanded target in the coordinates of the groups."""
        if self.joint:
            if not output.joints:
                return None
            place: tuple[Vector, ...] = (tuple(output.joints),)
        elif output.target is None:
            return None
        else:
            turn = relative_turn(self.nominal, output.target[3:], self.groups[1].position)
            place = (tuple(output.target[:3]), turn)
        return (*place, (output.gripper,)) if self.limits["gripper_width"] else place
