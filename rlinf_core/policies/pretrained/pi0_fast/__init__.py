"""pi0-FAST: PaliGemma writes a chunk of actions as compressed tokens, one after the other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlinf_core.config.base import Place, with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import TokenSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(TokenSettings):
    """pi0-FAST, pretrained or from scratch: SFT, the PPO family.

    Its chunks have different numbers of tokens.
    """

    kind: str = with_default(TokenSettings, "kind", "pi0_fast")
    horizon: int = with_default(TokenSettings, "horizon", 50)
    decoding: Literal["autoregressive"] = Field(
        "autoregressive",
        description="one token after another, as in the training of the checkpoint",
    )
    tokens: int = Field(
        200,
        gt=0,
        le=1024,
        description="largest length of instruction and state [tokens]; the rest is cut",
    )
    max_decoding_steps: int = Field(
        256, gt=1, le=4096, description="largest length of a chunk [tokens]; a longer one is cut"
    )
    statistics: Place = Field(
        "",
        description="LeRobot's ...normalizer_processor.safetensors or stats.json of the "
        "checkpoint's data set, for the normalisation of the state and the units of "
        "the actions; empty to fit both anew",
    )

    @model_validator(mode="after")
    def _check_token_log_probs(self) -> Config:
        if self.token_log_probs:
            raise ValueError(
                "token_log_probs: expected false. Chunks have different numbers of tokens and one "
                "log-probability each: set algorithm.level=chunk"
            )
        return self
