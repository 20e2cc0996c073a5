"""The bridge against what others may send, and against what may lie in a spool."""

import hashlib
import os
import threading
import zlib
from concurrent import futures

import grpc
import pytest

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.core.errors import BridgeError, EpisodeError, RecipeError, RefusedError
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge import bridge_pb2_grpc
from rlinf_core.deploy.bridge import client as client_module
from rlinf_core.deploy.bridge.client import BridgeClient, Sender
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes.checksums import SUMS, listing
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.recipes.bridge_security import credentials_of, fleet_of
from rlinf_core.recipes.schema import Bridge
from tests.messages import record

pytestmark = pytest.mark.timed


def sha(data):
    return hashlib.sha256(data).hexdigest()


def episode_of(files, episode_id="e", seal=True, **override):
    """An episode as it is offered; ``override`` gives a file another hash."""
    files = dict(files)
    if seal:
        files[SUMS] = listing({name: sha(data) for name, data in files.items()}).encode()
    return pb.Episode(
        id=episode_id,
        files=[
            pb.File(name=name, size=len(data), sha256=override.get(name, sha(data)))
            for name, data in files.items()
        ],
    ), list(files.values())


def chunk(number, data, offset=0, **override):
    return pb.UploadPart(
        chunk=pb.Chunk(
            **{"file": number, "offset": offset, "data": data, "crc32": zlib.crc32(data)} | override
        )
    )


def parts_of(files, **how):
    """The parts of an upload, whole files each."""
    episode, contents = episode_of(files, **how)
    return [
        pb.UploadPart(episode=episode),
        *(chunk(number, data) for number, data in enumerate(contents)),
    ]


def send(client, parts):
    return client._stub.Upload(iter(parts), metadata=client._metadata)


def offer(client, episode):
    return client._stub.Offer(episode, metadata=client._metadata)


def left(trainer):
    """Return the files of an upload in the run folder, without journal and empty folders."""
    folder = trainer.inbox.folder.parent
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name not in ("inbox", "policies", "journal.jsonl")
    )


@pytest.mark.parametrize("name", ["../e", "..", ".part-x", "a/b", "", "x" * 129, "e\n", "\0", "é"])
def test_ids_that_leave_the_inbox_or_break_it_are_refused_for_good(trainer, client, name):
    for reply in (
        send(client, parts_of({"x": b"x"}, episode_id=name)),
        offer(client, episode_of({"x": b"x"}, name)[0]),
    ):
        assert not reply.stored and reply.refused and "id: expected a plain name" in reply.error
        assert "station 'a'" in reply.error
    assert left(trainer) == []


def big(size):
    episode, _ = episode_of({"x": b"x"})
    episode.files[0].size = size
    return [pb.UploadPart(episode=episode)]


@pytest.mark.parametrize(
    "parts, refused, error",
    [
        (lambda: parts_of({"x": b"x"}, seal=False), True, f"expected {SUMS}"),
        (lambda: parts_of({}, seal=False), True, f"expected {SUMS} among the files, got none"),
        (lambda: parts_of({f"f{n}": b"" for n in range(40)}), True, "at most 16 files"),
        (lambda: big(3 << 30), True, "2048 MiB in total"),
        (lambda: parts_of({"x" * 200: b"x"}), True, "files[0].name: expected a plain name"),
        (lambda: parts_of({"../x": b"x"}), True, "files[0].name: expected a plain name"),
        (lambda: parts_of({"x": b"x"}, x="sha"), True, "with its SHA-256 in hex"),
        (
            lambda: [
                pb.UploadPart(
                    episode=pb.Episode(id="e", files=[pb.File(name=SUMS, sha256=sha(b""))] * 2)
                )
            ],
            True,
            "expected each once",
        ),
        (
            lambda: parts_of({SUMS: listing({"x": sha(b"y")}).encode(), "x": b"x"}, seal=False),
            True,
            "does not fit",
        ),
        (
            lambda: parts_of(
                {SUMS: listing(dict.fromkeys("xy", sha(b"x"))).encode(), "x": b"x"}, seal=False
            ),
            True,
            "not fit",
        ),
        (
            lambda: parts_of({SUMS: b"x" * 20_000, "x": b"x"}, seal=False),
            True,
            f"expected {SUMS}",
        ),
        (lambda: [], True, "expected the episode as it was offered in the first part, got nothing"),
        (lambda: parts_of({"x": b"x"})[1:], True, "in the first part, got chunk"),
        (
            lambda: [*parts_of({"x": b"x"}), chunk(0, b"x")],
            True,
            "chunk.file: expected file by file, from 1 to 1, got 0",
        ),
        (lambda: [*parts_of({"x": b"x"}), chunk(2, b"x")], True, "from 1 to 1, got 2"),
    ],
)
def test_what_can_never_go_is_refused_for_good_and_leaves_no_trace(
    trainer, client, parts, refused, error
):
    reply = send(client, parts())
    assert (reply.stored, reply.refused) == (False, refused) and error in reply.error, reply
    assert [
        name for name in left(trainer) if "part" not in name
    ] == [] and trainer.journal.ids() == []


@pytest.mark.parametrize(
    "parts, error",
    [
        (lambda: parts_of({"x": b"x"}, x=sha(b"y"), seal=True), "'x' was damaged in transit"),
        (lambda: parts_of({"x": b"x"})[:-1], f"bytes of '{SUMS}', got 0"),
        (
            lambda: [*parts_of({"x": b"x"})[:2], chunk(0, b"x", 1)],
            "at most 1 bytes in total, got 1 from 1 on",
        ),
        (lambda: [parts_of({"x": b"xy"})[0], chunk(0, b"y", 1)], "chunk.offset: expected 0"),
        (lambda: [parts_of({"x": b"x"})[0], chunk(0, b"x", crc32=7)], "chunk.crc32: expected"),
        (lambda: parts_of({"x": b"x", "y": b"y"})[:2], "expected 1 bytes of 'y', got 0"),
    ],
)
def test_what_may_go_with_the_next_try_is_told_and_goes(trainer, client, parts, error):
    reply = send(client, parts())
    assert (reply.stored, reply.refused) == (False, False) and error in reply.error, reply
    assert "station 'a'" in reply.error and trainer.journal.ids() == []


def test_of_many_uploads_that_are_cut_a_station_keeps_a_few(trainer, client):
    for number in range(9):
        assert not send(client, parts_of({"x": b"%d" % number}, episode_id=f"e{number}")[:2]).stored
        for path in trainer.inbox.folder.iterdir():
            os.utime(path, (path.stat().st_mtime - 60,) * 2)  # it was a minute ago
    assert len(list(trainer.inbox.folder.iterdir())) == 4
    os.utime(next(trainer.inbox.folder.iterdir()), (0, 0))
    BridgeServer("127.0.0.1:0", trainer.inbox.folder, trainer.policies, print, dict).stop()
    assert len(list(trainer.inbox.folder.iterdir())) == 4, "a clock that is set removes nothing"


def test_the_journal_is_written_after_the_folder_is_there(
    spool, task, trainer, client, monkeypatch
):
    folder_existed, add = [], trainer.journal.arrived
    monkeypatch.setattr(
        trainer.journal,
        "arrived",
        lambda *row: (folder_existed.append((trainer.inbox.folder / row[0]).is_dir()), add(*row)),
    )
    client.upload(record(spool, task.spec).close())
    assert folder_existed == [True]


def test_a_full_disk_at_the_trainer_is_to_be_tried_again(spool, task, trainer, client):
    folder = record(spool, task.spec).close()
    trainer.inbox.min_free_mb = 1e12
    with pytest.raises(BridgeError, match="Free the trainer's disk") as refusal:
        client.upload(folder)
    assert not isinstance(refusal.value, RefusedError)
    trainer.inbox.min_free_mb = 1
    assert client.upload(folder) is False


def test_an_episode_that_is_not_what_was_closed_is_not_sent(spool, task, trainer, client):
    folder = record(spool, task.spec).close()
    file = folder / "a-1.mcap"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(EpisodeError, match="does not fit"):
        client.upload(folder)
    assert trainer.journal.ids() == []


def bad_entries(spool, task):
    """Create entries in ``closed/`` that once blocked the uplink."""
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


def test_bad_entries_are_set_aside_with_their_reason_and_the_rest_goes_on(
    spool, task, trainer, client, tmp_path
):
    client.upload(record(Spool(tmp_path / "other"), task.spec, "0-conflict").close())
    bad, log_lines = bad_entries(spool, task), []
    good = [record(spool, task.spec, f"good_{number}").close().name for number in range(3)]
    sender = Sender(spool, client, log_lines.append)
    assert sender.send_all() == "" and spool.closed() == []
    assert trainer.journal.ids() == ["0-conflict", *good]
    refused = {path.name for path in (spool.root / "refused").iterdir()}
    assert set(bad) <= refused and len(refused) == 2 * len(bad) and len(log_lines) == len(bad)
    assert (
        "another recording with this id"
        in (spool.root / "refused/0-conflict.reason.txt").read_text()
    )
    assert all(isinstance(line, str) and line.encode() for line in log_lines)


def test_one_that_cannot_be_read_now_waits_and_the_rest_goes_on(
    spool, task, trainer, client, monkeypatch
):
    for name in ("a", "b", "c"):
        record(spool, task.spec, name).close()
    upload = client.upload
    monkeypatch.setattr(
        client,
        "upload",
        lambda folder, **how: (
            upload(folder, **how) if folder.name != "a" else os.listdir("/nowhere")
        ),
    )
    sender = Sender(spool, client, print)
    assert "episode a: FileNotFoundError" in sender.send_all()
    assert trainer.journal.ids() == ["b", "c"] and [path.name for path in spool.closed()] == ["a"]
    monkeypatch.undo()
    assert sender.send_all() == "" and trainer.journal.ids() == ["b", "c", "a"]


def test_one_that_the_trainer_never_manages_to_take_does_not_stay_the_first(
    spool, task, trainer, client, monkeypatch
):
    for name in ("a", "b", "c"):
        record(spool, task.spec, name).close()
    upload, tried = client.upload, []

    def fails(folder, **how):
        tried.append(folder.name)
        if folder.name == "a":
            raise BridgeError("deadline exceeded")
        return upload(folder, **how)

    monkeypatch.setattr(client, "upload", fails)
    sender = Sender(spool, client, print)
    assert [sender.send_all() for _ in range(2)] == ["deadline exceeded"] * 2
    assert tried == ["a", "b", "c", "a"] and trainer.journal.ids() == ["b", "c"]


def test_the_next_episode_is_hashed_during_an_upload_and_again_if_it_changes(
    spool, task, trainer, client, monkeypatch
):
    """The offer of "c" is hashed before its file is touched, so "c" is hashed twice."""
    for name in ("a", "b", "c", "d"):
        record(spool, task.spec, name).close()
    offers, upload = [], client.upload
    offer = client_module.episode_offer
    monkeypatch.setattr(
        client_module,
        "episode_offer",
        lambda folder: (
            offers.append((folder.name, threading.current_thread().name)) or offer(folder)
        ),
    )

    def touch_c(folder, prepared=None):
        if folder.name == "c":
            os.utime(folder / "c.mcap", (5, 5))
        return upload(folder, prepared=prepared)

    monkeypatch.setattr(client, "upload", touch_c)
    assert Sender(spool, client, print).send_all() == ""
    assert trainer.journal.ids() == ["a", "b", "c", "d"]
    hashed_ahead = [name for name, thread in offers if thread.startswith("hash")]
    hashed_at_once = [name for name, thread in offers if not thread.startswith("hash")]
    assert hashed_ahead == ["c", "d"] and hashed_at_once == ["a", "b", "c"]


def test_nothing_is_hashed_ahead_for_a_trainer_that_is_away(spool, task, monkeypatch):
    for name in ("a", "b"):
        record(spool, task.spec, name).close()
    offers, offer = [], client_module.episode_offer
    monkeypatch.setattr(
        client_module, "episode_offer", lambda folder: offers.append(folder.name) or offer(folder)
    )
    sender = Sender(spool, BridgeClient("127.0.0.1:1", "a"), print)
    assert all("unavailable" in sender.send_all() for _ in range(3)) and offers == ["a"]


def test_a_damaged_episode_that_was_hashed_ahead_is_set_aside(spool, task, trainer, client):
    for name in ("a", "b", "c", "d"):
        folder = record(spool, task.spec, name).close()
        if name == "c":
            file = folder / "c.mcap"
            file.write_bytes(file.read_bytes()[:100] + b"?" + file.read_bytes()[101:])
    assert Sender(spool, client, print).send_all() == ""
    assert trainer.journal.ids() == ["a", "b", "d"]
    assert "c.mcap" in (spool.root / "refused/c.reason.txt").read_text()


def test_a_trainer_that_is_away_sets_nothing_aside(spool, task):
    record(spool, task.spec).close()
    sender = Sender(spool, BridgeClient("127.0.0.1:1", "a"), print)
    assert "unavailable" in sender.send_all() and len(spool.closed()) == 1


def test_once_the_trainer_is_there_they_come_in_order_however_often_it_was_asked_before(
    spool, task, trainer, client
):
    """Else the same demonstrations, in another order, would make another policy."""
    for name in ("a", "b", "c"):
        record(spool, task.spec, name).close()
    sender = Sender(spool, BridgeClient("127.0.0.1:1", "a"), print)
    assert all("unavailable" in sender.send_all() for _ in range(2))
    sender.client = client
    assert sender.send_all() == "" and trainer.journal.ids() == ["a", "b", "c"]


def test_the_newest_policy_is_served(trainer, client, tmp_path):
    for version in (1, 2, 10, 3):
        (trainer.policies / ".part").write_bytes(b"policy %d" % version)
        publish_file(trainer.policies / ".part", trainer.policies / policy_name(version))
    version, path, _ = client.next_policy(-1, tmp_path / "p")
    assert version == 10 and path.read_bytes() == b"policy 10"


class Cutting(bridge_pb2_grpc.BridgeServicer):
    """A trainer whose policies arrive cut: half of the data, or without the last part."""

    def NextPolicy(self, request, context):  # noqa: N802
        yield pb.PolicyPart(
            version=1, data=b"half", sha256="" if request.have_version else sha(b"half and half")
        )


@pytest.mark.parametrize("have", [0, 1])
def test_a_policy_that_is_cut_is_not_taken(tmp_path, have):
    grpc_server = grpc.server(futures.ThreadPoolExecutor(2))
    bridge_pb2_grpc.add_BridgeServicer_to_server(Cutting(), grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    client = BridgeClient(f"127.0.0.1:{port}", "a")
    with pytest.raises(BridgeError, match="arrived incomplete"):
        client.next_policy(have, tmp_path / "p")
    assert list((tmp_path / "p").iterdir()) == []
    client.close()
    grpc_server.stop(0)


def test_listening_or_calling_beyond_this_machine_needs_tls_or_the_word():
    for check in (fleet_of, credentials_of):
        for host in ("127.0.0.1", "localhost", "[::1]", "127.0.0.2"):
            assert check(Bridge(host=host)) is None
        for host in ("0.0.0.0", "[::]", "192.168.1.4", "trainer.lab"):
            with pytest.raises(
                RecipeError,
                match="bridge.host is '.*anyone on that network can.*bridge.insecure=true",
            ):
                check(Bridge(host=host))
            assert check(Bridge(host=host, insecure=True)) is None
    bridge = Bridge(host="0.0.0.0", fleet="/fleet")
    assert str(fleet_of(bridge)) == "/fleet"
    with pytest.raises(RecipeError, match="bridge.credentials: expected a folder"):
        credentials_of(bridge)
    bridge = Bridge(host="trainer.lab", credentials="/a")
    assert str(credentials_of(bridge)) == "/a"
    with pytest.raises(RecipeError, match="bridge.fleet: expected a folder"):
        fleet_of(bridge)


def test_a_published_file_is_the_very_file_that_was_written_aside(tmp_path):
    (tmp_path / "aside").write_text("new")
    (tmp_path / "it").write_text("old")
    inode = (tmp_path / "aside").stat().st_ino
    publish_file(tmp_path / "aside", tmp_path / "it")
    assert (tmp_path / "it").stat().st_ino == inode and not (tmp_path / "aside").exists(), (
        "renamed, never copied"
    )
