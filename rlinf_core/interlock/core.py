"""One tick: ``step(limits, state, inputs, now) -> (state, output, events)``. Pure; never raises on data."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

from rlinf_core.interlock.coordinates import Coordinates, invalid, measured, moved, pose_of, velocities
from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.motion import Motion, advance, resting
from rlinf_core.interlock.types import NS, Applied, Chunk, Event, Inputs, Mode, Output, State, Window

FRAME = "base_link"
REALIGN_M, REALIGN_RAD = 0.01, 0.05  # beyond this the set-point is re-seeded from the measured state before it moves again


def step(limits: Limits, state: State, inputs: Inputs, now_ns: int) -> tuple[State, Output, tuple[Event, ...]]:
    """Advance by one tick.

    Args:
        limits: in force since arming.
        state: what the last call returned; ``State()`` at first.
        inputs: everything that arrived since.
        now_ns: time of this tick, in the clock of the chunks' stamps [ns].

    Returns:
        The next state, what to publish now, and what was done about what came in.
    """
    tick = _Tick(limits, state, inputs, now_ns)
    tick.watch_outside()
    tick.requests()
    tick.watch_state()
    for chunk in inputs.chunks:
        tick.take(chunk)
    tick.move()
    return tick.result()


def adopt(limits: Limits, state: State) -> tuple[State, str]:
    """The state under tightened limits (S19), or why it cannot have them yet."""
    motions = []
    for group, motion in zip(limits.groups, state.motions, strict=True):
        if not all(map(group.inside, motion.trail)) or not group.can_stop(motion.position, motion.velocity):
            return state, f"the set-point could not stop inside the new limits of its {group.name}"
        if group.points != len(motion.trail):
            if not motion.still:
                return state, "acceleration and jerk can only change while the set-point rests"
            motion = Motion.at_rest(group, motion.position)
        motions.append(motion)
    return replace(state, motions=tuple(motions)), ""


class _Tick:
    """The stages of one tick over one working copy of the state."""

    def __init__(self, limits: Limits, state: State, inputs: Inputs, now_ns: int) -> None:
        self.limits, self.inputs, self.now = limits, inputs, now_ns
        self.mode, self.cause = state.mode, state.cause
        self.motions, self.chunk, self.window = state.motions, state.chunk, state.window
        self.commander, self.seen_ns = state.commander, state.seen_ns
        self.sessions = {source: (session, seq) for source, session, seq in state.sessions}
        self.refusals = tuple(t for t in state.refusals_ns if 0 <= now_ns - t < NS)
        self.applied: list[Applied] = []
        self.events: list[Event] = []
        self.refused_now = False
        self.contacts = _count_contacts(limits, state.contacts, inputs.wrench)
        self.standing = standing_faults(limits, inputs, self.contacts)
        self.measured = measured(limits, inputs)
        if self.measured is not None:
            self.seen_ns = now_ns
            if not self.motions:
                self.rest_at(self.measured)

    # S10, S11, S14, S15, S17: what the world and the people around the arm say
    def watch_outside(self) -> None:
        if self.standing and self.mode is not Mode.DISARMED:  # disarmed is stopped already, and cannot be armed now
            self.fault(self.standing[0])
        for cause in self.obstacles():
            self.hold(cause, only_active=True)
        if self.chunk is not None and self.needs_enable(self.chunk):
            self.hold("enable", only_active=True)

    def needs_enable(self, chunk: Chunk) -> bool:
        return chunk.source != "operator" and not enabled(self.limits, self.inputs)

    def obstacles(self) -> list[str]:
        """What keeps the arm from moving without being anybody's fault."""
        causes = ["contact"] if self.contacts[0] >= self.limits.contact_samples else []
        if self.inputs.distance is not None:
            distance, age_s = self.inputs.distance
            if not (math.isfinite(distance) and age_s <= self.limits.stale_distance):
                causes.append("distance_silent")
            elif distance <= 0.0:
                causes.append("obstacle")
        return causes + _outside_range(self.limits, self.inputs)

    # S13: requests
    def requests(self) -> None:
        inputs = self.inputs
        if inputs.end_episode:
            self.drop_chunk()
            if self.mode in (Mode.ACTIVE, Mode.HOLD):
                self.enter(Mode.ARMED, "")
        if inputs.restart and self.mode in (Mode.DISARMED, Mode.ARMED) and self.measured is not None:
            self.rest_at(self.measured)
            self.event("reseeded", "restart")
        if inputs.reset_fault is not None and self.mode is Mode.FAULT and inputs.reset_fault == self.cause \
                and not self.standing and enabled(self.limits, inputs):
            self.enter(Mode.DISARMED, "")
            self.refusals = ()
        if inputs.arm is False and self.mode is not Mode.FAULT:
            self.drop_chunk()
            self.enter(Mode.DISARMED, "")
        if inputs.arm is True and self.mode is not Mode.FAULT and self.measured is not None and not self.standing:
            self.sessions.clear()
            if self.mode is Mode.DISARMED or (self.mode is Mode.HOLD and self.cause == "new_session"):
                self.enter(Mode.ARMED, "")

    # S3: the measured state
    def watch_state(self) -> None:
        if self.mode in (Mode.DISARMED, Mode.FAULT):
            return
        known = self.measured is not None
        unseen_s = math.inf if self.seen_ns is None else (self.now - self.seen_ns) / NS
        age_s = self.inputs.pose_age_ns / NS if known else unseen_s
        if age_s > self.limits.lost_state:
            self.fault("stale_state")
        elif age_s > self.limits.stale_state or not known:  # a state that is no number is no state
            self.hold("stale_state", only_active=True)

    # S5, S6, S7: one chunk
    def take(self, chunk: Chunk) -> None:
        if self.mode in (Mode.DISARMED, Mode.FAULT):
            self.event("dropped", self.mode.name.lower(), chunk)
            return
        reason = invalid(self.limits, chunk, self.now, FRAME)
        if reason:
            self.refuse(reason, chunk)
            return
        session, seq = self.sessions.get(chunk.source, (chunk.session, -1))
        if session != chunk.session:
            if self.mode is Mode.ACTIVE and self.chunk is not None and self.chunk.source != chunk.source:
                self.event("dropped", f"{chunk.source}:new_session", chunk)
            else:
                self.event("dropped", "new_session", chunk)
                self.hold("new_session")
        elif chunk.seq <= seq:
            self.event("dropped", "out_of_order", chunk)
        elif self.now >= chunk.observation_stamp_ns + len(chunk.actions) * chunk.dt_ns:
            self.sessions[chunk.source] = (session, chunk.seq)
            self.event("dropped", "late", chunk)
        elif chunk.source != "operator" and self.commands("operator"):
            self.sessions[chunk.source] = (session, chunk.seq)
            self.event("dropped", f"{chunk.source}:operator_commands", chunk)
        else:
            self.sessions[chunk.source] = (session, chunk.seq)
            self.accept(chunk)

    def commands(self, source: str) -> bool:
        """Whether a chunk of ``source`` is still valid and in command."""
        chunk = self.chunk
        return chunk is not None and chunk.source == source and self.now < _valid_until(chunk)

    def accept(self, chunk: Chunk) -> None:
        stale = self.measured is None or self.inputs.pose_age_ns > self.limits.stale_state * NS
        reason = next(iter(self.obstacles()), "")
        if not reason and self.needs_enable(chunk):
            reason = "enable"
        stands = self.cause == "new_session" or (self.cause == "stale_state" and stale)
        if not reason and self.mode is Mode.HOLD and stands:
            reason = self.cause
        if not reason and self.commander == "operator" != chunk.source and not resting(self.motions):
            self.hold("handing_back", only_active=True)  # S16: a pause before the policy goes on
            reason = "handing_back"
        if reason:
            self.event("dropped", reason, chunk)
            return
        self.chunk = chunk
        if self.mode is not Mode.ACTIVE and not self.refused_now:
            if not self.align():
                self.chunk = None
                return
            self.enter(Mode.ACTIVE, "")
        self.commander = chunk.source

    def align(self) -> bool:
        """Start from where the arm is, never from an old target (traps 3 and 4)."""
        if self.measured is None or not self.motions:
            return False
        apart = self.apart()
        if not resting(self.motions):
            if any(far > most for far, most in zip(apart, self.divergences(), strict=False)):
                self.hold("realigning")
                return False
            return True  # it brakes beside the arm and may as well go on
        realign = (REALIGN_RAD,) if self.limits.control_mode == "joint_delta" else (REALIGN_M, REALIGN_RAD)
        if self.mode is Mode.ARMED or any(far > most for far, most in zip(apart, realign, strict=False)):
            for group, position in zip(self.limits.groups, self.measured, strict=True):
                if not group.inside(position):
                    self.hold(f"outside_{'box' if group.name == 'position' else group.name}")
                    return False
            self.rest_at(self.measured)
            self.event("reseeded", self.mode.name.lower())
        return True

    def apart(self) -> list[float]:
        """How far each group's set-point is from where the arm was measured."""
        if self.measured is None:
            return [0.0] * len(self.motions)
        return [group.distance(motion.set_point, at)
                for group, motion, at in zip(self.limits.groups, self.motions, self.measured, strict=True)]

    def divergences(self) -> tuple[float, ...]:
        """The largest ``apart`` in which a set-point may still go further; the gripper's may always (it grasps)."""
        limits = self.limits
        return (limits.joint_divergence,) if limits.control_mode == "joint_delta" \
            else (limits.divergence, limits.rotation_divergence)

    def rest_at(self, coordinates: Coordinates) -> None:
        self.motions = tuple(Motion.at_rest(group, at) for group, at in zip(self.limits.groups, coordinates, strict=True))

    # S2, S7, S8, S11, S12: motion
    def move(self) -> None:
        wanted, window_end = self.wanted()
        if not self.motions:
            return
        results = [advance(group, motion, velocity)
                   for group, motion, velocity in zip(self.limits.groups, self.motions, wanted, strict=True)]
        self.motions = tuple(motion for motion, _ in results)
        if self.window is not None and not self.window.done:
            for _, bit in results:
                self.bite(bit)
            if self.now + round(self.limits.tick * NS) >= window_end:
                self.finish_window()

    def wanted(self) -> tuple[Coordinates, int]:
        """The velocities that the action in play asks for, and when its window ends."""
        chunk, rest = self.chunk, tuple((0.0,) * len(motion.position) for motion in self.motions)
        if self.mode is not Mode.ACTIVE or chunk is None:
            return rest, 0
        index = (self.now - chunk.observation_stamp_ns) // chunk.dt_ns
        if self.now >= _valid_until(chunk):
            self.drop_chunk()
            self.hold("stale_command")
            return rest, 0
        if index < 0 or index >= len(chunk.actions):
            return rest, 0
        window = self.window
        if window is None or window.index != index or window.chunk is not chunk:
            self.finish_window()
            self.window = Window(chunk, index, self.set_points())
        plan = tuple(motion.position for motion in self.motions)
        wanted = self.near(self.slowly(velocities(self.limits, chunk, chunk.actions[index], plan)))
        return wanted, chunk.observation_stamp_ns + (index + 1) * chunk.dt_ns

    def slowly(self, wanted: Coordinates) -> Coordinates:
        """S11: slower in proportion, the nearer an obstacle is."""
        if self.inputs.distance is None:
            return wanted
        share = self.inputs.distance[0] / self.limits.slow_distance
        if share >= 1.0:
            return wanted
        self.bite({"distance"})
        return tuple(tuple(value * share for value in velocity) for velocity in wanted)

    def near(self, wanted: Coordinates) -> Coordinates:
        """Stop a group whose set-point is too far from the arm and would go further."""
        if self.measured is None:
            return wanted
        result = list(wanted)
        for index, (far, most) in enumerate(zip(self.apart(), self.divergences(), strict=False)):
            away = zip(self.motions[index].set_point, self.measured[index], wanted[index], strict=True)
            if far > most and sum((a - b) * v for a, b, v in away) > 0.0:
                self.bite({"divergence"})
                result[index] = (0.0,) * len(wanted[index])
        return tuple(result)

    def bite(self, limits: Set[str]) -> None:
        if self.window is not None and not limits <= self.window.limits:
            self.window = replace(self.window, limits=self.window.limits | limits)

    def set_points(self) -> Coordinates:
        return tuple(motion.set_point for motion in self.motions)

    def finish_window(self) -> None:
        """Report what became of the action in play (``Applied``), once."""
        window = self.window
        if window is None or window.done or not self.motions:
            return
        chunk = window.chunk
        requested = tuple(chunk.actions[window.index])
        executed = moved(self.limits, window.start, self.set_points(), len(requested))
        self.applied.append(Applied(
            chunk.source, chunk.session, chunk.seq, window.index, chunk.policy_version,
            chunk.observation_stamp_ns + window.index * chunk.dt_ns, chunk.observation_stamp_ns,
            requested, executed, tuple(sorted(window.limits))))
        if window.limits:
            self.event("limited", ",".join(sorted(window.limits)), chunk, window.index)
        self.window = replace(window, done=True)

    # Helpers
    def drop_chunk(self) -> None:
        self.finish_window()
        self.chunk = self.window = None

    def enter(self, mode: Mode, cause: str) -> None:
        if mode is Mode.ARMED:
            self.commander = ""
        if (mode, cause) != (self.mode, self.cause):
            self.mode, self.cause = mode, cause
            self.event("mode", f"{mode.name}:{cause}" if cause else mode.name)

    def hold(self, cause: str, only_active: bool = False) -> None:
        if self.mode is Mode.ACTIVE or (self.mode in (Mode.ARMED, Mode.HOLD) and not only_active):
            self.drop_chunk()
            self.enter(Mode.HOLD, cause)

    def fault(self, cause: str) -> None:
        """Latch; the first cause stays, as it is what a reset must name."""
        self.drop_chunk()
        if self.mode is not Mode.FAULT:
            self.enter(Mode.FAULT, cause)

    def refuse(self, reason: str, chunk: Chunk) -> None:
        self.refused_now = True
        self.refusals = (*self.refusals, self.now)
        self.event("refused", reason, chunk)
        self.hold("invalid_command")
        if len(self.refusals) >= self.limits.refusals_to_fault:
            self.fault("invalid_command")

    def event(self, kind: str, cause: str, chunk: Chunk | None = None, index: int = 0) -> None:
        if chunk is None:
            self.events.append(Event(kind, cause, self.now))
        else:
            requested = tuple(chunk.actions[index]) if index < len(chunk.actions) else ()
            self.events.append(Event(kind, cause, self.now, chunk.source, chunk.session, chunk.seq, requested))

    def result(self) -> tuple[State, Output, tuple[Event, ...]]:
        limits = self.limits
        sessions = tuple((source, session, seq) for source, (session, seq) in self.sessions.items())
        state = State(self.mode, self.cause, self.motions, self.chunk, self.window, sessions, self.refusals, self.contacts,
                      self.commander, self.seen_ns)
        source = self.chunk.source if self.mode is Mode.ACTIVE and self.chunk is not None else ""
        at = self.set_points()
        target = pose_of(limits, at) if at and limits.control_mode == "tcp_delta" else None
        joints = at[0] if at and limits.control_mode == "joint_delta" else ()
        gripper = at[-1][0] if at and limits.gripper_width else None
        output = Output(target, joints, gripper, self.mode, source, self.cause, tuple(self.applied))
        return state, output, tuple(self.events)


def standing_faults(limits: Limits, inputs: Inputs, contacts: tuple[int, int]) -> list[str]:
    """Causes outside the interlock that latch a fault now; while one stands, no fault can be cleared."""
    causes = [f"estop:{e.name}" for e in inputs.estops if e.pressed]
    causes += [f"estop_silent:{e.name}" for e in inputs.estops if not e.pressed and not e.age_s <= limits.estop_silence]
    if inputs.robot_fault:
        causes.append(f"robot:{inputs.robot_fault}")
    if contacts[1] >= limits.contact_samples:
        causes.append("contact")
    return causes


def enabled(limits: Limits, inputs: Inputs) -> bool:
    """Whether the operator lets the policy move (S15), which a reset needs too (S13)."""
    return math.isinf(limits.enable_lease) or (inputs.enable and inputs.enable_age_s <= limits.enable_lease)


def _valid_until(chunk: Chunk) -> int:
    """Each action is valid for two of its periods; the last one's end is the chunk's (S2)."""
    return chunk.observation_stamp_ns + (len(chunk.actions) + 1) * chunk.dt_ns


def _count_contacts(limits: Limits, before: tuple[int, int], wrench: tuple[float, float] | None) -> tuple[int, int]:
    """Consecutive samples beyond the holding and beyond the latching wrench; a NaN counts as beyond (trap 2)."""
    if wrench is None:
        return before
    force, torque = wrench
    holding = not (force <= limits.contact_force and torque <= limits.contact_torque)
    latching = not force <= limits.contact_fault
    return (before[0] + 1 if holding else 0, before[1] + 1 if latching else 0)


def _outside_range(limits: Limits, inputs: Inputs) -> list[str]:
    """The side of the arm that its set-point does not speak of: its joints while the tool is commanded, and the reverse."""
    if limits.control_mode == "joint_delta":
        position = (inputs.pose or ())[:3]
        out = not all(lo <= p <= hi for lo, p, hi in zip(limits.box_low, position, limits.box_high, strict=False))
        return ["outside_box"] if out else []
    joints, margin = inputs.joints or (), limits.joint_margin
    out = not all(lo + margin <= q <= hi - margin
                  for lo, q, hi in zip(limits.joint_low, joints, limits.joint_high, strict=False))
    return ["outside_joints"] if out else []
