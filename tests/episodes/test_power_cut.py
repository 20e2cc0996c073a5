"""After a power cut at any moment, what is there is whole or absent, and what was acknowledged is there."""

import numpy as np
import pytest

from rlinf_core.atomic_io import publish_file
from rlinf_core.bridge.client import BridgeClient
from rlinf_core.bridge.server import BridgeServer
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from rlinf_core.trainer import checkpoint
from tests.messages import record
from tests.power import Disk, restore


@pytest.fixture
def root(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def every_cut(disk, tmp_path, monkeypatch):
    """Each disk that a cut may have left, restored in a folder of its own, with what had been acknowledged."""
    monkeypatch.undo()
    assert len(disk.cuts) > 6
    for number, (acknowledged, tree) in enumerate(disk.cuts):
        yield acknowledged, restore(tree, tmp_path / f"cut-{number}")


def test_closing_an_episode(root, task, tmp_path, monkeypatch):
    disk = Disk(root, monkeypatch)
    spool = Spool(root / "run/spool")
    for name in ("a", "b"):
        record(spool, task.spec, name).close()
        disk.acknowledge(name)
    for acknowledged, folder in every_cut(disk, tmp_path, monkeypatch):
        left = Spool(folder / "run/spool")
        left.recover()
        names = {path.name for path in left.closed()}
        assert set(acknowledged) <= names <= {"a", "b"}
        assert all(len(read_episode(path, sealed=True)) == 5 for path in left.closed())


def test_storing_an_episode_at_the_trainer(root, task, tmp_path, monkeypatch):
    """The journal is SQLite's, which flushes by itself (synchronous=FULL): its rows count from when they are written."""
    spool, client = Spool(tmp_path / "spool"), BridgeClient("127.0.0.1:1", "a")
    uploads = {name: list(client._parts(name, sorted(record(spool, task.spec, name).close().iterdir()))) for name in "ab"}
    disk, rows = Disk(root, monkeypatch), []
    server = BridgeServer("127.0.0.1:0", root / "run/inbox", root / "run/policies", print, dict)
    note = disk._note
    disk._note = lambda: (note(), rows.extend([server.journal.ids()] * (len(disk.cuts) - len(rows))))
    for name, parts in uploads.items():
        server._upload(iter(parts))
        disk.acknowledge(name)
    rows = [[]] * (len(disk.cuts) - len(rows)) + rows
    server.stop()
    for (acknowledged, folder), arrived in zip(every_cut(disk, tmp_path, monkeypatch), rows, strict=True):
        assert set(acknowledged) <= set(arrived)
        for path in (folder / "run/inbox").glob("journal*"):
            path.unlink()
        assert all(len(read_episode(folder / "run/inbox" / name, sealed=True)) == 5 for name in arrived)
        again = BridgeServer("127.0.0.1:0", folder / "run/inbox", folder / "run/policies", print, dict)
        again.stop()
        for name in arrived:
            again.journal.add(name, "a", server.journal.content(name))
        assert [again._upload(iter(parts)) for parts in uploads.values()] == [name in arrived for name in uploads]
        assert all(len(read_episode(again.inbox / name, sealed=True)) == 5 for name in "ab")
        assert not list(again.inbox.glob(".part-*"))


def test_publishing_a_policy(root, tmp_path, monkeypatch):
    disk = Disk(root, monkeypatch)
    for version in (1, 2, 3):
        (root / ".aside").write_bytes(b"%d" % version * 1000)
        publish_file(root / ".aside", root / "policy")
        disk.acknowledge(version)
    for acknowledged, folder in every_cut(disk, tmp_path, monkeypatch):
        found = (folder / "policy").read_bytes() if (folder / "policy").exists() else b"0" * 1000
        assert found in [b"%d" % version * 1000 for version in range(4)]
        assert int(found[:1]) >= max(acknowledged, default=0)


def test_a_checkpoint(root, tmp_path, monkeypatch):
    """Also one under a name that there is already, as when a run is resumed and stopped before its first update."""
    disk = Disk(root, monkeypatch)
    for number, name in enumerate(["u-1", "u-2", "u-2", "u-3", "u-4"], 1):
        checkpoint.save(root / "run/checkpoints", name, {"n": number, "x": np.full(100, number)})
        disk.acknowledge(number)
    for acknowledged, folder in every_cut(disk, tmp_path, monkeypatch):
        states = [checkpoint.load(path) for path in checkpoint.checkpoints(folder / "run/checkpoints")]
        assert all((state["x"] == state["n"]).all() for state in states)
        assert (states[-1]["n"] if states else 0) >= max(acknowledged, default=0)
        checkpoint.save(folder / "run/checkpoints", "u-5", {"n": 6, "x": np.full(100, 6)})
        assert len(list((folder / "run/checkpoints").iterdir())) <= 2, "nothing half-made stays"
