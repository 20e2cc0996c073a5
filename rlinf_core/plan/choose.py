"""Choice of the layout with the shortest expected turn, with runner-up and refused layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from rlinf_core.algorithms.common.settings import DEMONSTRATIONS, ROLLOUTS
from rlinf_core.core.errors import RecipeError
from rlinf_core.plan.cost import Costs, Expectation, Layout, Machine, expected_turn
from rlinf_core.plan.graph import LEARNER, POLICY
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.placement import CHOSEN, PER_CPU, Placement
from rlinf_core.recipes.sources import SIMULATORS, source_of

# relative difference that counts as a tie; the layout with fewer processes then wins
TIE = 0.02


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


def recipe_layout(recipe: Recipe) -> Layout:
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


def placement_with(recipe: Recipe, layout: Layout) -> Placement:
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
    return recipe.but(placement=placement_with(recipe, layout))


def layout_problem(recipe: Recipe, layout: Layout, machine: Machine, costs: Costs) -> str:
    """Return the reason why a recipe cannot run in a layout; empty if it can."""
    return (
        _recipe_problem(recipe, layout)
        or _machine_problem(layout, machine, costs)
        or _placement_problem(recipe, layout)
    )


def _recipe_problem(recipe: Recipe, layout: Layout) -> str:
    """Return the reason why a recipe's work does not divide as a layout asks."""
    algorithm = recipe.algorithm
    environments = recipe.simulation.environments
    plays = source_of(recipe) == SIMULATORS and algorithm.learns_from != DEMONSTRATIONS
    group = algorithm.rollout.get("group", 1)
    rows = algorithm.transitions_per_batch
    row_shares = layout.learners // layout.tensor_parallel
    if algorithm.half_demonstrations:
        row_shares *= 2
    if layout.workers and not plays:
        return f"{algorithm.name} plays no rollouts here, so no worker has work"
    if layout.workers and (recipe.embodiments or recipe.world.run):
        return "several robots and learned worlds are played in the trainer's process"
    if layout.learners % layout.tensor_parallel or layout.learners < layout.tensor_parallel > 1:
        return f"{layout.learners} learners do not form groups of {layout.tensor_parallel}"
    if layout.learners and recipe.embodiments:
        return "several robots are learned in the trainer's process"
    if layout.workers and environments % layout.workers:
        return f"{environments} environments do not divide among the workers"
    if layout.simulators % max(layout.workers, 1):
        return f"{layout.simulators} simulator processes do not divide among the workers"
    if environments // max(layout.workers, 1) % group:
        return f"the environments of a worker do not divide into groups of {group}"
    if rows is not None and layout.learners and rows % row_shares:
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
    return ""


def _machine_problem(layout: Layout, machine: Machine, costs: Costs) -> str:
    """Return the reason why a machine has no room for a layout."""
    gpus = layout.workers * layout.worker_gpus + layout.learners * layout.learner_gpus
    processes = layout.workers + layout.learners + layout.simulators
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
    return ""


def _placement_problem(recipe: Recipe, layout: Layout) -> str:
    """Return the reason why the recipe's schema refuses a layout."""
    try:
        placement_with(recipe, layout)
    except ValueError as error:
        lines = str(error).strip().splitlines()
        # pydantic appends a line with a link to its documentation
        has_link = "further information" in str(error)
        return lines[-2 if has_link else -1].strip()
    return ""


def candidate_layouts(recipe: Recipe, machine: Machine) -> Iterator[Layout]:
    """Yield the layouts between the recipe's fixed points, including impossible ones."""
    placement = recipe.placement
    # in other cases only the mode could be chosen, from a guess
    measurable = source_of(recipe) == SIMULATORS
    fixed = set(placement.fixed) if placement.auto and measurable else set(CHOSEN)
    if placement.simulators:  # the simulators are started for this number of workers
        fixed |= {"workers"}
    size, rows = recipe.simulation.environments, recipe.algorithm.transitions_per_batch
    largest = int(max(machine.cpus * (PER_CPU / 2), machine.gpus, 2))
    workers = [placement.workers] if "workers" in fixed else [0, *_candidate_sizes(size, largest)]
    if "learners" in fixed:
        learners = [placement.learners]
    else:
        most_rows = (rows or 2**20) * placement.tensor_parallel
        learners = [0, *_candidate_sizes(most_rows, int(max(machine.cpus, machine.gpus)))]
    modes = [placement.mode == "pipelined"] if "mode" in fixed else [False, True]
    any_gpus = [0.0, 1.0] if machine.gpus else [0.0]

    def gpu_choices(processes: int, fixed_gpus: float) -> list[float]:
        if not processes:
            return [0.0]
        return [fixed_gpus] if fixed_gpus else any_gpus

    for worker_count, learner_count, pipelined in product(workers, learners, modes):
        for worker_gpus in gpu_choices(worker_count, placement.worker_gpus):
            for learner_gpus in gpu_choices(learner_count, placement.learner_gpus):
                yield Layout(
                    worker_count,
                    learner_count,
                    pipelined,
                    placement.simulators,
                    worker_gpus,
                    learner_gpus,
                    placement.tensor_parallel,
                )


def _candidate_sizes(total: int, largest: int) -> list[int]:
    """Return divisors of ``total`` up to ``largest``.

    2 and 3 are always included, so that a reason against them can be given.
    """
    return [size for size in range(1, min(total, largest) + 1) if total % size == 0 or size <= 3]


def choose(
    recipe: Recipe, costs: Costs, machine: Machine, excluded: Sequence[Layout] = ()
) -> Choice:
    """Return the best layout between the recipe's fixed points.

    Args:
        recipe: the recipe to place.
        costs: of one turn.
        machine: the available resources.
        excluded: layouts that did not pay before.

    Raises:
        RecipeError: no layout is possible; the message has the reason.
    """
    possible: list[tuple[Layout, Expectation]] = []
    refused: dict[str, list[str]] = {}
    considered = 0
    for layout in candidate_layouts(recipe, machine):
        considered += 1
        if reason := layout_problem(recipe, layout, machine, costs):
            refused.setdefault(reason, []).append(str(layout))
        elif layout not in excluded:
            possible.append((layout, expected_turn(costs, layout, machine)))
    if not possible:
        reasons = "; ".join(f"{layouts[0]}: {reason}" for reason, layouts in refused.items())
        raise RecipeError(
            f"placement: expected fixed values that allow a layout, got {reasons}. Leave out one "
            f"of placement.{', placement.'.join(recipe.placement.fixed or CHOSEN)}"
        )
    tie_s = (1 + TIE) * min(expectation.seconds for _, expectation in possible)

    def rank(pair: tuple[Layout, Expectation]) -> tuple[bool, int, float]:
        """Sort layouts within a tie by their number of processes, the others by their seconds."""
        layout, expectation = pair
        is_tie = expectation.seconds <= tie_s
        processes = layout.workers + layout.learners if is_tie else 0
        return not is_tie, processes, expectation.seconds

    (best, expectation), *others = sorted(possible, key=rank)
    runner_up, other = min(others, key=lambda pair: pair[1].seconds) if others else (None, None)
    return Choice(
        best,
        expectation,
        runner_up,
        other,
        refused,
        considered,
        costs.nodes.keys() <= costs.measured,
        expected_turn(costs, Layout(simulators=recipe.placement.simulators), machine),
    )
