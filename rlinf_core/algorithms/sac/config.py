"""Settings of SAC."""

from __future__ import annotations

from rlinf_core.algorithms.parts.settings import SlowSettings
from rlinf_core.settings.base import with_default


class Config(SlowSettings):
    """Hyper-parameters of SAC: those of every actor-critic with slow targets."""

    name: str = with_default(SlowSettings, "name", "sac")
