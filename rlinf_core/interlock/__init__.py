"""The interlock's pure core: what may move, decided once per tick. Not a functional-safety certified device."""

from rlinf_core.interlock.core import adopt, enabled, standing_faults, step
from rlinf_core.interlock.limits import Limits, load_limits, loosened, with_values
from rlinf_core.interlock.types import Applied, Chunk, EStop, Event, Inputs, Mode, Output, State

__all__ = ["Applied", "Chunk", "EStop", "Event", "Inputs", "Limits", "Mode", "Output", "State", "adopt",
           "enabled", "load_limits", "loosened", "standing_faults", "step", "with_values"]
