"""Minibatches of rollouts that do not come out even among the processes that learn as one."""

import pytest

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common import on_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.collect import ChunkRollouts
from rlinf_core.trainer.learner_setup import initial_policy
from tests.algorithms.point import SPEC, Points


@pytest.mark.parametrize("processes, sizes", [(1, [3, 3, 2]), (2, [3, 3, 2]), (3, [4, 4])])
def test_no_process_is_left_without_a_row(monkeypatch, processes, sizes):
    recipe = load_recipe(
        "sim_ppo", ["policy.hidden=[8]", "algorithm.minibatches=3", "algorithm.epochs=1"]
    )
    policy, taken = initial_policy(recipe, SPEC, None), []
    learner = algorithm("ppo").Learner(policy, recipe.algorithm, 0)
    (rollout,) = ChunkRollouts(Points(4), policy, 0).play(chunks=2).rollouts
    monkeypatch.setattr(on_policy, "world_size", lambda: processes)
    monkeypatch.setattr(learner, "step", lambda batch: taken.append(len(batch["weights"])) or {})
    learner.update(rollout)
    assert taken == sizes
