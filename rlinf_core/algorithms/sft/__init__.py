"""Supervised fine-tuning: maximum likelihood of the demonstrated actions."""

from rlinf_core.algorithms.sft.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
