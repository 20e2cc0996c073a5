"""A RealSense by librealsense (pyrealsense2), chosen by serial number.

The device's own time stamps are used, and depth is aligned to colours.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rlinf_core.core import extras
from rlinf_core.core.errors import DeviceError, RlinfError
from rlinf_core.core.machine import DEVICE_RULES, access_denied_text, missing_rule_hint
from rlinf_core.robots.cameras import SILENT_S, DeviceCamera, DeviceClock, Frame

USB = Path("/sys/bus/usb/devices")
INTEL = "8086"
MS = 1_000_000
MM = 1000
MAX_WAITING = 2  # images that wait while one is published


class Camera(DeviceCamera):
    """A camera of the D400 family, or librealsense's software device in its place."""

    serial: str = Field(
        pattern="^[0-9A-Za-z]+$", description="serial number, in quotes. A twin takes any"
    )
    depth: bool = Field(False, description="also publish `depth`, aligned to the colour image")
    twin: bool = Field(
        False, description="use librealsense's software device (sim_bridges/twins/realsense.py)"
    )

    @property
    def where(self) -> str:
        return self.serial

    def open(self) -> RealSenseSource:
        rs = library()
        if not self.twin:
            return RealSenseSource(self, find(rs, self.serial))
        from sim_bridges.twins.realsense import RealSenseTwin

        twin = RealSenseTwin(self.serial, self.size, self.fps, self.depth)
        return RealSenseSource(self, twin.device, twin.close)


class RealSenseSource:
    """Reads one device, sensor by sensor.

    librealsense's own pipeline does the same, but accepts no software device.

    Args:
        settings: size, rate, and the request for depth.
        device: a ``pyrealsense2.device``.
        on_close: called at the end.
    """

    def __init__(
        self, settings: Camera, device: Any, on_close: Callable[[], None] = lambda: None
    ) -> None:
        rs = library()
        self.rs = rs
        self.settings = settings
        self.device = device
        self.on_close = on_close
        self.clock = DeviceClock()
        self.sensors = list[Any]()
        self.lens = tuple[float, ...]()
        self.frames = rs.syncer(MAX_WAITING)
        self.align = rs.align(rs.stream.color) if settings.depth else None
        formats = {rs.stream.color: rs.format.rgb8} | (
            {rs.stream.depth: rs.format.z16} if settings.depth else {}
        )
        try:
            for sensor in device.query_sensors():
                profiles = {
                    profile.stream_type(): profile
                    for profile in sensor.get_stream_profiles()
                    if self._fits(profile, formats)
                }
                if profiles:
                    sensor.open(list(profiles.values()))
                    self.sensors.append(sensor)
                    sensor.start(self.frames)
                for kind in profiles:
                    formats.pop(kind)
        except RuntimeError as error:
            self.close()
            raise DeviceError(
                f"expected RealSense '{settings.serial}' to start, got: {error}. Another program "
                "may use it. Otherwise plug it in again"
            ) from error
        if formats:
            self.close()
            raise DeviceError(
                f"expected {' and '.join(profile.name for profile in formats)} of "
                f"{list(settings.size)} (height, width) at {settings.fps:g} Hz of RealSense "
                f"'{settings.serial}', which lacks this mode, at least on a USB 2 port. "
                "`rs-enumerate-devices` lists its modes. Set cameras.<name>.size and fps"
            )

    def _fits(self, profile: Any, formats: dict[Any, Any]) -> bool:
        if formats.get(profile.stream_type()) != profile.format() or profile.fps() != round(
            self.settings.fps
        ):
            return False
        video = profile.as_video_stream_profile()
        return bool((video.height(), video.width()) == self.settings.size)

    def read(self) -> Frame:
        deadline = time.monotonic() + SILENT_S
        try:
            while time.monotonic() < deadline:
                frames = self.frames.wait_for_frames(round(SILENT_S * MM))
                arrived_ns = time.time_ns()
                if not frames.get_color_frame() or (self.align and not frames.get_depth_frame()):
                    continue
                return self._frame(self.align.process(frames) if self.align else frames, arrived_ns)
        except RuntimeError as error:
            self.close()
            raise DeviceError(
                f"unplugged or silent: expected an image of RealSense '{self.settings.serial}' "
                f"within {SILENT_S:g} s, got: {error}. Plug it in again. The node searches for it "
                "every second",
                disconnected=True,
            ) from error
        raise DeviceError(
            f"silent: expected colours and depth of RealSense '{self.settings.serial}' within "
            f"{SILENT_S:g} s, got only one of them. The camera is restarted",
            disconnected=True,
        )

    def _frame(self, frames: Any, arrived_ns: int) -> Frame:
        colour, depth = frames.get_color_frame(), frames.get_depth_frame() if self.align else None
        if not self.lens:
            intrinsics = colour.profile.as_video_stream_profile().intrinsics
            self.lens = (
                intrinsics.fx,
                intrinsics.fy,
                intrinsics.ppx,
                intrinsics.ppy,
                *intrinsics.coeffs,
            )
        millimetres = None
        if depth:
            scale, raw = depth.get_units() * MM, np.asanyarray(depth.get_data())
            millimetres = raw if abs(scale - 1) < 1e-3 else (raw * scale).astype(np.uint16)
        return Frame(
            np.asanyarray(colour.get_data()),
            self._stamp_ns(colour, arrived_ns),
            colour.get_frame_number(),
            millimetres,
        )

    def _stamp_ns(self, frame: Any, arrived_ns: int) -> int:
        """Return the device's own stamp, unless librealsense has mapped it to this clock."""
        stamp_ns = round(frame.get_timestamp() * MS)
        if frame.get_frame_timestamp_domain() == self.rs.timestamp_domain.hardware_clock:
            return self.clock.host_ns(stamp_ns, arrived_ns)
        return min(stamp_ns, arrived_ns)

    def close(self) -> None:
        self.on_close()
        while self.sensors:
            sensor = self.sensors.pop()
            for end in (sensor.stop, sensor.close):
                with contextlib.suppress(RuntimeError):
                    end()


def library() -> Any:
    """Import pyrealsense2; raise RlinfError if something is missing."""
    extras.require("realsense", "a RealSense camera")
    try:
        import pyrealsense2
    except ImportError as error:
        raise RlinfError(
            f"a RealSense camera: expected pyrealsense2 to load, got: {error}. Run: sudo apt-get "
            "install libusb-1.0-0, and install the extra 'realsense'"
        ) from error
    return pyrealsense2


def find(rs: Any, serial: str) -> Any:
    """Return the plugged-in device with this serial number."""
    try:
        return select(rs, rs.context().query_devices(), serial)
    except RuntimeError as error:
        raise DeviceError(
            f"cannot list the RealSense cameras: {error}. {_plug_in_remedy()}"
        ) from error


def select(rs: Any, devices: Iterable[Any], serial: str) -> Any:
    """Return the device with this serial number among ``devices``.

    Raises:
        DeviceError: there is none; the message lists the others.
    """
    number, name = rs.camera_info.serial_number, rs.camera_info.name
    devices_by_serial = {device.get_info(number): device for device in devices}
    if serial in devices_by_serial:
        return devices_by_serial[serial]
    listing = ", ".join(
        f"'{number}' ({device.get_info(name)})" for number, device in devices_by_serial.items()
    )
    raise DeviceError(
        f"expected a RealSense with the serial number '{serial}', found {listing or 'none'}. "
        f"{_plug_in_remedy()}"
    )


def _plug_in_remedy() -> str:
    """Return the remedy for a missing device.

    The remedy is a udev rule if Linux lists a RealSense that this user may not open.
    """
    for folder in USB.glob("*"):
        attributes = {
            name: _attribute_text(folder / name)
            for name in ("idVendor", "idProduct", "busnum", "devnum")
        }
        if attributes["idVendor"] == INTEL and attributes["idProduct"][:2] in ("0a", "0b"):
            node = f"/dev/bus/usb/{int(attributes['busnum']):03d}/{int(attributes['devnum']):03d}"
            if not os.access(node, os.W_OK):
                return access_denied_text("a RealSense", node, DEVICE_RULES)
    return (
        "Plug it into a USB 3 port, or name another one: cameras.<name>.serial. "
        f"{missing_rule_hint()}"
    )


def _attribute_text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""
