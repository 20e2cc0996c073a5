"""Parts of interrupted uploads at the trainer, timed by a monotonic clock."""

import os
import zlib
from collections import namedtuple

import pytest

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge import inbox
from rlinf_core.deploy.bridge.client import episode_offer
from rlinf_core.deploy.bridge.inbox import MAX_PARTS, PART_S, Inbox
from rlinf_core.episodes.checksums import seal
from rlinf_core.episodes.journal import Journal


@pytest.fixture
def now(monkeypatch):
    value = [5000.0]
    monkeypatch.setattr(inbox.time, "monotonic", lambda: value[0])
    return value


def new_inbox(tmp_path):
    return Inbox(tmp_path / "inbox", Journal(tmp_path / "journal.jsonl"), lambda folder: None)


def episode(tmp_path, name):
    folder = tmp_path / "spool" / name
    folder.mkdir(parents=True)
    (folder / "x.mcap").write_bytes(name.encode())
    (folder / "metadata.yaml").write_bytes(b"meta")
    seal(folder)
    return episode_offer(folder)


def left(tmp_path):
    return {path.name for path in (tmp_path / "inbox").glob(".part-*")}


def test_a_step_of_the_clock_removes_nothing_and_a_day_of_running_does(tmp_path, now):
    first = new_inbox(tmp_path)
    old, used = (first.receive("a", episode(tmp_path, name)).folder for name in ("old", "used"))
    for path in (old, used):
        os.utime(path, (0, 0))  # the clock was at 1970 then
    again = new_inbox(tmp_path)
    assert left(tmp_path) == {old.name, used.name}
    now[0] += PART_S / 2
    again.receive("a", episode_offer(tmp_path / "spool/used"))
    now[0] += PART_S
    again.receive("b", episode(tmp_path, "b"))
    assert old.name not in left(tmp_path) and used.name in left(tmp_path)


def test_of_a_station_the_ones_stay_that_came_last_whatever_their_stamps_say(tmp_path, now):
    box, folders = new_inbox(tmp_path), []
    for number in range(MAX_PARTS + 2):
        now[0] += 1.0
        folders.append(box.receive("a", episode(tmp_path, f"e{number}")).folder)
        os.utime(folders[-1], (1e9 - number, 1e9 - number))  # a clock that goes backwards
    assert left(tmp_path) == {folder.name for folder in folders[-MAX_PARTS:]}


def test_a_part_of_a_station_that_has_gone_is_removed_after_a_day_and_one_that_grows_is_not(
    tmp_path, now
):
    box = new_inbox(tmp_path)
    gone, slow = (box.receive(name, episode(tmp_path, name)) for name in ("gone", "slow"))
    files = [file.name for file in slow.episode.files]
    for offset, letter in enumerate(b"slow"):
        now[0] += PART_S * 0.4
        data = bytes([letter])
        slow.take(
            pb.Chunk(file=files.index("x.mcap"), offset=offset, data=data, crc32=zlib.crc32(data))
        )
    box.offer("other", episode(tmp_path, "other"))
    assert left(tmp_path) == {slow.folder.name}
    assert (slow.folder / "x.mcap").is_file() and not gone.folder.exists()


def test_a_short_disk_takes_the_parts_of_earlier_starts_before_an_episode_waits(
    tmp_path, now, monkeypatch
):
    first = new_inbox(tmp_path)
    old, mine = (first.receive("a", episode(tmp_path, name)).folder for name in ("old", "mine"))
    again = new_inbox(tmp_path)
    here = again.receive("b", episode(tmp_path, "b")).folder
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(inbox.shutil, "disk_usage", lambda _: usage(0 if old.exists() else 1 << 40))
    assert not again.offer("a", episode_offer(tmp_path / "spool/mine")).stored
    assert left(tmp_path) == {mine.name, here.name}


def test_old_parts_are_removed_although_the_disk_is_too_full_for_an_episode(tmp_path, now):
    box = new_inbox(tmp_path)
    gone = box.receive("gone", episode(tmp_path, "gone")).folder
    box.min_free_mb = 1e12
    with pytest.raises(BridgeError, match="Free the trainer's disk"):
        box.offer("a", episode(tmp_path, "now"))
    assert gone.exists()
    now[0] += PART_S + 1
    with pytest.raises(BridgeError, match="Free the trainer's disk"):
        box.offer("a", episode_offer(tmp_path / "spool/now"))
    assert not gone.exists()
