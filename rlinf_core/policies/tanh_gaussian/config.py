"""Settings of the tanh-Gaussian policy."""

from __future__ import annotations

from rlinf_core.policies.settings import PolicySettings
from rlinf_core.settings.base import with_default


class Config(PolicySettings):
    """A tanh-Gaussian: the SAC family, SFT."""

    kind: str = with_default(PolicySettings, "kind", "tanh_gaussian")
