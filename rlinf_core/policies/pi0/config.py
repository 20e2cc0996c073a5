"""Settings of pi0."""

from __future__ import annotations

from rlinf_core.policies.settings import FlowSettings
from rlinf_core.settings.base import with_default


class Config(FlowSettings):
    """pi0, pretrained or from scratch: SFT, the PPO family. It has no use for the keys about encoders and trunks."""

    kind: str = with_default(FlowSettings, "kind", "pi0")
