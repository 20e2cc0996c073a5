"""A run as data: nodes, and edges with capacity and allowed staleness, derived from a recipe."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from rlinf_core.algorithms.common.settings import DEMONSTRATIONS, ROLLOUTS
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.sources import CONVERSATIONS, RECORDINGS, SIMULATORS, STATIONS, source_of
from rlinf_core.recipes.station import simulated

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
    """

    source: str
    target: str
    carries: str
    capacity: float
    staleness: float = math.inf


@dataclass(frozen=True)
class Graph:
    """Nodes in the order of one turn, and the edges between them."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def inputs(self, name: str) -> tuple[Edge, ...]:
        """Return the edges that end in a node."""
        return tuple(edge for edge in self.edges if edge.target == name)

    def ready(self, filled: Collection[tuple[str, str]]) -> list[str]:
        """Return the names of nodes whose inputs are all filled.

        Args:
            filled: (source, target) of the edges that hold an item.
        """
        return [
            node.name
            for node in self.nodes
            if all((edge.source, edge.target) in filled for edge in self.inputs(node.name))
        ]


def graph_of(recipe: Recipe) -> Graph:
    """Return the graph of a recipe's run."""
    kind, placement, algorithm = source_of(recipe), recipe.placement, recipe.algorithm
    learner = Node(
        LEARNER,
        f"{algorithm.name} updates the weights",
        "learners" if placement.learners else "trainer",
    )
    weights = Node(WEIGHTS, "sends changed weights to the acting policies", "trainer")
    data = Node(
        DATA,
        "keeps rollouts until the learner uses them"
        if algorithm.learns_from == ROLLOUTS
        else "keeps the replay and draws batches",
        "shards" if placement.replay_shards else "trainer",
    )
    stale = algorithm.staleness if algorithm.learns_from == ROLLOUTS else math.inf
    turns = 2.0 if placement.mode == "pipelined" else 1.0
    experience = turns if algorithm.learns_from == ROLLOUTS else float(recipe.replay.capacity)
    edges = [Edge(DATA, LEARNER, "batches", 1, stale)]
    if kind == RECORDINGS or (kind == SIMULATORS and algorithm.learns_from == DEMONSTRATIONS):
        nodes = [data, learner]
    elif kind == STATIONS:
        nodes = [
            Node(
                STATION,
                "plays at its control rate and records episodes",
                "station",
                fixed_rate=True,
            ),
            data,
            learner,
            weights,
        ]
        edges += [
            Edge(STATION, DATA, "episodes", experience, float(recipe.online.max_staleness)),
            Edge(LEARNER, WEIGHTS, "weights", 1),
            Edge(WEIGHTS, STATION, "policy files", math.inf, math.inf),
        ]
    else:
        process = "workers" if placement.workers else "trainer"
        away = "simulators" if placement.simulators else process
        nodes = [
            Node(ENVIRONMENT, f"steps {recipe.simulation.environments} environments", away),
            Node(POLICY, "acts on observations", process),
            data,
            learner,
            weights,
        ]
        edges += [
            Edge(ENVIRONMENT, POLICY, "observations", 1, 0),
            Edge(POLICY, ENVIRONMENT, "actions", 1, 0),
            Edge(ENVIRONMENT, DATA, "experience", experience, turns - 1 if turns > 1 else stale),
            Edge(LEARNER, WEIGHTS, "weights", 1),
            Edge(WEIGHTS, POLICY, "changed weights", 1, turns - 1),
        ]
        if kind == CONVERSATIONS:
            nodes.insert(2, Node(REWARD, "scores conversations", "trainer"))
            edges = [edge for edge in edges if (edge.source, edge.target) != (ENVIRONMENT, DATA)]
            edges += [
                Edge(ENVIRONMENT, REWARD, "conversations", 1),
                Edge(REWARD, DATA, "experience", experience, stale),
            ]
    if kind in (SIMULATORS, CONVERSATIONS) or (kind == RECORDINGS and simulated(recipe)):
        nodes.append(
            Node(
                EVALUATION,
                f"plays {recipe.simulation.evaluate_episodes} held-out episodes",
                "trainer",
            )
        )
        edges.append(Edge(LEARNER, EVALUATION, "policy", 1, 0))
    return Graph(tuple(nodes), tuple(edges))
