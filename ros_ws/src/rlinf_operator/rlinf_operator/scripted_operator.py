"""The scripted operator of a simulated station.

It demonstrates, takes over, holds the enable, and arms once at its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rcl_interfaces.srv import GetParameters
from rclpy.action import ActionClient
from rclpy.client import Client
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.task import Future
from rlinf_msgs.action import ResetScene
from rlinf_msgs.msg import EpisodeEvent, SafetyState, TimeStep
from rlinf_msgs.srv import ResetFault
from std_msgs.msg import Bool

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock.takeover import OPERATOR_SILENT
from rlinf_core.specs.topics import of_arms
from rlinf_core.tasks.scripts import make_script
from rlinf_core.tasks.task import Task
from rlinf_ros.arms import ArmRequests, arm_topic, subscribe_safety
from rlinf_ros.diagnostics import OK, WARN, Health, is_active
from rlinf_ros.latest_messages import Latest
from rlinf_ros.memory_bus import action_node
from rlinf_ros.qos import lossless_profile, subscription
from rlinf_ros.station_node import StationNode
from rlinf_ros.station_state import resume_instruction

SEED_STRIDE = 1_000_003  # another seed of the run shows the same scenes with other noise
REQUEST_S = 1.0  # interval of requests to arm
NEW_SCENE_S = 5.0  # interval of new scenes while a freed arm cannot be armed
JAMMED = "divergence"


class FirstArming:
    """Arms a simulated interlock at its start, and again after the restart of a commander.

    All other arming is a person's act. With several arms it acts on their combined state and
    requests each.

    The interlock itself reports whether its robot is simulated, so the check holds however this
    process was started. An interlock that was armed before, by anyone, is not armed again after a
    disarming: ``armed_file`` keeps that over a restart.

    If the simulated arm has jammed (FAULT of cause JAMMED: its target rests far from it), the
    script resets that fault and arms again, as a person beside it would. A person must reset every
    other fault. If the interlock then refuses the arming, because the arm rests outside of its
    workspace, the script lays out a new scene. A person would guide the arm inside.
    """

    def __init__(
        self,
        node: Node,
        arms: Sequence[str],
        arming: Sequence[Client],
        actions: Publisher,
        enables: Publisher,
    ) -> None:
        self.node = node
        self.arming = arming
        self.actions = actions
        self.requests = ArmRequests(node, arms, arming, self._on_answer, disarmed=lambda _: None)
        self.armed_now: list[bool] = []  # answers to the last arming
        self.refused = ""
        self.topics = of_arms("safety", arms)
        self.armed = Path(node.declare_parameter("armed_file", "").value)
        self.armed_interlock = self.last_instruction = self.refusal = ""
        self.has_armed = False
        self.released = False
        self.release_echoes = 0  # this node's own releases, which it hears itself
        self.requested_at = 0.0
        self.freed = False
        self.scenes = ActionClient(action_node(node), ResetScene, "reset_scene")
        self.guided_at = 0.0
        self.arming_now = 0  # outstanding answers to an arming
        self.resetting = [
            node.create_client(ResetFault, arm_topic(arm, "interlock/reset_fault"))
            for arm in arms or [""]
        ]
        self.safety = SafetyState()
        self.enables = enables
        self.trouble: Callable[[], str] = lambda: ""  # trouble of a person's devices beside it
        self.arm_clients = [
            node.create_client(GetParameters, arm_topic(arm, "interlock/get_parameters"))
            for arm in arms or [""]
        ]
        subscription(node, "enable", self._on_enable)
        # a short disarming must not be missed
        subscribe_safety(node, arms, self._on_safety, lossless_profile("safety"))
        node.create_timer(0.5, self._poll)

    def check(self) -> None:
        """Check that the interlock is not a real arm's.

        Raises:
            RlinfError: it is.
        """
        if self.refusal:
            raise RlinfError(self.refusal)

    def health(self) -> Health:
        """Return whether it may command, and why the interlock refused the last arming."""
        values = {"commands": bool(self.armed_interlock), "asked": self.arming_now}
        if self.refused:
            return Health(WARN, f"arming is refused: {self.refused}", values)
        if not self.armed_interlock:
            return Health(WARN, "waiting for one interlock of each arm", values)
        return Health(
            OK, "commands" if self.has_armed else "requesting the interlock to arm", values
        )

    def end(self) -> None:
        """Note that the inactive node lets go of the enable itself."""
        self.release_echoes += 1

    def _on_enable(self, message: Bool) -> None:
        if self.release_echoes and not message.data:
            self.release_echoes -= 1
            return
        # a person has released it; it stays so until they hold it again
        self.released = not message.data

    def _on_safety(self, safety: SafetyState) -> None:
        before = self.safety
        self.safety = safety
        self.freed = self.freed and safety.state in (SafetyState.FAULT, SafetyState.DISARMED)
        if self.armed_interlock and safety.state != SafetyState.DISARMED:
            self._begin()
        disarmed = self.has_armed and safety.state == SafetyState.DISARMED
        is_arming = self.arming_now > 0 or time.monotonic() - self.requested_at < REQUEST_S
        if disarmed and before.state != SafetyState.DISARMED and is_arming:
            # somebody disarmed during our arming, and that takes precedence
            self._request_arming(False)
        instruction = ""
        if disarmed or safety.state == SafetyState.FAULT:
            instruction = resume_instruction(safety, self.node.get_namespace())
        if instruction and instruction != self.last_instruction:
            self.node.get_logger().warning(instruction)
        self.last_instruction = instruction

    def _poll(self) -> None:
        """Twice a second, find the interlock, hold the enable, and arm if necessary."""
        publishers = [
            {
                bytes(info.endpoint_gid).hex()
                for info in self.node.get_publishers_info_by_topic(topic)
            }
            for topic in self.topics
        ]
        self.requests.expire()
        if not is_active(self.node) or any(len(interlocks) != 1 for interlocks in publishers):
            return
        interlock = "+".join(min(interlocks) for interlocks in publishers)
        if self.armed_interlock != interlock:
            self.armed_interlock = ""
            self._check_simulated(interlock)
            return
        if not (self.released or self.trouble()):
            self.enables.publish(Bool(data=True))
        restarted = self.safety.state == SafetyState.HOLD and self.safety.cause in (
            "new_session",
            OPERATOR_SILENT,
        )
        must_arm = restarted or (
            self.safety.state == SafetyState.DISARMED and (self.freed or not self.has_armed)
        )
        if self.safety.state == SafetyState.FAULT and self.safety.cause == JAMMED:
            self._reset_jam()
        if must_arm and self._is_connected() and time.monotonic() - self.requested_at > REQUEST_S:
            self._request_arming(True)

    def _reset_jam(self) -> None:
        """Ask each interlock to reset a jam; an arm that has not jammed refuses."""
        for client in self.resetting:
            if client.service_is_ready():
                future = client.call_async(ResetFault.Request(cause=JAMMED))
                future.add_done_callback(self._on_reset)

    def _on_reset(self, answer: Future) -> None:
        self.freed = self.freed or answer.result().success

    def _is_connected(self) -> bool:
        return bool(
            all(client.service_is_ready() for client in self.arming)
            and self.actions.get_subscription_count() >= len(self.topics)
            and self.node.count_publishers("timestep")
        )

    def _check_simulated(self, interlock: str) -> None:
        """Ask the interlock whether its robot is simulated, that is, whether its scene may jump."""
        missing = len(self.arm_clients)

        def answered(future: Future) -> None:
            nonlocal missing
            values = future.result().values
            missing -= 1
            if not (values and values[0].bool_value):
                self.refusal = (
                    "operator: expected a simulated robot, got the interlock of a real one. A "
                    "person arms a real arm: run rlinf teleop <recipe>, or ros2 run rlinf "
                    "operator with kind:=keyboard"
                )
            if missing or self.refusal:
                return
            self.armed_interlock = interlock
            self.has_armed = self.armed.is_file() and self.armed.read_text() == interlock
            self._on_safety(self.safety)

        if all(client.service_is_ready() for client in self.arm_clients):
            for client in self.arm_clients:
                future = client.call_async(GetParameters.Request(names=["teleports"]))
                future.add_done_callback(answered)

    def _request_arming(self, arm: bool) -> None:
        self.requested_at = time.monotonic()
        if not arm:
            self.requests.disarm()
            return
        self.armed_now = []
        self.arming_now += len(self.arming)
        self.requests.arm()

    def _on_answer(self, future: Future) -> None:
        answer = future.result()
        # requests repeat, so log a new reason only
        if not answer.success and answer.message != self.refused:
            self.node.get_logger().warning(answer.message)
        self.refused = "" if answer.success else answer.message
        if self.freed and not answer.success:
            self._guide_inside()
        self.arming_now = max(self.arming_now - 1, 0)
        self.armed_now.append(answer.success)
        if len(self.armed_now) == len(self.arming) and all(self.armed_now):
            self._begin()

    def _guide_inside(self) -> None:
        now = time.monotonic()
        if now - self.guided_at > NEW_SCENE_S and self.scenes.server_is_ready():
            self.guided_at = now
            self.scenes.send_goal_async(ResetScene.Goal(seed=0))

    def _begin(self) -> None:
        """Note that the script has armed this interlock, also for a restart of this node."""
        if not self.has_armed:
            self.has_armed = True
            if self.armed.name:
                self.armed.write_text(self.armed_interlock)


class ScriptedOperator:
    """Performs the task by its script, in demonstrations and overlong training episodes."""

    def __init__(
        self,
        node: StationNode,
        arms: Sequence[str],
        arming: Sequence[Client],
        actions: Publisher,
        task: Task,
        enables: Publisher,
    ) -> None:
        noise = node.declare_parameter("noise", 0.12).value
        self.seed = node.declare_parameter("seed", 0).value
        self.takes_over = node.declare_parameter("takes_over", 0).value
        self.script = make_script(task, noise=noise, seed=self.seed)
        joints = node.declare_structure("joints")
        # it sees more than a policy may
        self.latest = Latest(node, set(self.script.channels), True, joints=joints)
        self.arming = FirstArming(node, arms, arming, actions, enables)
        self.check = self.arming.check
        subscription(node, "episode", self._on_episode)

    def _on_episode(self, event: EpisodeEvent) -> None:
        if event.kind == EpisodeEvent.STARTED:
            self.script.reset(event.seed + SEED_STRIDE * self.seed)

    def answer(self, step: TimeStep) -> np.ndarray | None:
        """Return the next action, as a policy does; None if the script has no turn."""
        stuck = step.mode == "train" and 0 < self.takes_over <= step.step_index
        if not (step.mode == "demonstration" or stuck) or not self.arming.armed_interlock:
            return None
        self.latest.pull()
        return self.script.act(self.latest.channels).astype(np.float32)
