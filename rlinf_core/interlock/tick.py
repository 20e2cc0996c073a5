"""The core's state from tick to tick, and the working copy of one tick.

The stages of a tick are in ``core``. ``adopt_limits`` carries the state over to changed limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlinf_core.interlock.coordinates import (
    Coordinates,
    Track,
    measured_coordinates,
    topic_in_wrong_units,
    track_at_rest,
    update_track,
)
from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.motion import Motion, resting
from rlinf_core.interlock.safety_checks import (
    ARM_PREFIX,
    RECOVERING,
    active_faults,
    blocking_arms,
    count_contacts,
    obstacles,
)
from rlinf_core.interlock.takeover import OperatorWatch
from rlinf_core.interlock.trajectory import Trajectory
from rlinf_core.interlock.types import NS, OPERATOR, Chunk, Events, Inputs, Mode, Window

NEVER_NS = -(1 << 63)
# After a tick that is later than this, the robot side has stood at the last target.
LATE_TICKS = 1.0
# A later tick is a hold, and commands from the gap are dropped.
STALLED_S = 0.1
GRIPPER = "gripper/state"  # an input that may be silent
GRIPPER_PREFIX = "gripper"  # prefix of a robot fault that concerns its gripper
STOPPED = (Mode.DISARMED, Mode.FAULT)
# causes of faults that persist as long as the arm's position is unknown
POSITION_UNKNOWN = ("stale_state", "state_frame", "state_units")


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the core carries from tick to tick."""

    mode: Mode = Mode.DISARMED
    cause: str = ""
    # one per group of the limits; empty before the arm was measured at rest
    motions: tuple[Motion, ...] = ()
    goal: Coordinates | None = None  # the set-point's own target or resting place, at the arm
    chunk: Chunk | None = None  # the chunk in command
    window: Window | None = None  # the window of its current action
    # (source, session, last seq), one per commander
    sessions: tuple[tuple[str, str, int], ...] = ()
    refusals_ns: tuple[int, ...] = ()  # times of recent refusals
    # consecutive samples beyond the holding and the latching wrench
    contacts: tuple[int, int] = (0, 0)
    commander: str = ""  # source of the last action played
    track: Track = field(default_factory=Track)
    lost_ticks: int = 0  # consecutive ticks without a valid state
    diverged_ticks: int = 0  # consecutive ticks in which the set-point rested far from the arm
    # True if the gripper's width was silent or the gripper in fault, until the set-point is at the
    # measured width
    gripper_silent: bool = False
    # True while the robot is recovering or was lost, until its arm is measured at rest
    recovering: bool = False
    ended_ns: int = NEVER_NS  # end of the last episode
    operator: OperatorWatch = field(default_factory=OperatorWatch)
    suppress_setpoint: bool = False  # True if this tick suppressed the set-point

    @property
    def still(self) -> bool:
        """Whether the set-point rests."""
        return resting(self.motions)


def after_unobserved_time(state: State) -> State:
    """Return the state after an unobserved time, disarmed.

    The arm may have been guided meanwhile, and a controller may follow the set-point again. The
    set-point stays unpublished until the arm is measured at rest; then the set-point moves there.
    """
    return replace(
        state, recovering=bool(state.motions), track=replace(state.track, rest=None, rested=0)
    )


def adopt_limits(limits: Limits, state: State, old: Limits) -> tuple[State, str]:
    """Carry the state over to changed limits (S19).

    Args:
        limits: the new limits.
        state: the state under the old limits.
        old: the limits in force until now.

    Returns:
        The state, and the reason why it cannot have the new limits yet; empty if it has them.
    """
    if len(limits.groups) != len(old.groups):
        return state, "gripper_width: a gripper cannot be added or removed while the interlock runs"
    if not state.motions:
        return state, ""
    motions = []
    for group, before, motion in zip(limits.groups, old.groups, state.motions, strict=True):
        reshaped = (group.acceleration, group.jerk) != (before.acceleration, before.jerk)
        if reshaped and not motion.settled:
            return state, "acceleration and jerk can only change while the set-point rests"
        outside = not all(map(group.inside, motion.trail)) or not group.can_stop(
            motion.position, motion.velocity
        )
        if outside and not (motion.still and not before.inside(motion.position)):
            return state, f"the set-point could not stop inside the new limits of its {group.name}"
        motions.append(Motion.at_rest(group, motion.position) if reshaped else motion)
    return replace(state, motions=tuple(motions), goal=None), ""


class Tick:
    """One working copy of the state, and the effect of each stage on it."""

    def __init__(self, limits: Limits, state: State, inputs: Inputs, now_ns: int) -> None:
        self.limits = limits
        self.inputs = inputs
        self.now = now_ns
        self.mode = state.mode
        self.cause = state.cause
        self.chunk = state.chunk
        self.commander = state.commander
        self.sessions = {source: (session, seq) for source, session, seq in state.sessions}
        self.refusals = tuple([t for t in state.refusals_ns if 0 <= now_ns - t < NS])
        self.event = Events(now_ns)
        self.held_now = ""
        self.refused_now = False
        self.pauses_now = False  # S16: pauses the policy for this tick
        self.was_suppressed = state.suppress_setpoint
        self.contacts = count_contacts(limits, state.contacts, inputs.wrench)
        self.diverged_ticks = state.diverged_ticks
        self.active_faults = active_faults(limits, inputs, self.contacts)
        stalled = ["stalled"] if inputs.late_s > STALLED_S else []
        self.obstacles = obstacles(limits, inputs, self.contacts) + stalled
        self.blocking_arms = blocking_arms(inputs)
        self.trajectory = Trajectory(limits, state.motions, state.window, state.goal, self.event)
        self.recovering, self.operator = state.recovering, state.operator
        # after a clock was set back
        self.ended_ns = state.ended_ns if state.ended_ns <= now_ns else NEVER_NS
        if inputs.late_s > LATE_TICKS * limits.tick:
            self.trajectory.rest()
        self._update_track(state)
        self._update_gripper(state)

    def _update_track(self, state: State) -> None:
        """Update the arm's known position, and begin there before the first motion."""
        limits, inputs, now_ns = self.limits, self.inputs, self.now
        self.sample = measured_coordinates(limits, inputs)
        fresh = inputs.pose_age_ns <= limits.stale_state * NS
        self.track = update_track(
            limits,
            state.track,
            self.sample if fresh else None,
            inputs.pose_age_ns,
            now_ns,
            may_relocate=self.mode in STOPPED,
        )
        # an old sample may show the previous place
        self.placed = self.sample if inputs.restart and fresh else None
        if self.placed is not None and self.mode is not Mode.FAULT:
            self.track = track_at_rest(limits, self.placed, now_ns)
        if self.track.valid and not self.trajectory.motions:
            self.trajectory.rest_at(self.track.at or ())
        self.lost_ticks = 0 if self.track.valid else state.lost_ticks + 1

    def _update_gripper(self, state: State) -> None:
        """Note a silent gripper, and move its set-point to its width once it reports again."""
        limits, inputs = self.limits, self.inputs
        has_gripper = limits.gripper_width > 0.0  # otherwise the last group is the arm's own
        lost = has_gripper and (
            GRIPPER in inputs.silent
            or inputs.robot_fault.startswith(GRIPPER_PREFIX)
            # a person may be at the fingers
            or (state.gripper_silent and inputs.robot_fault == RECOVERING)
        )
        is_stopped = self.mode in STOPPED
        back = has_gripper and is_stopped and state.gripper_silent and not lost
        self.gripper_silent = lost or (back and self.sample is None)  # until its place is known
        if back and self.sample is not None:
            # a controller that begins anew would go to the old set-point
            self.trajectory.leave_gripper_at(self.sample[-1])
            self.event("reseeded", "gripper")

    @property
    def arm(self) -> Coordinates | None:
        """The arm's coordinates, or None if they are unknown now."""
        return self.track.at if self.track.valid else None

    def unknown_reason(self) -> str:
        """Return the reason why the arm's place is unknown, or an empty string (S3, S5, S21)."""
        if self.track.valid:
            return ""
        if self.inputs.frame not in ("", self.limits.frame):
            return "state_frame"
        if topic_in_wrong_units(self.limits, self.inputs):
            return "state_units"
        return "state_jump" if self.track.jumped else "stale_state"

    @property
    def suppress_setpoint(self) -> bool:
        """Whether to suppress the set-point.

        The set-point is suppressed if nothing is armed, and the arm is elsewhere or its position
        unknown.
        """
        if self.mode not in STOPPED:
            return False
        arm, trajectory = self.arm, self.trajectory
        if arm is None:
            return self.recovering or self.track.jumped
        back = self.inputs.robot_fault == RECOVERING and trajectory.differs_from(arm)
        return self.recovering or back or trajectory.has_diverged(arm)

    @property
    def is_lost(self) -> bool:
        """Whether the arm's place has been unknown for too long to go on from the last one."""
        return (
            self.arm is None
            and self.lost_ticks * self.limits.tick > self.limits.lost_state
            and self.trajectory.motions != ()
        )

    def reseed(self, arm: Coordinates, reason: str) -> None:
        """Move the set-point to the arm at once, while nothing follows the set-point.

        A gripper goes on to hold its object.
        """
        self.trajectory.reset_to_arm(arm)
        self.event("reseeded", reason)

    # Changes of the mode
    def drop_chunk(self) -> None:
        """End the command of the present chunk, and report its current action."""
        self.trajectory.finish_window()
        self.chunk = self.trajectory.window = None

    def enter(self, mode: Mode, cause: str) -> None:
        """Change the mode, with an event."""
        # S16: the policy must pause after an operator whose motion still goes on
        if mode is Mode.ARMED and (self.trajectory.still or self.commander != OPERATOR):
            self.commander = ""
        if mode in STOPPED:  # only a person's arming leads out of these modes
            self.operator = OperatorWatch()
        if (mode, cause) != (self.mode, self.cause):
            self.mode, self.cause = mode, cause
            self.event("mode", f"{mode.name}:{cause}" if cause else mode.name)

    def hold(self, cause: str, only_active: bool = False) -> None:
        """Hold for a cause, in ACTIVE alone or in ARMED and HOLD, too."""
        if self.mode is Mode.ACTIVE or (self.mode in (Mode.ARMED, Mode.HOLD) and not only_active):
            self.drop_chunk()
            # a hold for a new session waits for a person, so it stays
            if self.mode is not Mode.HOLD or self.cause != "new_session":
                self.enter(Mode.HOLD, cause)
            if not cause.startswith(ARM_PREFIX):
                self.held_now = cause

    def fault(self, cause: str) -> None:
        """Latch a fault. The first cause stays, because a reset must name it."""
        self.drop_chunk()
        if self.mode is not Mode.FAULT:
            self.enter(Mode.FAULT, cause)

    def refuse(self, reason: str, chunk: Chunk) -> None:
        """Refuse a chunk and hold; several refusals within a second latch a fault."""
        self.refused_now = True
        self.refusals = (*self.refusals, self.now)
        self.event("refused", reason, chunk)
        self.hold("invalid_command")
        if len(self.refusals) >= self.limits.refusals_to_fault:
            self.fault("invalid_command")
