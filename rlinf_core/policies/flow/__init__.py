"""A flow-matching actor: noise is carried to an action along a learned velocity field, in a few Euler steps."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.flow.config import Config as Config

__getattr__ = deferred(__name__, "policy")
