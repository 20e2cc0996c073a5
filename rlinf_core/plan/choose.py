"""Chooses the layout with the shortest expected turn; reports runner-up and refused layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np

from rlinf_core.algorithms.common.settings import DEMONSTRATIONS, ROLLOUTS
from rlinf_core.core.errors import RecipeError
from rlinf_core.plan.cost import Costs, Expectation, Layout, Machine, expected
from rlinf_core.plan.graph import LEARNER, POLICY
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.placement import CHOSEN, PER_CPU, Placement
from rlinf_core.recipes.sources import SIMULATORS, source_of

ENUMERATED = 64  # devices up to which every split is tried
TIE = 0.02  # relative difference that counts as a tie; the layout with fewer processes then wins


@dataclass(frozen=True)
class Choice:
    """A layout and the reasons for it.

    Attributes:
        layout, expectation: the chosen layout.
        runner_up, runner_up_expectation: the next best; None if no other layout is possible.
        refused: reasons, with the layouts that they exclude.
        considered: number of layouts.
        from_measurements: whether every cost was measured.
        one_process: expectation of the layout with all work in the trainer's process.
    """

    layout: Layout
    expectation: Expectation
    runner_up: Layout | None
    runner_up_expectation: Expectation | None
    refused: dict[str, list[str]] = field(default_factory=dict)
    considered: int = 0
    from_measurements: bool = False
    one_process: Expectation = Expectation(0.0)

    def lines(self) -> list[str]:
        """Return the choice as lines of text."""
        expectation = self.expectation
        parts = ", ".join(
            f"{name} {1e3 * value:.3g} ms" for name, value in expectation.parts.items() if value
        )
        basis = (
            "measurements of this run"
            if self.from_measurements
            else "a first guess, since measurements are incomplete"
        )
        lines = [
            f"layout: {self.layout}",
            f"expected: {expectation.rate:.0f} time steps/s, {1e3 * expectation.seconds:.3g} ms "
            f"a turn ({parts}); {expectation.limit} bounds it",
            f"why: {self.reason}",
            f"basis: {basis}; {self.considered} layouts compared",
        ]
        if self.runner_up and self.runner_up_expectation:
            other = self.runner_up_expectation
            lines.append(
                f"runner-up: {self.runner_up}: {other.rate:.0f} time steps/s, "
                f"{other.seconds / max(expectation.seconds, 1e-12):.2f} times the seconds"
            )
        lines += [
            f"refused: {layouts[0]}{f' and {len(layouts) - 1} more' if len(layouts) > 1 else ''}: "
            f"{reason}"
            for reason, layouts in self.refused.items()
        ]
        return lines

    @property
    def reason(self) -> str:
        """Gain of the layout over one process, and the part of a turn with the largest one."""
        before, after = self.one_process, self.expectation
        ratio = after.seconds / max(before.seconds, 1e-12)
        if self.layout == replace(self.layout, workers=0, learners=0, pipelined=False):
            return "further processes would cost more time than they save"
        names = {"rollout": "rollouts", "learner": "updates"}
        changes = [
            f"{name} {1e3 * before.parts.get(part, 0.0):.3g} -> {1e3 * after.parts[part]:.3g} ms"
            for part, name in names.items()
        ]
        if self.layout.pipelined:
            changes.append("both at the same time")
        return f"{ratio:.0%} of the seconds of one process: {', '.join(changes)}"


def layout_of(recipe: Recipe) -> Layout:
    """Return the layout that a recipe's placement names."""
    placement = recipe.placement
    return Layout(
        placement.workers,
        placement.learners,
        placement.mode == "pipelined",
        placement.simulators,
        placement.worker_gpus,
        placement.learner_gpus,
        placement.tensor_parallel,
    )


def placement_of(recipe: Recipe, layout: Layout) -> Placement:
    """Return the recipe's placement with another layout; raise ValueError if they conflict."""
    mode = recipe.placement.mode.replace("pipelined", "collocated")
    return recipe.placement.but(
        workers=layout.workers,
        learners=layout.learners,
        mode="pipelined" if layout.pipelined else mode,
        worker_gpus=layout.worker_gpus,
        learner_gpus=layout.learner_gpus,
        simulators=layout.simulators,
    )


def with_layout(recipe: Recipe, layout: Layout) -> Recipe:
    """Return the recipe with another layout."""
    return recipe.but(placement=placement_of(recipe, layout))


def why_not_layout(recipe: Recipe, layout: Layout, machine: Machine, costs: Costs) -> str:
    """Return the reason why a recipe cannot run in a layout; empty if it can."""
    algorithm, size = recipe.algorithm, recipe.simulation.environments
    plays = source_of(recipe) == SIMULATORS and algorithm.learns_from != DEMONSTRATIONS
    share, group = size // max(layout.workers, 1), algorithm.rollout.get("group", 1)
    rows = algorithm.transitions_per_batch
    gpus = layout.workers * layout.worker_gpus + layout.learners * layout.learner_gpus
    processes = layout.workers + layout.learners + layout.simulators
    if layout.workers and not plays:
        return f"{algorithm.name} plays no rollouts here, so no worker has work"
    if layout.workers and (recipe.embodiments or recipe.world.run):
        return "several robots and learned worlds are played in the trainer's process"
    if layout.learners % layout.tensor_parallel or layout.learners < layout.tensor_parallel > 1:
        return f"{layout.learners} learners do not form groups of {layout.tensor_parallel}"
    if layout.learners and recipe.embodiments:
        return "several robots are learned in the trainer's process"
    if layout.workers and size % layout.workers:
        return f"{size} environments do not divide among the workers"
    if layout.simulators % max(layout.workers, 1):
        return f"{layout.simulators} simulator processes do not divide among the workers"
    if share % group:
        return f"the environments of a worker do not divide into groups of {group}"
    if (
        rows is not None
        and layout.learners
        and rows
        % (layout.learners // layout.tensor_parallel * (2 if algorithm.half_demonstrations else 1))
    ):
        return f"{rows} rows of a batch do not divide among the learners"
    if layout.pipelined and not layout.workers:
        return "pipelined needs a worker that plays while the trainer learns"
    if recipe.placement.mode == "disaggregated" and not layout.workers:
        return "disaggregated needs a worker with devices of its own"
    if layout.pipelined and algorithm.learns_from == ROLLOUTS and not algorithm.accepts_stale:
        return (
            f"{algorithm.name} learns only from rollouts of the newest policy, so it cannot be "
            "pipelined"
        )
    if processes > PER_CPU * machine.cpus:
        return f"{machine.cpus:g} CPUs carry at most {PER_CPU * machine.cpus:.0f} processes"
    if gpus > machine.gpus:
        return f"the machine has {machine.gpus} GPUs"
    if processes * costs.resident_bytes > (machine.free_bytes or math.inf):
        return (
            f"{machine.free_bytes / 2**30:.1f} GiB of memory are free, less than the processes "
            f"need with {costs.resident_bytes / 2**30:.1f} each"
        )
    demands = ((LEARNER, layout.learner_gpus), (POLICY, layout.worker_gpus))
    for name, share_of_gpu in demands:
        need = costs.node(name).peak_bytes
        room = machine.gpu_bytes * (min(share_of_gpu, 1.0) or 1.0)
        if share_of_gpu and machine.gpu_bytes and need > room:
            return (
                f"the {name} needs {need / 2**30:.1f} GiB of GPU memory, and has room for "
                f"{room / 2**30:.1f}"
            )
    try:
        placement_of(recipe, layout)
    except ValueError as error:
        return (
            str(error)
            .strip()
            .splitlines()[-2 if "further information" in str(error) else -1]
            .strip()
        )
    return ""


def candidates(recipe: Recipe, machine: Machine) -> Iterator[Layout]:
    """Yield the layouts between the recipe's fixed points, including impossible ones."""
    placement = recipe.placement
    # in other cases only the mode could be chosen, from a guess
    measurable = source_of(recipe) == SIMULATORS
    fixed = set(placement.fixed) if placement.auto and measurable else set(CHOSEN)
    if placement.simulators:  # the simulators are started for this number of workers
        fixed |= {"workers"}
    size, rows = recipe.simulation.environments, recipe.algorithm.transitions_per_batch
    most = int(max(machine.cpus * (PER_CPU / 2), machine.gpus, 2))
    workers = [placement.workers] if "workers" in fixed else [0, *_sizes(size, most)]
    learners = (
        [placement.learners]
        if "learners" in fixed
        else [
            0,
            *_sizes(
                (rows or 2**20) * placement.tensor_parallel, int(max(machine.cpus, machine.gpus))
            ),
        ]
    )
    modes = [placement.mode == "pipelined"] if "mode" in fixed else [False, True]
    any_gpus = [0.0, 1.0] if machine.gpus else [0.0]

    def gpus(count: int, given: float) -> list[float]:
        return [0.0] if not count else [given] if given else any_gpus

    for count, group, pipelined in product(workers, learners, modes):
        for acting in gpus(count, placement.worker_gpus):
            for learning in gpus(group, placement.learner_gpus):
                yield Layout(
                    count,
                    group,
                    pipelined,
                    placement.simulators,
                    acting,
                    learning,
                    placement.tensor_parallel,
                )


def _sizes(total: int, most: int) -> list[int]:
    """Return divisors of ``total`` up to ``most``.

    2 and 3 are always included, so that a reason against them can be given.
    """
    return [size for size in range(1, min(total, most) + 1) if total % size == 0 or size <= 3]


def choose(
    recipe: Recipe, costs: Costs, machine: Machine, without: Sequence[Layout] = ()
) -> Choice:
    """Return the best layout between the recipe's fixed points.

    Args:
        recipe: the recipe to place.
        costs: of one turn.
        machine: the available resources.
        without: layouts that did not pay before.

    Raises:
        RecipeError: no layout is possible; the message has the reason.
    """
    able: list[tuple[Layout, Expectation]] = []
    refused: dict[str, list[str]] = {}
    considered = 0
    for layout in candidates(recipe, machine):
        considered += 1
        if reason := why_not_layout(recipe, layout, machine, costs):
            refused.setdefault(reason, []).append(str(layout))
        elif layout not in without:
            able.append((layout, expected(costs, layout, machine)))
    if not able:
        reasons = "; ".join(f"{layouts[0]}: {reason}" for reason, layouts in refused.items())
        raise RecipeError(
            f"placement: expected fixed values that allow a layout, got {reasons}. Leave out one "
            f"of placement.{', placement.'.join(recipe.placement.fixed or CHOSEN)}"
        )
    least = min(expectation.seconds for _, expectation in able)
    able.sort(
        key=lambda pair: (
            pair[1].seconds > least * (1 + TIE),
            pair[0].workers + pair[0].learners if pair[1].seconds <= least * (1 + TIE) else 0,
            pair[1].seconds,
        )
    )
    others = able[1:]
    runner_up, other = min(others, key=lambda pair: pair[1].seconds) if others else (None, None)
    return Choice(
        able[0][0],
        able[0][1],
        runner_up,
        other,
        refused,
        considered,
        costs.nodes.keys() <= costs.measured,
        expected(costs, Layout(simulators=recipe.placement.simulators), machine),
    )


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
class Split:
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


def split(stages: Sequence[Stage], devices: int, batches: int = 1, switch_s: float = 0.0) -> Split:
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
    tables = _tables(stages, devices, switch_s)
    solve = _enumerated if devices <= ENUMERATED else _programmed
    solution = solve(tables, devices, batches)
    if solution is None:
        raise RecipeError(
            f"placement: expected a split of {devices} devices among "
            f"{', '.join(s.name for s in stages)}, got none with room for every stage. Add "
            "devices, or lower the memory of a stage"
        )
    groups, seconds = solution
    return Split(
        tuple((tuple(s.name for s in stages[begin:end]), count) for begin, end, count in groups),
        seconds,
    )


Tables = dict[tuple[int, int], np.ndarray]
Groups = list[tuple[int, int, int]]


def _tables(stages: Sequence[Stage], devices: int, switch_s: float) -> Tables:
    """Return each group's seconds on 0, 1, ... devices (devices + 1,), by its (begin, end)."""
    rows = [
        np.array([np.inf, *stage.seconds[:devices]] + [np.inf] * (devices - len(stage.seconds)))
        for stage in stages
    ]
    return {
        (begin, end): np.sum(rows[begin:end], axis=0) + switch_s * (end - begin - 1 and end - begin)
        for begin in range(len(rows))
        for end in range(begin + 1, len(rows) + 1)
    }


def _enumerated(tables: Tables, devices: int, batches: int) -> tuple[Groups, float] | None:
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


def _programmed(tables: Tables, devices: int, batches: int) -> tuple[Groups, float] | None:
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
