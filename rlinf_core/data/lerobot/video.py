"""Videos of cameras: H.264, every second picture a key picture, so that any picture is found quickly. It is lossy."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np

from rlinf_core.errors import EpisodeError

CODEC, PIXELS = "libx264", "yuv420p"
OPTIONS = {"preset": "ultrafast", "qp": "22", "g": "2", "bf": "0"}  # crf gets finer at lower rates, to a camera's noise


class Video:
    """One file that grows by episodes.

    Args:
        path: of the MP4 file.
        fps: pictures a second.
        shape: (height, width, 3), both even.
        threads: that encode it.
    """

    def __init__(self, path: Path, fps: int, shape: tuple[int, ...], threads: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.frames, self._planes = path, 0, cast(Any, None)
        self._file = cast(Any, av.open(str(path), "w"))
        self._stream = self._file.add_stream(CODEC, rate=fps, options=OPTIONS)
        self._stream.height, self._stream.width, self._stream.pix_fmt = shape[0], shape[1], PIXELS
        self._stream.codec_context.thread_count = threads
        self._stream.codec_context.time_base = Fraction(1, fps)

    def add(self, images: np.ndarray) -> None:
        """Append (N, H, W, 3) uint8."""
        for image in images:  # ten times as fast as the encoder's own conversion
            self._planes = cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420, dst=self._planes)
            frame = av.VideoFrame.from_ndarray(self._planes, format=PIXELS)
            frame.pts = self.frames
            self._file.mux(self._stream.encode(frame))
            self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        self._file.mux(self._stream.encode(None))
        self._file.close()


class Pictures:
    """One file that is read, mostly from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        try:
            self._file = cast(Any, av.open(str(self.path)))
        except (OSError, av.FFmpegError) as error:
            raise EpisodeError(f"{self.path}: expected a video, got: {error}") from error
        self._frames, self._next = self._file.decode(video=0), 0

    def take(self, first: int, count: int) -> list[np.ndarray]:
        """So many pictures from number ``first`` on, (H, W, 3) uint8 each; EpisodeError where it has fewer."""
        if first < self._next:
            self._file.close()
            self._begin()
        found: list[np.ndarray] = []
        while len(found) < count:
            frame = next(self._frames, None)
            if frame is None:
                raise EpisodeError(f"{self.path}: expected pictures {first} to {first + count - 1}, got {self._next}")
            if self._next >= first:
                found.append(frame.to_ndarray(format="rgb24"))
            self._next += 1
        return found
