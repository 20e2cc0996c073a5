"""Checks of e-stops, enable, contacts, distance and input silence.

Their results latch a fault, hold the arm, or let the policy move (S10, S11, S14, S15, S22, S23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import le

from rlinf_core.core.rotation import product, to_vector, unit
from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.takeover import OPERATOR_SILENT
from rlinf_core.interlock.types import Inputs, Pose

Contacts = tuple[int, int]
ARM_PREFIX = "arm:"  # prefix of the cause if another arm holds this one
FAR_DISTANCE_M = 100.0  # a larger distance is in other units, such as millimetres
NEVER_S = 1e8  # an enable this old was never received
RECOVERING = "recovering"  # the robot/fault while somebody recovers the robot
# prefixes of robot faults in which the arm may still follow
FOLLOWS = ("gripper", "silent", "frozen", "error")
STOPPED = ("disarmed", "fault")  # reports of another arm that has stopped
HANDING_BACK = "handing_back"  # an operator has moved the arm, and it does not rest yet (S16)
# holds that the end of an episode does not end
UNTIL_A_PERSON = (OPERATOR_SILENT, "new_session", "clock")
# causes that stop the policy alone, not an operator
POLICY_CAUSES = ("enable", HANDING_BACK, OPERATOR_SILENT)


def active_faults(limits: Limits, inputs: Inputs, contacts: Contacts) -> list[str]:
    """Return the external causes that latch a fault now.

    No fault can be cleared while one of them is present.
    """
    causes = []
    if inputs.estops:
        causes = [f"estop:{e.name}" for e in inputs.estops if e.pressed]
        if inputs.late_s > limits.estop_silence:
            causes.append("stalled")  # S14: a press and its release may both have passed meanwhile
        causes += [
            f"estop_silent:{e.name}"
            for e in inputs.estops
            if not e.pressed and not e.age_s <= limits.estop_silence
        ]
    if inputs.foreign:
        causes += [f"foreign_publisher:{topic}" for topic in inputs.foreign]
    if inputs.robot_fault:
        causes.append(f"robot:{inputs.robot_fault}")
    if contacts[1] >= limits.contact_samples:
        causes.append("contact")
    return causes


def robot_ignores_targets(robot_fault: str) -> bool:
    """Return True if a robot with this fault of its own follows no target (S17).

    The arm may still follow after a gripper's fault, and while the robot is recovered. A robot that
    is silent, frozen or unreadable reports nothing. An error alone, without a mode, may be
    anything.
    """
    if robot_fault in ("", RECOVERING, "unreadable", "interlock"):
        return False
    return not robot_fault.startswith(FOLLOWS)


def missing_inputs(inputs: Inputs) -> list[str]:
    """Return the needed inputs that are missing or have two publishers, and a stepped clock.

    Until they are gone there is no arming and no motion (S22, S23).
    """
    return (
        [f"silent:{name}" for name in inputs.silent]
        + [f"two_publishers:{topic}" for topic in inputs.doubled]
        + (["clock"] if inputs.clock_stepped else [])
    )


def obstacles(limits: Limits, inputs: Inputs, contacts: Contacts) -> list[str]:
    """Return the causes that hold the arm and are not a fault (S10, S11, S22)."""
    causes = ["contact"] if contacts[0] >= limits.contact_samples else []
    if inputs.distance is not None:
        distance, age_s = inputs.distance
        if not (math.isfinite(distance) and age_s <= limits.stale_distance):
            causes.append("distance_silent")
        elif distance > FAR_DISTANCE_M:
            causes.append("distance_units")
        elif distance <= 0.0:
            causes.append("obstacle")
    return causes + range_violations(limits, inputs) + missing_inputs(inputs)


def blocking_arms(inputs: Inputs, *ignored: str) -> list[str]:
    """Return the other arms that may not move, except for the causes ``ignored`` (S27).

    This arm then does not move either. After a simulator has moved all arms at once, earlier holds
    are void.
    """
    return [
        f"{ARM_PREFIX}{arm.name}"
        for arm in inputs.others
        if arm.blocked not in ("", *ignored) and (arm.blocked in STOPPED or not inputs.restart)
    ]


def enabled(limits: Limits, inputs: Inputs) -> bool:
    """Return True if the operator lets the policy move (S15); a reset needs this too (S13).

    Without a lease the enable need not be held, but an enable that was held and let go counts as
    off.
    """
    if math.isinf(limits.enable_lease):
        return inputs.enable or inputs.enable_age_s > NEVER_S
    return inputs.enable and inputs.enable_age_s <= limits.enable_lease


def count_contacts(
    limits: Limits, before: Contacts, wrench: tuple[float, float] | None
) -> Contacts:
    """Count consecutive samples beyond the holding and the latching wrench.

    NaN counts as beyond (trap 2).
    """
    if wrench is None:
        return before
    force, torque = wrench
    holding = not (force <= limits.contact_force and torque <= limits.contact_torque)
    latching = not force <= limits.contact_fault
    return (before[0] + 1 if holding else 0, before[1] + 1 if latching else 0)


def range_violations(limits: Limits, inputs: Inputs) -> list[str]:
    """Return the quantities out of range that the set-point does not control.

    They are the joints while the tool is commanded, and the tool while the joints are.
    """
    if limits.control_mode != "joint_delta":
        low, high = limits.joint_range
        return [] if _between(low, inputs.joints or (), high) else ["outside_joints"]
    if inputs.pose is None:
        return []
    causes = []
    if not _between(limits.box_low, inputs.pose, limits.box_high):
        causes.append("outside_box")
    if not _rotation_from_nominal(limits, inputs.pose) <= limits.cone:
        causes.append("outside_rotation")
    return causes


def _rotation_from_nominal(limits: Limits, pose: Pose) -> float:
    """Return the tool's rotation from its nominal orientation [rad]; infinite if not a number."""
    length = math.hypot(*pose[3:])
    if not abs(length - 1.0) < 0.01:
        return math.inf
    return math.hypot(*to_vector(product(limits.from_nominal, unit(pose[3:]))))


def _between(low: Sequence[float], values: Sequence[float], high: Sequence[float]) -> bool:
    return all(map(le, low, values)) and all(map(le, values, high))
