"""The operator's page (docs/howto/operator_page.md) as a device.

Its server forwards the input that is held in a browser.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import AXES, LABELS
from rlinf_core.robots.operators.sticks import Curve, Scale, Sticks

TAKEOVER = "held"
ACTIVE = "active"
REQUESTED = "asked"
# Buttons of a message of the page, in this order. Its axes are AXES.
# REQUESTED marks a message with requests only, which says nothing of the held input.
BUTTONS = (TAKEOVER, ACTIVE, REQUESTED, *LABELS)
Silence = Annotated[float, Field(ge=0.1, le=1)]


class Page(Sticks):
    """A browser as a device.

    Its last message may be a held key, so a held motion must be repeated.
    """

    topics = ("page",)
    label_renews = False  # only ACTIVE renews the enable; a late label does not have it

    def __init__(
        self,
        *,
        scale: Scale = 0.5,
        rotation_scale: Scale = 0.5,
        curve: Curve = 1.5,
        silence_s: Silence = 0.3,
    ) -> None:
        """Settings.

        Args:
            scale: share of the task's largest step for a key, or a pointer at its field's edge
            rotation_scale: the same share for rotation
            curve: exponent of the response. 1 is linear, more is finer near the middle
            silence_s: longest silence during a takeover [s]. Then the arm stops
        """
        axes: dict[Any, str] = {axis: axis for axis in AXES}
        super().__init__(
            axes=axes,
            buttons={TAKEOVER: "intervene"},
            deadband=0.0,
            scale=scale,
            rotation_scale=rotation_scale,
            curve=curve,
            silence_s=silence_s,
        )
        self.garbage = ""
        self.rested = False

    def receive(self, message: Any) -> None:
        axes, buttons = list(message.axes), list(message.buttons)
        if (
            len(axes) != len(AXES)
            or len(buttons) != len(BUTTONS)
            or not all(abs(value) <= 1.0 for value in axes)
        ):
            self.garbage = (
                f"expected {len(AXES)} axes from -1 to 1 and {len(BUTTONS)} buttons, "
                f"got {axes} and {buttons}"
            )
            return
        down = {name for name, pressed in zip(BUTTONS, buttons, strict=True) if pressed}
        self.requests += ["enable"] * (ACTIVE in down) + [
            label for label in LABELS if label in down
        ]
        if REQUESTED in down:
            return
        self.values = dict(zip(AXES, axes, strict=True))
        self.press(TAKEOVER, TAKEOVER in down)
        self.note_report()
        self.rested = self.rested or self.at_rest()

    def poll(self) -> tuple[str, ...]:
        garbage = self.garbage
        self.garbage = ""
        if garbage:
            raise DeviceError(
                f"garbage on the topic page: {garbage}. Does another program publish there?"
            )
        if not (self.rested or self.at_rest()):  # a page that was never opened is at rest
            raise DeviceError(
                "expected it at rest before its first command, got a takeover in its first "
                "message. Let go of it"
            )
        if not self.at_rest() and time.monotonic() - self.received_at > self.silence_s:
            raise DeviceError(
                f"silent: a takeover is held, but no message came for {self.silence_s:g} s. Let go "
                "of it. If the page is closed, open it and take the controls"
            )
        return self.take_requests()

    def motion(self) -> dict[str, float] | None:
        return super().motion() if self.rested else None

    def help(self, axes: dict[str, int]) -> str:
        return "the held controls of the operator's page command the arm"
