"""The files of an exported LeRobot data set, number by number."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import SPECS, Spool
from tests.messages import record

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
av = pytest.importorskip("av")
from rlinf_core.data.lerobot import export as exporting  # noqa: E402
from rlinf_core.data.lerobot.export import DatasetWriter, export  # noqa: E402
from rlinf_core.data.lerobot.video import VideoWriter  # noqa: E402

FRONT, WRIST = (f"observation.images.{name}" for name in ("front", "wrist"))
VECTORS = ("tcp_position", "tcp_velocity", "force", "socket_offset")


def darker(topic, number, message):
    """The front camera is darker by the second time step, and the wrist's is of one colour."""
    if topic == "timestep":
        front, wrist = message.images
        front.data[:] = 100 - 10 * number
        wrist.data[:] = np.tile(np.array([10, 20, 30], np.uint8), wrist.height * wrist.width)
        message.instruction = "push" if number < 4 else "pull"


@pytest.fixture
def spec(task):
    return task.with_images({"front": (16, 32), "wrist": (32, 16)}).spec


@pytest.fixture
def spool(tmp_path, spec):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    spool.attachments = lambda: {SPECS: json.dumps(spec.to_dict()).encode()}
    sources = {0: "operator", 2: ""}
    record(spool, spec, "a-1", steps=5, sources=sources, change=darker).close()
    record(spool, spec, "a-2", steps=3, success=False, start=9.0, change=darker).close()
    return spool


@pytest.fixture
def root(spool, tmp_path):
    assert export([spool.root], tmp_path / "set") == (2, 8)
    return tmp_path / "set"


def document(root, name):
    return json.loads((root / f"meta/{name}.json").read_text())


def test_the_description_is_that_of_lerobots_layout(root, spec):
    def scalar(dtype, size=1, names=None):
        return {"dtype": dtype, "shape": [size], "names": names}

    def camera(height, width):
        return {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": height,
                "video.width": width,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": 10,
                "video.channels": 3,
                "has_audio": False,
            },
        }

    state = [f"{item.name}.{index}" for item in spec.vectors for index in range(3)]
    assert document(root, "info") == {
        "codebase_version": "v3.0",
        "robot_type": "a",
        "total_episodes": 2,
        "total_frames": 8,
        "total_tasks": 2,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": 10,
        "splits": {"train": "0:2"},
        "features": {
            "action": scalar("float32", 3, ["dx", "dy", "dz"]),
            "next.reward": scalar("float32"),
            "next.done": scalar("bool"),
            "next.success": scalar("bool"),
            "complementary_info.is_intervention": scalar("bool"),
            "timestamp": scalar("float32"),
            "frame_index": scalar("int64"),
            "episode_index": scalar("int64"),
            "index": scalar("int64"),
            "task_index": scalar("int64"),
            "observation.state": scalar("float32", 12, state),
            FRONT: camera(16, 32),
            WRIST: camera(32, 16),
        },
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }


def test_every_frame_has_its_row_in_the_types_that_lerobot_reads(root):
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "action": "fixed_size_list<element: float>[3]",
        "next.reward": "float",
        "next.done": "bool",
        "next.success": "bool",
        "complementary_info.is_intervention": "bool",
        "timestamp": "float",
        "frame_index": "int64",
        "episode_index": "int64",
        "index": "int64",
        "task_index": "int64",
        "observation.state": "fixed_size_list<element: float>[12]",
    }
    values = table.to_pydict()
    steps = [0, 1, 2, 3, 4, 0, 1, 2]
    assert values["frame_index"] == steps and values["index"] == list(range(8))
    assert values["episode_index"] == [0] * 5 + [1] * 3
    assert values["timestamp"] == pytest.approx([step / 10 for step in steps], abs=1e-7)
    assert values["task_index"] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert values["next.done"] == [step == 4 or row == 7 for row, step in enumerate(steps)]
    assert values["next.success"] == [row == 4 for row in range(8)]
    assert values["next.reward"] == [float(row == 4) for row in range(8)]
    assert values["complementary_info.is_intervention"] == [row == 0 for row in range(8)]
    assert np.array(values["action"]) == pytest.approx(
        np.array([[0.02, 0.0, 0.001 * step] for step in steps])
    )
    state = [[float(step + 9 * (row > 4))] * 12 for row, step in enumerate(steps)]
    assert values["observation.state"] == state


def test_an_episode_s_row_names_its_places_and_its_statistics(root):
    rows = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    places = [
        {name: value for name, value in row.items() if not name.startswith("stats/")}
        for row in rows
    ]

    def place(number, tasks, begin, length, video_begin):
        row = {
            "episode_index": number,
            "tasks": tasks,
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": begin,
            "dataset_to_index": begin + length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for key in (FRONT, WRIST):
            row |= {
                f"videos/{key}/chunk_index": 0,
                f"videos/{key}/file_index": 0,
                f"videos/{key}/from_timestamp": pytest.approx(video_begin),
                f"videos/{key}/to_timestamp": pytest.approx(video_begin + length / 10),
            }
        return row

    assert places == [
        place(0, ["push", "pull"], 0, 5, 0.0),
        place(1, ["push"], 5, 3, 0.6),  # behind the last observation of the first
    ]
    first, second = rows
    assert first["stats/action/count"] == [5] and second["stats/frame_index/mean"] == [1.0]
    assert second["stats/observation.state/mean"] == [10.0] * 12
    assert second["stats/observation.state/std"] == pytest.approx([np.std([0, 1, 2])] * 12)
    assert first["stats/action/max"] == pytest.approx([0.02, 0.0, 0.004])
    assert first[f"stats/{FRONT}/count"] == [5] and second[f"stats/{FRONT}/count"] == [3]
    mean = np.mean([100, 90, 80, 70, 60]) / 255  # not the one after the last action
    assert first[f"stats/{FRONT}/mean"] == [[[pytest.approx(mean)]]] * 3
    assert second[f"stats/{FRONT}/min"] == [[[pytest.approx(80 / 255)]]] * 3
    assert first[f"stats/{WRIST}/max"] == [[[pytest.approx(v / 255)]] for v in (10, 20, 30)]


def test_the_statistics_of_the_set_are_those_of_all_frames(root):
    stats = document(root, "stats")
    assert set(stats) == {*document(root, "info")["features"]}
    quantiles = {"q01", "q10", "q50", "q90", "q99"}
    for name, numbers in stats.items():
        assert numbers.keys() == {"count", "mean", "std", "min", "max"} | quantiles, name
        assert numbers["count"] == [8]
    assert stats["index"]["mean"] == [3.5] and stats["episode_index"]["mean"] == [0.375]
    assert stats["action"]["mean"] == pytest.approx([0.02, 0.0, 0.001 * 13 / 8])
    greys = np.array([100, 90, 80, 70, 60, 100, 90, 80]) / 255
    for channel in range(3):
        assert stats[FRONT]["mean"][channel] == [[pytest.approx(greys.mean())]]
        assert stats[FRONT]["std"][channel] == [[pytest.approx(greys.std())]]
        assert stats[FRONT]["min"][channel] == [[pytest.approx(60 / 255)]]
        assert stats[FRONT]["q50"][channel] == [[pytest.approx(80 / 255)]]


def test_what_frames_cannot_hold_is_beside_them(root, spool, spec):
    read = [read_episode(spool.root / "closed" / name) for name in ("a-1", "a-2")]
    last = [{name: [float(at)] * 3 for name in VECTORS} for at in (5, 12)]
    assert document(root, "rlinf") == {
        "actions": "requested",
        "spec": spec.to_dict(),
        "episodes": [
            {
                "id": episode.id,
                "station": "a",
                "mode": "train",
                "seed": 3,
                "outcome": outcome,
                "policy_version": 4,
                "spec_hash": spec.hash,
                "limits_hash": "beef",
                "sources": list(episode.sources),
                "stamps_ns": [100_000_000 * step for step in range(len(episode) + 1)],
                "final_observation": final,
            }
            for episode, outcome, final in zip(read, ("success", "time limit"), last, strict=True)
        ],
    }


def test_pandas_finds_the_tasks_by_their_texts(root):
    table = pq.read_table(root / "meta/tasks.parquet")
    assert table.to_pydict() == {"task_index": [0, 1], "task": ["push", "pull"]}
    assert str(table.schema.field("task_index").type) == "int64"

    def column(name, kind, numpy_kind):
        return {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": numpy_kind,
            "metadata": None,
        }

    assert json.loads(table.schema.metadata[b"pandas"]) == {
        "index_columns": ["task"],
        "column_indexes": [],
        "pandas_version": "2.0.0",
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
    }


def test_executed_actions_are_named_so(spool, tmp_path):
    export([spool.root], tmp_path / "set", executed=True)
    assert document(tmp_path / "set", "rlinf")["actions"] == "executed"
    table = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet").to_pydict()
    assert np.array(table["action"])[:, 0] == pytest.approx(0.01)


def test_a_new_video_begins_where_one_is_large_enough(spool, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "VIDEO_BYTES", 100)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    videos_begun = []
    begin = VideoWriter.__init__

    def noted(video, path, fps, shape, threads):
        videos_begun.append((path.relative_to(tmp_path / "set").as_posix(), fps, shape, threads))
        begin(video, path, fps, shape, threads)

    monkeypatch.setattr(VideoWriter, "__init__", noted)
    data = DatasetWriter(tmp_path / "set", spec, False)
    first, second = (read_episode(spool.root / "closed" / name) for name in ("a-1", "a-2"))
    data.add(first)
    data._wait_for_encoders()
    # as if the encoder had written them already
    for videos in data.videos.values():
        size = os.path.getsize(videos[0].path)
        assert size <= 100, "the encoder holds its pictures back"
        videos[0]._file.close()
        videos[0].path.write_bytes(b"x" * 101)
        monkeypatch.setattr(videos[0], "close", lambda: None)
    data.add(second)
    data.close()
    names = [
        (f"videos/{key}/chunk-000/file-{number:03d}.mp4", 10, shape, 4)
        for number in (0, 1)
        for key, shape in ((FRONT, (16, 32, 3)), (WRIST, (32, 16, 3)))
    ]
    assert videos_begun == names
    assert [row[f"videos/{FRONT}/file_index"] for row in data.rows] == [0, 1]
    assert [row[f"videos/{FRONT}/from_timestamp"] for row in data.rows] == [0.0, 0.0]
    assert [row[f"videos/{FRONT}/to_timestamp"] for row in data.rows] == [0.5, 0.3]
    with av.open(str(tmp_path / f"set/videos/{FRONT}/chunk-000/file-001.mp4")) as file:
        greys = [frame.to_ndarray(format="rgb24").mean() for frame in file.decode(video=0)]
    assert greys == pytest.approx([100, 90, 80, 70], abs=2)


@pytest.mark.parametrize("size", [(15, 32), (16, 31)])
def test_pictures_of_an_odd_size_are_refused(task, tmp_path, size):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    record(spool, task.with_images({"front": size}).spec, "a-1").close()
    message = f"'{FRONT}': expected pictures of even height and width, as yuv420p requires, got "
    with pytest.raises(EpisodeError, match=f"{message}{size[0]}x{size[1]}"):
        export([spool.root], tmp_path / "set")
    assert not list(tmp_path.glob("set*"))


@pytest.mark.parametrize("hz", [12.5, 0.5, 0.0])
def test_a_rate_that_is_no_whole_number_is_refused(spec, tmp_path, hz):
    with pytest.raises(
        EpisodeError,
        match=f"expected a whole number of time steps per second, as LeRobot requires, got {hz:g}. "
        "A recording without specs gives this rate from its stamps. Name its recipe with --recipe",
    ):
        DatasetWriter(tmp_path, replace(spec, control_hz=hz), False)
    assert DatasetWriter(tmp_path, replace(spec, control_hz=1.0), False).fps == 1
