"""SAC-Flow: soft actor-critic whose actor is a flow, differentiated through its few steps from noise to action."""

from rlinf_core.algorithms.sac_flow.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
