"""A flow policy whose latent noise a small policy chooses (DSRL, arXiv 2506.15799)."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.latent_noise.config import Config as Config

__getattr__ = deferred(__name__, "policy")
