"""LeRobot data sets of three episodes as published; a test damages one before writing it."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlinf_core.data.lerobot.export import _task_table

LENGTHS, FPS, SIZE = (6, 5, 7), 10, 48
CAMERAS = ("observation.images.front", "observation.images.wrist")
ACTION, STATE = (
    ["dx", "dy", "dz"],
    [f"{name}.{axis}" for name in ("tcp_position", "tcp_velocity", "force") for axis in range(3)],
)
RECIPE = [
    "--recipe",
    "demo_vision",
    "--set",
    "station.observe_cameras=[front,wrist]",
    f"station.image_size=[{SIZE},{SIZE}]",
]


class OddSet:
    """A data set in memory: change its parts, then write it.

    Attributes:
        info: of meta/info.json.
        columns: of data/, a list of rows each.
        types: of the columns, where Arrow's own choice is not the one.
        rows: of meta/episodes.
        tasks: the table of meta/tasks.parquet.
        videos: of each camera, the time stamps [s] and grey values of its pictures.
        files: after how many rows a new file of data/ begins.
    """

    def __init__(self) -> None:
        count = sum(LENGTHS)
        random = np.random.default_rng(0)
        episode = np.repeat(np.arange(3), LENGTHS)
        frame = np.concatenate([np.arange(length) for length in LENGTHS])
        self.columns: dict[str, list[Any]] = {
            "action": random.uniform(-0.01, 0.01, (count, 3)).astype(np.float32).tolist(),
            "observation.state": random.uniform(-0.1, 0.1, (count, 9)).astype(np.float32).tolist(),
            "timestamp": (frame / FPS).tolist(),
            "frame_index": frame.tolist(),
            "episode_index": episode.tolist(),
            "index": list(range(count)),
            "task_index": [0] * count,
        }
        self.types: dict[str, pa.DataType] = {
            "action": pa.list_(pa.float32(), 3),
            "timestamp": pa.float32(),
            "observation.state": pa.list_(pa.float32(), 9),
        }
        scalars = {
            name: {
                "dtype": "float32" if name == "timestamp" else "int64",
                "shape": [1],
                "names": None,
            }
            for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
        }
        pictures = {
            "dtype": "video",
            "shape": [SIZE, SIZE, 3],
            "names": ["height", "width", "channels"],
            "info": {"video.fps": FPS, "video.codec": "h264"},
        }
        self.info: dict[str, Any] = {
            "codebase_version": "v3.0",
            "robot_type": "arm",
            "total_episodes": 3,
            "total_frames": count,
            "total_tasks": 1,
            "chunks_size": 1000,
            "fps": FPS,
            "splits": {"train": "0:3"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            "features": {
                "action": {"dtype": "float32", "shape": [3], "names": list(ACTION)},
                "observation.state": {"dtype": "float32", "shape": [9], "names": list(STATE)},
                **scalars,
                **{camera: copy.deepcopy(pictures) for camera in CAMERAS},
            },
        }
        self.rows: list[dict[str, Any]] = []
        begin = 0
        for number, length in enumerate(LENGTHS):
            row = {
                "episode_index": number,
                "tasks": ["put it in"],
                "length": length,
                "data/chunk_index": 0,
                "data/file_index": 0,
                "dataset_from_index": begin,
                "dataset_to_index": begin + length,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
            for camera in CAMERAS:
                row |= {
                    f"videos/{camera}/chunk_index": 0,
                    f"videos/{camera}/file_index": 0,
                    f"videos/{camera}/from_timestamp": begin / FPS,
                    f"videos/{camera}/to_timestamp": (begin + length) / FPS,
                }
            self.rows.append(row)
            begin += length
        self.tasks = _task_table(["put it in"])
        self.videos = {
            camera: [(number / FPS, 10 + 4 * number) for number in range(count)]
            for camera in CAMERAS
        }
        self.files: list[int] = []

    def with_images(self) -> OddSet:
        """Store the pictures in columns of data/ instead of videos: PNG, grey 10 + 4 * frame."""
        for camera in CAMERAS:
            self.info["features"][camera] = {
                "dtype": "image",
                "shape": [SIZE, SIZE, 3],
                "names": ["height", "width", "channels"],
            }
            self.columns[camera] = [
                {"bytes": png(grey), "path": f"{number}.png"}
                for number, (_, grey) in enumerate(self.videos[camera])
            ]
            for row in self.rows:
                for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp"):
                    row.pop(f"videos/{camera}/{name}")
        self.videos = {}
        return self

    def change_column(self, name: str, change: Any) -> None:
        """Change every cell of a column."""
        self.columns[name] = [change(cell) for cell in self.columns[name]]

    def write(self, root: Path) -> Path:
        """Write it to a new folder."""
        table = pa.table(
            {name: pa.array(cells, self.types.get(name)) for name, cells in self.columns.items()}
        )
        bounds = [0, *self.files, len(table)]
        for number, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
            parquet(
                root / f"data/chunk-000/file-{number:03d}.parquet", table.slice(begin, end - begin)
            )
        parquet(root / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(self.rows))
        parquet(root / "meta/tasks.parquet", self.tasks)
        (root / "meta/info.json").write_text(json.dumps(self.info))
        stats = {
            name: {
                key: np.full(np.shape(cells[0]) or (1,), value).tolist()
                for key, value in (("min", -1.0), ("max", 1.0), ("mean", 0.0), ("std", 1.0))
            }
            | {"count": [len(cells)]}
            for name, cells in self.columns.items()
            if name in ("action", "observation.state")
        }
        (root / "meta/stats.json").write_text(json.dumps(stats))
        for camera, pictures in self.videos.items():
            video(root / f"videos/{camera}/chunk-000/file-000.mp4", pictures)
        return root


def png(grey: int, shape: tuple[int, ...] = (SIZE, SIZE, 3), dtype: type = np.uint8) -> bytes:
    """Return a picture of one grey as PNG."""
    return cv2.imencode(".png", np.full(shape, grey, dtype))[1].tobytes()


def parquet(path: Path, table: pa.Table) -> None:
    """Write a table, and its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def video(path: Path, pictures: list[tuple[float, int]], size: int = SIZE) -> None:
    """Write pictures of one grey each at their time stamps [s]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=FPS, options={"qp": "10", "g": "2", "bf": "0"})
        stream.width = stream.height = size
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, 3000)
        for time, grey in pictures:
            frame = av.VideoFrame.from_ndarray(
                np.full((size, size, 3), grey, np.uint8), format="rgb24"
            )
            frame.pts, frame.time_base = round(time * 3000), Fraction(1, 3000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
