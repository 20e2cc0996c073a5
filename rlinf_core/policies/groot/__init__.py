"""GR00T N1.5: a vision-language model whose features a diffusion transformer attends to, which carries noise to actions."""

from rlinf_core.plugins import deferred
from rlinf_core.policies.groot.config import Config as Config

__getattr__ = deferred(__name__, "policy")
