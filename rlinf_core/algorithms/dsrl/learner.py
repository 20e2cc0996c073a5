"""DSRL: soft actor-critic over the noise of a frozen flow (or diffusion) policy.

Wagenmaker et al. 2025, arXiv 2506.15799. The frozen policy only carries noise to an action: its
weights, its size and its training do not matter.
"""

from __future__ import annotations

from rlinf_core.algorithms.dsrl import Config
from rlinf_core.algorithms.sac.learner import Learner as SAC
from rlinf_core.policies.small.latent_noise.policy import LatentNoiseActor


class Learner(SAC):
    """Learns a ``LatentNoiseActor``; a batch's ``action`` is the noise, not the robot's action."""

    config: Config

    def __init__(self, actor: LatentNoiseActor, config: Config, seed: int = 0) -> None:
        actor.flow.requires_grad_(False)
        super().__init__(actor, config, seed)
