"""REINFORCE++: rewards to go, whitened over the rollout, in PPO's clipped objective; no value."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf_core.algorithms.grpo import Config as GRPO
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(GRPO):
    """Hyper-parameters of REINFORCE++: those of GRPO, and its baseline."""

    name: str = with_default(GRPO, "name", "reinforce")
    weighting: Literal["episode", "step", "constant"] = with_default(GRPO, "weighting", "step")
    baseline: bool = Field(False, description="subtract the group's mean return")
    beta: float = Field(
        0.001,
        ge=0,
        description="weight of the log-ratio to the initial policy. It is subtracted from each "
        "step's reward",
    )
