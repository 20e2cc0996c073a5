"""The interlock's pure core. It decides once per tick whether each arm may move.

This is not a functional-safety certified device.
"""

from rlinf_core.interlock.core import step
from rlinf_core.interlock.limits import Limits, loosened
from rlinf_core.interlock.limits_file import load_limits, load_with_loosest, loosest, with_values
from rlinf_core.interlock.tick import State, adopt, unwatched
from rlinf_core.interlock.types import (
    OPERATOR,
    Applied,
    Chunk,
    EStop,
    Event,
    Inputs,
    Mode,
    Other,
    Output,
    Pose,
)
from rlinf_core.interlock.watch import enabled, standing_faults, unready

__all__ = [
    "OPERATOR",
    "Applied",
    "Chunk",
    "EStop",
    "Event",
    "Inputs",
    "Limits",
    "Mode",
    "Other",
    "Output",
    "Pose",
    "State",
    "adopt",
    "enabled",
    "load_limits",
    "load_with_loosest",
    "loosened",
    "loosest",
    "standing_faults",
    "step",
    "unready",
    "unwatched",
    "with_values",
]
