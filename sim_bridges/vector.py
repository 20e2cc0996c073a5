"""A task as a vectorised environment for the trainer and the evaluator: simulators behind the real interlock core."""

from __future__ import annotations

import numpy as np

from rlinf_core.environment import Task, judge, observe
from rlinf_core.interlock import Chunk, Inputs, Limits, Mode, State, step
from rlinf_core.interlock.types import NS
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


class VectorEnv:
    """Several simulated stations stepped together; each restarts by itself with the next seed after its last step.

    Args:
        stations: one per environment.
        first_seed: environment i begins with ``first_seed + i``; later episodes count on from there.
    """

    def __init__(self, stations: list[SimulatedStation], first_seed: int = 0) -> None:
        self.stations = stations
        self._next_seed = first_seed

    def reset(self) -> list[Batch]:
        """First observations, one per station."""
        return [self._restart(station) for station in self.stations]

    def step(self, actions: np.ndarray) -> list[tuple[Batch, float, float, bool, Batch]]:
        """Step all with (n, dim) normalised actions: (observation, reward, discount, last, next first observation)."""
        results = []
        for station, action in zip(self.stations, actions, strict=True):
            observation, reward, discount, last = station.step(action)
            results.append((observation, reward, discount, last, self._restart(station) if last else observation))
        return results

    def _restart(self, station: SimulatedStation) -> Batch:
        self._next_seed += 1
        return station.reset(self._next_seed - 1)
