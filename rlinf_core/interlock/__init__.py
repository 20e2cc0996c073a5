"""The interlock's pure core. It decides once per tick whether each arm may move.

This is not a functional-safety certified device. In comments and tests, S1 to S27 are the safety
requirements and "trap 1" to "trap 19" the known mistakes that docs/reference/safety_evidence.md
lists, each with its test.
"""

from rlinf_core.interlock.core import step
from rlinf_core.interlock.limits import Limits, loosened_limits
from rlinf_core.interlock.limits_file import load_limits, load_with_loosest, loosest, with_values
from rlinf_core.interlock.safety_checks import active_faults, enabled, missing_inputs
from rlinf_core.interlock.tick import State, adopt_limits, after_unobserved_time
from rlinf_core.interlock.types import (
    OPERATOR,
    Applied,
    ArmReport,
    Chunk,
    EStop,
    Event,
    Inputs,
    Mode,
    Output,
    Pose,
)

__all__ = [
    "OPERATOR",
    "Applied",
    "Chunk",
    "EStop",
    "Event",
    "Inputs",
    "Limits",
    "Mode",
    "ArmReport",
    "Output",
    "Pose",
    "State",
    "adopt_limits",
    "enabled",
    "load_limits",
    "load_with_loosest",
    "loosened_limits",
    "loosest",
    "active_faults",
    "step",
    "missing_inputs",
    "after_unobserved_time",
    "with_values",
]
