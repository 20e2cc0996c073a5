"""A lack of disk or memory ends no run and refuses no episode; a folder has one run."""

import contextlib
import errno
import os
import resource
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from rlinf_core.cli.demo import check_and_write
from rlinf_core.cli.main import main
from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.episodes.spool import Spool
from rlinf_core.launch.fleet import members
from rlinf_core.launch.preflight import check_trainer
from rlinf_core.policies.policy_folder import newest_version, policy_files
from rlinf_core.recipes import load_recipe, recipe_yaml
from rlinf_core.trainer import checkpoint, progress
from rlinf_core.trainer.folder import check_same_recipe, lock_folder, write_recipe
from rlinf_core.trainer.sources import stations
from rlinf_core.trainer.sources.recordings import LATER, Intake, read_recordings
from rlinf_core.trainer.sources.stations import Stations
from rlinf_core.trainer.train import train
from tests.algorithms.point import points
from tests.messages import record
from tests.trainer.test_begun_again import SMALL as TINY
from tests.trainer.test_run import run_of, shown, turn

SAC = (
    "algorithm={name: sac, critic_hidden: [16], batch_size: 16}",
    "simulation.env_steps=40",
    *TINY,
)
READ = "rlinf_core.rollouts.episode_conversion.read_episode"


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


@contextlib.contextmanager
def full_disk():
    """No file of this process grows beyond a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # of TensorBoard's own thread
def test_a_full_disk_ends_no_run_and_what_it_did_not_take_is_written_when_there_is_room(
    spool, task, tmp_path, capsys
):
    run, two = run_of(task, tmp_path / "run"), record(spool, task.spec, "two").close()
    shown(run, spool, "one", mode="demonstration")
    turn(run, 3)
    assert run.is_last_stage and run.version == 1

    def files_on_disk():
        return policy_files(run.run_dir / "policies"), checkpoint.checkpoints(
            run.run_dir / "checkpoints"
        )

    run.save()
    before, _ = files_on_disk(), capsys.readouterr()
    with full_disk():
        run.published_at, run.saved, run.saved_at, run.progress.written_at = -1, (), -1e9, -1e9
        turn(run, 5)
        end = time.monotonic() + 60
        while "curves" not in run.disk.retry_at:  # TensorBoard says it later
            run.progress.written_at = -1e9
            turn(run)
            assert time.monotonic() < end
        assert run.intake.take(two, run.insert) == "online"
    log = capsys.readouterr().out
    # each by itself: one that is never taken keeps no other
    for what in (
        "a policy",
        "a checkpoint",
        "curves",
    ):
        assert log.count(f"{what} cannot be written: ") == 1
    assert (
        log.count("Training continues, and the trainer retries every 10 s. Free disk space") == 3
        and "File too large" in log
    )
    assert "episode two: online, but the journal cannot be written" in log
    assert files_on_disk() == before and run.version == 1
    assert not [*run.run_dir.glob("policies/.*"), *run.run_dir.glob("checkpoints/.*")], (
        "half a file keeps a full disk full"
    )
    run.disk.retry_at.clear()
    turn(run)
    assert newest_version(run.run_dir / "policies") == run.version == 2
    assert len(files_on_disk()[1]) == len(before[1]) + 1
    run.progress.write(7, {"steps": 3.0})
    run.progress.close()


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o027, 0o640)])
def test_what_is_written_may_be_read_by_whoever_may_read_other_files(mask, mode, tmp_path):
    """A policy by the station that it is sent to, say, where that is another user."""
    before = os.umask(mask)
    try:
        for _ in range(2):  # the second in the place of the first
            write_atomically(
                tmp_path / "policy", lambda aside: save_file({"x": np.zeros(3)}, aside)
            )
            write_atomically(tmp_path / "recipe", lambda aside: aside.write_text("x"))
        (tmp_path / ".policy.part").write_text("left by a crash")
        (tmp_path / ".policy.part").chmod(0o600)
        write_atomically(tmp_path / "policy", lambda aside: save_file({"x": np.zeros(3)}, aside))
        folder = checkpoint.save(tmp_path / "checkpoints", "u", {"x": np.zeros(3)})
    finally:
        os.umask(before)
    files = [tmp_path / "policy", tmp_path / "recipe", *folder.iterdir()]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [mode] * 5


@pytest.mark.parametrize(
    "number, remedy",
    [
        (errno.ENOSPC, "Free disk space and run the command again"),
        (errno.EROFS, "Choose a writable folder"),
    ],
)
def test_what_the_disk_does_not_take_is_one_line_with_file_and_remedy(
    number, remedy, tmp_path, monkeypatch, capsys
):
    def refused(path, write):
        raise OSError(number, os.strerror(number))  # as a write does, without the file

    monkeypatch.setattr("rlinf_core.core.atomic_io.write_with_usual_mode", refused)
    assert (
        main(
            ["train", "sim_sac", "--out", str(tmp_path / "run"), "--set", "simulation.env_steps=40"]
        )
        == 1
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"rlinf: {tmp_path / 'run/recipe.yaml'}: {os.strerror(number)}. {remedy}"
    assert "Traceback" not in "".join(lines)


def test_a_trainer_that_dies_before_its_first_checkpoint_uses_no_version_again(
    spool, task, tmp_path
):
    run_of(task, tmp_path / "run").publish()
    again = run_of(task, tmp_path / "run")
    assert again.version == 1
    again.publish()
    assert again.version == 2


def test_what_lacks_is_tried_again_later_and_what_no_room_mends_is_raised(tmp_path, monkeypatch):
    disk, tried, now = progress.DiskGuard(tmp_path), [], time.monotonic()

    def refuses(number):
        def write():
            tried.append(number)
            raise OSError(number, os.strerror(number))

        return write

    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    for _ in range(3):
        disk.try_write("a policy", refuses(errno.ENOSPC))
    now += progress.RETRY_S + 0.1
    disk.try_write("a policy", refuses(errno.ENOSPC))
    assert len(tried) == 2
    for number in (errno.EACCES, errno.ENOENT, errno.EROFS):
        with pytest.raises(OSError, match=os.strerror(number)):
            disk.try_write("another", refuses(number))
    for number in (
        errno.ESTALE,
        errno.ENOMEM,
        errno.ENFILE,
        errno.EMFILE,
        errno.EDQUOT,
        errno.EAGAIN,
        errno.EFBIG,
    ):
        disk.try_write(str(number), refuses(number))


def test_a_trainer_keeps_its_folder_from_its_first_turn_to_its_last(tmp_path):
    take = (
        "import sys; from pathlib import Path; from rlinf_core.trainer.folder import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): pass"
    )
    recipe, codes = load_recipe("sim_sac", [*SAC]), []

    def on_progress(run, entry):
        if not codes:
            codes.append(
                subprocess.run(
                    [sys.executable, "-c", take, str(tmp_path)], capture_output=True, check=False
                )
            )

    write_recipe(recipe, tmp_path)  # as whoever starts a trainer does
    train(recipe, tmp_path, points, on_progress)
    assert b"another trainer is using this folder" in codes[0].stderr
    with lock_folder(tmp_path):
        pass


def lacking(monkeypatch, error):
    def read(folder, sealed):
        raise error

    monkeypatch.setattr(READ, read)


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EMFILE, "Too many open files"), OSError(errno.EIO, "")]
)
def test_an_episode_that_cannot_be_read_now_is_read_again(
    error, spool, task, tmp_path, monkeypatch, capsys
):
    taken, run_dir = [], tmp_path / "run"
    folder = record(spool, task.spec, "one").close()
    intake = Intake(run_dir, task.spec, 100)
    bridge = Stations(
        "127.0.0.1:0", run_dir, intake, lambda trajectory: taken.append(trajectory) or "online"
    )
    try:
        bridge.arrived.append(folder)
        with monkeypatch.context() as less:
            lacking(less, error)
            less.setattr(stations, "RETRY_S", 0.0)
            bridge.take(0, {})
        output = capsys.readouterr().out
        assert (
            output.startswith(f"{LATER}: episode one: {type(error).__name__}")
            and "stays in the inbox" in output
        )
        assert folder.exists() and not taken and not intake.ids and not intake.counts()["refused"]
        bridge.take(0, {})
        assert [trajectory.id for trajectory in taken] == ["one"] and intake.ids == {
            "one": "online"
        }
        bridge.take(0, {})
        assert (
            not bridge.later
            and not bridge.arrived
            and len(intake.journal.path.read_text().splitlines()) == 1
        )
        bridge.arrived.append(record(spool, task.spec, "two").close())
        lacking(monkeypatch, error)
        capsys.readouterr()
        for _ in range(3):
            bridge.take(0, {})
        assert capsys.readouterr().out.count(LATER) == 1 and len(bridge.later) == 1, "for a minute"
    finally:
        bridge.close()


def test_recordings_that_cannot_be_read_now_are_not_left_out_without_a_word(
    spool, task, tmp_path, monkeypatch
):
    record(spool, task.spec, "one").close()
    lacking(monkeypatch, MemoryError())
    with pytest.raises(
        RlinfError, match="collect.recordings: 1 cannot be read now: episode one: MemoryError"
    ):
        read_recordings(
            (str(spool.root),),
            Intake(tmp_path / "run", task.spec, 100),
            lambda trajectory: "online",
        )


def begun(folder, *overrides):
    """Return a folder of a run that has a checkpoint; what its recipe says."""
    write_recipe(load_recipe("demo", [*overrides]), folder)
    checkpoint.save(folder / "checkpoints", "updates-0", {"n": [0]})
    return (folder / "recipe.yaml").read_text()


def test_another_recipe_does_not_take_the_place_of_that_of_the_run_that_is_there(tmp_path):
    before = begun(tmp_path / "run")
    other = load_recipe("demo", ["seed=3"])
    for begin in (
        lambda: check_and_write(other, tmp_path / "run"),
        lambda: train(other, tmp_path / "run"),
        lambda: write_recipe(other, tmp_path / "run"),
        lambda: members("demo", ["seed=3"], ["2"], tmp_path / "run"),
    ):
        with pytest.raises(
            RecipeError,
            match="seed: expected 0, the value of the run in .*run, got 3",
        ):
            begin()
        assert (tmp_path / "run/recipe.yaml").read_text() == before


BY_HAND = "# mine\ndefaults: demo\nname: mine\n"


@pytest.mark.parametrize(
    "text",
    [
        BY_HAND,
        "name: mine\nseed: 1\n",
        "# what I changed\n{}",
        "{}",
        "a: [",
        "\udcff",
        pytest.param("[" * 5000, marks=pytest.mark.slow),
    ],
    ids=["base", "short", "commented", "edited", "cut", "bytes", "deep"],
)
def test_a_recipe_that_a_person_has_written_stays_whatever_is_begun_in_its_folder(text, tmp_path):
    path, recipe = tmp_path / "recipe.yaml", load_recipe("demo", ["bridge.port=50998"])
    written = text.replace("{}", recipe_yaml(recipe).replace("seed: 0", "seed: 0 ")).encode(
        "utf-8", "surrogateescape"
    )
    path.write_bytes(written)
    for begin in (
        lambda: check_trainer(recipe, tmp_path),
        lambda: check_and_write(recipe, tmp_path),
        lambda: train(recipe, tmp_path),
        lambda: write_recipe(recipe, tmp_path),
    ):
        with pytest.raises(
            RecipeError,
            match="recipe.yaml: expected no file or one of a run, got another",
        ):
            begin()
    assert path.read_bytes() == written and not (tmp_path / "plan.json").exists()


def test_the_recipe_that_was_given_is_not_written_over(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(BY_HAND)
    assert (
        main(
            [
                "up",
                str(tmp_path / "recipe.yaml"),
                "--out",
                str(tmp_path),
                "--set",
                "station.domain_id=97",
            ]
        )
        == 2
    )
    assert "Choose another --out, or rename the file" in capsys.readouterr().err
    assert (tmp_path / "recipe.yaml").read_text() == BY_HAND and not (tmp_path / "logs").exists()


@pytest.mark.parametrize("name", ["demo", "sim_vla", "sim_embodiments", "franka_twin"])
def test_what_a_run_has_written_is_written_again(name, tmp_path):
    for overrides in (["seed=1"], ["seed=2", "algorithm.learning_rate=1e-5"], []):
        write_recipe(load_recipe(name, overrides), tmp_path)
    before = (tmp_path / "recipe.yaml").read_text()
    # of a release that knew no such section
    (tmp_path / "recipe.yaml").write_text(before.partition("release:")[0])
    write_recipe(load_recipe(tmp_path / "recipe.yaml"), tmp_path)
    assert (tmp_path / "recipe.yaml").read_text() == before


def test_a_run_of_a_release_without_a_section_goes_on(tmp_path):
    """Its recipe has neither ``placement.replay_shards`` nor ``world.run``."""
    document = yaml.safe_load(begun(tmp_path))
    del document["placement"], document["world"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(document))
    check_same_recipe(load_recipe("demo"), tmp_path)
    with pytest.raises(RecipeError, match="seed: expected 0, the value of the run in .*, got 3"):
        check_same_recipe(load_recipe("demo", ["seed=3"]), tmp_path)


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "seed: 0\nalgorithm: 3\n", "\udcff"])
def test_a_recipe_that_is_damaged_is_said(text, tmp_path):
    begun(tmp_path / "run")
    (tmp_path / "run/recipe.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(
        RecipeError,
        match="recipe.yaml: expected the recipe of this run, got a damaged",
    ):
        check_same_recipe(load_recipe("demo"), tmp_path / "run")


def test_a_folder_has_one_trainer_and_the_lock_of_a_dead_one_is_free(tmp_path):
    hold = (
        "import sys, time; from pathlib import Path; from rlinf_core.trainer.folder import "
        "lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(
            RlinfError,
            match="another trainer is using this folder. Stop it, or choose another --out",
        ):
            train(load_recipe("demo", ["bridge.port=50999"]), tmp_path)
        assert not (tmp_path / "recipe.yaml").exists()
        write_recipe(load_recipe("demo"), tmp_path)
        with pytest.raises(RecipeError, match="seed: expected 0"):
            # though it has no checkpoint yet
            write_recipe(load_recipe("demo", ["seed=3"]), tmp_path)
        other.kill()
        other.wait()
    write_recipe(load_recipe("demo", ["seed=3"]), tmp_path)
    with lock_folder(tmp_path):
        assert not checkpoint.checkpoints(tmp_path)


def test_a_run_holds_its_folder_from_the_first_turn_to_the_last(tmp_path):
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    lock, errors = tmp_path / "run/.trainer.lock", []

    def take():
        return subprocess.run(
            [sys.executable, "-c", code, str(lock)], stderr=subprocess.PIPE, text=True
        ).stderr

    def on_progress(run, entry):
        if entry:
            errors.append(take())

    recipe = load_recipe("sim_sac", SAC)
    train(recipe, tmp_path / "run", points, on_progress)
    assert len(errors) >= 2 and all("BlockingIOError" in error for error in errors)
    assert take() == "", "and gives it up"


@pytest.mark.parametrize(
    "change, message",
    [
        ("station.task=reach", "station.task: expected"),
        ("station.robot=ur5e_twin", "station.robot: expected"),
    ],
)
def test_a_run_does_not_go_on_with_another_task_or_robot(tmp_path, change, message):
    write_recipe(load_recipe("demo"), tmp_path)
    (tmp_path / "checkpoints/00000001-x").mkdir(parents=True)
    (tmp_path / "checkpoints/00000001-x/state.json").write_text("{}")
    check_same_recipe(load_recipe("demo"), tmp_path)
    with pytest.raises(RecipeError, match=message):
        check_same_recipe(load_recipe("demo", [change]), tmp_path)
