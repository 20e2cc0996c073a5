"""What the director has heard of the others, for ``status.json`` and whoever shows it."""

from typing import Any

from rlinf_msgs.msg import PolicyStatus, SafetyState, TrainerStatus

from rlinf_core.interlock.types import Mode


def told(policy: PolicyStatus, trainer: TrainerStatus, safety: SafetyState) -> dict[str, Any]:
    """How policy, trainer and interlock fare."""
    shown = ("connected", "phase", "updates", "episodes", "transitions", "backlog", "update_ratio", "accepting", "message",
             "set_aside", "spool_full")
    counted = ("cause", "source", "holds", "refused", "limited", "dropped")
    measured = dict(zip(trainer.names, trainer.values, strict=False))
    return {
        "policy_version": policy.version, "policy_error": policy.error, "inference_p50_ms": policy.inference_p50_ms,
        "trainer": {name: getattr(trainer, name) for name in shown} | measured,
        "safety": {"state": Mode(safety.state).name} | {name: getattr(safety, name) for name in counted}}
