"""GRPO: several episodes of the same scene, each judged against their mean; no value function."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlinf_core.algorithms.common.settings import OnPolicySettings, RolloutLength
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(OnPolicySettings):
    """Hyper-parameters of GRPO: those of every on-policy algorithm, and the group."""

    name: str = with_default(OnPolicySettings, "name", "grpo")
    group: int = Field(8, gt=1, description="episodes of the same scene")
    reference_kl: float = Field(
        0.0, ge=0, description="weight of the divergence from the initial policy"
    )
    scale: Literal["group", "rollout", "none"] = Field(
        "group",
        description="divisor of the centred return. It is the deviation of the group or "
        "of the rollout, or 1 (Dr. GRPO)",
    )
    weighting: Literal["episode", "step", "constant"] = Field(
        "episode",
        description="unit of equal weight. It is an episode (GRPO), or a time step or "
        "token (DAPO). `constant` divides the sum over tokens by "
        "constant_length (Dr. GRPO)",
    )
    constant_length: int = Field(
        0, ge=0, description="divisor of weighting `constant` [tokens], for example text.max_tokens"
    )
    objective: Literal["clipped", "cispo"] = Field(
        "clipped",
        description="`clipped` is PPO's. `cispo` weighs by the ratio, at most 1 + "
        "clip_high, without its gradient. All tokens then keep a gradient",
    )
    correction: Literal[
        "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = Field(
        "none",
        description="weight of the loss for log-probabilities of another engine or older "
        "weights. The ratio is that of tokens or episodes. It is cut at "
        "correction_high (TIS), or 0 beyond the bounds (mask, IcePop: "
        "token_mask)",
    )
    correction_low: float = Field(
        0.0, ge=0, le=1, description="smallest ratio with a weight above 0. IcePop uses 0.5"
    )
    correction_high: float = Field(2.0, ge=1, description="largest ratio. IcePop uses 5")
    mask_truncated: bool = Field(False, description="learn nothing from truncated episodes")

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        if (self.weighting == "constant") != bool(self.constant_length):
            raise ValueError(
                "constant_length: expected a number of tokens with weighting constant, "
                f"0 elsewhere; got {self.constant_length} with {self.weighting}"
            )
        if self.level != "action" and self.correction.startswith("token"):
            raise ValueError(
                "correction: expected sequence_truncate or sequence_mask with level "
                f"{self.level}, a ratio of whole chunks, got {self.correction}"
            )
        return self

    @property
    def rollout(self) -> RolloutLength:
        return {"group": self.group}
