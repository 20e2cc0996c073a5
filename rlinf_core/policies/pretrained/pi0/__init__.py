"""pi0: a vision-language model and an action expert that carries noise to a chunk of actions."""

from __future__ import annotations

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import FlowSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(FlowSettings):
    """pi0, pretrained or from scratch: SFT, the PPO family.

    The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(FlowSettings, "kind", "pi0")
