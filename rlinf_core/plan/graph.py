"""A run as data: nodes, and edges with capacity and allowed staleness, derived from a recipe."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from rlinf_core.algorithms.common.settings import DEMONSTRATIONS, ROLLOUTS
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.sources import CONVERSATIONS, RECORDINGS, SIMULATORS, STATIONS, source_of
from rlinf_core.recipes.station import is_simulated

ENVIRONMENT, POLICY, LEARNER, WEIGHTS = "environment", "policy", "learner", "weights"
DATA, EVALUATION, STATION, REWARD = "data", "evaluation", "station", "reward"


@dataclass(frozen=True)
class Node:
    """One kind of work of a run.

    Attributes:
        name: of the node.
        work: description of the work.
        process: the process that executes it: trainer, workers, learners, simulators or station.
        fixed_rate: whether no plan may change its rate, as for a robot's control loop.
    """

    name: str
    work: str
    process: str
    fixed_rate: bool = False


@dataclass(frozen=True)
class Edge:
    """Data that flows between two nodes.

    Attributes:
        source, target: names of nodes.
        carries: description of the data.
        capacity: items that may wait; infinite without a limit.
        staleness: updates by which the policy behind an item may be older than the newest.
        inner: whether items pass within a rollout, at each time step or conversation. The nodes at
            both ends then run as one unit.
    """

    source: str
    target: str
    carries: str
    capacity: float
    staleness: float = math.inf
    inner: bool = False


@dataclass(frozen=True)
class Graph:
    """Nodes in the order of one turn, and the edges between them."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def inputs(self, name: str) -> tuple[Edge, ...]:
        """Return the edges that end in a node."""
        return tuple(edge for edge in self.edges if edge.target == name)

    @cached_property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """Names of the nodes that run as one unit, since inner edges join them."""
        joined = {node.name: {node.name} for node in self.nodes}
        for edge in self.edges:
            if edge.inner:
                unit = joined[edge.source] | joined[edge.target]
                joined |= dict.fromkeys(unit, unit)
        names = [node.name for node in self.nodes]
        return tuple(dict.fromkeys(tuple(sorted(joined[name], key=names.index)) for name in names))

    @cached_property
    def _external_inputs(self) -> dict[str, frozenset[tuple[str, str]]]:
        """(source, target) of the inputs of each unit from other units, by its first node."""
        ends = {
            unit: {
                (edge.source, edge.target)
                for name in unit
                for edge in self.inputs(name)
                if not edge.inner
            }
            for unit in self.units
        }
        return {unit[0]: frozenset(edges) for unit, edges in ends.items()}

    def ready(self, filled: Collection[tuple[str, str]]) -> list[str]:
        """Return the units that can run, by their first node, consumers before their producers.

        A unit can run if every input from another unit holds an item. One without inputs never
        can: recordings are read before the first turn.

        Args:
            filled: (source, target) of the edges that hold an item.
        """
        return [
            name
            for name, edges in reversed(self._external_inputs.items())
            if edges and edges.issubset(filled)
        ]


def build_graph(recipe: Recipe) -> Graph:
    """Return the graph of a recipe's run."""
    source_kind, placement, algorithm = source_of(recipe), recipe.placement, recipe.algorithm
    on_policy = algorithm.learns_from == ROLLOUTS
    max_staleness = algorithm.staleness if on_policy else math.inf
    turns = 2.0 if placement.mode == "pipelined" else 1.0
    data_capacity = turns if on_policy else float(recipe.replay.capacity)
    data = Node(
        DATA,
        "keeps rollouts until the learner uses them"
        if on_policy
        else "keeps the replay and draws batches",
        "shards" if placement.replay_shards else "trainer",
    )
    learner = Node(
        LEARNER,
        f"{algorithm.name} updates the weights",
        "learners" if placement.learners else "trainer",
    )
    weights = Node(WEIGHTS, "sends changed weights to the acting policies", "trainer")
    evaluation = Node(
        EVALUATION, f"plays {recipe.simulation.evaluate_episodes} held-out episodes", "trainer"
    )
    learning_nodes = [data, learner]
    edges = [Edge(DATA, LEARNER, "batches", 1, max_staleness), Edge(LEARNER, WEIGHTS, "weights", 1)]
    evaluation_edges = [Edge(LEARNER, EVALUATION, "policy", 1, 0)]
    if source_kind == RECORDINGS or (
        source_kind == SIMULATORS and algorithm.learns_from == DEMONSTRATIONS
    ):
        if source_kind == SIMULATORS or is_simulated(recipe):
            return Graph((*learning_nodes, evaluation), (edges[0], *evaluation_edges))
        return Graph((*learning_nodes, weights), tuple(edges))
    if source_kind == STATIONS or recipe.learns_from_feedback:
        station = Node(
            STATION,
            "plays at its control rate and records episodes"
            if source_kind == STATIONS
            else "serves completions to clients and stores their feedback",
            "station" if source_kind == STATIONS else "trainer",
            fixed_rate=True,
        )
        edges += [
            Edge(STATION, DATA, "episodes", data_capacity, float(recipe.online.max_staleness)),
            Edge(WEIGHTS, STATION, "policy files", math.inf),
        ]
        if source_kind == STATIONS:
            return Graph((station, *learning_nodes, weights), tuple(edges))
        return Graph((station, *learning_nodes, weights, evaluation), (*edges, *evaluation_edges))
    process = "workers" if placement.workers else "trainer"
    acting_nodes = [
        Node(
            ENVIRONMENT,
            f"steps {recipe.simulation.environments} environments",
            "simulators" if placement.simulators else process,
        ),
        Node(POLICY, "acts on observations", process),
    ]
    edges += [
        Edge(ENVIRONMENT, POLICY, "observations", 1, 0, inner=True),
        Edge(POLICY, ENVIRONMENT, "actions", 1, 0, inner=True),
        Edge(WEIGHTS, POLICY, "changed weights", 1, turns - 1),
    ]
    producer = ENVIRONMENT
    if source_kind == CONVERSATIONS:
        producer = REWARD
        acting_nodes.append(Node(REWARD, "scores conversations", "trainer"))
        edges.append(Edge(ENVIRONMENT, REWARD, "conversations", 1, inner=True))
    edges.append(
        Edge(producer, DATA, "experience", data_capacity, turns - 1 if turns > 1 else max_staleness)
    )
    return Graph((*acting_nodes, *learning_nodes, weights, evaluation), (*edges, *evaluation_edges))
