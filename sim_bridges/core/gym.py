"""Gymnasium front end: simulated stations as environments, and any Gymnasium environment as a
vector.

After the import of this module, ``gymnasium.make("rlinf/<robot>")`` makes a station of a simulated
robot (``station``). Other environments (``PlainEnv``) need boxes as observations and a bounded box
as actions.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlinf_core.core import rendering
from rlinf_core.core.errors import RecipeError, RlinfError, SpecError, is_transient
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.config import load_robot
from rlinf_core.rollouts.envs import BatchedEnv, Steps, VectorEnv, at_step
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import ActionSpec, Arrays, ArraySpec, StationSpec, finite
from sim_bridges.core.interface import SIMULATORS, instruction_of
from sim_bridges.core.station import SimulatedStation, simulated_station

if TYPE_CHECKING:
    from rlinf_core.rollouts.envs import VectorEnv

NO_OPTIONS: Mapping[str, Any] = {}
Box: Any = spaces.Box  # its type hints allow only floats


class StationEnv(gymnasium.Env):
    """A simulated station as a Gymnasium environment: vectors in one array, images by name, actions
    in [-1, 1].

    ``reset(seed=n)`` lays out scene n; without a seed it lays out the next scene.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode = "rgb_array"

    def __init__(self, station: SimulatedStation) -> None:
        self.station = station
        self.specs = station.task.spec
        self.name = type(station.simulator).__name__
        # the instruction depends on the scene
        self._observes_instruction = instruction_of(station.simulator) is not None
        observation_spaces: dict[str, gymnasium.Space] = {
            "vectors": Box(-np.inf, np.inf, (self.specs.vector_size,), np.float32)
        }
        observation_spaces |= {
            image.name: Box(0, 255, image.shape, np.uint8) for image in self.specs.images
        }
        if self._observes_instruction:
            observation_spaces[arrays.INSTRUCTION] = Box(
                0, 255, (arrays.INSTRUCTION_BYTES,), np.uint8
            )
        self.observation_space = spaces.Dict(observation_spaces)
        self.action_space = Box(-1.0, 1.0, (self.specs.action.dim,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        super().reset(seed=seed)
        self.scene = int(self.np_random.integers(2**31)) if seed is None else seed
        return self._arrays(self.station.reset(self.scene)), {}

    def step(self, action: np.ndarray) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        action = np.asarray(action, dtype=float)
        if action.shape != self.action_space.shape:
            raise SpecError(
                f"action: expected shape {self.action_space.shape} "
                f"({', '.join(self.specs.action.names)}), got {action.shape}"
            )
        observation, result = self.station.step(action)
        return (
            self._arrays(observation),
            result.reward,
            result.terminated,
            result.truncated,
            {"success": result.success, "failure": result.failure, "held": self.station.held},
        )

    def expert(self) -> np.ndarray:
        """Return the action of the task's script, (dim,) float32."""
        return self.station.expert().astype(np.float32)

    def render(self) -> np.ndarray:
        """Return an RGB picture (H, W, 3) for a person."""
        return self.station.simulator.render("video", 480, 640)

    def close(self) -> None:
        """Close the simulator, and its process if it has one."""
        if hasattr(self.station.simulator, "close"):
            self.station.simulator.close()

    def _arrays(self, observation: Arrays) -> Arrays:
        instruction = (
            {arrays.INSTRUCTION: arrays.encode_instructions([self.station.instruction])[0]}
            if self._observes_instruction
            else {}
        )
        return {
            "vectors": self.specs.flatten(observation),
            **{image.name: observation[image.name] for image in self.specs.images},
            **instruction,
        }


def station(
    robot: str, task: str = "", overrides: Sequence[str] = (), render_mode: str | None = None
) -> StationEnv:
    """Return the environment of ``gymnasium.make("rlinf/<robot>")``, behind the interlock.

    Args:
        robot: name of the robot.
        task: name of the task; by default the robot's own.
        overrides: overrides of the recipe ``sim_rlpd``, e.g. ``station.observe_cameras=[front]``.
        render_mode: None or rgb_array.
    """
    default_task = load_robot(robot).task or "peg_insertion"
    return StationEnv(
        simulated_station(
            load_recipe(
                "sim_rlpd",
                [f"station.robot='{robot}'", f"station.task='{task or default_task}'", *overrides],
            )
        )
    )


class _Episode:
    """The actions of the current episode, for a replay."""

    def __init__(self, scene: int) -> None:
        self.scene = scene
        self.actions: list[np.ndarray] = []
        self.expert_queried: list[bool] = []  # whether the expert was queried before each action

    def add(self, action: np.ndarray, expert_queried: bool) -> None:
        self.actions.append(np.copy(action))
        self.expert_queried.append(expert_queried)


class SteppedEnv(Protocol):
    """One environment of ``Environments``: a Gymnasium environment with specs and an expert."""

    specs: StationSpec
    name: str

    def reset(self, *, seed: int | None = None) -> tuple[Arrays, dict[str, Any]]: ...

    def step(self, action: np.ndarray) -> tuple[Arrays, float, bool, bool, dict[str, Any]]: ...

    def expert(self) -> np.ndarray: ...

    def render(self) -> np.ndarray: ...

    def close(self) -> None: ...


class Environments:
    """N environments that are stepped together in this process: a
    ``rlinf_core.rollouts.envs.VectorEnv``.

    An ended episode is followed by the next scene in the same step. With ``auto_reset`` False it
    keeps its final state until a reset, for films. Gymnasium's own vector env would cost as much as
    a station.
    """

    auto_reset = True

    def __init__(self, envs: Sequence[SteppedEnv]) -> None:
        self.envs = envs
        self.spec = envs[0].specs
        self.size = len(envs)
        self._expert_queried = False  # since the last step

    def reset(self, seeds: Sequence[int]) -> Arrays:
        self._random = [np.random.default_rng(int(seed)) for seed in seeds]
        self._episodes = [_Episode(int(seed)) for seed in seeds]
        self._observations = [self._reset_env(index, int(seed)) for index, seed in enumerate(seeds)]
        return stacked(self._observations)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        actions = np.asarray(actions, np.float32)
        reward, terminated, truncated, success = (np.zeros(self.size) for _ in range(4))
        held = np.zeros(self.size, bool)
        for index in range(self.size):
            if active is not None and not active[index]:
                continue
            env = self.envs[index]
            self._episodes[index].add(actions[index], self._expert_queried)
            with at_step(env.name, len(self._episodes[index].actions)):
                next_observation, value, terminated[index], truncated[index], more = env.step(
                    actions[index]
                )
                self._observations[index], reward[index] = next_observation, finite("reward", value)
            success[index], held[index] = more["success"], more.get("held", False)
        self._expert_queried = False
        next_observations = stacked(self._observations)
        done = [
            index
            for index in range(self.size)
            if self.auto_reset and (terminated[index] or truncated[index])
        ]
        for index in done:
            self._episodes[index] = _Episode(int(self._random[index].integers(2**31)))
            self._observations[index] = self._reset_env(index, self._episodes[index].scene)
        observation = stacked(self._observations) if len(done) else next_observations
        return Steps(next_observations, reward, terminated, truncated, success, observation, held)

    def _reset_env(self, index: int, scene: int) -> Arrays:
        with at_step(self.envs[index].name, 0):
            return self.envs[index].reset(seed=scene)[0]

    def expert(self) -> np.ndarray:
        self._expert_queried = True
        actions = []
        for index, env in enumerate(self.envs):
            with at_step(env.name, len(self._episodes[index].actions)):
                action = ArraySpec("the script's action", (self.spec.action.dim,))
                actions.append(action.check(env.expert()))
        return np.stack(actions)

    def state_dict(self) -> dict[str, Any]:
        """Return scene and actions of each environment's episode."""
        return {
            "random": [random.bit_generator.state for random in self._random],
            "scenes": [episode.scene for episode in self._episodes],
            "asked": [episode.expert_queried for episode in self._episodes],
            "asked_now": self._expert_queried,
            "actions": {
                str(index): np.array(episode.actions, np.float32)
                for index, episode in enumerate(self._episodes)
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state by a replay of each episode.

        This is exact for deterministic simulators.
        """
        self.reset(state["scenes"])
        for index, env in enumerate(self.envs):
            self._random[index].bit_generator.state = state["random"][index]
            for action, expert_queried in zip(
                state["actions"][str(index)], state["asked"][index], strict=True
            ):
                if expert_queried:
                    env.expert()
                self._episodes[index].add(action, expert_queried)
                self._observations[index] = env.step(action)[0]
            if state["asked_now"]:
                env.expert()
        self._expert_queried = state["asked_now"]

    def render(self, index: int = 0) -> np.ndarray:
        """Return an RGB picture (H, W, 3) of one environment for a person."""
        return self.envs[index].render()

    def close(self) -> None:
        """Close the simulators and their processes."""
        for env in self.envs:
            env.close()


def stacked(observations: Sequence[Arrays]) -> Arrays:
    """Stack N observations to arrays (N, ...)."""
    return {
        name: np.array([observation[name] for observation in observations])
        for name in observations[0]
    }


for file in sorted(SIMULATORS.glob("*/*/robot.yaml")):
    gymnasium.register(
        f"rlinf/{file.parent.name}", f"{__name__}:station", kwargs={"robot": file.parent.name}
    )


class PlainEnv(gymnasium.Env):
    """Any Gymnasium environment with the observations and actions of ``StationEnv``.

    Raises:
        RecipeError: the observations are no boxes, or the actions no bounded box.
    """

    def __init__(self, name: str, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        self.name = f"gym:{name}"
        try:
            self.env = _make(name, options)
        except (gymnasium.error.Error, ImportError) as error:
            raise RecipeError(
                f"env: expected gym: and an id of gymnasium.make, got '{name}': {error}"
            ) from error
        except (TypeError, ValueError) as error:
            if not options:
                raise
            raise _refused(name, options, error) from error
        self.metadata = self.env.metadata
        self.specs = specs_of(
            name, self.env.observation_space, self.env.action_space, self.metadata
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        with _raised("reset"):
            observation, _ = self.env.reset(seed=seed, options=options)
        return arrays_of(self.specs, observation), {}

    def step(self, action: np.ndarray) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        with _raised("step"):
            observation, reward, terminated, truncated, info = self.env.step(
                scaled(self.env.action_space, action)
            )
        success = finite("success", info.get("success", info.get("is_success", False)))
        return (
            arrays_of(self.specs, observation),
            finite("reward", reward),
            bool(terminated),
            bool(truncated),
            {"success": bool(success)},
        )

    def expert(self) -> np.ndarray:
        """Raise an error: there is no script."""
        raise RecipeError(
            f"env '{self.name}' has no script for demonstrations; record some and name their "
            "folder in collect.recordings"
        )

    def render(self) -> np.ndarray:
        """Return an RGB picture (H, W, 3) for a person, if the environment can render."""
        try:
            picture: Any = self.env.render()
        except gymnasium.error.Error as error:
            raise RlinfError(f"env '{self.name}' cannot be filmed: {error}") from error
        if not isinstance(picture, np.ndarray):
            raise RlinfError(f"env '{self.name}' cannot be filmed: it renders no rgb_array")
        return picture.copy()

    def close(self) -> None:
        self.env.close()


class OneVector(BatchedEnv):
    """A vector environment of Gymnasium as a ``rlinf_core.rollouts.envs.VectorEnv``."""

    def __init__(self, name: str, size: int, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        self.name = f"gym:{name}"
        self.size = size
        mode: Any = "vector_entry_point"
        try:
            self.env: Any = gymnasium.make_vec(
                name, num_envs=size, vectorization_mode=mode, **options
            )
        except (TypeError, ValueError) as error:
            if not options:
                raise
            raise _refused(name, options, error) from error
        mode = self.env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            self.env.close()
            raise RecipeError(
                f"env 'gym:{name}': expected a vector environment with AutoresetMode.SAME_STEP, "
                f"which begins the next episode in the same step, got {mode}"
            )
        self.spec = specs_of(
            name, self.env.single_observation_space, self.env.single_action_space, self.env.metadata
        )
        self.played = np.zeros(size, int)  # time steps of each episode

    def reset(self, seeds: Sequence[int]) -> Arrays:
        self.played[:] = 0
        return self._arrays(self.env.reset(seed=[int(seed) for seed in seeds])[0])

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        self.check_all_active(active)
        played = scaled(self.env.single_action_space, actions)
        with at_step(self.name, int(self.played.max()) + 1), _raised("step"):
            raw_observation, reward, terminated, truncated, info = self.env.step(played)
        self.played += 1
        rewards = np.array(
            [
                self._checked(index, partial(finite, "reward", reward[index]))
                for index in range(self.size)
            ]
        )
        ended = np.flatnonzero(np.logical_or(terminated, truncated))
        lengths = self.played.copy()
        self.played[ended] = 0
        observation = self._arrays(raw_observation)
        next_observations = observation
        if len(ended):
            next_observations = {name: values.copy() for name, values in observation.items()}
            for index in ended:
                last = _row(info["final_obs"], index)
                self.played[index] = lengths[index]
                arrays = self._checked(index, partial(arrays_of, self.spec, last))
                self.played[index] = 0
                for name, values in arrays.items():
                    next_observations[name][index] = values
        return Steps(
            next_observations,
            rewards,
            np.asarray(terminated, float),
            np.asarray(truncated, float),
            self._success(info, ended, lengths),
            observation,
        )

    def _success(
        self, info: Mapping[str, Any], ended: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Return success (N,) from the infos.

        ``final_info`` holds that of an episode's last step.
        """
        success = np.zeros(self.size)
        for infos, where in ((info, range(self.size)), (info.get("final_info", {}), ended)):
            values = infos.get("success", infos.get("is_success"))
            for index in where if values is not None else ():
                with at_step(self.name, int(lengths[index])):
                    success[index] = finite("success", values[index])
        return success

    def close(self) -> None:
        self.env.close()

    def _arrays(self, observation: Any) -> Arrays:
        return stacked(
            [
                self._checked(index, partial(arrays_of, self.spec, _row(observation, index)))
                for index in range(self.size)
            ]
        )

    def _checked(self, index: int, take: Callable[[], Any]) -> Any:
        """Return the result of ``take``; a SpecError gets the environment and its time step."""
        with at_step(self.name, int(self.played[index])):
            return take()


@contextlib.contextmanager
def _raised(method: str) -> Iterator[None]:
    """Turn an exception of the environment's code into a SpecError with its file and line."""
    try:
        yield
    except RlinfError:
        raise
    except Exception as error:  # any exception of that code
        if is_transient(error):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise SpecError(
            f"its {method}() raised {type(error).__name__}: {error} ({frame.filename}, line "
            f"{frame.lineno})"
        ) from error


def plain(name: str, size: int, options: Mapping[str, Any] = NO_OPTIONS) -> VectorEnv:
    """Return ``size`` environments of ``gymnasium.make(name, **options)``.

    The environment's own vector environment is used if it has a suitable one.

    Raises:
        RecipeError: the name is unknown, an option is invalid, or a space is no box.
    """
    rendering.set_mujoco_gl()  # Gymnasium's MuJoCo environments read the variable, too
    package, _, registered = name.rpartition(":")
    if package:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise RecipeError(
                f"env: expected gym: and an id of gymnasium.make, got '{name}': {error}"
            ) from error
    env_spec = gymnasium.envs.registration.registry.get(registered)
    if (
        env_spec is not None
        and env_spec.vector_entry_point is not None
        and env_spec.entry_point is None
    ):
        return OneVector(name, size, options)
    return Environments([PlainEnv(name, options) for _ in range(size)])


def specs_of(
    name: str, observation_space: spaces.Space, acted: spaces.Space, metadata: Mapping[str, Any]
) -> StationSpec:
    """Return the specs of an environment for a policy with actions in [-1, 1]."""
    if not isinstance(acted, spaces.Box) or not np.isfinite([acted.low, acted.high]).all():
        raise RecipeError(
            f"env 'gym:{name}': expected actions of a bounded Box, got {acted}. Policies here are "
            f"continuous"
        )
    named = (
        observation_space.spaces
        if isinstance(observation_space, spaces.Dict)
        else {"observation": observation_space}
    )
    items = []
    for key, space in named.items():
        if "/" in key:
            raise RecipeError(
                f"env 'gym:{name}': expected names of observations without a slash, the separator "
                f"of folders in checkpoints, got '{key}'. A wrapper can rename it"
            )
        if not isinstance(space, spaces.Box):
            raise RecipeError(
                f"env 'gym:{name}': expected observations of a Box, or of a Dict of them, got "
                f"{key}: {space}"
            )
        if space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[-1] == 3:
            items.append(ArraySpec(key, space.shape, "uint8"))
        else:
            items.append(ArraySpec(key, (int(np.prod(space.shape)),)))
    size = int(np.prod(acted.shape))
    action = ActionSpec(
        "gymnasium", tuple([f"a{i}" for i in range(size)]), (1.0,) * size, ("",) * size
    )
    return StationSpec(tuple(items), action, float(metadata.get("render_fps", 10.0)))


def arrays_of(spec: StationSpec, observation: Any) -> Arrays:
    """Return an observation as ``vectors`` (V,) and images by name."""
    named = (
        observation if isinstance(observation, Mapping) else {spec.observation[0].name: observation}
    )
    if missing := [item.name for item in spec.observation if item.name not in named]:
        raise SpecError(
            f"'{missing[0]}': expected it in the observation, got "
            f"{', '.join(map(str, named)) or 'nothing'}"
        )
    flat = {item.name: item.check(_flat(named[item.name])) for item in spec.vectors}
    vectors = spec.flatten(flat) if flat else np.zeros(0, np.float32)
    return {
        "vectors": vectors,
        **{image.name: _image(image, named[image.name]) for image in spec.images},
    }


def _flat(value: Any) -> Any:
    return value.ravel() if isinstance(value, np.ndarray) else np.ravel(value)


def _image(spec: ArraySpec, value: Any) -> np.ndarray:
    image = np.asarray(value)
    if image.dtype != np.uint8:
        raise SpecError(f"'{spec.name}': expected uint8, got {image.dtype}")
    return spec.check(image)


def scaled(space: Any, action: np.ndarray) -> np.ndarray:
    """Scale actions in [-1, 1], (dim,) or (N, dim), to the bounds of the space."""
    low, high = space.low, space.high
    share = (
        np.minimum(np.maximum(action, -1.0), 1.0).reshape(*action.shape[:-1], *space.shape) + 1.0
    ) / 2.0
    return (low + share * (high - low)).astype(space.dtype)


def _refused(name: str, options: Mapping[str, Any], error: Exception) -> RecipeError:
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return RecipeError(
        f"env_options: expected keyword arguments that '{name}' takes, got {given}: {error}"
    )


def _make(name: str, options: Mapping[str, Any]) -> Any:
    env = gymnasium.make(name, **options)
    if "rgb_array" not in env.metadata.get("render_modes", ()):
        return env
    env.close()
    return gymnasium.make(name, **{**options, "render_mode": "rgb_array"})


def _row(values: Any, index: int) -> Any:
    return (
        {key: value[index] for key, value in values.items()}
        if isinstance(values, Mapping)
        else values[index]
    )
