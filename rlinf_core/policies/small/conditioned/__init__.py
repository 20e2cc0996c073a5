"""A tanh-Gaussian with an advantage label as an input (RECAP, arXiv 2511.14759)."""

from __future__ import annotations

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.small.tanh_gaussian import Config as TanhGaussian

__getattr__ = lazy_attributes(__name__, "policy")


class Config(TanhGaussian):
    """A tanh-Gaussian with one number more: the label of the advantage."""

    kind: str = with_default(TanhGaussian, "kind", "conditioned")
