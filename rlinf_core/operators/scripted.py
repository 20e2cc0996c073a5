"""The settings of the scripted operator, who is no device: ``rlinf.scripted_operator`` plays the task's script."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field


class Scripted:
    """A script, in simulation only.

    Args:
        noise: of its demonstrations, in normalised units.
    """

    def __init__(self, noise: Annotated[float, Field(ge=0, le=1)] = 0.12) -> None:
        self.noise = noise
