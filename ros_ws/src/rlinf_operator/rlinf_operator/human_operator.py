"""A person's part of the operator node: devices, requests, and reports of failing devices."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.client import Client
from rclpy.node import Node
from rclpy.publisher import Publisher
from std_msgs.msg import Bool, String

from rlinf_core.robots.operators import KEYBOARD
from rlinf_core.robots.operators.device import LABELS, Device, Guard, axes, grips
from rlinf_core.robots.operators.keyboard import Keyboard
from rlinf_core.specs.arrays import ActionSpec, StationSpec
from rlinf_ros.arms import ArmRequests
from rlinf_ros.diagnostics import INACTIVE, is_active
from rlinf_ros.qos import publisher, subscription
from rlinf_ros.station_state import ArmAnswerLog

POLL_S, DIAGNOSE_S = 0.02, 1.0
ARM_CHOICE = " The keys move arm {}; choose by number: {}. The other arms rest. Arming is for all."


class HumanOperator:
    """Devices that act together.

    Each device renews the enable, their motions add up, and the trouble of one stops all. With
    several arms the devices move one, and the others rest.
    """

    def __init__(
        self,
        node: Node,
        arming: Sequence[Client],
        spec: StationSpec,
        devices: dict[str, Device],
        enables: Publisher | None = None,
    ) -> None:
        self.node, self.spec = node, spec
        if KEYBOARD not in devices and sys.stdin.isatty():
            devices = devices | {KEYBOARD: Keyboard()}  # the terminal in which the node was started
        self.guards = [Guard(name, device) for name, device in devices.items()]
        self.enables = enables or publisher(node, "enable")
        self.labels = publisher(node, "label")
        self.diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.arms = dict(zip("123456789", spec.action.arms, strict=False))
        self.arm = self.arms.get("1", "")
        self.published_trouble = ""
        self.reported_at = 0.0
        self.safety_by_arm = ArmAnswerLog(node, list(spec.action.arms))
        self.arming = ArmRequests(node, list(spec.action.arms), arming, self.safety_by_arm.answered)
        subscription(node, "prompt", self._on_prompt)
        for guard in self.guards:
            guard.device.attach(self._action, spec.control_hz)
            guard.open()
            for topic in guard.device.topics:
                subscription(node, topic, guard.device.receive)
        self._help()
        node.create_timer(POLL_S, self.poll)

    @property
    def _action(self) -> ActionSpec:
        return self.spec.action.of_arm(self.arm) if self.arm else self.spec.action

    @property
    def axes(self) -> dict[str, int]:
        """The axes of the arm that the devices move; another arm may have others."""
        return axes(self._action)

    @property
    def trouble(self) -> str:
        """Why nothing is requested of the interlock now; empty if nothing is wrong."""
        return "; ".join(guard.trouble for guard in self.guards if guard.trouble)

    @property
    def trusted(self) -> bool:
        """Whether every device sends, and has been at rest."""
        return all(guard.trusted for guard in self.guards)

    def _help(self) -> None:
        numbers = ", ".join(f"{number} {arm}" for number, arm in self.arms.items())
        keys = "; ".join(f"{guard.name}: {guard.device.help(self.axes)}" for guard in self.guards)
        self.node.get_logger().info(
            keys + (ARM_CHOICE.format(self.arm, numbers) if self.arms else "")
        )

    def _on_prompt(self, message: String) -> None:
        if message.data:
            self.node.get_logger().info(message.data)

    def poll(self) -> None:
        """Read the devices, and execute the person's requests."""
        self.arming.expire()
        for guard in self.guards:
            for request in guard.poll():
                self._on_request(request, guard.device.label_renews)
        if self.trouble != self.published_trouble:
            self._report_trouble()
        elif time.monotonic() - self.reported_at > DIAGNOSE_S:
            self._diagnose()

    def _on_request(self, request: str, label_renews: bool) -> None:
        """Execute a request: arm, disarm, a label, next_arm, or an arm's number."""
        if not is_active(self.node) and request != "disarm":
            return
        if self.trouble and request not in ("disarm", *LABELS):
            return  # a working device does not renew the enable for a failing one
        if label_renews or request not in LABELS:
            self.enables.publish(Bool(data=request != "disarm" and not self.trouble))
        if request == "arm":
            self.arming.arm()
        elif request == "disarm":
            self.arming.disarm()
        elif request in LABELS:
            self.labels.publish(String(data=request))
            self.node.get_logger().info(f"label sent: {request}")
        elif request == "next_arm" and self.arms:
            arms = list(self.arms.values())
            self._select_arm(arms[(arms.index(self.arm) + 1) % len(arms)])
        elif request in self.arms:
            self._select_arm(self.arms[request])

    def _select_arm(self, arm: str) -> None:
        """Let the devices move this arm from now on."""
        self.arm = arm
        for guard in self.guards:
            guard.device.attach(self._action, self.spec.control_hz)
        self._help()

    def _report_trouble(self) -> None:
        """Report a change of trouble.

        A failing device releases the enable, which also stops the policy.
        """
        if self.trouble:
            self.enables.publish(Bool(data=False))
            self.node.get_logger().error(
                f"{self.trouble}. Until then the operator sends the interlock nothing, and the "
                "interlock holds the arm"
            )
        else:
            self.node.get_logger().info(
                "all devices send again and are at rest. Any key or button except disarm renews "
                "the enable"
            )
        self.published_trouble = self.trouble
        self._diagnose()

    def _diagnose(self) -> None:
        self.reported_at = time.monotonic()
        active = is_active(self.node)
        names = ", ".join(guard.name for guard in self.guards)
        if self.trouble:
            level, text = DiagnosticStatus.ERROR, self.trouble
        elif active:
            level, text = DiagnosticStatus.OK, f"{names}: ready"
        else:
            level, text = DiagnosticStatus.WARN, INACTIVE
        message = DiagnosticArray(
            status=[
                DiagnosticStatus(
                    name=f"{self.node.get_namespace().strip('/')}/operator",
                    level=level,
                    message=text,
                    values=[
                        KeyValue(key=guard.name, value=guard.trouble or "ready")
                        for guard in self.guards
                    ],
                )
            ]
        )
        message.header.stamp = self.node.get_clock().now().to_msg()
        self.diagnostics.publish(message)

    def distrust(self) -> None:
        """Trust each device again only once it has been at rest."""
        for guard in self.guards:
            guard.distrust()

    def device_motions(self) -> list[dict[str, float]]:
        """Return the motion that each device requests now, if any.

        Call it once per time step: some devices return the motion since the last call.
        """
        return [move for guard in self.guards if (move := guard.motion()) is not None]

    @property
    def moves(self) -> bool:
        """Whether a device requests motion now, not merely rest."""
        return any(
            any(move.values()) for guard in self.guards if (move := guard.motion()) is not None
        )

    def idle_action(self) -> np.ndarray | None:
        """Return the requested motion between episodes, or None."""
        moves = self.device_motions()
        return self.answer("", moves) if any(any(move.values()) for move in moves) else None

    def answer(self, mode: str, moves: list[dict[str, float]]) -> np.ndarray | None:
        """Return the requested motion of the devices.

        Without a request, return rest in demonstrations and None elsewhere. Return None in trouble.
        """
        if not self.trusted:
            return None
        if not moves and mode != "demonstration":
            return None
        action, rows = np.zeros(self.spec.action.dim), self.spec.action.rows(self.arm)
        for axis, place in self.places.items():
            action[rows][place] = sum(move.get(axis, 0.0) for move in moves)
        return np.clip(action, -1.0, 1.0)

    @property
    def places(self) -> dict[str, int]:
        """The index of each axis, and in joint_delta of each joint, in the arm's actions."""
        action = self._action
        joints = 0 if action.control_mode == "tcp_delta" else action.dim - grips(action)
        return self.axes | {f"j{number + 1}": number for number in range(joints)}

    def finish(self) -> None:
        """Close the devices."""
        for guard in self.guards:
            guard.close()
