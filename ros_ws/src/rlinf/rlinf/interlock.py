"""Interlock node: the only publisher of commands. Feeds the pure core one tick at a time and publishes what it says.

Not a functional-safety certified device: the robot's own safety controller and a hardware e-stop stay in charge.
This process imports no torch, no ray and no network library, and spins one single-threaded executor.
"""

from __future__ import annotations

import array
import math
import time
from collections import Counter, deque
from functools import partial
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rlinf_msgs.msg import ActionChunk, Applied, EpisodeEvent, SafetyEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import JointState, Range
from std_msgs.msg import Bool, Float64, String
from std_srvs.srv import SetBool

from rlinf import safety_messages as messages
from rlinf.latest import Latest
from rlinf.phase import PhaseLockedTimer
from rlinf.qos import newest, profile
from rlinf.spinning import run
from rlinf.stamps import NS, set_stamp, to_ns
from rlinf_core.durable import publish_file
from rlinf_core.errors import RecipeError
from rlinf_core.interlock import (
    Chunk,
    EStop,
    Event,
    Inputs,
    Mode,
    Output,
    State,
    adopt,
    enabled,
    load_limits,
    loosened,
    standing_faults,
    step,
    with_values,
)
from rlinf_core.interlock.coordinates import measured
from rlinf_core.interlock.core import FRAME
from rlinf_core.interlock.limits import FIXED, TABLE

PARAMETERS = {"limits_file": "", "lockstep": False, "lockstep_guard_s": 1.0, "memory_file": "", "estops": [""],
              "teleports": False, "distance": False, "autostart": True}


class Interlock(LifecycleNode):
    """A managed node that ticks at a fixed rate in real time, or once per measured pose in lockstep (docs/design.md).

    Configuring reads the limits and joins the topics; active, it ticks and publishes at every tick. It can only be
    deactivated while DISARMED and at rest. With ``autostart`` it configures and activates itself.
    """

    def __init__(self) -> None:
        super().__init__("interlock", parameter_overrides=[Parameter("start_type_description_service", value=False)])
        for name, value in PARAMETERS.items():
            self.declare_parameter(name, value)

    def start(self) -> Interlock:
        """Configure and activate, if ``autostart``; RecipeError if the limits are not fit to start with."""
        if self._value("autostart"):
            load_limits(self._value("limits_file"))  # once more by itself: a transition would swallow what it raises
            for transition in (self.trigger_configure, self.trigger_activate):
                if transition() is not TransitionCallbackReturn.SUCCESS:
                    raise SystemExit("the interlock could not be started; see the lines above")
        return self

    def _value(self, name: str) -> Any:
        return self.get_parameter(name).value

    # Lifecycle
    def on_configure(self, _: LifecycleState) -> TransitionCallbackReturn:
        try:
            self.limits = load_limits(self._value("limits_file"))
        except RecipeError as error:
            self.get_logger().fatal(str(error))
            return TransitionCallbackReturn.FAILURE
        self.lockstep, self.guard_s, self.memory = map(self._value, ("lockstep", "lockstep_guard_s", "memory_file"))
        self.teleports = self._value("teleports")
        self.state, self.counts, self.noted = self._remember(), Counter(), ""
        self.pose: tuple[float, ...] | None = None
        self.joints: tuple[float, ...] | None = None
        self.pose_stamp_ns = self.state_received_ns = 0
        self.chunks: list[Chunk] = []
        self.arrivals: list[float] = []
        self.estops = {name: (False, -math.inf) for name in self._value("estops") if name}
        self.enable, self.robot_fault, self.wrench_stamp_ns = (False, -math.inf), "", -1
        self.distance = (math.nan, -math.inf) if self._value("distance") else None
        self.requests: dict[str, object] = {}
        self.permit_ns = 0
        self.pending = self.forced = self.active = self.answered = False
        self.clock_offset_ns = self.get_clock().now().nanoseconds - time.monotonic_ns()
        self.last_tick_ns, self.late_ms, self.reaction_ms = time.monotonic_ns(), deque(maxlen=1000), deque(maxlen=1000)
        self._declare_limits()
        self._make_interfaces()
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.last_tick_ns = time.monotonic_ns()
        if self.lockstep:
            self.ticking = self.create_timer(self.limits.tick, self._on_guard)
        else:
            self.phase = PhaseLockedTimer(self, self.limits.tick, self._on_timer, hurry=0.01, early=0.15)
            self.ticking = self.phase.timer
        self.active = True
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        if self.state.mode is not Mode.DISARMED or not self.state.still:
            self.get_logger().error(f"not deactivated: it is {self.state.mode.name}. Disarm it first (interlock/arm) and "
                                    "let it come to rest")
            return TransitionCallbackReturn.FAILURE
        self.active = False
        self.destroy_timer(self.ticking)
        return super().on_deactivate(state)

    def on_cleanup(self, _: LifecycleState) -> TransitionCallbackReturn:
        self.get_logger().error("it is configured once and for all; to read its limits again, restart the process")
        return TransitionCallbackReturn.FAILURE

    def _declare_limits(self) -> None:
        """One parameter per limit, with its unit, range and meaning; what may change live is tightening (S19)."""
        for name, item in TABLE.items():
            value = getattr(self.limits, name)
            if value == () or self.has_parameter(f"limits.{name}"):
                continue
            unit = f" [{item.metadata['unit']}]" if item.metadata["unit"] else ""
            about = ParameterDescriptor(description=item.metadata["meaning"] + unit,
                                        read_only=item.metadata["tighter"] == FIXED)
            self.declare_parameter(f"limits.{name}", list(value) if isinstance(value, tuple) else value, about)
        self.add_on_set_parameters_callback(self._on_parameters)

    def _on_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        changes = {p.name.removeprefix("limits."): list(p.value) if isinstance(p.value, array.array) else p.value
                   for p in parameters if p.name.startswith("limits.")}
        if not changes:
            return SetParametersResult(successful=True)
        try:
            limits = with_values(self.limits, {k: "unlimited" if v == math.inf else v for k, v in changes.items()})
        except RecipeError as error:
            return SetParametersResult(successful=False, reason=str(error))
        loose = loosened(self.limits, limits)
        if loose and self.state.mode is not Mode.DISARMED:
            return SetParametersResult(successful=False, reason=f"{', '.join(loose)} would be loosened: disarm first. "
                                                                "While armed, limits can only be tightened")
        state, reason = adopt(limits, self.state)
        if not reason:
            self.limits, self.state = limits, state
            self.get_logger().info(f"limits are now {limits.hash}: {', '.join(changes)}")
        return SetParametersResult(successful=not reason, reason=reason)

    def _make_interfaces(self) -> None:
        limits = self.limits
        if limits.control_mode == "tcp_delta":
            self.answer = PoseStamped()
            self.answer.header.frame_id = FRAME
            self.targets = self.create_publisher(PoseStamped, "target_pose", profile("target_pose"))
        else:
            self.answer = JointState(name=list(limits.joint_names))
            self.targets = self.create_publisher(JointState, "target_joints", profile("target_joints"))
        if limits.gripper_width:
            self.openings = self.create_publisher(Float64, "gripper/command", profile("gripper/command"))
        self.applied = self.create_publisher(Applied, "applied", profile("applied"))
        self.safety = self.create_publisher(SafetyState, "safety", profile("safety"))
        self.events = self.create_publisher(SafetyEvent, "safety/events", profile("safety/events"))
        self.diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.create_subscription(PoseStamped, "current_pose", self._on_pose, newest(self.lockstep))
        if limits.joint_names:
            self.create_subscription(JointState, "joint_states", self._on_joints, newest(self.lockstep))
        if self.distance is not None:
            self.create_subscription(Range, "distance", self._on_distance, newest(self.lockstep))
        felt = min(limits.contact_force, limits.contact_torque, limits.contact_fault) < math.inf
        pulled = ({"wrench"} if felt else set()) | ({"gripper/state"} if limits.gripper_width else set())
        self.pulled = Latest(self, pulled, self.lockstep)
        self.create_subscription(Bool, "enable", self._on_enable, profile("enable"))
        self.create_subscription(String, "robot/fault", self._on_robot_fault, profile("robot/fault"))
        for name in self.estops:
            self.create_subscription(Bool, f"estop/{name}", partial(self._on_estop, name), profile("estop/"))
        for topic in ("policy/action", "teleop/action"):
            self.create_subscription(ActionChunk, topic, self._on_chunk, profile(topic))
        self.create_subscription(EpisodeEvent, "episode", self._on_episode, profile("episode"))
        self.create_service(SetBool, "interlock/arm", self._on_arm)
        self.create_service(ResetFault, "interlock/reset_fault", self._on_reset)
        self.create_timer(1.0, self._publish_diagnostics)
        at_first = Output(None, (), None, self.state.mode, "", self.state.cause)
        self._publish_safety(at_first, self.get_clock().now().nanoseconds)

    # S14: a stop survives a restart
    def _remember(self) -> State:
        """DISARMED, or FAULT if the interlock before this one did not end disarmed."""
        path = Path(self.memory)
        if self.memory and path.exists() and path.read_text() != Mode.DISARMED.name:
            return State(Mode.FAULT, "restarted")
        return State()

    def _note(self, mode: Mode) -> None:
        """Write down that it is armed, before it is; or disarmed, once nothing moves: the disk may take its time."""
        if self.memory and mode.name != self.noted:
            path, self.noted = Path(self.memory), mode.name
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.part")
            aside.write_text(mode.name)
            publish_file(aside, path)

    # What comes in
    def _on_pose(self, message: PoseStamped) -> None:
        stamp_ns = to_ns(message.header.stamp)
        if self.lockstep and self.answered and not self.pending and stamp_ns == self.pose_stamp_ns:
            self.targets.publish(self.answer)  # a state that is said again is answered again: nothing moves twice
            return
        self.pose, self.pose_stamp_ns = messages.to_pose(message.pose), stamp_ns
        if self.limits.control_mode == "tcp_delta":
            self.state_received_ns = time.monotonic_ns()
        self.pending = True
        if self.lockstep:
            self._tick_if_permitted()

    def _on_joints(self, message: JointState) -> None:
        """In the order of the limits; a message that lacks one of their joints says nothing about the arm."""
        angles = dict(zip(message.name, message.position, strict=False))
        names = self.limits.joint_names
        if all(name in angles for name in names):
            self.joints = tuple(angles[name] for name in names)
            if self.limits.control_mode == "joint_delta":
                self.state_received_ns = time.monotonic_ns()

    def _on_distance(self, message: Range) -> None:
        self.distance = message.range, time.monotonic()

    def _on_chunk(self, message: ActionChunk) -> None:
        if not self.active:
            return
        chunk = messages.to_chunk(message)
        self.chunks.append(chunk)
        self.arrivals.append(time.monotonic())
        if not self.lockstep:
            self.phase.arrived()
        elif math.isfinite(chunk.dt_s):
            self.permit_ns = max(self.permit_ns, chunk.observation_stamp_ns + chunk.execute * chunk.dt_ns)
            self._tick_if_permitted()

    def _on_enable(self, message: Bool) -> None:
        self.enable = message.data, time.monotonic()

    def _on_estop(self, name: str, message: Bool) -> None:
        self.estops[name] = message.data, time.monotonic()

    def _on_robot_fault(self, message: String) -> None:
        self.robot_fault = message.data

    def _on_episode(self, event: EpisodeEvent) -> None:
        if event.kind in (EpisodeEvent.ENDED, EpisodeEvent.ABORTED):
            self.chunks.clear()
            self.requests["end_episode"] = True
            self.permit_ns = 0
        elif event.kind == EpisodeEvent.STARTED and self.teleports:
            self.requests["restart"] = True

    def _on_arm(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        reason = self._why_not_armed() if request.data else ""
        if self.state.mode is Mode.FAULT:
            reason = f"FAULT '{self.state.cause}' stands. Clear it with interlock/reset_fault first"
        response.success, response.message = not reason, f"cannot {'arm' if request.data else 'disarm'}: {reason}"
        if not reason:
            response.message = "arming" if request.data else "disarming"
            if request.data:
                self._note(Mode.ARMED)
            self._request(arm=request.data)
        return response

    def _why_not_armed(self) -> str:
        """What stands in the way of arming; empty if nothing."""
        if not self.active:
            return "the node is inactive (ros2 lifecycle set ... activate)"
        if self.requests.get("arm") is False:  # one tick must not swallow a disarming
            return "disarming is on its way. Ask again"
        standing = self._standing()
        if standing:
            return f"this stands: {', '.join(standing)}"
        known = measured(self.limits, Inputs(pose=self.pose, joints=self.joints, gripper=self._opening()))
        age_s = math.inf if known is None else 0.0 if self.lockstep else self._state_age_ns() / NS
        if age_s <= self.limits.stale_state:
            return ""
        topic = "joint_states" if self.limits.control_mode == "joint_delta" else "current_pose"
        got = "none"
        if known is not None:
            got = f"one {age_s:.1f} s old"
        elif self.pose or self.joints:
            got = "one that is not finite, or whose quaternion is not of length 1"
        return (f"expected a measured state on '{topic}' not older than {self.limits.stale_state} s, got {got}. "
                "Is the robot side running?")

    def _on_reset(self, request: ResetFault.Request, response: ResetFault.Response) -> ResetFault.Response:
        named = self.state.mode is Mode.FAULT and request.cause == self.state.cause
        standing_on = self._standing()
        if not enabled(self.limits, Inputs(**self._outside())):
            standing_on.append("the enable is not held")
        response.success = named and not standing_on
        if response.success:
            self._request(reset_fault=request.cause)
            response.message = "cleared; arm again to move"
        elif named:
            response.message = f"refused: its cause has not gone: {', '.join(standing_on)}"
        else:
            standing = f"FAULT '{self.state.cause}'" if self.state.mode is Mode.FAULT else "no fault"
            response.message = f"refused: {standing} stands, and the request named '{request.cause}'"
        return response

    def _request(self, **request: object) -> None:
        self.requests |= request
        self.forced = True
        if self.lockstep:
            self._tick_if_permitted()

    # When to tick
    def _tick_if_permitted(self) -> None:
        if self.active and self.pending and (self.forced or self.pose_stamp_ns < self.permit_ns):
            self._tick(self.pose_stamp_ns, 0)

    def _on_guard(self) -> None:
        """Lockstep: no permit for too long. Go on at the real rate while ACTIVE, else once a guard period."""
        waited_s = (time.monotonic_ns() - self.last_tick_ns) / NS
        running_on = self.state.mode is Mode.ACTIVE and self.counts["guarded"] > 0
        if self.pending and (waited_s > self.guard_s or (running_on and waited_s > self.limits.tick)):
            self.counts["guarded"] += 1
            self._tick(self.pose_stamp_ns, 0)

    def _on_timer(self) -> None:
        monotonic = time.monotonic_ns()
        self.late_ms.append((monotonic - self.last_tick_ns) / 1e6 - 1e3 * self.limits.tick)
        self._tick(monotonic + self.clock_offset_ns, self._state_age_ns())

    def _state_age_ns(self) -> int:
        return time.monotonic_ns() - self.state_received_ns

    def _tick(self, now_ns: int, pose_age_ns: int) -> None:
        if self.pose_stamp_ns < self.permit_ns:
            self.counts["guarded"] = 0
        inputs = Inputs(pose=self.pose, pose_age_ns=pose_age_ns, joints=self.joints, chunks=tuple(self.chunks),
                        **self._outside(), **self.requests)
        self.wrench_stamp_ns = self.pulled.stamps_ns.get("wrench", -1)
        arrivals, self.arrivals = self.arrivals, []
        self.chunks.clear()
        self.requests.clear()
        self.pending = self.forced = False
        self.last_tick_ns = time.monotonic_ns()
        before = self.state.mode, self.state.cause
        self.state, output, events = step(self.limits, self.state, inputs, now_ns)
        self._publish_target(output, now_ns)
        if arrivals:
            done = time.monotonic()
            self.reaction_ms += [1e3 * (done - arrival) for arrival in arrivals]
        for record in output.applied:
            self.applied.publish(messages.applied(record, self.limits.hash))
        self.counts["ticks"] += 1
        self._publish_events(events, output)
        if output.mode is Mode.DISARMED and before[0] is Mode.DISARMED and self.state.still:
            self._note(Mode.DISARMED)
        said = output.mode, output.cause, output.source
        if said != self.said or self.counts["ticks"] % 10 == 0:
            self._publish_safety(output, now_ns)

    def _outside(self) -> dict[str, object]:
        """What the people and the world around the arm say; ages by this machine's monotonic clock (S4)."""
        now = time.monotonic()
        self.pulled.pull()
        new = self.pulled.stamps_ns.get("wrench", -1) != self.wrench_stamp_ns
        return {"estops": tuple(EStop(name, pressed, now - at) for name, (pressed, at) in self.estops.items()),
                "enable": self.enable[0], "enable_age_s": now - self.enable[1], "robot_fault": self.robot_fault,
                "wrench": messages.norms(self.pulled.channels["wrench"]) if new else None,
                "gripper": self._opening(),
                "distance": None if self.distance is None else (self.distance[0], now - self.distance[1])}

    def _opening(self) -> float | None:
        state = self.pulled.channels.get("gripper/state")
        return None if state is None or not len(state) else float(state[0])

    def _standing(self) -> list[str]:
        return standing_faults(self.limits, Inputs(**self._outside()), self.state.contacts)

    # What goes out
    def _publish_target(self, output: Output, now_ns: int) -> None:
        if output.gripper is not None:  # first: a simulator in lockstep moves on as soon as it has a target
            self.openings.publish(Float64(data=output.gripper))
        if output.target is not None:
            messages.set_pose(self.answer.pose, output.target)
        elif output.joints:
            self.answer.position = list(output.joints)
        self.answered = output.target is not None or bool(output.joints)
        if self.answered:
            set_stamp(self.answer.header.stamp, now_ns)
            self.targets.publish(self.answer)

    def _publish_events(self, events: tuple[Event, ...], output: Output) -> None:
        """S20: every intervention, on a topic and in the recording."""
        for event in events:
            self.counts["holds" if event.cause.startswith("HOLD") else event.kind] += 1
            if event.kind in ("refused", "mode"):
                self.get_logger().info(f"{event.kind}: {event.cause}")
            self.events.publish(messages.safety_event(event, output, self.counts["ticks"], self.limits.hash))

    def _publish_safety(self, output: Output, now_ns: int) -> None:
        self.said = output.mode, output.cause, output.source
        self.safety.publish(messages.safety_state(output, self.counts, self.limits.hash, now_ns))

    def _publish_diagnostics(self) -> None:
        message = messages.diagnostics(f"{self.get_namespace().strip('/')}/interlock", self.state, self.counts,
                                       {"tick_late": self.late_ms, "reaction": self.reaction_ms}, self.limits.hash)
        message.header.stamp = self.get_clock().now().to_msg()
        self.diagnostics.publish(message)


def main() -> None:
    """Entry point."""
    run(lambda: Interlock().start(), priority=30, listens=False)


if __name__ == "__main__":
    main()
