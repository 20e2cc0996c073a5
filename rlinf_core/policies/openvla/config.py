"""Settings of OpenVLA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf_core.policies.settings import PretrainedSettings
from rlinf_core.settings.base import with_default


class Config(PretrainedSettings):
    """OpenVLA and OpenVLA-OFT, pretrained or from scratch: SFT, the PPO family. It looks at images alone, and has no use
    for the keys about encoders and trunks."""

    kind: str = with_default(PretrainedSettings, "kind", "openvla")
    decoding: Literal["autoregressive", "parallel"] = Field(
        "autoregressive", description="a token after the other, as OpenVLA; or all of a chunk at once, as OpenVLA-OFT")
    statistics: str = Field(
        "", description="of which of the checkpoint's data sets (norm_stats) its actions are, in SI units; empty where "
        "they are the task's own, in [-1, 1]")
    temperature: float = Field(1.0, gt=0, le=100, description="of the tokens that are drawn where it explores")
    token_log_probs: bool = Field(
        False, description="the PPO family weighs each token instead of each action (algorithm.level: action); in "
        "simulators")
