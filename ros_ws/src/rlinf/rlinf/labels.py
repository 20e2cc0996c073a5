"""What the operator says of the episode in play (topic ``label``): success, failure, or once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rclpy.node import Node
from std_msgs.msg import String

from rlinf.qos import profile
from rlinf_core.operators.device import LABELS
from rlinf_core.rewards.step import StepResult

AGAIN = "the operator asked for it once more"


class Labels:
    """The newest label of the episode in play; what is said between two counts for neither.

    Args:
        again: called when it shall be played once more.
    """

    def __init__(self, node: Node, again: Callable[[str], None]) -> None:
        self.node, self.again, self.label = node, again, ""
        node.create_subscription(String, "label", self._on_label, profile("label"))

    def _on_label(self, message: String) -> None:
        if message.data not in LABELS:
            self.node.get_logger().error(f"label: expected one of {', '.join(LABELS)}, got {message.data[:50]!r}")
        elif message.data == "rerecord":
            self.again(AGAIN)
        else:
            self.label = message.data

    def begin(self) -> None:
        """Another episode."""
        self.label = ""

    def on(self, result: StepResult) -> StepResult:
        """The time step as the operator judges it, who goes before the task's reward."""
        if not self.label:
            return result
        success = self.label == "success"
        return replace(result, success=success, failure=not success, truncated=False,
                       reward=result.reward + success - result.success)
