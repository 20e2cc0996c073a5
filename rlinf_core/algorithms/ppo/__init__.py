"""PPO: clipped policy gradient with a learned value and generalised advantages."""

from rlinf_core.algorithms.ppo.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
