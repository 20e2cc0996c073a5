"""The order of recordings in a spool comes from their names: no clock and no copy changes it."""

import contextlib
import os
import shutil
import time

import pytest

from rlinf_core.episodes import names
from rlinf_core.episodes.spool import Spool
from tests.messages import record

REQUEST = "a-20261122T040052-1f3a9c2b"


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool", min_free_mb=0)


def order(spool):
    return [folder.name for folder in spool.closed()]


def test_episodes_wait_in_the_order_in_which_they_were_played_also_in_a_copy(spool, task, tmp_path):
    numbers = [1, 2, 10, 999, 1000]
    for number in numbers:
        folder = record(spool, task.spec, f"{REQUEST}-{number:03d}").close()
        os.utime(folder, (1e9 - number, 1e9 - number))  # the clock runs backwards
    record(spool, task.spec, "a-20261122T040049-ffffffff-001").close()
    expected = [
        "a-20261122T040049-ffffffff-001",
        *[f"{REQUEST}-{number:03d}" for number in numbers],
    ]
    assert order(spool) == expected
    for name in expected[::-1]:  # copied one by one, the last first
        shutil.copytree(spool.root / "closed" / name, tmp_path / "copy/closed" / name)
        (tmp_path / "copy/closed" / name / "note.txt").write_text("")
    assert order(Spool(tmp_path / "copy", min_free_mb=0)) == expected


def test_the_oldest_that_were_sent_are_removed_first(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0, keep_sent=2)
    for number in (1, 2, 3):
        folder = record(spool, task.spec, f"{REQUEST}-{number:03d}").close()
        os.utime(folder, (1e9 - number, 1e9 - number))
        spool.mark_sent(folder.name)
    assert sorted(path.name[-3:] for path in (spool.root / "sent").iterdir()) == ["002", "003"]


def test_faults_and_parts_of_sessions_have_an_order_too(tmp_path):
    expected = [
        "fault-20261122T040052-002-robot_error",
        "a-session-20261122T040053-001",
        "fault-20261122T040054-001-x",
    ]
    assert [
        path.name for path in sorted(map(tmp_path.joinpath, expected[::-1]), key=names.order_of)
    ] == expected


def test_a_path_of_another_name_is_as_old_as_its_file(tmp_path):
    old, new = tmp_path / "b.txt", tmp_path / "a.txt"
    for path, at_s in ((old, -5e9), (new, 1e18), (old, 1e9), (new, 1.7e9)):
        path.write_text("")
        with contextlib.suppress(OSError, OverflowError):  # the disk knows no such time
            os.utime(path, (at_s, at_s))
        assert len(names.order_of(path)[0]) == 15
    request = tmp_path / "a-20150101T000000-1f3a9c2b-001"
    assert sorted([new, request, old], key=names.order_of) == [old, request, new]


def test_a_file_from_before_1970_or_one_that_is_gone_is_of_1970(tmp_path):
    path = tmp_path / "b.txt"
    path.write_text("")
    os.utime(path, (-5, -5))
    first = time.strftime("%Y%m%dT%H%M%S", time.localtime(0))
    assert names.order_of(path) == (first, "", -5 * 10**9, "b.txt")
    assert names.order_of(tmp_path / "gone") == (first, "", 0, "gone")


def test_time_stamps_of_names_rise_while_the_clock_is_set_back(monkeypatch):
    class Clock(names.datetime):
        @classmethod
        def now(cls):
            return names.datetime(2026, 11, 22, cls.times.pop(0))

    Clock.times = [4, 4, 3, 23]
    monkeypatch.setattr(names, "datetime", Clock)
    monkeypatch.setattr(names, "_latest", Clock.min)
    assert [names.time_stamp() for _ in range(4)] == [
        "20261122T040000",
        "20261122T040001",
        "20261122T040002",
        "20261122T230000",
    ]


def test_of_two_runs_that_began_together_one_comes_after_the_other(tmp_path):
    paths = [tmp_path / f"{run}-20261122T040052-1f3a9c2b-{n:03d}" for run in "ab" for n in (1, 2)]
    assert sorted(reversed(paths), key=names.order_of) == paths


def test_the_second_of_a_file_is_the_one_that_has_begun(tmp_path):
    path = tmp_path / "b.txt"
    path.write_text("")
    os.utime(path, ns=(1_700_000_000_999_999_999,) * 2)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(1_700_000_000))
    assert names.order_of(path) == (stamp, "", 1_700_000_000_999_999_999, "b.txt")
