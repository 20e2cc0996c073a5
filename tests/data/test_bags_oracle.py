"""The project reads bags like rosbag2's readers (rosbags, mcap), without shared code."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap.writer import CompressionType
from rosbags.highlevel import AnyReader
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from rlinf_core.episodes import read_episode
from rlinf_core.episodes.raw_messages import read_messages
from rlinf_core.episodes.spool import Spool
from tests.data.test_bags_odd import bag, halves, messages
from tests.messages import record

SHAPE = (48, 64)


@pytest.fixture
def closed(tmp_path, task):
    """Return an episode with pictures, of which a person commanded a part."""
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    spec = task.with_images({"front": SHAPE}).spec
    record(spool, spec, "a-1", steps=7, sources={2: "operator", 3: "operator"}).close()
    return spool.root / "closed/a-1"


def store():
    """Every type by the definitions that stand in this repository, without the project's
    own store.
    """
    types_store = get_typestore(Stores.ROS2_JAZZY)
    types = {}
    for path in Path("ros_ws/src/rlinf_msgs/msg").glob("*.msg"):
        types |= get_types_from_msg(path.read_text(), f"rlinf_msgs/msg/{path.stem}")
    types_store.register(types)
    return types_store


def as_sqlite(closed, tmp_path):
    """Return the same messages as `ros2 bag convert` writes them to SQLite."""
    folder = tmp_path / "bags/a-1"
    folder.parent.mkdir()
    types_store = store()
    with (
        Reader(closed) as reader,
        Writer(folder, version=8, storage_plugin=StoragePlugin.SQLITE3) as writer,
    ):
        connections = {
            one.topic: writer.add_connection(one.topic, one.msgtype, typestore=types_store)
            for one in reader.connections
        }
        for connection, at_ns, data in reader.messages():
            writer.write(connections[connection.topic], at_ns, data)
    return folder


def plain(closed, tmp_path):
    return closed


def of_others(**options):
    return lambda closed, tmp_path: bag(closed, tmp_path, [(messages(closed), options)])


BAGS = [
    plain,
    as_sqlite,
    of_others(),
    of_others(compression=CompressionType.ZSTD),
    of_others(compression=CompressionType.LZ4),
    lambda closed, tmp_path: bag(closed, tmp_path, halves(messages(closed))),
    lambda closed, tmp_path: bag(closed, tmp_path, [(messages(closed)[::-1], {})]),
]


def test_every_message_is_the_one_that_rosbags_reads(closed):
    with Reader(closed) as reader:
        theirs = Counter(
            (one.topic, one.msgtype, at_ns, bytes(data)) for one, at_ns, data in reader.messages()
        )
    ours = Counter(
        (raw.topic, raw.kind, raw.at_ns, bytes(raw.data)) for raw in read_messages(closed)
    )
    assert ours == theirs and len(theirs) == 17


def test_every_message_is_the_one_that_mcaps_own_reader_reads(closed):
    with next(closed.glob("*.mcap")).open("rb") as file:
        theirs = Counter(
            (channel.topic, schema.name, message.log_time, message.data)
            for schema, channel, message in make_reader(file).iter_messages()
        )
    assert (
        Counter((raw.topic, raw.kind, raw.at_ns, bytes(raw.data)) for raw in read_messages(closed))
        == theirs
    )


@pytest.mark.parametrize("make", BAGS)
def test_an_episode_is_what_its_messages_say(make, closed, tmp_path):
    folder = make(closed, tmp_path)
    with AnyReader([folder], default_typestore=store()) as reader:
        everything = [
            (one.topic, reader.deserialize(data, one.msgtype)) for one, _, data in reader.messages()
        ]
    steps = sorted(
        (message for topic, message in everything if topic.endswith("/timestep")),
        key=lambda step: step.step_index,
    )
    applied = [message for topic, message in everything if topic.endswith("/applied")]
    ended = [
        message for topic, message in everything if topic.endswith("/episode") and message.kind == 1
    ]
    episode = read_episode(folder)
    assert (episode.id, episode.mode, episode.seed) == (
        ended[-1].episode_id,
        ended[-1].mode,
        ended[-1].seed,
    )
    assert (episode.success, episode.policy_version) == (
        bool(ended[-1].success),
        ended[-1].policy_version,
    )
    assert (
        list(episode.instructions) == [step.instruction for step in steps]
        and len(episode) == len(steps) - 1
    )
    assert episode.stamps_ns.tolist() == [
        step.header.stamp.sec * 10**9 + step.header.stamp.nanosec for step in steps
    ]
    assert episode.rewards.tolist() == [step.reward for step in steps[1:]]
    assert episode.discounts.tolist() == [step.discount for step in steps[1:]]
    for row, vector in enumerate(steps[0].vectors):
        values = np.stack([step.vectors[row].data for step in steps])
        assert np.array_equal(episode.observations[vector.name], values)
    pictures = np.stack(
        [np.frombuffer(bytes(step.images[0].data), np.uint8).reshape(*SHAPE, 3) for step in steps]
    )
    assert np.array_equal(episode.observations["front"], pictures)
    for k, start in enumerate(episode.stamps_ns[:-1].tolist()):
        during = [
            message
            for message in applied
            if start
            <= message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            < episode.stamps_ns[k + 1]
        ]
        assert during and np.array_equal(episode.requested[k], during[-1].requested)
        assert np.allclose(
            episode.executed[k], np.sum([message.executed for message in during], axis=0)
        )
        assert episode.sources[k] == (
            "operator"
            if any(record.source == "operator" for record in during)
            else during[-1].source
        )
