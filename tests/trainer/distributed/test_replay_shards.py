"""A replay in processes on Ray: what it draws, that it goes on exactly, and that one of its
processes may die.
"""

import os
import signal

import numpy as np
import pytest
import ray
from scipy import stats

from rlinf_core.core.errors import RecipeError
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.trainer.distributed.replay_shards import ReplayShards

pytestmark = pytest.mark.timed

LENGTHS, MAX_ORIGIN = (7, 3, 12, 1, 9, 5), (1, 2, 1, 2, 1, 3)


def fill(replay, first=0):
    """Episodes whose vectors say which transition they are."""
    number = first
    for length, origin in zip(LENGTHS, MAX_ORIGIN, strict=True):
        rows = np.arange(number, number + length + 1, dtype=np.float32)
        replay.insert_episode(
            {"vectors": np.repeat(rows[:, None], replay.spec.vector_size, axis=1)},
            np.zeros((length, replay.spec.action.dim), np.float32),
            rows[1:],
            np.ones(length, np.float32),
            origin=origin,
            prefix_lengths=rows[:-1] % 3,
        )
        number += 100
    return replay


def transitions():
    return np.concatenate([100 * k + np.arange(length) for k, length in enumerate(LENGTHS)])


@pytest.fixture
def shards(task):
    replays = []

    def make(count=3, capacity=300):
        replays.append(ReplayShards(task.spec, capacity, prefixes=True, shards=count))
        return replays[-1]

    yield make
    for replay in replays:
        replay.close()


def test_what_is_drawn_is_distributed_as_from_one_replay(shards, task, random):
    spread, one = fill(shards()), fill(ReplayBuffer(task.spec, 300, prefixes=True))
    assert len(spread) == len(one) == 37 and spread.inserted == 37 and spread.episodes == 6
    assert (spread.present_by_origin() == one.present_by_origin()).all() and (
        spread.inserted_by_origin == one.inserted_by_origin
    ).all()
    assert sorted(spread.vectors()[:, 0]) == sorted(one.vectors()[:, 0])
    batch = spread.sample(7400, random, horizon=2, gamma=0.9, n_step=3)
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        name: (values.shape, values.dtype)
        for name, values in one.sample(7400, random, 2, 0.9, n_step=3).items()
    }
    np.testing.assert_array_equal(batch["prefix_length"], batch["vectors"][:, 0] % 3)
    counts = [int((batch["vectors"][:, 0] == number).sum()) for number in transitions()]
    assert sum(counts) == 7400 and stats.chisquare(counts).pvalue > 1e-4
    assert spread.sampled.sum() == 7400 and spread.sampled[3] == counts[-1] + sum(counts[-5:-1])
    np.testing.assert_array_equal(
        batch["next/vectors"][:, 0], batch["vectors"][:, 0] + batch["steps"]
    )


def test_with_weights_each_origin_comes_as_often_as_they_say_whatever_shard_has_it(shards, random):
    spread = fill(shards())
    weights = np.zeros(256)
    weights[[1, 2]] = 1.0, 3.0
    spread.sample(8000, random, weights=weights)
    assert spread.sampled[[0, 3]].sum() == 0
    assert stats.binomtest(int(spread.sampled[1]), 8000, 0.25).pvalue > 1e-4


@pytest.mark.parametrize("saved", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_shard_that_is_killed_comes_back_with_what_it_held_and_draws_the_same(
    shards, random, capfd, saved
):
    spread, undisturbed = fill(shards()), fill(shards())
    if saved:
        spread.state_dict()
        fill(spread, 1000), fill(undisturbed, 1000)
    for victim in (0, 2):
        os.kill(ray.get(spread._actors[victim].pid.remote()), signal.SIGKILL)
        one, other = (
            replay.sample(64, np.random.default_rng(victim)) for replay in (spread, undisturbed)
        )
        np.testing.assert_array_equal(one["vectors"], other["vectors"])
    assert spread.died == 2 and len(spread) == len(undisturbed)
    assert "replay shard 0 died and is restarted with 2 episodes since" in capfd.readouterr().out
    assert sorted(spread.vectors()[:, 0]) == sorted(undisturbed.vectors()[:, 0])


def test_it_goes_on_from_its_state_with_as_many_shards(shards, random):
    spread = fill(shards())
    spread.sample(10, random)
    again = shards()
    again.load_state_dict(spread.state_dict())
    one, other = (replay.sample(50, np.random.default_rng(1)) for replay in (spread, again))
    np.testing.assert_array_equal(one["vectors"], other["vectors"])
    assert (again.episodes, again.inserted, len(again)) == (6, 37, 37) and (
        again.sampled == spread.sampled
    ).all()
    with pytest.raises(
        RecipeError,
        match="placement.replay_shards: expected 3, the number in the checkpoint, got 2",
    ):
        shards(2).load_state_dict(spread.state_dict())
    with pytest.raises(RecipeError, match="expected 0, the number in the checkpoint, got"):
        shards(2).load_state_dict(fill(ReplayBuffer(spread.spec, 300)).state_dict())


@pytest.mark.slow
def test_a_run_with_a_replay_on_ray_learns_though_a_shard_is_killed_and_resumes(tmp_path):
    from rlinf_core.trainer.train import train
    from tests.trainer.test_placed import points, recipe_of

    killed = []

    def on_progress(run, entry):
        if run.data.steps > 60 and not killed:
            killed.append(ray.get(run.data.online._actors[0].pid.remote()))
            os.kill(killed[0], signal.SIGKILL)

    settings = (
        "placement.replay_shards=2",
        "simulation.start_steps=50",
        "simulation.evaluate_every=200",
        "policy.hidden=[16]",
    )
    last = train(
        recipe_of("sac", *settings, "simulation.env_steps=200"), tmp_path, points, on_progress
    )
    assert killed and last["env_steps"] == 200
    assert (
        train(recipe_of("sac", *settings, "simulation.env_steps=300"), tmp_path, points)[
            "env_steps"
        ]
        == 300
    )


def test_a_shard_that_dies_again_while_it_is_filled_holds_each_episode_once(task):
    """Two deaths in a row, as where memory is short; in this process, so that it dies where a test
    says.
    """

    class Here:
        """A stand-in for a shard's process."""

        def __init__(self, *arguments):
            self.shard, self.left = ReplayBuffer(*arguments), deaths.pop() if deaths else 10**9
            self.put = self.restore = self
            self.remote = self.take

        def take(self, what):
            self.left -= 1
            if self.left < 0:
                raise ray.exceptions.RayActorError
            if "next" in what:
                self.shard.load_state_dict(what)
            else:
                self.shard.insert_episode(**what)
            return len(self.shard), self.shard.present_by_origin()

    class Replay(ReplayShards):
        def _spawn(self):
            return Here(*self.buffer_arguments)

    deaths = []
    replay = Replay(task.spec, 2000, shards=1)
    replay.ray = type(
        "Local", (), {"get": staticmethod(lambda it: it), "put": staticmethod(lambda it: it)}
    )
    fill(replay)
    before = len(replay)
    deaths[:] = [4, 2]  # the next one after two episodes, the one after it after four
    replay._actors[0].left = 0
    fill(replay)
    assert len(replay) == 2 * before and replay.died == 3
