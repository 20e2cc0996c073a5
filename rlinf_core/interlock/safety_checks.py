"""Checks of e-stops, people and surroundings: they latch, hold, or let the policy move.

An operator who has taken over, and falls silent without a release, loses the enable (S16).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from operator import le

from rlinf_core.core.rotation import product, to_vector, unit
from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.types import NS, Chunk, Inputs, Pose

OPERATOR_SILENT = "operator_silent"  # cause of the hold
RELEASE_S = 0.5  # the release must come this soon after the end of the operator's last command
IDLE_S = 0.3  # an enable that was not renewed for this long is not held


class Enabling(IntEnum):
    """Stages that the policy waits for after an operator fell silent, in their order."""

    GIVEN = 0  # no stage: the enable counts
    DROPPED = 1  # the operator must be heard again, and release the takeover
    RELEASED = 2  # the enable must be let go, in case something holds it down
    IDLE = 3  # a person must enable anew


@dataclass(frozen=True, slots=True)
class OperatorWatch:
    """State of the watch. Arming anew ends every stage.

    Attributes:
        until_ns: end of the operator's last command, in the clock of the chunks' stamps [ns]; None
            without a takeover.
        stage: the stage that the policy waits for; GIVEN if the enable counts.
    """

    until_ns: int | None = None
    stage: Enabling = Enabling.GIVEN

    @property
    def has_takeover(self) -> bool:
        """Whether the operator has taken over and not let go, so that the policy must wait."""
        return self.until_ns is not None

    @property
    def dropped(self) -> bool:
        """Whether the enable is ignored."""
        return self.stage is not Enabling.GIVEN

    def on_tick(self, inputs: Inputs, now_ns: int) -> OperatorWatch:
        """Return the watch at a tick, before its chunks."""
        if inputs.restart:  # a simulator begins a new scene, without a takeover
            return replace(self, until_ns=None)
        if self.until_ns is not None and now_ns >= self.until_ns + RELEASE_S * NS:
            return OperatorWatch(stage=Enabling.DROPPED)
        is_held = inputs.enable and inputs.enable_age_s <= IDLE_S
        if self.stage is Enabling.RELEASED and not is_held:
            return replace(self, stage=Enabling.IDLE)
        if self.stage is Enabling.IDLE and inputs.enable and inputs.enable_renewed:
            return replace(self, stage=Enabling.GIVEN)
        return self

    def on_command(self, chunk: Chunk) -> OperatorWatch:
        """Continue the takeover after a command of the operator, until they let go."""
        return replace(self, until_ns=chunk.valid_until_ns)

    def on_refusal(self, now_ns: int) -> OperatorWatch:
        """Return the watch after a refused command of the operator.

        The command takes nothing over, but it shows that the operator is present in a takeover.
        """
        return self if self.until_ns is None else replace(self, until_ns=max(self.until_ns, now_ns))

    def on_release(self) -> OperatorWatch:
        """Return the watch after the operator has let go."""
        stage = Enabling.RELEASED if self.stage is Enabling.DROPPED else self.stage
        return OperatorWatch(stage=stage)

    def on_arming(self) -> OperatorWatch:
        """Return the watch after a person has armed, which enables anew. A takeover goes on."""
        return replace(self, stage=Enabling.GIVEN)


Contacts = tuple[int, int]
ARM_PREFIX = "arm:"  # prefix of the cause if another arm holds this one
FAR_DISTANCE_M = 100.0  # a larger distance is in other units, such as millimetres
NEVER_S = 1e8  # an enable this old was never heard
RECOVERING = "recovering"  # a robot/fault: somebody recovers the robot
# prefixes of robot faults in which the arm may still follow
FOLLOWS = ("gripper", "silent", "frozen", "error")
STOPPED = ("disarmed", "fault")  # reports of another arm that has stopped
HANDING_BACK = "handing_back"  # an operator has moved the arm, and it does not rest yet (S16)
# causes that stop the policy alone, not an operator
POLICY_CAUSES = ("enable", HANDING_BACK, OPERATOR_SILENT)


def active_faults(limits: Limits, inputs: Inputs, contacts: Contacts) -> list[str]:
    """Return the external causes that latch a fault now; while one stands, no fault can be
    cleared.
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


def follows_nothing(robot_fault: str) -> bool:
    """Return True if a robot with this fault of its own follows no target (S17).

    The arm may still follow after a gripper's fault, and while the robot is recovered. A robot that
    is silent, frozen or unreadable reports nothing. An error alone, without a mode, may be
    anything.
    """
    return robot_fault not in (
        "",
        RECOVERING,
        "unreadable",
        "interlock",
    ) and not robot_fault.startswith(FOLLOWS)


def missing_inputs(inputs: Inputs) -> list[str]:
    """Return the needed inputs that are missing or have two publishers, and a stepped clock.

    Until they are gone there is no arming and no motion (S22, S23).
    """
    if not (inputs.silent or inputs.doubled or inputs.clock_stepped):
        return []
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
    return causes + outside_range(limits, inputs) + missing_inputs(inputs)


def others(inputs: Inputs, *ignored: str) -> list[str]:
    """Return the other arms that may not move, except for the causes ``ignored`` (S27).

    This arm then does not move either. After a simulator has moved all arms at once, earlier holds
    are void.
    """
    if not inputs.others:
        return []
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


def outside_range(limits: Limits, inputs: Inputs) -> list[str]:
    """Return the quantities out of range that the set-point does not control.

    They are the joints while the tool is commanded, and the tool while the joints are.
    """
    if limits.control_mode == "joint_delta":
        box = (
            [] if _between(limits.box_low, inputs.pose or (), limits.box_high) else ["outside_box"]
        )
        return box + (
            []
            if inputs.pose is None or _turned(limits, inputs.pose) <= limits.cone
            else ["outside_rotation"]
        )
    low, high = limits.joint_range
    return [] if _between(low, inputs.joints or (), high) else ["outside_joints"]


def _turned(limits: Limits, pose: Pose) -> float:
    """Return the tool's rotation from its nominal orientation [rad]; infinite if not a number."""
    length = math.hypot(*pose[3:])
    if not abs(length - 1.0) < 0.01:
        return math.inf
    return math.hypot(*to_vector(product(limits.from_nominal, unit(pose[3:]))))


def _between(low: Sequence[float], values: Sequence[float], high: Sequence[float]) -> bool:
    return all(map(le, low, values)) and all(map(le, values, high))
