"""The loop runs the nodes of the run's graph that are ready. An independent loop, whose order is
written by hand, makes the same run to the last bit.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.plan.graph import Edge, Graph, Node
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.trainer import train as training
from rlinf_core.trainer.run import Run
from tests.algorithms.point import points
from tests.trainer.test_resume import GAUSSIAN, RUNS, SMALL, numbers, weights


class ByHand(Run):
    """Updates while some are due; else evaluation, end or rollout."""

    def loop(self):
        while not self.stopping:
            self.due = self.updates_due()
            if self.is_last_stage and self.ensure_fitted() and (self.offline or not self.due):
                done = self.has_all_steps(self.due)
                judged = self.progress.last.get("env_steps") == self.steps
                if self.evaluator and (self.steps >= self.next_evaluation or (done and not judged)):
                    self._evaluate()
                elif done and self.published_at < self.updates:
                    self.publish()
                if done:
                    break
            worked = bool(self.due)
            if worked:
                self._learn(self.due)
            else:
                self.learner.sync()
                with self._off_device():
                    experience = self.source.take(self.learner.updates, self.data.rollout_length())
                self.data.put(experience, self.version)
            self._do_periodic_work(worked)
        self.save()
        return self.progress.last


def of_run(monkeypatch, kind, recipe, folder, at_progress=lambda run, entry: None):
    """Numbers and weights of a run by a loop, and the generators' states at its end."""
    ends = []

    def on_progress(run, entry):
        at_progress(run, entry)
        ends[:] = [run]

    monkeypatch.setattr(training, "Run", kind)
    training.train(recipe, folder, points, on_progress)
    (run,) = ends
    states = [
        run.data.random.bit_generator.state,
        run.learner.generator.get_state().tolist(),
        torch.get_rng_state().tolist(),
    ]
    return numbers(folder), weights(folder, points(recipe, 1).spec), states, run


OFTEN = ("sac", "rlpd", "iql", "dagger", "ppo", "grpo")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in RUNS],
)
def test_the_graph_makes_the_run_that_the_order_by_hand_makes(name, monkeypatch, tmp_path):
    steps = 1300 if GAUSSIAN[0] in RUNS[name] else 250
    recipe = load_recipe("sim_sac", [*SMALL, f"simulation.env_steps={steps}", *RUNS[name]])
    one, other = (
        of_run(monkeypatch, kind, recipe, tmp_path / kind.__name__) for kind in (ByHand, Run)
    )
    assert one[0] == other[0] and len(one[0]) >= 2
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(one[1][key], other[1][key]) for key in one[1])
    assert one[2] == other[2], "the next random numbers are the same, too"


def test_the_warm_start_alone_ends_and_is_published(monkeypatch, tmp_path):
    recipe = load_recipe(
        "sim_sac", [*SMALL, "algorithm={name: sft, steps: 30}", "simulation.evaluate_every=10"]
    )
    one, other = (
        of_run(monkeypatch, kind, recipe, tmp_path / kind.__name__) for kind in (ByHand, Run)
    )
    assert one[0] == other[0] and [entry["env_steps"] for entry in one[0]] == [0, 10, 20, 30]
    assert all(torch.equal(one[1][key], other[1][key]) for key in one[1])


def test_each_node_runs_only_when_its_inputs_are_filled_and_in_turn(monkeypatch, tmp_path):
    """Weights, rollout, data, updates, again and again; an evaluation between two turns."""
    order = []

    class Noted(Run):
        def advance(self):
            filled = self.in_flight or self._plan_turn()
            assert filled <= {(edge.source, edge.target) for edge in self.graph.edges}
            units = {unit[0]: unit for unit in self.graph.units}
            for unit in map(units.get, self.graph.ready(filled)):
                edges = [edge for node in unit for edge in self.graph.inputs(node)]
                inputs = {(edge.source, edge.target) for edge in edges if not edge.inner}
                assert inputs and inputs <= filled
            ready = super().advance()
            order.extend(ready)
            return ready

    recipe = load_recipe("sim_sac", [*SMALL, "simulation.env_steps=80", *RUNS["sac"]])
    *_, run = of_run(monkeypatch, Noted, recipe, tmp_path)
    turns = "".join(node[0] for node in order if node != "evaluation")  # w e d l
    assert set(turns) == set("wedl") and turns.replace("l", "") == "wed" * turns.count("w")
    assert order.count("evaluation") == len(read_evaluations(tmp_path)) == 2
    assert run.graph.units[0] == ("environment", "policy")


def test_a_run_that_is_stopped_with_experience_on_its_way_inserts_it_first(monkeypatch, tmp_path):
    """A checkpoint holds it: no time step is lost."""
    took = []

    class Stopped(Run):
        def _play(self):
            super()._play()
            took.append(self.experience.steps)
            self.stopping = sum(took) >= 40

    recipe = load_recipe("sim_sac", [*SMALL, "simulation.env_steps=4000", *RUNS["sac"]])
    *_, run = of_run(monkeypatch, Stopped, recipe, tmp_path)
    assert run.data.steps == sum(took) >= 40 and not run.in_flight


def test_units_are_joined_by_inner_edges_and_ready_by_the_others():
    nodes = tuple(Node(name, "", "trainer") for name in "abcd")
    edges = (
        Edge("c", "a", "x", 1, inner=True),
        Edge("a", "b", "y", 1),
        Edge("d", "c", "z", 1),
    )
    graph = Graph(nodes, edges)
    assert graph.units == (("a", "c"), ("b",), ("d",))
    assert graph.ready(()) == [], "a node without inputs is never ready"
    assert graph.ready({("d", "c")}) == ["a"]
    assert graph.ready({("d", "c"), ("a", "b")}) == ["b", "a"], "consumers come first"
    assert graph.ready({("c", "a")}) == []
    unjoined = Graph(nodes, tuple(replace(edge, inner=False) for edge in edges))
    assert unjoined.units == (("a",), ("b",), ("c",), ("d",))
    assert unjoined.ready({("c", "a")}) == ["a"]
    assert np.all([len(unit) for unit in unjoined.units])
