"""Environments of Gymnasium's, taken as they are; ours, as Gymnasium makes them."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.recipes import check_recipe, load_recipe, station_robot
from rlinf_core.rollouts.evaluate import evaluate
from rlinf_core.trainer.train import train
from sim_bridges.core.environments import make_environments
from sim_bridges.core.gymnasium_envs import (
    GymnasiumEnv,
    make_gymnasium,
    scale_actions,
    station_spec,
)


class Corridor(gymnasium.Env):
    """One dimension; -1.0 is the goal, 1.0 the abyss. The action is bounded by -2 and 3."""

    metadata = {"render_modes": [], "render_fps": 5}

    def __init__(self, space="box"):
        self.space = space
        self.observation_space = (
            spaces.Box(-2, 2, (1,))
            if space == "box"
            else spaces.Dict(
                {"at": spaces.Box(-2, 2, (1,)), "eye": spaces.Box(0, 255, (4, 4, 3), np.uint8)}
            )
        )
        self.action_space = spaces.Box(-2.0, 3.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-0.2, 0.2))
        return self.observe(), {}

    def observe(self):
        at = np.array([self.x], np.float32)
        return at if self.space == "box" else {"at": at, "eye": np.full((4, 4, 3), 7, np.uint8)}

    def step(self, action):
        self.x += 0.2 * float(action[0])
        ended = abs(self.x) >= 1.0
        reward = -np.sign(self.x) if ended else -0.05 * (self.x + 1)
        return self.observe(), reward, ended, False, {"is_success": self.x <= -1.0}


gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=20)
gymnasium.register(
    "CorridorSeen-v0", entry_point=lambda **_: Corridor("dict"), max_episode_steps=20
)
for mode in AutoresetMode:
    gymnasium.register(
        f"CorridorVector{mode.name}-v0",
        vector_entry_point=lambda num_envs, mode=mode, **_: SyncVectorEnv(
            [lambda: gymnasium.make("Corridor-v0")] * num_envs, autoreset_mode=mode
        ),
    )


def test_actions_are_stretched_to_the_bounds_and_cut_there():
    space = spaces.Box(np.float32([-1.0, 0.0]), np.float32([3.0, 0.5]))
    assert scale_actions(space, np.array([[-1.0, -1.0], [0.0, 0.0], [5.0, 1.0]])).tolist() == [
        [-1, 0],
        [1, 0.25],
        [3, 0.5],
    ]


@pytest.mark.parametrize("size", [1, 2])
def test_a_vector_environment_is_found_by_the_package_that_registers_it(
    tmp_path, monkeypatch, size
):
    (tmp_path / f"corridors{size}.py").write_text(
        "import gymnasium\n"
        "from tests.sim_bridges.test_gym_envs import AutoresetMode, SyncVectorEnv\n"
        f"gymnasium.register('OfAPackage{size}-v0', vector_entry_point=lambda num_envs, **_: "
        "SyncVectorEnv([lambda: gymnasium.make('Corridor-v0')] * num_envs, "
        "autoreset_mode=AutoresetMode.SAME_STEP))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make_gymnasium(f"corridors{size}:OfAPackage{size}-v0", size)
    assert env.reset(range(size))["vectors"].shape == (size, 1)
    env.close()
    with pytest.raises(
        RecipeError,
        match="an id of gymnasium.make, got 'nowhere:A-v0': No module named 'nowhere'",
    ):
        make_gymnasium("nowhere:A-v0", size)


def test_an_environment_is_made_with_the_options_of_the_recipe():
    recipe = load_recipe("sim_sac", ["env=gym:Corridor-v0", "env_options={space: dict}"])
    env = make_environments(recipe, 2)
    assert env.reset([1, 2])["eye"].shape == (2, 4, 4, 3)
    env.close()


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["env=gym:Corridor-v0", "env_options={spaces: dict}"],
            "env_options: expected keyword arguments that 'Corridor-v0' takes, got spaces='dict'",
        ),
        (
            ["env_options={space: dict}"],
            "env_options'?: expected none without an environment of Gymnasium",
        ),
    ],
)
def test_options_that_nothing_takes_are_refused(overrides, message):
    with pytest.raises(RecipeError, match=message):
        make_environments(load_recipe("sim_sac", overrides), 1)


@pytest.mark.parametrize("name", ["Corridor-v0", "CorridorVectorSAME_STEP-v0"])
def test_an_episode_that_ends_shows_its_last_state_and_the_first_of_the_next(name):
    env = make_gymnasium(name, 3)
    first = env.reset([4, 5, 6])["vectors"].copy()
    steps = env.step(np.array([[1.0], [-0.2], [-1.0]]))
    assert np.allclose(
        steps.next_observations["vectors"][:, 0], first[:, 0] + [0.6, 0.0, -0.4], atol=1e-6
    )
    assert np.allclose(steps.reward, -0.05 * (steps.next_observations["vectors"][:, 0] + 1))
    for _ in range(9):
        before = steps.observation["vectors"].copy()
        steps = env.step(np.array([[1.0], [-0.2], [-1.0]]))
        assert np.allclose(steps.next_observations["vectors"][0], before[0] + 0.6, atol=1e-6)
        ended = np.abs(steps.next_observations["vectors"][:, 0]) >= 1.0
        assert np.array_equal(steps.terminated > 0, ended) and not steps.truncated.any()
        assert np.array_equal(
            steps.success > 0, ended & (steps.next_observations["vectors"][:, 0] < 0)
        )
        assert np.allclose(
            steps.reward[ended], -np.sign(steps.next_observations["vectors"][ended, 0])
        )
        assert (np.abs(steps.observation["vectors"][ended]) <= 0.2).all()
    env.close()


def test_a_vector_environment_gives_what_single_ones_give():
    one, many = make_gymnasium("CorridorVectorSAME_STEP-v0", 2), make_gymnasium("Corridor-v0", 2)
    assert type(one) is not type(many) and np.array_equal(
        one.reset([1, 2])["vectors"], many.reset([1, 2])["vectors"]
    )
    for _ in range(20):  # to the time limit; then each draws the next scene in its own way
        steps = [env.step(np.full((2, 1), -0.2)) for env in (one, many)]
        for name in ("reward", "terminated", "truncated", "success", "failure"):
            assert np.array_equal(getattr(steps[0], name), getattr(steps[1], name)), name
    assert np.array_equal(
        steps[0].next_observations["vectors"], steps[1].next_observations["vectors"]
    )
    assert steps[0].truncated.all()
    with pytest.raises(RlinfError, match="cannot wait"):
        one.step(np.zeros((2, 1)), np.array([True, False]))
    for mode in ("NEXT_STEP", "DISABLED"):
        with pytest.raises(RecipeError, match=f"SAME_STEP.*got .*{mode}"):
            make_gymnasium(f"CorridorVector{mode}-v0", 2)


def test_observations_of_several_boxes_are_vectors_and_images():
    env = make_gymnasium("CorridorSeen-v0", 2)
    arrays = env.reset([0, 1])
    assert {name: values.shape for name, values in arrays.items()} == {
        "vectors": (2, 1),
        "eye": (2, 4, 4, 3),
    }
    assert env.spec.images[0].name == "eye" and env.spec.control_hz == 5.0


@pytest.mark.parametrize(
    "name, expected",
    [
        ("Nowhere-v0", "an id of gymnasium.make, got 'Nowhere-v0'"),
        ("CartPole-v1", "actions of a bounded Box"),
        ("FrozenLake-v1", "actions of a bounded Box"),
        ("no_such_module:Env-v0", "no_such_module"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_words(name, expected):
    with pytest.raises(RecipeError, match=expected):
        GymnasiumEnv(name)


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["simulation.environments=0"], "expected simulation.environments of at least 1"),
        (["algorithm={name: rlpd}"], "rlpd begins with demonstrations"),
    ],
)
def test_what_does_not_go_together_with_one_is_refused_before_anything_is_made(overrides, expected):
    with pytest.raises(RecipeError, match=expected):
        check_recipe(load_recipe("sim_sac", ["env=gym:Pendulum-v1", *overrides]))
    recipe = load_recipe("sim_sac", ["env=gym:Pendulum-v1"])
    check_recipe(recipe)
    with pytest.raises(RecipeError, match="is not a station"):
        station_robot(recipe)


def test_gymnasium_makes_a_station_of_every_simulated_robot():
    from rlinf_core.robots.config import load_robot, robots

    ours = {name.partition("/")[2] for name in gymnasium.registry if name.startswith("rlinf/")}
    assert ours == {name for name in robots() if load_robot(name).driver == "simulator"}
    env = gymnasium.make(
        "rlinf/franka_sim",
        task="reach",
        overrides=["station.observe_cameras=[front]", "station.image_size=[8, 8]"],
    )
    arrays, _ = env.reset(seed=3)
    assert arrays["front"].shape == (8, 8, 3) and env.unwrapped.station.task.spec.instruction
    assert np.array_equal(env.reset(seed=3)[0]["vectors"], arrays["vectors"])
    *_, info = env.step(env.action_space.sample())
    assert info["success"] is False
    assert gymnasium.make("rlinf/franka_sim").unwrapped.station.task.script.kind == "insertion"


@pytest.mark.slow
def test_rlinf_learns_in_one(tmp_path):
    """SAC reaches the goal of the corridor, where chance mostly falls into the abyss."""
    recipe = load_recipe(
        "sim_sac",
        [
            "env=gym:Corridor-v0",
            "simulation={environments: 2, env_steps: 1500, start_steps: 300, evaluate_every: 1500, "
            "evaluate_episodes: 20}",
            "policy.hidden=[32, 32]",
            "algorithm={name: sac, critic_hidden: [32, 32], batch_size: 64, learning_rate: 1.0e-3}",
        ],
    )
    last = train(recipe, tmp_path)
    assert last["success"] >= 0.9 and last["return"] > 0.8
    env = make_environments(recipe, 1)
    random = np.random.default_rng(0)

    class Chance:
        config, device = recipe.policy, "cpu"

        def act(self, observation, explore, generator=None):
            from rlinf_core.rollouts.envs import single_action_chunks

            return single_action_chunks(random.uniform(-1, 1, (len(observation), 1)))

    assert np.mean([episode.success for episode in evaluate(env, Chance(), range(20))]) <= 0.2


def test_an_observation_with_a_slash_in_its_name_is_refused_as_a_checkpoint_would_lose_it():
    space = spaces.Dict({"camera/rgb": spaces.Box(0, 255, (8, 8, 3), np.uint8)})
    with pytest.raises(
        RecipeError, match="expected names of observations without a slash, .* got 'camera/rgb'"
    ):
        station_spec("Mine-v0", space, spaces.Box(-1, 1, (2,)), {})
