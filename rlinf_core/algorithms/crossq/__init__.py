"""CrossQ: SAC without target networks, stable by batch-renormalised critics."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import ActorCriticSettings
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(ActorCriticSettings):
    """Hyper-parameters of CrossQ: those of every actor-critic, and two of renormalisation.

    Wide critics are worth their time.
    """

    several_robots = True

    name: str = with_default(ActorCriticSettings, "name", "crossq")
    learning_rate: float = with_default(ActorCriticSettings, "learning_rate", 1e-3)
    # with 0.9 it unlearns again
    adam_beta: float = with_default(ActorCriticSettings, "adam_beta", 0.5)
    actor_every: int = with_default(ActorCriticSettings, "actor_every", 3)
    renorm_momentum: float = Field(
        0.01, gt=0, le=1, description="momentum of the running statistics"
    )
    renorm_warmup: int = Field(
        1000,
        ge=0,
        description="critic steps with plain batch normalisation before the running "
        "statistics are used",
    )
