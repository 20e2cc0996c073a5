"""SAC-Flow: soft actor-critic with a flow as actor, differentiated through its few steps."""

from __future__ import annotations

from rlinf_core.algorithms.sac import Config as SAC
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(SAC):
    """Hyper-parameters of SAC-Flow: those of SAC.

    The target entropy is lower, because it counts every step's noise.
    """

    policies = ("flow",)

    name: str = with_default(SAC, "name", "sac_flow")
    target_entropy: float = with_default(SAC, "target_entropy", -4.0)
    initial_temperature: float = with_default(SAC, "initial_temperature", 0.01)
    actor_every: int = with_default(SAC, "actor_every", 2)
