"""An episode that is written again is read as the same, message for message."""

import dataclasses

import numpy as np
import pytest

from rlinf_core.episodes import checksums, read_episode
from rlinf_core.episodes.raw_messages import decode, read_messages
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.write import write_episode
from tests.messages import record


@pytest.fixture
def spec(task):
    return task.with_images({"front": (4, 6)}).spec


@pytest.mark.parametrize(
    "how",
    [
        dict(success=True, sources={1: "operator", 2: ""}),
        dict(success=False, failure=True, mode="demonstration"),
        dict(success=False, mode="evaluate"),
    ],
    ids=["success", "failure", "time limit"],
)
def test_an_episode_comes_back_the_same(tmp_path, spec, how):
    episode = read_episode(record(Spool(tmp_path / "spool"), spec, steps=3, **how).close())
    episode = dataclasses.replace(episode, instructions=("a", "b", "b", "é"))
    folder = write_episode(tmp_path / "again", episode)
    assert folder == tmp_path / "again"
    again = read_episode(folder, sealed=True)
    for field in dataclasses.fields(episode):
        value, expected = (getattr(one, field.name) for one in (again, episode))
        if field.name == "observations":
            assert value.keys() == expected.keys()
            for name in expected:
                assert value[name].dtype == expected[name].dtype
                assert np.array_equal(value[name], expected[name])
        elif isinstance(expected, np.ndarray):
            assert value.dtype == expected.dtype and np.array_equal(value, expected), field.name
        else:
            assert value == expected, field.name


def test_its_messages_are_those_of_a_station(tmp_path, spec):
    episode = read_episode(record(Spool(tmp_path / "spool"), spec, steps=3).close())
    folder = write_episode(tmp_path / "again", episode)
    messages = {}
    for raw in read_messages(folder):
        messages.setdefault(raw.topic, []).append((raw.at_ns, decode(raw)))
    assert list(messages) == ["/a/episode", "/a/timestep", "/a/applied"]
    begun, ended = (event for _, event in messages["/a/episode"])
    assert [at for at, _ in messages["/a/episode"]] == [0, 300_000_000]
    assert (begun.kind, begun.steps, begun.episode_return, begun.success) == (0, 0, 0.0, False)
    assert (ended.kind, ended.steps, ended.episode_return, ended.success) == (1, 3, 1.0, True)
    assert not (begun.truncated or begun.failure or ended.truncated or ended.failure)
    assert begun.detail == ended.detail == "" and begun.seed == 3
    steps = [step for _, step in messages["/a/timestep"]]
    assert [at for at, _ in messages["/a/timestep"]] == [0, 10**8, 2 * 10**8, 3 * 10**8]
    assert [step.step_type for step in steps] == [0, 1, 1, 2]
    assert [step.step_index for step in steps] == [0, 1, 2, 3]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.0, 1.0]
    assert [step.discount for step in steps] == [1.0, 1.0, 1.0, 0.0]
    for name in ("terminated", "success"):
        assert [getattr(step, name) for step in steps] == [False, False, False, True]
    for name in ("truncated", "failure"):
        assert not any(getattr(step, name) for step in steps)
    (picture,) = steps[2].images
    assert (picture.height, picture.width, picture.encoding, picture.step) == (4, 6, "rgb8", 18)
    assert picture.is_bigendian == 0
    assert picture.header.frame_id == "front" and set(picture.data.tolist()) == {2}
    applied = [one for _, one in messages["/a/applied"]]
    assert [at for at, _ in messages["/a/applied"]] == [0, 10**8, 2 * 10**8]
    assert [(one.seq, one.index, one.session) for one in applied] == [
        (1, 0, ""),
        (2, 0, ""),
        (3, 0, ""),
    ]
    assert [one.observation_stamp.nanosec for one in applied] == [0, 10**8, 2 * 10**8]
    assert [one.limits for one in applied] == [[], ["speed"], []]


def test_a_time_limit_is_no_end_of_the_task(tmp_path, spec):
    episode = read_episode(record(Spool(tmp_path / "spool"), spec, steps=2, success=False).close())
    folder = write_episode(tmp_path / "again", episode)
    messages = [decode(raw) for raw in read_messages(folder)]
    last = [one for one in messages if hasattr(one, "step_index")][-1]
    assert (last.terminated, last.truncated, last.success) == (False, True, False)
    assert messages[-1].truncated and last.discount == 1.0


def test_a_file_that_changes_while_it_is_read_has_no_state(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    sha256, state = checksums.unchanged_sha256(path)
    assert sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert state == checksums.file_state(path.stat()) and str(path.stat().st_ino) in state
    path.write_bytes(b"abcd")
    assert checksums.file_state(path.stat()) != state
    read = checksums.file_sha256

    def slow(file):
        digest = read(file)
        file.write_bytes(b"more of it")
        return digest

    monkeypatch.setattr(checksums, "file_sha256", slow)
    assert checksums.unchanged_sha256(path)[1] == ""


@pytest.mark.parametrize(
    "folder, closed", [("open", False), ("broken", False), ("closed", True), ("sent", True)]
)
def test_an_interrupted_recording_lies_in_its_folder_without_a_seal(
    tmp_path, folder, closed, monkeypatch
):
    episode = tmp_path / folder / "a-1"
    episode.mkdir(parents=True)
    assert checksums.never_closed(episode) is not closed
    monkeypatch.chdir(episode.parent)
    assert checksums.never_closed(type(episode)("a-1")) is not closed
    (episode / checksums.SUMS).touch()
    assert checksums.never_closed(episode) is False


def test_messages_have_the_stamps_of_their_time_steps_and_no_frame(tmp_path, spec):
    episode = read_episode(record(Spool(tmp_path / "spool"), spec, steps=3).close())
    episode = dataclasses.replace(episode, success=False, failure=True)
    folder = write_episode(tmp_path / "again", episode)
    headers, steps = {}, []
    for raw in read_messages(folder):
        message = decode(raw)
        headers.setdefault(raw.topic, []).append(message.header)
        steps += [message] if raw.topic == "/a/timestep" else []
    assert {
        topic: [header.stamp.nanosec for header in all_] for topic, all_ in headers.items()
    } == {
        "/a/episode": [0, 3 * 10**8],
        "/a/timestep": [0, 10**8, 2 * 10**8, 3 * 10**8],
        "/a/applied": [0, 10**8, 2 * 10**8],
    }
    assert {header.frame_id for all_ in headers.values() for header in all_} == {""}
    assert [step.failure for step in steps] == [False, False, False, True]
    assert not any(step.success or step.truncated for step in steps)
