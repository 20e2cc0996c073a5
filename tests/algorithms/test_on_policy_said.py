"""The sampling rule of DAPO, and the metrics of the PPO family."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RecipeError
from rlinf_core.trainer.distributed.group import LearnerGroup
from tests.algorithms.test_on_policy_updates import rollout_of, setting


def test_dapo_looks_for_groups_that_teach_by_what_it_learns_from():
    """All alike succeed; which of them took longer teaches, or teaches nothing, in both."""
    for safe, more in ((0, True), (1, False)):
        learner, collector = setting("dapo", max_resample=5, safe_length=safe, length_buffer=4)
        rollout = collector.episodes(4)
        rollout.step_rewards = torch.zeros(len(rollout.mask), 8, 1)
        rollout.mask = torch.ones(len(rollout.mask), 8)
        rollout.step_rewards[0], rollout.mask[2:, ::2] = 1.0, 0.0
        assert learner.needs_more_rollouts(rollout, 1) is more
        group = SimpleNamespace(learner=type(learner), config=learner.config)
        assert LearnerGroup.needs_more_rollouts(group, rollout, 1) is more, (
            "so does a group, whose learners are elsewhere"
        )
        assert bool(learner.prepare(rollout)["weights"].any()) is not more


@pytest.mark.parametrize("name", ["ppo", "async_ppo", "grpo", "reinforce"])
@pytest.mark.parametrize("minibatches", [1, 8, 1000])
def test_few_chunks_are_learned_from_too_however_many_minibatches_there_are_to_be(
    name, minibatches
):
    learner, collector = setting(name, epochs=1, minibatches=minibatches, learning_rate=0.01)
    rollout = rollout_of(learner, collector)
    indices = torch.nonzero(rollout.mask.flatten()).squeeze(-1)
    rollout.mask.view(-1)[indices[5:]] = 0.0
    before = [parameter.clone() for parameter in learner.policy.parameters()]
    assert learner.update(rollout)["loss"] == pytest.approx(0.0, abs=10.0)
    assert any(
        not torch.equal(old, new)
        for old, new in zip(before, learner.policy.parameters(), strict=True)
    )


def test_what_was_never_played_dilutes_no_metric_and_what_was_not_clipped_is_not_called_so():
    learner, collector = setting(
        "async_ppo", level="action", clip_low=0.1, clip_high=0.1, horizon=4
    )
    rollout = rollout_of(learner, collector)
    batch = {
        "vectors": rollout.observations["vectors"][0],
        "actions": rollout.actions[0],
        "advantages": torch.ones(16),
        "weights": torch.ones(16),
        "executed": torch.zeros_like(rollout.executed[0]),
        "returns": torch.ones(16),
        "values": torch.ones(16),
    }
    batch["executed"][:, 0] = 1.0
    log_probs, _ = learner.policy.log_probs(batch, batch["actions"])
    batch |= {"log_probs": log_probs.detach() - 1.0, "proximal": log_probs.detach()}
    _, metrics = learner.loss(batch)
    assert metrics["clipped"] == 0.0 and metrics["kl"] == pytest.approx(np.e - 2.0, rel=1e-4)
    _, metrics = learner.loss(batch | {"proximal": log_probs.detach() - 0.2})
    assert metrics["clipped"] == pytest.approx(1.0)


def test_a_checkpoint_whose_networks_have_other_parts_is_refused_in_words():
    learner, _ = setting("ppo")
    state = learner.state_dict()
    del state["modules"]["value"]["encoder.mean"]
    with pytest.raises(
        RecipeError,
        match="whose value has the checkpoint.s parts, .* differs in 1, as encoder.mean",
    ):
        learner.load_state_dict(state)
