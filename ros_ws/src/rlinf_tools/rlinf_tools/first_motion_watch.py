"""The messages of one arm for `rlinf first-motion`, and the speed limits that it sets.

The messages are those of the interlock, the arm's pose and the people.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import rclpy
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.qos import QoSProfile
from rlinf_msgs.msg import ActionChunk, SafetyState
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock import Mode, load_limits
from rlinf_core.recipes import Recipe, station_robot, station_task
from rlinf_ros.arms import arm_topic, subscribe_safety
from rlinf_ros.conversions import angles_of
from rlinf_ros.qos import AT_ONCE, LAZY_PROFILE, lazy_profile, lossless_profile, subscription
from rlinf_ros.spinning import prioritise
from rlinf_ros.station_state import command_node, silence_message

MEET_S = 8.0
SPEEDS = ("speed", "rotation_speed", "joint_speed")
REST_M, REST_S = 0.0005, 0.3
# after this time no older message of an interlock is in flight: it publishes ten times a second
DELIVERY_S = 0.3
PRIORITY = 5  # above programs that compute, which would delay its measurements; below control
StampedValues = tuple[float, tuple[float, ...]]  # time and position


class Watcher:
    """Subscribes to one arm's interlock, its pose, and the commands and stops of people."""

    def __init__(self, recipe: Recipe, arm: str) -> None:
        self.robot = station_robot(recipe)
        if arm not in self.robot.limits_by_arm:
            arms = ", ".join(filter(None, self.robot.limits_by_arm)) or "none"
            raise RlinfError(f"--arm: expected {arms}, got '{arm}'")
        self.arm = arm
        self.limits = load_limits(self.robot.limits_by_arm[arm])
        self.period_s = 1.0 / station_task(recipe).spec.control_hz
        self.states: list[tuple[float, SafetyState]] = []
        self.poses = list[StampedValues]()
        self.joints = list[StampedValues]()
        self.targets = list[StampedValues]()
        self.started_at = 0.0  # start of the present step of the drill
        # people's acts, and the time of the latest message of each
        self.event_times: dict[str, float] = {}
        self.node = command_node(recipe.station.name)
        self._subscribe(arm_topic(arm, "safety"), self._on_safety, lossless_profile("safety"))
        self._subscribe(
            arm_topic(arm, "current_pose"), partial(self._on_pose, self.poses), LAZY_PROFILE
        )
        self.by_joints = self.limits.control_mode == "joint_delta"
        self.measured = self.joints if self.by_joints else self.poses  # the commanded quantity
        if self.by_joints:
            for name, into in (("joint_states", self.joints), ("target_joints", self.targets)):
                self._subscribe(
                    arm_topic(arm, name), partial(self._on_joints, into), lazy_profile(AT_ONCE)
                )
        else:
            self._subscribe(
                arm_topic(arm, "target_pose"), partial(self._on_pose, self.targets), LAZY_PROFILE
            )
        self._subscribe("teleop/action", self._on_command)
        self._subscribe(arm_topic(arm, "robot/fault"), self._on_fault)
        for name in self.robot.estops:
            self._subscribe(f"estop/{name}", partial(self._on_estop, name))
        self.safety_by_arm = subscribe_safety(
            self.node, [name for name in self.robot.limits_by_arm if name], lambda _: None
        )
        self.lowered = False  # whether an interlock has the low speeds of this check
        self.slowed: dict[str, str] = {}  # hash of each arm's lowered limits
        self.setting, self.getting = (
            {
                name: self.node.create_client(
                    service, arm_topic(name, f"interlock/{verb}_parameters")
                )
                for name in self.robot.limits_by_arm
            }
            for service, verb in ((SetParameters, "set"), (GetParameters, "get"))
        )
        prioritise(PRIORITY)

    def _subscribe(
        self, topic: str, callback: Callable[[Any], None], quality: QoSProfile | None = None
    ) -> None:
        """Subscribe to a topic by the robot's own name for it."""
        subscription(
            self.node, topic, callback, quality=quality, at=self.robot.topics.get(topic, topic)
        )

    def _on_safety(self, message: SafetyState) -> None:
        self.states.append((time.monotonic(), message))

    def _on_pose(self, into: list[Any], message: PoseStamped) -> None:
        p = message.pose.position
        into.append((time.monotonic(), (p.x, p.y, p.z)))

    def _on_joints(self, into: list[Any], message: JointState) -> None:
        angles = angles_of(message, self.limits.joint_names)
        if angles is not None:
            into.append((time.monotonic(), angles))

    def _on_fault(self, fault: String) -> None:
        if fault.data:
            self.event_times.setdefault(f"robot:{fault.data}", time.monotonic())

    def _on_command(self, chunk: ActionChunk) -> None:
        if chunk.data:  # no data: a release
            self.event_times["command"] = time.monotonic()

    def _on_estop(self, name: str, pressed: Bool) -> None:
        if pressed.data:
            self.event_times.setdefault(f"estop:{name}", time.monotonic())
        else:
            self.event_times.pop(f"estop:{name}", None)

    def spin(self, is_done: Callable[[], Any], seconds: float, condition_name: str) -> None:
        """Spin until ``is_done()`` is true.

        Raises:
            RlinfError: it is not within ``seconds``.
        """
        end = time.monotonic() + seconds
        while not is_done():
            rclpy.spin_once(self.node, timeout_sec=0.02)
            self._still_slow()
            if time.monotonic() > end:
                raise RlinfError(
                    f"waited {seconds:g} s for {condition_name}; the interlock is {self.words}"
                )

    @property
    def words(self) -> str:
        state = self.states[-1][1]
        return f"{Mode(state.state).name} {state.cause}".strip()

    @property
    def rests(self) -> bool:
        """Whether the arm has rested for REST_S."""
        lately = [at for _, at in self.since(self.poses, time.monotonic() - REST_S)]
        return len(lately) > 2 and max(math.dist(lately[0], at) for at in lately) < REST_M

    def meet(self) -> None:
        """Wait until the interlock and the arm are heard, and check that it is disarmed."""
        try:
            self.spin(
                lambda: (
                    self.states
                    and self.poses
                    and self.measured
                    and all(
                        client.service_is_ready()
                        for client in (*self.setting.values(), *self.getting.values())
                    )
                ),
                MEET_S,
                "it",
            )
        except (RlinfError, IndexError):
            source = "pose of the arm" if self.states else "interlock"
            raise RlinfError(silence_message(self.node, source, MEET_S)) from None
        if self.states[-1][1].state != SafetyState.DISARMED:
            raise RlinfError(
                f"expected the interlock DISARMED before the first motion, got {self.words}. Run: "
                "rlinf disarm"
            )

    def speeds(self) -> dict[str, dict[str, float]]:
        """Return the present speed limits of each arm's interlock.

        They may differ from those of the file.
        """
        speeds = dict[str, dict[str, float]]()
        for arm, client in self.getting.items():
            future = client.call_async(
                GetParameters.Request(names=[f"limits.{name}" for name in SPEEDS])
            )
            self.spin(future.done, 10.0, "the interlock's answer")
            values = {
                name: value.double_value
                for name, value in zip(SPEEDS, future.result().values, strict=True)
            }
            speeds[arm] = {
                name: value
                for name, value in values.items()
                if value > 0.0 and math.isfinite(value)
            }
        return speeds

    def set_speeds(self, speeds_by_arm: dict[str, dict[str, float]]) -> None:
        """Set the speed limits of every arm.

        Every arm, because a person's device may move another arm than expected.

        Raises:
            RlinfError: an interlock refuses.
        """
        done = list[str]()
        for arm, speeds in speeds_by_arm.items():
            parameters = [
                Parameter(name=f"limits.{name}", value=ParameterValue(type=3, double_value=value))
                for name, value in speeds.items()
            ]
            future = self.setting[arm].call_async(SetParameters.Request(parameters=parameters))
            self.spin(future.done, 10.0, "the interlock's answer")
            if refused := [
                result.reason for result in future.result().results if not result.successful
            ]:
                remark = (
                    f". Those of {', '.join(done)} now have other speeds. Restart them"
                    if done
                    else ""
                )
                raise RlinfError(
                    f"the interlock{arm and f' of {arm}'} refuses other speeds: "
                    f"{refused[0]}{remark}"
                )
            done.append(arm)

    def slow_down(self, factor: float) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Lower every arm's speeds to at most ``factor`` times its limits.

        From then on ``spin`` raises an RlinfError once they no longer hold.

        Returns:
            The earlier speeds of each arm, and the present ones of this arm. Lower speeds stay.
        """
        before = self.speeds()
        slow = {
            arm: {
                name: min(value, factor * getattr(load_limits(self.robot.limits_by_arm[arm]), name))
                for name, value in speeds.items()
            }
            for arm, speeds in before.items()
        }
        self.lowered = True
        self.set_speeds(slow)
        deadline = time.monotonic() + DELIVERY_S
        self.spin(lambda: time.monotonic() > deadline, MEET_S, "earlier messages")
        self.safety_by_arm.clear()
        self.spin(
            lambda: self.safety_by_arm.keys() == before.keys(), MEET_S, "every interlock's state"
        )
        self.slowed = {arm: state.limits_hash for arm, state in self.safety_by_arm.items()}
        return before, slow[self.arm]

    def speed_up(self, before: dict[str, dict[str, float]]) -> None:
        """Restore the speed limits."""
        self.slowed = {}
        self.set_speeds(before)
        self.lowered = False

    def _still_slow(self) -> None:
        for arm, limits in self.slowed.items():
            if self.safety_by_arm[arm].limits_hash != limits:
                self.slowed = {}
                self.lowered = False
                raise RlinfError(
                    f"the interlock{arm and f' of {arm}'} was restarted, or its limits were "
                    "changed. Its speeds are no longer a tenth. Disarm (q) and start over"
                )

    def since(self, where: list[Any], after: float) -> list[Any]:
        """Return the messages since then."""
        return where[bisect_left(where, after, key=itemgetter(0)) :]

    def first(self, after: float, holds: Callable[[SafetyState], bool]) -> float:
        """Return the time of the interlock's first such state; infinity if it had none."""
        return next((at for at, state in self.since(self.states, after) if holds(state)), math.inf)


def disarmed(state: SafetyState) -> bool:
    """Return whether the interlock is disarmed."""
    return bool(state.state == SafetyState.DISARMED)


def latched(cause: str, state: SafetyState) -> bool:
    """Return whether the interlock has latched a fault whose cause begins so."""
    return bool(state.state == SafetyState.FAULT and state.cause.startswith(cause))
