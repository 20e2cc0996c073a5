"""Videos and images of a LeRobot data set.

A video is lossy H.264. Every second picture is a key picture, so that any picture decodes quickly.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np

from rlinf_core.core.errors import EpisodeError

CODEC = "libx264"
PIXELS = "yuv420p"
# crf would get finer at lower rates, down to a camera's noise
OPTIONS = {"preset": "ultrafast", "qp": "22", "g": "2", "bf": "0"}


class VideoWriter:
    """Writes one video file, episode by episode.

    Args:
        path: path of the MP4 file.
        fps: pictures per second.
        shape: (height, width, 3), both even.
        threads: number of encoding threads.
    """

    def __init__(self, path: Path, fps: int, shape: tuple[int, ...], threads: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.frames = 0
        self._planes = cast(Any, None)
        self._file = cast(Any, av.open(str(path), "w"))
        self._stream = self._file.add_stream(CODEC, rate=fps, options=OPTIONS)
        self._stream.height = shape[0]
        self._stream.width = shape[1]
        self._stream.pix_fmt = PIXELS
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


class VideoReader:
    """Reads one video file by time, mostly from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        try:
            self._file = cast(Any, av.open(str(self.path)))
            self._frames = self._file.decode(self._file.streams.video[0])
        except (OSError, av.FFmpegError, IndexError) as error:
            raise EpisodeError(f"{self.path}: expected a video, got: {error}") from error
        self._before, self._after = self._read(), self._read()

    def _read(self) -> Any:
        """Return the next frame of the file; None at its end."""
        try:
            frame = next(self._frames, None)
        except (OSError, av.FFmpegError) as error:
            raise EpisodeError(f"{self.path}: expected an intact video, got: {error}") from error
        if frame is not None and frame.pts is None:
            raise EpisodeError(
                f"{self.path}: expected a time stamp for each frame, got a frame without one. "
                "Encode the video again"
            )
        return frame

    def nearest(self, time: float) -> tuple[np.ndarray | None, float]:
        """Return the picture nearest to a time [s], (H, W, 3) uint8, and its time [s].

        The picture is None in a video without any.
        """
        if self._before is not None and time < self._before.time:
            self._file.close()
            self._begin()
        while self._after is not None and self._after.time <= time:
            self._before, self._after = self._after, self._read()
        near = [frame for frame in (self._before, self._after) if frame is not None]
        if not near:
            return None, 0.0
        frame = min(near, key=lambda candidate: abs(candidate.time - time))
        return frame.to_ndarray(format="rgb24"), frame.time


def decode_image(cell: Any, root: Path) -> np.ndarray:
    """Decode a cell of a column of images to (H, W, 3) uint8.

    Args:
        cell: ``{"bytes": ..., "path": ...}``; without bytes, the path names a file below ``root``.
        root: the data set's folder.

    Raises:
        ValueError: the cell holds no such picture.
        OSError: its file cannot be read.
    """
    data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (None, None)
    if data is None:
        if not path:
            raise ValueError("expected the bytes or the path of a picture, got an empty cell")
        file = (root / path).resolve()
        if not file.is_relative_to(root.resolve()) or not file.is_file():
            raise ValueError(
                "expected the bytes of a picture, or its file below the data set's folder, got "
                f"only the path '{path}', which does not exist there. Copy the file there, or save "
                "the data set with embedded pictures"
            )
        data = file.read_bytes()
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if pixels is None:
        raise ValueError(
            f"expected a picture (PNG or JPEG), got {len(data)} bytes that cannot be decoded"
        )
    if pixels.dtype != np.uint8:
        raise ValueError(f"expected 8 bits a channel, got {pixels.dtype}. Is it a depth image?")
    if pixels.ndim == 2:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB))
    return np.asarray(
        cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGB if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB)
    )
