"""A LeRobot data set (v3.0) as it lies in a folder: its features, and an episode's columns and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlinf_core.data.lerobot.video import Pictures
from rlinf_core.errors import EpisodeError, printable

VERSION, FINAL = "v3.", "final_observation"
OURS = ("timestamp", "frame_index", "episode_index", "index", "task_index", "action", "observation.state", "next.reward",
        "next.done", "next.success", "complementary_info.is_intervention")


class DataSet:
    """One that can be read; EpisodeError where it cannot.

    Attributes:
        own: what our own export says besides (``meta/rlinf.json``); empty in those of others.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info: dict[str, Any] = self._json("info")
        version = str(self.info.get("codebase_version", ""))
        if not version.startswith(VERSION):
            raise EpisodeError(f"{root}: codebase_version: expected {VERSION}0 of LeRobot's layout, got '{version}'. "
                               "LeRobot converts older ones: lerobot.datasets.v30.convert_dataset_v21_to_v30")
        self.features: dict[str, Any] = self.info["features"]
        self.fps = float(self.info["fps"])
        try:
            self.rows = _rows(root / "meta/episodes")
            self.table = _table(root / "data")
            self.sentences = {row["task_index"]: str(next((said for key, said in row.items() if key != "task_index"), ""))
                              for row in pq.read_table(root / "meta/tasks.parquet").to_pylist()}
        except (OSError, pa.ArrowException) as error:
            raise EpisodeError(f"{root}: expected a whole LeRobot data set, got: {printable(error)}") from error
        own = self._json("rlinf") if (root / "meta/rlinf.json").exists() else {}
        changed = [len(each.get("sources", ())) for each in own.get("episodes", ())] != [row["length"] for row in self.rows]
        self.own: dict[str, Any] = {} if changed else own  # by a tool that knows nothing of it
        self.videos: dict[str, Pictures] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.root / f"meta/{name}.json"
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise EpisodeError(f"{self.root}: expected a LeRobot data set, got no meta/{name}.json that can be read: "
                               f"{printable(error)}") from error

    # Features
    def shape(self, name: str) -> tuple[int, ...]:
        """Of a feature, pictures as (height, width, 3); empty where there is none."""
        feature = self.features.get(name)
        if feature is None:
            return ()
        shape, names = tuple(feature["shape"]), feature.get("names")
        first = names[0] if isinstance(names, list) and names else ""
        return (*shape[1:], shape[0]) if len(shape) == 3 and str(first).startswith("channel") else shape

    def described(self, name: str) -> str:
        """A feature's shape and names, or which there are."""
        if name not in self.features:
            same = [each for each in self.features if each.rpartition(".")[0] == name.rpartition(".")[0]]
            return f"none ({', '.join(same) or 'no such'} there)"
        names = self.features[name].get("names")
        listed = names if isinstance(names, list) else next(iter(names.values()), []) if isinstance(names, dict) else []
        size = "x".join(map(str, self.shape(name)))
        return f"{size} ({', '.join(map(str, listed))})" if listed and len(self.shape(name)) == 1 else size

    def left(self, used: Iterable[str]) -> list[str]:
        """The features that an import does not take."""
        return sorted(self.features.keys() - {*OURS, *used})

    # An episode
    @cached_property
    def _starts(self) -> np.ndarray:
        numbers = self.table["episode_index"].to_numpy()
        return np.searchsorted(numbers, np.arange(len(self.rows) + 1))

    def columns(self, number: int) -> dict[str, np.ndarray]:
        """Everything but pictures, a row a frame."""
        begin, end = self._starts[number], self._starts[number + 1]
        expected = self.rows[number]["length"]
        if end - begin != expected or expected < 1:
            raise EpisodeError(f"{self.root}: expected {expected} frames of episode {number}, got {end - begin}")
        part = self.table.slice(begin, end - begin)
        return {name: np.asarray(part[name].to_pylist()) for name in part.column_names if name in OURS}

    def said(self, number: int) -> dict[str, Any]:
        """What our own export says of it."""
        return self.own["episodes"][number] if self.own else {}

    def instructions(self, columns: dict[str, np.ndarray], length: int) -> tuple[str, ...]:
        """What was asked for, (length + 1,); what follows the last action is as before."""
        numbers = columns["task_index"].ravel().tolist() if "task_index" in columns else [0] * length
        return tuple([self.sentences.get(int(number), "") for number in [*numbers, numbers[-1]]])

    def pictures(self, key: str, number: int, length: int) -> np.ndarray:
        """Of a camera, (length + 1, H, W, 3) uint8; what follows the last action is the last picture, but in our own."""
        if self.features[key]["dtype"] == "image":
            begin = self._starts[number]
            found = [_decoded(cell) for cell in self.table[key].slice(begin, length).to_pylist()]
        else:
            found = self._frames(key, number, length + bool(self.own))
        return np.stack(found if len(found) > length else [*found, found[-1]])

    def _frames(self, key: str, number: int, count: int) -> list[np.ndarray]:
        row, part = self.rows[number], f"videos/{key}"
        path = self.root / self.info["video_path"].format(
            video_key=key, chunk_index=row[f"{part}/chunk_index"], file_index=row[f"{part}/file_index"])
        if key not in self.videos or self.videos[key].path != path:
            self.videos[key] = Pictures(path)
        return self.videos[key].take(round(row[f"{part}/from_timestamp"] * self.fps), count)


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = [row for file in sorted(folder.glob("**/*.parquet")) for row in pq.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: row["episode_index"])


def _table(folder: Path) -> pa.Table:
    files = sorted(folder.glob("**/*.parquet"))
    if not files:
        raise FileNotFoundError(f"no Parquet file in {folder}")
    return pa.concat_tables([pq.read_table(file) for file in files]).sort_by("index")


def _decoded(cell: dict[str, Any]) -> np.ndarray:
    import cv2

    pixels = cv2.imdecode(np.frombuffer(cell["bytes"], np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
