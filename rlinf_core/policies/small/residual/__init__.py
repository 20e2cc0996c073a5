"""A bounded correction of the actions of a frozen base policy (arXiv 2509.19301)."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import Place, with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.small.tanh_gaussian import Config as TanhGaussian

__getattr__ = lazy_attributes(__name__, "policy")


class Config(TanhGaussian):
    """A tanh-Gaussian over the correction of a base policy."""

    kind: str = with_default(TanhGaussian, "kind", "residual")
    base: Place = Field(
        "",
        description="base policy that is corrected: a policy file, a run folder, or "
        "ws://host:port of a server with openpi's protocol (rlinf serve, openpi's "
        "own)",
    )
    base_keys: dict[str, str] = Field(
        {},
        description="for a served base: names of observations at its server, as in "
        "station.policy.keys",
    )
    base_timeout_s: float = Field(
        10.0, gt=0, le=600, description="for a served base: longest wait for an answer [s]"
    )
    residual_bound: float = Field(
        0.5,
        gt=0,
        le=2,
        description="largest correction of the base's action, in units of the largest step",
    )
