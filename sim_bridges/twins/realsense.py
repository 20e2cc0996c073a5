"""The twin of a RealSense: librealsense's software device with moving pictures."""

from __future__ import annotations

import atexit
import threading
import time

import numpy as np
import pyrealsense2 as rs

SPEED = 4  # shift of the picture per image [pixels]
NEAR, FAR = 300, 1500  # depth at the left and right edge [mm]


class RealSenseTwin:
    """Colour images, and optionally depth, at a fixed rate, stamped by the device's own clock.

    The clock starts with the device. The first pixel's three bytes hold the image's number, the
    least significant first.

    Args:
        serial: its serial number.
        size: height and width [pixels].
        fps: images per second.
        depth: whether the device also has a depth sensor.
    """

    def __init__(self, serial: str, size: tuple[int, int], fps: float, depth: bool) -> None:
        self.device = rs.software_device()
        self.fps = fps
        self.ended = threading.Event()
        for key, value in (
            (rs.camera_info.serial_number, serial),
            (rs.camera_info.name, "software device"),
        ):
            self.device.register_info(key, value)
        height, width = size
        ramp = np.arange(width, dtype=np.uint8)
        self.colour_pixels = np.ascontiguousarray(
            np.broadcast_to(ramp[None, :, None], (height, width, 3))
        )
        distances = np.linspace(NEAR, FAR, width).astype(np.uint16)
        self.sensors = [
            (
                self._sensor("RGB Camera", rs.stream.color, rs.format.rgb8, 3, size),
                self.colour_pixels,
                3,
            )
        ]
        if depth:
            millimetres = np.ascontiguousarray(np.broadcast_to(distances, (height, width)))
            self.sensors.append(
                (
                    self._sensor("Stereo Module", rs.stream.depth, rs.format.z16, 2, size),
                    millimetres,
                    2,
                )
            )
            identity = rs.extrinsics()
            identity.rotation = list(np.eye(3).ravel())
            identity.translation = [0.0, 0.0, 0.0]
            self.sensors[1][0][1].register_extrinsics_to(self.sensors[0][0][1], identity)
        self.device.create_matcher(rs.matchers.default)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        atexit.register(self.close)

    def _sensor(
        self, name: str, stream: object, kind: object, bytes_per_pixel: int, size: tuple[int, int]
    ) -> tuple:
        sensor, video, lens = self.device.add_sensor(name), rs.video_stream(), rs.intrinsics()
        lens.height, lens.width = size
        lens.fx = lens.fy = float(lens.width)
        lens.ppx = lens.width / 2
        lens.ppy = lens.height / 2
        lens.model = rs.distortion.none
        lens.coeffs = [0.0] * 5
        video.type = stream
        video.fmt = kind
        video.bpp = bytes_per_pixel
        video.fps = round(self.fps)
        video.intrinsics = lens
        video.height = lens.height
        video.width = lens.width
        video.index = 0
        video.uid = bytes_per_pixel
        profile = sensor.add_video_stream(video).as_video_stream_profile()
        if kind == rs.format.z16:
            sensor.add_read_only_option(rs.option.depth_units, 0.001)
        return sensor, profile

    def _run(self) -> None:
        started_at, number = time.monotonic(), 0
        while not self.ended.wait(max(0.0, started_at + number / self.fps - time.monotonic())):
            number += 1
            self.colour_pixels[:] = np.roll(self.colour_pixels, SPEED, axis=1)
            self.colour_pixels[0, 0] = number & 255, number >> 8 & 255, number >> 16 & 255
            for (sensor, profile), pixels, bytes_per_pixel in self.sensors:
                frame = rs.software_video_frame()
                frame.pixels = pixels
                frame.bpp = bytes_per_pixel
                frame.stride = pixels.shape[1] * bytes_per_pixel
                frame.timestamp = (time.monotonic() - started_at) * 1000
                frame.domain = rs.timestamp_domain.hardware_clock
                frame.frame_number, frame.profile = number, profile
                sensor.on_video_frame(frame)

    def close(self) -> None:
        """Unplug the device: it delivers no more images.

        The thread ends before the interpreter does. A thread that returned from librealsense during
        Python's shutdown would abort the process.
        """
        atexit.unregister(self.close)
        self.ended.set()
        self.thread.join()
