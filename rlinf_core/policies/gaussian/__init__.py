"""A Gaussian actor with a deviation of its own, and a value function: what the PPO family train."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.gaussian.config import Config as Config

__getattr__ = deferred(__name__, "policy")
