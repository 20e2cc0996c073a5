"""Serialised messages of a recorded rosbag2 folder, in the order of the recording."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from rlinf_core.core.errors import EpisodeError, escape_ascii
from rlinf_core.episodes.checksums import SUMS
from rlinf_core.episodes.messages import LIBRARY, store_for

if TYPE_CHECKING:
    from mcap.records import Chunk, McapRecord

# MCAP: a record's kind and length, and the start of a message
RECORD, MESSAGE = Struct("<BQ"), Struct("<HIQQ")
HEADER_BYTES = 256  # start of an MCAP file, which names its writer
MAX_CHUNK_BYTES = 72 << 20  # a chunk ends once it is over 1 MiB, and a message has at most 64 MiB


class RawMessage(NamedTuple):
    """A recorded message.

    Attributes:
        topic: name of its topic.
        kind: its type.
        definition: text of the type's definition.
        data: CDR.
        at_ns: time of its arrival.
    """

    topic: str
    kind: str
    definition: str
    data: bytes
    at_ns: int


def read_any_messages(folder: Path, sealed: bool) -> Iterator[RawMessage]:
    """Return an iterator of the messages of a rosbag2 folder.

    Args:
        folder: the recording.
        sealed: whether only the format of our recorders is read, not that of any recorder.
    """
    return _read_mcap(folder) if sealed or _is_sealed(folder) else _rosbag_messages(folder)


def read_messages(folder: Path) -> Iterator[RawMessage]:
    """Yield each message of a recording of our recorders.

    Raises:
        EpisodeError: the recording is damaged.
    """
    try:
        yield from _read_mcap(folder)
    except Exception as error:  # see read_episode
        raise EpisodeError(
            f"episode {folder}: expected an intact recording, got: {type(error).__name__}: "
            f"{error}. `rlinf data repair` keeps its intact part"
        ) from error


def decode(raw: RawMessage) -> Any:
    """Decode a recorded message by the definition in its file."""
    return _store(raw.kind, raw.definition).deserialize_cdr(raw.data, raw.kind)


def _read_mcap(folder: Path) -> Iterator[RawMessage]:
    """Read a recorder's MCAP file from beginning to end, and compare the checksum of every chunk.

    No index is followed and nothing is decompressed. Either could turn little data into any amount.
    """
    from mcap.records import Channel, Chunk, Message, Schema
    from mcap.stream_reader import StreamReader

    files = list(folder.glob("*.mcap"))
    if len(files) != 1:
        raise ValueError(f"{len(files)} MCAP files instead of one")
    schemas: dict[int, Schema] = {}
    channels: dict[int, Channel] = {}
    with open(files[0], "rb") as stream:
        # the seal has been compared
        reader = StreamReader(stream, emit_chunks=True, record_size_limit=MAX_CHUNK_BYTES)
        for outer in reader.records:
            if isinstance(outer, Chunk) and outer.compression:
                raise ValueError(
                    f"compression {outer.compression}, which the recorder does not use"
                )
            for record in _records(outer) if isinstance(outer, Chunk) else [outer]:
                if isinstance(record, Schema):
                    schemas[record.id] = record
                elif isinstance(record, Channel):
                    channels[record.id] = record
                elif isinstance(record, Message):
                    channel = channels[record.channel_id]
                    schema = schemas[channel.schema_id]
                    yield RawMessage(
                        channel.topic,
                        schema.name,
                        schema.data.decode(),
                        record.data,
                        record.log_time,
                    )


def _records(chunk: Chunk) -> Iterator[McapRecord]:
    """Yield the records of a chunk like ``mcap.stream_reader.breakup_chunk``, with fewer copies.

    That function copies every message twice.
    """
    from mcap.data_stream import ReadDataStream
    from mcap.opcode import Opcode
    from mcap.records import Channel, Message, Schema

    if chunk.uncompressed_crc not in (0, zlib.crc32(chunk.data)):
        raise ValueError("a chunk whose checksum (CRC) does not fit")
    view, at = memoryview(chunk.data), 0
    while at < len(view):
        opcode, length = RECORD.unpack_from(view, at)
        content, at = view[at + RECORD.size : at + RECORD.size + length], at + RECORD.size + length
        if len(content) < length or (opcode == Opcode.MESSAGE and length < MESSAGE.size):
            raise ValueError("a record that is cut short")
        if opcode == Opcode.MESSAGE:
            channel, number, logged, published = MESSAGE.unpack_from(content)
            yield Message(
                channel_id=channel,
                sequence=number,
                log_time=logged,
                publish_time=published,
                # a view is read as bytes are
                data=content[MESSAGE.size :],  # type: ignore[arg-type]
            )
        elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
            yield (Schema if opcode == Opcode.SCHEMA else Channel).read(
                ReadDataStream(BytesIO(content))
            )


def _is_sealed(folder: Path) -> bool:
    """Return True for a sealed recording of our own.

    Reading one needs no metadata, because parsing them is slow.
    """
    files = list(folder.glob("*.mcap"))
    if len(files) != 1 or not (folder / SUMS).exists():
        return False
    with open(files[0], "rb") as file:
        return LIBRARY.encode() in file.read(HEADER_BYTES)


def _rosbag_messages(folder: Path) -> Iterator[RawMessage]:
    """Yield the messages of any rosbag2 recording."""
    from rosbags.rosbag2 import Reader

    if _lacks_storage(folder):
        yield from _mcap_files(folder)
        return
    with Reader(folder) as reader:
        for connection, at_ns, raw in reader.messages():
            yield RawMessage(
                connection.topic, connection.msgtype, connection.msgdef.data, raw, at_ns
            )


def _lacks_storage(folder: Path) -> bool:
    """Return True if metadata.yaml names no storage beside MCAP files (``ros2 bag reindex``), or is
    missing.
    """
    if not (folder / "metadata.yaml").exists():
        return any(folder.glob("*.mcap"))
    with suppress(OSError, ValueError, yaml.YAMLError):
        document = yaml.safe_load((folder / "metadata.yaml").read_text())
        information = (
            document.get("rosbag2_bagfile_information") if isinstance(document, dict) else None
        )
        named = isinstance(information, dict) and information.get("storage_identifier", "")
        return named == "" and any(folder.glob("*.mcap"))
    return False


def _mcap_files(folder: Path) -> Iterator[RawMessage]:
    """Yield the messages of all MCAP files of a recording, and ignore its metadata.yaml."""
    from mcap.reader import make_reader

    for path in sorted(folder.glob("*.mcap"), key=lambda path: (len(path.name), path.name)):
        with path.open("rb") as file:
            for schema, channel, message in make_reader(file).iter_messages(log_time_order=False):
                if schema is not None:
                    yield RawMessage(
                        channel.topic,
                        schema.name,
                        schema.data.decode(),
                        message.data,
                        message.log_time,
                    )


def _store(kind: str, definition: str) -> Any:
    """Return a typestore with the recording's own definition of one of our types."""
    if not definition.strip():
        raise EpisodeError(
            f"expected the definition of {kind} in the file, which is needed to read its messages, "
            "got none. Record it again with a writer that stores message definitions, as `ros2 "
            "bag record` does"
        )
    try:
        return store_for(((kind, definition),))
    except Exception as error:  # the parser raises many kinds
        raise EpisodeError(
            f"expected the definition of {kind} in the file as ROS 2 message text (ros2msg), got "
            f"'{escape_ascii(definition)[:80]}'. Convert it with `ros2 bag convert`"
        ) from error
