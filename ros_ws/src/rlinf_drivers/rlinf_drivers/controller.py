"""Controller: translates the interlock's targets into the messages of a robot's own controller.

It sends one message for each message it receives and adds none. If the interlock falls silent, so
does this node, and the robot's controller stops by itself. A twist closes the loop from target to
measured pose outside the interlock, so the interlock's present speeds and accelerations bound it.
The twist ramps to zero while the interlock is ARMED or in HOLD, when nothing may move the arm. It
is zero at once while the interlock is disarmed, in fault or silent, or while the pose is stale, not
finite, in another frame than the target, or unreachable for an arm.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from operator import sub

import numpy as np
from geometry_msgs.msg import PoseStamped, TwistStamped
from rcl_interfaces.srv import GetParameters
from rclpy.duration import Duration
from rclpy.parameter import parameter_value_to_python
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.rotation import inverse, product, to_vector
from rlinf_core.interlock import load_with_loosest, with_values
from rlinf_core.interlock.coordinates import NOISE_M
from rlinf_ros.conversions import NS, pose_values, to_ns
from rlinf_ros.diagnostics import OK, WARN, Diagnostics, Health
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.parameters import finite
from rlinf_ros.qos import LAZY_PROFILE, received, subscription
from rlinf_ros.spinning import run
from rlinf_ros.station_node import ControlNode

MOVING_STATES = (SafetyState.ACTIVE,)
# in these states the target comes to the arm
ALIGNING_STATES = (SafetyState.ARMED, SafetyState.HOLD)
NO_MOTION: tuple[float, ...] = (0.0, 0.0, 0.0)
# largest interval of two messages, if three ticks are shorter; after a longer one, start from rest
MAX_INTERVAL_S = 0.1
CATCH_UP_FACTOR = 2.0  # factor on the limits' joint speed for a robot that was slowed down and lags
SAFETY_S = 0.5  # the interlock reports its state several times in this time
RETRY_S = 0.2  # interval of requests for the limits
MESSAGES = {
    "joint_trajectory": JointTrajectory,
    "forward_position": Float64MultiArray,
    "twist": TwistStamped,
}


class Controller(Managed, ControlNode):
    """One output topic; ``kind`` selects its message.

    While inactive, the node forwards no target, and the arm lags behind the interlock's set-point.
    After its activation the node waits until the interlock is disarmed, because the set-point is
    then at the arm.
    """

    def __init__(self) -> None:
        super().__init__("controller")
        self.kind = self.declare_parameter("kind", "").value
        if self.kind not in MESSAGES:
            raise RlinfError(
                f"controller: kind: expected one of {', '.join(MESSAGES)}, got '{self.kind}'"
            )
        self.horizon_s = self.declare_parameter("horizon_s", 0.05).value
        self.last_target = JointState()
        self.gain = self.declare_parameter("gain", 5.0).value
        self.output = self.create_publisher(
            MESSAGES[self.kind], self.declare_parameter("topic", "").value, 10
        )
        self.target_count = self.reported_count = 0
        # whether the set-point has been at the arm since the node last forwarded nothing
        self.aligned = self._autostart
        self.frame = ""
        self.received_at = -math.inf
        self.diagnostics = Diagnostics(self, self._health)
        limits_file = self.declare_parameter("limits_file", "").value
        self.limits, self.loosest = load_with_loosest(limits_file)
        self.max_interval_s = max(MAX_INTERVAL_S, 3.0 * self.limits.tick)
        self.pose = PoseStamped()
        self.pose_at = -math.inf
        self.state = SafetyState.DISARMED
        self.state_at = -math.inf
        self.sent_at = -math.inf
        self.linear, self.angular = NO_MOTION, NO_MOTION  # last sent values
        if self.kind == "twist":
            subscription(
                self, "current_pose", self._on_pose, quality=received("current_pose", False)
            )
            subscription(self, "safety", self._on_safety)
            subscription(self, "target_pose", self._on_target_pose)
            self.parameters_client = self.create_client(GetParameters, "interlock/get_parameters")
            self.limits_hash, self.requested_at = self.limits.hash, -math.inf
            # the interlock's limits, and whether they equal those here
            self.interlock_hash = ""
            self.limits_agree = True
        else:
            # the previous message: start, end and duration of its motion
            self.segment: tuple[list[float], list[float], float] = (
                [],
                [],
                0.0,
            )
            self.speed = 1.0
            subscription(self, "target_joints", self._on_joints)
            subscription(self, "safety", self._on_state)
            if slowed_by := self.declare_parameter("slowed_by", "").value:
                self.create_subscription(Float64, slowed_by, self._on_scaling, LAZY_PROFILE)

    def deactivate(self) -> None:
        """Stop a twist at once.

        With positions, the robot's controller reaches the last one in ``horizon_s``.
        """
        self.aligned = False
        if self.kind == "twist":
            self.linear, self.angular = NO_MOTION, NO_MOTION
            stop = TwistStamped()
            stop.header.stamp = self.get_clock().now().to_msg()
            stop.header.frame_id = self.frame
            self.output.publish(stop)

    def _on_state(self, safety: SafetyState) -> None:
        self.aligned = self.aligned or (self.active and safety.state == SafetyState.DISARMED)

    def _may_forward(self) -> bool:
        return self.active and self.aligned

    def _health(self) -> Health:
        """Report the rate and age of targets, and whether the robot's controller listens."""
        new = self.target_count - self.reported_count
        self.reported_count = self.target_count
        age_s = time.monotonic() - self.received_at
        values = {
            "targets_hz": new,
            "target_age_s": round(age_s, 3) if math.isfinite(age_s) else "never",
            "listeners": self.output.get_subscription_count(),
            "topic": self.output.topic_name,
        }
        if not self.output.get_subscription_count():
            return Health(
                WARN,
                f"no subscriber of {self.output.topic_name}. Is the robot's controller active?",
                values,
            )
        if not self.aligned:
            return Health(
                WARN,
                "forwards no target until the interlock was disarmed. Disarm, then arm",
                values,
            )
        return Health(
            OK,
            "forwards the interlock's targets" if new else "waits for a target of the interlock",
            values,
        )

    def _count_target(self) -> None:
        self.target_count += 1
        self.received_at = time.monotonic()

    def _on_joints(self, target: JointState) -> None:
        self._count_target()
        if not self._may_forward():
            return
        if self.kind == "forward_position":
            self.output.publish(Float64MultiArray(data=target.position))
            return
        since_s = (to_ns(target.header.stamp) - to_ns(self.last_target.header.stamp)) / NS
        end = list(target.position)
        has_segment = (
            self.last_target.name == target.name
            and len(self.segment[0]) == len(end)
            and all(map(math.isfinite, self.segment[1]))
        )
        start = end
        if has_segment and since_s > 0.0:
            start = segment_position(*self.segment, since_s * self.speed)
        # after a longer gap, the robot's controller starts at the measured arm
        continues = has_segment and 0.0 < since_s <= max(self.horizon_s, 3.0 * self.limits.tick)
        distance = max(map(abs, map(sub, end, start)), default=0.0)
        takes_s = max(
            since_s if continues else self.horizon_s,
            distance / (CATCH_UP_FACTOR * self.limits.joint_speed),
        )
        self.last_target = target
        self.segment = (start, end, takes_s)
        self.output.publish(trajectory(start if continues else [], target, takes_s))

    def _on_scaling(self, percent: Float64) -> None:
        """Store the part of its speed at which the robot's controller plays."""
        if math.isfinite(percent.data):
            self.speed = min(1.0, max(0.0, percent.data / 100.0))

    def _on_pose(self, pose: PoseStamped) -> None:
        """Store a pose, unless no arm could have reached it since the last one (S21).

        If such poses continue, the stored one becomes stale.
        """
        now = time.monotonic()
        since_s = now - self.pose_at
        if since_s > self.limits.stale_state or within_reach(
            self.pose, pose, self.limits.measured_speed * since_s
        ):
            self.pose, self.pose_at = pose, now

    def _on_safety(self, safety: SafetyState) -> None:
        """Stop the twist if the interlock is not armed.

        There need be no target then, and the robot would follow its last one.
        """
        self._on_state(safety)
        self.state = safety.state
        self.state_at = time.monotonic()
        self.interlock_hash = safety.limits_hash
        self.limits_agree = safety.limits_hash in ("", self.limits_hash)
        if (
            not self.limits_agree
            and self.state_at - self.requested_at > RETRY_S
            and self.parameters_client.service_is_ready()
        ):
            self.requested_at = self.state_at
            names = [name for name, value in asdict(self.limits).items() if value != ()]
            request = self.parameters_client.call_async(
                GetParameters.Request(names=[f"limits.{name}" for name in names])
            )
            request.add_done_callback(lambda future: self._on_limits(names, future))
        if self.active and safety.state not in (*MOVING_STATES, *ALIGNING_STATES):
            self.linear, self.angular = NO_MOTION, NO_MOTION
            self.output.publish(TwistStamped(header=safety.header))

    def _on_limits(self, names: list[str], future: Future) -> None:
        """Take the interlock's present limits, which were tightened or loosened again."""
        try:
            values = dict(
                zip(names, map(parameter_value_to_python, future.result().values), strict=True)
            )
            # whatever node answered
            self.limits = with_values(
                self.limits,
                {
                    name: finite(value)
                    for name, value in values.items()
                    if value != getattr(self.limits, name)
                },
                loosest_allowed=self.loosest,
            )
        except (RlinfError, ValueError) as error:
            self.get_logger().error(
                f"no motion: the interlock's limits cannot be read: {error}", once=True
            )
            return
        self.limits_hash = self.limits.hash
        if self.limits_hash != self.interlock_hash:  # they may have been changed meanwhile
            self.get_logger().warning(
                f"no motion: the interlock's limits are {self.interlock_hash}, but its parameters "
                f"have {self.limits_hash}",
                throttle_duration_sec=5.0,
                skip_first=True,
            )

    def _is_expected(self, target: PoseStamped) -> bool:
        """Return whether interlock and arm report, and the arm may move or must stop."""
        now = time.monotonic()
        if now - self.pose_at > self.limits.stale_state or now - self.state_at > SAFETY_S:
            return False
        if self.state not in (*MOVING_STATES, *ALIGNING_STATES):
            return False
        if self.pose.header.frame_id != target.header.frame_id:
            return False
        values = pose_values(self.pose.pose)
        return all(map(math.isfinite, values)) and abs(math.hypot(*values[3:]) - 1.0) < 0.01

    def _on_target_pose(self, target: PoseStamped) -> None:
        self._count_target()
        self.frame = target.header.frame_id
        if not self._may_forward():
            return
        now, limits = time.monotonic(), self.limits
        since_s = now - self.sent_at
        self.sent_at = now
        if since_s > self.max_interval_s:  # the robot may have stopped meanwhile
            since_s = self.max_interval_s
            self.linear = NO_MOTION
            self.angular = NO_MOTION
        if self._is_expected(target):
            linear, angular = (
                twist_towards(self.pose, target, self.gain)
                if self.limits_agree and self.state in MOVING_STATES
                else (NO_MOTION, NO_MOTION)
            )
            self.linear = step_towards(
                self.linear, limited(limits.speed, linear), limits.acceleration * since_s
            )
            self.angular = step_towards(
                self.angular,
                limited(limits.rotation_speed, angular),
                limits.rotation_acceleration * since_s,
            )
        else:
            self.linear, self.angular = NO_MOTION, NO_MOTION
        twist = TwistStamped(header=target.header)
        for part, values in (
            (twist.twist.linear, self.linear),
            (twist.twist.angular, self.angular),
        ):
            part.x, part.y, part.z = values
        self.output.publish(twist)


def trajectory(start: list[float], target: JointState, takes_s: float) -> JointTrajectory:
    """Return a trajectory from ``start``, or from the arm if that is empty.

    Its stamp is 0, so it starts now. By default, ros2_control's controller starts each message at
    the measured arm, unless the message contains its start. The arm lags: its target would fall
    back there a hundred times a second, and hardly advance.
    """
    points = [JointTrajectoryPoint(positions=start)] if start else []
    duration = Duration(seconds=takes_s).to_msg()
    return JointTrajectory(
        joint_names=target.name,
        points=[*points, JointTrajectoryPoint(positions=target.position, time_from_start=duration)],
    )


def segment_position(
    start: list[float], end: list[float], takes_s: float, seconds: float
) -> list[float]:
    """Return the position of the robot's controller on its last trajectory after ``seconds``.

    A slowed controller is less far along, and starting the next trajectory further on would be a
    jump.
    """
    fraction = min(1.0, seconds / takes_s) if takes_s else 1.0
    return [a + fraction * (b - a) for a, b in zip(start, end, strict=True)]


def twist_towards(
    pose: PoseStamped, target: PoseStamped, gain: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return linear and angular velocity (3,) each in the base frame [m/s, rad/s].

    They are proportional to the remaining error.
    """
    p = pose.pose.position
    q = pose.pose.orientation
    a = target.pose.position
    b = target.pose.orientation
    delta = np.array([a.x - p.x, a.y - p.y, a.z - p.z])
    turn = np.array(to_vector(product((b.x, b.y, b.z, b.w), inverse((q.x, q.y, q.z, q.w)))))
    return tuple((gain * delta).tolist()), tuple((gain * turn).tolist())


def within_reach(before: PoseStamped, now: PoseStamped, distance_m: float) -> bool:
    """Return whether two poses are at most ``distance_m`` apart, plus measurement noise."""
    a, b = before.pose.position, now.pose.position
    return math.dist((a.x, a.y, a.z), (b.x, b.y, b.z)) <= distance_m + NOISE_M


def step_towards(
    velocity: tuple[float, ...], target: tuple[float, ...], max_change: float
) -> tuple[float, ...]:
    """Return ``velocity``, changed towards ``target`` by at most ``max_change``."""
    change = limited(max_change, tuple(w - v for v, w in zip(velocity, target, strict=True)))
    return tuple(v + c for v, c in zip(velocity, change, strict=True))


def limited(bound: float, velocity: tuple[float, ...]) -> tuple[float, ...]:
    """Return the velocity, scaled down to at most ``bound``."""
    speed = math.hypot(*velocity)
    return (
        velocity if speed <= bound else tuple(component * bound / speed for component in velocity)
    )


def main() -> None:
    """Entry point."""
    run(Controller, priority=20, listens=False)


if __name__ == "__main__":
    main()
