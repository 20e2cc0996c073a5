"""The sender of an episode, which must be its station; and journals of earlier releases."""

import sqlite3

import pytest

from rlinf_core.core.errors import EpisodeError
from rlinf_core.deploy.bridge.client import BridgeClient, Sender
from rlinf_core.episodes.journal import Journal
from rlinf_core.episodes.spool import Spool
from rlinf_core.trainer.sources.recordings import Intake
from rlinf_core.trainer.sources.stations import Stations
from tests.messages import record


@pytest.fixture
def stations(tmp_path, task):
    taken = []
    intake = Intake(tmp_path / "run", task.spec, 100)
    stations = Stations(
        "127.0.0.1:0",
        tmp_path / "run",
        intake,
        lambda trajectory: taken.append(trajectory.id) or "online",
    )
    stations.taken = taken
    yield stations
    stations.close()


def test_an_episode_of_another_station_than_the_one_that_sent_it_is_set_aside_with_the_reason(
    stations, task, tmp_path
):
    spool = Spool(tmp_path / "spool")
    for name, sender in (("by_a", "a"), ("by_b", "b")):  # both say that they are of station a
        record(spool, task.spec, name).close()
        client = BridgeClient(f"127.0.0.1:{stations.server.port}", sender)
        assert Sender(spool, client, print).send_all() == ""
        client.close()
    stations.take(0, {})
    assert stations.taken == ["by_a"] and not (tmp_path / "run/inbox/by_b").exists()
    assert (tmp_path / "run/refused/by_b").is_dir()
    reason = (tmp_path / "run/refused/by_b.reason.txt").read_text()
    assert "station: expected 'b', the name of its sender, got a recording of 'a'" in reason
    again = Intake(tmp_path / "run", task.spec, 100)  # who sent it is known after a restart too
    assert (
        again.journal.station("by_a"),
        again.journal.station("by_b"),
        again.journal.station("x"),
    ) == ("a", "b", "")


def test_a_run_of_an_earlier_release_is_refused_by_name_and_left_as_it_is(tmp_path, task):
    (tmp_path / "run/inbox").mkdir(parents=True)
    sqlite3.connect(tmp_path / "run/inbox/journal.sqlite").close()
    with pytest.raises(
        EpisodeError, match=r"a run of this release, got .*journal\.sqlite.*collect\.recordings=\["
    ):
        Intake(tmp_path / "run", task.spec, 100)
    assert not (tmp_path / "run/journal.jsonl").exists()


def test_a_journal_line_without_a_station_is_told(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"id": "a", "status": "arrived", "sha256": "0"}\n')
    with pytest.raises(EpisodeError, match="line 1: expected a JSON object"):
        Journal(path)
