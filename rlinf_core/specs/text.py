"""The spec of a language policy: it observes and writes tokens, and fits no station."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf_core.specs.arrays import ActionSpec, StationSpec


@dataclass(frozen=True)
class TextSpec(StationSpec):
    """Conversations instead of arrays: no vectors, no images, and an action without dimensions."""

    observation: tuple[()] = ()
    action: ActionSpec = ActionSpec("text", (), (), ())
    control_hz: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description for ``spec_of``."""
        return {"text": True}

    def difference(self, other: StationSpec) -> str:
        """Describe the difference from the specs of a robot."""
        if isinstance(other, TextSpec):
            return ""
        return "a language policy, which writes text, against a robot's observations and actions"
