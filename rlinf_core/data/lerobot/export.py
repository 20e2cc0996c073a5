"""Export recordings to a LeRobot data set: ``meta/``, ``data/`` (Parquet) and ``videos/`` (MP4).

A frame is an observation and the action that answered it. The observation after the last action has
no frame; its picture follows the episode's in the video. ``meta/rlinf.json`` holds the data that
LeRobot has no place for.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlinf_core.core.errors import EpisodeError
from rlinf_core.data.episodes import episode_spec, intact_episodes
from rlinf_core.data.folders import new_folder
from rlinf_core.data.lerobot.video import PIXELS, VideoWriter
from rlinf_core.data.stats import (
    ColumnStats,
    describe,
    describe_histogram,
    histogram,
    sample_frames,
)
from rlinf_core.episodes import Episode
from rlinf_core.reports.recordings import outcome
from rlinf_core.specs.arrays import StationSpec

FILE_PATH = "chunk-000/file-{file:03d}"
DATA, EPISODES = f"data/{FILE_PATH}.parquet", f"meta/episodes/{FILE_PATH}.parquet"
VIDEO = "videos/{key}/" + FILE_PATH + ".mp4"
VIDEO_BYTES = 200 << 20  # size at which a new file begins
SCALARS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


def export(
    paths: list[Path], out: Path, recipe: str | None = None, executed: bool = False
) -> tuple[int, int]:
    """Write every intact episode below some folders to a new data set.

    Args:
        paths: the recordings.
        out: a new folder.
        recipe: recipe of the recording station; by default that of the run around the recordings.
        executed: True to export the actions that the interlock executed, instead of the requested
            ones.

    Returns:
        The numbers of episodes and frames.

    Raises:
        EpisodeError: the specs differ, or do not fit a data set; the message names both sides.
    """
    with new_folder(out) as root, ExitStack() as encoders:
        dataset: DatasetWriter | None = None
        for folder, episode in intact_episodes(paths):
            if dataset is None:
                dataset = DatasetWriter(root, episode_spec(episode, folder, recipe), executed)
                # before the folder of a failed export is removed, no thread writes to it any more
                encoders.callback(dataset.pool.shutdown, cancel_futures=True)
            dataset.add(episode)
        assert dataset is not None  # intact_episodes raises if there is no episode
        dataset.close()
    return len(dataset.rows), dataset.frames


class DatasetWriter:
    """Writes a data set, episode by episode."""

    def __init__(self, root: Path, spec: StationSpec, executed: bool) -> None:
        self.root = root
        self.spec = spec
        self.executed = executed
        self.fps = _fps(spec)
        self.frames = 0
        self.rows: list[dict[str, Any]] = []
        self.tasks: dict[str, int] = {}
        self.extras: list[dict[str, Any]] = []
        self.columns: dict[str, list[np.ndarray]] = {}
        self.pixels = {_image_key(image.name): np.zeros((3, 256), int) for image in spec.images}
        self.sampled = 0
        self.videos: dict[str, list[VideoWriter]] = {key: [] for key in self.pixels}
        self.pool = ThreadPoolExecutor(max(1, len(self.pixels)))
        self.jobs: list[Future[None]] = []

    def add(self, episode: Episode) -> None:
        """Append an episode; its pictures are encoded while the next one is read."""
        self._wait_for_encoders()
        row = {
            "episode_index": len(self.rows),
            "tasks": list(dict.fromkeys(episode.instructions[:-1])),
            "length": len(episode),
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": self.frames,
            "dataset_to_index": self.frames + len(episode),
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        stats = {name: describe(values) for name, values in self._add_columns(episode).items()}
        frames = len(sample_frames(episode.requested))
        self.sampled += frames
        for image in self.spec.images:
            key, pictures = _image_key(image.name), episode.observations[image.name]
            counts = histogram(pictures[:-1])
            self.pixels[key] += counts
            stats[key] = _pixel_stats(counts, frames)
            video, number = self._video_for(key, image.shape)
            row |= {
                f"videos/{key}/chunk_index": 0,
                f"videos/{key}/file_index": number,
                f"videos/{key}/from_timestamp": video.frames / self.fps,
                f"videos/{key}/to_timestamp": (video.frames + len(episode)) / self.fps,
            }
            self.jobs.append(self.pool.submit(video.add, pictures))
        row |= {
            f"stats/{key}/{name}": values.tolist()
            for key, numbers in stats.items()
            for name, values in numbers.items()
        }
        self.rows.append(row)
        self.extras.append(_episode_metadata(episode))
        self.frames += len(episode)

    def close(self) -> None:
        """Finish all files."""
        self._wait_for_encoders()
        for videos in self.videos.values():
            for video in videos[-1:]:
                video.close()
        columns = {name: np.concatenate(values) for name, values in self.columns.items()}
        stats = {name: describe(values) for name, values in columns.items()}
        stats |= {key: _pixel_stats(counts, self.sampled) for key, counts in self.pixels.items()}
        _write_parquet(
            self.root / DATA.format(file=0),
            pa.table({name: _to_arrow(values) for name, values in columns.items()}),
        )
        _write_parquet(self.root / EPISODES.format(file=0), pa.Table.from_pylist(self.rows))
        _write_parquet(self.root / "meta/tasks.parquet", _task_table(list(self.tasks)))
        for name, document in (
            ("info", self._info(columns)),
            ("rlinf", self._rlinf()),
            (
                "stats",
                {
                    key: {name: values.tolist() for name, values in numbers.items()}
                    for key, numbers in stats.items()
                },
            ),
        ):
            (self.root / f"meta/{name}.json").write_text(json.dumps(document, indent=1))

    def _add_columns(self, episode: Episode) -> dict[str, np.ndarray]:
        """Store and return an episode's columns, (T, D) each."""
        length, spec = len(episode), self.spec
        count = np.arange(length)
        tasks = [
            self.tasks.setdefault(words, len(self.tasks)) for words in episode.instructions[:-1]
        ]
        last = count == length - 1
        actions = episode.executed if self.executed else episode.requested
        columns = {
            "action": actions.astype(np.float32),
            "next.reward": episode.rewards,
            "next.done": last,
            "next.success": last & episode.success,
            "complementary_info.is_intervention": np.array(
                [source == "operator" for source in episode.sources]
            ),
            "timestamp": (count / self.fps).astype(np.float32),
            "frame_index": count,
            "episode_index": np.full(length, len(self.rows)),
            "index": self.frames + count,
            "task_index": np.array(tasks),
        }
        if spec.vectors:
            columns["observation.state"] = np.concatenate(
                [episode.observations[item.name][:-1].reshape(length, -1) for item in spec.vectors],
                axis=1,
            )
        columns = {name: values.reshape(length, -1) for name, values in columns.items()}
        for name, values in columns.items():
            self.columns.setdefault(name, []).append(values)
        return columns

    def _video_for(self, key: str, shape: tuple[int, ...]) -> tuple[VideoWriter, int]:
        """Return the video file for the next episode, and its number."""
        videos = self.videos[key]
        if videos and videos[-1].path.stat().st_size > VIDEO_BYTES:
            videos[-1].close()
        if not videos or videos[-1].path.stat().st_size > VIDEO_BYTES:
            if shape[0] % 2 or shape[1] % 2:
                raise EpisodeError(
                    f"'{key}': expected pictures of even height and width, as {PIXELS} requires, "
                    f"got {shape[0]}x{shape[1]}"
                )
            threads = max(1, (os.cpu_count() or 1) // len(self.videos))
            videos.append(
                VideoWriter(
                    self.root / VIDEO.format(key=key, file=len(videos)), self.fps, shape, threads
                )
            )
        return videos[-1], len(videos) - 1

    def _wait_for_encoders(self) -> None:
        for job in self.jobs:
            job.result()
        self.jobs.clear()

    def _info(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        names = {
            "action": list(self.spec.action.names),
            "observation.state": [
                f"{item.name}.{index}" for item in self.spec.vectors for index in range(item.size)
            ],
        }
        features: dict[str, Any] = {
            name: {
                "dtype": SCALARS.get(name, str(values.dtype)),
                "shape": [values.shape[1]],
                "names": names.get(name),
            }
            for name, values in columns.items()
        }
        features |= {
            _image_key(image.name): {
                "dtype": "video",
                "shape": list(image.shape),
                "names": ["height", "width", "channels"],
                "info": {
                    "video.height": image.shape[0],
                    "video.width": image.shape[1],
                    "video.codec": "h264",
                    "video.pix_fmt": PIXELS,
                    "video.is_depth_map": False,
                    "video.fps": self.fps,
                    "video.channels": 3,
                    "has_audio": False,
                },
            }
            for image in self.spec.images
        }
        return {
            "codebase_version": "v3.0",
            "robot_type": self.extras[0]["station"],
            "total_episodes": len(self.rows),
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": VIDEO_BYTES >> 20,
            "fps": self.fps,
            "splits": {"train": f"0:{len(self.rows)}"},
            "features": features,
            "data_path": _path_pattern(DATA),
            "video_path": _path_pattern(VIDEO) if self.spec.images else None,
        }

    def _rlinf(self) -> dict[str, Any]:
        return {
            "actions": "executed" if self.executed else "requested",
            "spec": self.spec.to_dict(),
            "episodes": self.extras,
        }


def _episode_metadata(episode: Episode) -> dict[str, Any]:
    """Return the data that frames cannot hold."""
    final = {
        name: values[-1].tolist()
        for name, values in episode.observations.items()
        if values.dtype != np.uint8
    }
    return {
        "id": episode.id,
        "station": episode.station,
        "mode": episode.mode,
        "seed": episode.seed,
        "outcome": outcome(episode),
        "policy_version": episode.policy_version,
        "spec_hash": episode.spec_hash,
        "limits_hash": episode.limits_hash,
        "sources": list(episode.sources),
        "stamps_ns": episode.stamps_ns.tolist(),
        "final_observation": final,
    }


def _path_pattern(path: str) -> str:
    """Return a path as a pattern for info.json."""
    for field, replacement in (
        ("chunk-000", "chunk-{chunk_index:03d}"),
        ("{file:", "{file_index:"),
        ("{key}", "{video_key}"),
    ):
        path = path.replace(field, replacement)
    return path


def _fps(spec: StationSpec) -> int:
    if round(spec.control_hz) != spec.control_hz or spec.control_hz < 1:
        raise EpisodeError(
            "expected a whole number of time steps per second, as LeRobot requires, got "
            f"{spec.control_hz:g}. A recording without specs gives this rate from its stamps. Name "
            "its recipe with --recipe"
        )
    return int(spec.control_hz)


def _image_key(image: str) -> str:
    return f"observation.images.{image}"


def _pixel_stats(counts: np.ndarray, frames: int) -> ColumnStats:
    """Return LeRobot's statistics of pictures: (channels, 1, 1), counted in frames."""
    numbers = {
        name: values.reshape(-1, 1, 1) for name, values in describe_histogram(counts).items()
    }
    return {"count": np.array([frames])} | numbers


def _to_arrow(values: np.ndarray) -> pa.Array:
    flat = pa.array(values.ravel())
    return (
        flat if values.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    )


def _task_table(texts: list[str]) -> pa.Table:
    """Return the table of tasks, with the texts as the index that pandas finds."""

    def described_column(name: str, kind: str, numpy_kind: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": numpy_kind,
            "metadata": None,
        }

    table = pa.table({"task_index": pa.array(range(len(texts)), pa.int64()), "task": texts})
    metadata = {
        "index_columns": ["task"],
        "column_indexes": [],
        "pandas_version": "2.0.0",
        "columns": [
            described_column("task_index", "int64", "int64"),
            described_column("task", "unicode", "object"),
        ],
    }
    return table.replace_schema_metadata({"pandas": json.dumps(metadata)})


def _write_parquet(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
