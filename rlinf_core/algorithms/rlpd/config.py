"""Settings of RLPD."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.parts.settings import SlowSettings
from rlinf_core.settings.base import Widths, with_default


class Config(SlowSettings):
    """Hyper-parameters of RLPD: those of every actor-critic with slow targets (half of a batch are demonstrations), and
    cloning."""

    half_demonstrations = True

    name: str = with_default(SlowSettings, "name", "rlpd")
    critics: int = with_default(SlowSettings, "critics", 4)
    critic_hidden: Widths = with_default(SlowSettings, "critic_hidden", (128, 128))
    discount: float = with_default(SlowSettings, "discount", 0.97)
    initial_temperature: float = with_default(SlowSettings, "initial_temperature", 0.02)
    target_entropy: float = with_default(SlowSettings, "target_entropy", -2.0)  # the demo's tolerances need little noise
    entropy_backup: bool = with_default(SlowSettings, "entropy_backup", False)
    actor_every: int = with_default(SlowSettings, "actor_every", 2)
    critic_warmup: int = with_default(SlowSettings, "critic_warmup", 500)
    cloning: float = Field(0.3, ge=0, description="weight of the cloning term on demonstrations at first")
    cloning_steps: int = Field(20000, gt=0, description="steps over which it decays to a tenth")
    image_shift: int = with_default(SlowSettings, "image_shift", 3)

    @property
    def warm_start(self) -> bool:
        return True
