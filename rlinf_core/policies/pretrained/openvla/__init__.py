"""OpenVLA and OpenVLA-OFT: a language model with actions as tokens, one by one or all at once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import TokenSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(TokenSettings):
    """OpenVLA and OpenVLA-OFT, pretrained or from scratch: SFT, the PPO family.

    The policy reads images, and with ``state`` also vectors. The keys about encoders and trunks
    have no effect.
    """

    kind: str = with_default(TokenSettings, "kind", "openvla")
    decoding: Literal["autoregressive", "parallel", "regression"] = Field(
        "autoregressive",
        description="one token after the other as in OpenVLA, or a whole chunk at once as in "
        "OpenVLA-OFT. OpenVLA-OFT's L1 head has no density, so it is only for SFT "
        "and dagger",
    )
    state: bool = Field(
        False,
        description="also read observations other than images, through OpenVLA-OFT's projector",
    )
    central_crop: float = Field(
        1.0,
        gt=0,
        le=1,
        description="central share of the image area in the input. Take 0.9 for "
        "a checkpoint that was trained on random crops, such as "
        "OpenVLA's of LIBERO. 1 takes all",
    )
    statistics: str = Field(
        "",
        description="data set in the checkpoint's norm_stats with the actions' SI units. "
        "Empty takes the task's own actions in [-1, 1]. With `state`, the "
        "observed vectors are that data set's proprio",
    )

    @model_validator(mode="after")
    def _check_decoding(self) -> Config:
        if self.decoding == "regression" and (self.token_log_probs or self.stochastic_eval):
            raise ValueError(
                "decoding: expected autoregressive or parallel with token_log_probs or "
                "stochastic_eval, got regression, which draws nothing"
            )
        return self

    @property
    def no_density_reason(self) -> str:
        regression = (
            "policy.decoding: expected autoregressive or parallel, whose tokens have "
            "one, got regression"
        )
        return regression if self.decoding == "regression" else ""
