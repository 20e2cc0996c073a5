"""DAPO: GRPO with a higher upper clip, equal step weights and informative groups."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf_core.algorithms.grpo import Config as GRPO
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(GRPO):
    """Hyper-parameters of DAPO: those of GRPO, of resampling and of the length penalty."""

    name: str = with_default(GRPO, "name", "dapo")
    clip_high: float = with_default(GRPO, "clip_high", 0.28)
    weighting: Literal["episode", "step", "constant"] = with_default(GRPO, "weighting", "step")
    max_resample: int = Field(
        5, ge=0, description="largest number of extra rollouts to replace groups without a gradient"
    )
    safe_length: int = Field(
        0,
        ge=0,
        description="length up to which an episode has no penalty [chunks or tokens]. 0 "
        "has no penalty at all",
    )
    length_buffer: int = Field(
        10, gt=0, description="length over which the penalty grows to 1 [chunks]"
    )
