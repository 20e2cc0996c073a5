"""CrossQ: SAC without target networks, which batch-renormalised critics make stable."""

from rlinf_core.algorithms.crossq.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
