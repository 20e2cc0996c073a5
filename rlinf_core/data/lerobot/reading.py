"""Read a LeRobot data set (v3.0): its features, and an episode's columns and pictures.

Columns are read by name, episodes and tasks by their index, and pictures of a video by their time
stamp. A data set that contradicts itself is refused, with the feature, the episode and the frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlinf_core.core.errors import EpisodeError, escape_ascii
from rlinf_core.data.lerobot.columns import first_fault, flatten_names, read_task_texts, to_numbers
from rlinf_core.data.lerobot.video import VideoReader, decode_image

VERSION, FINAL = "v3.", "final_observation"
TIMES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
COLUMN_NAMES = (
    *TIMES,
    "action",
    "observation.state",
    "next.reward",
    "next.done",
    "next.success",
    "complementary_info.is_intervention",
)
EXACT_S = 1e-4  # LeRobot's tolerance_s: stamps this near to the grid of frames are on it
STEP_PART = 0.1  # tolerance of a time stamp or a picture, in time steps
CONVERT = "LeRobot converts older ones: lerobot.datasets.v30.convert_dataset_v21_to_v30"
DELETE = "lerobot-edit-dataset --operation.type delete_episodes"


class DatasetReader:
    """A readable LeRobot data set.

    Attributes:
        metadata: data that our own export adds (``meta/rlinf.json``); empty in foreign data sets.
        instruction: instruction of all frames, instead of their tasks; empty for the tasks.

    Raises:
        EpisodeError: the data set cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.instruction = ""
        self.info: dict[str, Any] = self._json("info")
        version = str(self.info.get("codebase_version", ""))
        if not version.startswith(VERSION):
            raise self.error(
                f"codebase_version: expected {VERSION}0 of LeRobot's layout, got "
                f"'{escape_ascii(version)}'. {CONVERT}"
            )
        self.features, self.fps = self._features(), self._fps()
        try:
            self.rows = self._rows()
            self.table = self._table()
            self.sentences = read_task_texts(pq.read_table(self._file("meta/tasks.parquet")))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise self.error(
                f"expected an intact LeRobot data set, got: {escape_ascii(error)}"
            ) from error
        self.starts, self.ends = self._row_spans()
        metadata = self._json("rlinf") if (root / "meta/rlinf.json").exists() else {}
        changed = [len(episode.get("sources", ())) for episode in metadata.get("episodes", ())] != [
            row["length"] for row in self.rows
        ]
        # changed by a tool without knowledge of this file
        self.metadata: dict[str, Any] = {} if changed else metadata
        self.videos: dict[str, VideoReader] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def error(self, text: str) -> EpisodeError:
        """Return an error of this data set."""
        return EpisodeError(f"{self.root}: {text}")

    def fault(self, feature: str, number: int, frame: int, text: str) -> EpisodeError:
        """Return an error of a feature, in a frame of the episode at position ``number``."""
        return self.error(
            f"feature '{escape_ascii(feature)}': episode {self.index(number)}, frame {frame}: "
            f"{text}. Nothing was written. Correct the data set, or leave the episode out: "
            f"{DELETE}"
        )

    def _json(self, name: str) -> dict[str, Any]:
        path = self.root / f"meta/{name}.json"
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise self.error(
                f"expected a LeRobot data set, got no meta/{name}.json in readable form: "
                f"{escape_ascii(error)}"
            ) from error
        if not isinstance(document, dict):
            raise self.error(
                f"meta/{name}.json: expected a JSON object, got "
                f"{escape_ascii(type(document).__name__)}"
            )
        return document

    def _features(self) -> dict[str, Any]:
        features = self.info.get("features")
        if not isinstance(features, dict):
            raise self.error(
                "meta/info.json: features: expected an object, got "
                f"{'none' if features is None else type(features).__name__}"
            )
        for name, feature in features.items():
            shape = feature.get("shape") if isinstance(feature, dict) else None
            if (
                not isinstance(shape, list)
                or not all(isinstance(size, int) for size in shape)
                or "dtype" not in feature
            ):
                raise self.error(
                    f"meta/info.json: feature '{escape_ascii(name)}': expected a dtype and a "
                    f"shape of whole numbers, got {escape_ascii(feature)[:200]}"
                )
        return features

    def _fps(self) -> float:
        try:
            fps = float(self.info["fps"])
        except (KeyError, TypeError, ValueError):
            fps = 0.0
        if not 0 < fps < np.inf:
            raise self.error(
                "meta/info.json: fps: expected a number above 0, got "
                f"{escape_ascii(self.info.get('fps', 'none'))}"
            )
        return fps

    def _file(self, name: str) -> Path:
        """Return the path of a Parquet file of version 3.0; raise an error for an older layout."""
        path = self.root / name
        old = (self.root / name.replace(".parquet", "")).with_suffix(".jsonl")
        if not path.exists() and old.exists():
            raise self.error(
                f"expected {name} of LeRobot's layout v3.0, got {old.name} of v2.1, though "
                "meta/info.json says v3.0. Set codebase_version there to v2.1, then convert it. "
                f"{CONVERT}"
            )
        return path

    def _rows(self) -> list[dict[str, Any]]:
        """Return the episodes in meta/episodes, by their index."""
        files = sorted(self._file("meta/episodes").glob("**/*.parquet"))
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        for row in rows:
            for key in ("episode_index", "length"):
                if not isinstance(row.get(key), int):
                    raise self.error(
                        f"meta/episodes: expected an integer '{key}' of each episode, got "
                        f"{escape_ascii(row.get(key, 'none'))}"
                    )
        rows.sort(key=lambda row: row["episode_index"])
        indexes = [row["episode_index"] for row in rows]
        if twice := sorted({index for index in indexes if indexes.count(index) > 1}):
            raise self.error(
                "meta/episodes: expected each episode once, got several rows of episode "
                f"{twice[0]}. Are there files of two data sets in one folder?"
            )
        if not rows:
            raise self.error("meta/episodes: expected at least one episode, got none")
        return rows

    def _table(self) -> pa.Table:
        """Return every frame, by episode and frame."""
        files = sorted((self.root / "data").glob("**/*.parquet"))
        if not files:
            raise FileNotFoundError(f"no Parquet file in {self.root / 'data'}")
        tables = [pq.read_table(file) for file in files]
        for file, table in zip(files[1:], tables[1:], strict=True):
            if lacking := set(tables[0].column_names) ^ set(table.column_names):
                raise self.error(
                    "expected the same columns in each file of data/, got "
                    f"'{escape_ascii(min(lacking))}' in only one of "
                    f"{files[0].relative_to(self.root)} and {file.relative_to(self.root)}"
                )
        table = pa.concat_tables(tables, promote_options="permissive")
        order = next(
            (name for name in ("frame_index", "index") if name in table.column_names), None
        )
        for name in ("episode_index", *([order] if order else ())):
            if name not in table.column_names or table[name].null_count:
                problem = (
                    "none"
                    if name not in table.column_names
                    else f"{table[name].null_count} empty rows of it"
                )
                raise self.error(
                    f"feature '{name}': expected a column of data/ with a number in each row, got "
                    f"{problem}"
                )
        if order is None:
            raise self.error(
                "expected a column 'frame_index' or 'index' in data/ for the order of the frames, "
                f"got {', '.join(map(escape_ascii, table.column_names))}"
            )
        keys = [
            np.asarray(table[name].to_pylist()).reshape(len(table), -1)[:, 0]
            for name in ("episode_index", order)
        ]
        rows = np.lexsort(keys[::-1])
        return table if (rows == np.arange(len(rows))).all() else table.take(pa.array(rows))

    def _row_spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of each episode in the table, and the row after its last."""
        column = np.asarray(self.table["episode_index"].to_pylist()).reshape(len(self.table), -1)[
            :, 0
        ]
        indexes = [self.index(number) for number in range(len(self))]
        if stray := sorted({*column.tolist()} - {*indexes}):
            raise self.error(
                "data/: expected frames of the episodes in meta/episodes "
                f"({_index_text(indexes)}), got some of episode {stray[0]}. Are "
                "there files of two data sets in one folder?"
            )
        return np.searchsorted(column, indexes), np.searchsorted(column, indexes, side="right")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a feature, images as (height, width, 3); empty if there is none."""
        feature = self.features.get(name)
        if feature is None:
            return ()
        shape, names = tuple(feature["shape"]), flatten_names(feature.get("names"))
        if len(shape) != 3 or feature["dtype"] not in ("image", "video"):
            return shape
        axes = [axis[:1] for axis in names]  # height, width and channel or channels, in any order
        if sorted(axes) == ["c", "h", "w"]:
            return shape[axes.index("h")], shape[axes.index("w")], shape[axes.index("c")]
        return (
            (*shape[1:], shape[0]) if shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4) else shape
        )

    def names(self, name: str) -> list[str]:
        """Return the names of a feature's numbers; empty without any."""
        return flatten_names(self.features[name].get("names")) if name in self.features else []

    def describe_feature(self, name: str) -> str:
        """Describe a feature's shape and names; list similar features if it is missing."""
        if name not in self.features:
            same = [
                feature
                for feature in self.features
                if feature.rpartition(".")[0] == name.rpartition(".")[0]
            ]
            return f"none ({', '.join(map(escape_ascii, same)) or 'no such'} there)"
        size = "x".join(map(str, self.shape(name)))
        names = self.names(name) if len(self.shape(name)) == 1 else []
        return f"{size} ({', '.join(map(escape_ascii, names))})" if names else size

    def is_depth(self, name: str) -> bool:
        """Return True if a feature's pictures are distances."""
        feature = self.features.get(name, {})
        info = feature.get("info") or feature.get("video_info") or {}
        return bool(info.get("video.is_depth_map", info.get("is_depth_map", False)))

    def unused_features(self, used: Iterable[str]) -> list[str]:
        """Return the features that an import does not use."""
        return sorted(self.features.keys() - {*COLUMN_NAMES, *used})

    def index(self, number: int) -> int:
        """Return the episode_index of the episode at this position."""
        return int(self.rows[number]["episode_index"])

    def columns(self, number: int) -> dict[str, np.ndarray]:
        """Return all columns except pictures, one row per frame: (length, size) float64 each.

        All values are finite.
        """
        begin, end = int(self.starts[number]), int(self.ends[number])
        expected = self.rows[number]["length"]
        if expected < 1 and begin == end:
            raise self.error(
                f"episode {self.index(number)} has no frames. Nothing was written. Leave it out: "
                f"{DELETE}"
            )
        if end - begin != expected:
            raise self.error(
                f"expected {expected} frames of episode {self.index(number)}, got {end - begin}. "
                f"Nothing was "
                "written. Download the set again, or leave the episode out: " + DELETE
            )
        columns = {}
        for name in COLUMN_NAMES:
            if name in self.table.column_names:
                column = self.table[name].slice(begin, expected)
                values = to_numbers(column, self.shape(name))
                if values is None:
                    raise self.fault(name, number, *first_fault(column, self.shape(name)))
                columns[name] = values
        for name in ("action", "observation.state", "timestamp"):
            if name not in columns and (name in self.features or name == "timestamp"):
                raise self.error(
                    f"feature '{name}': expected a column of that name in data/, got "
                    f"{', '.join(map(escape_ascii, self.table.column_names))}"
                )
        self._check_frames(columns, number)
        return columns

    def _check_frames(self, columns: dict[str, np.ndarray], number: int) -> None:
        """Raise EpisodeError at the first frame that is lost, repeated or off its time."""
        if "frame_index" in columns:
            frames = columns["frame_index"][:, 0]
            for frame in np.flatnonzero(frames != np.arange(len(frames)))[:1].tolist():
                raise self.fault(
                    "frame_index",
                    number,
                    frame,
                    f"expected {frame}, since frames count from 0, got {frames[frame]:g}. A frame "
                    "is missing or occurs twice",
                )
        if "index" in columns:
            for frame in np.flatnonzero(np.diff(columns["index"][:, 0]) <= 0)[:1].tolist():
                before, after = columns["index"][frame : frame + 2, 0]
                raise self.fault(
                    "index",
                    number,
                    frame + 1,
                    f"expected a number above {before:g}, that of the previous frame, got "
                    f"{after:g}",
                )
        times, step = columns["timestamp"][:, 0], 1 / self.fps
        steps = np.diff(times)
        for frame in np.flatnonzero(~(np.abs(steps - step) <= STEP_PART * step))[:1].tolist():
            raise self.fault(
                "timestamp",
                number,
                frame + 1,
                f"expected {times[frame] + step:.4f} s, {step:g} s after the previous frame, got "
                f"{times[frame + 1]:.4f} s. Was recording interrupted?",
            )

    def stamps_s(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Return the time of each frame, and of one after the last, from 0 on [s].

        The times are on the grid of frames if all are near it.
        """
        times = columns["timestamp"][:, 0] - columns["timestamp"][0, 0]
        grid = np.arange(len(times) + 1) / self.fps
        return (
            grid
            if (np.abs(times - grid[:-1]) <= EXACT_S).all()
            else np.append(times, times[-1] + 1 / self.fps)
        )

    def episode_metadata(self, number: int) -> dict[str, Any]:
        """Return the metadata that our own export adds."""
        return self.metadata["episodes"][number] if self.metadata else {}

    def instructions(self, columns: dict[str, np.ndarray], number: int) -> tuple[str, ...]:
        """Return the instructions (length + 1,); the one after the last action repeats the last."""
        length = len(columns["timestamp"])
        if self.instruction:
            return (self.instruction,) * (length + 1)
        if "task_index" not in columns and len(self.sentences) > 1:
            raise self.error(
                "feature 'task_index': expected a column of data/, since there are "
                f"{len(self.sentences)} tasks, got none. --instruction sets one for all episodes"
            )
        only = next(iter(self.sentences), 0)
        indexes = (
            columns["task_index"][:, 0].astype(int).tolist()
            if "task_index" in columns
            else [only] * length
        )
        for frame, index in enumerate(indexes):
            if index not in self.sentences:
                raise self.fault(
                    "task_index",
                    number,
                    frame,
                    "expected a task of meta/tasks.parquet "
                    f"({_index_text(sorted(self.sentences))}), got {index}; --instruction sets one "
                    "for all episodes",
                )
        return tuple([self.sentences[index] for index in [*indexes, indexes[-1]]])

    def pictures(self, key: str, number: int, times: np.ndarray) -> np.ndarray:
        """Return a camera's images (length + 1, H, W, 3) uint8.

        The one after the last action repeats the last, except in our own data sets.

        Args:
            key: the feature.
            number: the episode's position.
            times: time stamp of each frame [s].
        """
        if self.features[key]["dtype"] == "image":
            images = self._embedded_images(key, number, len(times))
        else:
            images = self._video_images(
                key, number, np.append(times, times[-1] + 1 / self.fps) if self.metadata else times
            )
        for frame, image in enumerate(images):
            if image.shape != self.shape(key):
                raise self.fault(
                    key,
                    number,
                    frame,
                    f"expected a picture of {_size(self.shape(key))}, as in meta/info.json, got "
                    f"{_size(image.shape)}",
                )
        return np.stack(images if len(images) > len(times) else [*images, images[-1]])

    def _embedded_images(self, key: str, number: int, length: int) -> list[np.ndarray]:
        if key not in self.table.column_names:
            raise self.error(
                f"feature '{escape_ascii(key)}': expected a column of that name in data/, got none"
            )
        images = []
        for frame, cell in enumerate(
            self.table[key].slice(int(self.starts[number]), length).to_pylist()
        ):
            try:
                images.append(decode_image(cell, self.root))
            except (OSError, ValueError) as error:
                raise self.fault(key, number, frame, escape_ascii(error)) from error
        return images

    def _video_images(self, key: str, number: int, times: np.ndarray) -> list[np.ndarray]:
        row, part = self.rows[number], f"videos/{key}"
        for name in ("chunk_index", "file_index", "from_timestamp"):
            if row.get(f"{part}/{name}") is None:
                raise self.error(
                    f"feature '{escape_ascii(key)}': episode {self.index(number)}: expected its "
                    f"'{escape_ascii(part)}/{name}' in meta/episodes, got none"
                )
        begin = float(row[f"{part}/from_timestamp"])
        end = float(row.get(f"{part}/to_timestamp") or np.inf)
        tolerance, length = STEP_PART / self.fps, self.rows[number]["length"]
        for frame in np.flatnonzero(begin + times[:length] >= end - EXACT_S)[:1].tolist():
            raise self.fault(
                key,
                number,
                frame,
                f"expected a picture at {times[frame]:.4f} s, got a video of "
                f"{end - begin:.4f} s for this episode (to_timestamp)",
            )
        try:
            path = self.root / self.info["video_path"].format(
                video_key=key,
                chunk_index=row[f"{part}/chunk_index"],
                file_index=row[f"{part}/file_index"],
            )
        except (KeyError, AttributeError, ValueError, IndexError) as error:
            raise self.error(
                "meta/info.json: video_path: expected a pattern with video_key, chunk_index and "
                f"file_index, got {escape_ascii(self.info.get('video_path', 'none'))}"
            ) from error
        if key not in self.videos or self.videos[key].path != path:
            self.videos[key] = VideoReader(path)
        images = []
        for frame, time in enumerate((begin + times).tolist()):
            image, at = self.videos[key].nearest(time)
            if image is None or not abs(at - time) <= tolerance:
                nearest = "no picture" if image is None else f"the nearest at {at:.4f} s"
                raise self.fault(
                    key,
                    number,
                    frame,
                    f"expected a picture at {time:.4f} s of {path.relative_to(self.root)}, within "
                    f"{tolerance:.4f} s, got {nearest}",
                )
            images.append(image)
        return images


def _index_text(indexes: list[int]) -> str:
    return (
        ", ".join(map(str, indexes))
        if len(indexes) <= 10
        else f"{len(indexes)} of {indexes[0]} to {indexes[-1]}"
    )


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
