"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics."""

from rlinf_core.algorithms.rlpd.config import Config as Config
from rlinf_core.plugins import deferred

__getattr__ = deferred(__name__, "learner")
