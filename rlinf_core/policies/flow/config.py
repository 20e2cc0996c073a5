"""Settings of the flow policy."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.policies.settings import PolicySettings
from rlinf_core.settings.base import with_default


class Config(PolicySettings):
    """Flow matching: SFT, SAC-Flow."""

    kind: str = with_default(PolicySettings, "kind", "flow")
    flow_steps: int = Field(4, gt=0, le=1000, description="from noise to action")
