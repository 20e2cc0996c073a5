"""A LeRobot data set as it is read: its files, features, frames, times, tasks and pictures."""

import json
import re

import numpy as np
import pytest

from rlinf_core.core.errors import EpisodeError

pa = pytest.importorskip("pyarrow")
pytest.importorskip("av")
from rlinf_core.data.lerobot.reading import DatasetReader  # noqa: E402
from tests.data.lerobot_sets import (  # noqa: E402
    ACTION,
    CAMERAS,
    FPS,
    LENGTHS,
    STATE,
    OddSet,
    parquet,
    png,
    video,
)

FRONT, WRIST = CAMERAS
DELETE = "lerobot-edit-dataset --operation.type delete_episodes"
CONVERT = "LeRobot converts older ones: lerobot.datasets.v30.convert_dataset_v21_to_v30"
LEAVE = f". Nothing was written. Correct the data set, or leave the episode out: {DELETE}"


def written(folder, change=lambda odd: None, images=True):
    odd = OddSet().with_images() if images else OddSet()
    change(odd)
    return odd, odd.write(folder / "set")


def read(folder, change=lambda odd: None, images=True):
    return DatasetReader(written(folder, change, images)[1])


def message_of(call, *arguments):
    with pytest.raises(EpisodeError) as refused:
        call(*arguments)
    return str(refused.value)


def test_a_set_is_read_in_its_parts(tmp_path):
    odd, root = written(tmp_path)
    data = DatasetReader(root)
    assert len(data) == 3 and data.fps == FPS and data.sentences == {0: "put it in"}
    assert data.root == root and data.instruction == "" and data.metadata == {}
    assert data.starts.tolist() == [0, 6, 11] and data.ends.tolist() == [6, 11, 18]
    assert [data.index(number) for number in range(3)] == [0, 1, 2]
    assert data.features == odd.info["features"] and data.info == odd.info
    assert data.names("action") == ACTION and data.names("observation.state") == STATE
    assert data.names("timestamp") == [] == data.names("nothing")
    assert data.episode_metadata(1) == {}
    assert data.unused_features([FRONT]) == [WRIST] and data.unused_features([]) == [FRONT, WRIST]
    columns = data.columns(1)
    for name in ("action", "observation.state"):
        assert np.array_equal(columns[name], np.array(odd.columns[name][6:11])), name
    assert columns["frame_index"].tolist() == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert columns["index"][:, 0].tolist() == [6, 7, 8, 9, 10]
    assert columns.keys() == {
        "action",
        "observation.state",
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    }


@pytest.mark.parametrize(
    "dtype, shape, names, expected",
    [
        ("float32", [7], None, (7,)),
        ("video", [48, 64, 3], ["height", "width", "channels"], (48, 64, 3)),
        ("video", [3, 48, 64], ["channels", "height", "width"], (48, 64, 3)),
        ("video", [3, 48, 64], ["channel", "height", "width"], (48, 64, 3)),
        ("image", [64, 48, 3], ["width", "height", "channel"], (48, 64, 3)),
        ("image", [3, 64, 48], ["channel", "width", "height"], (48, 64, 3)),
        ("image", [3, 48, 64], None, (48, 64, 3)),
        ("image", [1, 48, 64], ["a", "b", "c"], (48, 64, 1)),
        ("image", [4, 48, 64], None, (48, 64, 4)),
        ("image", [3, 48, 3], None, (3, 48, 3)),
        ("image", [48, 64, 3], None, (48, 64, 3)),
        ("image", [2, 48, 64], None, (2, 48, 64)),
        ("image", [48, 64], ["height", "width"], (48, 64)),
        ("float32", [3, 48, 64], ["channels", "height", "width"], (3, 48, 64)),
    ],
)
def test_the_shape_of_pictures_is_height_width_channels(tmp_path, dtype, shape, names, expected):
    def change(odd):
        odd.info["features"]["more"] = {"dtype": dtype, "shape": shape, "names": names}

    data = read(tmp_path, change)
    assert data.shape("more") == expected and data.shape("nothing") == ()
    assert data.describe_feature("more") == "x".join(map(str, expected))


def test_a_feature_is_described_with_its_names_or_with_its_neighbours(tmp_path):
    data = read(tmp_path)
    assert (
        data.describe_feature("action") == "3 (dx, dy, dz)"
        and data.describe_feature("timestamp") == "1"
    )
    assert data.describe_feature(FRONT) == "48x48x3"
    assert data.describe_feature("observation.images.side") == f"none ({FRONT}, {WRIST} there)"
    assert data.describe_feature("other.state") == "none (no such there)"


@pytest.mark.parametrize(
    "more, depth",
    [
        ({}, False),
        ({"info": {"video.is_depth_map": True}}, True),
        ({"info": {"is_depth_map": True}}, True),
        ({"video_info": {"is_depth_map": True}}, True),
        ({"info": None, "video_info": {"video.is_depth_map": True}}, True),
        ({"info": {"video.is_depth_map": False, "is_depth_map": True}}, False),
    ],
)
def test_distances_are_told_from_colours(tmp_path, more, depth):
    def change(odd):
        odd.info["features"][FRONT] |= more

    data = read(tmp_path, change)
    assert data.is_depth(FRONT) is depth and data.is_depth("nothing") is False


def info(**changes):
    return lambda odd: odd.info.update(changes)


def feature(value):
    return lambda odd: odd.info["features"].update({"a\x1b": value})


def shape_error(shown):
    return (
        "meta/info.json: feature 'a\\x1b': expected a dtype and a shape of whole numbers, got "
        + shown
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (
            info(codebase_version="v2.1"),
            f"codebase_version: expected v3.0 of LeRobot's layout, got 'v2.1'. {CONVERT}",
        ),
        (
            lambda odd: odd.info.pop("codebase_version"),
            f"codebase_version: expected v3.0 of LeRobot's layout, got ''. {CONVERT}",
        ),
        (
            lambda odd: odd.info.pop("features"),
            "meta/info.json: features: expected an object, got none",
        ),
        (info(features=[]), "meta/info.json: features: expected an object, got list"),
        (feature(3), shape_error("3")),
        (feature({"dtype": "a"}), shape_error("{'dtype': 'a'}")),
        (feature({"shape": [1]}), shape_error("{'shape': [1]}")),
        (
            feature({"dtype": "a", "shape": [1.5]}),
            shape_error("{'dtype': 'a', 'shape': [1.5]}"),
        ),
        (feature("x" * 300), shape_error("x" * 200)),
        (info(fps=0), "meta/info.json: fps: expected a number above 0, got 0"),
        (info(fps=-1), "meta/info.json: fps: expected a number above 0, got -1"),
        (info(fps="fast\x1b"), "meta/info.json: fps: expected a number above 0, got fast\\x1b"),
        (info(fps=float("inf")), "meta/info.json: fps: expected a number above 0, got inf"),
        (
            lambda odd: odd.info.pop("fps"),
            "meta/info.json: fps: expected a number above 0, got none",
        ),
        (
            lambda odd: odd.rows[1].update(length=None),
            "meta/episodes: expected an integer 'length' of each episode, got None",
        ),
        (
            lambda odd: [row.pop("episode_index") for row in odd.rows],
            "meta/episodes: expected an integer 'episode_index' of each episode, got none",
        ),
        (
            lambda odd: odd.rows[2].update(episode_index=1),
            "meta/episodes: expected each episode once, got several rows of episode 1. Are there "
            "files of two data sets in one folder?",
        ),
        (
            lambda odd: odd.rows.clear() or odd.rows.append({"episode_index": 0, "length": 6}),
            "data/: expected frames of the episodes in meta/episodes (0), got some of episode 1. "
            "Are there files of two data sets in one folder?",
        ),
        (
            lambda odd: odd.columns["episode_index"].__setitem__(5, None),
            "feature 'episode_index': expected a column of data/ with a number in each row, got 1 "
            "empty rows of it",
        ),
        (
            lambda odd: odd.columns.pop("episode_index"),
            "feature 'episode_index': expected a column of data/ with a number in each row, got none",
        ),
        (
            lambda odd: (odd.columns.pop("frame_index"), odd.columns.pop("index")),
            "expected a column 'frame_index' or 'index' in data/ for the order of the frames, got "
            f"action, observation.state, timestamp, episode_index, task_index, {FRONT}, {WRIST}",
        ),
        (
            lambda odd: setattr(odd, "tasks", pa.table({"task_index": [0]})),
            "expected an intact LeRobot data set, got: meta/tasks.parquet: expected a column or an "
            "index 'task' with the texts, got task_index",
        ),
    ],
)
def test_a_set_that_cannot_be_read_is_refused_in_full(tmp_path, change, message):
    _, root = written(tmp_path, change)
    assert message_of(DatasetReader, root) == f"{root}: {message}"


def test_files_that_are_missing_broken_or_of_another_layout_are_named(tmp_path):
    _, root = written(tmp_path)
    (root / "data/chunk-000/file-000.parquet").rename(tmp_path / "kept")
    assert message_of(DatasetReader, root) == (
        f"{root}: expected an intact LeRobot data set, got: no Parquet file in {root}/data"
    )
    (tmp_path / "kept").rename(root / "data/chunk-000/file-000.parquet")
    episodes = root / "meta/episodes/chunk-000/file-000.parquet"
    episodes.rename(tmp_path / "kept")
    assert (
        message_of(DatasetReader, root)
        == f"{root}: meta/episodes: expected at least one episode, got none"
    )
    (root / "meta/episodes").rename(root / "meta/other")
    (root / "meta/episodes.jsonl").write_text("{}")
    assert message_of(DatasetReader, root) == (
        f"{root}: expected meta/episodes of LeRobot's layout v3.0, got episodes.jsonl of v2.1, "
        f"though meta/info.json says v3.0. Set codebase_version there to v2.1, then convert it. "
        f"{CONVERT}"
    )
    (root / "meta/info.json").write_text("[]")
    assert (
        message_of(DatasetReader, root)
        == f"{root}: meta/info.json: expected a JSON object, got list"
    )
    (root / "meta/info.json").write_text("{")
    assert message_of(DatasetReader, root).startswith(
        f"{root}: expected a LeRobot data set, got no meta/info.json in readable form: "
        "Expecting property name"
    )


def test_files_of_data_with_other_columns_are_named(tmp_path):
    _, root = written(tmp_path)
    other = pa.table({"episode_index": [2], "frame_index": [0]})
    parquet(root / "data/chunk-000/file-001.parquet", other)
    assert message_of(DatasetReader, root) == (
        f"{root}: expected the same columns in each file of data/, got 'action' in only one of "
        "data/chunk-000/file-000.parquet and data/chunk-000/file-001.parquet"
    )


def test_rows_in_any_order_and_episodes_of_any_index_are_put_in_order(tmp_path):
    plain = OddSet()

    def change(odd):
        order = [17, *range(16, -1, -1)]
        for name, cells in odd.columns.items():
            odd.columns[name] = [cells[row] for row in order]
        odd.columns["episode_index"] = [(2, 5, 30)[index] for index in odd.columns["episode_index"]]
        for row in odd.rows:
            row["episode_index"] = (2, 5, 30)[row["episode_index"]]
        odd.rows.reverse()

    data = read(tmp_path, change)
    assert [data.index(number) for number in range(3)] == [2, 5, 30]
    begin = 0
    for number, length in enumerate(LENGTHS):
        assert (
            data.columns(number)["action"].tolist()
            == plain.columns["action"][begin : begin + length]
        )
        begin += length


def put(name, row, value):
    return lambda odd: odd.columns[name].__setitem__(row, value)


@pytest.mark.parametrize(
    "change, number, message",
    [
        (
            put("frame_index", 8, 5),
            1,
            "feature 'frame_index': episode 1, frame 2: expected 2, since frames count from 0, got "
            f"3. A frame is missing or occurs twice{LEAVE}",
        ),
        (
            put("index", 8, 7),
            1,
            "feature 'index': episode 1, frame 2: expected a number above 7, that of the previous "
            f"frame, got 7{LEAVE}",
        ),
        (
            put("timestamp", 9, 0.3125),
            1,
            "feature 'timestamp': episode 1, frame 3: expected 0.3000 s, 0.1 s after the previous "
            f"frame, got 0.3125 s. Was recording interrupted?{LEAVE}",
        ),
        (
            lambda odd: odd.rows[1].update(length=6),
            1,
            "expected 6 frames of episode 1, got 5. Nothing was written. Download the set again, or "
            f"leave the episode out: {DELETE}",
        ),
        (
            lambda odd: odd.rows.append({"episode_index": 8, "length": 0}),
            3,
            f"episode 8 has no frames. Nothing was written. Leave it out: {DELETE}",
        ),
        (
            put("action", 12, [0.0, float("nan"), 1.0]),
            2,
            f"feature 'action': episode 2, frame 1: expected 3 finite numbers, got [0.0, nan, 1.0]{LEAVE}",
        ),
        (
            lambda odd: odd.columns.pop("timestamp"),
            0,
            "feature 'timestamp': expected a column of that name in data/, got action, "
            f"observation.state, frame_index, episode_index, index, task_index, {FRONT}, {WRIST}",
        ),
        (
            lambda odd: odd.columns.pop("observation.state"),
            0,
            "feature 'observation.state': expected a column of that name in data/, got action, "
            f"timestamp, frame_index, episode_index, index, task_index, {FRONT}, {WRIST}",
        ),
    ],
)
def test_an_episode_that_contradicts_itself_is_refused_in_full(tmp_path, change, number, message):
    _, root = written(tmp_path, change)
    data = DatasetReader(root)
    assert message_of(data.columns, number) == f"{root}: {message}"


def test_stamps_are_on_the_grid_where_they_are_near_it(tmp_path):
    data = read(tmp_path)

    def stamps(*times):
        return data.stamps_s({"timestamp": np.array(times)[:, None]}).tolist()

    assert stamps(3.0, 3.1, 3.2) == pytest.approx([0.0, 0.1, 0.2, 0.3], abs=1e-12)
    assert stamps(0.0, 0.10009, 0.2) == [0.0, 0.1, 0.2, 0.3]
    assert stamps(0.0, 0.102, 0.2) == pytest.approx([0.0, 0.102, 0.2, 0.3], abs=1e-12)
    assert stamps(0.0, 0.1, 0.205) == pytest.approx([0.0, 0.1, 0.205, 0.305], abs=1e-12)


def test_times_a_tenth_of_a_step_beside_their_place_are_read_and_more_is_refused(tmp_path):
    data = read(tmp_path, put("timestamp", 9, 0.3099))
    assert data.columns(1)["timestamp"][3, 0] == pytest.approx(0.3099)
    with pytest.raises(EpisodeError, match="'timestamp': episode 1, frame 3"):
        read(tmp_path / "b", put("timestamp", 9, 0.3101)).columns(1)


def two_tasks(odd):
    odd.tasks = pa.table({"task_index": [5, 2], "task": ["push", "pull"]})
    odd.columns["task_index"] = [5] * 8 + [2] * 10


def test_each_frame_has_its_instruction_and_the_last_one_twice(tmp_path):
    data = read(tmp_path, two_tasks)
    assert data.instructions(data.columns(0), 0) == ("push",) * 7
    assert data.instructions(data.columns(1), 1) == ("push",) * 2 + ("pull",) * 4
    data.instruction = "turn"
    assert data.instructions(data.columns(1), 1) == ("turn",) * 6
    data.instruction = ""
    data.sentences = {5: "push", 3: "other"}
    assert message_of(data.instructions, data.columns(1), 1) == (
        f"{data.root}: feature 'task_index': episode 1, frame 2: expected a task of "
        "meta/tasks.parquet (3, 5), got 2; --instruction sets one for all episodes" + LEAVE
    )
    data.sentences = {index: "x" for index in range(7, 18)}
    assert "(11 of 7 to 17), got 5;" in message_of(data.instructions, data.columns(0), 0)
    data.sentences = {index: "x" for index in range(7, 17)}
    assert "(7, 8, 9, 10, 11, 12, 13, 14, 15, 16), got 5;" in message_of(
        data.instructions, data.columns(0), 0
    )


def test_without_a_column_of_tasks_the_only_one_counts(tmp_path):
    data = read(tmp_path, lambda odd: odd.columns.pop("task_index"))
    assert data.instructions(data.columns(1), 1) == ("put it in",) * 6
    data.sentences = {4: "push"}
    assert data.instructions(data.columns(1), 1) == ("push",) * 6
    data.sentences = {4: "push", 5: "pull"}
    assert message_of(data.instructions, data.columns(1), 1) == (
        f"{data.root}: feature 'task_index': expected a column of data/, since there are 2 tasks, "
        "got none. --instruction sets one for all episodes"
    )


def greys(images):
    assert images.dtype == np.uint8 and images.shape[1:] == (48, 48, 3)
    return images.mean((1, 2, 3))


@pytest.mark.parametrize("images", [True, False], ids=["columns", "videos"])
def test_pictures_are_those_of_the_episode_and_the_last_one_comes_twice(tmp_path, images):
    data = read(tmp_path, images=images)
    times = data.columns(1)["timestamp"][:, 0]
    for camera in (FRONT, WRIST, FRONT):
        got = greys(data.pictures(camera, 1, times))
        assert got == pytest.approx([34, 38, 42, 46, 50, 50], abs=1.5)
    assert greys(data.pictures(FRONT, 0, data.columns(0)["timestamp"][:, 0]))[0] == pytest.approx(
        10, abs=1.5
    )


def test_in_our_own_set_a_picture_follows_the_last_frame(tmp_path):
    _, root = written(tmp_path, images=False)
    extra = {"episodes": [{"sources": ["policy"] * length} for length in LENGTHS], "spec": {"a": 1}}
    (root / "meta/rlinf.json").write_text(json.dumps(extra))
    data = DatasetReader(root)
    assert data.metadata == extra and data.episode_metadata(2) == {"sources": ["policy"] * 7}
    got = greys(data.pictures(FRONT, 0, data.columns(0)["timestamp"][:, 0]))
    assert got == pytest.approx([10, 14, 18, 22, 26, 30, 34], abs=1.5)
    extra["episodes"][1]["sources"].pop()  # a tool has changed the set, and not this file
    (root / "meta/rlinf.json").write_text(json.dumps(extra))
    assert DatasetReader(root).metadata == {}


def test_a_column_of_pictures_that_is_missing_or_broken_is_named(tmp_path):
    def change(odd):
        del odd.columns[WRIST]
        odd.columns[FRONT][8] = {"bytes": b"abc", "path": None}
        odd.columns[FRONT][12] = {"bytes": png(9, (24, 32, 3)), "path": None}

    data = read(tmp_path, change)
    times = [data.columns(number)["timestamp"][:, 0] for number in range(3)]
    assert message_of(data.pictures, WRIST, 0, times[0]) == (
        f"{data.root}: feature '{WRIST}': expected a column of that name in data/, got none"
    )
    assert message_of(data.pictures, FRONT, 1, times[1]) == (
        f"{data.root}: feature '{FRONT}': episode 1, frame 2: expected a picture (PNG or JPEG), "
        "got 3 bytes that cannot be decoded" + LEAVE
    )
    assert message_of(data.pictures, FRONT, 2, times[2]) == (
        f"{data.root}: feature '{FRONT}': episode 2, frame 1: expected a picture of 48x48x3, as in "
        "meta/info.json, got 24x32x3" + LEAVE
    )


def front(**changes):
    return lambda odd: odd.rows[1].update(
        {f"videos/{FRONT}/{name}": value for name, value in changes.items()}
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (
            front(chunk_index=None),
            f"feature '{FRONT}': episode 1: expected its 'videos/{FRONT}/chunk_index' in "
            "meta/episodes, got none",
        ),
        (
            front(file_index=None),
            f"feature '{FRONT}': episode 1: expected its 'videos/{FRONT}/file_index' in "
            "meta/episodes, got none",
        ),
        (
            front(to_timestamp=0.9),
            f"feature '{FRONT}': episode 1, frame 3: expected a picture at 0.3000 s, got a video of "
            f"0.3000 s for this episode (to_timestamp){LEAVE}",
        ),
        (
            info(video_path="videos/{camera}.mp4"),
            "meta/info.json: video_path: expected a pattern with video_key, chunk_index and "
            "file_index, got videos/{camera}.mp4",
        ),
        (
            lambda odd: odd.info.pop("video_path"),
            "meta/info.json: video_path: expected a pattern with video_key, chunk_index and "
            "file_index, got none",
        ),
        (
            lambda odd: odd.videos[FRONT].__delitem__(slice(8, 10)),
            f"feature '{FRONT}': episode 1, frame 2: expected a picture at 0.8000 s of "
            f"videos/{FRONT}/chunk-000/file-000.mp4, within 0.0100 s, got the nearest at "
            f"0.7000 s{LEAVE}",
        ),
    ],
)
def test_a_video_that_does_not_fit_its_episode_is_refused_in_full(tmp_path, change, message):
    _, root = written(tmp_path, change, images=False)
    data = DatasetReader(root)
    times = data.columns(1)["timestamp"][:, 0]
    assert message_of(data.pictures, FRONT, 1, times) == f"{root}: {message}"


def test_an_episode_may_have_a_file_of_its_own_and_no_end(tmp_path):
    def change(odd):
        odd.rows[1] |= {
            f"videos/{FRONT}/chunk_index": 2,
            f"videos/{FRONT}/file_index": 13,
            f"videos/{FRONT}/from_timestamp": 1.0,
            f"videos/{FRONT}/to_timestamp": None,
        }

    _, root = written(tmp_path, change, images=False)
    path = root / f"videos/{FRONT}/chunk-002/file-013.mp4"
    video(path, [(1.0 + number / FPS + 0.009, 200 - 20 * number) for number in range(9)])
    data = DatasetReader(root)
    times = data.columns(1)["timestamp"][:, 0]
    assert greys(data.pictures(FRONT, 1, times)) == pytest.approx(
        [200, 180, 160, 140, 120, 120], abs=1.5
    )
    assert data.videos[FRONT].path == path and data.videos.keys() == {FRONT}
    assert greys(data.pictures(FRONT, 0, times[:2])) == pytest.approx([10, 14, 14], abs=1.5)
    path.unlink()
    video(path, [(1.0 + number / FPS + 0.011, 200) for number in range(9)])
    with pytest.raises(EpisodeError, match=re.escape("within 0.0100 s, got the nearest at 1.0")):
        DatasetReader(root).pictures(FRONT, 1, times)
    path.unlink()
    video(path, [])
    with pytest.raises(EpisodeError):
        DatasetReader(root).pictures(FRONT, 1, times)
