"""GRPO: several episodes of the same scene, each judged against their mean; no value function."""

from rlinf_core.algorithms.grpo.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
