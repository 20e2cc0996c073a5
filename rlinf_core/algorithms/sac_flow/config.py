"""Settings of SAC-Flow."""

from __future__ import annotations

from rlinf_core.algorithms.sac.config import Config as SAC
from rlinf_core.settings.base import with_default


class Config(SAC):
    """Hyper-parameters of SAC-Flow: those of SAC. The target entropy counts every step's noise, and so lies lower."""

    policies = ("flow",)

    name: str = with_default(SAC, "name", "sac_flow")
    target_entropy: float = with_default(SAC, "target_entropy", -4.0)
    initial_temperature: float = with_default(SAC, "initial_temperature", 0.01)
    actor_every: int = with_default(SAC, "actor_every", 2)
