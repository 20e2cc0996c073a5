"""The limits of one robot: one declarative table, from which schema, parameters, documentation and hash are made."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rlinf_core.errors import RecipeError, nearest
from rlinf_core.interlock.motion import Group
from rlinf_core.interlock.rotation import Quaternion, unit
from rlinf_core.settings.reading import read

UNLIMITED = "unlimited"
MAXIMUM_FILE = "maximum.yaml"
MODES = ("tcp_delta", "joint_delta")
LOWER, HIGHER, FIXED = "lower", "higher", "fixed"  # where the tighter value lies


def _limit(unit: str, low: float, high: float, meaning: str, default: Any = None, tighter: str = LOWER,
           size: int = 1) -> Any:
    """``size`` counts the numbers: 1 a number, 3 and 4 so many, 0 one per joint."""
    metadata = {"unit": unit, "range": (low, high), "meaning": meaning, "tighter": tighter, "size": size}
    return field(metadata=metadata) if default is None else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Everything the interlock enforces. Fields without a default must stand in the robot's YAML."""

    box_low: tuple[float, ...] = _limit("m", -3, 3, "lowest x, y, z of the tool in the base frame (S8)", None, HIGHER, 3)
    box_high: tuple[float, ...] = _limit("m", -3, 3, "highest x, y, z of the tool in the base frame (S8)", None, LOWER, 3)
    speed: float = _limit("m/s", 1e-3, 3.0, "largest speed of the set-point (S8)")
    acceleration: float = _limit("m/s^2", 1e-2, 13.0, "largest acceleration of the set-point, braking included (S8)")
    jerk: float = _limit("m/s^3", 0.1, 6500.0, "largest jerk of the set-point (S8)")
    divergence: float = _limit("m", 1e-3, 0.5, "the set-point stops running away from the measured pose beyond this (S8)")
    orientation: tuple[float, ...] = _limit(
        "", -1, 1, "nominal orientation of the tool, quaternion x y z w", None, FIXED, 4)
    cone: float = _limit("rad", 0.01, 2.8, "largest rotation of the tool away from `orientation` (S8)")
    rotation_speed: float = _limit("rad/s", 1e-3, 3.0, "largest angular speed of the set-point (S8)", 0.5)
    rotation_acceleration: float = _limit("rad/s^2", 1e-2, 25.0, "largest angular acceleration (S8)", 2.5)
    rotation_jerk: float = _limit("rad/s^3", 0.1, 12500.0, "largest angular jerk (S8)", 25.0)
    rotation_divergence: float = _limit(
        "rad", 1e-3, 1.0, "the set-point stops rotating away from the measured orientation beyond this (S8)", 0.3)
    joint_names: tuple[str, ...] = field(default=(), metadata={
        "unit": "", "range": ("", ""), "meaning": "names of the joints, in the order of every list of joints (S5)",
        "tighter": FIXED, "size": 0})
    joint_low: tuple[float, ...] = _limit("rad", -7, 7, "lowest angle of each joint (S8)", (), HIGHER, 0)
    joint_high: tuple[float, ...] = _limit("rad", -7, 7, "highest angle of each joint (S8)", (), LOWER, 0)
    joint_margin: float = _limit("rad", 0.0, 0.5, "distance kept from the ends of the joints' range (S8)", 0.1, HIGHER)
    joint_speed: float = _limit("rad/s", 1e-3, 3.0, "largest speed of any joint's set-point (S8)", 0.5)
    joint_acceleration: float = _limit("rad/s^2", 1e-2, 15.0, "largest acceleration of any joint's set-point (S8)", 2.5)
    joint_jerk: float = _limit("rad/s^3", 0.1, 7500.0, "largest jerk of any joint's set-point (S8)", 25.0)
    joint_divergence: float = _limit(
        "rad", 1e-3, 0.5, "the joints' set-point stops running away from the measured joints beyond this (S8)", 0.1)
    measured_speed: float = _limit(
        "m/s", 0.1, 20.0, "a measured pose that moves faster than this, as no arm can, is no state (S21)", 3.0)
    measured_rotation_speed: float = _limit("rad/s", 0.1, 50.0, "the same for its rotation (S21)", 10.0)
    measured_joint_speed: float = _limit("rad/s", 0.1, 50.0, "the same for each joint, in joint_delta (S21)", 10.0)
    gripper_width: float = _limit("m", 0.0, 0.5, "widest opening of the gripper; 0 where actions have none", 0.0)
    gripper_speed: float = _limit("m/s", 1e-3, 0.5, "largest speed of the gripper's opening", 0.1)
    stale_state: float = _limit("s", 0.005, 1.0, "no measured state for this long: hold (S3)", 0.05)
    lost_state: float = _limit("s", 0.05, 5.0, "no measured state for this long: latched fault (S3)", 0.5)
    stale_input: float = _limit(
        "s", 0.02, 2.0, "wrench, joints, gripper or pose that a limit needs, silent for this long: hold (S22)", 0.2)
    future_stamp: float = _limit("s", 0.0, 1.0, "a chunk stamped further ahead than this is refused (S4)", 0.05)
    jump_factor: float = _limit("", 1.0, 100.0, "an action this many times too fast is refused (S7)", 10.0)
    refusals_to_fault: float = _limit("", 1, 100, "refusals within a second that latch a fault (S5, S7)", 3)
    estop_silence: float = _limit("s", 0.05, 1.0, "an e-stop source silent for this long is pressed (S14)", 0.3)
    enable_lease: float = _limit("s", 0.1, 60.0, "policy motion needs an enable that is not older than this (S15)", 60.0)
    contact_force: float = _limit("N", 1.0, 200.0, "external force beyond this: hold (S10)", 20.0)
    contact_torque: float = _limit("Nm", 0.1, 50.0, "external torque beyond this: hold (S10)", 5.0)
    contact_fault: float = _limit("N", 1.0, 400.0, "external force beyond this: latched fault (S10)", 40.0)
    contact_samples: float = _limit("", 1, 100, "consecutive samples of the wrench before it counts (S10)", 2)
    slow_distance: float = _limit("m", 1e-3, 1.0, "nearer than this to an obstacle: slower (S11)", 0.02, HIGHER)
    stale_distance: float = _limit("s", 0.02, 1.0, "a distance input silent for this long is contact (S11)", 0.1)
    tick: float = _limit("s", 0.001, 0.1, "period of the interlock", 0.01, FIXED)
    frame: str = field(default="base_link", metadata={
        "unit": "", "range": ("", ""), "meaning": "base frame of poses and actions; anything in another is refused (S5)",
        "tighter": FIXED, "size": 1})
    control_mode: str = field(default="tcp_delta", metadata={
        "unit": "", "range": MODES, "meaning": "what actions move: the tool or the joints", "tighter": FIXED, "size": 1})

    @property
    def hash(self) -> str:
        """Twelve hex digits over every value in force."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @cached_property
    def nominal(self) -> Quaternion:
        """``orientation``, at length 1."""
        return unit(self.orientation)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """What moves together: the tool's position and its rotation, or the joints; then the gripper, if there is one."""
        moving: tuple[Group, ...]
        gripper = (Group("gripper", self.tick, self.gripper_speed, low=(0.0,), high=(self.gripper_width,)),)
        if self.control_mode == "joint_delta":
            margin = self.joint_margin
            moving = (Group("joints", self.tick, self.joint_speed, self.joint_acceleration, self.joint_jerk,
                            tuple(low + margin for low in self.joint_low), tuple(high - margin for high in self.joint_high),
                            together=True),)
        else:
            moving = (Group("position", self.tick, self.speed, self.acceleration, self.jerk, self.box_low, self.box_high),
                      Group("rotation", self.tick, self.rotation_speed, self.rotation_acceleration, self.rotation_jerk,
                            radius=self.cone))
        return moving + (gripper if self.gripper_width else ())

    @cached_property
    def action_sizes(self) -> tuple[int, ...]:
        """How many numbers an action may have: displacement (and rotation) or joints, and the gripper's if it has one."""
        sizes = (len(self.joint_low),) if self.control_mode == "joint_delta" else (3, 6)
        return tuple(size + extra for extra in ((0, 1) if self.gripper_width else (0,)) for size in sizes)


TABLE = {item.name: item for item in fields(Limits)}


def loosened(old: Limits, new: Limits) -> list[str]:
    """Names of the limits that ``new`` makes looser or that may not change while armed (S19)."""
    return [name for name, item in TABLE.items()
            if _looser(item.metadata["tighter"], getattr(old, name), getattr(new, name))]


def _looser(tighter: str, before: Any, after: Any) -> bool:
    if tighter == FIXED:
        return before != after
    if isinstance(before, tuple):
        return len(before) != len(after) or any(map(partial(_looser, tighter), before, after))
    return after < before if tighter == HIGHER else after > before


def with_values(limits: Limits, changes: dict[str, Any], where: str = "limits", most: Limits | None = None) -> Limits:
    """``limits`` with some values replaced, checked as if they stood in a file; RecipeError says what is wrong.

    With ``most``, nothing may become looser than that (see ``loosest``).
    """
    _check_known(where, {}, changes)
    values = {name: _checked(where, TABLE[name], value) for name, value in changes.items()}
    changed = replace(limits, **values)
    _check_together(where, {}, asdict(changed))
    for name in loosened(most, changed) if most is not None else ():
        raise RecipeError(f"{where}: '{name}' {getattr(changed, name)} is looser than the robot's own "
                          f"{getattr(most, name)}")
    return changed


def load_limits(path: str | Path) -> Limits:
    """Read and check a limits YAML and the robot's own maxima beside it; RecipeError names file, line, key and fix."""
    data, lines = _read(path)
    _check_known(path, lines, data)
    for name, item in TABLE.items():
        if name not in data and _required(item):
            raise RecipeError(f"limits {path}: '{name}' is missing: {item.metadata['meaning']}; expected {_expected(item)}")
    values = {name: _checked(_at(path, lines, name), TABLE[name], value) for name, value in data.items()}
    _check_together(path, lines, {item.name: item.default for item in TABLE.values() if not _required(item)} | values)
    limits = Limits(**values)
    own, maximum_lines = _maximum(path, limits)
    for name in loosened(replace(limits, **own), limits):
        raise RecipeError(f"limits {_at(path, lines, name)}: '{name}' {getattr(limits, name)} is looser than the robot's "
                          f"own {own[name]} ({Path(maximum_lines[name]).name})")
    return limits


def loosest(path: str | Path) -> Limits:
    """How loose the limits of this file may ever be set: the robot's own maxima, and the file's value where it has none."""
    limits = load_limits(path)
    return replace(limits, **_maximum(path, limits)[0])


def schema() -> dict[str, Any]:
    """The JSON schema of a limits YAML, for editors."""
    properties: dict[str, Any] = {}
    for name, item in TABLE.items():
        unit, size = item.metadata["unit"], item.metadata["size"]
        low, high = item.metadata["range"][0], item.metadata["range"][-1]
        text: dict[str, Any] = {"description": f"{item.metadata['meaning']}{f' [{unit}]' if unit else ''}"}
        number = {"type": "number", "minimum": low, "maximum": high}
        if name == "joint_names":
            properties[name] = text | {"type": "array", "items": {"type": "string"}}
        elif name == "frame":
            properties[name] = text | {"type": "string", "minLength": 1}
        elif name == "control_mode":
            properties[name] = text | {"enum": list(MODES)}
        elif size == 1:
            properties[name] = text | {"anyOf": [number, {"const": UNLIMITED}]}
        else:
            length = {"minItems": size, "maxItems": size} if size else {}
            properties[name] = text | {"type": "array", "items": number} | length
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Limits of one robot", "type": "object",
            "additionalProperties": False, "properties": properties,
            "required": [name for name, item in TABLE.items() if _required(item)]}


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a limits YAML, and the place of each key."""
    said = read(path, "limits")
    data = {name: list(value) if isinstance(value, tuple) else value for name, value in said.data.items()}
    return data, {str(key[0]): place.removeprefix("limits ") for key, place in said.places.items() if len(key) == 1}


def _at(path: str | Path, lines: dict[str, str], name: str) -> str:
    return lines.get(name, str(path))


def _check_known(path: str | Path, lines: dict[str, str], data: dict[str, Any]) -> None:
    for key in data:
        if key not in TABLE:
            raise RecipeError(f"limits {_at(path, lines, str(key))}: unknown limit '{key}'{nearest(str(key), TABLE)}")


def _required(item: Any) -> bool:
    return item.default is MISSING


def _expected(item: Any) -> str:
    size, unit = item.metadata["size"], item.metadata["unit"]
    if item.name == "control_mode":
        return f"one of {', '.join(MODES)}"
    if item.name == "joint_names":
        return "a list of names, one per joint"
    if item.name == "frame":
        return "the name of a frame"
    low, high = item.metadata["range"]
    words = {0: "a list of one number per joint", 1: "a number", 3: "three numbers", 4: "four numbers"}
    return f"{words[size]} in [{low}, {high}] {unit}".strip()


def _checked(where: str, item: Any, raw: Any) -> Any:
    """``raw`` as the table keeps it."""
    words = {"control_mode": raw in MODES, "frame": isinstance(raw, str) and raw != "",
             "joint_names": isinstance(raw, list | tuple) and all(isinstance(name, str) for name in raw)}
    number = item.metadata["size"] == 1 and item.name not in words
    if number and raw == UNLIMITED:
        return math.inf
    if not (words[item.name] if item.name in words else _numbers_fit(item, raw)):
        spelled = f" (or '{UNLIMITED}', spelled out)" if number else ""
        meant = nearest(str(raw), MODES) if item.name == "control_mode" else ""
        raise RecipeError(f"limits {where}: '{item.name}': expected {_expected(item)}{spelled}, got {raw!r}{meant}")
    if item.name in words:
        return raw if isinstance(raw, str) else tuple(raw)
    return float(raw) if number else tuple(map(float, raw))


def _numbers_fit(item: Any, raw: Any) -> bool:
    (low, high), size, several = item.metadata["range"], item.metadata["size"], isinstance(raw, list | tuple)
    values = raw if several else [raw]
    return several == (size != 1) and len(values) == (size or len(values)) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high for value in values)


def _check_together(path: str | Path, lines: dict[str, str], values: dict[str, Any]) -> None:
    """What no limit can be checked for alone."""

    def refuse(name: str, problem: str) -> None:
        raise RecipeError(f"limits {_at(path, lines, name)}: {problem}")

    for index, axis in enumerate("xyz"):
        low, high = values["box_low"][index], values["box_high"][index]
        if not low < high:
            refuse("box_low", f"box is inverted in {axis}: box_low {low} must be below box_high {high}")
    names, low, high = values["joint_names"], values["joint_low"], values["joint_high"]
    if not len(names) == len(low) == len(high):
        refuse("joint_low", f"joint_names has {len(names)} entries, joint_low {len(low)} and joint_high {len(high)}; "
                            "expected one per joint in each, or none of the three")
    margin = values["joint_margin"]
    for index, name in enumerate(names):
        if not low[index] + margin < high[index] - margin:
            refuse("joint_low", f"the range of {name} is inverted or thinner than its margins: joint_low {low[index]}, "
                                f"joint_high {high[index]}, joint_margin {margin}")
    if values["control_mode"] == "joint_delta" and not low:
        refuse("control_mode", "control_mode joint_delta needs joint_names, joint_low and joint_high")
    size = math.hypot(*values["orientation"])
    if abs(size - 1.0) > 1e-3:
        refuse("orientation", f"'orientation': expected a unit quaternion x y z w, got one of length {size:.4f}")
    for smaller, larger in (("stale_state", "lost_state"), ("contact_force", "contact_fault")):
        if values[smaller] > values[larger]:
            refuse(smaller, f"'{smaller}' {values[smaller]} must not exceed '{larger}' {values[larger]}")


def _maximum(path: str | Path, limits: Limits) -> tuple[dict[str, Any], dict[str, str]]:
    """The robot's own maxima beside its limits, as far as these are known and apply, and their lines."""
    beside = Path(path).with_name(MAXIMUM_FILE)
    if not beside.exists():
        return {}, {}
    data, lines = _read(beside)
    _check_known(beside, lines, data)
    return {name: _checked(_at(beside, lines, name), TABLE[name], value) for name, value in data.items()
            if getattr(limits, name) != ()}, lines
