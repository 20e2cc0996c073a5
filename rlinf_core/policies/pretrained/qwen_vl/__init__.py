"""Qwen2.5-VL with actions as tokens, one by one or all at once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf_core.config.base import Place, with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import TokenSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(TokenSettings):
    """Qwen2.5-VL, pretrained or from scratch: SFT, the PPO family.

    The policy reads images. The keys about encoders and trunks have no effect.
    """

    kind: str = with_default(TokenSettings, "kind", "qwen_vl")
    decoding: Literal["autoregressive", "parallel"] = Field(
        "autoregressive",
        description="one token after another as in OpenVLA, or a whole chunk at once as in "
        "OpenVLA-OFT",
    )
    engine: str = Field(
        "",
        description="address of a vLLM server, http://host:port/v1, which samples the tokens of "
        "rollouts in simulators; empty to sample them in this process",
    )
    engine_folder: Place = Field(
        "",
        description="folder of the served model, for new weights; empty for the one that the "
        "server lists",
    )
