"""What the director has heard of the others, for ``status.json`` and whoever shows it."""

from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rlinf_msgs.msg import PolicyStatus, SafetyState, TrainerStatus

from rlinf_core.interlock.types import Mode


class OperatorHealth:
    """What is wrong with the operator's devices (/diagnostics); empty where nothing is, or nobody has any."""

    def __init__(self, node: Node) -> None:
        self.name, self.trouble = f"{node.get_namespace().strip('/')}/operator", ""
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == self.name:
                self.trouble = "" if status.level == DiagnosticStatus.OK else status.message


def told(policy: PolicyStatus, trainer: TrainerStatus, safety: SafetyState, operator: str) -> dict[str, Any]:
    """How policy, trainer and interlock fare, and what is wrong with the operator's devices."""
    shown = ("connected", "phase", "updates", "episodes", "transitions", "backlog", "update_ratio", "accepting", "message",
             "set_aside", "spool_full")
    counted = ("cause", "source", "holds", "refused", "limited", "dropped")
    measured = dict(zip(trainer.names, trainer.values, strict=False))
    return {
        "operator": operator,
        "policy_version": policy.version, "policy_error": policy.error, "inference_p50_ms": policy.inference_p50_ms,
        "trainer": {name: getattr(trainer, name) for name in shown} | measured,
        "safety": {"state": Mode(safety.state).name} | {name: getattr(safety, name) for name in counted}}
