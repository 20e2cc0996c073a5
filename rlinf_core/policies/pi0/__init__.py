"""pi0: a vision-language model and an action expert that carries noise to a chunk of actions."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.pi0.config import Config as Config

__getattr__ = deferred(__name__, "policy")
