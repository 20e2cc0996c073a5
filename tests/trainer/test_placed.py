"""Runs whose learners and rollout workers are processes on Ray: what they become is what one
process makes of them.
"""

import os
import signal
import time

import numpy as np
import pytest
import ray
import torch

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.rollouts.collect import EpisodeRollouts
from rlinf_core.trainer.distributed.ray_cluster import connect, connected, disconnect
from rlinf_core.trainer.distributed.rollout_workers import RolloutRequest, RolloutWorkers, Worker
from rlinf_core.trainer.distributed.weights import WeightUpdate
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPEC, Points
from tests.trainer.test_simulators import recipe_of

pytestmark = pytest.mark.timed

RLPD = (
    "algorithm={name: rlpd, batch_size: 16, critic_hidden: [16], critics: 2, critic_warmup: 0}",
    "policy.hidden=[16]",
    "collect.episodes=2",
    "sft.steps=6",
    "sft.batch_size=16",
    "simulation.env_steps=60",
    "simulation.start_steps=20",
    "simulation.evaluate_every=30",
    "simulation.evaluate_episodes=4",
    "simulation.updates_per_step=0.25",
)


@pytest.fixture(autouse=True, scope="module")
def cluster():
    """One for all of this file: runs leave it as they found it."""
    connect(num_cpus=2)
    yield
    disconnect()


def points(recipe, size):
    return Points(size)


def weights(folder):
    policy = load_policy(max((folder / "policies").iterdir()), SPEC)
    return torch.cat([value.flatten().float() for value in policy.state_dict().values()])


def test_a_process_that_is_in_another_cluster_says_so():
    with pytest.raises(
        RlinfError,
        match="to join the Ray cluster at 10.0.0.1:6379, but this process has already joined "
        "the one at ",
    ):
        connect("10.0.0.1:6379")
    assert connect(ray.get_runtime_context().gcs_address) is ray is connect()


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_learners_on_ray_make_the_run_of_one_process_though_one_is_killed_in_it(tmp_path):
    alone = train(recipe_of("sac", *RLPD), tmp_path / "alone", points)
    killed = []

    def on_progress(run, entry):
        if run.is_last_stage and run.learner.updates >= 8 and not killed:
            pid = ray.get(run.learner.processes[1].pid.remote())
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    placed = train(
        recipe_of("sac", *RLPD, "placement={learners: 2}"), tmp_path / "placed", points, on_progress
    )
    assert killed and placed["updates"] == alone["updates"] == 10
    assert connected(), "it ends what it began, and no more"
    end = time.monotonic() + 60
    while ray.available_resources().get("CPU") != 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert torch.allclose(weights(tmp_path / "alone"), weights(tmp_path / "placed"), atol=1e-5)
    for one, two in zip(
        *(read_evaluations(tmp_path / name) for name in ("alone", "placed")), strict=True
    ):
        assert one["return"] == pytest.approx(two["return"], abs=1e-4)
        assert {name for name in one if "loss" in name} == {name for name in two if "loss" in name}
        assert all(
            one[name] == pytest.approx(two[name], abs=1e-4) for name in one if "loss" in name
        )


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_rollout_worker_that_dies_is_replaced_and_the_run_goes_on(tmp_path, capsys):
    killed = []

    def on_progress(run, entry):
        if not killed and run.data.steps > 40:
            worker = run.source.players.workers[0]
            killed.append(ray.get(worker.pid.remote()))
            os.kill(killed[0], signal.SIGKILL)

    last = train(
        recipe_of(
            "sac",
            "placement.workers=1",
            "simulation.env_steps=200",
            "simulation.start_steps=100",
            "simulation.evaluate_every=200",
            "policy.hidden=[16]",
        ),
        tmp_path,
        points,
        on_progress,
    )
    assert killed and last["env_steps"] == 200 and last["updates"] == 100
    assert "a rollout worker died and is replaced (1 of 3)" in capsys.readouterr().out
    assert np.isfinite(weights(tmp_path)).all()


@pytest.mark.slow
def test_a_rollout_worker_gets_the_weights_that_changed_and_its_successor_gets_all():
    """It plays like a worker that gets all weights each time."""
    recipe = recipe_of(
        "sac", "placement.workers=1", "simulation.environments=1", "policy.hidden=[16]"
    )
    policy = make_policy(SPEC, recipe.policy)
    players = RolloutWorkers(recipe, points, EpisodeRollouts, policy)
    here = Worker(recipe, points, EpisodeRollouts, recipe.seed, recipe.scene(0))

    def played(version):
        players.start(version, {"steps": 40})
        brought, _ = players.take()
        weights = {name: tensor.numpy().copy() for name, tensor in policy.state_dict().items()}
        expected, _ = here.play(
            RolloutRequest(version, {"steps": 40}, 1), WeightUpdate(0, 1, weights)
        )
        assert brought[0].trajectories
        for one, other in zip(brought[0].trajectories, expected.trajectories, strict=True):
            np.testing.assert_array_equal(one.actions, other.actions)
        update = ray.get(players.update)
        return {name.partition(".")[0] for name in update.full | update.parts}, players.sent_bytes

    everything = sum(tensor.nbytes for tensor in policy.state_dict().values())
    assert played(0)[1] == everything
    assert played(1) == (set(), 0)
    torch.nn.init.normal_(policy.head.weight)
    assert played(2) == ({"head"}, policy.head.weight.nbytes)
    with torch.no_grad():
        policy.trunk[0].weight[0, 0] += 1.0
    assert played(3) == ({"trunk"}, 12), "one word and its place"
    os.kill(ray.get(players.workers[0].pid.remote()), signal.SIGKILL)
    players.start(4, {"steps": 40})
    assert players.take()[0][0].steps == 40 and players.died == 1, "by one that was sent everything"
    players.close()


def test_a_placement_that_this_machine_lacks_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(RecipeError, match="ask for 2 x 99 .* GPUs; this machine has "):
        train(
            recipe_of("sac", *RLPD, "placement={learners: 2, learner_gpus: 99}"),
            tmp_path / "run",
            points,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: NCCL is not run")
def test_a_learner_and_a_worker_share_a_gpu(tmp_path):
    """NCCL connects them if the learner is one process; the run equals that of one process."""
    ppo = (
        "simulation.env_steps=480",
        "simulation.environments=8",
        "simulation.evaluate_every=240",
        "policy.hidden=[16]",
        "algorithm={name: async_ppo, chunks: 20}",
    )
    alone = train(recipe_of("ppo", *ppo, "device=cuda"), tmp_path / "alone", points)
    shared = "placement={learners: 1, workers: 1, learner_gpus: 0.6, worker_gpus: 0.4}"
    placed = train(recipe_of("ppo", *ppo, shared), tmp_path / "placed", points)
    assert (
        placed["updates"] == alone["updates"] and placed["env_steps"] == alone["env_steps"] == 480
    )
    assert torch.allclose(weights(tmp_path / "alone"), weights(tmp_path / "placed"), atol=1e-4)
