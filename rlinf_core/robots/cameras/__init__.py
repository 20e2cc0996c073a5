"""Cameras by kind: a file each, with what robot.yaml says of one and how it is read; deleting a file deletes a kind.

A file holds ``Camera``, its settings, whose ``open`` begins to read it. The node ``camera``
(ros_ws/src/rlinf_drivers/rlinf_drivers/camera.py) does the rest. One of one's own is ``kind: package.module:Class``, or an
entry point ``rlinf.cameras``.
``DeviceClock`` translates a device's own time stamps to this machine's clock.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from pydantic import Field, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import PydanticCustomError, core_schema

from rlinf_core.config.base import Count, Discriminated, Positive, Settings
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError

TOPIC = "topic"
SILENT_S = 1.0  # a device without an image for so long counts as gone
CameraT = TypeVar("CameraT", bound="DeviceCamera")


class Frame(NamedTuple):
    """One image.

    Attributes:
        pixels: (height, width, 3) uint8, red first.
        stamp_ns: when it was taken, by this machine's clock.
        number: the device's own count: a gap is what was lost; -1 where it counts none.
        depth: (height, width) uint16 [mm], aligned to the pixels, where it is asked for.
    """

    pixels: np.ndarray
    stamp_ns: int
    number: int = -1
    depth: np.ndarray | None = None


class Source(Protocol):
    """A camera that is being read."""

    lens: tuple[float, ...]

    def read(self) -> Frame:
        """The next image; DeviceError within SILENT_S or so where none comes, and it must be opened anew."""

    def close(self) -> None:
        """End, as often as it is called."""


class CameraSettings(Settings):
    """Base of every camera's settings."""

    kind: str = Field(TOPIC, description="which one; [height, width] alone is a `topic`")
    size: tuple[Count, Count] = Field(description="height and width of its images")


class DeviceCamera(CameraSettings):
    """Base of those that a process of ours reads."""

    fps: Positive = Field(30.0, le=1000, description="images a second")
    published: tuple[Count, Count] | None = Field(
        None, description="height and width of what is published, where that is smaller")
    jpeg: int = Field(90, ge=0, le=100, description="quality of what is also published on `image/compressed` while "
                      "somebody listens there, as RViz and Foxglove do; 0 for none")

    @property
    def where(self) -> str:
        """The device's path or serial number."""
        raise NotImplementedError

    def with_paths_from(self: CameraT, _: Path) -> CameraT:
        """With paths that begin with a dot as from the folder of robot.yaml."""
        return self

    def open(self) -> Source:
        """Begin; DeviceError says what is missing, and it is tried again; any other RlinfError is for good."""
        raise NotImplementedError


def cameras() -> list[str]:
    """Names of all kinds."""
    return plugins.names("cameras", plugins.files(__name__, __file__))


def camera(kind: str) -> type[CameraSettings]:
    """The settings of a kind (``rlinf_core.core.plugins``); RecipeError names the nearest known one."""
    return plugins.described("cameras", kind, plugins.files(__name__, __file__), "Camera", CameraSettings, "cameras.kind")


def make_camera(text: str) -> DeviceCamera:
    """The camera that settings as JSON describe."""
    settings = camera(json.loads(text)["kind"]).model_validate_json(text)
    if not isinstance(settings, DeviceCamera):
        raise RecipeError(f"camera: expected one that is read from a device, got kind '{settings.kind}'")
    return settings


class _Named(Discriminated):
    """By ``kind``; a list is the size of one that somebody else publishes."""

    def validated(self, value: Any, info: ValidationInfo | None = None) -> Settings | None:
        if isinstance(value, list | tuple):
            value = {"size": tuple(value)}
        if not isinstance(value, dict | Settings):
            raise PydanticCustomError("camera", "expected a list of height and width, or a mapping with its 'kind'")
        return super().validated(value, info)

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        size = {"type": "array", "items": {"type": "integer", "exclusiveMinimum": 0}, "minItems": 2, "maxItems": 2}
        return {"anyOf": [size, *super().__get_pydantic_json_schema__(schema, handler)["anyOf"]]}


CAMERA = _Named("kind", camera, cameras, TOPIC)


WINDOW_NS = 10_000_000_000
OTHER_CLOCK_NS = 1_000_000_000


class DeviceClock:
    """Maps a device's stamps to this machine's clock.

    The clock offset is the minimum of (arrival - stamp) over the last ten seconds. Delays by a busy machine or bus do not
    count, and a drifting clock is followed. The minimum transport delay itself cannot be observed, so stamps are late by
    that much.
    """

    def __init__(self) -> None:
        self.ways: deque[tuple[int, int]] = deque()  # arrival and difference of clocks, the least first
        self.newest_ns = 0

    def host_ns(self, device_ns: int, arrived_ns: int) -> int:
        """The time of a stamp that arrived then; never later than that."""
        delay_ns = arrived_ns - device_ns
        if device_ns < self.newest_ns or (self.ways and abs(delay_ns - self.ways[0][1]) > OTHER_CLOCK_NS):
            self.ways.clear()  # it was switched off meanwhile, or ours was set
        while self.ways and self.ways[0][0] < arrived_ns - WINDOW_NS:
            self.ways.popleft()
        while self.ways and self.ways[-1][1] >= delay_ns:
            self.ways.pop()
        self.ways.append((arrived_ns, delay_ns))
        self.newest_ns = device_ns
        return device_ns + self.ways[0][1]
