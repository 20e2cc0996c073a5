"""Splits the devices of a cluster among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rlinf_core.core.errors import RecipeError

# devices up to which every split is tried
MAX_ENUMERATED = 64


@dataclass(frozen=True)
class Stage:
    """A stage of a chain on a cluster.

    Attributes:
        name: of the stage.
        seconds: duration of a turn on 1, 2, ... devices; infinite if impossible, as for lack of
            memory.
    """

    name: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class DeviceSplit:
    """Devices of each group of stages; stages of a group take turns on the same devices.

    Attributes:
        groups: names of stages and their number of devices.
        seconds: duration of a turn.
    """

    groups: tuple[tuple[tuple[str, ...], int], ...]
    seconds: float


def turn_seconds(times: Sequence[float], batches: int) -> float:
    """Return the duration of a turn whose groups pass ``batches`` micro-batches on [s].

    The pipeline fills, then the slowest group sets the rate.
    """
    return sum(times) / batches + (batches - 1) / batches * max(times)


def split_devices(
    stages: Sequence[Stage], devices: int, batches: int = 1, switch_s: float = 0.0
) -> DeviceSplit:
    """Return the exact best split of devices among neighbouring stages.

    Up to 64 devices every split is tried. Beyond, dynamic programming finds the smallest sum of
    seconds under a bound on the slowest group, for each bound that the optimum may have.

    Args:
        stages: in their order.
        devices: number of the cluster's devices.
        batches: micro-batches of a turn that groups pass on.
        switch_s: seconds for devices to change hands between two stages of a group.

    Raises:
        RecipeError: no split is possible.
    """
    tables = _group_seconds(stages, devices, switch_s)
    solve = _split_by_enumeration if devices <= MAX_ENUMERATED else _split_by_programming
    solution = solve(tables, devices, batches)
    if solution is None:
        raise RecipeError(
            f"placement: expected a split of {devices} devices among "
            f"{', '.join(s.name for s in stages)}, got none with room for every stage. Add "
            "devices, or lower the memory of a stage"
        )
    groups, seconds = solution
    return DeviceSplit(
        tuple((tuple(s.name for s in stages[begin:end]), count) for begin, end, count in groups),
        seconds,
    )


# seconds of a group of neighbouring stages, by (begin, end)
Tables = dict[tuple[int, int], np.ndarray]
# (begin, end, devices) of each group
Groups = list[tuple[int, int, int]]


def _group_seconds(stages: Sequence[Stage], devices: int, switch_s: float) -> Tables:
    """Return each group's seconds on 0, 1, ... devices, (devices + 1,), by its (begin, end)."""
    rows = [
        np.array([np.inf, *stage.seconds[:devices]] + [np.inf] * (devices - len(stage.seconds)))
        for stage in stages
    ]
    tables: Tables = {}
    for begin in range(len(rows)):
        for end in range(begin + 1, len(rows) + 1):
            size = end - begin
            switches = size if size > 1 else 0  # a stage alone keeps its devices
            tables[begin, end] = np.sum(rows[begin:end], axis=0) + switch_s * switches
    return tables


def _split_by_enumeration(
    tables: Tables, devices: int, batches: int
) -> tuple[Groups, float] | None:
    """Return the best of all splits; None if none has room for every stage."""
    count = max(end for _, end in tables)
    best: tuple[Groups, float] | None = None
    for parts in range(1, min(count, devices) + 1):
        for inner in combinations(range(1, count), parts - 1):
            bounds = [0, *inner, count]
            spans = list(zip(bounds, bounds[1:], strict=False))
            for cuts in combinations(range(1, devices), parts - 1):
                sizes = np.diff([0, *cuts, devices])
                times = [float(tables[span][size]) for span, size in zip(spans, sizes, strict=True)]
                seconds = turn_seconds(times, batches)
                if np.isfinite(seconds) and (best is None or seconds < best[1]):
                    best = (
                        [(*span, int(size)) for span, size in zip(spans, sizes, strict=True)],
                        seconds,
                    )
    return best


def _split_by_programming(
    tables: Tables, devices: int, batches: int
) -> tuple[Groups, float] | None:
    """Return the best split over every bound on the slowest group that the optimum may have.

    Each bound gives the smallest sum of seconds. The bounds begin where a slower group could no
    longer win, and end at the smallest possible one.
    """
    least = _least_sum(tables, devices, np.inf)
    if least is None:
        return None
    values = np.unique(np.concatenate([table[np.isfinite(table)] for table in tables.values()]))
    low, high = 0, len(values) - 1
    while low < high:  # the smallest bound that has a split
        middle = (low + high) // 2
        if _least_sum(tables, devices, np.nextafter(values[middle], np.inf)) is None:
            low = middle + 1
        else:
            high = middle
    tightest = _least_sum(tables, devices, np.nextafter(values[low], np.inf)) or least
    options = [
        (groups, turn_seconds(_times(tables, groups), batches)) for groups in (least, tightest)
    ]
    best = min(options, key=lambda pair: pair[1])
    if batches == 1:
        return best
    base, part = sum(_times(tables, least)) / batches, (batches - 1) / batches
    bound = np.nextafter((best[1] - base) / part, np.inf)
    while (groups := _least_sum(tables, devices, bound)) is not None:
        times = _times(tables, groups)
        seconds, bound = turn_seconds(times, batches), max(times)
        if seconds < best[1]:
            best = groups, seconds
        if sum(times) / batches + part * values[low] >= best[1]:
            break  # a lower bound makes the sum no smaller
    return best


def _times(tables: Tables, groups: Groups) -> list[float]:
    return [float(tables[begin, end][size]) for begin, end, size in groups]


def _least_sum(tables: Tables, devices: int, bound: float) -> Groups | None:
    """Return the groups with the smallest sum of seconds, each below ``bound``, or None."""
    count = max(end for _, end in tables)
    under = {span: np.where(table < bound, table, np.inf) for span, table in tables.items()}
    sizes = np.arange(devices + 1)
    left = sizes[:, None] - sizes[None]
    least: dict[int, np.ndarray] = {}
    taken: dict[int, list[tuple[int, np.ndarray]]] = {}
    for begin in reversed(range(count)):
        rows = left if begin else left[devices:]  # the first group has all devices available
        columns = [(count, under[begin, count][-len(rows) :], sizes[-len(rows) :])]
        for end in range(begin + 1, count):
            sums = np.where(rows >= 0, under[begin, end][None] + least[end][rows], np.inf)
            pick = sums.argmin(axis=1)
            columns.append((end, sums[np.arange(len(rows)), pick], pick))
        stacked = np.stack([column for _, column, _ in columns])
        winner = stacked.argmin(axis=0)
        least[begin] = stacked.min(axis=0)
        ends = np.array([end for end, _, _ in columns])
        picks = np.stack([pick for _, _, pick in columns])
        taken[begin] = [(int(ends[index]), picks[index]) for index in winner]
    if not np.isfinite(least[0][-1]):
        return None
    groups: Groups = []
    begin, room = 0, devices
    while begin < count:
        row = room if begin else len(taken[0]) - 1
        end, chosen = taken[begin][row]
        size = int(chosen[row])
        groups.append((begin, end, size))
        begin, room = end, room - size
    return groups
