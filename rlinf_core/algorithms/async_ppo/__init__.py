"""Asynchronous PPO: rollouts of somewhat older policies, by the decoupled objective."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf_core.algorithms.ppo import Config as PPO
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(PPO):
    """Hyper-parameters of asynchronous PPO: those of PPO, and the limits of staleness."""

    accepts_stale = True

    name: str = with_default(PPO, "name", "async_ppo")
    max_staleness: int = Field(
        2,
        ge=0,
        description="largest age of a sample's policy [versions]. Older samples are not used",
    )
    weight_limit: float = Field(5.0, gt=0, description="largest weight of a sample or action")
    proximal: Literal["recomputed", "interpolated"] = Field(
        "recomputed",
        description="proximal policy of the clipping. `recomputed` is the newest "
        "one at the start of the update. `interpolated` lies between "
        "behaviour and newest policy by version, and saves a pass over "
        "the data",
    )

    @property
    def staleness(self) -> float:
        return self.max_staleness
