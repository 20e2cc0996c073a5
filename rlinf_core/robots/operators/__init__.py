"""Operators by name: they demonstrate, arm and take over. Each device has one module here.

The scripted operator is no device: ``rlinf_operator.scripted_operator`` plays the task's script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rlinf_core.config.base import Discriminated, Settings, constructor_arguments, settings_model
from rlinf_core.config.checking import validate_parameters
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError

if TYPE_CHECKING:
    from rlinf_core.robots.operators.device import Device

SCRIPTED = "scripted"
KEYBOARD = "keyboard"
PAGE = "page"
REPLAY = "replay"
BUILTIN = {
    "scripted": "rlinf_core.robots.operators:Scripted",
    "keyboard": "rlinf_core.robots.operators.keyboard:Keyboard",
    "spacemouse": "rlinf_core.robots.operators.spacemouse:SpaceMouse",
    "gamepad": "rlinf_core.robots.operators.gamepad:Gamepad",
    "joy": "rlinf_core.robots.operators.gamepad:Joy",
    "pedal": "rlinf_core.robots.operators.gamepad:Pedal",
    "leader": "rlinf_core.robots.operators.leader:Leader",
    "page": "rlinf_core.robots.operators.page:Page",
    "replay": "rlinf_core.robots.operators:Replay",
    "vr": "rlinf_core.robots.operators.vr:Vr",
}


def operators() -> list[str]:
    """Return the names of all operators."""
    return plugins.valid_names("operators", BUILTIN)


def operator(kind: str) -> type:
    """Return the class of an operator (``rlinf_core.core.plugins``).

    Raises:
        RecipeError: there is no such operator; the message suggests the nearest name.
    """
    return plugins.find("operators", kind, BUILTIN, "station.operator.kind")


def settings_of(kind: str) -> type[Settings]:
    """Return an operator's settings: the arguments of its constructor."""
    return settings_model(operator(kind), key="kind")


def make_device(document: Mapping[str, Any]) -> Device:
    """Return the device for settings of JSON's types (``{"kind": "spacemouse"}``).

    Raises:
        RecipeError: the settings are invalid.
    """
    kind = document["kind"]
    if kind in (SCRIPTED, REPLAY):
        raise RecipeError(f"operator: expected an input device of a person, got {kind}")
    settings = validate_parameters(
        settings_of(kind), document, "parameters of the operator's device"
    )
    return operator(kind)(**constructor_arguments(settings, "kind"))


OPERATOR = Discriminated("kind", settings_of, operators, SCRIPTED)
SECOND_OPERATOR = Discriminated("kind", settings_of, operators, optional=True)


class Scripted:
    """A script, in simulation only.

    Args:
        noise: noise of the demonstrations, in normalised units
        takes_over: time steps of a training episode after which the script finishes it, as a person
            would. 0 never takes over
    """

    def __init__(
        self,
        noise: Annotated[float, Field(ge=0, le=1)] = 0.12,
        takes_over: Annotated[int, Field(ge=0, le=100_000)] = 0,
    ) -> None:
        self.noise, self.takes_over = noise, takes_over


class Replay:
    """Sends the actions of a recording again, as `rlinf replay` sets it.

    On a real arm a person arms at the terminal.

    Args:
        recording: the folder of the episode.
    """

    def __init__(self, recording: Annotated[str, Field(min_length=1)]) -> None:
        self.recording = recording
