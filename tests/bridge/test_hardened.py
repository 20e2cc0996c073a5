"""The bridge against what others may send, and against what may lie in a spool."""

import hashlib
import os
import sqlite3
import threading
import time
from concurrent import futures

import grpc
import pytest

from rlinf_core.atomic_io import publish_file
from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.bridge import bridge_pb2_grpc, server
from rlinf_core.bridge.client import BridgeClient
from rlinf_core.bridge.sending import Sender
from rlinf_core.bridge.server import BridgeServer, exposure
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.checksums import SUMS, listing
from rlinf_core.episodes.spool import Spool
from rlinf_core.errors import BridgeError, EpisodeError, RefusedError
from rlinf_core.policies.files import policy_name
from tests.messages import record


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


@pytest.fixture
def trainer(tmp_path):
    trainer = BridgeServer("127.0.0.1:0", tmp_path / "run/inbox", tmp_path / "run/policies", lambda folder: None, dict)
    yield trainer
    trainer.stop()


@pytest.fixture
def client(trainer):
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "a")
    yield client
    client.close()


def sha(data):
    return hashlib.sha256(data).hexdigest()


def parts_of(files, episode_id="e", station="a", seal=True, **override):
    """The parts of an upload, whole files each; ``override`` gives a file another hash."""
    files = dict(files)
    if seal:
        files[SUMS] = listing({name: sha(data) for name, data in files.items()}).encode()
    return [pb.EpisodePart(station="" if number else station, episode_id="" if number else episode_id, file=name, data=data,
                           sha256=override.get(name, sha(data))) for number, (name, data) in enumerate(files.items())]


def left(trainer):
    """What an upload has left in the run folder besides journal and empty folders."""
    return sorted(str(path.relative_to(trainer.inbox.parent)) for path in trainer.inbox.parent.rglob("*")
                  if "journal" not in path.name and path.name not in ("inbox", "policies"))


@pytest.mark.parametrize("name", ["journal.sqlite", "journal.sqlite-journal", "journal.sqlite-wal", "Journal.SQLITE-shm",
                                  "../e", "..", ".part-x", "a/b", "", "x" * 129, "e\n", "\0", "é"])
def test_ids_that_leave_the_inbox_or_break_it_are_refused_for_good(trainer, client, name):
    reply = client._stub.Upload(iter(parts_of({"x": b"x"}, name)))
    assert not reply.stored and reply.refused and "plain episode id" in reply.error
    assert left(trainer) == [] and sqlite3.connect(trainer.inbox / "journal.sqlite").execute("PRAGMA integrity_check")
    again = BridgeServer("127.0.0.1:0", trainer.inbox, trainer.policies, print, dict)
    again.stop()


@pytest.mark.parametrize("parts, refused, said", [
    (lambda: parts_of({"x": b"x"}, seal=False), True, f"expected a {SUMS}"),
    (lambda: parts_of({"x": b"x", "y": b"y"}, x="", y=sha(b"y")), True, "before the end of 'x'"),
    (lambda: [*parts_of({"x": b"x"}), pb.EpisodePart(file="x", data=b"x", sha256=sha(b"x"))], True, "again"),
    (lambda: [*parts_of({"x": b"x"}), pb.EpisodePart(data=b"x", sha256=sha(b"x"))], True, "names its file first"),
    (lambda: [*parts_of({"x": b"x"}), pb.EpisodePart(episode_id="f", file="z", data=b"")], True, "first part alone"),
    (lambda: parts_of({SUMS: listing({"x": sha(b"y")}).encode(), "x": b"x"}, seal=False), True, "does not fit"),
    (lambda: parts_of({SUMS: listing(dict.fromkeys("xy", sha(b"x"))).encode(), "x": b"x"}, seal=False), True, "not fit"),
    (lambda: parts_of({f"f{n}": b"" for n in range(40)}), True, "at most 16 files"),
    (lambda: parts_of({"x": b"x"}, station="s" * 200), True, "plain station"),
    (lambda: parts_of({"x" * 200: b"x"}), True, "plain file name"),
    (lambda: parts_of({"x": b"x"}, x=sha(b"y")), False, "damaged on the way"),
    (lambda: parts_of({"x": b"x", "y": b"y"}, SHA256SUMS=""), False, "expected whole files"),
    (lambda: parts_of({"x": b"x"})[:1][:0], False, "expected whole files")])
def test_what_can_never_go_is_told_from_what_may_go_later_and_neither_leaves_a_trace(trainer, client, parts, refused, said):
    reply = client._stub.Upload(iter(parts()))
    assert (reply.stored, reply.refused) == (False, refused) and said in reply.error, reply
    assert left(trainer) == [] and trainer.journal.ids() == []


def test_uploads_are_bounded_in_bytes_and_parts(trainer, client, monkeypatch):
    monkeypatch.setattr("rlinf_core.bridge.receiving.MAX_BYTES", 3 << 20)
    reply = client._stub.Upload(pb.EpisodePart(station="a" * (n == 0), episode_id="e" * (n == 0), file="x" * (n == 0),
                                               data=bytes(1 << 20)) for n in range(10_000))
    assert reply.refused and "3 MiB in all" in reply.error
    reply = client._stub.Upload(pb.EpisodePart(station="a" * (n == 0), episode_id="e" * (n == 0), file="x" * (n == 0))
                                for n in range(10_000))
    assert reply.refused and "8192 parts" in reply.error and left(trainer) == []


def test_half_a_file_is_not_accepted_and_sent_again_it_is(spool, task, trainer, client):
    folder = record(spool, task.spec).close()
    parts = list(client._parts("a-1", sorted(folder.iterdir())))
    parts[-1].sha256 = ""
    reply = client._stub.Upload(iter(parts))
    assert not reply.stored and not reply.refused and left(trainer) == []
    assert client.upload(folder) is False and len(read_episode(trainer.inbox / "a-1", sealed=True)) == 5


def test_what_an_upload_left_behind_when_the_trainer_died_goes_at_the_next_start(trainer, tmp_path):
    (trainer.inbox / ".part-abc").mkdir()
    (trainer.inbox / ".part-abc" / "x.mcap").write_bytes(b"half")
    BridgeServer("127.0.0.1:0", trainer.inbox, trainer.policies, print, dict).stop()
    assert left(trainer) == []


def test_the_journal_is_written_after_the_folder_is_there(spool, task, trainer, client, monkeypatch):
    seen, add = [], trainer.journal.add
    monkeypatch.setattr(trainer.journal, "add", lambda *row: (seen.append((trainer.inbox / row[0]).is_dir()), add(*row)))
    client.upload(record(spool, task.spec).close())
    assert seen == [True]


def test_a_full_disk_at_the_trainer_is_to_be_tried_again(spool, task, trainer, client):
    folder = record(spool, task.spec).close()
    trainer.min_free_mb = 1e12
    with pytest.raises(BridgeError, match="Free the trainer's disk") as refusal:
        client.upload(folder)
    assert not isinstance(refusal.value, RefusedError)
    trainer.min_free_mb = 1
    assert client.upload(folder) is False


def test_an_episode_that_is_not_what_was_closed_is_not_sent(spool, task, trainer, client):
    folder = record(spool, task.spec).close()
    file = folder / "a-1.mcap"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(EpisodeError, match="does not fit"):
        client.upload(folder)
    assert trainer.journal.ids() == []


def bad_entries(spool, task):
    """What may lie in ``closed/``, and would have stood in the way."""
    closed = spool.root / "closed"
    (closed / "0-stray.txt").write_text("a note")
    (closed / "0-empty").mkdir()
    (closed / ".hidden").mkdir()
    (closed / "0-dangling").symlink_to("nowhere")
    (closed / ("0-" + "n" * 240)).write_text("")
    os.mkdir(os.fsencode(closed) + b"/0-\xff")
    (record(spool, task.spec, "0-deep").close() / "sub").mkdir()
    (record(spool, task.spec, "0-unsealed").close() / SUMS).unlink()
    file = record(spool, task.spec, "0-flipped").close() / "0-flipped.mcap"
    file.write_bytes(file.read_bytes()[:100] + b"?" + file.read_bytes()[101:])
    record(spool, task.spec, "0-conflict", start=9.0).close()
    for number, path in enumerate(closed.iterdir()):
        os.utime(path, (number, number), follow_symlinks=False)
    return sorted(path.name for path in closed.iterdir())


def test_bad_entries_are_set_aside_with_their_reason_and_the_rest_goes_on(spool, task, trainer, client, tmp_path):
    client.upload(record(Spool(tmp_path / "other"), task.spec, "0-conflict").close())
    bad, said = bad_entries(spool, task), []
    good = [record(spool, task.spec, f"good-{number}").close().name for number in range(3)]
    sender = Sender(spool, client, said.append)
    assert sender.send_all() == "" and spool.closed() == []
    assert trainer.journal.ids() == ["0-conflict", *good]
    refused = {path.name for path in (spool.root / "refused").iterdir()}
    assert set(bad) <= refused and len(refused) == 2 * len(bad) and len(said) == len(bad)
    assert "another recording with this id" in (spool.root / "refused/0-conflict.reason.txt").read_text()
    assert all(isinstance(line, str) and line.encode() for line in said)


def test_one_that_cannot_be_read_now_waits_and_the_rest_goes_on(spool, task, trainer, client, monkeypatch):
    for name in ("a", "b", "c"):
        record(spool, task.spec, name).close()
    upload = client.upload
    monkeypatch.setattr(client, "upload", lambda folder: upload(folder) if folder.name != "a" else os.listdir("/nowhere"))
    sender = Sender(spool, client, print)
    assert "episode a: FileNotFoundError" in sender.send_all()
    assert trainer.journal.ids() == ["b", "c"] and [path.name for path in spool.closed()] == ["a"]
    monkeypatch.undo()
    assert sender.send_all() == "" and trainer.journal.ids() == ["b", "c", "a"]


def test_one_that_the_trainer_never_manages_to_take_does_not_stay_the_first(spool, task, trainer, client, monkeypatch):
    for name in ("a", "b", "c"):
        record(spool, task.spec, name).close()
    upload, tried = client.upload, []

    def fails(folder):
        tried.append(folder.name)
        if folder.name == "a":
            raise BridgeError("deadline exceeded")
        return upload(folder)

    monkeypatch.setattr(client, "upload", fails)
    sender = Sender(spool, client, print)
    assert [sender.send_all() for _ in range(2)] == ["deadline exceeded"] * 2
    assert tried == ["a", "b", "c", "a"] and trainer.journal.ids() == ["b", "c"]


def test_a_trainer_that_is_away_sets_nothing_aside(spool, task):
    record(spool, task.spec).close()
    sender = Sender(spool, BridgeClient("127.0.0.1:1", "a"), print)
    assert "unavailable" in sender.send_all() and len(spool.closed()) == 1


@pytest.mark.timeout(120)
def test_any_number_of_waiting_stations_leave_room_for_uploads_reports_and_policies(spool, task, trainer, client):
    """Twice as many wait as there are threads."""
    channels = [grpc.insecure_channel(f"127.0.0.1:{trainer.port}", options=[("grpc.use_local_subchannel_pool", 1)])
                for _ in range(4)]
    stubs = [bridge_pb2_grpc.BridgeStub(channel) for channel in channels]
    waiting = [stubs[n % 4].NextPolicy(pb.PolicyRequest(have_version=9, wait_s=30.0)) for n in range(2 * server.THREADS)]
    time.sleep(0.5)
    began = time.monotonic()
    assert client.upload(record(spool, task.spec).close()) is False
    client.report(0, 0, timeout_s=5.0)
    assert time.monotonic() - began < 10
    while sum(call.done() for call in waiting) < len(waiting) - server.WAITING:  # the others are answered at once
        assert time.monotonic() - began < 15
        time.sleep(0.05)
    for call in waiting:
        call.cancel()


def test_uploads_that_stall_leave_room_for_reports_and_policies(trainer, client, tmp_path):
    hold = threading.Event()

    def stalls(number):
        yield pb.EpisodePart(station="a", episode_id=f"e{number}", file="x", data=b"x")
        hold.wait(60)

    calls = [client._stub.Upload.future(stalls(number)) for number in range(server.THREADS + 8)]
    end = time.monotonic() + 20
    while sum(call.done() for call in calls) < 8 and time.monotonic() < end:
        time.sleep(0.05)
    replies = [call.result() for call in calls if call.done()]
    assert len(replies) >= 8 and all("uploads at a time" in reply.error and not reply.refused for reply in replies)
    client.report(0, 0, timeout_s=5.0)
    assert client.next_policy(0, tmp_path / "p", wait_s=0.1) is None
    hold.set()
    for call in calls:
        call.cancel()


def test_uploads_that_stall_end_by_themselves(spool, task, trainer, client, monkeypatch):
    monkeypatch.setattr(server, "UPLOAD_S", 0.5)
    hold = threading.Event()
    calls = [client._stub.Upload.future(pb.EpisodePart() for _ in iter(lambda: hold.wait(60), True))
             for _ in range(server.UPLOADS)]
    folder, end = record(spool, task.spec).close(), time.monotonic() + 20
    sender = Sender(spool, client, print)
    while sender.send_all() and time.monotonic() < end:
        time.sleep(0.1)
    assert trainer.journal.ids() == [folder.name]
    hold.set()
    for call in calls:
        call.cancel()


def test_the_newest_policy_is_served(trainer, client, tmp_path):
    for version in (1, 2, 10, 3):
        (trainer.policies / ".part").write_bytes(b"policy %d" % version)
        publish_file(trainer.policies / ".part", trainer.policies / policy_name(version))
    version, path, _ = client.next_policy(-1, tmp_path / "p")
    assert version == 10 and path.read_bytes() == b"policy 10"


class Cutting(bridge_pb2_grpc.BridgeServicer):
    """A trainer whose policies arrive cut: half of the data, or without the last part."""

    def NextPolicy(self, request, context):  # noqa: N802
        yield pb.PolicyPart(version=1, data=b"half", sha256="" if request.have_version else sha(b"half and half"))


@pytest.mark.parametrize("have", [0, 1])
def test_a_policy_that_is_cut_is_not_taken(tmp_path, have):
    grpc_server = grpc.server(futures.ThreadPoolExecutor(2))
    bridge_pb2_grpc.add_BridgeServicer_to_server(Cutting(), grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    client = BridgeClient(f"127.0.0.1:{port}", "a")
    with pytest.raises(BridgeError, match="cut short on the way"):
        client.next_policy(have, tmp_path / "p")
    assert list((tmp_path / "p").iterdir()) == []
    client.close()
    grpc_server.stop(0)


def test_listening_beyond_this_machine_is_warned_of_in_words():
    for address in ("127.0.0.1:5", "localhost:5", "[::1]:5", "127.0.0.2:5"):
        assert exposure(address) == ""
    for address in ("0.0.0.0:5", "[::]:5", "192.168.1.4:5", "trainer.lab:5", ":5"):
        assert "anyone on that network can feed" in exposure(address)


def test_a_published_file_is_the_very_file_that_was_written_aside(tmp_path):
    (tmp_path / "aside").write_text("new")
    (tmp_path / "it").write_text("old")
    inode = (tmp_path / "aside").stat().st_ino
    publish_file(tmp_path / "aside", tmp_path / "it")
    assert (tmp_path / "it").stat().st_ino == inode and not (tmp_path / "aside").exists(), "renamed, never copied"
