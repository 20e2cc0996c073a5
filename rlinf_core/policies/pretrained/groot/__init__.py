"""GR00T N1.5: a diffusion transformer attends to a vision-language model and denoises actions."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import FlowSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(FlowSettings):
    """GR00T N1.5, pretrained or from scratch: SFT, the PPO family.

    The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(FlowSettings, "kind", "groot")
    horizon: int = with_default(FlowSettings, "horizon", 16)
    flow_steps: int = with_default(FlowSettings, "flow_steps", 4)
    embodiment: int = Field(
        31,
        ge=0,
        description="index of the layers for state and actions. 31 is GR00T's new_embodiment",
    )
