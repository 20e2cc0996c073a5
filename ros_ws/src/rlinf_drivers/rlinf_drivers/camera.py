"""Camera: reads one camera (``rlinf_core.robots.cameras``) and publishes its images.

Each camera has its own process. /diagnostics reports the reading thread: rate, age, dropped images
and errors.
"""

from __future__ import annotations

import array
import time
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from rclpy.publisher import Publisher
from sensor_msgs.msg import Image

from rlinf_core.robots.cameras import CameraSource, Frame, camera, make_camera
from rlinf_drivers.device import DeviceNode
from rlinf_ros.conversions import NS, camera_info, compressed, to_image, to_stamp
from rlinf_ros.diagnostics import ERROR, OK, WARN, Diagnostics, Health
from rlinf_ros.qos import publisher
from rlinf_ros.spinning import run

STALE_S = 0.2  # value of S3
# fraction of the requested rate below which a camera counts as slow
SLOW_FRACTION = 0.9


class ImageCounts:
    """Counts of images, for /diagnostics.

    Args:
        fps: expected images per second.
    """

    def __init__(self, fps: float) -> None:
        self.fps = fps
        self.image_count = 0
        self.lost_count = 0
        self.open_count = 0
        self.last_image_at = time.monotonic()
        self.late_ms = 0.0
        self.last_image = (-1, 0)  # number and stamp of the newest picture
        self.last_report = (time.monotonic(), 0, 0)

    def begin(self) -> None:
        """Note that a device was opened, which restarts its count."""
        self.open_count += 1
        self.last_image = (-1, 0)

    def add(self, frame: Frame) -> None:
        """Count a published image. Stamps reveal lost images if the device does not number them."""
        number, stamp_ns = self.last_image
        if stamp_ns:
            gap = (
                frame.number - number
                if frame.number >= 0
                else round((frame.stamp_ns - stamp_ns) / NS * self.fps)
            )
            self.lost_count += max(0, gap - 1)
        self.image_count += 1
        self.last_image_at = time.monotonic()
        self.last_image = (frame.number, frame.stamp_ns)
        self.late_ms = max(self.late_ms, (time.time_ns() - frame.stamp_ns) / 1e6)

    def health(self) -> Health:
        """Return the health since the last call."""
        now = time.monotonic()
        at, images, lost = self.last_report
        hz = (self.image_count - images) / max(now - at, 1e-3)
        new = self.lost_count - lost
        age_s = now - self.last_image_at
        values = {
            "hz": round(hz, 1),
            "age_s": round(age_s, 3),
            "late_ms": round(self.late_ms, 1),
            "images": self.image_count,
            "dropped": self.lost_count,
            "opened": self.open_count,
        }
        self.last_report = (now, self.image_count, self.lost_count)
        self.late_ms = 0.0
        if age_s > max(STALE_S, 3 / self.fps):
            return Health(ERROR, f"no image for {age_s:.1f} s", values)
        if new or hz < SLOW_FRACTION * self.fps:
            return Health(
                WARN,
                f"{hz:.1f} Hz, expected {self.fps:g}; {new} dropped in the last second",
                values,
            )
        return Health(OK, f"{hz:.1f} Hz", values)


class Camera(DeviceNode):
    """Publishes ``image``, ``camera_info``, and on request ``image/compressed`` and ``depth``.

    The node publishes only while it is active.
    """

    def __init__(self) -> None:
        super().__init__("camera")
        self.settings = make_camera(
            self.declare_structure("settings", lambda settings: camera(settings["kind"]))
        )
        self.camera = self.declare_parameter("camera", "").value
        station = self.get_namespace().strip("/").removesuffix(f"/camera/{self.camera}")
        self.frame = f"{station}/{self.camera}_optical_frame"
        self.images, self.infos = self._publisher("image"), self._publisher("camera_info")
        self.jpegs = self._publisher("image/compressed") if self.settings.jpeg else None
        self.device_name = f"camera '{self.camera}'"
        self.counts = ImageCounts(self.settings.fps)
        self.diagnostics = Diagnostics(self, self._health)
        self.begin()

    def activate(self) -> str:
        """Count images from here on."""
        self.counts.last_image = (-1, 0)
        self.counts.last_image_at = time.monotonic()
        return ""

    def _publisher(self, name: str) -> Publisher:
        return publisher(self, f"camera/{self.camera}/{name}", at=name)

    @cached_property
    def depths(self) -> Publisher:
        return self._publisher("depth")

    # In the reading thread
    def open(self) -> CameraSource:
        source = self.settings.open()
        self.counts.begin()
        return source

    def poll(self, device: CameraSource) -> None:
        frame = device.read()
        if self.active:
            self._publish(device, frame)

    def _publish(self, source: CameraSource, frame: Frame) -> None:
        pixels, lens = frame.pixels, source.lens
        if size := self.settings.published:
            lens = resized_lens(lens, pixels.shape[:2], size)
            pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
        image = to_image(self.frame, pixels, to_stamp(frame.stamp_ns))
        self.images.publish(image)
        self.infos.publish(camera_info(image, lens))
        self.counts.add(frame)
        if self.jpegs is not None and self.jpegs.get_subscription_count():
            self.jpegs.publish(compressed(image, pixels, self.settings.jpeg))
        if frame.depth is not None:
            self.depths.publish(depth_image(image, frame.depth, self.settings.published))
        self.log_trouble("", "images arrive again")

    def _health(self) -> Health:
        health = self.counts.health()
        values = {**health.values, "device": self.settings.where}
        if self.trouble:
            return Health(ERROR, self.trouble, values)
        return Health(health.level, health.message, values)


def resized_lens(
    lens: tuple[float, ...], size: tuple[int, ...], to: tuple[int, int]
) -> tuple[float, ...]:
    """Return the camera info of a resized image.

    Distortion applies to directions, so it does not change.
    """
    height_ratio, width_ratio = to[0] / size[0], to[1] / size[1]
    ratios = (width_ratio, height_ratio, width_ratio, height_ratio)
    pinhole = tuple(value * ratio for value, ratio in zip(lens[:4], ratios, strict=False))
    return pinhole + lens[4:]


def depth_image(image: Image, depth: np.ndarray, size: Any) -> Image:
    """Return depth (H, W) uint16 [mm] as 16UC1, at the colour image's size.

    Resizing copies distances and never mixes them.
    """
    if size:
        depth = cv2.resize(depth, size[::-1], interpolation=cv2.INTER_NEAREST)
    message = Image(
        header=image.header,
        height=depth.shape[0],
        width=depth.shape[1],
        encoding="16UC1",
        step=2 * depth.shape[1],
    )
    message.data = array.array("B", np.ascontiguousarray(depth).tobytes())
    return message


def main() -> None:
    """Entry point."""
    run(Camera, listens=False)


if __name__ == "__main__":
    main()
