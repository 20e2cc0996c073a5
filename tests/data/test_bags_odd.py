"""Rosbag2 folders of others: each is read as mcap's own reader reads it, or refused by name."""

import threading

import pytest
import yaml
from mcap.reader import make_reader
from mcap.writer import CompressionType, IndexType, Writer

from rlinf_core.cli.main import main
from rlinf_core.core.errors import EpisodeError
from rlinf_core.data import episodes
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from tests.messages import record


@pytest.fixture
def closed(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    record(spool, task.spec, "a-1", steps=5).close()
    return spool.root / "closed/a-1"


def messages(folder):
    with next(folder.glob("*.mcap")).open("rb") as file:
        return list(make_reader(file).iter_messages(log_time_order=False))


def write(
    path, records, compression=CompressionType.NONE, encoding="ros2msg", text=None, index=True
):
    """An MCAP file of these messages."""
    kinds = IndexType.ALL if index else IndexType.NONE
    writer = Writer(str(path), compression=compression, chunk_size=4096, index_types=kinds)
    writer.start(profile="ros2", library="mcap go v1.7")
    channels = {}
    for schema, channel, message in records:
        if channel.topic not in channels:
            number = writer.register_schema(
                schema.name, encoding, schema.data if text is None else text
            )
            channels[channel.topic] = writer.register_channel(
                channel.topic, "cdr", number, channel.metadata
            )
        writer.add_message(
            channels[channel.topic], message.log_time, message.data, message.publish_time
        )
    writer.finish()


def bag(closed, tmp_path, files, **changes):
    """Return a folder of MCAP files with the metadata of the recording, changed."""
    folder = tmp_path / "bags/a-1"
    folder.mkdir(parents=True)
    names = [f"a-1_{number}.mcap" for number in range(len(files))]
    for name, (records, options) in zip(names, files, strict=True):
        write(folder / name, records, **options)
    document = yaml.safe_load((closed / "metadata.yaml").read_text())
    information = document["rosbag2_bagfile_information"]
    first = information["files"][0]
    information |= {
        "relative_file_paths": names,
        "files": [{**first, "path": name, "message_count": len(files[0][0])} for name in names],
    }
    information |= changes
    (folder / "metadata.yaml").write_text(yaml.safe_dump(document))
    return folder


def halves(records):
    return [(records[: len(records) // 2], {}), (records[len(records) // 2 :], {})]


@pytest.mark.parametrize(
    "files, changes",
    [
        (lambda all: [(all, {})], {}),
        (lambda all: [(all, {})], {"storage_identifier": ""}),
        (lambda all: [(all, {"compression": CompressionType.LZ4})], {"storage_identifier": ""}),
        (lambda all: [(all, {"compression": CompressionType.LZ4})], {}),
        (lambda all: [(all, {"compression": CompressionType.ZSTD})], {}),
        (halves, {}),
        (halves, {"storage_identifier": ""}),
        (lambda all: [(all, {"index": False})], {"storage_identifier": ""}),
        (lambda all: [(all[::-1], {})], {}),
        (lambda all: [([message for message in all for _ in range(2)], {})], {}),
    ],
)
def test_a_bag_of_others_has_the_same_episode(closed, tmp_path, files, changes):
    before = read_episode(closed)
    after = read_episode(bag(closed, tmp_path, files(messages(closed)), **changes))
    assert after.id == before.id and after.instructions == before.instructions
    assert (after.requested == before.requested).all() and (after.rewards == before.rewards).all()
    for name, values in before.observations.items():
        assert values.tobytes() == after.observations[name].tobytes()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"text": b""}, "expected the definition of rlinf_msgs/msg/"),
        (
            {"text": b"", "encoding": ""},
            "in the file, which is needed to read its messages, got none",
        ),
    ],
)
def test_a_bag_without_definitions_is_refused_by_the_type(closed, tmp_path, options, message):
    folder = bag(closed, tmp_path, [(messages(closed), options)], storage_identifier="")
    with pytest.raises(EpisodeError, match=message) as raised:
        read_episode(folder)
    assert str(raised.value).startswith(f"episode {folder}: ")


def test_a_definition_of_another_language_is_refused_by_the_type(closed, tmp_path):
    options = {"text": b"struct { float x; };", "encoding": "ros2idl"}
    folder = bag(closed, tmp_path, [(messages(closed), options)], storage_identifier="")
    with pytest.raises(EpisodeError, match=r"as ROS 2 message text \(ros2msg\), got 'struct"):
        read_episode(folder)


def test_a_bag_without_messages_is_no_episode(closed, tmp_path):
    with pytest.raises(EpisodeError, match="0 steps and 0 ENDED events"):
        read_episode(bag(closed, tmp_path, [([], {})], storage_identifier=""))


@pytest.mark.parametrize("compression", [CompressionType.LZ4, CompressionType.ZSTD])
def test_a_compressed_bag_is_repaired_without_loss(closed, tmp_path, compression, capsys):
    folder = bag(closed, tmp_path, [(messages(closed), {"compression": compression})])
    assert main(["data", "repair", str(folder), "--out", str(tmp_path / "out")]) == 0
    expected = [(channel.topic, message.data) for _, channel, message in messages(closed)]
    again = next((tmp_path / "out").glob("**/*.mcap")).parent
    assert [(channel.topic, message.data) for _, channel, message in messages(again)] == expected
    assert read_episode(again, sealed=True).id == "a-1"


def test_a_compressed_chunk_that_is_larger_than_it_says_is_left_out(closed, tmp_path, capsys):
    folder = bag(closed, tmp_path, [(messages(closed), {"compression": CompressionType.LZ4})])
    file = next(folder.glob("*.mcap"))
    data = bytearray(file.read_bytes())
    at = data.index(b"\x03\x00\x00\x00lz4")  # before it: a chunk's size when unpacked, and its CRC
    data[at - 12 : at - 4] = (100).to_bytes(8, "little")
    file.write_bytes(data)
    main(["data", "repair", str(folder), "--out", str(tmp_path / "out")])
    output = capsys.readouterr()
    assert "expected 100 bytes when unpacked, got more" in output.out + output.err


def test_a_reader_that_is_given_up_can_be_collected_by_any_of_its_threads(closed, monkeypatch):
    """After an error elsewhere, a reading thread may collect the generator."""
    suspended, readings = threading.Event(), []

    def collect(_):
        assert suspended.wait(60)
        if readings:
            readings.pop().close()

    monkeypatch.setattr(episodes, "_read_checked", collect)
    reading = episodes._read_ahead([closed] * 4)
    futures = [next(reading)[1]]
    monkeypatch.setattr(episodes, "READERS", 0)
    futures.append(next(reading)[1])
    readings.append(reading)
    suspended.set()
    assert [future.result(60) for future in futures] == [None, None]


def sqlite_bag(closed, tmp_path):
    """Return the same messages in a bag of ROS's older storage, by the writer of ``rosbags``."""
    from rosbags.rosbag2 import Reader, StoragePlugin, Writer

    folder = tmp_path / "bags/a-1"
    folder.parent.mkdir()
    with (
        Reader(closed) as reader,
        Writer(folder, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer,
    ):
        connections = {
            one.id: writer.add_connection(
                one.topic, one.msgtype, msgdef=one.msgdef.data, rihs01=one.digest
            )
            for one in reader.connections
        }
        for one, stamp, data in reader.messages():
            writer.write(connections[one.id], stamp, data)
    return folder


def test_a_bag_of_the_older_storage_has_the_same_episode(closed, tmp_path):
    before, after = read_episode(closed), read_episode(sqlite_bag(closed, tmp_path))
    assert (after.requested == before.requested).all() and after.id == before.id


def with_more(records, topic, name, text, stamp=None, data=b"\x00\x01\x00\x00" + bytes(8)):
    """Return the messages, and one of another topic or type."""
    schema, channel, message = records[0]
    schema = type(schema)(id=900, name=name, encoding="ros2msg", data=text)
    channel = type(channel)(id=901, topic=topic, message_encoding="cdr", metadata={}, schema_id=900)
    message = type(message)(
        channel_id=901,
        log_time=message.log_time if stamp is None else stamp,
        data=data,
        publish_time=0,
        sequence=0,
    )
    return [*records, (schema, channel, message)]


@pytest.mark.parametrize(
    "topic, name, text, stamp",
    [
        ("/station_a/secret", "nobody_msgs/msg/Unknown", b"nobody_msgs/Other x", None),
        ("/station_a/broken", "nobody_msgs/msg/Broken", b"%%% no definition %%%", None),
        ("/station_a/late", "std_msgs/msg/String", b"string data", 2**63 - 1),
        ("/station_a/never", "std_msgs/msg/String", b"string data", 2**63 + 5),
    ],
)
@pytest.mark.parametrize("storage", ["mcap", ""])
def test_topics_of_unknown_types_and_odd_times_change_no_episode(
    closed, tmp_path, topic, name, text, stamp, storage
):
    records = with_more(messages(closed), topic, name, text, stamp)
    after = read_episode(bag(closed, tmp_path, [(records, {})], storage_identifier=storage))
    before = read_episode(closed)
    assert (after.requested == before.requested).all() and after.id == before.id


def test_a_topic_of_two_types_is_refused_with_both(closed, tmp_path):
    records = messages(closed)
    topic = next(channel.topic for _, channel, _ in records if channel.topic.endswith("/timestep"))
    writer_of = with_more(records, topic, "std_msgs/msg/String", b"string data")
    folder = bag(closed, tmp_path, [(records, {}), (writer_of[-1:], {})], storage_identifier="")
    with pytest.raises(
        EpisodeError, match="'/[a-z_]+/timestep' of type std_msgs/msg/String, not .*TimeStep"
    ):
        read_episode(folder)


def test_a_bag_without_metadata_is_read_by_its_files(closed, tmp_path):
    folder = bag(closed, tmp_path, halves(messages(closed)))
    (folder / "metadata.yaml").unlink()
    before, after = read_episode(closed), read_episode(folder)
    assert (after.requested == before.requested).all() and after.id == before.id
    for file in folder.glob("*.mcap"):
        file.unlink()
    with pytest.raises(EpisodeError, match="metadata file .* does not exist"):
        read_episode(folder)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
@pytest.mark.parametrize("storage", ["mcap", ""])
def test_a_file_that_is_cut_short_is_refused_with_the_remedy(closed, tmp_path, share, storage):
    folder = bag(closed, tmp_path, [(messages(closed), {})], storage_identifier=storage)
    file = next(folder.glob("*.mcap"))
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(EpisodeError, match="rlinf data repair"):
        read_episode(folder)
    assert main(["data", "repair", str(folder), "--out", str(tmp_path / "out")]) in (0, 1)
