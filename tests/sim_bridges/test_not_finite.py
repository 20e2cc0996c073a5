"""Numbers of an environment that cannot be learned from are its fault, named with the time step."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlinf_core.core.errors import RlinfError, SpecError
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.train import train
from sim_bridges.core.gym import Environments, StationEnv
from sim_bridges.core.gymnasium_envs import make_gymnasium
from sim_bridges.core.station import simulated_station

BAD = 7  # time step at which something is wrong
FAULTS = {
    "nan": (
        "observe",
        lambda observation: np.full(3, np.nan, np.float32),
        "'observation': expected finite values, got nan at time step 7",
    ),
    "inf": (
        "observe",
        lambda observation: np.full(3, -np.inf, np.float32),
        "'observation': expected finite values, got -inf at time step 7",
    ),
    "too_large": (
        "observe",
        lambda observation: np.full(3, 1e300),
        "'observation': expected finite values, got inf at time step 7",
    ),
    "shape": (
        "observe",
        lambda observation: np.zeros(4, np.float32),
        r"'observation': expected shape \(3,\), got \(4,\) at time step 7",
    ),
    "dtype": (
        "observe",
        lambda observation: np.array(["a", "b", "c"]),
        "'observation': expected float32 of shape .* at time step 7",
    ),
    "reward": (
        "reward",
        lambda reward: float("nan"),
        "reward: expected finite values, got nan at time step 7",
    ),
    "reward_inf": (
        "reward",
        lambda reward: np.float32(np.inf),
        "reward: expected finite values, got inf at time step 7",
    ),
    "reward_shape": (
        "reward",
        lambda reward: np.zeros(2),
        "reward: expected one number, .* at time step 7",
    ),
    "reward_none": ("reward", lambda reward: None, "reward: expected .* at time step 7"),
    "success": (
        "success",
        lambda success: float("nan"),
        "success: expected finite values, got nan at time step 7",
    ),
}
# Gymnasium's own refuses the others
OF_A_VECTOR = (
    "nan",
    "inf",
    "reward",
    "reward_inf",
    "success",
)


class Faulty(gymnasium.Env):
    metadata = {"render_modes": []}

    def __init__(self, fault, length=20):
        self.what, self.make, _ = FAULTS[fault]
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.length = length

    def given(self, what, value):
        return self.make(value) if what == self.what and self.steps == BAD else value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return (
            self.given("observe", np.zeros(3, np.float32)),
            self.given("reward", 0.5),
            False,
            self.steps >= self.length,
            {"success": self.given("success", 0.0)},
        )


for fault in FAULTS:
    gymnasium.register(f"Faulty{fault}-v0", entry_point=lambda fault=fault, **_: Faulty(fault))
    gymnasium.register(
        f"FaultyVector{fault}-v0",
        vector_entry_point=lambda num_envs, fault=fault, **_: SyncVectorEnv(
            [lambda: Faulty(fault)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        ),
    )
    gymnasium.register(
        f"FaultyLast{fault}-v0",
        vector_entry_point=lambda num_envs, fault=fault, **_: SyncVectorEnv(
            [lambda: Faulty(fault, BAD)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        ),
    )


def played(env):
    env.reset([0, 1])
    for _ in range(20):
        env.step(np.zeros((2, 2)))


@pytest.mark.parametrize(
    "name",
    [f"Faulty{fault}-v0" for fault in FAULTS]
    + [f"Faulty{kind}{fault}-v0" for fault in OF_A_VECTOR for kind in ("Vector", "Last")],
)
def test_an_environment_of_gymnasium_is_named_with_the_time_step(name):
    fault = (
        name.removeprefix("Faulty").removeprefix("Vector").removeprefix("Last").removesuffix("-v0")
    )
    with pytest.raises(SpecError, match=f"^env 'gym:{name}': {FAULTS[fault][2]}"):
        played(make_gymnasium(name, 2))


def test_what_is_filled_up_and_dropped_within_an_observation_is_named():
    class Other(Faulty):
        def __init__(self):
            super().__init__("nan")
            self.observation_space = spaces.Dict(
                {"at": spaces.Box(-1, 1, (3,)), "eye": spaces.Box(0, 255, (4, 4, 3), np.uint8)}
            )

        def reset(self, **more):
            super().reset(**more)
            return {"at": np.zeros(3), "eye": np.zeros((4, 4, 3), np.uint8)}, {}

        def step(self, action):
            _, *rest = super().step(action)
            return [{"at": np.zeros(3), "eye": np.zeros((4, 4, 3))}, {"at": np.zeros(3)}][
                self.steps % 2
            ], *rest

    gymnasium.register("FaultyEye-v0", entry_point=lambda **_: Other(), disable_env_checker=True)
    env = make_gymnasium("FaultyEye-v0", 1)
    env.reset([0])
    with pytest.raises(
        SpecError, match="'eye': expected it in the observation, got at at time step 1"
    ):
        env.step(np.zeros((1, 2)))
    with pytest.raises(SpecError, match="'eye': expected uint8, got float64 at time step 2"):
        env.step(np.zeros((1, 2)))


@pytest.mark.parametrize("fault", ["nan", "reward"])
@pytest.mark.parametrize(
    "more",
    [
        ("algorithm.batch_size=16", "simulation.start_steps=20"),
        ("algorithm.batch_size=16", "simulation.start_steps=600"),
        ("algorithm={name: ppo, chunks: 16}", "policy.kind=gaussian"),
    ],
)
def test_a_run_blames_the_environment_and_not_the_learning_rate(fault, more, tmp_path):
    recipe = load_recipe(
        "sim_sac",
        [
            f"env=gym:Faulty{fault}-v0",
            "simulation.environments=1",
            "simulation.env_steps=60",
            "simulation.evaluate_every=60",
            "simulation.evaluate_episodes=2",
            *more,
        ],
    )
    with pytest.raises(RlinfError, match=f"Faulty{fault}-v0': {FAULTS[fault][2]}"):
        train(recipe, tmp_path)


@pytest.mark.slow
def test_a_rollout_worker_blames_it_too(tmp_path):
    import ray

    def make(recipe, size):
        env = make_gymnasium("Faultynan-v0", size)
        if size == 1:  # of the evaluations
            env.envs[0].env.unwrapped.make = lambda value: value
        return env

    recipe = load_recipe(
        "sim_sac",
        [
            "simulation.environments=2",
            "placement.workers=1",
            "simulation.env_steps=60",
            "simulation.evaluate_every=60",
            "simulation.evaluate_episodes=1",
        ],
    )
    try:
        with pytest.raises(
            SpecError, match="^env 'gym:Faultynan-v0': 'observation': expected finite"
        ):
            train(recipe, tmp_path, make)
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    "channel, named",
    [
        ("current_pose", "current_pose|tcp_position"),
        ("reward", "reward"),
        ("script", "the script's action"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_simulator_is_named_with_the_time_step(channel, named, value, monkeypatch):
    station = simulated_station(load_recipe("sim_sac", ["station.task=reach"]))
    env = Environments([StationEnv(station)])
    env.reset([3])
    channels = station.simulator.channels

    def faulty():
        now = {name: np.array(values, float) for name, values in channels().items()}
        if channel in now:
            now[channel][:2] = value
        return now

    for _ in range(BAD - 1):
        env.step(np.zeros((1, env.spec.action.dim)))
    if channel == "script":
        monkeypatch.setattr(
            station.script, "act", lambda channels: np.full(env.spec.action.dim, value)
        )
        with pytest.raises(
            SpecError,
            match=f"^env '.*': '{named}': expected finite values, got {value} at time step 6",
        ):
            env.expert()
        return
    if channel == "reward":
        step = env.envs[0].step

        def judged(action):
            observation, _, *more = step(action)
            return observation, value, *more

        monkeypatch.setattr(env.envs[0], "step", judged)
    monkeypatch.setattr(station.simulator, "channels", faulty)
    with pytest.raises(
        SpecError,
        match=rf"^env '.*': '?({named})'?: expected finite values, got {value} at time step 7",
    ):
        env.step(np.zeros((1, env.spec.action.dim)))


@pytest.mark.parametrize(
    "picture",
    [
        np.full((16, 16, 3), np.nan),
        np.full((16, 16, 3), 0.5),
        np.zeros((16, 16, 4), np.uint8),
        np.zeros((16, 32, 3), np.uint8),
    ],
)
def test_a_simulators_damaged_picture_is_named_by_its_camera(picture, monkeypatch):
    images = ["station.observe_cameras=[front]", "station.image_size=[16,16]"]
    station = simulated_station(load_recipe("sim_rlpd", images))
    monkeypatch.setattr(station.simulator, "render", lambda *_: picture, raising=False)
    with pytest.raises(
        SpecError, match="'camera/front/image': expected frames of shape"
    ) as refused:
        station.reset(0)
    assert refused.value.code == "RL-E708"


@pytest.mark.parametrize("vector", ["", "Vector"])
def test_an_error_of_the_environments_own_code_names_its_line(vector):
    class Broken(Faulty):
        def __init__(self):
            super().__init__("nan")

        def step(self, action):
            if self.steps == BAD - 1:
                raise RuntimeError("qacc is nan")
            return super().step(action)

    gymnasium.register("Broken-v0", entry_point=lambda **_: Broken())
    gymnasium.register(
        "BrokenVector-v0",
        vector_entry_point=lambda num_envs, **_: SyncVectorEnv(
            [Broken] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        ),
    )
    with pytest.raises(
        SpecError,
        match=rf"^env 'gym:Broken{vector}-v0': its step\(\) raised RuntimeError: qacc is nan "
        r"\(.*test_not_finite.py, line \d+\) at time step 7",
    ):
        played(make_gymnasium(f"Broken{vector}-v0", 2))
