"""Settings of DSRL."""

from __future__ import annotations

from rlinf_core.algorithms.sac.config import Config as SAC
from rlinf_core.settings.base import with_default


class Config(SAC):
    """Hyper-parameters of DSRL: those of SAC."""

    policies = ("latent_noise",)

    name: str = with_default(SAC, "name", "dsrl")
    initial_temperature: float = with_default(SAC, "initial_temperature", 0.1)
    target_entropy: float = with_default(SAC, "target_entropy", -0.5)

    @property
    def warm_start(self) -> bool:
        return True
