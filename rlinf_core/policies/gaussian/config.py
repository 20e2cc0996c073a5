"""Settings of the Gaussian policy."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.policies.settings import PolicySettings
from rlinf_core.settings.base import with_default


class Config(PolicySettings):
    """A Gaussian with a deviation of its own: the PPO family."""

    kind: str = with_default(PolicySettings, "kind", "gaussian")
    initial_log_std: float = Field(-0.5, ge=-10, le=5, description="logarithm of the deviation at first")
