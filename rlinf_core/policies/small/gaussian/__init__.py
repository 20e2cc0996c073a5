"""A Gaussian actor with a state-independent deviation, and a value function: the PPO family."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import PolicySettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(PolicySettings):
    """A Gaussian with a learned, state-independent deviation: the PPO family."""

    kind: str = with_default(PolicySettings, "kind", "gaussian")
    initial_log_std: float = Field(
        -0.5, ge=-10, le=5, description="first logarithm of the standard deviation"
    )
