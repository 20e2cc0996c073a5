"""Settings of GR00T N1.5."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.policies.settings import FlowSettings
from rlinf_core.settings.base import with_default


class Config(FlowSettings):
    """GR00T N1.5, pretrained or from scratch: SFT, the PPO family. It has no use for the keys about encoders and trunks."""

    kind: str = with_default(FlowSettings, "kind", "groot")
    horizon: int = with_default(FlowSettings, "horizon", 16)
    flow_steps: int = with_default(FlowSettings, "flow_steps", 4)
    embodiment: int = Field(31, ge=0, description="whose layers for state and actions are used; 31 is GR00T's "
                            "new_embodiment")
