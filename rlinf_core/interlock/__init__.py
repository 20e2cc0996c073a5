"""The interlock's pure core: what may move, decided once per tick. Not a functional-safety certified device."""

from rlinf_core.interlock.core import standing_faults, step
from rlinf_core.interlock.limits import Limits, load_limits
from rlinf_core.interlock.types import Applied, Chunk, EStop, Event, Inputs, Mode, Output, State

__all__ = ["Applied", "Chunk", "EStop", "Event", "Inputs", "Limits", "Mode", "Output", "State", "load_limits",
           "standing_faults", "step"]
