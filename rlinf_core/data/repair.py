"""Checks recordings, and writes the intact chunks of damaged ones to a new recording."""

from __future__ import annotations

import io
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Attachment, Channel, Chunk, Message, Schema
from mcap.stream_reader import breakup_chunk

from rlinf_core.core.errors import EpisodeError, escape_ascii
from rlinf_core.data.episodes import check_values
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.checksums import SUMS, seal, verify
from rlinf_core.episodes.messages import offered_qos, store_for
from rlinf_core.episodes.raw_messages import MAX_CHUNK_BYTES, RECORD, read_messages
from rlinf_core.episodes.storage import CheckedWriter, kind_of
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.topics import EPISODE

MAGIC_BYTES = 8
OPCODES = {Chunk: Opcode.CHUNK, Attachment: Opcode.ATTACHMENT}
RecordedMessage: TypeAlias = tuple[Schema, Channel, Message]
T = TypeVar("T", Chunk, Attachment)


def find_fault(folder: Path, spec: StationSpec | None = None) -> str:
    """Return the fault of a recording (seal, messages, steps, values); empty if it is intact.

    Args:
        folder: the recording.
        spec: specs of the station that it must fit; without, the specs in the recording.
    """
    try:
        if not (folder / "metadata.yaml").exists():
            return "no metadata.yaml: the recording is in progress or was interrupted"
        sealed = (folder / SUMS).exists()
        if kind_of(folder) != EPISODE:
            return _find_fault_of_other(folder, sealed)
        episode = read_episode(folder, sealed=sealed)
        check_values(episode, spec)
    except (EpisodeError, OSError) as error:
        return escape_ascii(error).removeprefix(f"episode {escape_ascii(folder)}: ")
    if not sealed:
        return f"no {SUMS}: an intact episode that was never closed"
    return (
        ""
        if episode.id == folder.name
        else f"expected the folder name {escape_ascii(episode.id)}, that of its episode"
    )


def _find_fault_of_other(folder: Path, sealed: bool) -> str:
    """Return the fault of a session or an incident recording, which have no steps."""
    if sealed:
        verify(folder)
    count = sum(1 for _ in read_messages(folder))
    return "" if sealed else f"no {SUMS}: {count} intact messages; the recording was never closed"


@dataclass(frozen=True)
class RepairResult:
    """The result of one repair.

    Attributes:
        kind: the kind of recording.
        messages: number of intact messages.
        lost: descriptions of the lost parts.
        fault: the fault that remains, or an empty string.
    """

    kind: str
    messages: int
    lost: tuple[str, ...]
    fault: str

    @property
    def intact(self) -> bool:
        """Whether the recording is complete again.

        Without steps to count, nothing may be lost.
        """
        return not self.fault and (self.kind == EPISODE or not self.lost)


def repair(folder: Path, out: Path) -> RepairResult:
    """Write the intact part of a recording to ``out``, and seal the result.

    An episode that remains incomplete gets no seal.

    Raises:
        EpisodeError: the folder does not have one MCAP file, or nothing in it is intact.
    """
    files = sorted(folder.glob("*.mcap"))
    if len(files) != 1:
        raise EpisodeError(
            f"{folder}: expected one MCAP file, got {len(files)}. It cannot be repaired"
        )
    lost: list[str] = []
    kind = kind_of(folder)
    count = _write(
        out, kind, _read_messages(files[0], lost), _read_records(files[0], Attachment, lost)
    )
    lost = list(dict.fromkeys(lost))  # both readers have reported the cut
    if not count:
        shutil.rmtree(out)
        raise EpisodeError(
            f"{folder}: expected readable messages, got none: {'; '.join(lost) or 'no data'}. "
            "Nothing can be repaired"
        )
    try:
        if kind == EPISODE:
            check_values(read_episode(out))
    except EpisodeError as error:
        return RepairResult(
            kind,
            count,
            tuple(lost),
            escape_ascii(error).removeprefix(f"episode {escape_ascii(out)}: "),
        )
    seal(out)
    return RepairResult(kind, count, tuple(lost), find_fault(out))


def _write(
    out: Path, kind: str, messages: Iterator[RecordedMessage], attached: Iterable[Attachment]
) -> int:
    count, connections = 0, dict[str, Any]()
    with CheckedWriter(out, kind) as bag:
        storage: Any = bag.storage
        for attachment in attached:
            storage.attach(attachment.name, attachment.data, attachment.create_time)
        for schema, channel, message in messages:
            if channel.topic not in connections:
                store = store_for(((schema.name, schema.data.decode()),))
                connections[channel.topic] = bag.add_topic(
                    channel.topic, schema.name, store, offered_qos(channel.topic)
                )
            bag.write(connections[channel.topic], message.log_time, message.data)
            count += 1
    return count


def _read_messages(file: Path, lost: list[str]) -> Iterator[RecordedMessage]:
    schemas, channels = _read_summary(file)
    unknown = 0
    for chunk in _read_records(file, Chunk, lost):
        try:
            records = breakup_chunk(_decompress(chunk), validate_crc=True)
        except Exception as error:  # the reader raises many kinds for damaged chunks
            lost.append(f"a chunk of {len(chunk.data)} bytes: {escape_ascii(error)}")
            continue
        for record in records:
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel):
                channels[record.id] = record
            elif isinstance(record, Message):
                channel = channels.get(record.channel_id)
                schema = schemas.get(channel.schema_id) if channel else None
                if channel and schema:
                    yield schema, channel, record
                else:
                    unknown += 1
    if unknown:
        lost.append(f"{unknown} messages of topics without a description")


def _decompress(chunk: Chunk) -> Chunk:
    """Return a chunk without compression; a recorder's largest chunk bounds the unpacked size.

    Raises:
        ValueError: unknown compression, a wrong size, or a chunk that is too large.
    """
    size = chunk.uncompressed_size
    if not chunk.compression:
        return chunk
    if size > MAX_CHUNK_BYTES:
        raise ValueError(
            f"expected at most {MAX_CHUNK_BYTES >> 20} MiB when unpacked, got {size >> 20}"
        )
    if chunk.compression == "lz4":
        data = lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=size + 1)
    elif chunk.compression == "zstd":
        data = zstandard.ZstdDecompressor().stream_reader(chunk.data).read(size + 1)
    else:
        raise ValueError(
            f"expected a compression of lz4 or zstd, got {escape_ascii(chunk.compression)}"
        )
    if len(data) != size:
        raise ValueError(
            f"expected {size} bytes when unpacked, got {'more' if len(data) > size else len(data)}"
        )
    return replace(chunk, compression="", data=data)


def _read_records(file: Path, kind: type[T], lost: list[str]) -> Iterator[T]:
    """Yield all records of a kind, by their lengths, until one goes beyond the file's end."""
    with file.open("rb") as stream:
        stream.seek(MAGIC_BYTES)
        while len(head := stream.read(RECORD.size)) == RECORD.size:
            opcode, length = RECORD.unpack(head)
            data = stream.read(min(length, MAX_CHUNK_BYTES))
            if len(data) < length:
                lost.append(
                    f"the rest from byte {stream.tell() - len(data)}: truncated, or its length is "
                    "damaged"
                )
                return
            if opcode == OPCODES[kind]:
                try:
                    if kind is Attachment and zlib.crc32(data[:-4]) != int.from_bytes(
                        data[-4:], "little"
                    ):
                        raise ValueError("its checksum does not match")  # the reader ignores it
                    yield kind.read(ReadDataStream(io.BytesIO(data)))
                except Exception as error:  # the reader raises many kinds for damaged records
                    noun = "an attachment" if kind is Attachment else "a chunk"
                    lost.append(
                        f"{noun} of {length} bytes: {type(error).__name__}: {escape_ascii(error)}"
                    )
            elif opcode == Opcode.FOOTER:
                return
        if head:
            lost.append(f"the rest from byte {stream.tell() - len(head)}: truncated")


def _read_summary(file: Path) -> tuple[dict[int, Schema], dict[int, Channel]]:
    """Return schemas and channels from the file's end, or nothing if it is cut off.

    A lost first chunk may have held them.
    """
    try:
        with file.open("rb") as stream:
            summary = make_reader(stream, validate_crcs=True).get_summary()
    except Exception:  # a damaged file, or one without an end
        summary = None
    return (dict(summary.schemas), dict(summary.channels)) if summary else ({}, {})
