"""After a power cut each file is whole or absent, and acknowledged data are present."""

import contextlib

import numpy as np
import pytest

from rlinf_core.core.atomic_io import make_folder, publish_file
from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import episode_offer, parts
from rlinf_core.deploy.bridge.inbox import Inbox
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.journal import Journal
from rlinf_core.episodes.spool import Spool
from rlinf_core.trainer import checkpoint
from tests.messages import record
from tests.power import Disk, restore


@pytest.fixture
def root(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def every_cut(disk, tmp_path, monkeypatch):
    """Each disk that a cut may have left, restored in a folder of its own, with what had been
    acknowledged.
    """
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


def take(inbox, folder):
    """Handle an upload like the server; return whether the episode was here already."""
    receiving = inbox.receive("a", episode_offer(folder))
    if receiving is None:
        return True
    for part in list(parts(folder, receiving.episode, receiving.have()))[1:]:
        receiving.take(part.chunk)
    return inbox.store(receiving)


def an_inbox(folder):
    make_folder(folder / "run")
    return Inbox(folder / "run/inbox", Journal(folder / "run/journal.jsonl"), print)


def test_storing_an_episode_at_the_trainer(root, task, tmp_path, monkeypatch):
    """Acknowledged episodes are in the journal and whole; others are sent again or continued."""
    spool = Spool(tmp_path / "spool")
    folders = [record(spool, task.spec, name).close() for name in "ab"]
    disk = Disk(root, monkeypatch)
    inbox = an_inbox(root)
    for folder in folders:
        assert take(inbox, folder) is False
        disk.acknowledge(folder.name)
    for acknowledged, left in every_cut(disk, tmp_path, monkeypatch):
        again = an_inbox(left)
        arrived = again.journal.ids()
        assert set(acknowledged) <= set(arrived) <= {"a", "b"}
        assert all(len(read_episode(again.folder / name, sealed=True)) == 5 for name in arrived)
        for _ in range(4):  # a file that the cut has spoiled is sent once more
            for folder in folders:
                with contextlib.suppress(BridgeError):
                    take(again, folder)
        assert sorted(again.journal.ids()) == ["a", "b"]
        assert all(len(read_episode(again.folder / name, sealed=True)) == 5 for name in "ab")
        assert not list(again.folder.glob(".part-*"))


def test_publishing_a_policy(root, tmp_path, monkeypatch):
    disk = Disk(root, monkeypatch)
    for version in (1, 2, 3):
        (root / ".aside").write_bytes(b"%d" % version * 1000)
        publish_file(root / ".aside", root / "policy")
        disk.acknowledge(version)
    for acknowledged, folder in every_cut(disk, tmp_path, monkeypatch):
        content = (folder / "policy").read_bytes() if (folder / "policy").exists() else b"0" * 1000
        assert content in [b"%d" % version * 1000 for version in range(4)]
        assert int(content[:1]) >= max(acknowledged, default=0)


def test_a_checkpoint(root, tmp_path, monkeypatch):
    """Also one under a name that there is already, as when a run is resumed and stopped before its
    first update.
    """
    disk = Disk(root, monkeypatch)
    for number, name in enumerate(["u-1", "u-2", "u-2", "u-3", "u-4"], 1):
        checkpoint.save(root / "run/checkpoints", name, {"n": number, "x": np.full(100, number)})
        disk.acknowledge(number)
    for acknowledged, folder in every_cut(disk, tmp_path, monkeypatch):
        states = [
            checkpoint.load(path) for path in checkpoint.checkpoints(folder / "run/checkpoints")
        ]
        assert all((state["x"] == state["n"]).all() for state in states)
        assert (states[-1]["n"] if states else 0) >= max(acknowledged, default=0)
        checkpoint.save(folder / "run/checkpoints", "u-5", {"n": 6, "x": np.full(100, 6)})
        assert len(list((folder / "run/checkpoints").iterdir())) <= 2, "nothing half-made stays"
