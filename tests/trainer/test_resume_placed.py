"""A run resumed on another placement goes on; what a resumed run cannot change is refused
by name.
"""

from contextlib import suppress

import pytest
import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.collect import ChunkRollouts
from rlinf_core.rollouts.types import Experience
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.data import RolloutData
from rlinf_core.trainer.distributed.ray_cluster import connect, disconnect
from rlinf_core.trainer.governor import make_governor
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPEC, Points
from tests.trainer.test_resume import CRITICS, GAUSSIAN, SMALL, Stopped

pytestmark = pytest.mark.timed

KINDS = {
    "dapo": ["algorithm={name: dapo, group: 2}", *GAUSSIAN, "simulation.env_steps=600"],
    "ppo": ["algorithm={name: ppo, chunks: 16, epochs: 2}", *GAUSSIAN, "simulation.env_steps=600"],
    "rlpd": [f"algorithm={{name: rlpd, {CRITICS}, critic_warmup: 0}}", "simulation.env_steps=240"],
    "dagger": ["algorithm={name: dagger, batch_size: 16}", "simulation.env_steps=240"],
    "iql": [f"algorithm={{name: iql, {CRITICS}, steps: 120}}", "simulation.env_steps=240"],
}
HERE = ["simulation.environments=4"]
ON_RAY = ["simulation.environments=8", "placement={workers: 2, learners: 2}"]
FEWER = ["simulation.environments=4", "placement={workers: 1, learners: 1}"]


def points(recipe, size):
    return Points(size)


def recipe_of(name, *more):
    if name == "iql":  # which plays nothing: its learners alone are placed
        more = [
            override.replace("workers: 2, ", "").replace("workers: 1, ", "") for override in more
        ]
    return load_recipe("sim_sac", [*SMALL, *KINDS[name], *more])


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all of this file: runs leave it as they found it."""
    connect(num_cpus=4)
    yield
    disconnect()


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "first, then",
    [(HERE, ON_RAY), (ON_RAY, HERE), (FEWER, ON_RAY), (ON_RAY, FEWER)],
    ids=["to Ray", "from Ray", "more", "fewer"],
)
def test_a_run_goes_on_in_other_processes(name, first, then, tmp_path):
    recipe = recipe_of(name, *first)
    end = 120 if name == "iql" else recipe.simulation.env_steps

    def on_progress(run, entry):
        if run.is_last_stage and run.steps >= end // 2 and not entry:
            run.stopping = True

    with suppress(Stopped):
        train(recipe, tmp_path, points, on_progress)
    before = checkpoint.load(checkpoint.checkpoints(tmp_path / "checkpoints")[-1])["learner"][
        "updates"
    ]
    last = train(recipe_of(name, *then), tmp_path, points)
    assert last["env_steps"] >= end and last["updates"] >= before
    policy = load_policy(max((tmp_path / "policies").iterdir()), SPEC)
    assert all(torch.isfinite(weights).all() for weights in policy.state_dict().values())


def rollout_data(workers):
    more = [f"placement.workers={workers}"] if workers else []
    recipe = load_recipe("sim_sac", [*SMALL, *KINDS["dapo"], "simulation.environments=8", *more])
    policy = make_policy(SPEC, recipe.policy)
    learner = algorithm("dapo").Learner(policy, recipe.algorithm)
    return RolloutData(recipe, policy, make_governor(recipe, 25)), learner


@pytest.mark.parametrize("before, after", [(0, 4), (1, 2), (2, 4), (4, 1), (4, 0), (2, 2)])
def test_a_round_of_rollouts_is_one_round_with_any_number_of_workers(before, after):
    """A run resumed with more workers divided by its rounds, of which it then counted none."""
    data, learner = rollout_data(before)
    rollout = ChunkRollouts(Points(4, shaping=0.0), data.policy).play(group=2).rollouts[0]
    rollout.step_rewards[:] = 0.0  # of no group is anything learned
    for _ in range(3):
        data.put(Experience(rollouts=[rollout] * max(before, 1), steps=4), 0)
    resumed, _ = rollout_data(after)
    resumed.load_state_dict(checkpoint.unflatten(*checkpoint.flatten(data.state_dict())))
    for run_data in (data, resumed):
        assert run_data.rounds == 3 and run_data.due(0, learner) == 0
    for _ in range(3):
        resumed.put(Experience(rollouts=[rollout] * max(after, 1), steps=4), 0)
    assert resumed.rounds == 6 and resumed.due(0, learner) == 1, (
        "after max_resample rounds it learns"
    )


@pytest.mark.parametrize("taken, workers, rounds", [(1, 2, 1), (6, 2, 3), (0, 0, 1), (2, 0, 2)])
def test_an_older_checkpoint_counts_rollouts(taken, workers, rounds):
    data, learner = rollout_data(0)
    data.put(
        Experience(
            rollouts=[ChunkRollouts(Points(4), data.policy).play(group=2).rollouts[0]], steps=4
        ),
        0,
    )
    state = data.state_dict()
    del state["rounds"]
    resumed, _ = rollout_data(workers)
    resumed.load_state_dict(checkpoint.unflatten(*checkpoint.flatten(state)) | {"taken": taken})
    assert resumed.rounds == rounds
    resumed.due(0, learner)


@pytest.mark.parametrize(
    "name, change, key",
    [
        ("rlpd", "placement.replay_shards=2", "placement.replay_shards: expected 0, .* got 2"),
        ("dapo", "algorithm.group=4", "algorithm.group: expected 2, .* got 4"),
    ],
)
def test_what_a_resumed_run_cannot_change_is_refused_by_name_before_anything_starts(
    name, change, key, tmp_path
):
    recipe = recipe_of(name, *HERE)

    def on_progress(run, entry):
        run.stopping = True

    train(recipe, tmp_path, points, on_progress)
    recipe_text = (tmp_path / "recipe.yaml").read_text()

    def make(recipe, size):
        raise AssertionError("nothing starts")

    with pytest.raises(RecipeError, match=key):
        train(recipe_of(name, *HERE, change), tmp_path, make)
    assert (tmp_path / "recipe.yaml").read_text() == recipe_text


def test_a_hidden_file_beside_checkpoints_keeps_none_from_being_written(tmp_path):
    (tmp_path / ".DS_Store").write_text("of another program")
    (tmp_path / ".updates-000000001.part").mkdir()
    folder = checkpoint.save(tmp_path, "updates-000000001", {"run": {"stage": 0}})
    assert checkpoint.load(folder)["run"] == {"stage": 0} and (tmp_path / ".DS_Store").exists()
    assert not (tmp_path / ".updates-000000001.part").exists()


def test_rollouts_that_wait_are_kept_side_by_side():
    data, learner = rollout_data(0)
    first, second = (
        ChunkRollouts(Points(4), data.policy, seed).play(group=2).rollouts[0] for seed in (1, 2)
    )
    data.put(Experience(rollouts=[first, second], steps=8), 0)
    resumed, _ = rollout_data(0)
    state = checkpoint.unflatten(*checkpoint.flatten(data.state_dict()))
    resumed.load_state_dict(state)
    (joined,) = resumed.waiting
    assert resumed.rounds == 1 and joined.mask.shape[1] == 8
    assert joined.mask.sum() == first.mask.sum() + second.mask.sum()
    length = len(first.actions)
    assert torch.equal(joined.actions[:length, :4], first.actions)
    assert torch.equal(joined.actions[: len(second.actions), 4:], second.actions)
    batch, again = data.batch(), resumed.batch()
    assert torch.equal(batch.log_probs, again.log_probs) and torch.equal(batch.mask, again.mask)
    assert (data.waiting, data.rounds, resumed.waiting, resumed.rounds) == ([], 0, [], 0)
    assert data.state_dict()["waiting"] == {}
    resumed.load_state_dict(checkpoint.unflatten(*checkpoint.flatten(data.state_dict())))
    assert resumed.waiting == [] and resumed.rounds == 0
