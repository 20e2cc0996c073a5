"""DSRL: soft actor-critic over the noise of a frozen flow (or diffusion) policy."""

from __future__ import annotations

from pydantic import field_validator

from rlinf_core.algorithms.sac import Config as SAC
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(SAC):
    """Hyper-parameters of DSRL: those of SAC."""

    policies = ("latent_noise",)

    name: str = with_default(SAC, "name", "dsrl")
    initial_temperature: float = with_default(SAC, "initial_temperature", 0.1)
    target_entropy: float = with_default(SAC, "target_entropy", -0.5)

    @field_validator("n_step")
    @classmethod
    def _one(cls, value: int) -> int:
        if value > 1:
            raise ValueError(
                "expected 1 for dsrl, whose returns span the chunk that its noise led to "
                "(policy.n_action_steps)"
            )
        return value

    @property
    def warm_start(self) -> bool:
        return True
