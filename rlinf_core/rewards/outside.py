"""Something is where it may not be: an object that fell, a tool that strayed. A term of failure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Outside:
    """True when the position in the channel ``what`` lies outside of the box from ``low`` to ``high`` [m]."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    what: str = "object_pose"

    @property
    def channels(self) -> tuple[str, ...]:
        """What it looks at."""
        return (self.what,)

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        position = channels[self.what][:3]
        return bool((position < self.low).any() or (position > self.high).any())
