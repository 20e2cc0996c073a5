import errno
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from rlinf_core.core.errors import EpisodeError, SpoolError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.validate import check_episode
from tests.messages import record


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def test_an_episode_comes_back_as_it_was(spool, task):
    spec = task.with_images({"front": (8, 8)}).spec
    folder = record(spool, spec, steps=5, sources={2: "operator"}).close()
    episode = read_episode(folder)
    assert (episode.id, episode.mode, episode.seed, episode.success, len(episode)) == (
        "a-1",
        "train",
        3,
        True,
        5,
    )
    assert episode.observations["force"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert (
        episode.observations["front"].shape == (6, 8, 8, 3)
        and episode.observations["front"][4].max() == 4
    )
    assert episode.requested[:, 0] == pytest.approx(0.02) and episode.executed[
        :, 0
    ] == pytest.approx(0.01)
    assert episode.sources == ("policy", "policy", "operator", "policy", "policy")
    assert episode.limits[1] == ("speed",) and episode.limits_hash == "beef"
    assert episode.rewards.dtype == episode.discounts.dtype == np.float32
    assert episode.rewards.tolist() == [0, 0, 0, 0, 1] and episode.discounts.tolist() == [
        1,
        1,
        1,
        1,
        0,
    ]


@pytest.mark.parametrize(
    "how, ended",
    [
        (dict(success=True), (True, False, False)),
        (dict(success=False, failure=True), (False, True, False)),
        (dict(success=False), (False, False, True)),
    ],
    ids=["success", "failure", "time limit"],
)
def test_a_recording_says_how_its_episode_ended(spool, task, how, ended):
    episode = read_episode(record(spool, task.spec, **how).close())
    assert (episode.success, episode.failure, episode.truncated) == ended
    assert (
        episode.discounts[-1] == float(episode.truncated) and (episode.discounts[:-1] == 1.0).all()
    )
    check_episode(episode, task.spec, 100)
    broken = replace(episode, failure=True, success=True)
    with pytest.raises(
        EpisodeError, match="expected one end of success, failure and time limit, got"
    ):
        check_episode(broken, task.spec, 100)
    wrong = replace(episode, discounts=1.0 - episode.discounts)
    with pytest.raises(
        EpisodeError, match=f"discounts: expected {float(episode.truncated)} at its end"
    ):
        check_episode(wrong, task.spec, 100)


@pytest.mark.parametrize("success", [True, False])
def test_a_recording_of_before_failures_were_told_is_still_read(spool, task, success, monkeypatch):
    """An old recording contains its own message definitions, without later fields."""
    types, added = {}, ("terminated", "truncated", "success  ", "failure")
    for path in sorted(Path("ros_ws/src/rlinf_msgs/msg").glob("*.msg")):
        lines = [
            line
            for line in path.read_text().splitlines()
            if not line.startswith(tuple(f"bool {name}" for name in added))
        ]
        types |= get_types_from_msg("\n".join(lines), f"rlinf_msgs/msg/{path.stem}")
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(types)
    fields = (
        store.types["rlinf_msgs/msg/TimeStep"].__dataclass_fields__,
        store.types["rlinf_msgs/msg/EpisodeEvent"].__dataclass_fields__,
    )
    assert "failure" not in fields[0] and "failure" not in fields[1] and "success" in fields[1]
    monkeypatch.setattr("rlinf_core.episodes.spool.typestore", lambda: store)
    episode = read_episode(record(spool, task.spec, success=success, store=store).close())
    assert (episode.success, episode.failure, episode.truncated) == (success, False, not success)
    check_episode(episode, task.spec, 100)


def test_the_recording_is_a_rosbag2_that_other_readers_open(spool, task):
    folder = record(spool, task.spec, steps=3).close()
    with open(folder / f"{folder.name}.mcap", "rb") as file:
        reader = make_reader(file)
        summary = reader.get_summary()
        topics = {channel.topic for channel in summary.channels.values()}
        schemas = {schema.name: schema.encoding for schema in summary.schemas.values()}
        assert reader.get_header().profile == "ros2"
        (metadata,) = reader.iter_metadata()
    assert metadata.name == "rosbag2" and metadata.metadata.keys() == {"serialized_metadata"}
    assert topics == {"/station/timestep", "/station/applied", "/station/episode"}
    assert schemas["rlinf_msgs/msg/TimeStep"] == "ros2msg"
    assert "storage_identifier: mcap" in (folder / "metadata.yaml").read_text()


def test_its_metadata_are_those_that_the_writer_of_rosbags_would_write(spool, task, tmp_path):
    folder = record(spool, task.spec, steps=3).close()
    with (
        Reader(folder) as reader,
        Writer(tmp_path / folder.name, version=8, storage_plugin=StoragePlugin.MCAP) as writer,
    ):
        topics = {
            source.id: writer.add_connection(
                source.topic,
                source.msgtype,
                msgdef=source.msgdef.data,
                rihs01=source.digest,
                offered_qos_profiles=source.ext.offered_qos_profiles,
            )
            for source in reader.connections
        }
        for connection, stamp, raw in reader.messages():
            writer.write(topics[connection.id], stamp, raw)
    ours, theirs = (
        yaml.safe_load((path / "metadata.yaml").read_text())
        for path in (folder, tmp_path / folder.name)
    )
    profiles = [
        topic["topic_metadata"].pop("offered_qos_profiles")
        for document in (ours, theirs)
        for topic in document["rosbag2_bagfile_information"]["topics_with_message_count"]
    ]
    assert (
        ours == theirs
        and len(profiles) == 6
        and list(map(yaml.safe_load, profiles[:3])) == list(map(yaml.safe_load, profiles[3:]))
    )


def test_several_actions_within_one_transition_add_up(spool, task):
    writer = record(spool, task.spec, steps=3)
    from rlinf_core.episodes.messages import typestore

    types = typestore().types
    message = types["rlinf_msgs/msg/Applied"](
        header=types["std_msgs/msg/Header"](
            types["builtin_interfaces/msg/Time"](0, 150_000_000), ""
        ),
        source="operator",
        session="o",
        seq=1,
        index=0,
        policy_version=-1,
        observation_stamp=types["builtin_interfaces/msg/Time"](0, 0),
        requested=np.array([0.0, 0.005, 0.0]),
        executed=np.array([0.0, 0.004, 0.0]),
        limits=[],
        limits_hash="beef",
    )
    writer.write(
        "/station/applied",
        "rlinf_msgs/msg/Applied",
        1,
        typestore().serialize_cdr(message, "rlinf_msgs/msg/Applied"),
    )
    episode = read_episode(writer.close())
    assert (
        episode.executed[1] == pytest.approx([0.01, 0.004, 0.001])
        and episode.sources[1] == "operator"
    )
    assert episode.requested[1] == pytest.approx([0.0, 0.005, 0.0]), "the last one asked for"


@pytest.mark.parametrize(
    "leave, message", [(("ended",), "It is unfinished"), (("timestep",), "Messages were lost")]
)
def test_unfinished_or_torn_episodes_are_refused(spool, task, leave, message):
    folder = record(spool, task.spec, leave=leave).close()
    with pytest.raises(EpisodeError, match=message):
        read_episode(folder)


def test_a_truncated_file_is_refused_by_name(spool, task):
    folder = record(spool, task.spec).close()
    file = folder / f"{folder.name}.mcap"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(EpisodeError, match="expected an intact rosbag2 recording"):
        read_episode(folder)
    with pytest.raises(EpisodeError):
        read_episode(folder.parent / "absent")


def test_an_interrupted_recording_is_set_aside_and_closed_ones_stay(spool, task):
    record(spool, task.spec, "one").close()
    record(spool, task.spec, "two")  # the recorder dies here
    again = Spool(spool.root)
    assert again.recover() == ["two"]
    assert [path.name for path in again.closed()] == ["one"]
    assert (spool.root / "broken" / "two").is_dir()


def test_sent_episodes_are_kept_up_to_a_number(spool, task):
    small = Spool(spool.root, keep_sent=2)
    for name in ("a", "b", "c"):
        record(small, task.spec, name).close()
    assert [path.name for path in small.closed()] == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        small.mark_sent(name)
    assert not small.closed() and sorted(p.name for p in (spool.root / "sent").iterdir()) == [
        "b",
        "c",
    ]


def test_a_new_episode_removes_the_sent_ones_beyond_their_number(spool, task):
    """A spool with a smaller ``keep_sent`` than before has some to remove."""
    for name in ("a", "b", "c"):
        record(spool, task.spec, name).close()
        spool.mark_sent(name)
    small = Spool(spool.root, keep_sent=1, min_free_mb=0)
    small.open_episode("d").abort()
    assert [path.name for path in (spool.root / "sent").iterdir()] == ["c"]


def test_a_spool_is_bounded_sent_episodes_go_first_and_nothing_else_ever_does(spool, task):
    def size(name):
        return sum(
            path.lstat().st_size for path in (spool.root / name, *(spool.root / name).iterdir())
        )

    record(spool, task.spec, "a").close()
    gb = 3.5 * size("closed/a") / 1e9
    small = Spool(spool.root, max_gb=gb)
    small.mark_sent("a")
    for name in ("b", "c", "d"):
        record(small, task.spec, name).close()
    assert small.full() == pytest.approx(3 / 3.5, 0.02), "sent episodes do not make it full"
    small.mark_sent("b")
    assert sorted(path.name for path in (spool.root / "sent").iterdir()) == ["b"], (
        "a was the oldest of four"
    )
    small.refuse("c", "it is no good")
    record(small, task.spec, "e").abort()
    before, writer = small.full(), record(small, task.spec, "f")
    assert before < small.full() and small.set_aside() == 1, "refused, broken and open ones do"
    moved = (spool.root / "refused/c").rename(spool.root / "moved")
    assert small.set_aside() == 0, "though the reason still lies there"
    moved.rename(spool.root / "refused/c")
    writer.close()
    with pytest.raises(
        SpoolError, match="Nothing is recorded until some are sent.*station.spool_gb. Closed"
    ):
        small.open_episode("g")
    left = {
        name: sorted(path.name for path in (spool.root / name).iterdir())
        for name in ("closed", "refused", "broken")
    }
    assert left == {"closed": ["d", "f"], "refused": ["c", "c.reason.txt"], "broken": ["e"]}
    assert Spool(spool.root, max_gb=3 * gb).open_episode("g")


def test_while_the_trainer_is_away_sent_episodes_make_room_for_new_ones(spool, task, monkeypatch):
    folders = [record(spool, task.spec, name).close() for name in "abcd"]
    gb = sum(path.stat().st_size for path in (folders[0], *folders[0].iterdir())) / 1e9
    for name in "abc":
        spool.mark_sent(name)
    Spool(spool.root, max_gb=3.5 * gb).open_episode("e").abort()
    assert sorted(path.name for path in (spool.root / "sent").iterdir()) == ["b", "c"], (
        "by its own bound"
    )

    def usage(root):
        return SimpleNamespace(free=1e9 - 4e8 * len([*(spool.root / "sent").iterdir()]))

    monkeypatch.setattr("rlinf_core.episodes.spool.shutil.disk_usage", usage)
    Spool(spool.root, min_free_mb=500).open_episode("f").abort()
    assert [path.name for path in (spool.root / "sent").iterdir()] == ["c"], (
        "the oldest, and no more than it takes"
    )
    with pytest.raises(
        SpoolError, match="at least 2000 MB free, got 1000 MB, and no sent episode is left"
    ):
        Spool(spool.root, min_free_mb=2000).open_episode("g")
    assert [path.name for path in spool.closed()] == ["d"]


def test_how_full_a_spool_is_can_be_asked_while_another_process_moves_episodes(spool):
    (spool.root / "elsewhere/a").mkdir(parents=True)
    (spool.root / "elsewhere/a/x").write_bytes(bytes(100))
    moving, through = threading.Event(), []

    def move():
        while not moving.wait(0.0):
            (spool.root / "elsewhere/a").rename(spool.root / "closed/a")
            (spool.root / "closed/a").rename(spool.root / "elsewhere/a")
        through.append(True)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        for _ in range(2000):
            Spool(spool.root).full()
    finally:
        moving.set()
        thread.join()
    assert through


def test_a_full_disk_is_said_and_loses_nothing_closed(spool, task, monkeypatch):
    record(spool, task.spec, "one").close()
    with pytest.raises(
        SpoolError, match="expected at least 1000000000 MB free.*Closed episodes are safe"
    ):
        Spool(spool.root, min_free_mb=1e9).open_episode("two")
    writer = record(spool, task.spec, "three")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer._bag, "write", full)
    with pytest.raises(SpoolError, match="No space left on device. Free the disk"):
        writer.write("/station/episode", "rlinf_msgs/msg/EpisodeEvent", 0, b"")
    assert [path.name for path in spool.closed()] == ["one"]


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EMFILE, "too many"), OSError(errno.EIO, "of the disk")]
)
def test_what_the_machine_lacks_is_no_word_on_the_episode(error, spool, task, monkeypatch):
    folder = record(spool, task.spec, "one").close()

    def lacks(_):
        raise error

    monkeypatch.setattr("rlinf_core.episodes.read.verify", lacks)
    with pytest.raises(type(error)):
        read_episode(folder, sealed=True)
