"""Environments that are stepped at once, in tensors: the same rollouts and the same learning as in
arrays.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RecipeError, RlinfError, SpecError
from rlinf_core.policies import make_policy
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.reports.films import rollout
from rlinf_core.rollouts.array_env import ArrayEnv, TensorRollouts, TensorSteps
from rlinf_core.rollouts.collect import ChunkRollouts, EpisodeRollouts
from rlinf_core.trainer.train import train
from sim_bridges.core.environments import make_environments
from tests.algorithms.point import Points

STANDINS = Path(__file__).parent.parent / "sim_bridges/standins"
ENV = "env=maniskill:PickCube-v1"
SMALL = (
    "simulation.environments=8",
    "simulation.env_steps=600",
    "algorithm.chunks=32",
    "simulation.evaluate_every=300",
    "simulation.evaluate_episodes=4",
    "policy.hidden=[16]",
)


class InTensors:
    """The toy's points, as tensors."""

    exclusive = False

    def __init__(self, size):
        self.points, self.size, self.device = Points(size), size, torch.device("cpu")
        self.spec = self.points.spec

    def reset(self, seeds):
        return {"vectors": torch.from_numpy(self.points.reset(list(seeds))["vectors"])}

    def step(self, actions):
        assert isinstance(actions, torch.Tensor) and actions.shape == (self.size, 2)
        steps = self.points.step(actions.numpy())
        numbers = [
            torch.as_tensor(np.asarray(part, np.float32))
            for part in (steps.reward, steps.terminated, steps.truncated, steps.success)
        ]
        return TensorSteps(
            {"vectors": torch.from_numpy(steps.next_observations["vectors"])},
            *numbers,
            {"vectors": torch.from_numpy(steps.observation["vectors"])},
        )

    def close(self):
        pass


def policy_of(*overrides):
    torch.manual_seed(0)
    return make_policy(
        Points(1).spec, load_recipe("sim_ppo", ["policy.hidden=[16]", *overrides]).policy
    )


def test_a_rollout_is_that_of_the_same_environments_in_arrays():
    one = TensorRollouts(ArrayEnv(InTensors(6), "toy:points"), policy_of(), seed=3, first_scene=5)
    other = ChunkRollouts(Points(6), policy_of(), seed=3, first_scene=5)
    for chunks in (30, 1, 30):
        (got,), (expected,) = (rollouts.play(chunks=chunks).rollouts for rollouts in (one, other))
        assert float(got.done.sum()) > 0 or chunks == 1
        for name, value in got.state_dict().items():
            if name in ("observations", "next_observations"):
                value, wanted = value["vectors"], expected.state_dict()[name]["vectors"]
            else:
                wanted = expected.state_dict()[name]
            assert value.shape == wanted.shape and torch.allclose(value, wanted, atol=1e-6), name


def test_a_rollout_without_a_seed_is_that_of_seed_0_from_scene_0():
    one, other = (
        TensorRollouts(ArrayEnv(InTensors(2), "toy:points"), policy_of(), *more)
        for more in ((), (0, 0))
    )
    first, second = (rollouts.play(chunks=3).rollouts[0] for rollouts in (one, other))
    assert torch.equal(first.actions, second.actions)
    assert torch.equal(first.observations["vectors"], second.observations["vectors"])


def test_training_in_tensors_is_training_in_arrays(tmp_path):
    recipe = load_recipe("sim_ppo", SMALL)
    makers = {
        "tensors": lambda recipe, size: ArrayEnv(InTensors(size), "toy:points"),
        "arrays": lambda recipe, size: Points(size),
    }
    final_entries = {
        name: train(recipe, tmp_path / name, make=make) for name, make in makers.items()
    }
    timed = ("seconds", "steps_per_second")
    untimed = [
        {key: value for key, value in last.items() if not key.startswith(timed)}
        for last in final_entries.values()
    ]
    assert untimed[0] == pytest.approx(untimed[1], rel=1e-4) and untimed[0]["env_steps"] >= 600


def test_a_replay_is_filled_from_tensors_too(tmp_path):
    recipe = load_recipe(
        "sim_sac",
        [
            "simulation.environments=4",
            "simulation.env_steps=200",
            "simulation.start_steps=50",
            "simulation.evaluate_every=200",
            "simulation.evaluate_episodes=4",
            "policy.hidden=[16]",
        ],
    )
    last = train(
        recipe, tmp_path, make=lambda recipe, size: ArrayEnv(InTensors(size), "toy:points")
    )
    assert last["env_steps"] >= 200


@pytest.mark.slow
def test_maniskills_own_task_is_learned_from_in_tensors(tmp_path):
    """One environment, as there is no GPU; its own reward, and its success."""
    recipe = load_recipe(
        "sim_ppo",
        [
            ENV,
            "simulation.environments=1",
            "simulation.env_steps=200",
            "algorithm.chunks=100",
            "simulation.evaluate_every=200",
            "simulation.evaluate_episodes=2",
            "device=cpu",
        ],
    )
    check_recipe(recipe)
    last = train(recipe, tmp_path)
    assert last["env_steps"] >= 200 and 0.0 < last["return"] < 50.0, (
        "a dense reward, at most 1 a time step"
    )
    env = make_environments(recipe, 1)
    first, again = (env.reset([7])["vectors"] for _ in range(2))
    assert isinstance(env.tensors.reset([7])["vectors"], torch.Tensor) and np.array_equal(
        first, again
    )
    assert not np.array_equal(first, env.reset([9])["vectors"])
    steps = [env.step(np.zeros((1, env.spec.action.dim))) for _ in range(50)]
    assert [float(step.truncated[0]) for step in steps] == [0.0] * 49 + [1.0], (
        "it cuts episodes off after 50"
    )
    assert not np.allclose(steps[-1].next_observations["vectors"], steps[-1].observation["vectors"])
    with pytest.raises(RlinfError, match="cannot wait for the others"):
        env.step(np.zeros((1, env.spec.action.dim)), np.array([False]))
    with pytest.raises(RecipeError, match="has no script"):
        env.expert()
    env.close()


@pytest.fixture
def isaac_lab(monkeypatch):
    """Provide Isaac Lab's stand-in in this process, and remove it afterwards."""
    monkeypatch.syspath_prepend(str(STANDINS))
    yield
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("isaaclab", "isaaclab_tasks", "world")
    ]:
        del sys.modules[name]


@pytest.mark.usefixtures("isaac_lab")
def test_isaac_labs_own_task_against_a_stand_in():
    """A step that ends an episode resets at once, so the observation before it is the final one."""
    env = make_environments(
        load_recipe("sim_ppo", ["env=isaaclab:Isaac-Reach-Franka", "device=cpu"]), 3
    )
    assert env.spec.vector_size == 2 and env.spec.action.dim == 7 and env.spec.control_hz == 30.0
    vectors, ended = env.reset([4, 5, 6])["vectors"], 0
    for _ in range(10):
        steps = env.step(np.full((3, 7), 5.0))
        assert steps.reward == pytest.approx([7.0] * 3), "actions are clipped to 1"
        done = steps.done > 0
        assert np.array_equal(steps.next_observations["vectors"][done], vectors[done])
        assert np.array_equal(
            steps.next_observations["vectors"][~done], steps.observation["vectors"][~done]
        )
        vectors, ended = steps.observation["vectors"], ended + done.sum()
    assert ended == 6, "each after five steps, and again"


@pytest.mark.usefixtures("isaac_lab")
def test_what_can_be_in_a_process_once_is_evaluated_where_it_is_learned_from(tmp_path):
    recipe = load_recipe("sim_ppo", ["env=isaaclab:Isaac-Reach-Franka", "device=cpu", *SMALL])
    assert train(recipe, tmp_path / "run")["env_steps"] >= 600
    with pytest.raises(RlinfError, match="is a batch of environments, which is not filmed"):
        next(rollout(recipe, tmp_path / "policy", [0], frames=1))


@pytest.mark.usefixtures("isaac_lab")
def test_what_has_a_replay_would_lose_episodes_there(tmp_path):
    recipe = load_recipe(
        "sim_sac", ["env=isaaclab:Isaac-Reach-Franka", "device=cpu", "simulation.environments=3"]
    )
    with pytest.raises(
        RecipeError, match="evaluations interrupt its episodes. Expected an algorithm .*, got sac"
    ):
        train(recipe, tmp_path)


def test_whoever_begins_episodes_there_leaves_a_rollout_to_begin_anew():
    """In scenes in which nobody has begun, also after a resume."""
    env = ArrayEnv(InTensors(2), "toy:points")
    rollouts = TensorRollouts(env, policy_of(), seed=3, first_scene=5)
    scenes = [env.tensors.reset([first, first + 1])["vectors"].clone() for first in (5, 7, 9)]
    begins = lambda: rollouts.play(chunks=3).rollouts[0].observations["vectors"][0]  # noqa: E731
    assert torch.equal(begins(), scenes[0]) and not torch.equal(begins(), scenes[1])
    env.reset([1, 2])
    assert torch.equal(begins(), scenes[1]) and not torch.equal(begins(), scenes[2])
    state = rollouts.state_dict()
    rollouts = TensorRollouts(env, policy_of(), seed=3, first_scene=5)
    rollouts.load_state_dict(state)
    assert torch.equal(begins(), scenes[2])
    older = {name: value for name, value in state.items() if name != "scene"}
    rollouts = TensorRollouts(env, policy_of(), seed=3, first_scene=5)
    rollouts.load_state_dict(older)
    assert torch.equal(begins(), scenes[0]), "a checkpoint that does not say where it was"


@pytest.mark.parametrize(
    "kind, amount", [(EpisodeRollouts, {"steps": 1}), (ChunkRollouts, {"chunks": 1})]
)
def test_what_cannot_say_where_it_is_goes_on_in_the_next_scenes(kind, amount):
    begun = []

    class Begun(InTensors):
        def reset(self, seeds):
            begun.append([*seeds])
            return super().reset(seeds)

    policy, env = policy_of(), ArrayEnv(Begun(2), "toy:points")
    one, two = (kind(env, policy, seed=3, first_scene=5) for _ in range(2))
    one.play(**amount)
    two.load_state_dict(one.state_dict())
    two.play(**amount)
    assert begun == [[5, 6], [7, 8]]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["env=manyskill:PickCube-v1"],
            "env: expected gym:, text:, or one of isaaclab, maniskill and a colon, got "
            "'manyskill:PickCube-v1' (did you mean 'maniskill'?)",
        ),
        (["env=pick"], "'env'"),
        ([ENV, "simulation.environments=0"], "expected simulation.environments of at least 1"),
        ([ENV, "algorithm.name=grpo"], "steps all of its environments at once"),
        ([ENV, "algorithm.name=rlpd", "policy.kind=tanh_gaussian"], "begins with demonstrations"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, message):
    with pytest.raises(RecipeError) as error:
        check_recipe(load_recipe("sim_ppo", overrides))
    assert message in str(error.value)


def test_what_only_shows_when_it_is_made_is_said_too():
    for overrides, message in (
        (["simulation.environments=4", "device=cpu"], "simulation.environments = 1 on cpu, got 4"),
        (["env=maniskill:PickCub-v1", "device=cpu"], "did you mean 'PickCube-v1'"),
    ):
        recipe = load_recipe("sim_ppo", [ENV, "simulation.environments=1", *overrides])
        with pytest.raises(RecipeError) as error:
            make_environments(recipe, recipe.simulation.environments)
        assert message in str(error.value)
    with pytest.raises(RlinfError, match="expected the package isaaclab, which is not installed"):
        make_environments(load_recipe("sim_ppo", ["env=isaaclab:Isaac-Reach-Franka"]), 1)
    with pytest.raises(
        RecipeError, match="policy.n_action_steps: expected 1 with env 'toy:points'"
    ):
        TensorRollouts(
            ArrayEnv(InTensors(2), "toy:points"),
            policy_of("policy.horizon=4", "policy.n_action_steps=2"),
        )


@pytest.mark.parametrize("what", ["vectors", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_named_with_environment_and_time_step(what, value):
    class Faulty(InTensors):
        steps = 0

        def step(self, actions):
            steps = super().step(actions)
            self.steps += 1
            if self.steps == 7:
                (steps.reward if what == "reward" else steps.next_observations["vectors"])[2] = (
                    value
                )
            return steps

        def reset(self, seeds):
            self.steps, observation = 0, super().reset(seeds)
            self.points.at[:] = 1.4  # far away: no episode ends before
            return observation

    expected = (
        f"^env 'toy:points': '{'reward' if what == 'reward' else 'observation'}' of environment "
        f"2: expected finite values, got {value} at time step 7"
    )
    with pytest.raises(SpecError, match=expected):
        TensorRollouts(ArrayEnv(Faulty(4), "toy:points"), policy_of()).play(chunks=12)
    env = ArrayEnv(Faulty(4), "toy:points")
    env.reset([0, 1, 2, 3])
    with pytest.raises(SpecError, match=expected):
        for _ in range(12):
            env.step(np.zeros((4, 2)))


def test_a_policy_is_given_the_instruction_of_each_environment(monkeypatch):
    policy, instructions = policy_of(), []
    act = policy.act

    def noted(observation, **how):
        instructions.append(observation.instruction)
        return act(observation, **how)

    monkeypatch.setattr(policy, "act", noted)
    env = ArrayEnv(InTensors(3), "toy:points")
    TensorRollouts(env, policy).play(chunks=2)
    assert instructions == [(env.spec.instruction,) * 3] * 2
