"""Franka: translates franka_ros2's messages into the robot interface (docs/robots/franka.md).

It commands no motion of the arm. It clears the robot's own errors only as a part of a reset that a
person requested from the interlock (S17). ``Hand`` is the Franka hand, by franka_gripper's actions
and joint states.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from controller_manager_msgs.srv import SetHardwareComponentState, SwitchController
from franka_msgs.action import ErrorRecovery, Grasp, Move
from franka_msgs.msg import Errors, FrankaRobotState, GraspEpsilon
from geometry_msgs.msg import PoseStamped, WrenchStamped
from lifecycle_msgs.msg import State
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from rlinf_core.core.rotation import product, rotate
from rlinf_core.robots.drivers.franka import Driver
from rlinf_drivers.arm_driver import BACK_S, RECOVERING, STEP_S, ArmDriver, Steps, newest
from rlinf_drivers.partial_reader import PartialReader
from rlinf_ros.action_clients import GRIPPER_JOINTS, NEAR_M, GripperActionClient
from rlinf_ros.conversions import NS, to_ns
from rlinf_ros.diagnostics import ERROR, OK, Diagnostics, Health, is_active
from rlinf_ros.qos import publisher
from rlinf_ros.scene import sleep
from rlinf_ros.spinning import run

WIDEST_M = 0.08
RETRY_S = 1.0  # between two tries
ANY = GraspEpsilon(inner=WIDEST_M, outer=WIDEST_M)  # an object of any width is held


class Hand(GripperActionClient):
    """``gripper/command`` as Move to open and Grasp to close; joint_states to ``gripper/state``.

    Fingers that fail to open, as those of a hand without homing, are commanded again until that is
    a fault. After the fault, a person may be at the fingers: they get no command before a reset. An
    empty grasp is a result.
    """

    def __init__(self, node: Node, prefix: str, settings: Driver) -> None:
        super().__init__(node, WIDEST_M, settings.hand_timeout_s)
        self.node, self.settings = node, settings
        self.failure = ""
        self.retried_at = 0.0
        self.actions = {
            "move": ActionClient(node, Move, f"{prefix}franka_gripper/move"),
            "grasp": ActionClient(node, Grasp, f"{prefix}franka_gripper/grasp"),
        }
        self.stopping = node.create_client(Trigger, f"{prefix}franka_gripper/stop")
        self.widths = publisher(node, "gripper/state")
        node.create_subscription(
            JointState, f"{prefix}franka_gripper/joint_states", self._on_state, 1
        )

    def _on_state(self, state: JointState) -> None:
        self.width = float(sum(state.position[:2]))  # each finger's distance from the middle
        if is_active(self.node):
            self.widths.publish(
                JointState(header=state.header, name=GRIPPER_JOINTS, position=[self.width])
            )

    def verb(self, width: float) -> str:
        return "move" if width >= (self.width or 0.0) else "grasp"

    def goal(self, verb: str, width: float) -> tuple[ActionClient, Any]:
        speed = self.settings.hand_speed
        goal = (
            Move.Goal(width=width, speed=speed)
            if verb == "move"
            else Grasp.Goal(width=width, speed=speed, force=self.settings.hand_force, epsilon=ANY)
        )
        return self.actions[verb], goal

    def outcome(self, result: Any) -> str:
        return "done" if result.success else f"failed: {result.error or 'no reason'}"

    def update(self) -> None:
        may_retry = self.failure and not self.fault
        if may_retry and self.target is not None and time.monotonic() - self.retried_at > RETRY_S:
            self._retry(self.target)
        super().update()
        if self.failure and self.fault:
            self.fault = f"gripper ({self.command_text()} {self.failure})"

    def _retry(self, width: float) -> None:
        """Command a width again; for the same command, the timeout counts from its first try."""
        before, pending_since, failure = self.command, self.pending_since, self.failure
        self.start_command(width)
        if self.command == before:
            self.pending_since = pending_since
            self.failure = failure
            self.retried_at = time.monotonic()

    def start_command(self, width: float) -> None:
        self.failure = ""
        super().start_command(width)

    def finish_command(self, number: int, outcome: str) -> None:
        """Record the answer; a failed opening remains pending, unless the fingers are open."""
        if number == self.number:
            if (
                outcome != "done"
                and self.command
                and self.command[0] == "move"
                and abs((self.width or 0.0) - self.command[1]) > NEAR_M
            ):
                self.failure = outcome
                self.last_result = f"{self.command_text()}: {outcome}"
                return
            self.failure = ""
        super().finish_command(number, outcome)

    def forget(self, reason: str) -> None:
        self.failure = ""
        super().forget(reason)

    def stop(self) -> Future:
        """Stop the hand as part of a reset; the running action's result starts no command."""
        self.number = self.number + 1
        self.failure = ""
        self.target = None
        return self.stopping.call_async(Trigger.Request())

    def stopped(self) -> None:
        """Note that the hand has answered."""
        self.forget("stopped with a reset")


SUCCEEDED = 4  # action_msgs/GoalStatus.STATUS_SUCCEEDED
DELIVERY_S = 0.1  # messages from before the recovery arrive within this time


class Recovery(Steps):
    """Error recovery; then the hardware component and its controllers.

    franka_ros2 3 deactivates them at an error.

    The broadcasters, which report the arm's state, come first. The moving controller waits for a
    target at the arm. A controller that keeps the last target while it is inactive, as CRISP's do,
    would otherwise go there as soon as it is active.
    """

    def __init__(self, node: Franka, prefix: str, settings: Driver) -> None:
        super().__init__(node)
        self.settings, self.franka = settings, node
        self.clearing = ActionClient(node, ErrorRecovery, f"{prefix}action_server/error_recovery")
        self.activating = node.create_client(
            SetHardwareComponentState, f"{prefix}controller_manager/set_hardware_component_state"
        )
        self.switching = node.create_client(
            SwitchController, f"{prefix}controller_manager/switch_controller"
        )

    async def run(self) -> str:
        """Recover the arm, then the hand (see ``Steps``)."""
        self.running = True
        try:
            arm_trouble = await self._recover_arm() if self.franka.arm_fault else ""
            return arm_trouble or await self._recover_hand()
        finally:
            self.running = False

    async def _recover_arm(self) -> str:
        return (
            await self._clear()
            or await self._activate()
            or await self._switch(self.settings.broadcasters)
            or await self._await_target()
            or await self._switch(self.settings.controllers)
            or await self._await_health()
        )

    async def _clear(self) -> str:
        if not self.clearing.server_is_ready():
            return "action_server/error_recovery is not available. Is franka_ros2 running?"
        handle = await self.answer(self.clearing.send_goal_async(ErrorRecovery.Goal()))
        if handle is None or not handle.accepted:
            return "error_recovery was not accepted"
        ended = await self.answer(handle.get_result_async())
        return "" if ended is not None and ended.status == SUCCEEDED else "error_recovery failed"

    async def _activate(self) -> str:
        active = State(id=State.PRIMARY_STATE_ACTIVE, label="active")
        if name := self.settings.hardware:
            done = await self.service(
                self.activating, SetHardwareComponentState.Request(name=name, target_state=active)
            )
            if done is None or not done.ok:
                return f"hardware component '{name}' was not activated"
        return ""

    async def _switch(self, names: tuple[str, ...]) -> str:
        if not names:
            return ""
        done = await self.service(
            self.switching,
            SwitchController.Request(
                activate_controllers=names, strictness=SwitchController.Request.BEST_EFFORT
            ),
        )
        if done is not None and done.ok:
            return ""
        return f"controllers {', '.join(names)} were not activated"

    async def _await_target(self) -> str:
        """Wait for the interlock's next target, sent once it knows where the arm rests."""
        deadline = time.monotonic() + STEP_S
        while self.franka.silent:
            if time.monotonic() > deadline:
                return self.franka.arm_fault
            await sleep(self.node, 0.02)
        await sleep(self.node, DELIVERY_S)
        self.franka.take_targets()
        while not self.franka.take_targets():
            if time.monotonic() > deadline:
                return "the interlock sent no target at the arm's pose. The arm must be at rest"
            await sleep(self.node, 0.02)
        return ""

    async def _await_health(self) -> str:
        """Wait until franka_ros2 itself reports that the arm is well."""
        deadline = time.monotonic() + BACK_S
        while self.franka.arm_fault and time.monotonic() < deadline:
            await sleep(self.node, 0.02)
        return self.franka.arm_fault

    async def _recover_hand(self) -> str:
        hand = self.franka.hand
        if hand is None or not hand.fault:
            return ""
        answer = await self.answer(hand.stop()) if hand.stopping.service_is_ready() else None
        if answer is None or not answer.success:
            return f"franka_gripper/stop: {answer.message if answer else 'no answer'}"
        hand.stopped()
        return ""


TICK_S = 0.01  # the state arrives at 1 kHz; the newest is taken at this interval
SILENT_S = 0.5  # franka_ros2 falls silent if a reflex has ended its control loop; value of S3
OFFSET_S = 0.05  # between its clock and ours (S4)
ROBOT_STATE = "franka_robot_state_broadcaster/robot_state"
MODES = {
    FrankaRobotState.ROBOT_MODE_OTHER: "other",
    FrankaRobotState.ROBOT_MODE_IDLE: "idle",
    FrankaRobotState.ROBOT_MODE_GUIDING: "guiding",
    FrankaRobotState.ROBOT_MODE_REFLEX: "reflex",
    FrankaRobotState.ROBOT_MODE_USER_STOPPED: "user_stop",
    FrankaRobotState.ROBOT_MODE_AUTOMATIC_ERROR_RECOVERY: RECOVERING,
}
# the fields of a state that this node reads
FIELDS = (
    "header.stamp",
    "k_f_ext_hat_k.wrench",
    "o_t_ee.pose",
    "ee_t_k.pose.orientation",
    "control_command_success_rate",
    "robot_mode",
    "current_errors",
    "last_motion_errors",
)
# modes that last until a person lets go of the robot
BY_HAND = (FrankaRobotState.ROBOT_MODE_USER_STOPPED, FrankaRobotState.ROBOT_MODE_GUIDING)


ERRORS = tuple(Errors.get_fields_and_field_types())
FLAGS = attrgetter(*ERRORS)


def flags(errors: Errors) -> Iterator[str]:
    """Return the names of the errors that are set."""
    return itertools.compress(ERRORS, FLAGS(errors))


def fault_of(state: FrankaRobotState) -> str:
    """Return why the arm would not follow a controller, in words; empty if it would follow.

    The errors of the last motion persist until the next one. They explain its end once it has
    ended.
    """
    moves = state.robot_mode == FrankaRobotState.ROBOT_MODE_MOVE
    mode = "error" if moves else MODES.get(state.robot_mode, f"mode_{state.robot_mode}")
    errors = ", ".join(flags(state.current_errors))
    if not errors and not moves:
        errors = ", ".join(flags(state.last_motion_errors))
    if errors:
        return f"{mode} ({errors})"
    return "" if moves else mode


def wrench_on_tool(state: FrankaRobotState) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return force and torque (3,) each on the tool, in the base frame's directions [N, Nm].

    They apply at the stiffness frame. The robot's own force is positive in k_f_ext_hat_k; the
    result is the force on the robot. Its torque is certainly about the stiffness frame, while that
    of o_f_ext_hat_k may not be; the forces are equal.
    """
    a, b = state.o_t_ee.pose.orientation, state.ee_t_k.pose.orientation
    turn = product((a.x, a.y, a.z, a.w), (b.x, b.y, b.z, b.w))
    exerted = state.k_f_ext_hat_k.wrench
    return (
        rotate(turn, (-exerted.force.x, -exerted.force.y, -exerted.force.z)),
        rotate(turn, (-exerted.torque.x, -exerted.torque.y, -exerted.torque.z)),
    )


class Franka(ArmDriver):
    """Publishes robot_state as ``robot/fault``, ``wrench`` and ``current_pose``; recovers."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = self.declare_settings("settings", Driver)
        self.reader = PartialReader(FrankaRobotState, FIELDS)
        self.received_at = 0.0
        self.offset_s = 0.0
        prefix = f"{self.settings.namespace.rstrip('/')}/" if self.settings.namespace else ""
        self.states = self.subscribe_lazily(FrankaRobotState, f"{prefix}{ROBOT_STATE}")
        self.targets = [
            self.subscribe_lazily(PoseStamped, "target_pose"),
            self.subscribe_lazily(JointState, "target_joints"),
        ]
        self.wrenches = publisher(self, "wrench")
        self.poses = publisher(self, "current_pose") if self.settings.current_pose else None
        self.wrench, self.pose = WrenchStamped(), PoseStamped()  # published again and again
        self.wrench.header.frame_id = self.settings.frame
        self.pose.header = self.wrench.header
        self.hand = Hand(self, prefix, self.settings) if self.settings.hand else None
        self.recovery = Recovery(self, prefix, self.settings)
        self.create_timer(TICK_S, self._tick)
        self.diagnostics = Diagnostics(self, self._health)
        self.begin()

    def activate(self) -> str:
        """Activate, and forget earlier commands."""
        self.deactivate()
        return super().activate()

    def deactivate(self) -> None:
        """Send the fingers no further command; without ``robot/fault`` the interlock holds."""
        if self.hand:
            self.hand.forget("the node was inactive")

    @property
    def state(self) -> FrankaRobotState:
        """The newest state, with the fields of FIELDS."""
        return self.reader.message

    @property
    def silent(self) -> bool:
        return time.monotonic() - self.received_at > SILENT_S

    @property
    def arm_fault(self) -> str:
        return "silent (no robot_state from franka_ros2)" if self.silent else fault_of(self.state)

    @property
    def fault(self) -> str:
        """The arm's fault, else the hand's; during a recovery, the recovery."""
        return super().fault or (self.hand.fault if self.hand else "")

    def ends_at_the_robot(self, fault: str) -> bool:
        """Return whether the robot is in a pressed user stop or guided by hand."""
        return not self.silent and self.state.robot_mode in BY_HAND

    def take_targets(self) -> list[object]:
        """Return the interlock's newest targets since the last call."""
        return [target for target in map(newest, self.targets) if target is not None]

    def _tick(self) -> None:
        if (raw := newest(self.states, raw=True)) is not None:
            self.reader.read(raw)
            self.received_at = time.monotonic()
            self.offset_s = (
                to_ns(self.state.header.stamp) - self.get_clock().now().nanoseconds
            ) / NS
            if self.active:
                self._publish(self.state)
        if self.hand and self.active:
            self.hand.update()
        self.publish_fault()

    def _publish(self, state: FrankaRobotState) -> None:
        wrench = self.wrench
        wrench.header.stamp = state.header.stamp
        for part, values in zip(
            (wrench.wrench.force, wrench.wrench.torque), wrench_on_tool(state), strict=True
        ):
            part.x, part.y, part.z = values
        self.wrenches.publish(wrench)
        if self.poses is not None:
            self.pose.pose = state.o_t_ee.pose
            self.poses.publish(self.pose)

    def _health(self) -> Health:
        values = {
            "robot_mode": MODES.get(self.state.robot_mode, "move"),
            "clock_offset_s": round(self.offset_s, 4),
            "control_command_success_rate": self.state.control_command_success_rate,
            "hand": self.hand.last_result if self.hand else "none",
        }
        if fault := self.fault:
            return Health(ERROR, fault, values)
        if abs(self.offset_s) > OFFSET_S:
            return Health(
                ERROR,
                f"clock of franka_ros2's machine: expected within {OFFSET_S} s of this one's, got "
                f"{self.offset_s:+.3f} s. Run chrony on both",
                values,
            )
        return Health(OK, "follows its targets", values)


def main() -> None:
    """Entry point."""
    run(Franka, priority=20, listens=False)


if __name__ == "__main__":
    main()
