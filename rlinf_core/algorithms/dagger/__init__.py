"""DAgger: the policy drives, an expert says what it should have done, and cloning goes on over everything so far."""

from rlinf_core.algorithms.dagger.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
