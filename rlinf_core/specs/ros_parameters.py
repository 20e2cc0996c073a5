"""Structured settings as ROS parameters: a mapping becomes parameters with dotted names, a list of
one type stays a list.

ROS has no parameter without a value, no empty list and no list of lists. A key without a value is
left out. An empty list is ``['']``, an empty key ``_``. A list of mappings, of lists or of several
types becomes parameters that are named by their position: ``_0``, ``_1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_core.core.errors import RlinfError

EMPTY = [""]
UNNAMED = "_"  # key of the one arm that has no name; no arm has this name


def to_parameters(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return nested mappings that a parameter file can hold.

    Args:
        document: of JSON's types.
        where: name of the parameters, for an error.

    Raises:
        RlinfError: a key has a dot, which would divide it, or an item of a list has no value.
    """
    return {
        _checked(str(key), where) or UNNAMED: _encoded(value, f"{where}.{key}")
        for key, value in document.items()
        if value is not None and value != {}
    }


def _checked(key: str, where: str) -> str:
    if "." in key:
        raise RlinfError(
            f"{where}: expected a name without a dot, since ROS splits parameter names at dots, "
            f"got '{key}'. Rename it"
        )
    return key


def _encoded(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return to_parameters(value, where)
    if not isinstance(value, list | tuple):
        return value
    if not value:
        return EMPTY
    if None in value:
        raise RlinfError(
            f"{where}: expected a value for each item of the list, got {list(value)}. ROS has no "
            "parameter without a value"
        )
    kinds = {type(item) for item in value}
    if kinds == {int, float}:
        return [float(item) for item in value]
    if len(kinds) == 1 and kinds <= {bool, int, float, str}:
        return list(value)
    return {f"_{index}": _encoded(item, f"{where}.{index}") for index, item in enumerate(value)}


def from_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of parameters by their dotted names: the inverse of ``to_parameters``
    after ROS has read it.

    >>> from_parameters({"joints.j1.id": 3, "points._0": [1, 2], "points._1": [3]})
    {'joints': {'j1': {'id': 3}}, 'points': [[1, 2], [3]]}
    """
    document: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        level = document
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = (
            list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        )
    return {"" if key == UNNAMED else key: _decoded(value) for key, value in document.items()}


def _decoded(value: Any) -> Any:
    if value == EMPTY:
        return []
    if not isinstance(value, dict):
        return value
    if value.keys() == {f"_{index}" for index in range(len(value))}:
        return [_decoded(value[f"_{index}"]) for index in range(len(value))]
    return {"" if key == UNNAMED else key: _decoded(item) for key, item in value.items()}


def flattened(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters by their dotted names, as a command line takes them."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        flat |= (
            flattened(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {f"{prefix}{name}": value}
        )
    return flat
