"""Read and check a limits YAML, and report the line of every mistake.

This module needs neither pydantic nor a station. A file may extend another one, which may extend
none: ``extends: ../limits.yaml``. Its own values take precedence. The maxima beside either file
bind both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, replace
from pathlib import Path
from typing import Any

from rlinf_core.config.yaml_source import read_document
from rlinf_core.core.errors import RecipeError, nearest
from rlinf_core.interlock.limits import HIGHER, MODES, TABLE, Limits, loosened_limits

UNLIMITED = "unlimited"
EXTENDS = "extends"
MAXIMUM_FILE = "maximum.yaml"
# A longer moving average of the plan would take too long per tick.
MAX_POINTS = 1000
Values = dict[str, Any]


def with_values(
    limits: Limits,
    changes: dict[str, Any],
    where: str = "limits",
    loosest_allowed: Limits | None = None,
) -> Limits:
    """Replace some values of ``limits``, with the same checks as for a file.

    Args:
        limits: the limits to start from.
        changes: new values by name.
        where: name of the source, for messages.
        loosest_allowed: no limit may become looser than this one; see ``loosest``.

    Raises:
        RecipeError: a value is invalid or too loose.
    """
    _check_keys(where, {}, changes)
    values = {name: _checked(where, TABLE[name], value) for name, value in changes.items()}
    changed = replace(limits, **values)
    _check_together(where, {}, asdict(changed))
    for name in loosened_limits(loosest_allowed, changed) if loosest_allowed is not None else ():
        raise RecipeError(
            f"{where}: '{name}' {getattr(changed, name)} is looser than the robot's own "
            f"{getattr(loosest_allowed, name)}"
        )
    return changed


def load_limits(path: str | Path) -> Limits:
    """Read and check a limits YAML and the robot's own maxima.

    Raises:
        RecipeError: an invalid limit; the message names file, line, key and fix.
    """
    return _load(path)[0]


def loosest(path: str | Path) -> Limits:
    """Return the loosest values that this file's limits may ever take.

    They are the robot's own maxima, and the file's value for a limit without a maximum.
    """
    return load_with_loosest(path)[1]


def load_with_loosest(path: str | Path) -> tuple[Limits, Limits]:
    """Return ``load_limits`` and ``loosest`` from one reading; the file may change between two."""
    limits, maxima = _load(path)
    tightest_maxima = {}
    for name in {name for maximum in maxima for name in maximum}:
        values = [maximum[name] for maximum in maxima if name in maximum]
        tightest_maxima[name] = _tightest(TABLE[name].metadata["tighter"], values)
    return limits, replace(limits, **tightest_maxima)


def names_with_maximum(path: str | Path) -> set[str]:
    """Return the names of the limits for which the robot has its own maxima."""
    return {name for maximum in _load(path)[1] for name in maximum}


def schema() -> dict[str, Any]:
    """Return the JSON schema of a limits YAML, for editors."""
    properties: dict[str, Any] = {}
    for name, item in TABLE.items():
        unit, size = item.metadata["unit"], item.metadata["size"]
        low, high = item.metadata["range"][0], item.metadata["range"][-1]
        text: dict[str, Any] = {
            "description": f"{item.metadata['meaning']}{f' [{unit}]' if unit else ''}"
        }
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
    properties[EXTENDS] = {
        "type": "string",
        "description": "path of a limits YAML, relative to this file. Its values apply to keys "
        "that are missing here",
    }
    complete = {"required": [name for name, item in TABLE.items() if _required(item)]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Limits of one robot",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "anyOf": [{"required": [EXTENDS]}, complete],
    }


def _load(path: str | Path) -> tuple[Limits, list[Values]]:
    """Return the limits of a file and its base, and the robot's own maxima beside each."""
    values, lines, base = _read(path)
    folders = {Path(path).parent: None}
    if base is not None:
        below, below_lines, further = _read(base)
        if further is not None:
            raise RecipeError(
                f"limits {below_lines[EXTENDS]}: '{EXTENDS}': expected none in a file that another "
                f"one extends ({lines[EXTENDS]})"
            )
        values = below | values
        lines = below_lines | lines
        folders = folders | {base.parent: None}
    for name, item in TABLE.items():
        if name not in values and _required(item):
            raise RecipeError(
                f"limits {path}: '{name}' is missing: {item.metadata['meaning']}; expected "
                f"{_expected(item)}"
            )
    _check_together(
        path,
        lines,
        {item.name: item.default for item in TABLE.values() if not _required(item)} | values,
    )
    limits, maxima = Limits(**values), []
    for maximum_path in (folder / MAXIMUM_FILE for folder in folders):
        if maximum_path.exists():
            maxima.append(_maximum(maximum_path, path, lines, limits))
    return limits, maxima


def takes_box_from(other: Path, path: Path) -> bool:
    """Return True if the limits file ``other`` takes its box from the file ``path``.

    Both may be the same file, or ``other`` extends ``path`` and sets no box itself.
    """
    values, _, base = _read(other)
    if other.resolve() == path.resolve():
        return True
    return base == path.resolve() and not values.keys() >= {"box_low", "box_high"}


def _read(path: str | Path) -> tuple[Values, dict[str, str], Path | None]:
    """Return a limits YAML's checked values, each key's place, and the extended file or None."""
    document = read_document(path, "limits")
    data = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in document.data.items()
    }
    lines = {
        str(key[0]): place.removeprefix("limits ")
        for key, place in document.places.items()
        if len(key) == 1
    }
    base = _base(path, lines[EXTENDS], data.pop(EXTENDS)) if EXTENDS in data else None
    _check_keys(path, lines, data, (EXTENDS,))
    return (
        {
            name: _checked(_at(path, lines, name), TABLE[name], value)
            for name, value in data.items()
        },
        lines,
        base,
    )


def _base(path: str | Path, where: str, extended: Any) -> Path:
    """Return the path of the file that ``path`` extends."""
    folder = Path(path).parent
    if not isinstance(extended, str) or not (folder / extended).is_file():
        raise RecipeError(
            f"limits {where}: '{EXTENDS}': expected the path of a limits YAML, from {folder}, got "
            f"{extended!r}"
        )
    return (folder / extended).resolve()


def _maximum(maximum_path: Path, path: str | Path, lines: dict[str, str], limits: Limits) -> Values:
    """Return the robot's own maxima; raise RecipeError if a value in ``path`` is looser."""
    data, places, base = _read(maximum_path)
    if base is not None:
        raise RecipeError(f"limits {places[EXTENDS]}: '{EXTENDS}': expected none in {MAXIMUM_FILE}")
    maxima = {name: value for name, value in data.items() if getattr(limits, name) != ()}
    for name in loosened_limits(replace(limits, **maxima), limits):
        raise RecipeError(
            f"limits {_at(path, lines, name)}: '{name}' {getattr(limits, name)} is looser than "
            f"the robot's own {maxima[name]} ({Path(places[name]).name})"
        )
    return maxima


def _tightest(tighter: str, values: Sequence[Any]) -> Any:
    """Return the tightest of the maxima of one limit, number by number.

    Fixed values are all equal.
    """
    if isinstance(values[0], tuple):
        return tuple(_tightest(tighter, numbers) for numbers in zip(*values, strict=True))
    return (max if tighter == HIGHER else min)(values)


def _at(path: str | Path, lines: dict[str, str], name: str) -> str:
    return lines.get(name, str(path))


def _check_keys(
    path: str | Path, lines: dict[str, str], data: Values, more: tuple[str, ...] = ()
) -> None:
    for key in data:
        if key not in TABLE:
            raise RecipeError(
                f"limits {_at(path, lines, str(key))}: unknown limit '{key}'"
                f"{nearest(str(key), (*TABLE, *more))}"
            )


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
    words = {
        0: "a list of one number per joint",
        1: "a number",
        3: "three numbers",
        4: "four numbers",
    }
    return f"{words[size]} in [{low}, {high}] {unit}".strip()


def _checked(where: str, item: Any, raw: Any) -> Any:
    """Check ``raw`` and convert it to the type in the table."""
    words = {
        "control_mode": raw in MODES,
        "frame": isinstance(raw, str) and raw != "",
        "joint_names": isinstance(raw, list | tuple) and all(isinstance(name, str) for name in raw),
    }
    number = item.metadata["size"] == 1 and item.name not in words
    if number and raw == UNLIMITED:
        return math.inf
    if not (words[item.name] if item.name in words else _numbers_fit(item, raw)):
        spelled = f" (or '{UNLIMITED}', spelled out)" if number else ""
        meant = nearest(str(raw), MODES) if item.name == "control_mode" else ""
        raise RecipeError(
            f"limits {where}: '{item.name}': expected {_expected(item)}{spelled}, got "
            f"{raw!r}{meant}"
        )
    if item.name in words:
        return raw if isinstance(raw, str) else tuple(raw)
    if number and type(raw) is type(item.default) is int:
        return raw  # an int like the default, because equal limits must have equal hashes
    return float(raw) if number else tuple(map(float, raw))


def _numbers_fit(item: Any, raw: Any) -> bool:
    (low, high) = item.metadata["range"]
    size = item.metadata["size"]
    several = isinstance(raw, list | tuple)
    values = raw if several else [raw]
    return (
        several == (size != 1)
        and len(values) == (size or len(values))
        and all(
            isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
            for value in values
        )
    )


def _check_together(path: str | Path, lines: dict[str, str], values: dict[str, Any]) -> None:
    """Check the limits that depend on one another."""

    def refuse(name: str, problem: str) -> None:
        raise RecipeError(f"limits {_at(path, lines, name)}: {problem}")

    for index, axis in enumerate("xyz"):
        low, high = values["box_low"][index], values["box_high"][index]
        if not low < high:
            refuse(
                "box_low", f"box is inverted in {axis}: box_low {low} must be below box_high {high}"
            )
    names = values["joint_names"]
    low = values["joint_low"]
    high = values["joint_high"]
    if not len(names) == len(low) == len(high):
        refuse(
            "joint_low",
            f"joint_names has {len(names)} entries, joint_low {len(low)} and joint_high "
            f"{len(high)}; expected one per joint in each, or none of the three",
        )
    margin = values["joint_margin"]
    for index, name in enumerate(names):
        if not low[index] + margin < high[index] - margin:
            refuse(
                "joint_low",
                f"the range of {name} is inverted or thinner than its margins: joint_low "
                f"{low[index]}, joint_high {high[index]}, joint_margin {margin}",
            )
    if values["control_mode"] == "joint_delta" and not low:
        refuse(
            "control_mode", "control_mode joint_delta needs joint_names, joint_low and joint_high"
        )
    size = math.hypot(*values["orientation"])
    if abs(size - 1.0) > 1e-3:
        refuse(
            "orientation",
            f"'orientation': expected a unit quaternion x y z w, got one of length {size:.4f}",
        )
    if math.isinf(values["cone"]) and values["control_mode"] == "tcp_delta":
        refuse(
            "cone",
            "'cone': expected at most 2.8 rad in tcp_delta, since a tool beyond would return the "
            "long way around, got 'unlimited'",
        )
    if math.isinf(values["tick"]):
        refuse("tick", "'tick': expected a period, got 'unlimited'")
    _check_jerks(values, refuse)
    for smaller, larger in (("stale_state", "lost_state"), ("contact_force", "contact_fault")):
        if values[smaller] > values[larger]:
            refuse(
                smaller,
                f"'{smaller}' {values[smaller]} must not exceed '{larger}' {values[larger]}",
            )


def _check_jerks(values: dict[str, Any], refuse: Callable[[str, str], None]) -> None:
    """Check that the average over 2 a / (j T) points, which bounds the jerk, is short enough."""
    joint = values["control_mode"] == "joint_delta"
    for kind in ("joint_",) if joint else ("", "rotation_"):
        acceleration, jerk = values[f"{kind}acceleration"], values[f"{kind}jerk"]
        if math.isinf(jerk):
            continue
        if math.isinf(acceleration):
            refuse(
                f"{kind}acceleration",
                f"'{kind}acceleration' is unlimited, but '{kind}jerk' {jerk} needs it: "
                f"expected a number, or '{kind}jerk' unlimited too",
            )
        if 2.0 * acceleration / (jerk * values["tick"]) > MAX_POINTS * (1.0 + 1e-9):
            least = 2.0 * acceleration / (MAX_POINTS * values["tick"])
            refuse(
                f"{kind}jerk",
                f"'{kind}jerk' {jerk} with '{kind}acceleration' {acceleration} delays "
                f"full braking by {acceleration / jerk:.3g} s: expected a jerk of at least "
                f"{least:.3g}, or a smaller acceleration",
            )
