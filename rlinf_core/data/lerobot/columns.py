"""The columns of a LeRobot data set: numbers of frames, names of features and texts of tasks."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa

from rlinf_core.core.errors import escape_ascii

ANY_NAMES = re.compile(r"(?:(?:action|state|observation\.state|dim|feature)[_.]?)?(\d+)")
INDEX_COLUMN = "__index_level_0__"  # pandas' name of an index without a name


def to_numbers(column: pa.ChunkedArray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a column as (rows, size) float64.

    It is None if a row has another shape, or is not finite.
    """
    try:
        values = np.asarray(column.to_pylist(), np.float64).reshape(len(column), -1)
    except (TypeError, ValueError):
        return None
    valid = np.isfinite(values).all() and (not shape or values.shape[1] == np.prod(shape))
    return values if valid and not pa.types.is_string(column.type) else None


def first_fault(column: pa.ChunkedArray, shape: tuple[int, ...]) -> tuple[int, str]:
    """Return the first row that ``to_numbers`` refuses, and the reason."""
    rows = column.to_pylist()
    size = int(np.prod(shape)) if shape else np.size(rows[0])
    expected = f"expected {size} finite numbers" if size != 1 else "expected a finite number"
    for row, value in enumerate(rows):
        single = to_numbers(pa.chunked_array([pa.array([value], column.type)]), shape)
        if single is None or single.shape[1] != size:
            return (
                row,
                f"{expected}, got "
                f"{'an empty cell' if value is None else escape_ascii(value)[:200]}",
            )
    return 0, f"{expected}, got {escape_ascii(rows[0])[:200]}"


def flatten_names(names: Any) -> list[str]:
    """Return a feature's names in their order.

    They may be a list, ``{"motors": [...]}`` or ``{"x": 0, "y": 1}``; other forms give an empty
    list.
    """
    if isinstance(names, dict):
        if names and all(isinstance(at, int) for at in names.values()):
            return sorted(names, key=lambda name: names[name])
        names = [name for part in names.values() for name in flatten_names(part)]
    if not isinstance(names, list):
        return []
    return [
        name
        for entry in names
        for name in (flatten_names(entry) if isinstance(entry, list) else [str(entry)])
    ]


def column_order(expected: list[str], names: list[str]) -> list[int] | None:
    """Return the index of each expected name among ``names``; None if they differ.

    Missing names, and numbers in their order (``action_0``, ``action_1``), stand for any names in
    the expected order.
    """
    if len(names) == len(expected):
        counted = [match and int(match[1]) for match in map(ANY_NAMES.fullmatch, names)]
        if counted in (list(range(len(names))), list(range(1, len(names) + 1))):
            return list(range(len(names)))
    if not names:
        return list(range(len(expected)))
    if sorted(names) != sorted(expected) or len({*names}) < len(names):
        return None
    return [names.index(name) for name in expected]


def read_task_texts(table: pa.Table) -> dict[int, str]:
    """Return the text of each task by its task_index.

    The text is the column 'task', else the index that pandas wrote, else the only column of text.

    Raises:
        ValueError: there is no such column, or a task is there twice or without a text.
    """
    if "task_index" not in table.column_names:
        raise ValueError(
            "meta/tasks.parquet: expected a column 'task_index', got " + _columns(table)
        )
    pandas = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    indexes = [name for name in pandas.get("index_columns", ()) if isinstance(name, str)]
    texts = [
        field.name
        for field in table.schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]
    columns = [name for name in ("task", *indexes, INDEX_COLUMN) if name in texts] or (
        texts if len(texts) == 1 else []
    )
    if not columns:
        raise ValueError(
            "meta/tasks.parquet: expected a column or an index 'task' with the texts, got "
            + _columns(table)
        )
    tasks: dict[int, str] = {}
    for index, text in zip(
        table["task_index"].to_pylist(), table[columns[0]].to_pylist(), strict=True
    ):
        if index is None or text is None:
            raise ValueError(
                f"meta/tasks.parquet: expected a number and a text for each task, got {index} and "
                f"{'none' if text is None else escape_ascii(text)}"
            )
        if tasks.setdefault(int(index), text) != text:
            raise ValueError(
                f"meta/tasks.parquet: expected each task_index once, got {index} of "
                f"'{escape_ascii(text)}' and '{escape_ascii(tasks[int(index)])}'"
            )
    return tasks


def _columns(table: pa.Table) -> str:
    return ", ".join(map(escape_ascii, table.column_names)) or "no columns"
