"""Interlock node: the only publisher of commands. It steps the pure core and publishes its output.

It is not a functional-safety certified device: the robot's own safety controller and a hardware
e-stop remain necessary. The process imports no torch, no ray and no network library, and spins one
single-threaded executor. It waits for no disk, log or request. Services, parameters, life cycle and
log are in a second process (``interlock_services``). ``Requests`` answers people's requests through
it, with a reason in words; no request can end the interlock (S25).
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import resource
import signal
import struct
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rclpy.parameter import Parameter
from rlinf_msgs.msg import EpisodeEvent, GripperWidth
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from rlinf_core import interlock as core
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.interlock import (
    Event,
    Mode,
    Output,
    State,
    active_faults,
    adopt_limits,
    after_unobserved_time,
    enabled,
    load_with_loosest,
    loosened,
    missing_inputs,
    step,
    with_values,
)
from rlinf_core.interlock.coordinates import in_other_units, measured_at_rest, measured_coordinates
from rlinf_core.interlock.latch import Latch, exclusive_command
from rlinf_core.interlock.limits import SETTLE_S
from rlinf_core.interlock.tick import POSITION_UNKNOWN
from rlinf_core.interlock.trajectory import Trajectory
from rlinf_core.interlock.types import NS, ActionSlice
from rlinf_interlock import safety_messages as messages
from rlinf_interlock.interlock_clock import Lockstep, RealTime
from rlinf_interlock.interlock_inputs import NO_ESTOP, OVER, ROLES, TO_OTHERS, Inputs, needs
from rlinf_interlock.interlock_services import ROBOT_FAULT_PREFIX, TAKEN_S, ServiceProcess
from rlinf_ros import memory_bus
from rlinf_ros.conversions import set_pose, set_stamp
from rlinf_ros.endpoints import EndpointReport
from rlinf_ros.qos import publisher
from rlinf_ros.spinning import Rates, StationNode, override_of, run
from rlinf_ros.workarounds import wait_for_nobody

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


class Requests:
    """Answers the service process's requests.

    Each method for a request returns the reason of a refusal, or an empty string for success.
    """

    def __init__(self, node: Interlock) -> None:
        self.node = node
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
            self._take(request["id"], request.get("do", ""), request.get("with", {}), deadline)
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

    def _take(self, number: int, do: str, arguments: dict[str, Any], deadline: float) -> None:
        """Execute a request and answer it.

        A reset gets its answer once a tick has executed it: in lockstep that may be at once.
        """
        node, ticks = self.node, self.node.counts["ticks"]
        try:
            arms = do == "arm" and arguments["value"]
            self.armings += bool(arms)
            stops = do in ("deactivate", "shutdown") or (do == "arm" and not arms)
            if arms and deadline - TAKEN_S < self.disarmed_s:
                reason = OVERRULED
            else:
                reason = "" if stops else self._too_late(deadline)
            reason = reason or getattr(self, f"_{do}")(**arguments)
        # a request may hold anything; it must not end the process that holds the arm
        except Exception as error:
            node.service_process.log("error", traceback.format_exc())
            reason = f"not understood: {type(error).__name__}: {error}"
        if do == "reset" and reason == "" and node.state.mode is Mode.FAULT:
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
                self._take(request.number, "reset", request.arguments, request.until)

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
        if wrong_topic := in_other_units(node.limits, inputs):
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
    def _limits(self, values: dict[str, Any]) -> str:
        node = self.node
        try:
            loose = loosened(node.limits, with_values(node.limits, values))
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


PARAMETERS = {
    "limits_file": "",
    "lockstep": False,
    "lockstep_guard_s": 1.0,
    "latch_file": "",
    "estops": [""],
    "no_estop_reason": "",
    "teleports": False,
    "distance": False,
    "autostart": True,
    "others": [""],
    "rows": [0, 0, 0],
    "driver": False,
    "follows": "",
}
COLLECT_TICKS, STOPPED = 10, (Mode.DISARMED, Mode.FAULT)
MAX_EVENTS = 32  # events published per tick; the rest are counted
_MCL_CURRENT = 1
_MCL_FUTURE = 2
_MCL_ONFAULT = 4
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_RESERVED_BYTES = 64 << 20


class Interlock(StationNode):
    """Ticks while it is active; ``interlock_clock`` decides when."""

    def __init__(self) -> None:
        super().__init__(
            "interlock",
            start_parameter_services=False,
            enable_rosout=False,
            parameter_overrides=[Parameter("start_type_description_service", value=False)],
        )
        self.settings = {
            name: self.declare_parameter(name, value).value for name, value in PARAMETERS.items()
        }
        if not self.settings["limits_file"]:
            raise RecipeError(
                "limits_file: expected the path of the robot's limits.yaml, got none. Give it with "
                "--ros-args -p limits_file:=robots/NAME/limits.yaml"
            )
        if memory_bus.bus() and not (self.settings["lockstep"] and self.settings["teleports"]):
            raise RlinfError(
                "interlock: expected a separate process. Only a simulator in lockstep may share "
                "one. Set station.processes=several",
                code="RL-E518",
            )
        self.limits, self.loosest = load_with_loosest(self.settings["limits_file"])
        target = "target_joints" if self.limits.control_mode == "joint_delta" else "target_pose"
        self.lock = exclusive_command(
            self.get_namespace(),
            map(self.resolve_topic_name, filter(None, [target, self.settings["follows"]])),
        )
        self.state = self._initial_state()
        self.counts: Counter[str] = Counter()
        self.queued_requests: dict[str, Any] = (
            {"restart": True} if self.settings["teleports"] else {}
        )
        self.active = False
        self.reaction_ms: deque[float] = deque(maxlen=1000)
        self.output = Output(None, (), None, self.state.mode, "", self.state.cause)
        self.published_state: tuple[Any, ...] = ()
        self.rows = ActionSlice(*self.settings["rows"])
        self.others = [name for name in self.settings["others"] if name]
        endpoints = EndpointReport(self) if self.settings["lockstep"] else None
        self.service_process = ServiceProcess(self.settings, self.limits)
        self.service_process.log(
            "info",
            f"limits {self.limits.hash}, read once at start from "
            f"{os.path.realpath(self.settings['limits_file'])}",
        )
        if self.latch_reason:
            self.service_process.log(
                "warning", f"the interlock starts latched: {self.latch_reason}"
            )
        self.inputs = Inputs(
            self,
            self.limits,
            [name for name in self.settings["estops"] if name],
            self.settings["distance"],
            self.settings["lockstep"],
            self.others,
            self.rows,
            self.settings["driver"],
        )
        if endpoints is not None:
            endpoints.nodes.append(self.inputs.node)
        self._make_outputs()
        self.requests = Requests(self)
        self.clock: RealTime | Lockstep | None = None
        if self.settings["autostart"]:
            self.activate()
        self.create_timer(1.0, self._once_a_second)
        self.create_timer(0.1, self._keep_service_process)
        # needed while inactive and in lockstep
        self.listening = self.create_timer(0.02, self.requests.listen)
        self._publish_safety(0 if self.settings["lockstep"] else self.get_clock().now().nanoseconds)
        if memory_bus.bus() is None:
            _lock_memory()
        # the open file keeps cores from deep sleep for the life of the node
        self.dma_latency_file = None if self.settings["lockstep"] else _prevent_deep_sleep()

    def _make_outputs(self) -> None:
        if self.limits.control_mode == "tcp_delta":
            self.answer: Any = PoseStamped()
            self.answer.header.frame_id = self.limits.frame
            self.inputs.commands = ("target_pose",)
            self.targets = publisher(self, "target_pose")
        else:
            self.answer = JointState(name=list(self.limits.joint_names))
            self.inputs.commands = ("target_joints",)
            self.targets = publisher(self, "target_joints")
        if self.limits.gripper_width:
            self.inputs.commands += ("gripper/command",)
            self.gripper_commands = publisher(self, "gripper/command")
            self.gripper_command = GripperWidth()
        self.inputs.commands += ("robot/reset", *filter(None, [self.settings["follows"]]))
        self.resets = publisher(self, "robot/reset")
        self.applied = publisher(self, "applied")
        self.safety = publisher(self, "safety")
        self.events = publisher(self, "safety/events")
        self.diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.rates = Rates(self)
        self.to_others = publisher(self, TO_OTHERS) if self.others else None

    # S14: a stop survives a restart
    def _initial_state(self) -> State:
        """Return DISARMED, or FAULT if the previous interlock did not end disarmed."""
        self.latch_reason = Latch(self.settings["latch_file"]).latch_reason()
        return State(Mode.FAULT, "restarted") if self.latch_reason else State()

    # Life cycle
    def activate(self) -> None:
        """Start to tick; earlier requests do not count."""
        if self.active:
            return
        self.queued_requests.pop("arm", None)
        period = self.limits.tick
        if self.settings["lockstep"]:
            self.clock = Lockstep(
                self,
                self.inputs,
                period,
                self._tick,
                self.settings["lockstep_guard_s"],
                lambda: self.state.mode,
                lambda: self.targets.publish(self.answer),
            )
        else:
            self.clock = RealTime(self, self.inputs, period, self._tick)
            self.state = after_unobserved_time(self.state)
        self.active = True

    def deactivate(self) -> None:
        """Stop ticking. ``Requests`` allows it only while disarmed and at rest."""
        if self.clock is not None and self.active:
            self.clock.stop(self)
        self.active = False

    def end_process(self) -> None:
        """End the process after the life cycle's end, as a signal would."""
        if bus := memory_bus.bus():
            bus.ended_by = self
        os.kill(os.getpid(), signal.SIGTERM)

    def finish(self) -> bool:
        """End the process: brake, and report when the arm is at rest."""
        if self.active and not (
            self.state.still and (self.state.mode in STOPPED or self.settings["lockstep"])
        ):
            self.queued_requests["arm"] = False
            if self.clock is not None:
                self.clock.on_request()
            return False
        if self.state.mode is Mode.DISARMED:
            self.service_process.report_disarmed(self.requests.armings)
        self.service_process.close()
        return True

    # One tick
    def _tick(self, now_ns: int, pose_age_ns: int, late_s: float) -> None:
        clock = self.clock
        if clock is None:  # the clock itself calls this
            return
        self.requests.take_disarm()
        self.requests.answer_at_tick()
        received, events = self.inputs.take_inputs()
        for event in events:
            self._on_episode(event)
        if clock.new_scene and self.settings["teleports"]:
            # a scene that no episode begins, e.g. of an operator who frees a jammed arm
            self.queued_requests["restart"] = True
        queued_requests = self.queued_requests
        self.queued_requests = {}
        arrivals = [
            at
            for topic in ROLES
            if topic in self.inputs.listeners
            for at in self.inputs.listeners[topic].arrived
        ]
        before = self.state
        self.state, self.output, core_events = self._step(
            core.Inputs(
                pose_age_ns=pose_age_ns,
                late_s=late_s,
                clock_stepped=clock.clock_stepped,
                **received,
                **queued_requests,
            ),
            now_ns,
        )
        gripper_reports = "gripper/state" not in received["silent"]
        self._publish_target(now_ns, gripper_reports and not self.state.gripper_silent)
        if self.to_others is not None:
            self.to_others.publish(messages.to_others(self.output, now_ns))
        done = time.monotonic_ns()
        self.reaction_ms += [(done - at) / 1e6 for at in arrivals]
        for record in self.output.applied:
            self.applied.publish(messages.applied(record, self.limits.hash, self.rows))
        self.counts["ticks"] += 1
        self._publish_events(core_events)
        if self.state.mode is Mode.DISARMED:
            clock.clock_stepped = False
            if before.mode is Mode.DISARMED and self.state.still:
                self.service_process.report_disarmed(self.requests.armings)
        present_state = self.output.mode, self.output.cause, self.output.source
        if present_state != self.published_state or self.counts["ticks"] % 10 == 0:
            self._publish_safety(now_ns)
        if self.counts["ticks"] % COLLECT_TICKS == 0 and not gc.isenabled():
            # collects only the last ticks; a full collection late in the day would take a second
            gc.collect(0)

    def _step(self, inputs: core.Inputs, now_ns: int) -> tuple[State, Output, tuple[Event, ...]]:
        """Step the core. It never raises; if it did, the arm must still brake, with a report."""
        try:
            return step(self.limits, self.state, inputs, now_ns)
        except Exception:
            self.service_process.log(
                "fatal",
                f"a defect in the interlock's core; the arm is stopped:\n{traceback.format_exc()}",
            )
            # this also stops the other arms
            return step(self.limits, self.state, core.Inputs(robot_fault="interlock"), now_ns)

    def _on_episode(self, event: EpisodeEvent) -> None:
        if event.kind in OVER:
            self.queued_requests["end_episode"] = True
        elif event.kind == EpisodeEvent.STARTED and self.settings["teleports"]:
            self.queued_requests["restart"] = True

    # Outputs
    def _publish_target(self, now_ns: int, gripper_reports: bool) -> None:
        """Publish the target.

        A silent gripper gets no command: after a restart elsewhere it would move to its old target.
        """
        output = self.output
        # first, because in lockstep a simulator moves on at its target
        if output.gripper is not None and gripper_reports:
            set_stamp(self.gripper_command.header.stamp, now_ns)
            self.gripper_command.width = output.gripper
            self.gripper_commands.publish(self.gripper_command)
        # in lockstep, a simulator moves only at its target
        if output.suppress_setpoint and not self.settings["lockstep"]:
            return
        if output.target is not None:
            set_pose(self.answer.pose, output.target)
        elif output.joints:
            self.answer.position = list(output.joints)
        else:
            return
        set_stamp(self.answer.header.stamp, now_ns)
        self.targets.publish(self.answer)

    def _publish_events(self, events: tuple[Event, ...]) -> None:
        """Publish every intervention, which the recording also holds (S20)."""
        for index, event in enumerate(events):
            self.counts["holds" if event.cause.startswith("HOLD") else event.kind] += 1
            if event.kind in ("refused", "mode", "reseeded"):
                self.service_process.log(
                    "info", f"{event.kind}: {event.cause}{self._publishers_text(event.cause)}"
                )
            if index < MAX_EVENTS:
                self.events.publish(
                    messages.safety_event(
                        event, self.output, self.counts["ticks"], self.limits.hash
                    )
                )

    def _publishers_text(self, cause: str) -> str:
        """Return the publishers of a topic that may have only one."""
        for prefix in ("_publisher:", "_publishers:"):
            _, separator, topic = cause.partition(prefix)
            if separator:
                return f" (published by {self.inputs.publishers_of(topic)})"
        return ""

    def _publish_safety(self, now_ns: int) -> None:
        self.published_state = self.output.mode, self.output.cause, self.output.source
        self.safety.publish(
            messages.safety_state(self.output, self.counts, self.limits.hash, now_ns)
        )

    def _once_a_second(self) -> None:
        times: dict[str, Iterable[float]] = {
            "tick_late": self.clock.late_ms if self.clock else (),
            "reaction": self.reaction_ms,
        }
        message = messages.diagnostics(
            f"{self.get_namespace().strip('/')}/interlock",
            self.state,
            {**self.counts, **self.inputs.counts, **self.rates()},
            times,
            self.limits.hash,
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self.diagnostics.publish(message)

    def _keep_service_process(self) -> None:
        if self.service_process.replace_if_dead(self.requests.armings, self.active):
            self.requests.on_new_service_process()


def _lock_memory() -> None:
    """Keep all pages in memory while ticking, if allowed; collect garbage only by hand."""
    gc.disable()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if os.geteuid() == 0 or soft == resource.RLIM_INFINITY:
        ctypes.CDLL("libc.so.6", use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT)


def _prevent_deep_sleep() -> Any:
    """Keep cores from deep sleep, which would delay wake-ups, while the returned file is open.

    The result is None if the system does not allow it.
    """
    try:
        request = open("/dev/cpu_dma_latency", "wb", buffering=0)  # noqa: SIM115 (held for life)
        request.write(struct.pack("i", 0))
    except OSError:
        return None
    return request


def _reserve_memory() -> None:
    """Keep used memory in this process; call it before any thread starts.

    Returning and refetching a large message's pages would cost more than the message.
    """
    libc = ctypes.CDLL("libc.so.6")
    for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1)):
        libc.mallopt(option, value)
    ctypes.memset(ctypes.create_string_buffer(_RESERVED_BYTES), 0, _RESERVED_BYTES)


def main() -> None:
    """Entry point."""
    # a simulator waits for the interlock: nothing may be lost, and nobody can be hurt
    if not override_of("lockstep"):
        wait_for_nobody()
        _reserve_memory()
    run(Interlock, priority=30, listens=False)


if __name__ == "__main__":
    main()
