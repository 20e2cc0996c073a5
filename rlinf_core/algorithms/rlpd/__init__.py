"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import TargetNetworkSettings
from rlinf_core.config.base import Widths, with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(TargetNetworkSettings):
    """Hyper-parameters of RLPD: those of every actor-critic with slow targets, and of cloning.

    Half of a batch are demonstrations.
    """

    half_demonstrations = True
    several_robots = True

    name: str = with_default(TargetNetworkSettings, "name", "rlpd")
    batch_size: int = Field(256, gt=1, description="transitions of each gradient step")
    critics: int = with_default(TargetNetworkSettings, "critics", 4)
    critic_hidden: Widths = with_default(TargetNetworkSettings, "critic_hidden", (128, 128))
    discount: float = with_default(TargetNetworkSettings, "discount", 0.97)
    initial_temperature: float = with_default(TargetNetworkSettings, "initial_temperature", 0.02)
    # small tolerances need little noise
    target_entropy: float = with_default(TargetNetworkSettings, "target_entropy", -2.0)
    entropy_backup: bool = with_default(TargetNetworkSettings, "entropy_backup", False)
    actor_every: int = with_default(TargetNetworkSettings, "actor_every", 2)
    critic_warmup: int = with_default(TargetNetworkSettings, "critic_warmup", 500)
    cloning: float = Field(
        0.05, ge=0, description="first weight of the demonstrations' likelihood in the actor's loss"
    )
    cloning_steps: int = Field(
        10_000, gt=0, description="steps over which this weight falls to a tenth"
    )
    cloning_noise: float = Field(
        0.03,
        ge=0,
        description="standard deviation of noise on the cloned action, as in sft.min_std",
    )
    cloning_filter: bool = Field(
        False, description="skip a demonstrated action if all critics prefer the policy's action"
    )
    self_imitation: bool = Field(
        True, description="successful episodes of the policy count as demonstrations"
    )
    pessimism: float = Field(
        0.0,
        ge=0,
        le=10,
        description="standard deviations of the ensemble that the actor's "
        "objective subtracts from the mean",
    )
    image_shift: int = with_default(TargetNetworkSettings, "image_shift", 3)

    @property
    def imitates_itself(self) -> bool:
        return self.self_imitation

    @property
    def warm_start(self) -> bool:
        return True
