"""A simulated robot that carries out one instruction after another in one scene."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError
from rlinf_core.recipes import load_recipe
from sim_bridges.core.gym import StationEnv
from sim_bridges.core.station import simulated_station


class InstructedRobot:
    """The station with two marks; the task's script or a policy moves the arm.

    Attributes:
        places: names of the marks, which an instruction can use.
    """

    def __init__(self, *, policy: str = "", max_steps: int = 30) -> None:
        """Settings.

        Args:
            policy: file of a policy that was trained on ``sim_vla``; empty for the task's script
            max_steps: largest number of time steps of an instruction
        """
        overrides = [] if policy else ["station.observe_cameras=[]"]
        self.env = StationEnv(simulated_station(load_recipe("sim_vla", overrides)))
        self.simulator: Any = self.env.station.simulator
        self.places = self.simulator.colours
        self.max_steps = max_steps
        self.policy = None
        if policy:
            from rlinf_core.policies.serialization import load_policy

            self.policy = load_policy(policy)

    def reset(self, seed: int) -> None:
        """Lay out scene ``seed``."""
        self.observation, _ = self.env.reset(seed=seed)

    def carry_out(self, instruction: str) -> dict[str, Any]:
        """Play an instruction until the tool is above the mark that it names, or the time is over.

        Returns:
            ``success``; ``place``, the mark below the tool at the end, or ""; ``steps``; ``path``,
            the tool's positions (steps, 3) in the robot's base frame [m].
        """
        places = [place for place in self.places if place in instruction.lower().split()]
        if len(places) != 1:
            return {"success": False, "place": self.place(), "steps": 0, "path": []}
        self.simulator.set_goal(places[0])
        self.env.station.update_channels()
        path: list[list[float]] = []
        actions: list[np.ndarray] = []
        while len(path) < self.max_steps and not self.simulator.succeeded():
            if not actions:
                actions = self._chunk()
            self.observation, *_ = self.env.step(actions.pop(0))
            path.append([round(float(value), 4) for value in self.simulator.tcp_pose()[:3]])
        return {
            "success": bool(self.simulator.succeeded()),
            "place": self.place(),
            "steps": len(path),
            "path": path,
        }

    def place(self) -> str:
        """Return the mark below the tool, or ""."""
        return next((place for place in self.places if self.simulator.above(place)), "")

    def _chunk(self) -> list[np.ndarray]:
        if self.policy is None:
            return [self.env.expert()]
        from rlinf_core.policies.base import Observation
        from rlinf_core.specs import arrays

        observed = {
            **self.observation,
            arrays.INSTRUCTION: arrays.encode_instructions([self.simulator.instruction])[0],
        }
        batch = {name: values[None] for name, values in observed.items()}
        chunk = self.policy.act(Observation.from_arrays(self.env.specs, batch), explore=False)
        actions = chunk.actions[0, : self.policy.config.executed].numpy(force=True)
        if not np.isfinite(actions).all():
            raise RlinfError("policy: expected finite actions, got others")
        return list(actions)

    def close(self) -> None:
        """End the simulator."""
        self.env.close()
