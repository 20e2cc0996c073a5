"""Supervised fine-tuning: maximum likelihood of the demonstrated actions.

A flow policy matches its velocity field instead (Lipman et al. 2022, arXiv 2210.02747).
"""

from __future__ import annotations

import numpy as np
import torch

from rlinf_core.algorithms.common.image_augmentation import shift_images
from rlinf_core.algorithms.common.learner import BaseLearner
from rlinf_core.algorithms.common.optimizer import adam, anneal, optimizer_step
from rlinf_core.algorithms.common.tensors import to_tensors
from rlinf_core.algorithms.sft import Config
from rlinf_core.policies import lora
from rlinf_core.policies.base import Batch, NetworkPolicy, Policy
from rlinf_core.policies.sharding import noise


def loss(
    actor: Policy, batch: Batch, min_std: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return the policy's imitation loss of demonstrated actions (B, H A) with added noise."""
    action = batch["action"]
    if min_std:
        action = action + min_std * noise(torch.randn, action.shape, generator, action.device)
    return actor.imitation_loss(batch, action, generator)


class Learner(BaseLearner):
    """Behaviour cloning of one actor."""

    def __init__(self, actor: NetworkPolicy, config: Config, seed: int = 0) -> None:
        self.actor = actor
        self.config = config
        self.updates = 0
        self.trained = (
            lora.with_adapters(actor, config.lora_rank, seed) if config.lora_rank else actor
        )
        self.modules = {"actor": actor, **({"adapted": self.trained} if config.lora_rank else {})}
        self.to_device_and_seed(actor.device, seed)
        parameters = [
            parameter for parameter in self.trained.parameters() if parameter.requires_grad
        ]
        self.optimisers = {"actor": adam(parameters, lr=config.learning_rate)}

    def update(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """Make one gradient step on a batch of demonstrations."""
        tensors = shift_images(
            to_tensors(batch, self.device), self.config.image_shift, self.generator
        )
        if self.config.lora_rank:
            lora.copy_buffers(self.trained, self.actor)
        if self.config.anneal_steps:
            anneal(
                self.optimisers["actor"],
                self.config.learning_rate,
                self.updates / self.config.anneal_steps,
            )
        value = loss(self.trained, tensors, self.config.min_std, self.generator)
        optimizer_step(self.optimisers["actor"], value)
        if self.config.lora_rank:
            lora.merge_adapters(self.trained, self.actor)
        self.updates += 1
        return {"sft_loss": value.item()}
