"""A USB camera with a Linux driver (UVC), by OpenCV; its twin is a video file."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rlinf_core.core.errors import DeviceError
from rlinf_core.core.machine import DEVICE_RULES, access_denied_text, missing_rule_hint
from rlinf_core.robots.cameras import SILENT_S, CameraT, DeviceCamera, DeviceClock, Frame

LINKS = Path("/dev/v4l/by-id")
NS, MS = 1_000_000_000, 1_000_000
Lens = Annotated[tuple[float, ...], Field(min_length=4, max_length=9)]


class Camera(DeviceCamera):
    """One camera, or a video file in an endless loop."""

    device: str = Field(
        min_length=1,
        description="/dev/v4l/by-id/..., which is the same at "
        "every port. Or a video file, ./path relative "
        "to robot.yaml",
    )
    fourcc: str = Field(
        "MJPG",
        pattern="^[A-Z0-9]{4}$",
        description="pixel format. YUYV is uncompressed and takes six times the bandwidth",
    )
    lens: Lens | None = Field(
        None,
        description="fx, fy, cx, cy [pixels] and up to five "
        "distortion coefficients, as camera_calibration "
        "prints them. Without them K of camera_info is "
        "zero",
    )

    @property
    def where(self) -> str:
        return self.device

    def with_paths_from(self: CameraT, folder: Path) -> CameraT:
        assert isinstance(self, Camera)
        return (
            self.but(device=str((folder / self.device).resolve()))
            if self.device.startswith(".")
            else self
        )

    def open(self) -> UvcSource:
        return UvcSource(self)


class UvcSource:
    """Reads one camera; a file plays in real time, and frames that nobody read in time are lost."""

    def __init__(self, settings: Camera) -> None:
        # [s], instead of 10
        os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", str(round(SILENT_S)))
        import cv2

        self.settings = settings
        self.lens = settings.lens or ()
        self.file = is_file(settings.device)
        self.clock = DeviceClock()
        self.started_ns = time.monotonic_ns()
        self.number = -1
        self.capture = cv2.VideoCapture(
            os.path.realpath(settings.device), cv2.CAP_ANY if self.file else cv2.CAP_V4L2
        )
        if not self.capture.isOpened():
            raise DeviceError(
                f"expected a camera at {settings.device}, got a path that OpenCV cannot open. "
                f"Another program may use it (fuser -v {settings.device}), or it is a device node "
                f"without images. Devices: {devices_text()}"
            )
        if not self.file:
            height, width = settings.size
            for key, value in (
                (cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*settings.fourcc)),
                (cv2.CAP_PROP_FRAME_WIDTH, width),
                (cv2.CAP_PROP_FRAME_HEIGHT, height),
                (cv2.CAP_PROP_FPS, settings.fps),
            ):
                self.capture.set(key, value)

    def read(self) -> Frame:
        import cv2

        pixels = self._next()
        arrived_ns = time.time_ns()
        if pixels is None:
            self.close()
            raise DeviceError(
                f"unplugged: expected an image of {self.settings.device}, got none within "
                f"{SILENT_S:g} s. Plug it in again. The node searches for it every second",
                disconnected=True,
            )
        if pixels.shape[:2] != self.settings.size:
            raise DeviceError(
                f"expected images of {list(self.settings.size)} (height, width) of "
                f"{self.settings.device}, got {list(pixels.shape[:2])}. The camera lacks the "
                "requested size. Set cameras.<name>.size to one of `v4l2-ctl --list-formats-ext`"
            )
        rgb = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
        if self.file:
            exposed_ns = self.started_ns + round(self.number * NS / self.settings.fps)
            return Frame(rgb, exposed_ns + time.time_ns() - time.monotonic_ns(), self.number)
        # the kernel's monotonic clock
        exposed_ns = round(self.capture.get(cv2.CAP_PROP_POS_MSEC) * MS)
        return Frame(
            rgb, self.clock.host_ns(exposed_ns, arrived_ns) if exposed_ns > 0 else arrived_ns
        )

    def _next(self) -> Any:
        """Return (height, width, 3), blue first, or None without a frame."""
        import cv2

        if not self.file:
            return self.capture.read()[1]
        now = (time.monotonic_ns() - self.started_ns) * self.settings.fps / NS
        self.number = max(self.number + 1, int(now))
        time.sleep(max(0.0, (self.number - now) / self.settings.fps))
        if not os.path.exists(self.settings.device):
            return None
        has_frame, pixels = self.capture.read()
        if not has_frame:
            self.capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
            has_frame, pixels = self.capture.read()
        return pixels if has_frame else None

    def close(self) -> None:
        self.capture.release()


def is_file(device: str) -> bool:
    """Return True if the device is a file in a camera's place.

    Raises:
        DeviceError: there is neither, or this user may not read it.
    """
    try:
        mode = os.stat(device).st_mode
    except OSError as error:
        raise DeviceError(
            f"expected a camera at {device}, got: {error.strerror}. Plug it in, or name another "
            f"one: cameras.<name>.device. Devices: {devices_text()}. {missing_rule_hint()}"
        ) from error
    if stat.S_ISREG(mode):
        return True
    if not stat.S_ISCHR(mode):
        raise DeviceError(
            f"expected a camera or a video file at {device}, got neither. Devices: {devices_text()}"
        )
    if not os.access(device, os.R_OK | os.W_OK):
        raise DeviceError(access_denied_text("a camera", device, DEVICE_RULES))
    return False


def devices_text() -> str:
    """Return the cameras that Linux has names for, as text."""
    return ", ".join(_links()) or f"none in {LINKS}"


def _links() -> Iterator[str]:
    yield from (str(path) for path in sorted(LINKS.glob("*index0")))
