"""Supervised fine-tuning: maximum likelihood of the demonstrated actions."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import DemonstrationSettings
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(DemonstrationSettings):
    """Hyper-parameters of supervised fine-tuning."""

    policies = (
        "tanh_gaussian",
        "flow",
        "pi0",
        "pi05",
        "groot",
        "groot_n1_6",
        "groot_n1_7",
        "openvla",
        "qwen_vl",
        "pi0_fast",
        "smolvla",
        "xvla",
        "act",
        "diffusion",
        "residual",
    )
    several_robots = True

    name: str = with_default(DemonstrationSettings, "name", "sft")
    min_std: float = Field(
        0.1,
        ge=0,
        description="standard deviation of noise on the demonstrated action. It keeps "
        "the policy's own deviation from collapsing",
    )
    anneal_steps: int = Field(
        0,
        ge=0,
        description="gradient steps over which the learning rate falls to 0 along a "
        "cosine. 0 keeps it constant",
    )
    image_shift: int = Field(3, ge=0, description="largest random shift of images [pixels] (DrQ)")
    lora_rank: int = Field(
        0,
        ge=0,
        description="rank of adapters on the linear layers, merged into the policy. 0 "
        "trains all weights",
    )
