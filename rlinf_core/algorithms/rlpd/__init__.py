"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import TargetNetworkSettings
from rlinf_core.config.base import Widths, with_default
from rlinf_core.core.plugins import deferred

__getattr__ = deferred(__name__, "learner")


class Config(TargetNetworkSettings):
    """Hyper-parameters of RLPD: those of every actor-critic with slow targets, and of cloning.

    Half of a batch are demonstrations.
    """

    half_demonstrations = True
    several_robots = True

    name: str = with_default(TargetNetworkSettings, "name", "rlpd")
    batch_size: int = Field(256, gt=1, description="transitions a step, half of them demonstrations")
    critics: int = with_default(TargetNetworkSettings, "critics", 4)
    critic_hidden: Widths = with_default(TargetNetworkSettings, "critic_hidden", (128, 128))
    discount: float = with_default(TargetNetworkSettings, "discount", 0.97)
    initial_temperature: float = with_default(TargetNetworkSettings, "initial_temperature", 0.02)
    # small tolerances need little noise
    target_entropy: float = with_default(TargetNetworkSettings, "target_entropy", -2.0)
    entropy_backup: bool = with_default(TargetNetworkSettings, "entropy_backup", False)
    actor_every: int = with_default(TargetNetworkSettings, "actor_every", 2)
    critic_warmup: int = with_default(TargetNetworkSettings, "critic_warmup", 500)
    cloning: float = Field(0.05, ge=0, description="weight of the demonstrations' likelihood in the actor's loss, at first")
    cloning_steps: int = Field(10_000, gt=0, description="steps over which it decays to a tenth")
    cloning_noise: float = Field(
        0.03, ge=0, description="for that, the demonstrated action is smeared by this much, as by sft.min_std")
    cloning_filter: bool = Field(False, description="clones nothing where all critics hold what it would do for better")
    self_imitation: bool = Field(True, description="episodes of its own that succeeded count as demonstrations")
    pessimism: float = Field(
        0.0, ge=0, le=10, description="standard deviations of the ensemble by which the actor climbs less than its mean")
    image_shift: int = with_default(TargetNetworkSettings, "image_shift", 3)

    @property
    def imitates_itself(self) -> bool:
        return self.self_imitation

    @property
    def warm_start(self) -> bool:
        return True
