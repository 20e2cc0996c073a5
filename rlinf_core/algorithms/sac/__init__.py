"""SAC: soft actor-critic with twin critics and a learned temperature."""

from rlinf_core.algorithms.sac.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
