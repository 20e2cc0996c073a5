"""SmolVLA: SmolVLM2 and an action expert that attends to it, carrying noise to a chunk of actions."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.smolvla.config import Config as Config

__getattr__ = deferred(__name__, "policy")
