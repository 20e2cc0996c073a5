"""Videos of cameras: H.264, every second picture a key picture, so that any picture is found quickly. It is lossy."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import numpy as np

CODEC, PIXELS = "libx264", "yuv420p"
OPTIONS = {"preset": "superfast", "crf": "20", "g": "2", "bf": "0"}


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
        self.path, self.frames = path, 0
        self._file = cast(Any, av.open(str(path), "w"))
        self._stream = self._file.add_stream(CODEC, rate=fps, options=OPTIONS)
        self._stream.height, self._stream.width, self._stream.pix_fmt = shape[0], shape[1], PIXELS
        self._stream.codec_context.thread_count = threads
        self._stream.codec_context.time_base = Fraction(1, fps)

    def add(self, images: np.ndarray) -> None:
        """Append (N, H, W, 3) uint8."""
        for image in images:
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = self.frames
            self._file.mux(self._stream.encode(frame))
            self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        self._file.mux(self._stream.encode(None))
        self._file.close()
