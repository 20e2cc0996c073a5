"""GR00T N1.7: a diffusion transformer attends to Qwen3-VL and denoises actions."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.pretrained.groot import Config as GrootConfig

__getattr__ = lazy_attributes(__name__, "policy")


class Config(GrootConfig):
    """GR00T N1.7, pretrained or from scratch: SFT, the PPO family.

    The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(GrootConfig, "kind", "groot_n1_7")
    horizon: int = with_default(GrootConfig, "horizon", 40)
    embodiment: int = Field(
        10,
        ge=0,
        description="index of the layers for state and actions, as embodiment_id.json has it. 10 "
        "is GR00T's new_embodiment",
    )
