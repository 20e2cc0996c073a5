"""The columns of a LeRobot data set, and its cameras' videos.

The columns are numbers of frames, names of features and texts of tasks. A video is lossy H.264.
Every second picture is a key picture, so that any picture decodes quickly.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
import pyarrow as pa

from rlinf_core.core.errors import EpisodeError, escape_ascii

ANY_NAMES = re.compile(r"(?:(?:action|state|observation\.state|dim|feature)[_.]?)?(\d+)")
INDEX_COLUMN = "__index_level_0__"  # pandas' name of an index without a name


def numbers(column: pa.ChunkedArray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a column as (rows, size) float64.

    It is None if a row has another shape, or is not finite.
    """
    try:
        values = np.asarray(column.to_pylist(), np.float64).reshape(len(column), -1)
    except (TypeError, ValueError):
        return None
    valid = np.isfinite(values).all() and (not shape or values.shape[1] == np.prod(shape))
    return values if valid and not pa.types.is_string(column.type) else None


def first_fault(column: pa.ChunkedArray, shape: tuple[int, ...]) -> tuple[int, str]:
    """Return the first row that ``numbers`` refuses, and the reason."""
    rows = column.to_pylist()
    size = int(np.prod(shape)) if shape else np.size(rows[0])
    expected = f"expected {size} finite numbers" if size != 1 else "expected a finite number"
    for row, value in enumerate(rows):
        single = numbers(pa.chunked_array([pa.array([value], column.type)]), shape)
        if single is None or single.shape[1] != size:
            return (
                row,
                f"{expected}, got "
                f"{'an empty cell' if value is None else escape_ascii(value)[:200]}",
            )
    return 0, f"{expected}, got {escape_ascii(rows[0])[:200]}"


def flat_names(names: Any) -> list[str]:
    """Return a feature's names in their order.

    They may be a list, ``{"motors": [...]}`` or ``{"x": 0, "y": 1}``; other forms give an empty
    list.
    """
    if isinstance(names, dict):
        if names and all(isinstance(at, int) for at in names.values()):
            return sorted(names, key=lambda name: names[name])
        names = [name for part in names.values() for name in flat_names(part)]
    if not isinstance(names, list):
        return []
    return [
        name
        for entry in names
        for name in (flat_names(entry) if isinstance(entry, list) else [str(entry)])
    ]


def reordering(expected: list[str], given: list[str]) -> list[int] | None:
    """Return the index of each expected name among the given ones; None if the names differ.

    Missing names, and numbers in their order (``action_0``, ``action_1``), stand for any names in
    the expected order.
    """
    if len(given) == len(expected):
        counted = [match and int(match[1]) for match in map(ANY_NAMES.fullmatch, given)]
        if counted in (list(range(len(given))), list(range(1, len(given) + 1))):
            return list(range(len(given)))
    if not given:
        return list(range(len(expected)))
    if sorted(given) != sorted(expected) or len({*given}) < len(given):
        return None
    return [given.index(name) for name in expected]


def task_texts(table: pa.Table) -> dict[int, str]:
    """Return the text of each task by its task_index.

    The text is the column 'task', else the index that pandas wrote, else the only column of text.

    Raises:
        ValueError: there is no such column, or a task is there twice or without a text.
    """
    if "task_index" not in table.column_names:
        raise ValueError(
            "meta/tasks.parquet: expected a column 'task_index', got " + _columns(table)
        )
    pandas = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    indexes = [name for name in pandas.get("index_columns", ()) if isinstance(name, str)]
    texts = [
        field.name
        for field in table.schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]
    columns = [name for name in ("task", *indexes, INDEX_COLUMN) if name in texts] or (
        texts if len(texts) == 1 else []
    )
    if not columns:
        raise ValueError(
            "meta/tasks.parquet: expected a column or an index 'task' with the texts, got "
            + _columns(table)
        )
    tasks: dict[int, str] = {}
    for index, text in zip(
        table["task_index"].to_pylist(), table[columns[0]].to_pylist(), strict=True
    ):
        if index is None or text is None:
            raise ValueError(
                f"meta/tasks.parquet: expected a number and a text for each task, got {index} and "
                f"{'none' if text is None else escape_ascii(text)}"
            )
        if tasks.setdefault(int(index), text) != text:
            raise ValueError(
                f"meta/tasks.parquet: expected each task_index once, got {index} of "
                f"'{escape_ascii(text)}' and '{escape_ascii(tasks[int(index)])}'"
            )
    return tasks


def _columns(table: pa.Table) -> str:
    return ", ".join(map(escape_ascii, table.column_names)) or "no columns"


CODEC, PIXELS = "libx264", "yuv420p"
# crf would get finer at lower rates, down to a camera's noise
OPTIONS = {"preset": "ultrafast", "qp": "22", "g": "2", "bf": "0"}


class Video:
    """One video file that grows by episodes.

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


class Pictures:
    """One video file that is read by time, mostly from its beginning to its end."""

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
