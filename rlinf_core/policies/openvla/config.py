"""Settings of OpenVLA."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rlinf_core.policies.settings import Lora, PolicySettings
from rlinf_core.settings.base import with_default


class Config(PolicySettings):
    """OpenVLA and OpenVLA-OFT, pretrained or from scratch: SFT, the PPO family. It looks at images alone, and has no use
    for the keys about encoders and trunks."""

    kind: str = with_default(PolicySettings, "kind", "openvla")
    checkpoint: str = Field("", description="a folder as Hugging Face has it: config.json, *.safetensors and "
                            "tokenizer.json of an OpenVLA. Empty to begin with random weights")
    network: dict[str, Any] = Field(
        {}, description="without a checkpoint: what differs from the smallest network, by the keys of OpenVLA's "
        "config.json: {text_config: {num_hidden_layers: 4}}; its tokenizer reads bytes")
    decoding: Literal["autoregressive", "parallel"] = Field(
        "autoregressive", description="a token after the other, as OpenVLA; or all of a chunk at once, as OpenVLA-OFT")
    statistics: str = Field(
        "", description="of which of the checkpoint's data sets (norm_stats) its actions are, in SI units; empty where "
        "they are the task's own, in [-1, 1]")
    temperature: float = Field(1.0, gt=0, le=100, description="of the tokens that are drawn where it explores")
    token_log_probs: bool = Field(
        False, description="the PPO family weighs each token instead of each action (algorithm.level: action); in "
        "simulators")
    lora: Lora = Field(Lora(), description="adapters, which alone are trained and travel")

    @model_validator(mode="after")
    def _one_origin(self) -> Config:
        if self.checkpoint and self.network:
            raise ValueError("network: expected nothing beside a checkpoint, which has its own. Leave one of them out")
        return self
