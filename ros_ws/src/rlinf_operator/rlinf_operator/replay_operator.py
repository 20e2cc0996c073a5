"""The operator of `rlinf replay`: sends recorded actions again, at the same time steps.

In simulation it arms once, as a script does. A person arms a real arm. Any motion of a device ends
the replay.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rclpy.client import Client
from rclpy.node import Node
from rclpy.publisher import Publisher
from rlinf_msgs.msg import TimeStep

from rlinf_core.core.errors import RlinfError
from rlinf_core.episodes.actions import SentChunk, read_actions
from rlinf_operator.scripted_operator import FirstArming
from rlinf_ros.latest_messages import Latest

FAR_M, FAR_RAD = 0.01, 0.05  # from the recording's start; the interlock realigns within that, too
CONTINUES = SentChunk((), -1, 0)  # the chunk of an earlier time step still plays


class ReplayOperator:
    """Answers each time step of a demonstration with its recorded chunk.

    Args:
        node: the operator's node.
        arms, arming, actions, enables: as for the scripted operator.
        simulated: whether it arms by itself; the interlock of a real arm refuses.
    """

    def __init__(
        self,
        node: Node,
        arms: Sequence[str],
        arming: Sequence[Client],
        actions: Publisher,
        enables: Publisher,
        simulated: bool,
    ) -> None:
        self.recording = read_actions(Path(node.get_parameter("settings.recording").value))
        self.arming = FirstArming(node, arms, arming, actions, enables) if simulated else None
        self.joints = tuple(self.recording.joints)
        self.latest = Latest(node, {"current_pose", "joint_states"}, False)
        self.ended = self.refusal = ""
        last = max(self.recording.chunks)
        self.steps = last + max(self.recording.chunks[last].horizon, 1)
        self.node = node

    def check(self) -> None:
        """Check that the arm is where the recording begins.

        Raises:
            RlinfError: it is not.
        """
        if self.arming:
            self.arming.check()
        if self.refusal:
            raise RlinfError(self.refusal)

    def deactivate(self) -> None:
        """Stop arming and sending for the rest of this episode."""
        self.end("the operator node was deactivated")
        if self.arming:
            self.arming.end()

    def end(self, reason: str) -> None:
        """End the replay for this episode."""
        if not self.ended:
            self.ended = reason
            self.node.get_logger().warning(f"the replay ends: {reason}")

    def answer(self, step: TimeStep) -> SentChunk | None:
        """Return the chunk of a time step; CONTINUES within one, None if nothing is to be sent."""
        armed = self.arming is None or self.arming.armed_interlock
        if step.mode != "demonstration" or not armed or self.ended or self.refusal:
            return None
        if step.step_index == 0:
            self.refusal = self._why_far()
            if self.refusal:
                return None
        if step.step_index >= self.steps:
            return None
        chunk = self.recording.chunks.get(step.step_index, CONTINUES)
        return chunk if chunk.horizon else None

    def _why_far(self) -> str:
        """Return why the arm is too far from the recording's start; empty if it is there."""
        self.latest.pull()
        expected, messages = self.recording, self.latest.messages
        pose, joints = messages.get("current_pose"), messages.get("joint_states")
        if expected.joints and joints is not None:
            angles = dict(zip(joints.name, joints.position, strict=False))
            missing = [name for name in self.joints if name not in angles]
            if not missing:
                name = max(self.joints, key=lambda name: abs(angles[name] - expected.joints[name]))
                away = abs(angles[name] - expected.joints[name])
                if away > FAR_RAD:
                    home = {name: round(angle, 4) for name, angle in expected.joints.items()}
                    return self._far_message(
                        f"'{name}' {away:.3f} rad away", f"{{joints: {json.dumps(home)}}}"
                    )
        if expected.pose and pose is not None:
            p, start = pose.pose.position, np.array(expected.pose[:3])
            away = math.dist((p.x, p.y, p.z), start)
            if away > FAR_M:
                return self._far_message(
                    f"the tool {away:.3f} m away", f"{{position: {np.round(start, 4).tolist()}}}"
                )
        if joints is None and pose is None:
            return (
                "replay: expected current_pose or joint_states, got neither. Is the robot side "
                "running?"
            )
        return ""

    def _far_message(self, got: str, home: str) -> str:
        return (
            f"replay: expected the arm at the start of recording {self.recording.episode.id}, "
            f"within {FAR_M:g} m and {FAR_RAD:g} rad, got {got}. Nothing was sent. Move it there "
            f"with rlinf teleop, or write home: {home} into robot.yaml: the station then asks you "
            "and moves the arm home before the episode"
        )
