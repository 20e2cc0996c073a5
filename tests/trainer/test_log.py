"""The lines of a trainer reach its log file when they are written, not when a buffer is full."""

import errno
import io
import time
from contextlib import redirect_stdout

import numpy as np
import pytest

from rlinf_core.episodes.spool import Spool
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.progress import RETRY_S, DiskGuard
from rlinf_core.trainer.sources.recordings import LATER, Intake
from rlinf_core.trainer.sources.stations import RETRY_S as READ_AGAIN_S
from rlinf_core.trainer.sources.stations import Stations
from tests.messages import record


class Log(io.TextIOWrapper):
    """A log file in memory."""

    def __init__(self):
        self.file = io.BytesIO()
        super().__init__(self.file)

    def lines(self):
        """Return the lines in the file since the last call."""
        text = self.file.getvalue().decode()
        self.file.seek(0)
        self.file.truncate()
        return text.splitlines()


def raises(error):
    def call(*_, **__):
        raise error

    return call


def test_an_episode_that_cannot_be_read_now_is_read_again_later_and_later(task, tmp_path):
    (tmp_path / "run").mkdir()
    intake = Intake(tmp_path / "run", task.spec, 100)
    stations = Stations("127.0.0.1:0", tmp_path / "run", intake, [].append)
    try:
        intake.trajectory = raises(OSError(errno.EMFILE, "too many open files"))
        folder = record(Spool(tmp_path / "spool"), task.spec, "one").close()
        for tries in (1, 2, 3):
            with redirect_stdout(Log()) as log:
                stations._read(folder)
                (line,) = log.lines()
            assert line.startswith(f"{LATER}: episode one: OSError: ")
            assert line.endswith(
                "too many open files. It stays in the inbox; the trainer reads it again in "
                f"{60 * tries} s"
            )
            due, path = stations.later[-1]
            assert path == folder
            assert due - time.monotonic() == pytest.approx(READ_AGAIN_S * tries, abs=30.0)
        stations.later = [(time.monotonic() - 1.0, folder), (time.monotonic() + 99.0, tmp_path)]
        del intake.trajectory
        stations.take(0, {})
        assert intake.ids == {"one": "None"} and [path for _, path in stations.later] == [tmp_path]
    finally:
        stations.close()


def test_a_refused_episode_is_named_and_moved_or_it_says_why_not(task, tmp_path, monkeypatch):
    spool, run_dir = Spool(tmp_path / "spool"), tmp_path / "run"
    run_dir.mkdir()
    intake = Intake(run_dir, task.spec, 3)
    first, second = (record(spool, task.spec, name, steps=9).close() for name in ("a-1", "a-2"))
    with redirect_stdout(Log()) as log:
        status = intake.take(first, [].append)
        assert log.lines() == [status]
    assert status.startswith("refused: episode a-1")
    assert not first.exists() and (run_dir / "refused" / "a-1").is_dir()
    monkeypatch.setattr(
        "rlinf_core.trainer.sources.recordings.quarantine", raises(OSError("read-only"))
    )
    with redirect_stdout(Log()) as log:
        status = intake.take(second, [].append)
        assert log.lines() == [status, f"{second}: cannot be moved: read-only"]
    assert second.exists()


def test_a_journal_that_cannot_be_written_is_named_and_the_episode_counts(
    task, tmp_path, monkeypatch
):
    (tmp_path / "run").mkdir()
    intake = Intake(tmp_path / "run", task.spec, 100)
    monkeypatch.setattr(intake.journal, "taken", raises(OSError("disk full")))
    folder = record(Spool(tmp_path / "spool"), task.spec, "a-1").close()
    with redirect_stdout(Log()) as log:
        assert intake.take(folder, lambda trajectory: "online") == "online"
        assert log.lines() == [
            "episode a-1: online, but the journal cannot be written: disk full. Free disk space"
        ]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_said_to_be_taken(tmp_path):
    root, damaged_root = tmp_path / "checkpoints", tmp_path / "damaged"
    older, newer = (checkpoint.save(root, name, {"a": np.arange(3)}) for name in ("one", "two"))
    (newer / "state.json").write_text("{")
    with redirect_stdout(Log()) as log:
        assert checkpoint.load_newest(root, ("a",), damaged_root)["a"].tolist() == [0, 1, 2]
        damaged, goes_on, quarantined = log.lines()
    assert damaged.startswith(f"checkpoint {newer}: expected arrays.safetensors and state.json")
    assert goes_on == f"checkpoint {older}: the run continues from this intact checkpoint"
    (moved,) = [path for path in damaged_root.iterdir() if path.is_dir()]
    assert quarantined == f"checkpoint {newer}: kept as {moved}" and not newer.exists()


def test_a_disk_that_refuses_is_named_once_in_a_while(tmp_path):
    disk = DiskGuard(tmp_path)
    with redirect_stdout(Log()) as log:
        for _ in range(2):
            disk.try_write("curves", raises(OSError(errno.ENOSPC, "No space left")))
        (line,) = log.lines()
    assert line.startswith(f"{tmp_path}: curves cannot be written: ")
    assert line.endswith(
        f"Training continues, and the trainer retries every {RETRY_S:.0f} s. Free disk space"
    )
