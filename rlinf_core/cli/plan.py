"""``rlinf plan``: the graph of a run, its layout, the reasons, and a picture.

``rlinf trace``: its timeline.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from rlinf_core.plan.choose import Choice, choose, with_layout
from rlinf_core.plan.cost import Layout, Machine
from rlinf_core.plan.graph import Graph, build_graph
from rlinf_core.plan.layout_controller import (
    IMPLICIT_GAIN,
    MIN_SAVED_S,
    machine_description,
    this_machine,
    with_auto_placement,
)
from rlinf_core.plan.measurements import Measurements
from rlinf_core.recipes import Recipe, check_recipe, load_recipe
from rlinf_core.recipes.sources import fixed_layout_reason, may_choose

COLOURS = {
    "trainer": "#dbe9f6",
    "workers": "#fde8cf",
    "learners": "#dff1dd",
    "simulators": "#f3e0f0",
    "station": "#f7d6d6",
    "shards": "#eeeeee",
}

CHANGES = (
    f"the run begins so, and moves to workers if its measurements promise {IMPLICIT_GAIN:.0%} less "
    f"seconds a turn and {MIN_SAVED_S:.0f} s saved; placement.auto=false keeps this layout"
)


def plan_command(
    name: str,
    overrides: list[str],
    run_dir: Path | None,
    picture: Path | None,
    cpus: int,
    gpus: int,
) -> int:
    """Print where the parts of a recipe run, and why."""
    recipe = load_recipe(name, overrides)
    check_recipe(recipe)
    here = this_machine()
    machine = Machine(cpus or here.cpus, gpus if gpus >= 0 else here.gpus, here.gpu_bytes)
    measurements = Measurements(recipe, machine_description(machine))
    if run_dir is not None and not measurements.load(run_dir):
        print(
            f"{run_dir}: no measurements of this recipe on {machine_description(machine)}; a first "
            "guess is used"
        )
    costs = measurements.costs()
    choice = choose(recipe, costs, machine)
    graph = build_graph(with_layout(recipe, choice.layout))
    print("\n".join(graph_lines(graph, recipe.name, machine)))
    fixed_rate = any(node.fixed_rate for node in graph.nodes)
    print(
        "\n".join(
            choice.lines()[:1] + ["the stations set the rate"] if fixed_rate else choice.lines()
        )
    )
    if may_choose(recipe):
        print(CHANGES)
    free = with_auto_placement(recipe)
    if not recipe.placement.auto and not fixed_layout_reason(free):
        other = choose(free, costs, machine)
        if other.layout != choice.layout:
            print(
                f"placement.auto=true would choose: {other.layout}: {other.expectation.rate:.0f} "
                f"time steps/s"
            )
    if picture is not None:
        draw(graph, choice, recipe, picture)
        print(f"picture: {picture}")
    return 0


def trace_command(run_dir: Path, out: Path) -> int:
    """Write the trace of a run."""
    from rlinf_core.trainer.trace import trace_of

    trace = trace_of(run_dir)
    out.write_text(json.dumps(trace))
    count = sum(event["ph"] == "X" for event in trace["traceEvents"])
    print(f"{out}: {count} spans. Open it in chrome://tracing or https://ui.perfetto.dev")
    return 0


def graph_lines(graph: Graph, name: str, machine: Machine) -> list[str]:
    """Return the graph as text, one line for each node and edge."""
    lines = [f"{name} on {machine.cpus:g} CPUs and {machine.gpus} GPUs", "", "nodes"]
    for node in graph.nodes:
        rate = " (fixed rate)" if node.fixed_rate else ""
        lines.append(f"  {node.name:13}{node.process:12}{node.work}{rate}")
    lines += ["", "edges"]
    for edge in graph.edges:
        room = "unbounded" if math.isinf(edge.capacity) else f"{edge.capacity:g} may wait"
        age = "" if math.isinf(edge.staleness) else f", at most {edge.staleness:g} updates old"
        lines.append(f"  {edge.source} -> {edge.target}: {edge.carries}, {room}{age}")
    return [*lines, ""]


def draw(graph: Graph, choice: Choice, recipe: Recipe, path: Path) -> None:
    """Draw the graph: nodes as boxes with the colour of their process, edges as arrows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.4 * len(graph.nodes) + 1, 4.2))
    axes = figure.add_subplot()
    places = {node.name: (2.4 * index, 0.0) for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        axes.annotate(
            f"{node.name}\n{_count(choice.layout, node.process)}",
            places[node.name],
            ha="center",
            va="center",
            fontsize=9,
            bbox={"boxstyle": "round,pad=0.6", "fc": COLOURS[node.process], "ec": "#555555"},
        )
    for edge in graph.edges:
        begin, end = places[edge.source], places[edge.target]
        forward = end[0] > begin[0]
        bend = -0.35 if forward else -0.3
        axes.annotate(
            "",
            end,
            begin,
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#444444",
                "shrinkA": 32,
                "shrinkB": 32,
                "connectionstyle": f"arc3,rad={bend}",
            },
        )
        middle = (begin[0] + end[0]) / 2
        axes.text(
            middle,
            (1 if forward else -1) * (0.45 + 0.12 * abs(end[0] - begin[0])),
            edge.carries,
            fontsize=7,
            ha="center",
            color="#444444",
        )
    axes.set_xlim(-1.4, 2.4 * len(graph.nodes) - 1.0)
    axes.set_ylim(-2.2, 2.2)
    axes.set_axis_off()
    axes.set_title(
        f"{recipe.name}: {choice.layout}\nexpected: {choice.expectation.rate:.0f} time steps/s",
        fontsize=9,
    )
    figure.savefig(path, bbox_inches="tight")


def _count(layout: Layout, process: str) -> str:
    number = {
        "workers": layout.workers,
        "learners": layout.learners,
        "simulators": layout.simulators,
    }.get(process, 0)
    return f"{number} {process}" if number else process
