"""Supervised fine-tuning: maximum likelihood of the demonstrated actions.

A flow policy matches its velocity field instead (Lipman et al. 2022, arXiv 2210.02747).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rlinf_core.algorithms.parts import lora
from rlinf_core.algorithms.parts.learner import DEMONSTRATIONS, Checkpointed, descend
from rlinf_core.algorithms.parts.tensors import shift_images, to_tensors
from rlinf_core.policies.policy import Batch, Policy


@dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of supervised fine-tuning.

    Attributes:
        steps: gradient steps.
        batch_size: transitions a step.
        learning_rate: of Adam.
        noise_floor: the demonstrated action is smeared by this much, which keeps the policy's deviation from collapsing.
        image_shift: pixels by which images are moved at random (DrQ).
        lora_rank: 0 trains all weights; else adapters of this rank on the linear layers alone, merged into the policy.
    """

    steps: int = 1000
    batch_size: int = 256
    learning_rate: float = 3e-4
    noise_floor: float = 0.1
    image_shift: int = 3
    lora_rank: int = 0


def loss(actor: Policy, batch: Batch, noise_floor: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """The policy's imitation loss of demonstrated actions (B, H A), smeared."""
    action = batch["action"]
    if noise_floor:
        action = action + noise_floor * torch.randn(action.shape, generator=generator, device=action.device)
    return actor.imitation_loss(batch, action, generator)


class Learner(Checkpointed):
    """Behaviour cloning of one actor."""

    learns_from, policies = DEMONSTRATIONS, ("tanh_gaussian", "flow")

    def __init__(self, actor: Policy, config: Config, seed: int = 0) -> None:
        self.actor, self.config, self.updates = actor, config, 0
        self.trained = lora.adapted(actor, config.lora_rank, seed) if config.lora_rank else actor
        self.modules = {"actor": actor} | ({"adapted": self.trained} if config.lora_rank else {})
        parameters = [parameter for parameter in self.trained.parameters() if parameter.requires_grad]
        self.optimisers = {"actor": torch.optim.Adam(parameters, lr=config.learning_rate)}
        self.generator = torch.Generator().manual_seed(seed)

    def update(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """One gradient step on a batch of demonstrations."""
        tensors = shift_images(to_tensors(batch), self.config.image_shift, self.generator)
        if self.config.lora_rank:
            lora.follow_normalisation(self.trained, self.actor)
        value = loss(self.trained, tensors, self.config.noise_floor, self.generator)
        descend(self.optimisers["actor"], value)
        if self.config.lora_rank:
            lora.merge(self.trained, self.actor)
        self.updates += 1
        return {"sft_loss": value.item()}
