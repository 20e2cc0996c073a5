"""IQL: learning from a fixed set of transitions, without asking about actions that are not in it."""

from rlinf_core.algorithms.iql.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
