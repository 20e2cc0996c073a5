"""The actor: encoder, trunk and tanh-Gaussian head, sized from the station's specs, with its own normalisation."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.tanh_gaussian.config import Config as Config

__getattr__ = deferred(__name__, "policy")
