"""X-VLA: Florence-2 and a transformer with soft prompts, one set for each kind of robot."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import FlowSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(FlowSettings):
    """X-VLA, pretrained or from scratch: SFT, the PPO family.

    The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(FlowSettings, "kind", "xvla")
    horizon: int = with_default(FlowSettings, "horizon", 32)
    tokens: int = with_default(FlowSettings, "tokens", 64)
    domain: int = Field(
        0,
        ge=0,
        description="index of the soft prompts and layers of one kind of robot, as domain_id in "
        "the checkpoint's policy_preprocessor.json",
    )
