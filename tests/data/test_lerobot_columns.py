"""Columns, names, tasks, pictures and videos of LeRobot data sets, each by itself."""

import json
import re

import cv2
import numpy as np
import pytest

from rlinf_core.core.errors import EpisodeError

pa, av = pytest.importorskip("pyarrow"), pytest.importorskip("av")
from rlinf_core.data.lerobot.columns import (  # noqa: E402
    column_order,
    first_fault,
    flatten_names,
    read_task_texts,
    to_numbers,
)
from rlinf_core.data.lerobot.video import VideoReader, VideoWriter, decode_image  # noqa: E402
from tests.data.lerobot_sets import png, video  # noqa: E402


def column(values, kind=None):
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize(
    "values, shape, expected",
    [
        ([1, 2, 3], (), [[1.0], [2.0], [3.0]]),
        ([1, 2, 3], (1,), [[1.0], [2.0], [3.0]]),
        ([[1.0, 2.0], [3.0, 4.0]], (2,), [[1.0, 2.0], [3.0, 4.0]]),
        ([[[1.0, 2.0], [3.0, 4.0]]], (2, 2), [[1.0, 2.0, 3.0, 4.0]]),
        ([True, False], (), [[1.0], [0.0]]),
        ([[1.0, 2.0], [3.0, 4.0]], (3,), None),
        ([[1.0, 2.0], [3.0]], (2,), None),
        ([1.0, float("nan")], (), None),
        ([1.0, float("-inf")], (), None),
        ([1.0, None], (), None),
        (["1", "2"], (), None),
        (["a", "b"], (), None),
    ],
)
def test_a_column_of_numbers_is_rows_of_float64_or_nothing(values, shape, expected):
    got = to_numbers(column(values), shape)
    if expected is None:
        assert got is None
    else:
        assert got.tolist() == expected and got.dtype == np.float64


@pytest.mark.parametrize(
    "values, shape, row, text",
    [
        ([1.0, None], (), 1, "expected a finite number, got an empty cell"),
        ([1.0, 2.0, float("inf")], (1,), 2, "expected a finite number, got inf"),
        ([[1.0, 2.0], [3.0]], (2,), 1, "expected 2 finite numbers, got [3.0]"),
        ([[1.0, 2.0], [3.0]], (), 1, "expected 2 finite numbers, got [3.0]"),
        ([[1.0, 2.0]], (2, 2), 0, "expected 4 finite numbers, got [1.0, 2.0]"),
        (["a" * 300], (), 0, "expected a finite number, got " + "a" * 200),
        (["a\x1b"], (), 0, "expected a finite number, got a\\x1b"),
        ([1.0, 2.0], (1,), 0, "expected a finite number, got 1.0"),
    ],
)
def test_the_first_row_at_fault_is_named_with_what_stands_there(values, shape, row, text):
    assert first_fault(column(values), shape) == (row, text)


@pytest.mark.parametrize(
    "names, expected",
    [
        (["x", "y"], ["x", "y"]),
        ([0, 1], ["0", "1"]),
        ({"motors": ["x", "y"]}, ["x", "y"]),
        ({"left": ["x"], "right": ["y", "z"]}, ["x", "y", "z"]),
        ({"y": 1, "x": 0, "z": 2}, ["x", "y", "z"]),
        ({"x": 0, "motors": ["y"]}, ["y"]),
        ([["x", "y"], "z", [["w"]]], ["x", "y", "z", "w"]),
        ({"motors": {"x": 1, "y": 0}}, ["y", "x"]),
        ({}, []),
        (None, []),
        ("xyz", []),
        (3, []),
    ],
)
def test_names_of_every_form_are_a_list_in_their_order(names, expected):
    assert flatten_names(names) == expected


@pytest.mark.parametrize(
    "expected, given, order",
    [
        (["x", "y", "z"], ["x", "y", "z"], [0, 1, 2]),
        (["x", "y", "z"], ["z", "x", "y"], [1, 2, 0]),
        (["x", "y", "z"], [], [0, 1, 2]),
        (["x", "y"], ["action_0", "action_1"], [0, 1]),
        (["x", "y"], ["action_1", "action_2"], [0, 1]),
        (["x", "y"], ["0", "1"], [0, 1]),
        (["x", "y"], ["observation.state.0", "observation.state.1"], [0, 1]),
        (["x", "y"], ["dim0", "dim1"], [0, 1]),
        (["x", "y"], ["action_1", "action_0"], None),
        (["x", "y"], ["action_2", "action_3"], None),
        (["x", "y"], ["action_0", "y"], None),
        (["x", "y"], ["motor_0", "motor_1"], None),
        (["x", "y"], ["x", "x"], None),
        (["x", "x"], ["x", "x"], None),
        (["x", "y"], ["x"], None),
        (["x", "y"], ["action_0", "action_1", "action_2"], None),
        (["x", "y"], ["x", "y", "z"], None),
        (["x"], ["action_1"], [0]),
    ],
)
def test_numbers_are_found_by_their_names_or_in_their_order(expected, given, order):
    assert column_order(expected, given) == order


def indexed(columns, *indexes):
    """Return a table as pandas writes one with these indexes."""
    table = pa.table(columns)
    return table.replace_schema_metadata({"pandas": json.dumps({"index_columns": list(indexes)})})


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"task_index": [4, 1], "task": ["push", "pull"], "other": ["a", "b"]}),
        pa.table({"task_index": [4, 1], "words": ["push", "pull"]}),
        pa.table({"task_index": [4, 1], "words": pa.array(["push", "pull"], pa.large_string())}),
        pa.table({"task_index": [4, 1], "a": ["x", "y"], "__index_level_0__": ["push", "pull"]}),
        indexed({"task_index": [4, 1], "a": ["x", "y"], "words": ["push", "pull"]}, "words"),
        indexed({"task_index": [4, 1], "words": ["push", "pull"]}, {"kind": "range"}),
        indexed({"task_index": [4, 1], "words": ["push", "pull"]}, "task_index"),
        pa.table({"task_index": [4, 1, 4], "task": ["push", "pull", "push"]}),
        pa.table({"task_index": [4.0, 1.0], "task": ["push", "pull"]}),
    ],
)
def test_the_texts_of_tasks_are_found_by_column_or_index(table):
    texts = read_task_texts(table)
    assert texts == {4: "push", 1: "pull"} and all(type(index) is int for index in texts)


@pytest.mark.parametrize(
    "table, message",
    [
        (pa.table({"task": ["push"]}), "expected a column 'task_index', got task"),
        (pa.table({}), "expected a column 'task_index', got no columns"),
        (
            pa.table({"task_index": [0], "a\x1b": ["x"], "b": ["y"]}),
            "expected a column or an index 'task' with the texts, got task_index, a\\x1b, b",
        ),
        (
            pa.table({"task_index": [0], "task": [7]}),
            "expected a column or an index 'task' with the texts, got task_index, task",
        ),
        (
            pa.table({"task_index": pa.array([0, None]), "task": ["push", "pull"]}),
            "expected a number and a text for each task, got None and pull",
        ),
        (
            pa.table({"task_index": [0, 1], "task": ["push", None]}),
            "expected a number and a text for each task, got 1 and none",
        ),
        (
            pa.table({"task_index": [3, 3], "task": ["push", "pull"]}),
            "expected each task_index once, got 3 of 'pull' and 'push'",
        ),
    ],
)
def test_tasks_without_texts_are_refused_with_the_columns_that_are_there(table, message):
    with pytest.raises(ValueError) as refused:
        read_task_texts(table)
    assert str(refused.value) == f"meta/tasks.parquet: {message}"


def test_a_video_grows_by_episodes_and_has_a_key_picture_every_second_one(tmp_path):
    one = VideoWriter(tmp_path / "videos/a/file.mp4", 5, (32, 48, 3), 1)
    greys = [20, 60, 100, 140, 180]
    pictures = np.repeat(np.array(greys, np.uint8), 32 * 48 * 3).reshape(5, 32, 48, 3)
    pictures[:, :, :24, 0] = 250  # the left half is red
    one.add(pictures[:2])
    assert one.frames == 2
    one.add(pictures[2:])
    one.close()
    assert one.frames == 5 and one.path == tmp_path / "videos/a/file.mp4"
    with av.open(str(one.path)) as file:
        stream = file.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (48, 32, 5)
        assert stream.codec_context.name == "h264" and stream.pix_fmt == "yuv420p"
        frames = list(file.decode(video=0))
    assert [frame.key_frame for frame in frames] == [True, False, True, False, True]
    assert [frame.time for frame in frames] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    for frame, picture in zip(frames, pictures, strict=True):
        got = frame.to_ndarray(format="rgb24").astype(int)
        assert np.abs(got[:, 28:] - picture[:, 28:]).max() <= 6
        assert np.abs(got[:, :20] - picture[:, :20]).max() <= 12


def test_the_nearest_picture_is_found_forwards_and_backwards(tmp_path):
    video(tmp_path / "a.mp4", [(0.0, 10), (0.1, 50), (0.2, 90), (0.5, 130)])
    pictures = VideoReader(tmp_path / "a.mp4")
    for time, grey, at in (
        (0.0, 10, 0.0),
        (0.04, 10, 0.0),
        (0.06, 50, 0.1),
        (0.1, 50, 0.1),
        (0.34, 90, 0.2),
        (0.36, 130, 0.5),
        (9.0, 130, 0.5),
        (0.11, 50, 0.1),
        (-1.0, 10, 0.0),
    ):
        image, picture_at = pictures.nearest(time)
        assert image.shape == (48, 48, 3) and image.dtype == np.uint8
        assert abs(image.mean() - grey) <= 2 and picture_at == pytest.approx(at), time


def test_a_file_that_is_no_video_is_named(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"x")
    with pytest.raises(EpisodeError, match=re.escape(f"{tmp_path}/a.mp4: expected a video, got: ")):
        VideoReader(tmp_path / "a.mp4")
    with pytest.raises(EpisodeError, match="b.mp4: expected a video, got: .*No such file"):
        VideoReader(tmp_path / "b.mp4")
    with av.open(str(tmp_path / "c.mp4"), "w") as file:  # of sound alone
        stream = file.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    with pytest.raises(EpisodeError, match="c.mp4: expected a video, got: "):
        VideoReader(tmp_path / "c.mp4")


def colours(channels):
    """Return a picture of 2 by 3 pixels as PNG: in OpenCV's order blue, green, red and alpha."""
    pixels = np.zeros((2, 3, channels), np.uint8)
    pixels[...] = (10, 20, 30, 40)[:channels]
    return cv2.imencode(".png", pixels)[1].tobytes()


def test_pictures_are_red_green_blue_whatever_their_file_holds(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(colours(3))
    for cell in (
        {"bytes": colours(3), "path": "none.png"},
        {"bytes": colours(4), "path": None},
        {"bytes": None, "path": "images/a.png"},
        {"path": "images/a.png"},
    ):
        image = decode_image(cell, tmp_path)
        assert image.shape == (2, 3, 3) and image.dtype == np.uint8
        assert (image == (30, 20, 10)).all(), cell
    grey = decode_image({"bytes": png(70, (2, 3))}, tmp_path)
    assert grey.shape == (2, 3, 3) and (grey == 70).all()


@pytest.mark.parametrize(
    "cell, message",
    [
        (None, "expected the bytes or the path of a picture, got an empty cell"),
        (b"x", "expected the bytes or the path of a picture, got an empty cell"),
        ({"bytes": None, "path": ""}, "expected the bytes or the path of a picture, got an empty"),
        ({"bytes": b"", "path": "a.png"}, "expected a picture (PNG or JPEG), got 0 bytes that"),
        ({"bytes": b"xyz"}, "expected a picture (PNG or JPEG), got 3 bytes that cannot be decoded"),
        ({"bytes": png(9, (2, 2), np.uint16)}, "expected 8 bits a channel, got uint16"),
        ({"path": "images"}, "got only the path 'images', which does not exist there"),
        ({"path": "none.png"}, "got only the path 'none.png', which does not exist there"),
        ({"path": "../outside.png"}, "got only the path '../outside.png', which does not exist"),
    ],
)
def test_a_cell_without_a_picture_is_refused_with_its_content(tmp_path, cell, message):
    (tmp_path / "set/images").mkdir(parents=True)
    (tmp_path / "outside.png").write_bytes(colours(3))
    with pytest.raises(ValueError, match=re.escape(message)):
        decode_image(cell, tmp_path / "set")
