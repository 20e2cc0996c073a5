"""Qwen2.5-VL that says actions as tokens, one after the other or all at once."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.qwen_vl.config import Config as Config

__getattr__ = deferred(__name__, "policy")
