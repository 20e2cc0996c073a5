"""Simulated stations as Gymnasium environments, and environments that are stepped together.

After the import of this module, ``gymnasium.make("rlinf/<robot>")`` makes a station of a simulated
robot (``station``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from rlinf_core.core.errors import SpecError
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.config import load_robot
from rlinf_core.rollouts.envs import Steps, at_step
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import Arrays, ArraySpec, StationSpec, finite
from sim_bridges.core.interface import SIMULATORS, instruction_of
from sim_bridges.core.station import SimulatedStation, simulated_station

Box: Any = spaces.Box  # its type hints allow only floats


class StationEnv(gymnasium.Env):
    """A simulated station as a Gymnasium environment.

    Its observation has all vectors in one array, and images by name. Actions are in [-1, 1].

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
    """N environments that are stepped together in this process.

    It implements ``rlinf_core.rollouts.envs.VectorEnv``.

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
        return stack_observations(self._observations)

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
        next_observations = stack_observations(self._observations)
        done = [
            index
            for index in range(self.size)
            if self.auto_reset and (terminated[index] or truncated[index])
        ]
        for index in done:
            self._episodes[index] = _Episode(int(self._random[index].integers(2**31)))
            self._observations[index] = self._reset_env(index, self._episodes[index].scene)
        observation = stack_observations(self._observations) if len(done) else next_observations
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


def stack_observations(observations: Sequence[Arrays]) -> Arrays:
    """Stack N observations to arrays (N, ...)."""
    return {
        name: np.array([observation[name] for observation in observations])
        for name in observations[0]
    }


for file in sorted(SIMULATORS.glob("*/*/robot.yaml")):
    gymnasium.register(
        f"rlinf/{file.parent.name}", f"{__name__}:station", kwargs={"robot": file.parent.name}
    )
