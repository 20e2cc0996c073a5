"""Qwen2.5-VL with actions as tokens, one by one or all at once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf_core.config.base import Place, with_default
from rlinf_core.core.plugins import deferred
from rlinf_core.policies.settings import TokenSettings

__getattr__ = deferred(__name__, "policy")


class Config(TokenSettings):
    """Qwen2.5-VL, pretrained or from scratch: SFT, the PPO family.

    The policy reads images. The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(TokenSettings, "kind", "qwen_vl")
    decoding: Literal["autoregressive", "parallel"] = Field(
        "autoregressive",
        description="a token after the other, as OpenVLA; or all of a chunk at once, as "
        "OpenVLA-OFT",
    )
    engine: str = Field(
        "",
        description="address of a vLLM server, http://host:port/v1, that draws the tokens of "
        "rollouts in simulators; empty to draw them here",
    )
    engine_folder: Place = Field(
        "",
        description="the folder of the model that the engine serves, for new weights; empty "
        "for the one that it lists",
    )
