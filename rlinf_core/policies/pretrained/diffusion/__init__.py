"""Diffusion Policy: a network predicts the noise, and removes it step by step to get a chunk."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import VisuomotorSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(VisuomotorSettings):
    """Diffusion Policy, from LeRobot's checkpoints or from scratch: SFT.

    A checkpoint draws every chunk's noise.
    """

    kind: str = with_default(VisuomotorSettings, "kind", "diffusion")
    horizon: int = with_default(VisuomotorSettings, "horizon", 16)
    denoising_steps: int = Field(
        0,
        ge=0,
        le=1000,
        description="steps from noise to action. 0 takes the number of the "
        "checkpoint, or 10 from scratch",
    )
    n_obs_steps: int = Field(
        1,
        gt=0,
        le=16,
        description="time steps in the network's input. The policy repeats the "
        "present one, as LeRobot does at the start of an episode. A "
        "checkpoint with 2 needs fine-tuning",
    )

    @model_validator(mode="after")
    def _draw_like_makers(self) -> Config:
        if self.checkpoint and "stochastic_eval" not in self.model_fields_set:
            vars(self)["stochastic_eval"] = True
        return self
