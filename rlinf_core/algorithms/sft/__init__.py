"""Supervised fine-tuning: maximum likelihood of the demonstrated actions."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import DemonstrationSettings
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import deferred

__getattr__ = deferred(__name__, "learner")


class Config(DemonstrationSettings):
    """Hyper-parameters of supervised fine-tuning."""

    policies = ("tanh_gaussian", "flow", "pi0", "pi05", "groot", "openvla", "qwen_vl", "pi0_fast",
                "smolvla", "act", "diffusion", "residual")
    several_robots = True

    name: str = with_default(DemonstrationSettings, "name", "sft")
    min_std: float = Field(
        0.1, ge=0, description="the demonstrated action is smeared by this much, which keeps the policy's deviation from "
        "collapsing")
    anneal_steps: int = Field(
        0, ge=0, description="gradient steps over which the learning rate falls to 0 along a cosine; 0 for never")
    image_shift: int = Field(3, ge=0, description="pixels by which images are moved at random (DrQ)")
    lora_rank: int = Field(
        0, ge=0, description="0 trains all weights; else adapters of this rank on the linear layers alone, merged into "
        "the policy")
