"""Data sets of others as public bug reports describe them: each is read right, or refused by name
with a remedy.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.episodes import read_episode

pa = pytest.importorskip("pyarrow")
pytest.importorskip("av")
from tests.data.lerobot_sets import ACTION, CAMERAS, FPS, LENGTHS, RECIPE, STATE, OddSet, png, video  # noqa: E402

VENV = Path(".venvs/lerobot").resolve()
FRONT, WRIST = CAMERAS


def imported(root, tmp_path, *more):
    """Return the exit code, and the episodes in their order."""
    out = tmp_path / "new"
    code = main(["data", "import", "lerobot", str(root), "--out", str(out), *RECIPE, *more])
    assert code or not list(tmp_path.glob("new.partial"))
    return code, [
        read_episode(folder, sealed=True) for folder in sorted(out.iterdir())
    ] if out.exists() else []


def cell(name, row, value):
    """Replace one cell."""
    return lambda odd: odd.columns[name].__setitem__(row, value)


def move(odd, order):
    """Rows in another order."""
    for name, cells in odd.columns.items():
        odd.columns[name] = [cells[row] for row in order]


def without(odd, column):
    del odd.columns[column]


def reindexed(odd):
    """Episodes 0, 3 and 7 instead of 0, 1 and 2."""
    odd.change_column("episode_index", lambda index: (0, 3, 7)[index])
    for row in odd.rows:
        row["episode_index"] = (0, 3, 7)[row["episode_index"]]


def named(feature, names):
    return lambda odd: odd.info["features"][feature].update(names=names)


def permuted(odd):
    odd.info["features"]["action"]["names"] = ["dz", "dx", "dy"]
    odd.change_column("action", lambda values: [values[2], values[0], values[1]])


def state_permuted(odd):
    odd.info["features"]["observation.state"]["names"] = {"motors": STATE[::-1]}
    odd.change_column("observation.state", lambda values: values[::-1])


def wide(odd):
    """Stamps and numbers of double precision, as other writers have them."""
    odd.types = {
        "timestamp": pa.float64(),
        "action": pa.list_(pa.float64()),
        "observation.state": pa.list_(pa.float64()),
    }


def fast_video(odd):
    """30 pictures a second, in a set of 10 frames a second."""
    for camera in CAMERAS:
        odd.videos[camera] = [
            (time + part / 30, grey + part)
            for time, grey in odd.videos[camera]
            for part in range(3)
        ]
        odd.info["features"][camera]["info"]["video.fps"] = 30


def uneven_video(odd):
    """A picture where each frame is, and others between some of them."""
    more = [(time + 0.05, 200) for time, _ in odd.videos[FRONT][::4]]
    odd.videos[FRONT] = sorted(odd.videos[FRONT] + more)


def longer_video(odd):
    odd.videos[FRONT] = [*odd.videos[FRONT], *[(1.8 + number / FPS, 250) for number in range(9)]]


def scalar_lists(odd):
    """Scalars as lists of one number."""
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        odd.change_column(name, lambda value: [value])
    odd.types["timestamp"] = pa.list_(pa.float32())


def jittered(odd):
    odd.with_images()
    odd.columns["timestamp"][1] += 0.004


def channels_first(odd):
    for camera in CAMERAS:
        odd.info["features"][camera].update(
            shape=[3, 48, 48], names=["channels", "height", "width"]
        )


def channels_first_nameless(odd):
    for camera in CAMERAS:
        odd.info["features"][camera].update(shape=[3, 48, 48], names=None)


def two_files(odd):
    odd.files = [6, 11]
    for row in odd.rows:
        row["data/file_index"] = row["episode_index"]


def inside_an_episode(odd):
    odd.files = [3, 9]


def two_tasks(odd):
    odd.tasks = pa.table({"task_index": [5, 0], "task": ["löten", "put it in"]})
    odd.columns["task_index"] = [5] * 6 + [0] * 12


def task_column(odd):
    odd.tasks = pa.table({"task_index": [0], "category": ["assembly"], "task": ["put it in"]})


def by_path(odd):
    """Pictures as files beside the data, of which the columns have only the paths."""
    odd.with_images()
    odd.files_of_pictures = {
        f"images/{row}.png": picture["bytes"] for row, picture in enumerate(odd.columns[FRONT])
    }
    odd.columns[FRONT] = [{"bytes": None, "path": path} for path in odd.files_of_pictures]


def unchanged(odd):
    pass


READ = [
    unchanged,
    permuted,
    state_permuted,
    named("action", {"dx": 0, "dy": 1, "dz": 2}),
    named("action", None),
    named("action", ["action_0", "action_1", "action_2"]),
    wide,
    fast_video,
    uneven_video,
    longer_video,
    scalar_lists,
    jittered,
    channels_first,
    channels_first_nameless,
    two_files,
    inside_an_episode,
    reindexed,
    two_tasks,
    task_column,
    by_path,
    OddSet.with_images,
    lambda odd: move(odd, [*range(9, 18), *range(9)]),
    lambda odd: move(odd, list(range(18))[::-1]),
    lambda odd: without(odd, "index"),
    lambda odd: without(odd, "frame_index"),
    lambda odd: odd.info.update(fps=10.0),
    lambda odd: odd.info.update(total_episodes=99),
    lambda odd: without(odd, "task_index"),
    lambda odd: (
        odd.change_column("action", lambda values: [0, 0, 0])
        or odd.types.update(action=pa.list_(pa.int64()))
    ),
    lambda odd: odd.columns.update({"next.success": [False] * 18}),
    lambda odd: odd.columns.update({"next.success": [[False]] * 18}),
]


@pytest.mark.parametrize("change", READ)
def test_an_odd_set_is_read_as_it_says(change, tmp_path, capsys):
    plain, odd = OddSet(), OddSet()
    change(odd)
    root = odd.write(tmp_path / "set")
    for path, data in getattr(odd, "files_of_pictures", {}).items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(data)
    code, episodes = imported(root, tmp_path)
    assert code == 0, capsys.readouterr().err
    assert [len(episode) for episode in episodes] == list(LENGTHS)
    begins = np.cumsum([0, *LENGTHS])
    for begin, episode in zip(begins, episodes, strict=False):
        rows = range(begin, begin + len(episode))
        state = np.concatenate(
            [episode.observations[name][:-1] for name in ("tcp_position", "tcp_velocity", "force")],
            axis=1,
        )
        if 0 not in odd.columns["action"][0]:
            assert np.array_equal(episode.requested, [plain.columns["action"][row] for row in rows])
        assert np.array_equal(
            state, np.array([plain.columns["observation.state"][row] for row in rows], np.float32)
        )
        for camera in ("front", "wrist"):
            greys = [10 + 4 * row for row in (*rows, rows[-1])]
            assert np.abs(episode.observations[camera].mean((1, 2, 3)) - greys).max() <= 1.5
        expected = np.arange(len(episode) + 1) * 1e8
        assert np.abs(episode.stamps_ns - expected).max() <= (4.1e6 if change is jittered else 0)
    texts = [set(episode.instructions) for episode in episodes]
    assert texts == [
        {"löten"} if change is two_tasks else {"put it in"},
        {"put it in"},
        {"put it in"},
    ]
    if change is reindexed:
        assert [episode.seed for episode in episodes] == [0, 3, 7]
    if "next.success" in odd.columns:
        assert not any(episode.success for episode in episodes)


def deep(odd):
    odd.with_images()
    odd.columns[FRONT][7] = {"bytes": png(900, (48, 48), np.uint16), "path": None}


def small(odd):
    odd.with_images()
    odd.columns[FRONT][7] = {"bytes": png(9, (24, 24, 3)), "path": None}


def broken_picture(odd):
    odd.with_images()
    odd.columns[WRIST][12] = {"bytes": b"\x89PNG", "path": None}


def outside(odd):
    odd.with_images()
    odd.columns[FRONT][0] = {"bytes": None, "path": "../../etc/passwd"}


def empty_picture(odd):
    odd.with_images()
    odd.columns[FRONT][0] = None


def lost_picture(odd):
    del odd.videos[FRONT][8]


def shorter(odd):
    """The video of episode 1 ends early; in the file the next episode's follows."""
    odd.rows[1][f"videos/{FRONT}/to_timestamp"] = 0.9


def cut_video(odd):
    odd.videos[FRONT] = odd.videos[FRONT][:15]


def zero_length(odd):
    odd.columns = {name: [*cells[:6], *cells[11:]] for name, cells in odd.columns.items()}
    odd.rows[1].update(length=0)


def gap(odd):
    odd.columns["timestamp"][3:6] = [1.0, 1.1, 1.2]


def twice(odd):
    move(odd, [*range(7), 6, *range(7, 18)])
    odd.rows[1].update(length=6)


def ragged(odd):
    odd.types["action"] = pa.list_(pa.float32())
    odd.columns["action"][8] = [0.0, 0.0]


def words(odd):
    odd.types.pop("action")
    odd.columns["action"] = ["left"] * 18


def null_state(odd):
    odd.types["observation.state"] = pa.list_(pa.float32())
    odd.columns["observation.state"][4] = None


def two_texts(odd):
    odd.tasks = pa.table({"task_index": [0], "category": ["assembly"], "words": ["put it in"]})


def depth(odd):
    odd.info["features"][FRONT]["info"]["video.is_depth_map"] = True


REFUSED = [
    (
        gap,
        "feature 'timestamp': episode 0, frame 3: expected 0.3000 s, 0.1 s after the previous "
        "frame, got 1.0000 s",
    ),
    (
        cell("timestamp", 8, float("nan")),
        "feature 'timestamp': episode 1, frame 2: expected a finite number, got nan",
    ),
    (
        cell("action", 8, [0.0, float("nan"), 0.0]),
        "feature 'action': episode 1, frame 2: expected 3 finite numbers, got [0",
    ),
    (
        null_state,
        "feature 'observation.state': episode 0, frame 4: expected 9 finite numbers, got "
        "an empty cell",
    ),
    (
        cell("action", 8, [0.0, float("inf"), 0.0]),
        "feature 'action': episode 1, frame 2: expected 3 finite numbers",
    ),
    (
        cell("frame_index", 0, -1),
        "feature 'frame_index': episode 0, frame 0: expected 0, since frames count from 0, got -1",
    ),
    (
        cell("frame_index", 8, None),
        "feature 'frame_index': expected a column of data/ with a number in each row, got 1 empty",
    ),
    (
        twice,
        "feature 'frame_index': episode 1, frame 1: expected 1, since frames count from 0, got "
        "0. A frame is missing or occurs twice",
    ),
    (cell("index", 8, 2), "feature 'index': episode 1, frame 2: expected a number above 7"),
    (
        cell("task_index", 8, 4),
        "feature 'task_index': episode 1, frame 2: expected a task of meta/tasks.parquet (0), "
        "got 4; --instruction sets one for all",
    ),
    (
        cell("episode_index", 17, 9),
        "data/: expected frames of the episodes in meta/episodes (0, 1, 2), got some of episode 9",
    ),
    (
        lambda odd: without(odd, "timestamp"),
        "feature 'timestamp': expected a column of that name in data/",
    ),
    (
        lambda odd: without(odd, "action"),
        "feature 'action': expected a column of that name in data/",
    ),
    (
        lambda odd: without(odd, "episode_index"),
        "feature 'episode_index': expected a column of data/",
    ),
    (
        lambda odd: (without(odd, "index"), without(odd, "frame_index")),
        "expected a column 'frame_index' or 'index' in data/",
    ),
    (ragged, "feature 'action': episode 1, frame 2: expected 3 finite numbers, got [0.0, 0.0]"),
    (words, "feature 'action': episode 0, frame 0: expected 3 finite numbers, got left"),
    (zero_length, "episode 1 has no frames. Nothing was written. Leave it out"),
    (
        named("action", ["x", "y", "z"]),
        "feature 'action': expected the names dx, dy, dz, in any order, got x, y, z. If they",
    ),
    (
        named("action", ["dx", "dy", "dx"]),
        "feature 'action': expected the names dx, dy, dz, in any order, got dx, dy, dx",
    ),
    (
        named("observation.state", ACTION),
        "feature 'observation.state': expected the names tcp_position.0",
    ),
    (
        two_texts,
        "meta/tasks.parquet: expected a column or an index 'task' with the texts, got task_index, "
        "category, words",
    ),
    (
        lambda odd: setattr(odd, "tasks", pa.table({"task_index": [0, 0], "task": ["a", "b"]})),
        "expected each task_index once",
    ),
    (
        lambda odd: odd.info.update(fps=None),
        "meta/info.json: fps: expected a number above 0, got None",
    ),
    (
        lambda odd: odd.info.update(features=[]),
        "meta/info.json: features: expected an object, got list",
    ),
    (
        lambda odd: odd.info["features"]["action"].pop("shape"),
        "meta/info.json: feature 'action': expected a dtype and a shape",
    ),
    (
        lambda odd: odd.info.update(video_path=None),
        "meta/info.json: video_path: expected a pattern",
    ),
    (
        lambda odd: [row.pop(f"videos/{FRONT}/from_timestamp") for row in odd.rows],
        f"feature '{FRONT}': episode 0: expected its 'videos/{FRONT}/from_timestamp' in "
        "meta/episodes, got none",
    ),
    (
        lambda odd: odd.rows[1].update(episode_index=0),
        "meta/episodes: expected each episode once, got several rows of episode 0",
    ),
    (depth, f"feature '{FRONT}': expected pictures in colour, got distances"),
    (deep, f"feature '{FRONT}': episode 1, frame 1: expected 8 bits a channel, got uint16"),
    (
        small,
        f"feature '{FRONT}': episode 1, frame 1: expected a picture of 48x48x3, as in "
        "meta/info.json, got 24x24x3",
    ),
    (
        broken_picture,
        f"feature '{WRIST}': episode 2, frame 1: expected a picture (PNG or JPEG), got ",
    ),
    (
        outside,
        f"feature '{FRONT}': episode 0, frame 0: expected the bytes of a picture, or its file "
        f"below the data set's",
    ),
    (
        empty_picture,
        f"feature '{FRONT}': episode 0, frame 0: expected the bytes or the path of a picture, got "
        f"an empty cell",
    ),
    (lost_picture, f"feature '{FRONT}': episode 1, frame 2: expected a picture at 0.8000 s"),
    (
        shorter,
        f"feature '{FRONT}': episode 1, frame 3: expected a picture at 0.3000 s, got a video of "
        f"0.3000 s for this",
    ),
    (cut_video, f"feature '{FRONT}': episode 2, frame 4: expected a picture at 1.5000 s"),
    (lambda odd: odd.videos.pop(FRONT), "file-000.mp4: expected a video, got"),
    (
        lambda odd: odd.info.update(fps=30),
        "fps: expected 10 (the station's time steps per second), got 30",
    ),
]


@pytest.mark.parametrize("spoil, message", REFUSED)
def test_a_set_that_contradicts_itself_is_refused_by_name_and_nothing_is_written(
    spoil, message, tmp_path, capsys
):
    odd = OddSet()
    spoil(odd)
    code, _ = imported(odd.write(tmp_path / "set"), tmp_path)
    error = capsys.readouterr().err
    assert (
        code == 1
        and message in error
        and "Traceback" not in error
        and not list(tmp_path.glob("new*"))
    )


def test_a_set_of_both_layouts_is_refused_with_the_converter(tmp_path, capsys):
    root = OddSet().write(tmp_path / "set")
    (root / "meta/tasks.parquet").unlink()
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "put it in"}\n')
    assert imported(root, tmp_path)[0] == 1
    error = capsys.readouterr().err
    assert "expected meta/tasks.parquet of LeRobot's layout v3.0, got tasks.jsonl of v2.1" in error
    assert "convert_dataset_v21_to_v30" in error


def test_a_video_of_another_size_is_refused(tmp_path, capsys):
    root = OddSet().write(tmp_path / "set")
    video(
        root / f"videos/{FRONT}/chunk-000/file-000.mp4",
        [(number / FPS, 9) for number in range(18)],
        size=32,
    )
    assert imported(root, tmp_path)[0] == 1
    assert (
        "expected a picture of 48x48x3, as in meta/info.json, got 32x32x3"
        in capsys.readouterr().err
    )


def test_an_instruction_of_the_user_stands_for_tasks_that_are_lost(tmp_path):
    odd = OddSet()
    odd.columns["task_index"] = [9] * 18
    code, episodes = imported(odd.write(tmp_path / "set"), tmp_path, "--instruction", "press it")
    assert code == 0 and {text for episode in episodes for text in episode.instructions} == {
        "press it"
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (VENV / "bin/python").exists(), reason="not run: .venvs/lerobot is not there (make lerobot)"
)
def test_whatever_lerobot_itself_reads_is_read_as_lerobot_does(tmp_path):
    """Our reader returns the same frames as LeRobot's, or refuses the data set."""
    changes = [
        change for change in [*READ, *[spoil for spoil, _ in REFUSED]] if change is not by_path
    ]
    for number, change in enumerate(changes):
        odd = OddSet()
        change(odd)
        odd.write(tmp_path / f"set-{number:02d}")
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(VENV / "ffmpeg"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
    }
    script = subprocess.run(
        [VENV / "bin/python", "tests/data/lerobot_reads.py", *sorted(tmp_path.glob("set-*"))],
        text=True,
        capture_output=True,
        env=environment,
        timeout=500,
    )
    assert script.returncode == 0, script.stderr[-2000:]
    compared = 0
    for line in script.stdout.splitlines():
        reference = json.loads(line)
        if "error" in reference:
            continue
        code, episodes = imported(Path(reference["root"]), tmp_path)
        for frame in reference["frames"] if code == 0 else ():
            episode = next(
                candidate for candidate in episodes if candidate.seed == frame["episode"]
            )
            names = reference["names"] or ACTION
            if sorted(names) == sorted(ACTION):
                requested = dict(zip(ACTION, episode.requested[frame["frame"]], strict=True))
                assert [requested[name] for name in names] == pytest.approx(
                    frame["action"], abs=1e-7
                )
            for camera in ("front", "wrist"):
                grey = episode.observations[camera][frame["frame"]].mean()
                assert grey == pytest.approx(frame[camera], abs=1.5), (reference["root"], frame)
            compared += 1
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert compared >= 18 * 10


ONE = """
instruction: close the gripper
control_hz: 10.0
max_steps: 50
observation:
  width: {source: gripper/state, take: all, shape: [1], unit: m, low: [0.0], high: [0.1]}
action:
  control_mode: tcp_delta
  dimensions: {dx: {scale: 0.05, unit: m}}
reward: {kind: external}
"""


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("names", [None, ["dx"], ["action_0"]])
def test_a_state_and_an_action_of_one_number_come_back(tmp_path, listed, names):
    """They are lists of one number, or plain numbers, as LeRobot writes features of shape [1]."""
    odd = OddSet()
    actions = [round(0.001 * row, 6) for row in range(18)]
    widths = [0.05 + 0.001 * row for row in range(18)]
    for name, values in (("action", actions), ("observation.state", widths)):
        odd.columns[name] = [[value] for value in values] if listed else values
        odd.types[name] = pa.list_(pa.float32()) if listed else pa.float32()
        odd.info["features"][name].update(shape=[1], names=None)
    odd.info["features"]["action"]["names"] = names
    (tmp_path / "one.yaml").write_text(ONE)
    root = odd.write(tmp_path / "set")
    recipe = ["--recipe", "demo", "--set", f"station.task={tmp_path / 'one.yaml'}"]
    assert (
        main(["data", "import", "lerobot", str(root), "--out", str(tmp_path / "new"), *recipe]) == 0
    )
    episodes = [
        read_episode(folder, sealed=True) for folder in sorted((tmp_path / "new").iterdir())
    ]
    assert [len(episode) for episode in episodes] == list(LENGTHS)
    begin = 0
    for episode in episodes:
        end = begin + len(episode)
        assert episode.requested.shape == (len(episode), 1)
        assert np.allclose(episode.requested[:, 0], actions[begin:end], atol=1e-9)
        assert episode.observations["width"].shape == (len(episode) + 1, 1)
        expected = np.array([*widths[begin:end], widths[end - 1]], np.float32)
        assert np.array_equal(episode.observations["width"][:, 0], expected)
        begin = end
