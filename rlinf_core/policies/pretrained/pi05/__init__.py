"""pi0.5: pi0 with the state as words, and an action expert with time-dependent normalisations."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import FlowSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(FlowSettings):
    """pi0.5, pretrained or from scratch: SFT, the PPO family.

    The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(FlowSettings, "kind", "pi05")
    tokens: int = with_default(FlowSettings, "tokens", 200)
    pad_state: bool = Field(
        False,
        description="pad the state in the prompt with zeros to the network's size, as "
        "LeRobot 0.4 does. false is for openpi and LeRobot 0.5",
    )
