"""A reward that sees: learned from recordings, judged by others, in NumPy as in torch; and one
frame fools nobody.
"""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from rlinf_core.cli.main import main
from rlinf_core.core.errors import EpisodeError, RecipeError
from rlinf_core.episodes.spool import Spool
from rlinf_core.launch.graph import check_operator
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.tasks.rewards import training
from rlinf_core.tasks.rewards.classifier import Network
from rlinf_core.tasks.task import step_result
from sim_bridges.core.environments import make_environments
from tests.messages import record
from tests.trainer.test_disk import full_disk

SIZE = 24


def scene(random, done):
    """Return a dark image with a bright peg above a socket, or in it."""
    image = random.integers(0, 60, (SIZE, SIZE, 3), np.uint8)
    column = random.integers(6, SIZE - 8)
    image[SIZE - 8 :, column - 3 : column + 5] = (40, 90, 200)
    top = SIZE - 14 if done else random.integers(0, SIZE - 16)
    image[top : top + 8, column : column + 2] = 250
    return image


def frames(episodes, seed=0):
    random, images, success, numbers = np.random.default_rng(seed), [], [], []
    for number in range(episodes):
        for step in range(10):
            images.append(scene(random, step == 9).transpose(2, 0, 1))
            success.append(step == 9)
            numbers.append(number)
    return training.Frames(np.array(images), np.array(success), np.array(numbers), ("front",))


@pytest.fixture(scope="module")
def learned():
    torch.set_num_threads(1)
    return training.train(frames(30), 150, 0)


def test_it_tells_success_on_frames_that_it_has_not_seen(learned, tmp_path):
    scores, labels = training.judge(learned, frames(20, seed=1))
    assert (
        scores.accuracy >= 0.98
        and scores.missed <= 1
        and (scores.positives, scores.negatives) == (20, 180)
    )
    learned.save(tmp_path / "model.safetensors")
    again = training.judge(Network.load(tmp_path / "model.safetensors"), frames(20, seed=1))[1]
    assert np.array_equal(labels, again)


def test_what_it_misses_and_what_it_invents_are_told_apart():
    shades = np.array([0, 200, 0, 200, 200, 0], np.uint8)  # it takes light ones for success
    frames_of_shades = training.Frames(
        np.tile(shades[:, None, None, None], (1, 6, 4, 4)),
        np.array([1, 1, 1, 0, 0, 0], bool),
        np.arange(6),
        ("front", "wrist"),
    )
    bright = lambda at: float(  # noqa: E731
        at["camera/front/image"].mean() + at["camera/wrist/image"].max() > 100
    )  # noqa: E731
    scores, labels = training.judge(bright, frames_of_shades)
    assert (scores.positives, scores.negatives, scores.missed, scores.invented) == (3, 3, 2, 2)
    assert scores.accuracy == pytest.approx(1 / 3) and labels.tolist() == [0, 1, 0, 1, 1, 0]


def test_numpy_computes_what_torch_does():
    torch.manual_seed(0)
    net = training._net(6, 20, 33)
    some = np.random.default_rng(0).integers(0, 256, (3, 6, 20, 33), np.uint8)
    held = training.Frames(some, np.ones(3, bool), np.arange(3), ("front", "wrist"))
    with torch.no_grad():
        expected = torch.sigmoid(net(torch.tensor(some).float() / 255 - 0.5))[:, 0].numpy()
    assert training.judge(training._network(net, held), held)[1] == pytest.approx(
        expected, abs=1e-6
    )


def test_episodes_are_held_out_whole_and_there_must_be_enough_of_them():
    ours, theirs = training.split(frames(10), 0.2, seed=3)
    assert not set(ours.episodes) & set(theirs.episodes) and set(ours.episodes) | set(
        theirs.episodes
    ) == set(range(10))
    assert len(set(theirs.episodes)) == 2 and theirs.success.sum() == 2
    with pytest.raises(
        EpisodeError, match=r"expected successful episodes for training and .*got 1. Record more"
    ):
        training.split(frames(1), 0.2, 0)


def task_with(tmp_path, **terms):
    (tmp_path / "peg_insertion.yaml").write_text(
        Path("configs/tasks/peg_insertion.yaml").read_text()
    )
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump({"defaults": "peg_insertion"} | terms))
    return path


def test_a_task_judged_by_it_needs_the_camera_and_says_so(learned, tmp_path):
    learned.save(tmp_path / "model.safetensors")
    task = task_with(tmp_path, reward={"kind": "classifier", "model": "model.safetensors"})
    with pytest.raises(
        RecipeError, match="station.observe_cameras: expected 'front' among them, since the reward"
    ):
        station_task(load_recipe("demo", [f"station.task={task}"]))
    overrides = [
        f"station.task={task}",
        "station.observe_cameras=[front]",
        "station.image_size=[24,24]",
    ]
    assert "camera/front/image" in station_task(load_recipe("demo", overrides)).channels
    env = make_environments(load_recipe("sim_rlpd", overrides), 1)
    env.reset([0])
    assert env.step(np.zeros((1, 3))).reward[0] in (0.0, 1.0), (
        "what it says of this picture is no matter here"
    )
    env.close()


def test_success_is_what_looks_like_it_for_as_many_time_steps_as_the_task_says(tmp_path):
    task = station_task(
        load_recipe("demo", [f"station.task={task_with(tmp_path, success_steps=3)}"])
    )
    pose = np.array([0.5, 0, 0.1, 0, 1.0, 0, 0])
    successes, before = [], None
    for depth in (0.0, 0.03, 0.03, 0.0, 0.03, 0.03, 0.03):
        tool = pose - [0, 0, depth, 0, 0, 0, 0]
        before = step_result(
            task, {"current_pose": tool, "object_pose": pose}, len(successes), before
        )
        successes.append(before.success)
    assert successes == [False] * 6 + [True] and before.reward == 1.0


@pytest.fixture
def recorded(tmp_path, task):
    """Twelve episodes that succeeded, as a station records them."""
    random, spool = np.random.default_rng(0), Spool(tmp_path / "spool", min_free_mb=0)

    def painted(topic, number, message):
        if topic == "timestep":
            message.images[0].data = scene(random, number == 8).ravel()

    for number in range(12):
        record(
            spool,
            task.with_images({"front": (SIZE, SIZE)}).spec,
            f"e-{number}",
            steps=8,
            change=painted,
        ).close()
    return str(spool.root)


def test_who_could_never_succeed_or_never_take_over_is_told(tmp_path):
    with pytest.raises(
        RecipeError,
        match="expected at most max_steps, 50, since otherwise no episode could succeed, got 51",
    ):
        station_task(load_recipe("demo", [f"station.task={task_with(tmp_path, success_steps=51)}"]))
    for after, error in (
        (50, "takes_over: expected less than the 50 time steps of an episode"),
        (49, ""),
    ):
        with pytest.raises(RecipeError, match=error) if error else contextlib.nullcontext():
            check_operator(load_recipe("demo", [f"station.operator.takes_over={after}"]))


def test_images_of_several_sizes_are_told_apart(task):
    episode = SimpleNamespace(
        id="e",
        success=True,
        stamps_ns=np.arange(3) * 10**8,
        observations={
            "front": np.zeros((3, 24, 24, 3), np.uint8),
            "wrist": np.zeros((3, 32, 24, 3), np.uint8),
        },
    )
    with pytest.raises(
        EpisodeError, match="expected images of one size, got .*Choose by --cameras"
    ):
        training.frames_of([episode], [])
    assert training.frames_of([episode], ["wrist"]).images.shape == (1, 3, 32, 24)


def test_what_may_show_it_already_is_left_out_and_what_is_none_by_name_is_none():
    episodes = [
        SimpleNamespace(
            id=name,
            success=name != "c",
            stamps_ns=np.arange(9) * 10**8,
            observations={"front": np.zeros((9, 24, 24, 3), np.uint8)},
        )
        for name in "abc"
    ]
    labelled = training.frames_of(episodes, [], failed=["b"])
    assert [int(sum(labelled.episodes == number)) for number in range(3)] == [6, 9, 9]
    assert labelled.success.tolist() == [False] * 5 + [True] + [False] * 18


def test_the_command_trains_on_recordings_and_says_how_it_errs(tmp_path, capsys, recorded):
    out = tmp_path / "model.safetensors"
    assert (
        main(
            [
                "reward",
                "train",
                recorded,
                "--out",
                str(out),
                "--steps",
                "60",
                "--json",
                str(tmp_path / "scores.json"),
            ]
        )
        == 0
    )
    output = capsys.readouterr().out
    assert (
        "frames of held-out episodes; missed" in output
        and out.with_suffix(".png").stat().st_size > 1000
    )
    assert json.loads((tmp_path / "scores.json").read_text())["positives"] == 2
    assert Network.load(out).cameras == ("camera/front/image",)
    assert (
        main(["reward", "train", recorded, "--out", str(tmp_path / "other"), "--failed", "nobody"])
        == 1
    )
    assert (
        "--failed: expected ids of episodes in these recordings, got nobody"
        in capsys.readouterr().err
    )
    assert main(["reward", "train", recorded, "--out", str(out)]) == 1
    assert "nothing is overwritten" in capsys.readouterr().err
    assert (
        main(["reward", "train", recorded, "--out", str(tmp_path / "b"), "--cameras", "top"]) == 1
    )
    assert "expected the cameras top, got front" in capsys.readouterr().err


@pytest.mark.parametrize(
    "out, existing",
    [
        ("success.v2", "success.v2.png"),
        ("model.png", "model.png.png"),
        ("success.safetensors", "success.png"),
    ],
)
def test_a_picture_that_is_there_stays(out, existing, tmp_path, capsys, recorded):
    (tmp_path / existing).write_text("mine")
    assert main(["reward", "train", recorded, "--out", str(tmp_path / out)]) == 1
    assert f"expected a name whose picture {existing} does not exist yet" in capsys.readouterr().err
    assert (tmp_path / existing).read_text() == "mine" and not (tmp_path / out).exists()


def test_the_picture_of_another_model_and_the_model_itself_stay(tmp_path, recorded):
    (tmp_path / "success.png").write_text("mine")
    for out in ("success.v2", "model.png"):
        assert (
            main(["reward", "train", recorded, "--out", str(tmp_path / out), "--steps", "1"]) == 0
        )
        assert (
            Network.load(tmp_path / out).cameras and (tmp_path / f"{out}.png").stat().st_size > 1000
        )
    assert (tmp_path / "success.png").read_text() == "mine"


def test_a_full_disk_is_one_line_and_leaves_nothing_in_the_way_of_the_next_try(
    tmp_path, capsys, recorded
):
    command = ["reward", "train", recorded, "--out", str(tmp_path / "new/model"), "--steps", "1"]
    with full_disk():
        assert main(command) == 1
    error = capsys.readouterr().err
    assert (
        error.startswith(f"rlinf: --out {tmp_path}/new/model: cannot be written: ")
        and "File too large" in error
    )
    assert error.count("\n") == 1 and not list((tmp_path / "new").iterdir())
    assert main(command) == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"model", "model.png"}
    assert (tmp_path / "new/model.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_could_not_be_written_is_not_trained(tmp_path, capsys, recorded, monkeypatch):
    from rlinf_core.tasks.rewards import training

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("it was trained"))
    assert main(["reward", "train", recorded, "--out", str(tmp_path / "file/model")]) == 1
    assert capsys.readouterr().err == f"rlinf: {tmp_path}/file: File exists\n"


@pytest.mark.parametrize(
    "hz, late_s, negatives", [(10, 0.3, 16), (10, 1.0, 9), (30, 0.3, 10), (30, 0.0, 16)]
)
def test_what_may_show_success_before_it_is_said_is_left_out_by_time_and_three_frames_at_least(
    hz, late_s, negatives
):
    images = np.zeros((20, SIZE, SIZE, 3), np.uint8)
    stamps = np.round(np.arange(20) * 1e9 / hz).astype(np.int64)
    won, lost = (
        SimpleNamespace(
            id=name, observations={"front": images}, success=name == "won", stamps_ns=stamps
        )
        for name in ("won", "lost")
    )
    labelled = training.frames_of([won, lost], ["front"], late_s=late_s)
    of_won = labelled.success[labelled.episodes == 0]
    assert of_won.tolist() == [False] * negatives + [True] and (labelled.episodes == 1).sum() == 20
