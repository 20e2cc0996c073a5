"""One line of the safety drill's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Row:
    """What was demanded, and what was measured."""

    requirement: str
    trap: int
    name: str
    bound: str
    measured: str
    held: bool
