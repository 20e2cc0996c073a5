"""Learners and rollout workers change in number between two turns: weights stay those of an
undisturbed run.
"""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RecipeError, RestartLimitError
from rlinf_core.plan import layout_controller as controller
from rlinf_core.plan.cost import Layout, Machine
from rlinf_core.policies import make_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.curves import read_events
from rlinf_core.rollouts.collect import EpisodeRollouts
from rlinf_core.trainer.distributed import remote_envs
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.distributed.remote_envs import RemoteEnvs, make_rollouts
from rlinf_core.trainer.distributed.rollout_workers import RolloutWorkers
from rlinf_core.trainer.layout_change import change_layout
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPEC, Points
from tests.trainer.distributed.test_group import (
    alone,
    assert_alike,
    batch_of,
    both_learn,
    config_of,
    policy_of,
)
from tests.trainer.test_placed import RLPD, weights
from tests.trainer.test_simulators import recipe_of

pytestmark = [pytest.mark.timed, pytest.mark.timeout(280)]


def points(recipe, size):
    return Points(size)


class KilledInChange(LearnerGroup):
    """A process dies after the change has begun."""

    victims = 0

    def _join(self):
        if self.victims:
            self.victims -= 1
            os.kill(self.ray.get(self.processes[0].pid.remote()), signal.SIGKILL)
        super()._join()


def test_learners_change_from_one_to_two_and_back_though_one_is_killed_in_the_change(
    cluster, capfd
):
    random = np.random.default_rng(3)
    learner = alone("rlpd")
    group = KilledInChange(
        "rlpd", policy_of("rlpd"), config_of("rlpd"), 3, size=1, strategy="ddp", cpus=0.25
    )
    both_learn(group, learner, [batch_of("rlpd", random) for _ in range(3)])
    group.victims = 1
    group.resize(2)
    assert group.size == len(group.processes) == 2 and group.failures == 1
    both_learn(group, learner, [batch_of("rlpd", random) for _ in range(3)])
    survivor = cluster.get(group.processes[0].pid.remote())
    group.resize(1)
    assert cluster.get(group.processes[0].pid.remote()) == survivor, (
        "it goes on, and does not start anew"
    )
    both_learn(group, learner, [batch_of("rlpd", random) for _ in range(3)])
    assert_alike(group.state_dict(), learner.state_dict())
    with pytest.raises(RecipeError, match="learn from as many rows each"):
        group.resize(5)
    both_learn(group, learner, [batch_of("rlpd", random)])
    assert group.size == 1, "a refused change leaves the group as it was"
    group.close()


def test_workers_change_in_number_and_no_time_step_is_lost(cluster):
    recipe = load_recipe(
        "sim_sac",
        [
            "policy.hidden=[16]",
            "simulation.environments=4",
            "placement={auto: true, workers: 1}",
            "simulation.start_steps=0",
        ],
    )
    players = RolloutWorkers(recipe, points, EpisodeRollouts, make_policy(SPEC, recipe.policy))
    played = brought = 0

    def take():
        nonlocal played, brought
        for experience in players.take()[0]:
            played += experience.steps
            brought += sum(len(trajectory) for trajectory in experience.trajectories)

    for workers in (1, 2, 4, 1):
        players.resize(workers)
        assert len(players.workers) == workers
        players.start(0, {"steps": 30})
        players.resize(workers)  # with a request on its way, which comes with the next answer
        take()
    players.resize(2)
    players.start(0, {"steps": 10})
    players.resize(1)
    take()
    for experience in players.cut():
        brought += sum(len(trajectory) for trajectory in experience.trajectories)
    assert played == brought == 4 * (4 * 30 + 10)
    assert players.spawned == 1 + 1 + 2 + 1, "each has seeds and scenes of its own"
    with pytest.raises(RecipeError, match="a divisor of the 4 environments, got 3"):
        players.resize(3)
    players.resources = {"num_cpus": 1.0, "num_gpus": 1.0}
    with pytest.raises(RestartLimitError, match="expected room for 1 processes of 1 CPU, 1 GPU"):
        players.resize(2)
    assert len(players.workers) == 1, "a refused change leaves the workers as they were"
    players.close()


def test_workers_that_are_killed_around_a_change_are_replaced_and_requests_are_repeated(
    cluster, capfd
):
    recipe = load_recipe(
        "sim_sac",
        [
            "policy.hidden=[16]",
            "simulation.environments=4",
            "placement={auto: true, workers: 2}",
            "simulation.start_steps=0",
        ],
    )
    players = RolloutWorkers(recipe, points, EpisodeRollouts, make_policy(SPEC, recipe.policy))

    def pid(index):
        return cluster.get(players.workers[index].pid.remote())

    def steps():
        return sum(experience.steps for experience in players.take()[0])

    players.start(0, {"steps": 20})
    assert steps() == 80
    victim = pid(0)
    players.start(1, {"steps": 2000})
    os.kill(victim, signal.SIGKILL)  # with its request on the way
    players.resize(1)
    players.start(2, {"steps": 20})
    assert steps() == 8000 + 80 and players.died == 1, "its request was repeated"
    os.kill(pid(0), signal.SIGKILL)  # the only one, between two requests
    players.resize(2)
    os.kill(pid(1), signal.SIGKILL)  # a new one, before its first request
    players.start(3, {"steps": 20})
    assert steps() == 80 and players.died == 3
    players.close()


@pytest.mark.slow
def test_a_run_whose_layout_changes_learns_what_an_undisturbed_one_learns(cluster, tmp_path):
    auto = "placement={auto: true, fixed: [workers, learners, mode]}"
    undisturbed = train(recipe_of("sac", *RLPD, auto), tmp_path / "alone", points)
    layouts = [Layout(0, 1), Layout(0, 2), Layout(0, 1), Layout(0, 0)]

    def on_progress(run, entry):
        if run.is_last_stage and layouts and run.learner.updates >= 2 * (5 - len(layouts)):
            change_layout(run, layouts.pop(0))

    placed = train(recipe_of("sac", *RLPD, auto), tmp_path / "placed", points, on_progress)
    assert not layouts and placed["updates"] == undisturbed["updates"] == 20
    assert torch.allclose(weights(tmp_path / "alone"), weights(tmp_path / "placed"), atol=1e-5)


@pytest.mark.slow
def test_a_run_chooses_its_layout_and_goes_on_from_a_checkpoint_of_another(cluster, tmp_path):
    small = (
        "policy.hidden=[16]",
        "simulation.environments=4",
        "simulation.start_steps=100",
        "placement=auto",
        "simulation.evaluate_every=100000",
        "simulation.updates_per_step=0.1",
    )
    switched = []

    def on_progress(run, entry):
        if run.data.steps >= 200 and not switched:
            change_layout(run, Layout(2, 0, pipelined=True))
            switched.append(run.data.steps)
            run.save()
        run.stopping = run.data.steps >= 600

    train(recipe_of("sac", *small, "simulation.env_steps=5000"), tmp_path, points, on_progress)
    events = [event for event in read_events(tmp_path) if event["event"] == "placement"]
    assert events[0]["decision"] == "chosen" and events[0]["predicted_steps_per_s"] > 0
    assert (tmp_path / "measured.json").is_file()
    last = train(recipe_of("sac", *small, "simulation.env_steps=900"), tmp_path, points)
    assert last["env_steps"] >= 900
    events = [event for event in read_events(tmp_path) if event.get("decision") == "chosen"]
    assert len(events) == 2 and "measurements" in events[1]["reason"]


class Slow(Points):
    """A simulator that sleeps as long as others compute."""

    def step(self, actions, active=None):
        time.sleep(4e-3 * self.size)
        return super().step(actions, active)


def slow_points(recipe, size):
    return Slow(size)


def test_a_run_without_a_placement_moves_to_workers_on_ray_and_says_so(
    cluster, tmp_path, monkeypatch, capfd
):
    """As `rlinf train` does it; here a second is enough instead of a minute.

    The controller gets the times of an idle machine with two CPUs: what the turns of a busy one
    take may not pay for workers, and the run would go on in one process.
    """
    monkeypatch.setattr(controller, "MIN_SAVED_S", 1.0)
    monkeypatch.setattr(controller, "IMPLICIT_TURNS", 3)
    monkeypatch.setattr(controller, "this_machine", lambda: Machine(cpus=2.0))
    decide = controller.LayoutController.record_turn

    def decide_on_an_idle_machine(self, turn, steps_left):
        if self.layout.workers:
            return decide(self, turn, steps_left)
        wait_s = 4e-3 * turn.steps
        times = {
            "environment": [(0.0, wait_s)],
            "policy": [(0.0, 0.0)],
            "learner": [(0.1 * wait_s, 0.0)],
            "data": [(0.0, 0.0)],
        }
        return decide(self, replace(turn, seconds=1.1 * wait_s, **times), steps_left)

    monkeypatch.setattr(controller.LayoutController, "record_turn", decide_on_an_idle_machine)
    keys = (
        "policy.hidden=[16]",
        "algorithm.critic_hidden=[16]",
        "algorithm.batch_size=16",
        "simulation.environments=4",
        "simulation.start_steps=20",
        "simulation.updates_per_step=0.05",
        "simulation.env_steps=4000000",
        "simulation.evaluate_every=100000000",
        "simulation.evaluate_episodes=1",
    )
    workers = []

    def on_progress(run, entry):
        workers.append(run.recipe.placement.workers)
        run.stopping = workers[-1] > 0 and workers.count(workers[-1]) > 8

    recipe = load_recipe("sim_sac", keys)
    train(recipe, tmp_path, slow_points, on_progress, adapts=True)
    assert workers[0] == 0 and workers[-1] in (1, 2, 4)
    decisions = [event for event in read_events(tmp_path) if event["event"] == "placement"]
    assert decisions[0]["decision"] == "change"
    assert "placement.auto=false keeps one process" in decisions[0]["reason"]
    assert f"layout: {workers[-1]} workers" in capfd.readouterr().out
    settled = len(decisions)
    train(recipe, tmp_path, slow_points, lambda run, entry: setattr(run, "stopping", True))
    events = [event for event in read_events(tmp_path) if event["event"] == "placement"]
    assert len(events) == settled, "the run of train() itself goes on in one process"


@pytest.mark.slow
def test_a_run_whose_learner_leaves_its_device_during_rollouts_is_the_run_of_one_that_stays(
    cluster, tmp_path
):
    """It runs on a CPU, where results are comparable and no memory is freed."""
    train(recipe_of("sac", *RLPD), tmp_path / "stays", points)
    for name, placement in (
        ("here", "placement.offload=true"),
        ("placed", "placement={learners: 2, offload: true}"),
    ):
        train(recipe_of("sac", *RLPD, placement), tmp_path / name, points)
        assert torch.allclose(weights(tmp_path / "stays"), weights(tmp_path / name), atol=1e-5)


def test_environments_in_processes_of_their_own_play_as_one_vector_and_one_that_dies_is_replaced(
    cluster, capsys, monkeypatch
):
    # learners of other tests are there, too
    monkeypatch.setattr(remote_envs, "cpus_for", lambda placement: 0.2)
    recipe = load_recipe(
        "sim_sac",
        [
            "policy.hidden=[16]",
            "simulation.environments=8",
            "placement={simulators: 4}",
            "simulation.start_steps=0",
        ],
    )
    env, together = RemoteEnvs.start_envs(recipe, points, 8, 4), Points(8)
    first, other = env.reset(range(8)), together.reset(range(8))
    np.testing.assert_array_equal(first["vectors"], other["vectors"])
    for _ in range(5):  # until the first episode ends, scenes are the same
        actions = np.random.default_rng(0).uniform(-0.1, 0.1, (8, 2))
        active = np.arange(8) % 3 > 0
        one, two = env.step(actions, active), together.step(actions, active)
        np.testing.assert_allclose(one.observation["vectors"], two.observation["vectors"])
        np.testing.assert_allclose(one.reward, two.reward)
    os.kill(cluster.get(env.processes[1].pid.remote()), signal.SIGKILL)
    steps = env.step(np.zeros((8, 2)))
    assert steps.truncated.tolist() == [0, 0, 1, 1, 0, 0, 0, 0] and not steps.terminated.any()
    assert "a simulator process died and is replaced (1 of 10)" in capsys.readouterr().out
    policy = make_policy(SPEC, recipe.policy)
    stages = make_rollouts(EpisodeRollouts, env, policy, 0, 0, 1)
    assert len(stages.parts) == 2
    experience, usage = stages.play_measured({"steps": 60})
    cut = stages.cut()
    assert (
        experience.steps
        == 480
        == sum(len(trajectory) for trajectory in experience.trajectories + cut)
    )
    assert usage.total.wall_s > 0 and usage.environment[1] > 0, "it waits for other processes"
    env.close()
