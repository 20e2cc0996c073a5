"""The actor: encoder, trunk and tanh-Gaussian head, with its own normalisation.

The sizes come from the station's specs.
"""

from __future__ import annotations

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import PolicySettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(PolicySettings):
    """A tanh-Gaussian: the SAC family, SFT."""

    kind: str = with_default(PolicySettings, "kind", "tanh_gaussian")
