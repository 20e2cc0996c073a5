"""GR00T N1.6: a diffusion transformer attends to Eagle 3 and denoises actions."""

from __future__ import annotations

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.pretrained.groot_n1_7 import Config as GrootN17Config

__getattr__ = lazy_attributes(__name__, "policy")


class Config(GrootN17Config):
    """GR00T N1.6, pretrained or from scratch: SFT, the PPO family.

    The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(GrootN17Config, "kind", "groot_n1_6")
    horizon: int = with_default(GrootN17Config, "horizon", 50)
