"""DSRL: a frozen flow (or diffusion) policy is steered by choosing its noise, with soft actor-critic over the noise."""

from rlinf_core.algorithms.dsrl.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
