"""ACT: an action chunking transformer, cloned with a latent variable of the style."""

from __future__ import annotations

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import VisuomotorSettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(VisuomotorSettings):
    """ACT, from LeRobot's checkpoints or from scratch: SFT. Exploration draws the latent."""

    kind: str = with_default(VisuomotorSettings, "kind", "act")
