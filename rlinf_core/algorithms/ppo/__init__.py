"""PPO: clipped policy gradient with a learned value and generalised advantages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf_core.algorithms.common.settings import OnPolicySettings, RolloutLength
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(OnPolicySettings):
    """Hyper-parameters of PPO: those of every on-policy algorithm, and of its value function."""

    name: str = with_default(OnPolicySettings, "name", "ppo")
    chunks: int = Field(64, gt=0, description="chunks per environment and rollout")
    epochs: int = with_default(OnPolicySettings, "epochs", 8)
    minibatches: int = with_default(OnPolicySettings, "minibatches", 8)
    discount: float = Field(0.99, ge=0, le=1, description="discount factor of a time step")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="lambda of the generalised advantage estimate"
    )
    dual_clip: float = with_default(OnPolicySettings, "dual_clip", 3.0)
    value_clip: float = Field(
        0.2, ge=0, description="largest change of a value per update. 0 sets no limit"
    )
    huber: float = Field(
        10.0,
        ge=0,
        description="width of the quadratic part of the value loss. 0 is the squared error",
    )
    value_weight: float = Field(0.5, ge=0, description="weight of the value loss")
    bootstrap: Literal["truncation", "always", "never"] = Field(
        "truncation",
        description="add the next value after a time limit (`truncation`), also "
        "after the end (`always`), or `never`",
    )
    normalise: bool = Field(True, description="centre and scale the advantages of each rollout")
    scale_rewards: bool = Field(
        False, description="divide rewards by the running deviation of the return"
    )
    clip_gradient: float = with_default(OnPolicySettings, "clip_gradient", 0.5)

    @property
    def gamma(self) -> float:
        return self.discount

    @property
    def rollout(self) -> RolloutLength:
        return {"chunks": self.chunks}
