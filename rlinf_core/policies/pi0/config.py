"""Settings of pi0."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from rlinf_core.policies.settings import Lora, PolicySettings
from rlinf_core.settings.base import with_default


class Config(PolicySettings):
    """pi0, pretrained or from scratch: SFT, the PPO family. It has no use for the keys about encoders and trunks."""

    kind: str = with_default(PolicySettings, "kind", "pi0")
    horizon: int = with_default(PolicySettings, "horizon", 50)
    checkpoint: str = Field("", description="a folder as Hugging Face has it: config.json, model.safetensors and "
                            "tokenizer.json of a pi0. Empty to begin with random weights")
    network: dict[str, Any] = Field(
        {}, description="without a checkpoint: what differs from the smallest network, by the keys of transformers' "
        "PI0Config: {dit_config: {num_hidden_layers: 4}}; its tokenizer reads bytes")
    flow_steps: int = Field(10, gt=0, le=1000, description="from noise to action")
    sde_noise: float = Field(
        0.0, ge=0, le=2, description="where it explores, so much noise enters at every step from noise to action, the "
        "marginals staying what they are, which gives what it draws a density: the PPO family; 0 for none")
    tokens: int = Field(48, gt=0, le=1024, description="room for the instruction; what is longer is cut off")
    frozen: bool = Field(False, description="the vision-language model stays as it is; the action expert alone is trained")
    lora: Lora = Field(Lora(), description="adapters, which alone are trained and travel")

    @model_validator(mode="after")
    def _one_origin(self) -> Config:
        if self.checkpoint and self.network:
            raise ValueError("network: expected nothing beside a checkpoint, which has its own. Leave one of them out")
        return self
