"""Interlock node: the only publisher of commands. Feeds the pure core one tick at a time and publishes what it says.

Not a functional-safety certified device: the robot's own safety controller and a hardware e-stop stay in charge.
This process imports no torch, no ray and no network library, and spins one single-threaded executor.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import ActionChunk, Applied, EpisodeEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf.latest import Latest
from rlinf.phase import PhaseLockedTimer
from rlinf.qos import newest, profile
from rlinf.spinning import ControlNode, run
from rlinf.stamps import NS, set_stamp, to_ns, to_stamp
from rlinf_core.durable import publish_file
from rlinf_core.interlock import Chunk, EStop, Inputs, Mode, Output, State, load_limits, standing_faults, step


class Interlock(ControlNode):
    """Ticks at a fixed rate in real time, or once per measured pose in lockstep (docs/design.md, Time and lockstep)."""

    def __init__(self) -> None:
        super().__init__("interlock")
        self.limits = load_limits(self.declare_parameter("limits_file", "").value)
        self.lockstep = self.declare_parameter("lockstep", False).value
        self.guard_s = self.declare_parameter("lockstep_guard_s", 1.0).value
        self.memory = self.declare_parameter("memory_file", "").value
        self.state, self.counts, self.noted = self._remember(), Counter(), ""
        self.pose: tuple[float, ...] | None = None
        self.pose_stamp_ns = self.pose_received_ns = 0
        self.chunks: list[Chunk] = []
        self.estops = {name: (False, -math.inf) for name in self.declare_parameter("estops", [""]).value if name}
        self.enable, self.robot_fault, self.wrench_stamp_ns = (False, -math.inf), "", -1
        self.requests: dict[str, object] = {}
        self.permit_ns = 0
        self.pending = self.forced = False
        self.clock_offset_ns = self.get_clock().now().nanoseconds - time.monotonic_ns()
        self.last_tick_ns, self.late_ms = time.monotonic_ns(), deque(maxlen=1000)
        self._make_interfaces()

    def _make_interfaces(self) -> None:
        self.target = PoseStamped()
        self.target.header.frame_id = "base_link"
        self.targets = self.create_publisher(PoseStamped, "target_pose", profile("target_pose"))
        self.applied = self.create_publisher(Applied, "applied", profile("applied"))
        self.safety = self.create_publisher(SafetyState, "safety", profile("safety"))
        self.diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.create_subscription(PoseStamped, "current_pose", self._on_pose, newest(self.lockstep))
        felt = (self.limits.contact_force, self.limits.contact_torque, self.limits.contact_fault)
        self.wrench = Latest(self, {"wrench"} if min(felt) < math.inf else set(), self.lockstep)
        self.create_subscription(Bool, "enable", self._on_enable, profile("enable"))
        self.create_subscription(String, "robot/fault", self._on_robot_fault, profile("robot/fault"))
        for name in self.estops:
            self.create_subscription(Bool, f"estop/{name}", partial(self._on_estop, name), profile("estop/"))
        for topic in ("policy/action", "teleop/action"):
            self.create_subscription(ActionChunk, topic, self._on_chunk, profile(topic))
        self.create_subscription(EpisodeEvent, "episode", self._on_episode, profile("episode"))
        self.create_service(SetBool, "interlock/arm", self._on_arm)
        self.create_service(ResetFault, "interlock/reset_fault", self._on_reset)
        if self.lockstep:
            self.create_timer(self.limits.tick, self._on_guard)
        else:
            self.timer = PhaseLockedTimer(self, self.limits.tick, self._on_timer, hurry=0.01, early=0.15)
        self.create_timer(1.0, self._publish_diagnostics)
        self._publish_safety(Output(None, self.state.mode, "", self.state.cause), self.get_clock().now().nanoseconds)

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
        p, q = message.pose.position, message.pose.orientation
        self.pose = (p.x, p.y, p.z, q.x, q.y, q.z, q.w)
        self.pose_stamp_ns, self.pose_received_ns = to_ns(message.header.stamp), time.monotonic_ns()
        self.pending = True
        if self.lockstep:
            self._tick_if_permitted()

    def _on_chunk(self, message: ActionChunk) -> None:
        chunk = _chunk(message)
        self.chunks.append(chunk)
        if not self.lockstep:
            self.timer.arrived()
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

    def _on_arm(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        age_s = math.inf if self.pose is None else 0.0 if self.lockstep else self._pose_age_ns() / NS
        standing = self._standing() if request.data else []
        may = not standing and (age_s <= self.limits.stale_state or not request.data)
        response.success = self.state.mode is not Mode.FAULT and may
        if response.success:
            if request.data:
                self._note(Mode.ARMED)
            self._request(arm=request.data)
            response.message = "arming" if request.data else "disarming"
        elif self.state.mode is not Mode.FAULT and standing:
            response.message = f"cannot arm while this stands: {', '.join(standing)}"
        elif self.state.mode is not Mode.FAULT:
            got = "none" if self.pose is None else f"one {age_s:.1f} s old"
            response.message = (f"cannot arm: expected a measured pose on 'current_pose' not older than "
                                f"{self.limits.stale_state} s, got {got}. Is the robot side running?")
        else:
            response.message = f"cannot arm: FAULT '{self.state.cause}' stands. Clear it with interlock/reset_fault first"
        return response

    def _on_reset(self, request: ResetFault.Request, response: ResetFault.Response) -> ResetFault.Response:
        named = self.state.mode is Mode.FAULT and request.cause == self.state.cause
        standing_on = self._standing()
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
        if self.pending and (self.forced or self.pose_stamp_ns < self.permit_ns):
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
        self._tick(monotonic + self.clock_offset_ns, self._pose_age_ns())

    def _pose_age_ns(self) -> int:
        return time.monotonic_ns() - self.pose_received_ns

    def _tick(self, now_ns: int, pose_age_ns: int) -> None:
        if self.pose_stamp_ns < self.permit_ns:
            self.counts["guarded"] = 0
        inputs = Inputs(pose=self.pose, pose_age_ns=pose_age_ns, chunks=tuple(self.chunks), **self._outside(),
                        **self.requests)
        self.wrench_stamp_ns = self.wrench.stamps_ns.get("wrench", -1)
        self.chunks.clear()
        self.requests.clear()
        self.pending = self.forced = False
        self.last_tick_ns = time.monotonic_ns()
        before = self.state.mode, self.state.cause
        self.state, output, events = step(self.limits, self.state, inputs, now_ns)
        if output.target is not None:
            self._publish_target(output.target, now_ns)
        self._publish_applied(output)
        self._count(events)
        self.counts["ticks"] += 1
        if output.mode is Mode.DISARMED and before[0] is Mode.DISARMED and not any(self.state.velocity):
            self._note(Mode.DISARMED)
        if (output.mode, output.cause) != before or self.counts["ticks"] % 10 == 0:
            self._publish_safety(output, now_ns)

    def _outside(self) -> dict[str, object]:
        """What the people and the world around the arm say; ages by this machine's monotonic clock (S4)."""
        now = time.monotonic()
        self.wrench.pull()
        new = self.wrench.stamps_ns.get("wrench", -1) != self.wrench_stamp_ns
        return {"estops": tuple(EStop(name, pressed, now - at) for name, (pressed, at) in self.estops.items()),
                "enable": self.enable[0], "enable_age_s": now - self.enable[1], "robot_fault": self.robot_fault,
                "wrench": _norms(self.wrench.channels["wrench"]) if new else None}

    def _standing(self) -> list[str]:
        return standing_faults(self.limits, Inputs(**self._outside()), self.state.contacts)

    # What goes out
    def _publish_target(self, pose: tuple[float, ...], now_ns: int) -> None:
        set_stamp(self.target.header.stamp, now_ns)
        p, q = self.target.pose.position, self.target.pose.orientation
        p.x, p.y, p.z, q.x, q.y, q.z, q.w = pose
        self.targets.publish(self.target)

    def _publish_applied(self, output: Output) -> None:
        for record in output.applied:
            message = Applied(
                source=record.source, session=record.session, seq=record.seq, index=record.index,
                policy_version=record.policy_version, observation_stamp=to_stamp(record.observation_stamp_ns),
                requested=list(record.requested), executed=list(record.executed), limits=list(record.limits),
                limits_hash=self.limits.hash)
            set_stamp(message.header.stamp, record.start_ns)
            self.applied.publish(message)

    def _count(self, events: tuple) -> None:
        for event in events:
            self.counts["holds" if event.cause.startswith("HOLD") else event.kind] += 1
            if event.kind in ("refused", "mode"):
                self.get_logger().info(f"{event.kind}: {event.cause}")

    def _publish_safety(self, output: Output, now_ns: int) -> None:
        message = SafetyState(state=int(output.mode), source=output.source, cause=output.cause,
                              limits_hash=self.limits.hash, ticks=self.counts["ticks"], holds=self.counts["holds"],
                              refused=self.counts["refused"], dropped=self.counts["dropped"],
                              limited=self.counts["limited"])
        set_stamp(message.header.stamp, now_ns)
        self.safety.publish(message)

    def _publish_diagnostics(self) -> None:
        late = sorted(self.late_ms)
        values = dict(self.counts)
        if late:
            values |= {"tick_late_p50_ms": late[len(late) // 2], "tick_late_p99_ms": late[int(0.99 * len(late))]}
        level = {Mode.FAULT: DiagnosticStatus.ERROR, Mode.HOLD: DiagnosticStatus.WARN}
        status = DiagnosticStatus(name=f"{self.get_namespace().strip('/')}/interlock", hardware_id=self.limits.hash,
                                  level=level.get(self.state.mode, DiagnosticStatus.OK),
                                  message=f"{self.state.mode.name} {self.state.cause}".strip(),
                                  values=[KeyValue(key=key, value=str(value)) for key, value in values.items()])
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.get_clock().now().to_msg()
        self.diagnostics.publish(array)


def _norms(wrench: Sequence[float]) -> tuple[float, float]:
    return math.hypot(*wrench[:3]), math.hypot(*wrench[3:6])


def _chunk(message: ActionChunk) -> Chunk:
    """The message as the core's type; a size that does not fit becomes an empty plan, which the core refuses."""
    data, dim = message.data.tolist(), message.dim
    fits = dim > 0 and len(data) == dim * message.horizon
    actions = tuple(tuple(data[i:i + dim]) for i in range(0, len(data), dim)) if fits else ()
    return Chunk(message.source, message.session, message.seq, message.policy_version,
                 to_ns(message.observation_stamp), message.dt, message.control_mode, actions, message.execute)


def main() -> None:
    """Entry point."""
    run(Interlock, priority=30)


if __name__ == "__main__":
    main()
