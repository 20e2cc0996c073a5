"""Settings of SAC."""

from __future__ import annotations

from rlinf_core.algorithms.common.settings import TargetNetworkSettings
from rlinf_core.settings.base import with_default


class Config(TargetNetworkSettings):
    """Hyper-parameters of SAC: those of every actor-critic with slow targets."""

    several_robots = True

    name: str = with_default(TargetNetworkSettings, "name", "sac")
