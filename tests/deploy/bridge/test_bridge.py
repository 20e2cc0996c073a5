import hashlib
import multiprocessing
import os
import signal
import threading
import time

import grpc
import pytest

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.core.errors import BridgeError, EpisodeError, UnreachableError
from rlinf_core.deploy.bridge.client import BridgeClient, episode_offer, prepare_offer
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.checksums import seal, verify
from rlinf_core.episodes.journal import Journal
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.policy_folder import policy_name
from tests.messages import record

pytestmark = pytest.mark.timed


@pytest.fixture
def arrived():
    return []


@pytest.fixture
def trainer(tmp_path, arrived):
    trainer = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "inbox",
        tmp_path / "policies",
        arrived.append,
        lambda: {"phase": "online", "updates": 7, "accepting": True, "metrics": {"q": 0.5}},
    )
    yield trainer
    trainer.stop()


def test_an_episode_arrives_whole_and_once(spool, task, trainer, client, arrived):
    folder = record(spool, task.spec, steps=8).close()
    assert client.upload(folder) is False
    assert client.upload(folder) is True, "a second time it is a duplicate, and fine"
    assert [path.name for path in arrived] == ["a-1"] and trainer.journal.ids() == ["a-1"]
    assert len(read_episode(trainer.inbox.folder / "a-1")) == 8


def test_what_is_on_its_way_lies_hidden_in_the_inbox(spool, task, trainer, arrived):
    """An upload is on the inbox's disk, from where it can be renamed, under a hidden name."""
    episode = episode_offer(record(spool, task.spec).close())
    receiving = trainer.inbox.receive("a", episode)
    (part_folder,) = trainer.inbox.folder.iterdir()
    assert (
        part_folder == receiving.folder and part_folder.name.startswith(".part-a-") and not arrived
    )


def test_a_client_looks_for_its_trainer_every_two_seconds_at_least_and_notices_when_it_is_gone(
    monkeypatch,
):
    channels, channel = [], grpc.insecure_channel

    def make(address, options):
        channels.append((address, dict(options)))
        return channel(address, options)

    monkeypatch.setattr(grpc, "insecure_channel", make)
    BridgeClient("trainer:1", "a").close()
    ((address, options),) = channels
    assert address == "trainer:1" and options["grpc.max_reconnect_backoff_ms"] == 2000
    assert (
        options["grpc.keepalive_time_ms"] == 20_000
        and options["grpc.keepalive_timeout_ms"] == 10_000
    )


def test_another_recording_under_the_same_id_is_refused(spool, task, trainer, client, tmp_path):
    client.upload(record(spool, task.spec).close())
    other = record(Spool(tmp_path / "other"), task.spec, start=5.0).close()
    with pytest.raises(BridgeError, match="another recording with this id"):
        client.upload(other)


def test_large_files_go_in_parts(trainer, client, tmp_path):
    folder = tmp_path / "big"
    folder.mkdir()
    data = os.urandom(5 * (1 << 20) + 17)
    (folder / "x.mcap").write_bytes(data)
    (folder / "empty").write_bytes(b"")
    seal(folder)
    client.upload(folder)
    assert (trainer.inbox.folder / "big" / "x.mcap").read_bytes() == data
    assert (trainer.inbox.folder / "big" / "empty").read_bytes() == b""


def test_policies_come_down_when_they_are_newer(trainer, client, tmp_path):
    assert client.next_policy(-1, tmp_path / "station", wait_s=0.3) is None
    data = os.urandom(3 << 20)

    def publish():
        time.sleep(0.3)
        (trainer.policies / ".part").write_bytes(data)
        publish_file(trainer.policies / ".part", trainer.policies / policy_name(4))

    threading.Thread(target=publish).start()
    version, path, sha = client.next_policy(-1, tmp_path / "station", wait_s=10)
    assert version == 4 and path.read_bytes() == data and sha == hashlib.sha256(data).hexdigest()
    assert client.next_policy(4, tmp_path / "station", wait_s=0.3) is None
    assert [p.name for p in (tmp_path / "station").iterdir()] == [policy_name(4)], (
        "nothing half-fetched is left"
    )


def test_reports_say_how_the_trainer_does(client):
    report = client.report(backlog=3, policy_version=1)
    assert (report.phase, report.updates, report.accepting, report.metrics["q"]) == (
        "online",
        7,
        True,
        0.5,
    )


def test_a_port_in_use_is_said_with_the_fix(trainer, tmp_path):
    with pytest.raises(BridgeError, match=f"{trainer.port}: the port is in use.*bridge.port="):
        BridgeServer(f"127.0.0.1:{trainer.port}", tmp_path / "i", tmp_path / "p", print, dict)


def test_a_trainer_that_is_away_is_an_error_to_retry(tmp_path, spool, task):
    client = BridgeClient("127.0.0.1:1", "a")
    with pytest.raises(BridgeError, match="unavailable"):
        client.upload(record(spool, task.spec).close(), timeout_s=5)


def _serve(port, root):
    BridgeServer(f"127.0.0.1:{port}", root / "inbox", root / "policies", lambda folder: None, dict)
    signal.pause()


@pytest.mark.timeout(120)
def test_an_episode_is_read_once_while_no_trainer_is_there_and_before_it_is_sent(
    tmp_path, spool, task, monkeypatch
):
    folder, reads = record(spool, task.spec).close(), []
    monkeypatch.setattr(
        "rlinf_core.deploy.bridge.client.verify",
        lambda directory: reads.append(directory) or verify(directory),
    )
    [recording] = folder.glob("*.mcap")
    away = BridgeClient("127.0.0.1:1", "a")
    try:
        for _ in range(4):
            with pytest.raises(UnreachableError):
                away.upload(folder, timeout_s=5.0)
        assert len(reads) == 1
        recording.write_bytes(recording.read_bytes()[:-1])
        with pytest.raises(EpisodeError, match="expected an intact rosbag2 recording"):
            away.upload(folder)
    finally:
        away.close()
    folder = record(spool, task.spec, "two").close()
    server = BridgeServer(
        "127.0.0.1:0", tmp_path / "run/inbox", tmp_path / "run/policies", print, dict
    )
    client = BridgeClient(f"127.0.0.1:{server.port}", "a")
    try:
        # as a trainer that was away leaves it
        client._offered = prepare_offer(folder)
        reads.clear()
        assert not client.upload(folder) and reads == [folder], "what is sent is what was closed"
    finally:
        client.close()
        server.stop()


def test_a_server_killed_again_and_again_ends_with_every_episode_exactly_once(
    tmp_path, spool, task
):
    """SIGKILL in the middle of uploads; the station just sends again until it is acknowledged."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = []
    for index in range(12):
        folder = record(spool, task.spec, f"e{index:02d}", steps=20).close()
        (folder / "pad").write_bytes(os.urandom(6 << 20))
        seal(folder)
        folders.append(folder)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(port, tmp_path))
    process.start()
    client, kills, pending = BridgeClient(f"127.0.0.1:{port}", "a"), 0, list(folders)

    def kill():
        nonlocal process, kills
        while pending:
            time.sleep(0.15 + 1.5)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            process = context.Process(target=_serve, args=(port, tmp_path))
            process.start()
            if kills >= 3:
                return

    killer = threading.Thread(target=kill)
    killer.start()
    while pending:
        try:
            client.upload(pending[0], timeout_s=10)
            pending.pop(0)
            time.sleep(0.1)
        except BridgeError:
            time.sleep(0.1)
    killer.join()
    process.kill()
    process.join()
    assert kills >= 1
    assert Journal(tmp_path / "journal.jsonl").ids() == [folder.name for folder in folders]
    for folder in folders:
        assert (tmp_path / "inbox" / folder.name / "pad").read_bytes() == (
            folder / "pad"
        ).read_bytes()
        assert len(read_episode(tmp_path / "inbox" / folder.name)) == 20
