"""pi0.5: pi0 whose state is words, and whose time scales and shifts what the action expert normalises."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.pi05.config import Config as Config

__getattr__ = deferred(__name__, "policy")
