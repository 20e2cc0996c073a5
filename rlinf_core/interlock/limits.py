"""The limits of one robot: a declarative table with unit, range and meaning, loaded from its YAML and hashed."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.errors import RecipeError, nearest

UNLIMITED = "unlimited"


def _limit(unit: str, low: float, high: float, meaning: str, default: Any = None) -> Any:
    metadata = {"unit": unit, "range": (low, high), "meaning": meaning}
    return field(metadata=metadata) if default is None else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Everything the interlock enforces. Fields without a default must stand in the robot's YAML."""

    box_low: tuple[float, float, float] = _limit("m", -3, 3, "lowest x, y, z of the set-point in the base frame")
    box_high: tuple[float, float, float] = _limit("m", -3, 3, "highest x, y, z of the set-point in the base frame")
    speed: float = _limit("m/s", 1e-3, 3.0, "largest speed of the set-point")
    acceleration: float = _limit("m/s^2", 1e-2, 9.0, "largest acceleration of the set-point, braking included")
    divergence: float = _limit("m", 1e-3, 0.5, "the set-point stops running away from the measured pose beyond this")
    stale_state: float = _limit("s", 0.005, 1.0, "no measured state for this long: hold (S3)", 0.05)
    lost_state: float = _limit("s", 0.05, 5.0, "no measured state for this long: latched fault (S3)", 0.5)
    future_stamp: float = _limit("s", 0.0, 1.0, "a chunk stamped further ahead than this is refused (S4)", 0.05)
    jump_factor: float = _limit("", 1.0, 100.0, "an action faster than this many times `speed` is refused (S7)", 10.0)
    refusals_to_fault: float = _limit("", 1, 100, "refusals within a second that latch a fault (S5)", 3)
    estop_silence: float = _limit("s", 0.05, 1.0, "an e-stop source silent for this long is pressed (S14)", 0.3)
    enable_lease: float = _limit("s", 0.1, 60.0, "policy motion needs an enable that is not older than this (S15)", 60.0)
    contact_force: float = _limit("N", 1.0, 200.0, "external force beyond this: hold (S10)", 20.0)
    contact_torque: float = _limit("Nm", 0.1, 50.0, "external torque beyond this: hold (S10)", 5.0)
    contact_fault: float = _limit("N", 1.0, 400.0, "external force beyond this: latched fault (S10)", 40.0)
    contact_samples: float = _limit("", 1, 100, "consecutive samples of the wrench before it counts (S10)", 2)
    tick: float = _limit("s", 0.001, 0.1, "period of the interlock", 0.01)

    @property
    def hash(self) -> str:
        """Twelve hex digits over every value in force."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def load_limits(path: str | Path) -> Limits:
    """Read and check a limits YAML; RecipeError names the file, the key and the fix."""
    try:
        data = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise RecipeError(f"limits {path}: expected a readable YAML file, got: {error}") from error
    if not isinstance(data, dict):
        raise RecipeError(f"limits {path}: expected 'name: value' lines, got {type(data).__name__}")
    table = {item.name: item for item in fields(Limits)}
    for key in data:
        if key not in table:
            raise RecipeError(f"limits {path}: unknown limit '{key}'{nearest(str(key), table)}")
    values = {name: _checked(path, item, data) for name, item in table.items() if name in data or _required(item)}
    for axis, low, high in zip("xyz", values["box_low"], values["box_high"], strict=True):
        if not low < high:
            raise RecipeError(f"limits {path}: box is inverted in {axis}: box_low {low} must be below box_high {high}")
    return Limits(**values)


def _required(item: Any) -> bool:
    return item.default.__class__.__name__ == "_MISSING_TYPE"


def _checked(path: str | Path, item: Any, data: dict[str, Any]) -> Any:
    (low, high), unit = item.metadata["range"], item.metadata["unit"]
    expected = f"{'three numbers' if 'tuple' in item.type else 'a number'} in [{low}, {high}] {unit}"
    if item.name not in data:
        raise RecipeError(f"limits {path}: '{item.name}' is missing: {item.metadata['meaning']}; expected {expected}")
    raw = data[item.name]
    if raw == UNLIMITED and "tuple" not in item.type:
        return math.inf
    values = raw if isinstance(raw, list) else [raw]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers or len(values) != (3 if "tuple" in item.type else 1) or not all(low <= v <= high for v in values):
        raise RecipeError(f"limits {path}: '{item.name}': expected {expected} (or '{UNLIMITED}', spelled out, "
                          f"for a single number), got {raw!r}")
    return tuple(map(float, values)) if "tuple" in item.type else float(raw)
