"""Ingest on Ray: what arrived is read elsewhere, in order, by the same rules, though a process of
it is killed.
"""

import json
import os
import signal
from collections import deque

import numpy as np
import pytest
import ray

from rlinf_core.core.errors import IngestError
from rlinf_core.episodes.spool import Spool
from rlinf_core.trainer.distributed.readers import PREFETCHED_EPISODES, Readers
from rlinf_core.trainer.sources.recordings import Intake
from rlinf_core.trainer.sources.stations import Stations
from tests.messages import record


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


@pytest.fixture
def intake(task, tmp_path):
    intake = Intake(tmp_path / "run", task.spec, 49)
    intake.readers = Readers(2, "", intake.spec, intake.max_transitions, False, None)
    yield intake
    intake.readers.close()


def test_each_is_read_as_in_one_process_and_refused_for_the_same_reason(
    intake, spool, task, tmp_path
):
    folders = [
        record(spool, task.spec, f"a-{n}", start=10.0 * n, steps=60 if n == 3 else 5).close()
        for n in range(7)
    ]
    (folders[4] / "a-4.mcap").write_bytes(b"damaged")
    (folders[5] / "more").mkdir()
    alone = Intake(tmp_path / "alone", task.spec, 49)
    taken, theirs = [], []
    intake.prefetch(folders)
    assert len(intake.readers._pending) == 2 * PREFETCHED_EPISODES, "no more than they have to do"
    for folder in folders:
        reason = alone.take(
            folder, lambda trajectory: theirs.append(trajectory) or "online", owns_folder=False
        )
        answer = intake.take(
            folder, lambda trajectory: taken.append(trajectory) or "online", owns_folder=False
        )
        assert (
            reason.startswith("refused")
            == answer.startswith("refused")
            == (folder.name in ("a-3", "a-4", "a-5"))
        )
        assert folder.name != "a-3" or reason == answer
    assert (
        [trajectory.id for trajectory in taken]
        == [trajectory.id for trajectory in theirs]
        == ["a-0", "a-1", "a-2", "a-6"]
    )
    for one, other in zip(taken, theirs, strict=True):
        np.testing.assert_array_equal(one.observations["vectors"], other.observations["vectors"])
        np.testing.assert_array_equal(one.actions, other.actions)


def test_a_process_that_is_killed_is_replaced_and_nothing_is_lost_or_out_of_order(
    intake, spool, task, tmp_path, capsys
):
    taken = []
    stations = Stations(
        "127.0.0.1:0",
        tmp_path / "run",
        intake,
        lambda trajectory: taken.append(trajectory.id) or "online",
    )
    names = [f"a-{n}" for n in range(12)]
    stations.arrived.extend(record(spool, task.spec, name).close() for name in names)
    killed = ray.get(intake.readers._actors[0].pid.remote())
    intake.prefetch(stations.arrived)
    os.kill(killed, signal.SIGKILL)
    while stations.arrived:
        stations.take(0, {})
    stations.close()
    assert taken == names and intake.readers.died == 1
    assert "ingest process 0 died and is replaced (1 of 10)" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows if row["status"] == "online"] == names


def test_where_they_die_again_and_again_the_trainer_ends_and_no_episode_is_blamed(
    intake, spool, task, monkeypatch
):
    monkeypatch.setattr("rlinf_core.trainer.distributed.readers.RESTARTS", 0)
    for actor in intake.readers._actors:
        os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    waiting = deque([record(spool, task.spec, "a-1").close()])
    with pytest.raises(IngestError, match="(?s)ingest processes died 1 times.*Nothing is lost"):
        intake.take(waiting[0], lambda trajectory: "online")
    assert waiting[0].is_dir() and not intake.ids
