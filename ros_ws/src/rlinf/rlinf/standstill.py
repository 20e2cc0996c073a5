"""When an arm stands still until a person has done something: what that is, in one sentence."""

from __future__ import annotations

from rlinf_msgs.msg import SafetyState


def standstill(safety: SafetyState, namespace: str) -> str:
    """What a person must do before the arm can move; empty if nothing."""
    arm = f"ros2 service call {namespace}/interlock/arm std_srvs/srv/SetBool '{{data: true}}', or e at the keyboard"
    if safety.state == SafetyState.DISARMED:
        return f"disarmed; arm it again: {arm}"
    if safety.state == SafetyState.HOLD and safety.cause == "new_session":
        return f"a commander was started again; arm it again: {arm}"
    if safety.state == SafetyState.FAULT:
        return (f"FAULT '{safety.cause}'; when its cause has gone: ros2 service call {namespace}/interlock/reset_fault "
                f"rlinf_msgs/srv/ResetFault \"{{cause: '{safety.cause}'}}\", then arm it again: {arm}")
    return ""
