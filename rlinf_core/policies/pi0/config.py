"""Settings of pi0."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.policies.settings import PretrainedSettings
from rlinf_core.settings.base import with_default


class Config(PretrainedSettings):
    """pi0, pretrained or from scratch: SFT, the PPO family. It has no use for the keys about encoders and trunks."""

    kind: str = with_default(PretrainedSettings, "kind", "pi0")
    horizon: int = with_default(PretrainedSettings, "horizon", 50)
    flow_steps: int = Field(10, gt=0, le=1000, description="from noise to action")
    sde_noise: float = Field(
        0.0, ge=0, le=2, description="where it explores, so much noise enters at every step from noise to action, the "
        "marginals staying what they are, which gives what it draws a density: the PPO family; 0 for none")
    tokens: int = Field(48, gt=0, le=1024, description="room for the instruction; what is longer is cut off")
    frozen: bool = Field(False, description="the vision-language model stays as it is; the action expert alone is trained")
