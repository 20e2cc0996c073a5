"""One tick: ``step(limits, state, inputs, now) -> (state, output, events)``. Pure; never raises on data."""

from __future__ import annotations

import math
from dataclasses import replace

from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.motion import advance
from rlinf_core.interlock.types import NS, Applied, Chunk, Event, Inputs, Mode, Output, State, Window

CONTROL_MODE = "tcp_delta"
REALIGN_M = 0.01  # beyond this the set-point is re-seeded from the measured pose before it moves again
_STILL = (0.0, 0.0, 0.0)


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
    if not _finite_pose(inputs.pose):
        inputs = replace(inputs, pose=None, pose_age_ns=0)
    tick = _Tick(limits, state, inputs, now_ns)
    tick.watch_outside()
    tick.requests()
    tick.watch_state()
    for chunk in inputs.chunks:
        tick.take(chunk)
    tick.move()
    return tick.result()


class _Tick:
    """The stages of one tick over one working copy of the state."""

    def __init__(self, limits: Limits, state: State, inputs: Inputs, now_ns: int) -> None:
        self.limits, self.inputs, self.now = limits, inputs, now_ns
        self.mode, self.cause = state.mode, state.cause
        self.command, self.velocity = state.command, state.velocity
        self.chunk, self.window = state.chunk, state.window
        self.sessions = {source: (session, seq) for source, session, seq in state.sessions}
        self.refusals = tuple(t for t in state.refusals_ns if 0 <= now_ns - t < NS)
        self.applied: list[Applied] = []
        self.events: list[Event] = []
        self.refused_now = False
        self.contacts = _count_contacts(limits, state.contacts, inputs.wrench)
        self.standing = standing_faults(limits, inputs, self.contacts)
        if self.command is None and inputs.pose is not None:
            self.command = inputs.pose

    # S10, S14, S15, S17: what the world and the people around the arm say
    def watch_outside(self) -> None:
        if self.standing and self.mode is not Mode.DISARMED:  # disarmed is stopped already, and cannot be armed now
            self.fault(self.standing[0])
        if self.contacts[0] >= self.limits.contact_samples:
            self.hold("contact", only_active=True)
        chunk = self.chunk
        if chunk is not None and chunk.source != "operator" and not self.enabled():
            self.hold("enable", only_active=True)

    def enabled(self) -> bool:
        lease = self.limits.enable_lease
        return math.isinf(lease) or (self.inputs.enable and self.inputs.enable_age_s <= lease)

    # S13: requests
    def requests(self) -> None:
        inputs = self.inputs
        if inputs.end_episode:
            self.drop_chunk()
            if self.mode in (Mode.ACTIVE, Mode.HOLD):
                self.enter(Mode.ARMED, "")
        if inputs.reset_fault is not None and self.mode is Mode.FAULT and inputs.reset_fault == self.cause \
                and not self.standing:
            self.enter(Mode.DISARMED, "")
            self.refusals = ()
        if inputs.arm is False and self.mode is not Mode.FAULT:
            self.drop_chunk()
            self.enter(Mode.DISARMED, "")
        if inputs.arm is True and self.mode is not Mode.FAULT and inputs.pose is not None and not self.standing:
            self.sessions.clear()
            if self.mode is Mode.DISARMED or (self.mode is Mode.HOLD and self.cause == "new_session"):
                self.enter(Mode.ARMED, "")

    # S3: the measured state
    def watch_state(self) -> None:
        if self.mode in (Mode.DISARMED, Mode.FAULT):
            return
        age_s = math.inf if self.inputs.pose is None else self.inputs.pose_age_ns / NS
        if age_s > self.limits.lost_state:
            self.fault("stale_state")
        elif age_s > self.limits.stale_state and self.mode is Mode.ACTIVE:
            self.hold("stale_state")

    # S5, S6, S7: one chunk
    def take(self, chunk: Chunk) -> None:
        if self.mode in (Mode.DISARMED, Mode.FAULT):
            self.event("dropped", self.mode.name.lower())
            return
        reason = _invalid(chunk, self.limits, self.now)
        if reason:
            self.refuse(reason)
            return
        session, seq = self.sessions.get(chunk.source, (chunk.session, -1))
        if session != chunk.session:
            if self.mode is Mode.ACTIVE and self.chunk is not None and self.chunk.source != chunk.source:
                self.event("dropped", f"{chunk.source}:new_session")
            else:
                self.event("dropped", "new_session")
                self.hold("new_session")
        elif chunk.seq <= seq:
            self.event("dropped", "out_of_order")
        elif self.now >= chunk.observation_stamp_ns + len(chunk.actions) * chunk.dt_ns:
            self.sessions[chunk.source] = (session, chunk.seq)
            self.event("dropped", "late")
        elif chunk.source != "operator" and self.commands("operator"):
            self.sessions[chunk.source] = (session, chunk.seq)
            self.event("dropped", f"{chunk.source}:operator_commands")
        else:
            self.sessions[chunk.source] = (session, chunk.seq)
            self.accept(chunk)

    def commands(self, source: str) -> bool:
        """Whether a chunk of ``source`` is still valid and in command."""
        chunk = self.chunk
        return chunk is not None and chunk.source == source and self.now < _valid_until(chunk)

    def accept(self, chunk: Chunk) -> None:
        if self.contacts[0] >= self.limits.contact_samples:
            self.event("dropped", "contact")
            return
        if chunk.source != "operator" and not self.enabled():
            self.event("dropped", "enable")
            return
        stale = self.inputs.pose is None or self.inputs.pose_age_ns > self.limits.stale_state * NS
        if self.mode is Mode.HOLD and (self.cause == "new_session" or (self.cause == "stale_state" and stale)):
            self.event("dropped", self.cause)
            return
        self.chunk = chunk
        if self.mode is not Mode.ACTIVE and not self.refused_now and self.seed():
            self.enter(Mode.ACTIVE, "")

    def seed(self) -> bool:
        """Start from where the arm is, never from an old target (traps 3 and 4)."""
        pose = self.inputs.pose
        if pose is None or self.command is None:
            return False
        if self.mode is Mode.ARMED or math.dist(self.command[:3], pose[:3]) > REALIGN_M:
            if not all(lo <= p <= hi for lo, p, hi in
                       zip(self.limits.box_low, pose[:3], self.limits.box_high, strict=True)):
                self.hold("outside_box")
                return False
            self.command, self.velocity = pose, _STILL
            self.event("reseeded", self.mode.name.lower())
        return True

    # S2, S7, S8, S12: motion
    def move(self) -> None:
        wanted, window_end = self.wanted()
        if self.command is None:
            return
        measured = self.inputs.pose or self.command  # without a pose there is only braking left to do
        if wanted == _STILL and self.velocity == _STILL:
            bit: frozenset[str] = frozenset()
        else:
            position, self.velocity, bit = advance(
                self.limits, self.command[:3], self.velocity, wanted, measured[:3])
            self.command = position + self.command[3:]
        if self.window is not None and not self.window.done:
            self.window = replace(self.window, limits=self.window.limits | bit)
            if self.now + round(self.limits.tick * NS) >= window_end:
                self.finish_window()

    def wanted(self) -> tuple[tuple[float, float, float], int]:
        """The velocity that the action in play asks for, and when its window ends."""
        chunk = self.chunk
        if self.mode is not Mode.ACTIVE or chunk is None:
            return _STILL, 0
        index = (self.now - chunk.observation_stamp_ns) // chunk.dt_ns
        if self.now >= _valid_until(chunk):
            self.drop_chunk()
            self.hold("stale_command")
            return _STILL, 0
        if index < 0 or index >= len(chunk.actions):
            return _STILL, 0
        window = self.window
        if window is None or window.index != index or window.chunk is not chunk:
            self.finish_window()
            self.window = Window(chunk, index, self.command[:3])  # type: ignore[index]
        action = chunk.actions[index]
        wanted = (action[0] / chunk.dt_s, action[1] / chunk.dt_s, action[2] / chunk.dt_s)
        return wanted, chunk.observation_stamp_ns + (index + 1) * chunk.dt_ns

    def finish_window(self) -> None:
        """Report what became of the action in play (``Applied``), once."""
        window = self.window
        if window is None or window.done or self.command is None:
            return
        chunk = window.chunk
        executed = tuple(c - s for c, s in zip(self.command[:3], window.start, strict=True))
        self.applied.append(Applied(
            chunk.source, chunk.session, chunk.seq, window.index, chunk.policy_version,
            chunk.observation_stamp_ns + window.index * chunk.dt_ns, chunk.observation_stamp_ns,
            tuple(chunk.actions[window.index]), executed, tuple(sorted(window.limits))))
        if window.limits:
            self.event("limited", ",".join(sorted(window.limits)))
        self.window = replace(window, done=True)

    # Helpers
    def drop_chunk(self) -> None:
        self.finish_window()
        self.chunk = self.window = None

    def enter(self, mode: Mode, cause: str) -> None:
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

    def refuse(self, reason: str) -> None:
        self.refused_now = True
        self.refusals = (*self.refusals, self.now)
        self.event("refused", reason)
        self.hold("invalid_command")
        if len(self.refusals) >= self.limits.refusals_to_fault:
            self.fault("invalid_command")

    def event(self, kind: str, cause: str) -> None:
        self.events.append(Event(kind, cause, self.now))

    def result(self) -> tuple[State, Output, tuple[Event, ...]]:
        sessions = tuple((source, session, seq) for source, (session, seq) in self.sessions.items())
        state = State(self.mode, self.cause, self.command, self.velocity, self.chunk, self.window, sessions,
                      self.refusals, self.contacts)
        source = self.chunk.source if self.mode is Mode.ACTIVE and self.chunk is not None else ""
        output = Output(self.command, self.mode, source, self.cause, tuple(self.applied))
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


def _finite_pose(pose: tuple[float, ...] | None) -> bool:
    return pose is not None and len(pose) == 7 and all(map(math.isfinite, pose))


def _invalid(chunk: Chunk, limits: Limits, now_ns: int) -> str:
    """Why a chunk must be refused; empty if it may be considered."""
    if chunk.control_mode != CONTROL_MODE:
        return "control_mode"
    if not (math.isfinite(chunk.dt_s) and 0.001 <= chunk.dt_s <= 10.0):
        return "dt"
    if not chunk.actions or any(len(action) != 3 for action in chunk.actions):
        return "size"
    if not all(math.isfinite(value) for action in chunk.actions for value in action):
        return "not_finite"
    if chunk.observation_stamp_ns - now_ns > limits.future_stamp * NS:
        return "future_stamp"
    if any(math.hypot(*action) > limits.jump_factor * limits.speed * chunk.dt_s for action in chunk.actions):
        return "jump"
    return ""
