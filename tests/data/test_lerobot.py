"""LeRobot data sets of recordings that the spool has written."""

import json
import time

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from tests.messages import record

pq, av = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("av")
from rlinf_core.data.episodes import episode_spec  # noqa: E402
from rlinf_core.data.lerobot.video import VideoWriter  # noqa: E402


@pytest.fixture
def spool(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    spec = task.with_images({"front": (32, 48)}).spec
    record(spool, spec, "a-1", steps=5, sources={0: "operator"}, change=brighter).close()
    record(spool, spec, "a-2", steps=7, success=False, start=9.0, change=brighter).close()
    return spool


def brighter(topic, number, message):
    """Return pictures that brighten by 20 a time step, with a new instruction later."""
    if topic == "timestep":
        message.images[0].data[:] = 20 * number
        message.instruction = "do it" if number < 3 else "do that"


def frames_of(file):
    with av.open(str(file)) as video:
        return [
            (float(frame.pts * frame.time_base), frame.to_ndarray(format="rgb24"))
            for frame in video.decode(video=0)
        ]


def test_an_export_has_every_transition_to_the_last_bit_and_pictures_nearly(
    spool, tmp_path, capsys
):
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 0
    assert "2 episodes, 12 frames" in capsys.readouterr().out
    root = tmp_path / "set"
    episodes = [read_episode(spool.root / "closed" / name) for name in ("a-1", "a-2")]
    table = pq.read_table(root / "data/chunk-000/file-000.parquet").to_pydict()
    vectors = [
        name for name, values in episodes[0].observations.items() if values.dtype == np.float32
    ]
    state = np.concatenate(
        [
            np.concatenate([one.observations[name][:-1] for name in vectors], axis=1)
            for one in episodes
        ]
    )
    assert np.array_equal(np.array(table["observation.state"], np.float32), state)
    assert np.array_equal(
        np.array(table["action"], np.float32),
        np.concatenate([one.requested for one in episodes]).astype(np.float32),
    )
    assert (
        table["next.reward"] == [0] * 4 + [1] + [0] * 7
        and table["next.success"] == [False] * 4 + [True] + [False] * 7
    )
    assert table["complementary_info.is_intervention"] == [True] + [False] * 11
    assert table["episode_index"] == [0] * 5 + [1] * 7 and table["index"] == list(range(12))
    assert table["task_index"] == [0, 0, 0, 1, 1] + [0, 0, 0, 1, 1, 1, 1]
    assert pq.read_table(root / "meta/tasks.parquet").to_pydict()["task_index"] == [0, 1]
    rows = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["tasks"] for row in rows] == [["do it", "do that"]] * 2
    pictures = frames_of(root / "videos/observation.images.front/chunk-000/file-000.mp4")
    for row, episode in zip(rows, episodes, strict=True):
        start = row["videos/observation.images.front/from_timestamp"]
        for step in range(len(episode) + 1):  # the last one too, behind the episode's own
            (picture,) = [image for at, image in pictures if abs(at - start - step / 10) < 0.01]
            assert np.abs(picture.astype(int) - episode.observations["front"][step]).max() <= 4
    episodes_info = json.loads((root / "meta/rlinf.json").read_text())["episodes"]
    assert [one["id"] for one in episodes_info] == ["a-1", "a-2"] and episodes_info[1][
        "final_observation"
    ]["force"] == [16.0, 16.0, 16.0]


def test_pictures_are_counted_in_frames_by_which_lerobot_weighs_what_it_puts_together(
    spool, tmp_path
):
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 0
    rows = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    total = json.loads((tmp_path / "set/meta/stats.json").read_text())["observation.images.front"]
    counts, means = (
        [row[f"stats/observation.images.front/{name}"] for row in rows]
        for name in ("count", "mean")
    )
    assert counts == [[5], [7]] and total["count"] == [12]
    assert np.average(np.array(means)[:, :, 0, 0], axis=0, weights=[5, 7]) == pytest.approx(
        np.ravel(total["mean"])
    )


def test_what_was_let_through_can_be_the_action(spool, tmp_path):
    assert (
        main(
            [
                "data",
                "export",
                "lerobot",
                str(spool.root),
                "--executed",
                "--out",
                str(tmp_path / "set"),
            ]
        )
        == 0
    )
    table = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet").to_pydict()
    assert np.array(table["action"])[:, 0] == pytest.approx(0.01)


def test_a_damaged_episode_leaves_no_half_a_data_set(spool, tmp_path, capsys, monkeypatch):
    encode, begun, ended = VideoWriter.add, [], []

    def add(video, pictures):
        begun.append(video)
        time.sleep(0.5)  # on a busy machine the first episode is still encoded then
        encode(video, pictures)
        ended.append(video)

    monkeypatch.setattr(VideoWriter, "add", add)
    file = spool.root / "closed/a-2/a-2.mcap"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 1
    assert "a-2" in capsys.readouterr().err and not list(tmp_path.glob("set*"))
    assert begun == ended, "no thread writes after the folder was removed"


def test_a_recipe_names_the_actions_and_another_is_refused(task, tmp_path, capsys):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    record(spool, task.spec, "a-1").close()
    export = [
        "data",
        "export",
        "lerobot",
        str(spool.root),
        "--out",
        str(tmp_path / "set"),
        "--recipe",
    ]
    assert main([*export, "demo_vision"]) == 1
    assert "expected specs" in capsys.readouterr().err and not list(tmp_path.glob("set*"))
    assert main([*export, "demo"]) == 0
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (
        info["features"]["action"]["names"] == list(task.spec.action.names)
        and info["video_path"] is None
    )


def imported(spool, tmp_path, *more):
    """Exported, then imported again; the exit code of that."""
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 0
    return main(
        ["data", "import", "lerobot", str(tmp_path / "set"), "--out", str(tmp_path / "new"), *more]
    )


def test_what_was_exported_comes_back_to_the_last_bit_and_pictures_nearly(spool, tmp_path, capsys):
    assert imported(spool, tmp_path) == 0
    output = capsys.readouterr().out
    assert (
        "2 episodes, 12 frames" in output
        and f"--set 'collect.recordings=[{tmp_path}/new]'; look" in output
    )
    for name in ("a-1", "a-2"):
        before = read_episode(spool.root / "closed" / name)
        after = read_episode(tmp_path / "new" / name, sealed=True)
        front = before.observations.pop("front").astype(int)
        assert np.abs(after.observations.pop("front") - front).max() <= 4
        assert before.observations.keys() == after.observations.keys()
        for key, values in before.observations.items():
            assert values.tobytes() == after.observations[key].tobytes(), (
                "the one after the last action too"
            )
        assert np.array_equal(after.requested, before.requested.astype(np.float32).astype(float))
        for key in (
            "id",
            "station",
            "mode",
            "seed",
            "success",
            "failure",
            "truncated",
            "policy_version",
            "spec_hash",
            "limits_hash",
            "instructions",
            "sources",
        ):
            assert getattr(after, key) == getattr(before, key), key
        for key in ("rewards", "discounts", "stamps_ns"):
            assert np.array_equal(getattr(after, key), getattr(before, key)), key
    assert (
        main(["data", "export", "lerobot", str(tmp_path / "new"), "--out", str(tmp_path / "again")])
        == 0
    )
    first, second = (
        pq.read_table(tmp_path / folder / "data/chunk-000/file-000.parquet")
        for folder in ("set", "again")
    )
    assert first.equals(second), "and once more the same columns"
    assert main(["data", "check", str(tmp_path / "new")]) == 0


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "more, message",
    [
        (
            ["--recipe", "demo_pick"],
            "feature 'action': expected 4 numbers (dx, dy, dz, grip), got 3",
        ),
        (["--recipe", "demo_pick"], "feature 'observation.state': expected"),
        (
            ["--recipe", "demo", "--set", "station.observe_cameras=[wrist]"],
            "feature 'observation.images.wrist': expected pictures of 64x64, got none "
            "(observation.images.front there)",
        ),
        (
            [
                "--recipe",
                "demo",
                "--set",
                "station.observe_cameras=[wrist]",
                "--camera",
                "wrist=front",
            ],
            "feature 'observation.images.front': expected pictures of 64x64, got 32x48x3",
        ),
        (
            ["--recipe", "demo", "--camera", "side=front"],
            "--camera side: expected a camera that the station observes",
        ),
        (["--recipe", "demo", "--camera", "wrist"], "--camera: expected NAME=THEIRS"),
    ],
)
def test_a_feature_that_does_not_fit_is_named_with_both_sides_and_nothing_is_written(
    spool, tmp_path, capsys, more, message
):
    assert imported(spool, tmp_path, *more) == 1
    assert message in capsys.readouterr().err and not list(tmp_path.glob("new*"))


def test_a_data_set_of_others_is_demonstrations_of_a_recipe(spool, tmp_path, capsys):
    """LeRobot stores no rewards, no commander, and no observation after the last action."""
    again = ["data", "import", "lerobot", str(tmp_path / "set"), "--out"]
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 0
    (tmp_path / "set/meta/rlinf.json").unlink()
    file = tmp_path / "set/data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    ours = [
        name for name in table.column_names if name.startswith(("next.", "complementary_info."))
    ]
    pq.write_table(table.drop_columns(ours), file)
    assert main([*again, str(tmp_path / "theirs")]) == 1
    assert "expected --recipe" in capsys.readouterr().err
    fits = [
        "--recipe",
        "demo",
        "--set",
        "station.observe_cameras=[wrist]",
        "station.image_size=[32,48]",
        "--camera",
        "wrist=front",
    ]
    assert main([*again, str(tmp_path / "theirs"), *fits]) == 0
    first, second = (
        read_episode(folder, sealed=True) for folder in sorted((tmp_path / "theirs").iterdir())
    )
    assert (first.success, first.mode, set(first.sources), first.rewards.tolist()) == (
        True,
        "demonstration",
        {"operator"},
        [0, 0, 0, 0, 1],
    )
    assert len(second) == 7 and np.array_equal(
        second.observations["force"][-1], second.observations["force"][-2]
    )
    assert first.observations["wrist"].shape == (6, 32, 48, 3) and first.station == "station_a"
    values = table.to_pydict()
    values["action"][3] = [0.5, 0.0, 0.0]
    pq.write_table(type(table).from_pydict(values), file)
    assert main([*again, str(tmp_path / "far"), *fits]) == 1
    assert (
        "feature 'action': expected 'dx' within 0.02 m in both directions (a step of the"
        in capsys.readouterr().err
    )


def others(spool, tmp_path, name, change=lambda table: table):
    """Return a data set as somebody else has it, in a folder of that name."""
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / name)]) == 0
    (tmp_path / name / "meta/rlinf.json").unlink()
    rewrite(tmp_path / name, change)
    return [
        "data",
        "import",
        "lerobot",
        str(tmp_path / name),
        "--recipe",
        "demo",
        "--set",
        "station.observe_cameras=[wrist]",
        "station.image_size=[32,48]",
        "--camera",
        "wrist=front",
        "--out",
    ]


def test_a_sentence_that_is_too_long_for_training_is_told_at_the_import_and_another_can_be_said(
    spool, tmp_path, capsys
):
    again = others(spool, tmp_path, "set")
    tasks = tmp_path / "set/meta/tasks.parquet"
    values = pq.read_table(tasks).to_pydict()
    text = next(name for name in values if name != "task_index")
    values[text] = [sentence + " carefully" * 20 for sentence in values[text]]
    pq.write_table(pq.read_table(tasks).from_pydict(values), tasks)
    assert main([*again, str(tmp_path / "new")]) == 1
    message = capsys.readouterr().err
    assert (
        "meta/tasks.parquet: instruction: expected at most 128 bytes" in message
        and "--instruction sets another" in message
    )
    assert not list(tmp_path.glob("new*"))
    assert main([*again, str(tmp_path / "new"), "--instruction", "insert it"]) == 0
    for folder in (tmp_path / "new").iterdir():
        assert set(read_episode(folder, sealed=True).instructions) == {"insert it"}


def test_two_sets_with_folders_of_one_name_are_told_apart(spool, tmp_path):
    def half(table):
        values = table.to_pydict()
        values["action"] = [[0.5 * number for number in action] for action in values["action"]]
        return type(table).from_pydict(values)

    names = []
    for owner, change in (
        ("alice", lambda table: table),
        ("bob", half),
        ("carol", lambda table: table),
    ):
        assert (
            main(
                [*others(spool, tmp_path, f"{owner}/pick", change), str(tmp_path / f"from_{owner}")]
            )
            == 0
        )
        names.append({folder.name for folder in (tmp_path / f"from_{owner}").iterdir()})
    assert len(names[0] | names[1]) == 4 and names[0] == names[2], "and the same one is the same"


def test_what_its_recorder_attached_names_the_actions_wherever_a_recording_lies(tmp_path, task):
    spec = task.spec
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    record(spool, spec, "a-1", steps=5).close()
    spool.attachments = lambda: {"specs.json": json.dumps(spec.to_dict()).encode()}
    record(spool, spec, "b-1", steps=5).close()
    spool.attachments = lambda: {"specs.json": b"{"}
    record(spool, spec, "c-1", steps=5).close()
    specs = {}
    for name in ("a-1", "b-1", "c-1"):
        folder = spool.root / "closed" / name
        specs[name] = episode_spec(read_episode(folder), folder, None)
    assert (
        specs["b-1"] == spec
        and specs["a-1"].action.names[0] == specs["c-1"].action.names[0] == "action_0"
    )


def rewrite(root, change):
    file = root / "data/chunk-000/file-000.parquet"
    pq.write_table(change(pq.read_table(file)), file)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda root: (root / "meta/info.json").unlink(), "got no meta/info.json"),
        (
            lambda root: (root / "meta/info.json").write_text("{"),
            "got no meta/info.json in readable form",
        ),
        (
            lambda root: edit(
                root / "meta/info.json", lambda document: document.update(codebase_version="v2.1")
            ),
            "expected v3.0",
        ),
        (
            lambda root: edit(root / "meta/info.json", lambda document: document.update(fps=30)),
            "fps: expected 10",
        ),
        (
            lambda root: edit(
                root / "meta/rlinf.json", lambda document: document["episodes"][0].update(id="../x")
            ),
            "a plain episode id",
        ),
        (
            lambda root: (root / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1"),
            "expected an intact LeRobot data set",
        ),
        (
            lambda root: edit(root / "meta/info.json", lambda document: document.pop("fps")),
            "fps: expected a number above 0, got none",
        ),
        (
            lambda root: rewrite(root, lambda table: table.drop_columns(["action"])),
            "feature 'action': expected a column of that name in data/",
        ),
        (
            lambda root: rewrite(root, lambda table: table.slice(0, 11)),
            "expected 7 frames of episode 1, got 6",
        ),
        (
            lambda root: (
                root / "videos/observation.images.front/chunk-000/file-000.mp4"
            ).write_bytes(b"x"),
            "expected a video",
        ),
    ],
)
def test_a_damaged_data_set_is_told_and_leaves_nothing(spool, tmp_path, capsys, spoil, message):
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 0
    spoil(tmp_path / "set")
    assert (
        main(["data", "import", "lerobot", str(tmp_path / "set"), "--out", str(tmp_path / "new")])
        == 1
    )
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and not list(tmp_path.glob("new*"))
