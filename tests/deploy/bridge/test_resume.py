"""Uploads that are cut go on where they were, whatever died; what was damaged is sent again; each
episode arrives once.
"""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge import PART_BYTES, server
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.client import BridgeClient, Sender, episode_offer, parts
from rlinf_core.episodes.checksums import seal
from rlinf_core.episodes.journal import Journal
from rlinf_core.episodes.spool import Spool
from tests.deploy.bridge.conftest import Stalled, serve, until

pytestmark = pytest.mark.timed

CHUNKS = 12


@pytest.fixture
def folder(tmp_path):
    """A closed episode of a few MiB."""
    folder = tmp_path / "spool/e"
    folder.mkdir(parents=True)
    (folder / "x.mcap").write_bytes(os.urandom(CHUNKS * PART_BYTES + 5))
    (folder / "metadata.yaml").write_bytes(b"meta")
    (folder / "empty").write_bytes(b"")
    seal(folder)
    return folder


class Relay:
    """TCP between a client and a trainer, which is cut after so many bytes, once or ``again``;
    counts what goes up.
    """

    def __init__(self, port, cut_after, again=0):
        self.port_behind = port
        self.cut_after = cut_after
        self.sent = 0
        self.ends = []
        self.again = again
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            behind = socket.create_connection(("127.0.0.1", self.port_behind))
            self.ends += [client, behind]
            threading.Thread(target=self._pump, args=(client, behind, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(behind, client, False), daemon=True).start()

    def _pump(self, source, target, up):
        try:
            while data := source.recv(1 << 14):
                self.sent += len(data) * up
                if up and self.cut_after and self.sent > self.cut_after:
                    self.cut_after = self.sent + self.again if self.again else 0
                    self.cut()
                    return
                target.sendall(data)
        except OSError:
            pass

    def cut(self):
        for end in self.ends:
            with contextlib.suppress(OSError):
                # or it lasts for as long as a thread waits for what comes
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self.listener.close()
        self.cut()


def uploaded(client, folder):
    """Return whether the episode was stored by this call."""
    try:
        assert client.upload(folder) is False
    except BridgeError:
        return False
    return True


def test_an_upload_that_the_network_cuts_goes_on_where_it_was(trainer, tmp_path, folder):
    relay = Relay(trainer.port, cut_after=8 * PART_BYTES)
    client = BridgeClient(f"127.0.0.1:{relay.port}", "a")
    with pytest.raises(BridgeError, match="unavailable"):
        client.upload(folder)
    episode = episode_offer(folder)
    until(lambda: not trainer._sending, "what the trainer has still to write")
    have = list(trainer.inbox.offer("a", episode).have)
    assert 4 * PART_BYTES <= max(have) < 8 * PART_BYTES, (
        "no more was on its way than the trainer has room for"
    )
    assert max(have) % PART_BYTES == 0, "whole chunks are kept"
    before = relay.sent
    until(lambda: uploaded(client, folder), "it to connect again")
    left = sum(file.size for file in episode.files) - sum(have)
    assert left < relay.sent - before < left + 2 * PART_BYTES, (
        "nothing of what was there is sent again"
    )
    assert trainer.journal.ids() == ["e"]
    for file in folder.iterdir():
        assert (trainer.inbox.folder / "e" / file.name).read_bytes() == file.read_bytes()
    client.close()
    relay.close()


def test_on_a_line_that_is_cut_in_the_middle_of_every_episode_all_of_many_arrive(trainer, tmp_path):
    """However many wait: of those that are begun the trainer keeps a few."""
    spool = Spool(tmp_path / "spool")
    for name in "abcdefg":
        folder = tmp_path / "spool/closed" / name
        folder.mkdir(parents=True)
        (folder / "x.mcap").write_bytes(os.urandom(6 * PART_BYTES))
        seal(folder)
        os.utime(folder, (100 + ord(name),) * 2)
    relay = Relay(trainer.port, cut_after=4 * PART_BYTES, again=4 * PART_BYTES)
    sender = Sender(spool, client := BridgeClient(f"127.0.0.1:{relay.port}", "a"), print)
    until(lambda: sender.send_all() == "" and not spool.closed(), "all of them to arrive")
    assert sorted(trainer.journal.ids()) == list("abcdefg")
    assert relay.sent > 8 * 4 * PART_BYTES, "it was cut, again and again"
    client.close()
    relay.close()


CODE = """
import signal, sys
from pathlib import Path
from rlinf_core.deploy.bridge import inbox
from rlinf_core.deploy.bridge.server import BridgeServer
taken, take = [], inbox.PartialUpload.take
def slowly(self, chunk):  # until it is killed
    if len(taken) == 7 and len(sys.argv) > 3: signal.pause()
    taken.append(take(self, chunk))
    self._out.flush()
inbox.PartialUpload.take = slowly
root = Path(sys.argv[1])
BridgeServer(f"127.0.0.1:{sys.argv[2]}", root / "inbox", root / "policies", lambda folder: None, dict)
signal.pause()
"""


@pytest.mark.timeout(120)
def test_an_upload_to_a_trainer_that_is_killed_goes_on_with_the_next(tmp_path, folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", CODE, str(tmp_path / "run"), str(port)]
    first = subprocess.Popen([*command, "pause"])
    client = BridgeClient(f"127.0.0.1:{port}", "a")
    thread = threading.Thread(target=until, args=(lambda: cut(client, folder), "the cut", 60))
    thread.start()
    until(
        lambda: [
            part
            for part in tmp_path.glob("run/inbox/.part-*/x.mcap")
            if part.stat().st_size >= 4 * PART_BYTES
        ],
        "four chunks",
        60,
    )
    first.send_signal(signal.SIGKILL)
    first.wait()
    thread.join()
    second, sent = subprocess.Popen(command), []
    count = client._stub.Upload
    client._stub.Upload = lambda request, **how: count(
        (sent.append(part) or part for part in request), **how
    )
    until(lambda: uploaded(client, folder), "the second trainer", 60)
    second.kill()
    second.wait()
    chunks = [part.chunk for part in sent if part.HasField("chunk") and part.chunk.file == 3]
    assert chunks and chunks[0].offset >= 4 * PART_BYTES
    assert (tmp_path / "run/inbox/e/x.mcap").read_bytes() == (folder / "x.mcap").read_bytes()
    assert Journal(tmp_path / "run/journal.jsonl").ids() == ["e"]
    client.close()


def cut(client, folder):
    """Return whether the trainer went away during the upload."""
    try:
        client.upload(folder)
    except BridgeError as error:
        return "Connection refused" not in str(error)
    return False


def test_a_chunk_that_is_damaged_on_the_way_is_sent_again_and_nothing_before_it(
    trainer, client, folder
):
    episode = episode_offer(folder)

    def damaged():
        for number, part in enumerate(parts(folder, episode, [0] * 4)):
            if number == 7:
                part.chunk.data = part.chunk.data[:-1] + bytes([part.chunk.data[-1] ^ 1])
            yield part

    reply = client._call(client._stub.Upload, damaged(), 20.0)
    assert not reply.stored and not reply.refused
    assert "station 'a': upload of e: 'x.mcap' was damaged in transit at byte" in reply.error
    assert "chunk.crc32: expected" in reply.error
    have = list(client._call(client._stub.Offer, episode, 20.0).have)
    assert have[3] and have[3] % PART_BYTES == 0 and client.upload(folder) is False
    assert (trainer.inbox.folder / "e/x.mcap").read_bytes() == (folder / "x.mcap").read_bytes()


def test_what_was_damaged_on_the_trainers_disk_meanwhile_is_sent_again(trainer, client, folder):
    episode = episode_offer(folder)
    first = itertools.islice(parts(folder, episode, [0] * 4), 6)
    assert not client._call(client._stub.Upload, first, 20.0).stored
    (part,) = trainer.inbox.folder.glob(".part-*/x.mcap")
    part.write_bytes(b"?" + part.read_bytes()[1:])
    with pytest.raises(
        BridgeError, match="'x.mcap' was damaged in transit; the station sends it again"
    ):
        client.upload(folder)
    assert client.upload(folder) is False
    assert (trainer.inbox.folder / "e/x.mcap").read_bytes() == (folder / "x.mcap").read_bytes()


def test_what_is_longer_on_the_trainers_disk_than_it_was_offered_is_begun_anew(
    trainer, client, folder
):
    receiving = trainer.inbox.receive("a", episode_offer(folder))
    (receiving.folder / "x.mcap").write_bytes(bytes(CHUNKS * PART_BYTES + 6))
    assert client.upload(folder) is False


def test_of_an_upload_there_is_one_at_a_time_for_each_station(trainer, client, folder):
    stalled = Stalled(client, folder)
    until(lambda: trainer._sending, "an upload")
    with pytest.raises(
        BridgeError,
        match="station 'a': expected one upload at a time, got another; the station offers it "
        "again",
    ):
        client.upload(folder)
    other = BridgeClient(client.address, "b")
    assert other.upload(folder) is False
    other.close()
    stalled.cancel()
    until(lambda: not trainer._sending, "its end")
    assert client.upload(folder) is True


def test_uploads_beyond_the_most_wait_for_their_turn(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(server, "MAX_UPLOADS", 2)
    trainer, done = serve(tmp_path), []
    clients = [BridgeClient(f"127.0.0.1:{trainer.port}", name) for name in "abc"]
    stalled = [Stalled(client, folder) for client in clients[:2]]
    waits = threading.Thread(target=lambda: done.append(clients[2].upload(folder)))
    until(lambda: len(trainer._sending) == 2, "two uploads")
    waits.start()
    until(lambda: "c" in trainer._sending, "the third")
    time.sleep(0.2)
    assert not done
    for upload in stalled:
        upload.go_on()  # and comes to an end, without all of its files
    waits.join(20)
    assert done == [False]
    for client in clients:
        client.close()
    trainer.stop()


def test_an_upload_that_stalls_ends_by_itself_and_goes_on_later(
    trainer, client, folder, monkeypatch
):
    monkeypatch.setattr(server, "WAIT_S", 0.3)
    episode, hold = episode_offer(folder), threading.Event()

    def stalls():
        for number, part in enumerate(parts(folder, episode, [0] * 4)):
            if number == 6:
                hold.wait(60)
            yield part

    reply = client._call(client._stub.Upload, stalls(), 20.0)
    hold.set()
    assert not reply.refused and "expected the next part of an upload" in reply.error
    assert (
        client._call(client._stub.Offer, episode, 20.0).have[3] > 0
        and client.upload(folder) is False
    )


def test_an_upload_that_drips_ends_by_itself(trainer, client, folder, monkeypatch):
    monkeypatch.setattr(server, "WAIT_S", 0.5)
    monkeypatch.setattr(server, "SLOWEST_BYTES_PER_S", 1e9)
    episode, given = episode_offer(folder), []

    def drips():
        yield pb.UploadPart(episode=episode)
        while True:
            time.sleep(0.1)
            given.append(pb.UploadPart(chunk=pb.Chunk(file=3, offset=0)))
            yield given[-1]

    assert "expected the next part" in client._call(client._stub.Upload, drips(), 20.0).error
    assert len(given) > 2


def test_a_station_that_goes_away_in_the_middle_makes_room(trainer, client, folder):
    stalled = Stalled(client, folder)
    until(lambda: trainer._sending, "an upload")
    stalled.cancel()
    until(lambda: not trainer._sending, "its end")
    assert trainer._uploads._value == server.MAX_UPLOADS


def test_a_message_that_is_too_large_is_refused_and_the_connection_lives(trainer, client, folder):
    with pytest.raises(BridgeError, match="resource_exhausted"):
        client._call(
            client._stub.Upload, iter([pb.UploadPart(chunk=pb.Chunk(data=bytes(2 << 20)))]), 20.0
        )
    assert client.upload(folder) is False
