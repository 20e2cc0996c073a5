"""REINFORCE++: what came after each step, whitened over the whole rollout, in PPO's clipped objective; no value."""

from rlinf_core.algorithms.reinforce.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
