"""A flow policy steered by a small one that chooses its noise (DSRL, arXiv 2506.15799)."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.steered.config import Config as Config

__getattr__ = deferred(__name__, "policy")
