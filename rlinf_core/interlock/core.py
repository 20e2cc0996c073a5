"""One tick: ``step(limits, state, inputs, now) -> (state, output, events)``.

Pure; never raises on data.
"""

from __future__ import annotations

from rlinf_core.interlock.coordinates import (
    Coordinates,
    measured_at_rest,
    recheck_due,
    refusal_reason,
    tool_pose,
)
from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.safety_checks import (
    HANDING_BACK,
    POLICY_CAUSES,
    UNTIL_A_PERSON,
    blocking_arms,
    enabled,
    missing_inputs,
    robot_ignores_targets,
)
from rlinf_core.interlock.takeover import OPERATOR_SILENT
from rlinf_core.interlock.tick import POSITION_UNKNOWN, STOPPED, State, Tick
from rlinf_core.interlock.types import (
    COMMAND_TOPICS,
    MAX_SEQ_GAP,
    NS,
    OPERATOR,
    Chunk,
    Event,
    Inputs,
    Mode,
    Output,
)


def step(
    limits: Limits, state: State, inputs: Inputs, now_ns: int
) -> tuple[State, Output, tuple[Event, ...]]:
    """Advance by one tick.

    Args:
        limits: the limits in force since arming.
        state: the state that the last call returned; ``State()`` at first.
        inputs: everything that arrived since the last tick.
        now_ns: time of this tick, in the clock of the chunks' stamps [ns].

    Returns:
        The next state, the messages to publish now, and the events of this tick.
    """
    tick = _Stages(limits, state, inputs, now_ns)
    tick.check_surroundings()
    tick.handle_requests()
    tick.check_operator()
    tick.check_measured_state()
    for chunk in inputs.chunks:
        tick.take_chunk(chunk)
    tick.move()
    return tick.result()


class _Stages(Tick):
    """The stages of one tick, over one working copy of the state."""

    # S10, S11, S14, S15, S17, S22, S23, S24, S27
    def check_surroundings(self) -> None:
        """Latch or hold for the surroundings of the arm, and for the people around it."""
        # a disarmed arm has stopped already and cannot be armed now
        if self.active_faults and self.mode is not Mode.DISARMED:
            self.fault(self.active_faults[0])
        if self.obstacles or self.blocking_arms:
            # this hold ends with the next command and must not hide an obstacle
            silence = "stale_command"
            ignored = (silence,) if self.cause == silence else ()
            by_policy = self.chunk is not None and self.chunk.source != OPERATOR
            lasting = blocking_arms(self.inputs, *ignored, *(() if by_policy else POLICY_CAUSES))
            for cause in [*self.obstacles, *lasting]:
                self.hold(cause, only_active=self.cause != silence)
        if self.chunk is not None and self.not_enabled(self.chunk):
            self.hold("enable")

    def not_enabled(self, chunk: Chunk) -> str:
        """Return the hold's cause if a chunk lacks its enable, or ""; an operator needs none."""
        if chunk.source == OPERATOR or self.is_enabled():
            return ""
        return OPERATOR_SILENT if self.operator.dropped else "enable"

    def is_enabled(self) -> bool:
        return not self.operator.dropped and enabled(self.limits, self.inputs)

    # S16: an operator who falls silent in a takeover
    def check_operator(self) -> None:
        """Hold the policy after a takeover without a release, whoever holds the enable."""
        self.operator = self.operator.on_tick(self.inputs, self.now)
        if self.inputs.restart and self.chunk is not None and self.commands(OPERATOR):
            # the chunk plays on in the new scene, so the operator has the arm
            self.operator = self.operator.on_command(self.chunk)
        awaits_enable = self.operator.dropped and not self.operator.has_takeover
        # any other cause needs a person first
        if awaits_enable and self.cause in ("", "stale_command", "enable", HANDING_BACK):
            self.hold(OPERATOR_SILENT)
        if self.cause == OPERATOR_SILENT and not self.operator.dropped:  # a person has enabled anew
            self.enter(Mode.ARMED, "")

    # S13
    def handle_requests(self) -> None:
        """Handle the end of an episode, a restart, a reset of a fault, disarming and arming."""
        inputs = self.inputs
        if inputs.end_episode:
            self.end_episode()
        if self.placed is not None and self.mode in (Mode.DISARMED, Mode.ARMED, Mode.HOLD):
            self.trajectory.rest_at(self.placed)
            self.event("reseeded", "restart")
        self.reseed_at_stopped_robot()
        resets_fault = self.mode is Mode.FAULT and self.may_reset_fault()
        if resets_fault:
            self.enter(Mode.DISARMED, "")
            self.refusals = ()
        if inputs.arm is False and self.mode is not Mode.FAULT:
            self.drop_chunk()
            self.enter(Mode.DISARMED, "")
        # after a reset in the same tick, the order of the two requests is unknown
        if inputs.arm is True and self.mode is not Mode.FAULT and not resets_fault:
            self.arm_if_ready()

    def end_episode(self) -> None:
        """Drop the chunk, and end a hold that needs no person."""
        self.ended_ns = self.now
        self.drop_chunk()
        if self.mode in (Mode.ACTIVE, Mode.HOLD) and self.cause not in UNTIL_A_PERSON:
            self.enter(Mode.ARMED, "")

    def may_reset_fault(self) -> bool:
        """Return True if a request names the fault, and its cause is gone."""
        return (
            self.inputs.reset_fault is not None
            and self.inputs.reset_fault == self.cause
            and not self.active_faults
            and enabled(self.limits, self.inputs)
            and not (self.cause in POSITION_UNKNOWN and self.unknown_reason() == self.cause)
        )

    def arm_if_ready(self) -> None:
        """Arm, unless a fault or a missing input forbids that, or the set-point cannot begin."""
        if not self.track.valid or self.active_faults or missing_inputs(self.inputs):
            return
        arm = self.arm or ()
        suppressed = self.suppress_setpoint
        if suppressed and (
            self.recovering
            or self.trajectory.exceeded_workspace(arm)
            or not self.was_suppressed
            or not measured_at_rest(self.limits, self.track)
        ):
            # The set-point cannot begin here, the arm does not rest yet, or a controller may still
            # follow the set-point.
            return
        self.sessions.clear()
        if suppressed:  # the set-point was not published until now
            self.reseed(arm, "adrift")
        self.operator = self.operator.on_arming()
        if self.mode is Mode.DISARMED or (self.mode is Mode.HOLD and self.cause == "new_session"):
            self.enter(Mode.ARMED, "")

    # S13, S17: a robot that has stopped by itself does not move when it follows again
    def reseed_at_stopped_robot(self) -> None:
        """Move the set-point to a stopped robot's arm, as soon as the arm rests.

        A controller that comes back would go to the set-point.
        """
        robot_fault, arm = self.inputs.robot_fault, self.arm
        if self.mode not in STOPPED:
            self.recovering = False
            return
        self.recovering = (
            self.recovering or (self.inputs.recover and robot_fault != "") or self.is_lost
        )
        if (
            arm is None
            or not self.trajectory.still
            or not measured_at_rest(self.limits, self.track)
        ):
            return
        # so that noise moves the set-point ten times a second at most
        rechecks = self.recovering or recheck_due(self.limits, self.track)
        differs = self.trajectory.differs_from(arm) or (
            rechecks and self.trajectory.differs_slightly_from(arm)
        )
        if differs and (self.recovering or robot_ignores_targets(robot_fault)):
            self.reseed(arm, "recover" if self.recovering else "robot")
        self.recovering = False

    # S3, S21
    def check_measured_state(self) -> None:
        """Hold, and later latch, if the arm's place is unknown, outside or far from its target."""
        if self.mode in (Mode.DISARMED, Mode.FAULT):
            self.diverged_ticks = 0
            return
        unknown = self.unknown_reason()
        if unknown:
            self.hold(unknown, only_active=True)
            lost_s = max(self.lost_ticks * self.limits.tick, self.inputs.pose_age_ns / NS)
            if lost_s > self.limits.lost_state:
                self.fault(unknown)
        elif outside := self.trajectory.left_workspace(self.arm or ()):
            self.hold(f"outside_{outside}", only_active=True)
        self.diverged_ticks = (
            self.diverged_ticks + 1 if self.trajectory.has_diverged(self.arm) else 0
        )
        if self.diverged_ticks * self.limits.tick > self.limits.lost_state:
            self.fault("divergence")

    # S5, S6, S7
    def take_chunk(self, chunk: Chunk) -> None:
        """Refuse, drop or accept one chunk."""
        if self.mode in (Mode.DISARMED, Mode.FAULT):
            self.event("dropped", self.mode.name.lower(), chunk)
            return
        if COMMAND_TOPICS.get(chunk.source) in self.inputs.doubled:
            self.drop_of_two_publishers(chunk)
            return
        reason = refusal_reason(self.limits, chunk, self.now)
        if reason:
            self.refuse(reason, chunk)
            if chunk.source == OPERATOR:
                self.operator = self.operator.on_refusal(self.now)
            return
        session, seq = self.sessions.get(chunk.source, (chunk.session, -1))
        if session != chunk.session:
            if chunk.is_release:
                # another process sent the release, and it has taken nothing over
                self.event("dropped", "new_session", chunk)
            elif (
                self.mode is Mode.ACTIVE
                and self.chunk is not None
                and self.chunk.source != chunk.source
            ):
                self.event("dropped", f"{chunk.source}:new_session", chunk)
            else:
                self.event("dropped", "new_session", chunk)
                self.hold("new_session")
        elif chunk.seq <= seq:
            self.event("dropped", "out_of_order", chunk)
        # a number this large, once stored, would put all later ones out of order
        elif seq >= 0 and chunk.seq - seq > MAX_SEQ_GAP:
            self.refuse("seq", chunk)
        else:
            self.sessions[chunk.source] = (session, chunk.seq)
            if chunk.is_release:
                self.release()
                return
            reason = self.rejection_reason(chunk)
            if chunk.source == OPERATOR and reason != "late":
                self.operator = self.operator.on_command(chunk)
            if reason:
                self.event("dropped", reason, chunk)
            else:
                self.accept(chunk)

    # S23: a command that either of two publishers may have sent
    def drop_of_two_publishers(self, chunk: Chunk) -> None:
        """Drop a command of a topic with two publishers, whatever it holds.

        Its sender is unknown. Therefore it counts neither as a refusal, which would latch, nor as
        the newest number of its session, which would put the commander's own chunks out of order.
        """
        cause = f"two_publishers:{COMMAND_TOPICS[chunk.source]}"
        self.event("dropped", cause, chunk)
        if self.mode is Mode.ARMED:
            self.hold(cause)

    def release(self) -> None:
        """End the operator's takeover: the arm brakes, and the policy may go on after a pause."""
        self.pauses_now = self.pauses_now or self.operator.has_takeover
        self.operator = self.operator.on_release()
        if self.chunk is not None and self.chunk.source == OPERATOR:
            self.pauses_now = True
            self.hold(OPERATOR_SILENT if self.operator.dropped else "stale_command")

    def rejection_reason(self, chunk: Chunk) -> str:
        """Return the reason to drop a chunk that came in order, or "" if it may command now."""
        if self.now >= chunk.observation_stamp_ns + len(chunk.actions) * chunk.dt_ns:
            return "late"
        if chunk.source != OPERATOR and chunk.observation_stamp_ns < self.ended_ns:
            return "episode_ended"  # the chunk answers an observation of the last episode (trap 9)
        if chunk.source != OPERATOR and self.commands(OPERATOR):
            return f"{chunk.source}:operator_commands"
        reason = self.first_obstacle() or self.not_enabled(chunk) or self.unknown_reason()
        if reason:
            silent = reason == OPERATOR_SILENT and self.cause != "new_session"
            if silent or (
                reason in self.obstacles and reason != "contact" and self.mode is Mode.ARMED
            ):
                # Somebody tries to move the arm, so the obstacle is reported. Motion away from a
                # contact stays allowed.
                self.hold(reason)
            return reason
        if self.mode is Mode.HOLD and self.cause == "new_session":
            return self.cause
        if self.refused_now:
            return "refused_now"
        moved = self.operator_moved_last()
        if chunk.source != OPERATOR and (moved or self.pauses_now or self.operator.has_takeover):
            self.hold(HANDING_BACK, only_active=True)  # S16: a pause before the policy goes on
            # the other arms hear of it, whatever already holds this one
            self.held_now = self.held_now or HANDING_BACK
            return HANDING_BACK
        arms = self.blocking_arms
        if chunk.source == OPERATOR:
            arms = blocking_arms(self.inputs, *POLICY_CAUSES)
        if self.mode is Mode.ACTIVE:
            return ""
        return self.hold_if_misaligned() or (arms[0] if arms else "")

    def first_obstacle(self) -> str:
        """Return the first cause that holds this arm now, or ""."""
        return self.obstacles[0] if self.obstacles else ""

    def operator_moved_last(self) -> bool:
        """Return True if an operator's motion still goes on."""
        return self.commander == OPERATOR and not self.trajectory.still

    def commands(self, source: str) -> bool:
        """Return True if a chunk of ``source`` is in command and still valid."""
        chunk = self.chunk
        return chunk is not None and chunk.source == source and self.now < chunk.valid_until_ns

    def accept(self, chunk: Chunk) -> None:
        """Give the command to a chunk."""
        self.chunk = chunk
        self.commander = chunk.source
        self.enter(Mode.ACTIVE, "")

    def hold_if_misaligned(self) -> str:
        """Hold if motion cannot start at the arm, and return the reason or an empty string.

        Motion starts from the arm's measured place, never from an old target (traps 3 and 4).
        """
        reason = self.hold_reason()
        if reason:
            self.hold(reason)
        return reason

    def hold_reason(self) -> str:
        """Return the reason why motion cannot start from the set-point, or "" if it can."""
        trajectory = self.trajectory
        if not trajectory.still and trajectory.goal is None:
            # near the arm the set-point brakes, and may as well go on
            return "realigning" if trajectory.too_far(self.arm) else ""
        outside = trajectory.exceeded_workspace(self.arm or ())
        if outside:
            return f"outside_{outside}"
        needs_realigning = trajectory.goal is not None or trajectory.misaligned(self.arm)
        return "realigning" if needs_realigning and not trajectory.arrived() else ""

    # S27: the reason that the other arms wait for
    def blocked_reason(self) -> str:
        """Return the reason why this arm could not move now, or an empty string if it may.

        Holds by other arms do not count. A hold that began in this very tick does.
        """
        if self.mode in (Mode.DISARMED, Mode.FAULT):
            return self.mode.name.lower()
        reason = self.first_obstacle() or self.unknown_reason()
        if reason or self.mode is Mode.ACTIVE:
            return reason
        hold = self.held_now or (self.cause if self.cause == "new_session" else "")
        return hold or self.hold_reason() or self.policy_hold_cause()

    def policy_hold_cause(self) -> str:
        """Return the cause in ``POLICY_CAUSES`` that this arm waits for, or an empty string."""
        if not self.is_enabled():
            return "enable"
        if self.operator.has_takeover or self.operator_moved_last():
            return HANDING_BACK
        return ""

    # S2, S7, S8, S12
    def move(self) -> None:
        """Move the set-points by one tick."""
        desired, window_end = self.desired_velocities()
        if self.trajectory.motions:
            self.trajectory.move(desired, self.now, window_end)

    def desired_velocities(self) -> tuple[Coordinates, int]:
        """Return the desired velocities, and the end of the current action's window [ns]."""
        chunk, trajectory = self.chunk, self.trajectory
        if self.mode is not Mode.ACTIVE or chunk is None:
            if self.is_realigning():
                return trajectory.velocities_to_goal(), 0
            return trajectory.zeros(), 0
        trajectory.goal = None
        dt_ns, count = chunk.dt_ns, len(chunk.actions)
        index = (self.now - chunk.observation_stamp_ns) // dt_ns
        if index > count:  # the last action is valid for two of its periods (Chunk.valid_until_ns)
            self.drop_chunk()
            self.hold("stale_command")
            return trajectory.zeros(), 0
        if index < 0 or index == count:
            return trajectory.zeros(), 0
        distance = self.inputs.distance
        desired = trajectory.play(chunk, index, self.arm, None if distance is None else distance[0])
        return desired, chunk.observation_stamp_ns + (index + 1) * dt_ns

    def is_realigning(self) -> bool:
        """Return True while the set-point goes to the arm, or has arrived there.

        Realignment happens once armed, and before a hold ends. It waits while anything holds the
        arm, except for these causes: contact, which realignment lessens; another arm that realigns
        too; and causes that hold the policy alone.
        """
        trajectory, arm = self.trajectory, self.arm
        may_realign = (
            (self.mode is Mode.ARMED or (self.mode is Mode.HOLD and self.cause == "realigning"))
            and all(cause == "contact" for cause in self.obstacles)
            and not blocking_arms(self.inputs, "realigning", *POLICY_CAUSES)
        )
        if (
            not may_realign
            or not trajectory.motions
            or (trajectory.goal is not None and trajectory.lost_its_goal(arm))
        ):
            trajectory.goal = None
        elif (
            trajectory.goal is None
            and trajectory.still
            and measured_at_rest(self.limits, self.track)
            and trajectory.misaligned(arm)
            and not trajectory.exceeded_workspace(arm or ())
        ):
            trajectory.set_goal(arm or ())
            self.event("reseeded", self.mode.name.lower())
        return trajectory.goal is not None

    def result(self) -> tuple[State, Output, tuple[Event, ...]]:
        """Return the next state, the messages to publish, and the events of this tick."""
        limits, trajectory = self.limits, self.trajectory
        sessions = tuple(
            [(source, session, seq) for source, (session, seq) in self.sessions.items()]
        )
        suppress_setpoint = self.suppress_setpoint
        state = State(
            self.mode,
            self.cause,
            trajectory.motions,
            trajectory.goal,
            self.chunk,
            trajectory.window,
            sessions,
            self.refusals,
            self.contacts,
            self.commander,
            self.track,
            self.lost_ticks,
            self.diverged_ticks,
            self.gripper_silent,
            self.recovering,
            self.ended_ns,
            self.operator,
            suppress_setpoint,
        )
        source = self.chunk.source if self.mode is Mode.ACTIVE and self.chunk is not None else ""
        at = trajectory.set_points()
        target = tool_pose(limits, at) if at and limits.control_mode == "tcp_delta" else None
        joints = at[0] if at and limits.control_mode == "joint_delta" else ()
        gripper = at[-1][0] if at and limits.gripper_width else None
        output = Output(
            target,
            joints,
            gripper,
            self.mode,
            source,
            self.cause,
            tuple(trajectory.applied),
            self.blocked_reason() if self.inputs.others else "",
            suppress_setpoint,
        )
        return state, output, tuple(self.event.emitted)
