"""Any Gymnasium environment as environments of a policy with actions in [-1, 1].

Its observations are boxes, and its actions one bounded box.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlinf_core.core import rendering
from rlinf_core.core.errors import RecipeError, RlinfError, SpecError, is_transient
from rlinf_core.rollouts.envs import BatchedEnv, Steps, VectorEnv, at_step
from rlinf_core.specs.arrays import ActionSpec, Arrays, ArraySpec, StationSpec, finite
from sim_bridges.core.gym import Environments, stack_observations

NO_OPTIONS: Mapping[str, Any] = {}


class GymnasiumEnv(gymnasium.Env):
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
            raise _options_error(name, options, error) from error
        self.metadata = self.env.metadata
        self.specs = station_spec(
            name, self.env.observation_space, self.env.action_space, self.metadata
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        with _env_errors("reset"):
            observation, _ = self.env.reset(seed=seed, options=options)
        return observation_arrays(self.specs, observation), {}

    def step(self, action: np.ndarray) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        with _env_errors("step"):
            observation, reward, terminated, truncated, info = self.env.step(
                scale_actions(self.env.action_space, action)
            )
        success = finite("success", info.get("success", info.get("is_success", False)))
        return (
            observation_arrays(self.specs, observation),
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


class GymnasiumVectorEnv(BatchedEnv):
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
            raise _options_error(name, options, error) from error
        mode = self.env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            self.env.close()
            raise RecipeError(
                f"env 'gym:{name}': expected a vector environment with AutoresetMode.SAME_STEP, "
                f"which begins the next episode in the same step, got {mode}"
            )
        self.spec = station_spec(
            name, self.env.single_observation_space, self.env.single_action_space, self.env.metadata
        )
        self.step_counts = np.zeros(size, int)  # of each episode

    def reset(self, seeds: Sequence[int]) -> Arrays:
        self.step_counts[:] = 0
        return self._arrays(self.env.reset(seed=[int(seed) for seed in seeds])[0])

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        self.check_all_active(active)
        scaled = scale_actions(self.env.single_action_space, actions)
        with at_step(self.name, int(self.step_counts.max()) + 1), _env_errors("step"):
            raw_observation, reward, terminated, truncated, info = self.env.step(scaled)
        self.step_counts += 1
        rewards = np.array(
            [
                self._checked(index, partial(finite, "reward", reward[index]))
                for index in range(self.size)
            ]
        )
        ended = np.flatnonzero(np.logical_or(terminated, truncated))
        lengths = self.step_counts.copy()
        self.step_counts[ended] = 0
        observation = self._arrays(raw_observation)
        next_observations = observation
        if len(ended):
            next_observations = {name: values.copy() for name, values in observation.items()}
            for index in ended:
                last = _row(info["final_obs"], index)
                self.step_counts[index] = lengths[index]
                arrays = self._checked(index, partial(observation_arrays, self.spec, last))
                self.step_counts[index] = 0
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
        return stack_observations(
            [
                self._checked(
                    index, partial(observation_arrays, self.spec, _row(observation, index))
                )
                for index in range(self.size)
            ]
        )

    def _checked(self, index: int, check: Callable[[], Any]) -> Any:
        """Return the result of ``check``; a SpecError gets the environment and its time step."""
        with at_step(self.name, int(self.step_counts[index])):
            return check()


@contextlib.contextmanager
def _env_errors(method: str) -> Iterator[None]:
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


def make_gymnasium(name: str, size: int, options: Mapping[str, Any] = NO_OPTIONS) -> VectorEnv:
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
        return GymnasiumVectorEnv(name, size, options)
    return Environments([GymnasiumEnv(name, options) for _ in range(size)])


def station_spec(
    name: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    metadata: Mapping[str, Any],
) -> StationSpec:
    """Return the specs of an environment for a policy with actions in [-1, 1]."""
    if (
        not isinstance(action_space, spaces.Box)
        or not np.isfinite([action_space.low, action_space.high]).all()
    ):
        raise RecipeError(
            f"env 'gym:{name}': expected actions of a bounded Box, got {action_space}. Policies "
            "here are continuous"
        )
    named_spaces = (
        observation_space.spaces
        if isinstance(observation_space, spaces.Dict)
        else {"observation": observation_space}
    )
    items = []
    for key, space in named_spaces.items():
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
    size = int(np.prod(action_space.shape))
    action = ActionSpec(
        "gymnasium", tuple([f"a{i}" for i in range(size)]), (1.0,) * size, ("",) * size
    )
    return StationSpec(tuple(items), action, float(metadata.get("render_fps", 10.0)))


def observation_arrays(spec: StationSpec, observation: Any) -> Arrays:
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


def scale_actions(space: Any, action: np.ndarray) -> np.ndarray:
    """Scale actions in [-1, 1], (dim,) or (N, dim), to the bounds of the space."""
    low, high = space.low, space.high
    fraction = (
        np.minimum(np.maximum(action, -1.0), 1.0).reshape(*action.shape[:-1], *space.shape) + 1.0
    ) / 2.0
    return (low + fraction * (high - low)).astype(space.dtype)


def _options_error(name: str, options: Mapping[str, Any], error: Exception) -> RecipeError:
    values = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return RecipeError(
        f"env_options: expected keyword arguments that '{name}' takes, got {values}: {error}"
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
