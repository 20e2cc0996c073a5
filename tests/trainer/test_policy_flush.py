"""Policies that stations get before they are on the trainer's disk, and what a power cut leaves."""

import json
import threading

import pytest

from rlinf_core.policies.policy_folder import (
    free_version,
    newest_version,
    policy_files,
    policy_name,
)
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.trainer import policy_flush
from rlinf_core.trainer.policy_flush import NOTE, PolicyFlush, discard_unflushed


@pytest.fixture
def publish(task, tmp_path):
    """Publish a version as a run does; the flush goes on in its thread."""
    actor, flush = Actor(task.spec), PolicyFlush(tmp_path)

    def publish(version):
        flush.prepare()
        path = save_policy(actor, tmp_path / policy_name(version), durable=False, version=version)
        flush.begin(version)
        return path

    publish.flush = flush
    yield publish
    publish.flush.wait()


def flushed(folder):
    return json.loads((folder / NOTE).read_text())["version"]


@pytest.fixture
def flushes(monkeypatch):
    """While ``on`` is cleared, no file is flushed."""
    on, fsync = threading.Event(), policy_flush.fsync
    on.set()
    monkeypatch.setattr(policy_flush, "fsync", lambda path: (on.wait(), fsync(path)))
    yield on
    on.set()


def test_versions_are_flushed_one_by_one_in_a_thread_that_bears_a_name(publish, monkeypatch):
    names, fsync = [], policy_flush.fsync

    def noted(path):
        names.append(threading.current_thread().name)
        fsync(path)

    publish.flush.prepare()
    monkeypatch.setattr(policy_flush, "fsync", noted)
    for version in range(1, 5):
        publish(version)
    publish.flush.wait()
    assert names == ["policy-flush_0"] * 8, "each file, and its folder"


@pytest.fixture
def reboot(monkeypatch):
    return lambda: monkeypatch.setattr(policy_flush, "boot_id", lambda: "another")


def test_a_policy_is_there_before_it_is_flushed_and_the_next_waits(publish, flushes, tmp_path):
    publish(1)
    publish.flush.wait()
    flushes.clear()
    assert publish(2).exists() and newest_version(tmp_path) == 2 and flushed(tmp_path) == 1
    next_one = threading.Thread(target=publish, args=(3,))
    next_one.start()
    next_one.join(0.2)
    assert next_one.is_alive() and newest_version(tmp_path) == 2
    flushes.set()
    next_one.join(20)
    publish.flush.wait()
    assert newest_version(tmp_path) == flushed(tmp_path) == 3


def test_after_a_power_cut_versions_that_were_not_flushed_are_given_to_nobody(
    publish, flushes, tmp_path, reboot
):
    publish(1)
    publish.flush.wait()
    flushes.clear()
    publish(2).write_bytes(b"")  # as the disk has it after the cut
    reboot()
    assert discard_unflushed(tmp_path) == [tmp_path / f"{policy_name(2)}.unflushed"]
    assert [path.name for path in policy_files(tmp_path)] == [policy_name(1)]
    assert free_version(tmp_path, 1) == 3  # a station may have played 2


def test_the_first_version_of_a_run_too(publish, flushes, tmp_path, reboot):
    publish.flush.prepare()
    flushes.clear()
    publish.flush._noted = True
    publish(1)
    reboot()
    assert len(discard_unflushed(tmp_path)) == 1 and newest_version(tmp_path) == -1


def test_a_process_that_dies_loses_nothing(publish, flushes, tmp_path):
    publish(1)
    publish.flush.wait()
    flushes.clear()
    publish(2)
    assert discard_unflushed(tmp_path) == [] and newest_version(tmp_path) == 2
    flushes.set()
    publish.flush.wait()
    PolicyFlush(tmp_path).prepare()  # of the next process
    assert flushed(tmp_path) == 2


@pytest.mark.parametrize("note", [None, "", "[]", '{"version": "x", "boot": ""}'])
def test_a_folder_without_a_note_is_of_an_earlier_version_and_keeps_all(
    task, tmp_path, reboot, note
):
    save_policy(Actor(task.spec), tmp_path / policy_name(4), version=4)
    if note is not None:
        (tmp_path / NOTE).write_text(note)
    reboot()
    assert discard_unflushed(tmp_path) == [] and newest_version(tmp_path) == 4


def test_a_flush_that_fails_is_an_error_of_the_next_policy_and_of_the_checkpoint(
    publish, monkeypatch, tmp_path
):
    publish(1)
    publish.flush.wait()

    def fails(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(policy_flush, "fsync", fails)
    publish(2)
    with pytest.raises(OSError, match="Input/output"):
        publish.flush.wait()
    assert flushed(tmp_path) == 1
    publish(3)
    with pytest.raises(OSError, match="Input/output"):
        publish(4)
