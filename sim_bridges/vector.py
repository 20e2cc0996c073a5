"""A task as a vectorised environment for the trainer and the evaluator: simulators behind the real interlock core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlinf_core.environment import Task, judge, observe
from rlinf_core.interlock import Chunk, Inputs, Limits, Mode, State, step
from rlinf_core.interlock.types import NS
from rlinf_core.training.vector import Steps
from sim_bridges.simulator import Simulator

Batch = dict[str, np.ndarray]


class SimulatedStation:
    """One simulator, its interlock and its task, stepped at the control rate without ROS.

    It does what the station's processes do in lockstep: the same ticks, the same limits, the same time steps.
    """

    def __init__(self, simulator: Simulator, task: Task, limits: Limits) -> None:
        self.simulator, self.task, self.limits = simulator, task, limits
        self._ticks = round(1.0 / task.spec.control_hz / simulator.tick_s)
        self._tick_ns, self._now, self._seq = round(simulator.tick_s * NS), 0, 0
        self._state = State()

    def reset(self, seed: int) -> Batch:
        """Lay out scene ``seed`` and return its first observation."""
        self.simulator.reset(seed)
        self._tick(Inputs(pose=self._pose(), end_episode=True, restart=True, arm=self._state.mode is Mode.DISARMED or None),
                   move=False)
        self.step_index = 0
        return observe(self.task.spec, self._channels())

    def step(self, action: np.ndarray) -> tuple[Batch, float, float, bool]:
        """Play one normalised action (dim,); returns observation, reward, discount, last.

        ``self.executed`` then holds what the interlock let through, in the same normalised units.
        """
        self._seq += 1
        dt = self._ticks * self.simulator.tick_s
        si = self.task.spec.action.to_si(action)
        chunk = Chunk("policy", "vector", self._seq, 0, self._now, dt, self.task.spec.action.control_mode,
                      (tuple(si.tolist()),))
        executed = np.zeros(len(si))
        for tick in range(self._ticks):
            applied = self._tick(Inputs(pose=self._pose(), chunks=(chunk,) if tick == 0 else ()))
            executed += sum(np.array(record.executed) for record in applied) if applied else 0.0
        self.step_index += 1
        self.executed = self.task.spec.action.from_si(executed)
        channels = self._channels()
        result = judge(self.task, channels, self.step_index)
        return observe(self.task.spec, channels), result.reward, result.discount, result.last

    def _tick(self, inputs: Inputs, move: bool = True) -> tuple:
        self._state, output, _ = step(self.limits, self._state, inputs, self._now)
        if move:
            self.simulator.advance(np.array(output.target))
            self._now += self._tick_ns
        return output.applied

    def _pose(self) -> tuple[float, ...]:
        return tuple(self.simulator.tcp_pose().tolist())

    def _channels(self) -> Batch:
        channels = self.simulator.channels()
        for image in self.task.spec.images:
            camera = image.source.split("/")[1]
            channels[image.source] = self.simulator.render(camera, *image.shape[:2])
        return channels


class StationEnv(gymnasium.Env):
    """A simulated station as a Gymnasium environment: vectors in one array, images by name, actions in [-1, 1].

    ``reset(seed=n)`` lays out scene n; without a seed, the next scene of the sequence that the last seed began.
    """

    metadata = {"render_modes": []}

    def __init__(self, station: SimulatedStation) -> None:
        self.station, spec = station, station.task.spec
        spaces = {"vectors": gymnasium.spaces.Box(-np.inf, np.inf, (spec.vector_size,), np.float32)}
        spaces |= {image.name: gymnasium.spaces.Box(0, 255, image.shape, np.uint8) for image in spec.images}
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (spec.action.dim,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Batch, dict[str, Any]]:
        super().reset(seed=seed)
        self.scene = int(self.np_random.integers(2**31)) if seed is None else seed
        return self._arrays(self.station.reset(self.scene)), {}

    def step(self, action: np.ndarray) -> tuple[Batch, float, bool, bool, dict[str, Any]]:
        observation, reward, discount, last = self.station.step(np.asarray(action, dtype=float))
        terminated = last and discount == 0.0
        return self._arrays(observation), reward, terminated, last and not terminated, {"executed": self.station.executed}

    def _arrays(self, observation: Batch) -> Batch:
        spec = self.station.task.spec
        return {"vectors": spec.flatten(observation), **{image.name: observation[image.name] for image in spec.images}}


class Stations:
    """N simulated stations stepped together: a ``rlinf_core.training.vector.VectorEnv`` over Gymnasium's.

    Args:
        make: builds one station; it must be a function of a module, which other processes can import.
        size: how many.
        processes: one process each, started afresh (spawned); else all in this one.
    """

    def __init__(self, make: Callable[[], SimulatedStation], size: int, processes: bool = False) -> None:
        kind = partial(AsyncVectorEnv, context="spawn") if processes else SyncVectorEnv
        self.envs = kind([partial(_make, make)] * size, autoreset_mode=AutoresetMode.SAME_STEP)
        self.spec, self.size = make().task.spec if processes else self.envs.envs[0].station.task.spec, size

    def reset(self, seeds: Sequence[int]) -> Batch:
        return self.envs.reset(seed=[int(seed) for seed in seeds])[0]

    def step(self, actions: np.ndarray) -> Steps:
        observation, reward, terminated, truncated, info = self.envs.step(actions.astype(np.float32))
        ended, following = terminated | truncated, observation
        if ended.any():
            following = {name: values.copy() for name, values in observation.items()}
            for index in np.flatnonzero(ended):
                for name, values in info["final_obs"][index].items():
                    following[name][index] = values
        return Steps(following, reward, terminated.astype(float), ended.astype(float), observation)

    def close(self) -> None:
        """End the processes."""
        self.envs.close()


def _make(make: Callable[[], SimulatedStation]) -> StationEnv:
    return StationEnv(make())
