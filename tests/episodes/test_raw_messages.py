"""Records of a recording's file at their bounds, and what is no recording of ours."""

import pytest
from mcap.opcode import Opcode
from mcap.records import Chunk
from mcap.writer import Writer

from rlinf_core.core.errors import EpisodeError, escape_ascii
from rlinf_core.episodes.checksums import SUMS
from rlinf_core.episodes.messages import LIBRARY
from rlinf_core.episodes.raw_messages import (
    HEADER_BYTES,
    MESSAGE,
    RECORD,
    RawMessage,
    _is_sealed,
    _lacks_storage,
    _records,
    decode,
    read_any_messages,
    read_messages,
)
from rlinf_core.episodes.read import MAX_DEFINITIONS, _check_arms, _decode, _short
from rlinf_core.episodes.spool import Spool
from tests.messages import record

ONE = RECORD.pack(Opcode.MESSAGE, MESSAGE.size + 2) + MESSAGE.pack(1, 2, 3, 4) + b"ab"


def records_of(data, crc=0):
    return list(_records(Chunk("", data, 0, 0, crc, len(data))))


def test_a_message_of_a_chunk_has_its_numbers_and_data():
    (message,) = records_of(ONE)
    assert (message.channel_id, message.sequence) == (1, 2)
    assert (message.log_time, message.publish_time, bytes(message.data)) == (3, 4, b"ab")
    empty = RECORD.pack(Opcode.MESSAGE, MESSAGE.size) + MESSAGE.pack(1, 2, 3, 4)
    assert [bytes(message.data) for message in records_of(empty + ONE)] == [b"", b"ab"]
    other = RECORD.pack(0x0F, 3) + b"abc"
    assert len(records_of(ONE + other + ONE)) == 2, "records of other kinds are passed over"


@pytest.mark.parametrize(
    "data, crc, reason",
    [
        (ONE, 1, "a chunk whose checksum"),
        (ONE[:-1], 0, "a record that is cut short"),
        (RECORD.pack(Opcode.SCHEMA, 10) + b"abc", 0, "a record that is cut short"),
        (RECORD.pack(Opcode.MESSAGE, 3) + b"abc", 0, "a record that is cut short"),
    ],
)
def test_a_damaged_chunk_is_refused(data, crc, reason):
    with pytest.raises(ValueError, match=reason):
        records_of(data, crc)


@pytest.mark.parametrize("at, sealed", [(HEADER_BYTES - len(LIBRARY), True), (HEADER_BYTES, False)])
def test_a_recording_of_ours_names_its_writer_at_the_beginning(at, sealed, tmp_path):
    (tmp_path / "a.mcap").write_bytes(b"x" * at + LIBRARY.encode())
    assert not _is_sealed(tmp_path), "it has no seal"
    (tmp_path / SUMS).write_text("")
    assert _is_sealed(tmp_path) is sealed
    (tmp_path / "b.mcap").write_bytes(b"")
    assert not _is_sealed(tmp_path)


@pytest.mark.parametrize(
    "metadata, lacks",
    [
        ("a: [", False),
        ("- 1", False),
        ("rosbag2_bagfile_information: {storage_identifier: mcap}", False),
        ("rosbag2_bagfile_information: {storage_identifier: ''}", True),
        ("rosbag2_bagfile_information: {}", True),
    ],
)
def test_metadata_without_a_storage_stand_beside_mcap_files(metadata, lacks, tmp_path):
    (tmp_path / "metadata.yaml").write_text(metadata)
    assert not _lacks_storage(tmp_path)
    (tmp_path / "a.mcap").write_bytes(b"")
    assert _lacks_storage(tmp_path) is lacks


def test_metadata_that_are_no_text_are_not_read_past(tmp_path):
    (tmp_path / "metadata.yaml").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "a.mcap").write_bytes(b"")
    assert not _lacks_storage(tmp_path)


def test_a_folder_in_the_place_of_metadata_is_not_read_past(tmp_path):
    (tmp_path / "metadata.yaml").mkdir()
    (tmp_path / "a.mcap").write_bytes(b"")
    assert not _lacks_storage(tmp_path)


def test_a_recording_of_any_recorder_has_the_same_messages_at_the_same_times(tmp_path, task):
    folder = record(Spool(tmp_path / "spool"), task.spec).close()
    ours = list(read_any_messages(folder, sealed=True))
    (folder / SUMS).unlink()
    theirs = list(read_any_messages(folder, sealed=False))
    assert len(ours) == 13 and ours[-1].at_ns == 500_000_000
    assert [(m.topic, m.kind, m.definition, bytes(m.data), m.at_ns) for m in theirs] == [
        (m.topic, m.kind, m.definition, bytes(m.data), m.at_ns) for m in ours
    ]


def test_the_files_of_a_split_recording_are_read_by_their_numbers(tmp_path):
    """Its metadata are missing, so that only the names tell their order."""
    for number in (10, 9, 2):
        with (tmp_path / f"a_{number}.mcap").open("wb") as file:
            writer = Writer(file)
            writer.start(profile="ros2")
            schema = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
            channel = writer.register_channel("/label", "cdr", schema)
            other = writer.register_channel("/no_schema", "cdr", 0)
            writer.add_message(channel, 100 + number, b"%d" % number, 0)
            writer.add_message(other, 1, b"x", 0)
            writer.add_message(channel, 5, b"late", 0)
            writer.finish()
    assert list(read_any_messages(tmp_path, sealed=False)) == [
        RawMessage("/label", "std_msgs/msg/String", "string data", data, at_ns)
        for number in (2, 9, 10)
        for data, at_ns in ((b"%d" % number, 100 + number), (b"late", 5))
    ]


@pytest.mark.parametrize(
    "definition, reason",
    [
        (
            " \n",
            "expected the definition of a/msg/B in the file, which is needed to read its messages, "
            "got none. Record it again with a writer that stores message definitions, as `ros2 "
            "bag record` does",
        ),
        (
            "ü" + "{" * 100,
            "expected the definition of a/msg/B in the file as ROS 2 message text (ros2msg), got "
            f"'{escape_ascii('ü' + '{' * 100)[:80]}'. Convert it with `ros2 bag convert`",
        ),
    ],
)
def test_a_message_without_a_readable_definition_is_refused(definition, reason):
    with pytest.raises(EpisodeError) as refused:
        decode(RawMessage("/a", "a/msg/B", definition, b"", 0))
    assert str(refused.value) == reason


def test_many_numbers_are_shown_by_the_first_and_the_last():
    assert _short([0, 1, 3]) == "[0, 1, 3]"
    assert _short([*range(20)]).endswith("18, 19]")
    assert _short([*range(20), 25]) == "21 of them, 0 to 25"


def test_a_folder_without_a_file_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(EpisodeError) as refused:
        list(read_messages(tmp_path))
    assert str(refused.value) == (
        f"episode {tmp_path}: expected an intact recording, got: ValueError: 0 MCAP files instead "
        "of one. `rlinf data repair` keeps its intact part"
    )


def test_a_definition_has_a_largest_size(tmp_path, task):
    folder = record(Spool(tmp_path / "spool"), task.spec).close()

    def padded(size):
        return [
            raw._replace(definition=f"{raw.definition}\n#".ljust(size, "x"))
            for raw in read_any_messages(folder, sealed=True)
        ]

    assert len(_decode(padded(MAX_DEFINITIONS))["timestep"]) == 6
    with pytest.raises(ValueError, match="^'/station/episode' of type rlinf_msgs/msg/EpisodeEvent"):
        _decode(padded(MAX_DEFINITIONS + 1))


@pytest.mark.parametrize(
    "appliers, topic",
    [
        ({"/other"}, "/other"),
        ({"/a/left", "/other/left"}, "/other/left"),
        ({"/a/1"}, "/a/1"),
        ({"/a/1left"}, "/a/1left"),
        ({"/a", "/a/left"}, "/a/left"),
        ({"/a"}, None),
        ({"/a/left", "/a/right"}, None),
    ],
)
def test_actions_are_applied_by_the_station_or_by_its_arms(appliers, topic):
    if topic is None:
        _check_arms({"/a"}, appliers)
        return
    with pytest.raises(ValueError) as refused:
        _check_arms({"/a"}, appliers)
    assert str(refused.value) == (
        f"'{topic}/applied' and '/a/timestep': expected topics of one station and its arms"
    )
