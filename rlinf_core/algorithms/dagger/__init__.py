"""DAgger: the policy drives, an expert labels its steps, and cloning uses all data so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from rlinf_core.algorithms.common.settings import ExpertSettings
from rlinf_core.algorithms.sft import Config as SFT
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(SFT, ExpertSettings):
    """Hyper-parameters of DAgger: those of supervised fine-tuning, and the choice of the driver."""

    name: str = with_default(SFT, "name", "dagger")
    beta: float = Field(
        0.5,
        ge=0,
        le=1,
        description="fraction of time steps that the expert drives in the first episode",
    )
    beta_decay: float = Field(
        0.99, ge=0, le=1, description="factor of that fraction from episode to episode"
    )
    beta_floor: float = Field(0.05, ge=0, le=1, description="smallest value of that fraction")
    gated: bool = Field(False, description="learn only from the expert's time steps (HG-DAgger)")
    updates_per_step: float = Field(1.0, ge=0, description="gradient steps for each new time step")

    @property
    def warm_start(self) -> bool:
        """Whether it continues a cloned policy.

        A person takes over from a policy with some skill; a script labels from the beginning.
        """
        return self.gated

    @property
    def utd_ratio(self) -> float:
        return self.updates_per_step

    def expert_fraction(self, episode: int) -> float:
        return max(self.beta * self.beta_decay**episode, self.beta_floor)

    def learning_mask(self, sources: Sequence[str]) -> np.ndarray:
        return np.array([not self.gated or source == "operator" for source in sources])
