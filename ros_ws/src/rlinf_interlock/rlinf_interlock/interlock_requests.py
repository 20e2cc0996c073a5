"""Answers of the interlock to people's requests: arming, reset, limits, life cycle and shutdown.

The interlock's service process passes the requests on. Each refusal has a reason in words, and no
request can end the interlock (S25; docs/reference/safety_evidence.md lists S1 to S27).
"""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rclpy.publisher import Publisher
from std_msgs.msg import String

from rlinf_core import interlock as core
from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import (
    Limits,
    Mode,
    Output,
    State,
    active_faults,
    adopt_limits,
    enabled,
    loosened_limits,
    missing_inputs,
    with_values,
)
from rlinf_core.interlock.coordinates import (
    measured_at_rest,
    measured_coordinates,
    topic_in_wrong_units,
)
from rlinf_core.interlock.limits import SETTLE_S
from rlinf_core.interlock.tick import POSITION_UNKNOWN
from rlinf_core.interlock.trajectory import Trajectory
from rlinf_core.interlock.types import NS
from rlinf_interlock.interlock_clock import Lockstep, RealTime
from rlinf_interlock.interlock_inputs import NO_ESTOP, Inputs, needs
from rlinf_interlock.interlock_services import ROBOT_FAULT_PREFIX, TAKEN_S, ServiceProcess

# inputs that a limit needs, each with the reason and the remedy for its silence
SILENCE_REMEDIES = {
    "wrench": "contact_force, contact_torque and contact_fault need it. On an arm without this "
    "sensor set all three to 'unlimited'",
    "joint_states": "joint_low and joint_high need it",
    "gripper/state": "gripper_width needs it",
    "current_pose": "box_low and box_high need it",
    "robot/fault": "without it, faults of the robot are not received. The driver's node hangs, "
    "or publishes without transient-local durability",
}

# If the service process ends this soon after an arming, the arming's sender may get no answer.
UNANSWERED_S = 2.0
READ_S = 0.002
# ticks at rest before the end, so that the last target is published repeatedly
LAST_TICKS = 10
OVERRULED = "a disarming came in between. Arm again"
INACTIVE = "the node is inactive (rlinf lifecycle interlock activate)"


class PendingReset(NamedTuple):
    """A reset that a tick has yet to execute.

    Attributes:
        number: of the request.
        arguments: of the request.
        ticks: number of ticks before it.
        until: time after which it is refused [s, CLOCK_MONOTONIC].
    """

    number: int
    arguments: dict[str, Any]
    ticks: int
    until: float


class InterlockNode(Protocol):
    """The part of the interlock node that requests read and change."""

    active: bool
    clock: RealTime | Lockstep | None
    counts: Counter[str]
    inputs: Inputs
    latch_reason: str
    limits: Limits
    loosest: Limits
    output: Output
    # requests that the next tick executes
    queued_requests: dict[str, Any]
    resets: Publisher
    service_process: ServiceProcess
    settings: dict[str, Any]
    state: State

    def activate(self) -> None:
        """Start to tick."""

    def deactivate(self) -> None:
        """Stop ticking."""

    def end_process(self) -> None:
        """End the process."""


class Requests:
    """Answers the service process's requests.

    ``handlers`` names the method for each request. It returns the reason of a refusal, an empty
    string for success, or None if the answer follows later.
    """

    def __init__(self, node: InterlockNode) -> None:
        self.node = node
        self.handlers: dict[str, Callable[..., str | None]] = {
            "arm": self._arm,
            "reset": self._reset,
            "limits": self._set_limits,
            "activate": self._activate,
            "deactivate": self._deactivate,
            "shutdown": self._shutdown,
        }
        # requests so far, granted or not; the service process must not write an older state
        self.armings = 0
        self.pending_resets: list[PendingReset] = []
        self.ending: int | None = None
        self.rested = 0
        self.read_s = -math.inf  # time of the last reading at a tick [s, CLOCK_MONOTONIC]
        self.armed_s = -math.inf  # time of the last granted arming [s, CLOCK_MONOTONIC]
        self.disarmed_s = -math.inf  # last disarming by the topic ``disarm`` [s, CLOCK_MONOTONIC]

    def answer(self) -> None:
        """Answer all requests since the last tick."""
        self._confirm()
        for request in self.node.service_process.requests():
            deadline = request.get("asked", time.monotonic()) + TAKEN_S
            command, arguments = request.get("do", ""), request.get("with", {})
            self._execute(request["id"], command, arguments, deadline)
        if self.ending is not None:
            self.rested = self.rested + 1 if self.node.state.still else 0
            if self.rested == LAST_TICKS:
                self.node.service_process.reply(self.ending, "")
                self.node.end_process()

    def answer_at_tick(self) -> None:
        """Answer requests in a tick.

        In lockstep a second has thousands of ticks. Requests are then read every READ_S, unless an
        earlier one awaits this tick.
        """
        now = time.monotonic()
        is_due = now - self.read_s > READ_S or self.pending_resets or self.ending is not None
        if is_due or not self.node.settings["lockstep"]:
            self.read_s = now
            self.answer()

    def listen(self) -> None:
        """Take the topic ``disarm`` and the service process's requests while no tick is due."""
        node = self.node
        if not node.active or node.settings["lockstep"]:
            node.inputs.take_disarm()
        if self.take_disarm() and node.clock is not None:
            node.clock.on_request()
        self.answer()

    def take_disarm(self) -> bool:
        """Disarm if a message on ``disarm`` came, without any service process; return if so."""
        is_requested = self.node.inputs.disarm
        self.node.inputs.disarm = False
        if is_requested:
            self.disarmed_s = time.monotonic()
            if self.node.active:
                self.node.queued_requests["arm"] = False
        return is_requested

    def _execute(
        self, number: int, command: str, arguments: dict[str, Any], deadline: float
    ) -> None:
        """Execute a request and answer it.

        A reset gets its answer once a tick has executed it: in lockstep that may be at once.
        """
        node, ticks = self.node, self.node.counts["ticks"]
        try:
            arms = command == "arm" and arguments["value"]
            self.armings += bool(arms)
            stops = command in ("deactivate", "shutdown") or (command == "arm" and not arms)
            reason: str | None
            if arms and deadline - TAKEN_S < self.disarmed_s:
                reason = OVERRULED
            else:
                reason = "" if stops else self._too_late(deadline)
            reason = reason or self.handlers[command](**arguments)
        # a request may hold anything; it must not end the process that holds the arm
        except Exception as error:
            node.service_process.log("error", traceback.format_exc())
            reason = f"not understood: {type(error).__name__}: {error}"
        if command == "reset" and reason == "" and node.state.mode is Mode.FAULT:
            self.pending_resets.append(PendingReset(number, arguments, ticks, deadline))
        elif reason is not None:
            node.service_process.reply(number, reason)

    def _too_late(self, deadline: float) -> str:
        """Return why a request is too old; empty if it is not.

        The sender of a late request gets, or has got, the answer that it was not executed.
        """
        late_s = time.monotonic() - deadline
        if late_s <= 0.0:
            return ""
        return (
            f"refused: the request reached the interlock after {TAKEN_S + late_s:.1f} s, "
            f"expected within {TAKEN_S:g} s. Was the interlock stopped? Try again"
        )

    def _confirm(self) -> None:
        """Answer resets after their tick. A fault that is still present may be a newer one."""
        node = self.node
        now = time.monotonic()
        waiting = self.pending_resets
        cleared = node.state.mode is not Mode.FAULT
        due = [
            request
            for request in waiting
            if cleared or request.ticks != node.counts["ticks"] or now > request.until
        ]
        self.pending_resets = [request for request in waiting if request not in due]
        for request in due:
            if cleared:
                node.service_process.reply(request.number, "")
            elif now > request.until:
                node.queued_requests.pop("reset_fault", None)  # the sender no longer waits
                node.service_process.reply(
                    request.number,
                    f"refused: no tick of the interlock cleared it for {TAKEN_S:g} s. Is the "
                    "robot side running?",
                )
            else:
                self._execute(request.number, "reset", request.arguments, request.until)

    # Arming
    def _arm(self, value: bool) -> str:
        node = self.node
        if node.state.mode is Mode.FAULT:
            latch_remark = f" ({node.latch_reason})" if node.state.cause == "restarted" else ""
            return (
                f"FAULT '{node.state.cause}' is active{latch_remark}. Clear it with "
                "interlock/reset_fault first"
            )
        reason = self._why_not_armed() if value else ""
        if not reason:
            self._queue_request(arm=value)
            self.armed_s = time.monotonic() if value else self.armed_s
        return reason

    def on_new_service_process(self) -> None:
        """Withdraw a recent arming after a change of the service process: its sender may get no
        answer.
        """
        self.pending_resets.clear()  # the new service process counts its requests from one
        if (
            time.monotonic() - self.armed_s < UNANSWERED_S
            and self.node.active
            and self.node.state.mode is not Mode.FAULT
        ):
            self._queue_request(arm=False)
            self.node.service_process.log(
                "error",
                "the arming is cancelled: the process of the services ended before its answer",
            )

    def _why_not_armed(self) -> str:
        """Return the reasons against arming; empty if there are none."""
        node = self.node
        if not node.active:
            return INACTIVE
        # one tick must not lose a disarming
        if self.ending is not None or node.queued_requests.get("arm") is False:
            return "a disarming is in progress. Try again"
        if not (
            node.settings["teleports"] or node.inputs.estops or node.settings["no_estop_reason"]
        ):
            return NO_ESTOP
        inputs = self._inputs()
        faults = active_faults(node.limits, inputs, node.state.contacts)
        if faults:
            return f"this stands: {', '.join(map(self._describe, faults))}"
        if node.output.suppress_setpoint and node.state.recovering:
            return (
                "the measured state of the arm was lost or is being recovered. The arm must be "
                f"measured at rest for {SETTLE_S} s. Ask again"
            )
        if node.output.suppress_setpoint and node.state.track.valid:
            trajectory = Trajectory(node.limits, node.state.motions, None, None, lambda *_: None)
            if outside := trajectory.exceeded_workspace(node.state.track.at or ()):
                return (
                    f"the arm rests outside its {outside} and far from its last position. Guide it "
                    "inside first, or change the limits"
                )
            if not measured_at_rest(node.limits, node.state.track):
                return (
                    "the arm moves far from its last position. It must be measured at rest for "
                    f"{SETTLE_S} s. Try again"
                )
        missing = missing_inputs(inputs)
        if missing:
            return f"missing: {', '.join(map(self._describe, missing))}"
        return self._why_unknown(inputs)

    def _describe(self, cause: str) -> str:
        kind, _, topic = cause.partition(":")
        if kind == "silent" and topic in self.node.inputs.others:
            return (
                f"{cause} (the interlock of arm {self.node.inputs.others[topic].name}: is it "
                f"running?)"
            )
        if kind == "estop_silent" and (
            other := self.node.inputs.unexpected_types(f"estop/{topic}")
        ):
            return f"{cause} ({other})"
        if kind in ("foreign_publisher", "two_publishers"):
            return (
                f"{cause} (published by {self.node.inputs.publishers_of(topic)}; a killed process "
                "is forgotten after seconds)"
            )
        if kind == "silent" and topic in SILENCE_REMEDIES:
            return f"{cause} ({SILENCE_REMEDIES[topic]})"
        return cause

    def _why_unknown(self, inputs: core.Inputs) -> str:
        """Return why the arm's position is unknown; empty if it is known."""
        node, topic = self.node, self.node.inputs.state_topic
        if wrong_topic := topic_in_wrong_units(node.limits, inputs):
            values = {"joint_states": inputs.joints, "current_pose": (inputs.pose or ())[:3]}.get(
                wrong_topic, (inputs.gripper,)
            )
            numbers = ", ".join(f"{value:.4g}" for value in values or () if value is not None)
            return (
                f"'{wrong_topic}': expected metres and radians near the limits, got {numbers}. "
                "Are they millimetres or degrees? Publish SI units, or correct the limits"
            )
        coordinates = measured_coordinates(node.limits, inputs)
        age_s = (
            math.inf
            if node.inputs.pose is None and node.inputs.joints is None
            else inputs.pose_age_ns / NS
        )
        if coordinates is not None and age_s <= node.limits.stale_state:
            if node.state.track.valid or node.settings["lockstep"]:
                return ""
            return (
                "the measured position jumped. The arm must be measured at rest for "
                f"{SETTLE_S} s. Try again"
            )
        if math.isinf(age_s):
            actual = "none"
        elif coordinates is not None:
            actual = f"one {age_s:.1f} s old"
        elif inputs.frame not in ("", node.limits.frame):
            actual = f"one in the frame '{inputs.frame}'"
        else:
            actual = "one that is not finite, or whose quaternion is not of length 1"
        return (
            f"expected a measured state on '{topic}' in the frame '{node.limits.frame}', not "
            f"older than {node.limits.stale_state} s, got {actual}. Is the robot side running?"
        )

    def _reset(self, cause: str, recovering: bool = False) -> str:
        """Request the reset of a fault.

        ``recovering`` marks a repetition of the same request while the robot recovers. While
        disarmed, nothing else is necessary.
        """
        node = self.node
        if not node.active:
            return INACTIVE
        inputs = self._inputs()
        reasons = active_faults(node.limits, inputs, node.state.contacts)
        if not enabled(node.limits, inputs):
            reasons.append("the enable is not held")
        named = (
            cause == node.state.cause
            if node.state.mode is Mode.FAULT
            else recovering or cause in reasons
        )
        if not named:
            current_state = (
                f"FAULT '{node.state.cause}'" if node.state.mode is Mode.FAULT else "no fault"
            )
            return f"refused: {current_state} is active, and the request named '{cause}'"
        if reasons:
            only_robot_faults = all(fault.startswith("robot:") for fault in reasons)
            can_recover = only_robot_faults and node.resets.get_subscription_count() > 0
            if can_recover and not recovering:
                self._recover(cause, inputs.robot_fault)
            prefix = ROBOT_FAULT_PREFIX if can_recover else ""
            return f"{prefix}refused: its cause persists: {', '.join(map(self._describe, reasons))}"
        if node.state.mode is Mode.FAULT:
            unseen = cause in POSITION_UNKNOWN and not (
                node.state.track.valid or node.state.track.jumped
            )
            if unseen and (reason := self._why_unknown(inputs)):
                return f"refused: its cause persists: {reason}"
            self._queue_request(reset_fault=cause)
        return ""

    def _recover(self, cause: str, robot_fault: str) -> None:
        """S17: ask for the robot's recovery, and realign the set-point with the arm (S13)."""
        if not robot_fault.startswith("gripper"):  # a gripper's fault alone does not stop the arm
            self._queue_request(recover=True)
        self.node.resets.publish(String(data=cause))

    # Limits (S19)
    def _set_limits(self, values: dict[str, Any]) -> str:
        node = self.node
        try:
            loose = loosened_limits(node.limits, with_values(node.limits, values))
            if loose and (node.state.mode is not Mode.DISARMED or node.queued_requests.get("arm")):
                return (
                    f"{', '.join(loose)} would be loosened. While armed, limits can only be "
                    "tightened. Disarm first"
                )
            limits = with_values(node.limits, values, "limits", node.loosest)
        except RecipeError as error:
            return str(error)
        state, reason = adopt_limits(limits, node.state, node.limits)
        if not reason:
            node.limits = node.inputs.limits = limits
            if not node.settings["lockstep"]:
                for topic in needs(limits) - node.inputs.listeners.keys():
                    node.inputs.subscribe(topic)  # silent until its first message
            node.state = state
            node.service_process.set_limits(limits)
            node.service_process.log("info", f"limits are now {limits.hash}: {', '.join(values)}")
        return reason

    # Life cycle
    def _activate(self) -> str:
        self.node.activate()
        return ""

    def _deactivate(self) -> str:
        state, armed = self.node.state, self.node.queued_requests.get("arm")
        if state.mode is not Mode.DISARMED or not state.still or armed:
            current_state = "ARMED" if armed else state.mode.name
            return (
                f"not deactivated: it is {current_state}. Disarm it first (interlock/arm) and let "
                "it come to rest"
            )
        self.node.deactivate()
        return ""

    def _shutdown(self, id: int) -> None:
        """Brake, then end; the answer follows when the arm is at rest."""
        self.ending = id
        if self.node.active:
            self._queue_request(arm=False)

    # Helpers
    def _queue_request(self, **request: Any) -> None:
        self.node.queued_requests |= request
        if self.node.clock is not None:
            self.node.clock.on_request()

    def _inputs(self) -> core.Inputs:
        node, inputs = self.node, self.node.inputs
        if not node.active or node.settings["lockstep"]:
            inputs.pull()
        inputs.check_publishers()
        age_ns = 0 if node.settings["lockstep"] else inputs.age_ns(inputs.state_topic)
        return core.Inputs(
            pose=inputs.pose,
            pose_age_ns=age_ns,
            joints=inputs.joints,
            **inputs.surroundings(),
            clock_stepped=node.clock is not None and node.clock.clock_stepped,
        )
