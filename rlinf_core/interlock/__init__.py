"""The interlock's pure core: what may move, decided once per tick. Not a functional-safety certified device."""

from rlinf_core.interlock.core import step
from rlinf_core.interlock.limits import Limits, load_limits
from rlinf_core.interlock.types import Applied, Chunk, Event, Inputs, Mode, Output, State

__all__ = ["Applied", "Chunk", "Event", "Inputs", "Limits", "Mode", "Output", "State", "load_limits", "step"]
