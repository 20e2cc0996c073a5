"""Domain randomisation around any simulator: delay, lag and errors of perception.

It follows Peng et al. 2018, arXiv 1710.06537.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from rlinf_core.recipes.schema import Dynamics, Randomise
from sim_bridges.core.interface import Channels, Simulator

NOISY_TOPICS = ("object_pose", "goal_pose")


class Randomised:
    """A ``Simulator`` with delayed, filtered commands and errors of perception.

    Each scene draws new ones.

    Args:
        simulator: simulator to randomise; all other attributes are its own.
        ranges: ranges of the random parameters.
        dynamics: constant response, to which the drawn delay and lag are added.
    """

    def __init__(
        self, simulator: Simulator, ranges: Randomise, dynamics: Dynamics | None = None
    ) -> None:
        self._simulator, self.ranges = simulator, ranges
        self.dynamics = dynamics or Dynamics()

    def __getattr__(self, name: str) -> Any:
        if name == "_simulator":  # before the constructor has run
            raise AttributeError(name)
        return getattr(self._simulator, name)

    def reset(self, seed: int) -> None:
        """Lay out the scene and draw its random parameters."""
        ranges, tick_s = self.ranges, self._simulator.tick_s
        self._random = random = np.random.default_rng([seed, 1])
        self._simulator.reset(seed)
        delay_s = self.dynamics.delay_s + random.uniform(0.0, ranges.delay_s)
        self.delay_ticks = round(delay_s / tick_s)
        self.lag_s = self.dynamics.lag_s + random.uniform(0.0, ranges.lag_s)
        self._follow = 1.0 - np.exp(-tick_s / self.lag_s) if self.lag_s > 0.0 else 1.0
        self.errors = {name: random.normal(0.0, ranges.pose_error_m, 3) for name in NOISY_TOPICS}
        self.brightness = 1.0 + random.uniform(-ranges.brightness, ranges.brightness)
        self._rest()

    def arrange(self, channels: Channels) -> None:
        """Put tool and object where a recording had them, like the simulator's own ``arrange``."""
        self._simulator.arrange(channels)  # type: ignore[attr-defined]
        self._rest()

    def _rest(self) -> None:
        """Hold the present pose, without commands on their way."""
        self._applied = self._simulator.tcp_pose()
        self._origin = self._applied[:3].copy()
        self._late: deque = deque(
            [(self._applied.copy(), self._simulator.gripper_width())] * self.delay_ticks
        )

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        """Advance one tick with a delayed and filtered command."""
        self._late.append((None if target_pose is None else np.array(target_pose), gripper_width))
        pose, width = self._late.popleft()
        if pose is not None:
            target = self._origin + self.dynamics.gain * (pose[:3] - self._origin)
            position = self._applied[:3] + self._follow * (target - self._applied[:3])
            self._applied = np.concatenate([position, pose[3:]])
        self._simulator.advance(None if pose is None else self._applied, width)

    def true_channels(self) -> Channels:
        """Return the channels without errors, for the judgement of success."""
        return self._simulator.channels()

    def channels(self) -> Channels:
        """Return the channels with errors of perception of the objects."""
        channels = self._simulator.channels()
        for name in NOISY_TOPICS:
            if name in channels:
                noise = self._random.normal(0.0, self.ranges.pose_noise_m, 3)
                channels[name] = np.concatenate(
                    [channels[name][:3] + self.errors[name] + noise, channels[name][3:]]
                )
        return channels

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        """Return a picture with random brightness; ``video`` stays unchanged."""
        picture = self._simulator.render(camera, height, width)
        if camera == "video":
            return picture
        return np.clip(picture * self.brightness, 0, 255).astype(np.uint8)
