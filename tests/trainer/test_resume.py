"""A run that was killed and resumed is the run that was not: the same metrics and weights, to the
last bit.
"""

from contextlib import suppress

import numpy as np
import pytest
import torch

from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.trainer.progress import Clock
from rlinf_core.trainer.sources.simulators import Simulators
from rlinf_core.trainer.train import train
from sim_bridges.core.environments import make_environments
from tests.algorithms.point import points

SMALL = [
    "policy.hidden=[32, 32]",
    "simulation.evaluate_episodes=4",
    "simulation.evaluate_every=120",
    "simulation.start_steps=60",
    "simulation.environments=2",
    "simulation.updates_per_step=0.5",
    "collect.episodes=4",
    "sft={steps: 30, batch_size: 16}",
]
CHUNKS = ["policy.horizon=3", "policy.n_action_steps=2"]
CRITICS = "critic_hidden: [32, 32], batch_size: 16"
GAUSSIAN = ["policy.kind=gaussian", "simulation.environments=4", "simulation.evaluate_every=600"]
RUNS = {
    "sac": [f"algorithm={{name: sac, {CRITICS}}}"],
    "rlpd": [f"algorithm={{name: rlpd, {CRITICS}, critic_warmup: 20}}"],
    "rlpd, chunks": [f"algorithm={{name: rlpd, {CRITICS}}}", *CHUNKS],
    "rlpd, two robots": [
        f"algorithm={{name: rlpd, {CRITICS}, critic_warmup: 20}}",
        "simulation.environments=1",
        "embodiments={one: {robot: franka_sim, task: reach}, two: {robot: two_franka_sim, "
        "task: reach_both}}",
    ],
    "crossq": [f"algorithm={{name: crossq, {CRITICS}}}"],
    "sac_flow": [
        f"algorithm={{name: sac_flow, {CRITICS}}}",
        "policy={kind: flow, hidden: [32, 32]}",
    ],
    "dsrl": [
        f"algorithm={{name: dsrl, {CRITICS}}}",
        "policy={kind: latent_noise, hidden: [32, 32], horizon: 3}",
    ],
    "iql": [f"algorithm={{name: iql, {CRITICS}, steps: 400}}"],
    "dagger": ["algorithm={name: dagger, batch_size: 16}"],
    "ppo": ["algorithm={name: ppo, chunks: 32, epochs: 2}", *GAUSSIAN],
    "ppo, chunks": ["algorithm={name: ppo, chunks: 16, epochs: 2}", *GAUSSIAN, *CHUNKS],
    "reinforce": ["algorithm={name: reinforce, group: 4}", *GAUSSIAN],
    "grpo": ["algorithm={name: grpo, group: 4}", *GAUSSIAN],
    "dapo": ["algorithm={name: dapo, group: 4}", *GAUSSIAN],
}


class Stopped(Exception):
    """Raised in place of a power cut: nothing is written afterwards."""


def numbers(run):
    return [
        {key: value for key, value in entry.items() if "second" not in key and key != "time"}
        for entry in read_evaluations(run)
    ]


def weights(run, spec):
    return load_policy(max((run / "policies").iterdir()), spec).state_dict()


def interrupted(recipe, folder, make, at, how):
    """Train until ``at`` steps, be ended there, and go on to the end."""

    def on_progress(run, entry):
        if run.steps >= at and not entry:
            if how == "killed":
                raise Stopped
            run.stopping = True

    with suppress(Stopped):
        train(recipe, folder, make, on_progress)
    assert read_evaluations(folder)[-1]["env_steps"] <= recipe.simulation.env_steps
    train(recipe, folder, make)


def same(recipe, tmp_path, make, at, how):
    train(recipe, tmp_path / "whole", make)
    interrupted(recipe, tmp_path / "resumed", make, at, how)
    assert numbers(tmp_path / "resumed") == numbers(tmp_path / "whole")
    spec = make(recipe, 1).spec
    one, two = weights(tmp_path / "whole", spec), weights(tmp_path / "resumed", spec)
    assert all(torch.equal(one[name], two[name]) for name in one)


LIKE_ANOTHER = (
    "rlpd, two robots",
    "crossq",
    "sac_flow",
    "dsrl",
    "ppo, chunks",
    "reinforce",
    "dapo",
)
ENDS = [
    pytest.param(name, "asked to end", marks=pytest.mark.slow if name in LIKE_ANOTHER else ())
    for name in RUNS
] + [
    pytest.param(name, "killed", marks=() if name in ("rlpd", "ppo") else pytest.mark.slow)
    for name in RUNS
]


@pytest.mark.parametrize("name, how", ENDS)
def test_a_resumed_run_is_the_same_run(name, how, tmp_path):
    steps = 1500 if GAUSSIAN[0] in RUNS[name] else 320
    recipe = load_recipe("sim_sac", [*SMALL, f"simulation.env_steps={steps}", *RUNS[name]])
    same(recipe, tmp_path, points, at=0.55 * steps, how=how)


def test_a_run_that_is_killed_right_after_its_first_evaluation_does_not_evaluate_once_more(
    tmp_path,
):
    """The checkpoint holds the evaluation, even without a time step since the one before."""
    recipe = load_recipe("sim_sac", [*SMALL, "simulation.env_steps=120", *RUNS["rlpd"]])

    def on_progress(run, entry):
        if run.next_evaluation > 0 and not entry:
            raise Stopped

    with suppress(Stopped):
        train(recipe, tmp_path, points, on_progress)
    assert [entry["env_steps"] for entry in read_evaluations(tmp_path)] == [0]
    train(recipe, tmp_path, points)
    assert [
        (entry["env_steps"], entry["policy_version"]) for entry in read_evaluations(tmp_path)
    ] == [(0, 1), (120, 2)]


@pytest.mark.parametrize("name", ["sac", pytest.param("dagger", marks=pytest.mark.slow)])
def test_on_simulated_stations_each_goes_on_in_the_middle_of_its_episode(name, tmp_path):
    """Behind the interlock; the task's script draws noise of its own."""
    recipe = load_recipe(
        "sim_sac",
        [
            *SMALL,
            "station.task=reach",
            "simulation={environments: 2, env_steps: 170, evaluate_every: 75, evaluate_episodes: "
            "2}",
            *RUNS[name],
        ],
    )
    same(recipe, tmp_path, make_environments, at=103, how="asked to end")


def test_environments_of_gymnasium_go_on_where_they_were():
    recipe = load_recipe("sim_sac", ["env=gym:Pendulum-v1"])
    one, two = make_environments(recipe, 2), make_environments(recipe, 2)
    random = np.random.default_rng(0)
    one.reset([3, 4])
    for _ in range(207):
        steps = one.step(random.uniform(-1, 1, (2, 1)))
    two.load_state_dict(one.state_dict())
    for _ in range(200):
        action = random.uniform(-1, 1, (2, 1))
        a, b = one.step(action), two.step(action)
        assert np.array_equal(
            a.observation["vectors"], b.observation["vectors"]
        ) and np.array_equal(a.reward, b.reward)
    assert steps.truncated.sum() == 0 and a.truncated.sum() == 0


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_with_another_number_of_environments_it_goes_on_in_new_episodes(name, tmp_path):
    """Also where those of before were played by workers on Ray, of which a checkpoint says no more
    than their number.
    """
    small = [
        *SMALL,
        *RUNS[name],
        "station.task=reach",
        "simulation.env_steps=240",
        "simulation.evaluate_every=1000",
    ]
    recipe = load_recipe("sim_sac", [*small, "simulation.environments=4"])
    env = make_environments(recipe, 4)
    source = Simulators(
        recipe, env, make_policy(env.spec, recipe.policy), make_environments, Clock()
    )
    order = {"chunks": 3} if name == "ppo" else {}
    source.take(0, order)
    state = source.state_dict()
    fewer = load_recipe("sim_sac", [*small, "simulation.environments=2"])
    for saved_state in (state, {"begun": 0}):
        env = make_environments(fewer, 2)
        again = Simulators(
            fewer, env, make_policy(env.spec, fewer.policy), make_environments, Clock()
        )
        again.load_state_dict(saved_state)
        assert again.take(0, order).steps > 0
