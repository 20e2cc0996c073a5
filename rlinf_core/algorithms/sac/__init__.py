"""SAC: soft actor-critic with twin critics and a learned temperature."""

from __future__ import annotations

from rlinf_core.algorithms.common.settings import TargetNetworkSettings
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(TargetNetworkSettings):
    """Hyper-parameters of SAC: those of every actor-critic with slow targets."""

    several_robots = True

    name: str = with_default(TargetNetworkSettings, "name", "sac")
