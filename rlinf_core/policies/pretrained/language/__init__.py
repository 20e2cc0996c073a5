"""A causal language model that writes messages and calls tools, for ``rlinf_core.agentic``."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import PretrainedSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(PretrainedSettings):
    """Any causal language model of transformers, pretrained or from scratch: GRPO and its kin, PPO.

    The model acts on no station; the keys about encoders, trunks and chunks have no effect.
    """

    kind: str = with_default(PretrainedSettings, "kind", "language")
    temperature: float = Field(
        1.0,
        gt=0,
        le=100,
        description="temperature of sampled tokens, in exploration and training. Evaluations take "
        "the likeliest token",
    )
    token_budget: int = Field(
        16_384,
        gt=0,
        description="tokens that are computed together. More are computed in parts, with gradient "
        "checkpointing",
    )
    packed: bool = Field(
        False,
        description="pack rows of different length into one sequence "
        "instead of padding them. It saves time with an "
        "attention that skips masked tokens",
    )
