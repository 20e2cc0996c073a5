"""SAC: soft actor-critic with twin critics and a learned temperature.

Haarnoja et al. 2018, arXiv 1812.05905. With chunked actions a transition spans H time steps: its reward is the discounted
sum over them and the next value counts gamma^H (``parts/chunks.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_core.algorithms.parts.actor_critic import ActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of SAC.

    Attributes:
        batch_size: transitions a step.
        critics: size of the ensemble.
        target_critics: how many of them, drawn each step, the target takes the minimum of.
        critic_hidden: widths of each critic's layers.
        discount: gamma per time step.
        target_rate: tau of the target critics' moving average.
        learning_rate: of Adam for actor, critics and temperature.
        initial_temperature: alpha at first.
        target_entropy: per action dimension.
        entropy_backup: whether the target's value includes the entropy bonus.
        actor_every: critic steps per actor step.
        critic_warmup: critic steps before the actor begins to move.
        clip_gradient: norm bound, per optimiser.
        image_shift: pixels by which images are moved at random (DrQ).
    """

    batch_size: int = 256
    critics: int = 2
    target_critics: int = 2
    critic_hidden: tuple[int, ...] = (256, 256)
    discount: float = 0.99
    target_rate: float = 0.005
    learning_rate: float = 3e-4
    initial_temperature: float = 0.2
    target_entropy: float = -1.0
    entropy_backup: bool = True
    actor_every: int = 1
    critic_warmup: int = 0
    clip_gradient: float = 10.0
    image_shift: int = 0


class Learner(ActorCritic):
    """The plain algorithm."""

    config: Config
