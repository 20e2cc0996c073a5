"""Cameras by kind, one module each; deleting the module deletes the kind.

A module holds ``Camera``: its settings in robot.yaml, and ``open``, which begins to read it. The
node ``camera`` (ros_ws/src/rlinf_drivers/rlinf_drivers/camera.py) does the rest. A custom kind is
``kind: package.module:Class``, or an entry point ``rlinf.cameras``. ``DeviceClock`` translates a
device's own time stamps to this machine's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from pydantic import Field, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import PydanticCustomError, core_schema

from rlinf_core.config.base import Count, Discriminated, Positive, Settings
from rlinf_core.config.checking import validate_parameters
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError

TOPIC = "topic"
SILENT_S = 1.0  # a device without an image for this long counts as gone
CameraT = TypeVar("CameraT", bound="DeviceCamera")


class Frame(NamedTuple):
    """One image.

    Attributes:
        pixels: (height, width, 3) uint8, red first.
        stamp_ns: time of exposure, by this machine's clock.
        number: the device's own count, whose gaps are lost images; -1 without a count.
        depth: (height, width) uint16 [mm], aligned to the pixels, if requested.
    """

    pixels: np.ndarray
    stamp_ns: int
    number: int = -1
    depth: np.ndarray | None = None


class CameraSource(Protocol):
    """An open camera."""

    lens: tuple[float, ...]

    def read(self) -> Frame:
        """Return the next image.

        Raises:
            DeviceError: none came within about SILENT_S; the camera must be opened anew.
        """

    def close(self) -> None:
        """Close the camera; repeated calls are allowed."""


class CameraSettings(Settings):
    """Base of every camera's settings."""

    kind: str = Field(TOPIC, description="kind of the camera. [height, width] alone is a `topic`")
    size: tuple[Count, Count] = Field(description="height and width of the images [pixels]")


class DeviceCamera(CameraSettings):
    """Base of the settings of cameras that a process of ours reads."""

    fps: Positive = Field(30.0, le=1000, description="images per second [1/s]")
    published: tuple[Count, Count] | None = Field(
        None, description="height and width of the published images, if smaller [pixels]"
    )
    jpeg: int = Field(
        90,
        ge=0,
        le=100,
        description="JPEG quality on `image/compressed`, which "
        "RViz and Foxglove show. 0 publishes none",
    )

    @property
    def where(self) -> str:
        """The device's path or serial number."""
        raise NotImplementedError

    def with_paths_from(self: CameraT, _: Path) -> CameraT:
        """Return the settings with paths such as ./file resolved from robot.yaml's folder."""
        return self

    def open(self) -> CameraSource:
        """Open the camera.

        Raises:
            DeviceError: something is missing, and the caller tries again.
            RlinfError: any other kind is permanent.
        """
        raise NotImplementedError


def cameras() -> list[str]:
    """Return the names of all kinds."""
    return plugins.valid_names("cameras", plugins.module_places(__name__, __file__))


def camera(kind: str) -> type[CameraSettings]:
    """Return the settings' class of a kind (``rlinf_core.core.plugins``).

    Raises:
        RecipeError: there is no such kind; the message suggests the nearest name.
    """
    return plugins.find_class(
        "cameras",
        kind,
        plugins.module_places(__name__, __file__),
        "Camera",
        CameraSettings,
        "cameras.kind",
    )


def make_camera(document: Mapping[str, Any]) -> DeviceCamera:
    """Return the camera for settings of JSON's types."""
    settings = validate_parameters(camera(document["kind"]), document, "parameters of the camera")
    if not isinstance(settings, DeviceCamera):
        raise RecipeError(f"camera: expected a kind that reads a device, got '{settings.kind}'")
    return settings


class _CameraOrSize(Discriminated):
    """Discriminates by ``kind``; a list is the size of a camera that somebody else publishes."""

    def validated(self, value: Any, info: ValidationInfo | None = None) -> Settings | None:
        if isinstance(value, list | tuple):
            value = {"size": tuple(value)}
        if not isinstance(value, dict | Settings):
            raise PydanticCustomError(
                "camera", "expected a list of height and width, or a mapping with its 'kind'"
            )
        return super().validated(value, info)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        size = {
            "type": "array",
            "items": {"type": "integer", "exclusiveMinimum": 0},
            "minItems": 2,
            "maxItems": 2,
        }
        return {"anyOf": [size, *super().__get_pydantic_json_schema__(schema, handler)["anyOf"]]}


CAMERA = _CameraOrSize("kind", camera, cameras, TOPIC)


WINDOW_NS = 10_000_000_000
OTHER_CLOCK_NS = 1_000_000_000


class DeviceClock:
    """Maps a device's stamps to this machine's clock.

    The clock offset is the minimum of (arrival - stamp) over the last ten seconds. Delays by a busy
    machine or bus do not count, and a drifting clock is followed. The minimum transport delay
    itself cannot be observed, so stamps are late by that much.
    """

    def __init__(self) -> None:
        # time of arrival and delay [ns], the smallest delay first
        self.delays: deque[tuple[int, int]] = deque()
        self.newest_ns = 0

    def host_ns(self, device_ns: int, arrived_ns: int) -> int:
        """Return this machine's time of a device's stamp; never later than its arrival."""
        delay_ns = arrived_ns - device_ns
        if device_ns < self.newest_ns or (
            self.delays and abs(delay_ns - self.delays[0][1]) > OTHER_CLOCK_NS
        ):
            self.delays.clear()  # the device was switched off meanwhile, or our clock was set
        while self.delays and self.delays[0][0] < arrived_ns - WINDOW_NS:
            self.delays.popleft()
        while self.delays and self.delays[-1][1] >= delay_ns:
            self.delays.pop()
        self.delays.append((arrived_ns, delay_ns))
        self.newest_ns = device_ns
        return device_ns + self.delays[0][1]
