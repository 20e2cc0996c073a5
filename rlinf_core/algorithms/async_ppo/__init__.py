"""Asynchronous PPO: rollouts of somewhat older policies, by the decoupled objective."""

from rlinf_core.algorithms.async_ppo.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
