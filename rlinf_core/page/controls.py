"""Controls among several open pages: one page commands, with fresh messages in order."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from rlinf_core.config.base import Settings
from rlinf_core.robots.operators.device import LABELS
from rlinf_core.robots.operators.sticks import Axis

FRESH_S = 0.4  # maximum age of the shown state for a motion
# maximum age for a button that starts something: the person may have moved since
MAX_PRESS_AGE_S = 1.0
MODES = ("demonstration", "train", "evaluate")
HANDOVER_S = 0.6  # pause after a page in motion was replaced, so that the motion ends
REQUESTS = ("take", "leave", "arm", "disarm", "reset", "release", "start", "cancel")
# requests that are refused if they are late; the others are accepted at any age
START_REQUESTS = (
    "take",
    "arm",
    "reset",
    "release",
    "start",
    "ready",
)
OPEN_REQUESTS = ("take", "disarm")  # also allowed for a page without the controls
Number = Annotated[int, Field(ge=0, le=2**53)]


class MotionInput(Settings):
    """A page's input at 20 Hz: the held motion, and the time of the newest shown state."""

    kind: Literal["motion"]
    seq: Number
    shown_at: float = Field(description="the newest time of the server that the page has shown [s]")
    held: bool = Field(description="a person holds the takeover")
    active: bool = Field(
        description="a person has touched, moved or typed something since the last message"
    )
    axes: dict[Axis, Annotated[float, Field(ge=-1, le=1)]] = {}


class Request(Settings):
    """A pressed button."""

    kind: Literal["request"]
    what: str = Field(pattern=f"^({'|'.join((*REQUESTS, *LABELS))})$")
    shown_at: float = Field(
        0.0,
        description="the newest time that the page has shown [s]; without it the request is late",
    )
    cause: str = Field("", max_length=300, description="name of the fault to reset")
    mode: Literal["demonstration", "train", "evaluate"] = "evaluate"

    def late_s(self, now: float) -> float:
        """Return the age [s] of the state that the person saw, if it is too old; else 0."""
        return _late(now - self.shown_at, MAX_PRESS_AGE_S)


class Acknowledgement(Settings):
    """The page has drawn a frame."""

    kind: Literal["acknowledgement"]


class Press(Settings):
    """STOP, sent over the open WebSocket."""

    kind: Literal["stop"]


def _late(age: float, most: float) -> float:
    """Return the age of a state [s] if it is above ``most`` or in the future, else 0."""
    return 0.0 if -0.1 <= age <= most else age


MESSAGES: TypeAdapter[MotionInput | Request | Acknowledgement | Press] = TypeAdapter(
    Annotated[MotionInput | Request | Acknowledgement | Press, Field(discriminator="kind")]
)


def parse_message(text: str) -> Any:
    """Parse a message of a page. Raises ValueError if it is invalid."""
    return MESSAGES.validate_json(text)


class Controls:
    """Decides which of several pages has the controls.

    A page gets them only by a person's press, not by reconnecting.

    Attributes:
        holder: number of the page with the controls; 0 for none.
        late_s: age of the last message's state if it was too old; else 0 [s].
    """

    def __init__(self) -> None:
        self.holder = 0
        self.holding = False
        self.seq = -1
        self.late_s = 0.0
        self._quiet_until = -math.inf

    def take(self, page: int, now: float) -> None:
        """Give the controls to a page. A motion of another page ends first."""
        if self.holding and page != self.holder:
            self._quiet_until = now + HANDOVER_S
        self.holder = page
        self.holding = False
        self.seq = -1
        self.late_s = 0.0

    def leave(self, page: int) -> None:
        """Release the controls of a page that gives them up or has closed."""
        if page == self.holder:
            self.holder = 0
            self.late_s = 0.0

    def accepts(self, page: int, motion: MotionInput, now: float) -> bool:
        """Return whether a motion is passed to the station."""
        if page != self.holder or motion.seq <= self.seq:
            return False
        self.seq = motion.seq
        self.late_s = _late(now - motion.shown_at, FRESH_S)
        if self.late_s or now < self._quiet_until:
            return False
        self.holding = motion.held
        return True
