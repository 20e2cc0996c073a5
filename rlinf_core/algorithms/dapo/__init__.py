"""DAPO: GRPO that clips higher than lower, weighs steps alike, leaves out groups without a gradient, and shapes length."""

from rlinf_core.algorithms.dapo.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
