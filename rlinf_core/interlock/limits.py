"""The limits of one robot as one declarative table.

Schema, parameters, documentation and hash derive from this table.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from typing import Any

from rlinf_core.core.rotation import Quaternion, inverse, unit
from rlinf_core.interlock.motion import Group

MODES = ("tcp_delta", "joint_delta")
SETTLE_S = 0.1  # an arm counts as resting after this long at one place
# A measured number further outside the limits than this is in other units: millimetres, degrees,
# per cent.
FAR_M = 10.0
FAR_RAD = 2.0 * math.pi
WIDE_M = 0.5
LOWER = "lower"
HIGHER = "higher"
FIXED = "fixed"  # a different value is neither tighter nor looser


def _limit(
    unit: str,
    low: float,
    high: float,
    meaning: str,
    default: Any = None,
    tighter: str = LOWER,
    size: int = 1,
) -> Any:
    """Return the dataclass field of one limit.

    Args:
        unit: SI unit; empty for a pure number.
        low: smallest allowed value.
        high: largest allowed value.
        meaning: one line for the schema and the documentation.
        default: value used if the YAML has none; None makes the limit required.
        tighter: LOWER, HIGHER or FIXED, the direction in which the limit gets tighter.
        size: 1 for a number, 3 or 4 for a list of that length, 0 for one number per joint.
    """
    metadata = {
        "unit": unit,
        "range": (low, high),
        "meaning": meaning,
        "tighter": tighter,
        "size": size,
    }
    return (
        field(metadata=metadata) if default is None else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Everything the interlock enforces.

    Fields without a default are required in the robot's YAML.
    """

    box_low: tuple[float, ...] = _limit(
        "m", -3, 3, "lowest x, y, z of the tool in the base frame (S8)", None, HIGHER, 3
    )
    box_high: tuple[float, ...] = _limit(
        "m", -3, 3, "highest x, y, z of the tool in the base frame (S8)", None, LOWER, 3
    )
    speed: float = _limit("m/s", 1e-3, 3.0, "largest speed of the set-point (S8)")
    acceleration: float = _limit(
        "m/s^2", 1e-2, 13.0, "largest acceleration of the set-point, braking included (S8)"
    )
    jerk: float = _limit("m/s^3", 0.1, 6500.0, "largest jerk of the set-point (S8)")
    divergence: float = _limit(
        "m", 1e-3, 0.5, "largest distance from the measured pose to which the set-point moves (S8)"
    )
    orientation: tuple[float, ...] = _limit(
        "", -1, 1, "nominal orientation of the tool, quaternion x y z w", None, FIXED, 4
    )
    cone: float = _limit(
        "rad", 0.01, 2.8, "largest rotation of the tool away from `orientation` (S8)"
    )
    rotation_speed: float = _limit(
        "rad/s", 1e-3, 3.0, "largest angular speed of the set-point (S8)", 0.5
    )
    rotation_acceleration: float = _limit(
        "rad/s^2", 1e-2, 25.0, "largest angular acceleration (S8)", 2.5
    )
    rotation_jerk: float = _limit("rad/s^3", 0.1, 12500.0, "largest angular jerk (S8)", 25.0)
    rotation_divergence: float = _limit(
        "rad",
        1e-3,
        1.0,
        "largest rotation from the measured orientation to which the set-point turns (S8)",
        0.3,
    )
    joint_names: tuple[str, ...] = field(
        default=(),
        metadata={
            "unit": "",
            "range": ("", ""),
            "meaning": "names of the joints, in the order of every list of joints (S5)",
            "tighter": FIXED,
            "size": 0,
        },
    )
    joint_low: tuple[float, ...] = _limit(
        "rad", -7, 7, "lowest angle of each joint (S8)", (), HIGHER, 0
    )
    joint_high: tuple[float, ...] = _limit(
        "rad", -7, 7, "highest angle of each joint (S8)", (), LOWER, 0
    )
    joint_margin: float = _limit(
        "rad", 0.0, 0.5, "distance kept from the ends of the joints' range (S8)", 0.1, HIGHER
    )
    joint_speed: float = _limit(
        "rad/s", 1e-3, 6.3, "largest speed of any joint's set-point (S8)", 0.5
    )
    joint_acceleration: float = _limit(
        "rad/s^2", 1e-2, 15.0, "largest acceleration of any joint's set-point (S8)", 2.5
    )
    joint_jerk: float = _limit(
        "rad/s^3", 0.1, 7500.0, "largest jerk of any joint's set-point (S8)", 25.0
    )
    joint_divergence: float = _limit(
        "rad",
        1e-3,
        0.5,
        "largest distance from the measured joints to which their set-point moves (S8)",
        0.1,
    )
    measured_speed: float = _limit(
        "m/s",
        0.1,
        20.0,
        "largest possible speed of the arm; a faster measured pose is invalid (S21)",
        3.0,
    )
    measured_rotation_speed: float = _limit(
        "rad/s", 0.1, 50.0, "the same for the rotation of the tool (S21)", 10.0
    )
    measured_joint_speed: float = _limit(
        "rad/s", 0.1, 50.0, "the same for each joint, in joint_delta (S21)", 10.0
    )
    gripper_width: float = _limit(
        "m", 0.0, 0.5, "largest gripper width; 0 if actions have no gripper", 0.0
    )
    gripper_speed: float = _limit("m/s", 1e-3, 0.5, "largest speed of a finger pair", 0.1)
    stale_state: float = _limit(
        "s", 0.005, 1.0, "time without a measured state until a hold (S3)", 0.05
    )
    lost_state: float = _limit(
        "s", 0.05, 5.0, "time without a measured state until a latched fault (S3)", 0.5
    )
    stale_input: float = _limit(
        "s",
        0.02,
        2.0,
        "a required wrench, joint state, gripper state or pose is silent for this long: hold (S22)",
        0.2,
    )
    future_stamp: float = _limit(
        "s", 0.0, 1.0, "a chunk whose stamp lies further in the future is refused (S4)", 0.05
    )
    jump_factor: float = _limit(
        "", 1.0, 100.0, "an action that exceeds a speed limit by this factor is refused (S7)", 10.0
    )
    refusals_to_fault: float = _limit(
        "", 1, 100, "number of refusals within a second that latches a fault (S5, S7)", 3
    )
    estop_silence: float = _limit(
        "s", 0.05, 1.0, "an e-stop source that is silent for this long counts as pressed (S14)", 0.3
    )
    enable_lease: float = _limit(
        "s",
        0.1,
        60.0,
        "largest age of an enable with which the policy may move the arm (S15)",
        60.0,
    )
    contact_force: float = _limit(
        "N", 1.0, 200.0, "external force above which the arm holds (S10)", 20.0
    )
    contact_torque: float = _limit(
        "Nm", 0.1, 50.0, "external torque above which the arm holds (S10)", 5.0
    )
    contact_fault: float = _limit(
        "N", 1.0, 400.0, "external force above which a fault latches (S10)", 40.0
    )
    contact_samples: float = _limit(
        "", 1, 100, "consecutive wrench samples above a limit that count as contact (S10)", 2
    )
    slow_distance: float = _limit(
        "m", 1e-3, 1.0, "distance to an obstacle below which the arm is slower (S11)", 0.02, HIGHER
    )
    stale_distance: float = _limit(
        "s", 0.02, 1.0, "a distance input that is silent for this long counts as contact (S11)", 0.1
    )
    tick: float = _limit("s", 0.001, 0.1, "period of the interlock", 0.01, FIXED)
    frame: str = field(
        default="base_link",
        metadata={
            "unit": "",
            "range": ("", ""),
            "meaning": "base frame of poses and actions; the interlock refuses other frames (S5)",
            "tighter": FIXED,
            "size": 1,
        },
    )
    control_mode: str = field(
        default="tcp_delta",
        metadata={
            "unit": "",
            "range": MODES,
            "meaning": "actions move the tool (tcp_delta) or the joints (joint_delta)",
            "tighter": FIXED,
            "size": 1,
        },
    )

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits of a hash over every value in force."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @cached_property
    def nominal(self) -> Quaternion:
        """``orientation``, scaled to length 1."""
        return unit(self.orientation)

    @cached_property
    def tick_ns(self) -> int:
        """``tick`` in nanoseconds."""
        return round(self.tick * 1_000_000_000)

    @cached_property
    def settle_ticks(self) -> int:
        """Number of ticks for which an arm must rest to count as resting."""
        return max(3, round(SETTLE_S / self.tick))

    @cached_property
    def from_nominal(self) -> Quaternion:
        """The rotation that leads from ``orientation`` back to the base frame."""
        return inverse(self.nominal)

    @cached_property
    def joint_range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The lowest and the highest angles of the joints, within their margins."""
        lowest = tuple(low + self.joint_margin for low in self.joint_low)
        highest = tuple(high - self.joint_margin for high in self.joint_high)
        return lowest, highest

    @cached_property
    def divergences(self) -> tuple[float, ...]:
        """The largest ``tracking_error`` of each group at which a set-point may go further."""
        if self.control_mode == "joint_delta":
            return (self.joint_divergence,)
        return (self.divergence, self.rotation_divergence)

    @cached_property
    def metric_range(self) -> tuple[tuple[float, float], ...]:
        """Low and high bound of each measured number in metres and radians.

        A number outside of them must be in other units.
        """
        if self.control_mode == "joint_delta":
            low, high, far = self.joint_low, self.joint_high, FAR_RAD
        else:
            low, high, far = self.box_low, self.box_high, FAR_M
        return tuple((lo - far, hi + far) for lo, hi in zip(low, high, strict=True))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups of coordinates that move together.

        They are position and rotation of the tool, or the joints. Last comes the gripper, if any.
        """
        arm: tuple[Group, ...]
        if self.control_mode == "joint_delta":
            low, high = self.joint_range
            arm = (
                Group(
                    "joints",
                    self.tick,
                    self.joint_speed,
                    self.joint_acceleration,
                    self.joint_jerk,
                    low,
                    high,
                    together=True,
                ),
            )
        else:
            arm = (
                Group(
                    "position",
                    self.tick,
                    self.speed,
                    self.acceleration,
                    self.jerk,
                    self.box_low,
                    self.box_high,
                ),
                Group(
                    "rotation",
                    self.tick,
                    self.rotation_speed,
                    self.rotation_acceleration,
                    self.rotation_jerk,
                    radius=self.cone,
                ),
            )
        if not self.gripper_width:
            return arm
        width = self.gripper_width
        gripper = Group("gripper", self.tick, self.gripper_speed, low=(0.0,), high=(width,))
        return (*arm, gripper)

    @cached_property
    def action_sizes(self) -> tuple[int, ...]:
        """The allowed numbers of values in an action.

        An action holds a displacement (and a rotation) or joints, then the gripper's value if there
        is one.
        """
        sizes = (len(self.joint_low),) if self.control_mode == "joint_delta" else (3, 6)
        if not self.gripper_width:
            return sizes
        return sizes + tuple(size + 1 for size in sizes)


TABLE = {item.name: item for item in fields(Limits)}


def loosened_limits(old: Limits, new: Limits) -> list[str]:
    """Return the names of the limits that may not change to ``new`` while armed (S19).

    They are those that ``new`` loosens, and fixed ones with another value.
    """
    return [
        name
        for name, item in TABLE.items()
        if _is_looser(item.metadata["tighter"], getattr(old, name), getattr(new, name))
    ]


def _is_looser(tighter: str, before: Any, after: Any) -> bool:
    if tighter == FIXED:
        return before != after
    if isinstance(before, tuple):
        return len(before) != len(after) or any(map(partial(_is_looser, tighter), before, after))
    return after < before if tighter == HIGHER else after > before
