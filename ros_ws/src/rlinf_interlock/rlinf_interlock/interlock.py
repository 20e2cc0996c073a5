"""Interlock node: the only publisher of commands. It steps the pure core and publishes its output.

It is not a functional-safety certified device: the robot's own safety controller and a hardware
e-stop remain necessary. The process imports no torch, no ray and no network library, and spins one
single-threaded executor. It waits for no disk, log or request. Services, parameters, life cycle and
log are in a second process (``interlock_services``), and ``interlock_requests`` answers people's
requests through it. S1 to S27 are the safety requirements of docs/reference/safety_evidence.md.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import struct
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rclpy.parameter import Parameter
from rlinf_msgs.msg import EpisodeEvent, GripperWidth
from sensor_msgs.msg import JointState

from rlinf_core import interlock as core
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.interlock import (
    Event,
    Mode,
    Output,
    State,
    after_unobserved_time,
    load_with_loosest,
    step,
)
from rlinf_core.interlock.latch import Latch, exclusive_command
from rlinf_core.interlock.types import ActionSlice
from rlinf_interlock import safety_messages as messages
from rlinf_interlock.interlock_clock import Lockstep, RealTime
from rlinf_interlock.interlock_inputs import OVER, ROLES, TO_OTHERS, Inputs
from rlinf_interlock.interlock_requests import Requests
from rlinf_interlock.interlock_services import ServiceProcess
from rlinf_ros import memory_bus
from rlinf_ros.conversions import set_pose, set_stamp
from rlinf_ros.diagnostics import Rates
from rlinf_ros.endpoints import EndpointReport
from rlinf_ros.qos import publisher
from rlinf_ros.spinning import override_of, run
from rlinf_ros.station_node import StationNode
from rlinf_ros.workarounds import wait_for_nobody

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
            self.to_others.publish(messages.peer_state(self.output, now_ns))
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
