"""Read a recorded rosbag2 folder as an Episode, with the policy's played chunks.

``validate`` has a trainer's further checks of an episode.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from rlinf_core.core.errors import EpisodeError, escape_ascii, is_transient
from rlinf_core.episodes.checksums import SUMS, verify
from rlinf_core.episodes.messages import LIBRARY, PACKAGE, store_for, to_ns
from rlinf_core.episodes.types import Episode, PlayedChunks

if TYPE_CHECKING:
    from mcap.records import Chunk, McapRecord

MAX_DRAWN = 1 << 15  # numbers in one chunk; the interlock refuses a message of 128 KiB

Key = tuple[int, str]  # sequence number and session


def played_chunks(
    where: str, sent: list[Any], applied: list[Any], stamps: np.ndarray, sources: list[str]
) -> PlayedChunks | None:
    """Return the played chunks, or None if no chunk records its draw.

    Args:
        where: the episode, for errors.
        sent: ``ActionChunk`` messages of the policy, of other episodes too.
        applied: ``Applied`` messages, likewise.
        stamps: (T + 1,) of the time steps [ns].
        sources: the commander of each of the T transitions.

    Raises:
        EpisodeError: a chunk's draw does not fit its sizes, or the chunks differ in size.
    """
    steps = {int(stamp): step for step, stamp in enumerate(stamps[:-1])}
    chunks = {
        (chunk.seq, chunk.session): chunk
        for chunk in sent
        if to_ns(chunk.observation_stamp) in steps
    }
    if not any(len(getattr(chunk, "drawn", ())) for chunk in chunks.values()):
        return None
    size, log_prob_size, execute = _sizes(where, list(chunks.values()))
    owners = _owners(chunks, applied, stamps)
    records = []
    for key, chunk in chunks.items():
        start = end = steps[to_ns(chunk.observation_stamp)]
        while (
            end < min(start + execute, len(sources))
            and owners.get(end) == (*key, end - start)
            and sources[end] != "operator"
        ):
            end += 1
        if end > start:
            records.append((start, end - start, chunk))
    records.sort(key=lambda record: record[0])
    starts, played, recorded = zip(*records, strict=True) if records else ((), (), ())
    return PlayedChunks(
        starts=np.array(starts, int),
        played=np.array(played, int),
        execute=execute,
        drawn=np.array([chunk.drawn for chunk in recorded], np.float32).reshape(-1, size),
        log_probs=np.array([chunk.log_probs[:execute] for chunk in recorded], np.float32).reshape(
            len(recorded), min(log_prob_size, execute)
        )
        if log_prob_size
        else None,
        versions=np.array([chunk.policy_version for chunk in recorded], np.int64),
    )


def steps_of(stamps: np.ndarray, records: list[Any]) -> list[int]:
    """Return the time step of each applied action; -1 before the first one.

    In real time the two clocks drift apart by some milliseconds. An action that begins in the last
    quarter of a time step therefore belongs to the next one.
    """
    begins = np.array([to_ns(record.header.stamp) for record in records], np.int64)
    from_then_on = np.append(stamps[:1], stamps[1:] - np.diff(stamps) // 4)
    return (np.searchsorted(from_then_on, begins, side="right") - 1).tolist()


def _owners(
    chunks: dict[Key, Any], applied: list[Any], stamps: np.ndarray
) -> dict[int, tuple[int, str, int]]:
    """Return the policy's last action in each time step: its chunk and its index in the chunk.

    Until a new chunk arrives, the last one goes on within the same time step; the new one counts.
    If there are several arms, all must have played it.
    """
    owners: dict[str, dict[int, tuple[int, str, int]]] = {arm_of(record): {} for record in applied}
    records = [
        record
        for record in applied
        if record.source == "policy" and (record.seq, record.session) in chunks
    ]
    for step, record in zip(steps_of(stamps, records), records, strict=True):
        arm_owners = owners[arm_of(record)]
        arm_owners[step] = max(
            arm_owners.get(step, (-1, "", 0)), (record.seq, record.session, record.index)
        )
    first, *others = owners.values() or [{}]
    return {
        step: owner
        for step, owner in first.items()
        if all(other.get(step) == owner for other in others)
    }


def arm_of(record: Any) -> str:
    """Return the topic prefix of an ``Applied``; "" for all if the reader recorded none."""
    return getattr(record, "arm", "")


def _sizes(where: str, chunks: list[Any]) -> tuple[int, int, int]:
    """Return a chunk's numbers drawn, its log-probabilities, and its actions to be played."""
    for chunk in chunks:
        drawn = len(chunk.drawn)
        log_prob_size = len(chunk.log_probs)
        horizon = chunk.horizon
        wrong = ""
        if drawn not in (chunk.drawn_dim, horizon * chunk.drawn_dim) or not 0 < drawn <= MAX_DRAWN:
            wrong = (
                f"drawn: expected 1 or {horizon} rows of {chunk.drawn_dim}, at most "
                f"{MAX_DRAWN} numbers, got {drawn}"
            )
        elif log_prob_size not in (0, 1, horizon):
            wrong = f"log_probs: expected none, 1 or {horizon} (its horizon), got {log_prob_size}"
        elif not 1 <= chunk.execute <= horizon:
            wrong = f"execute: expected 1 to {horizon} (its horizon), got {chunk.execute}"
        if wrong:
            raise EpisodeError(
                f"{where}: chunk {chunk.seq} of the policy: {wrong}. It is not used for training"
            )
    sizes = {(len(chunk.drawn), len(chunk.log_probs), chunk.execute) for chunk in chunks}
    if len(sizes) > 1:
        raise EpisodeError(
            f"{where}: expected chunks of one size, got (drawn, log_probs, execute) "
            f"{sorted(sizes)}. It is not used for training"
        )
    return sizes.pop()


LAST = 2
ENDED = 1
TYPES = {
    "timestep": f"{PACKAGE}/msg/TimeStep",
    "applied": f"{PACKAGE}/msg/Applied",
    "episode": f"{PACKAGE}/msg/EpisodeEvent",
    "policy/action": f"{PACKAGE}/msg/ActionChunk",
}
MAX_MESSAGES = 200_000
# first bytes of a message, distinct by stamps and numbers, and the most messages that may share
# them
BEGINNING, MAX_ALIKE = 512, 4
MAX_DEFINITIONS = 1 << 16  # characters
# MCAP: a record's kind and length, and the start of a message
RECORD, MESSAGE = Struct("<BQ"), Struct("<HIQQ")
HEADER_BYTES = 256  # start of an MCAP file, which names its writer
MAX_CHUNK_BYTES = 72 << 20  # a chunk ends once it is over 1 MiB, and a message has at most 64 MiB

# name between the station's and the topic's, if there are several arms
ARM = re.compile("[A-Za-z][A-Za-z0-9_]*")


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


Messages = dict[str, list[Any]]


def read_episode(folder: str | Path, sealed: bool = False) -> Episode:
    """Read one closed episode.

    Args:
        folder: the recording. A seal (``checksums``), if present, is compared with it.
        sealed: True for an episode from a spool or an inbox. A recording without a seal is then
            refused, and only a recorder's own format is read.

    Raises:
        EpisodeError: the recording is damaged or invalid. The message names the folder, the fault
            and the remedy.
        OSError, MemoryError: the machine lacks something now.

    Example:
        >>> episode = read_episode("tests/previous_version/station_a-1")
        >>> len(episode), episode.success
        (5, True)
    """
    folder = Path(folder)
    try:
        if sealed or (folder / SUMS).exists():
            verify(folder)
        return _episode(
            folder,
            _read(_read_raw(folder) if sealed or _is_sealed(folder) else _rosbag_messages(folder)),
        )
    except EpisodeError as error:
        if str(folder) in str(error):
            raise
        raise EpisodeError(f"episode {folder}: {error}") from error
    except Exception as error:  # the readers raise many kinds for damaged files; the user needs one
        if is_transient(error):
            raise
        raise EpisodeError(
            f"episode {folder}: expected an intact rosbag2 recording, got: {type(error).__name__}: "
            f"{error}. Leave it out of training, or keep its intact part with `rlinf data repair`"
        ) from error


def recorded(folder: Path) -> Iterator[RawMessage]:
    """Yield each message of a recording of our own recorders, in their order.

    Raises:
        EpisodeError: the recording is damaged.
    """
    try:
        yield from _read_raw(folder)
    except Exception as error:  # see read_episode
        raise EpisodeError(
            f"episode {folder}: expected an intact recording, got: {type(error).__name__}: "
            f"{error}. `rlinf data repair` keeps its intact part"
        ) from error


def message(raw: RawMessage) -> Any:
    """Decode a recorded message by the definition in its file."""
    return _store(raw.kind, raw.definition).deserialize_cdr(raw.data, raw.kind)


def _episode(folder: Path, messages: Messages) -> Episode:
    ended = [event for event in messages["episode"] if event.kind == ENDED]
    steps = sorted(
        (
            step
            for step in messages["timestep"]
            if ended and step.episode_id == ended[-1].episode_id
        ),
        key=lambda step: step.step_index,
    )
    if not steps or steps[-1].step_type != LAST or not ended:
        raise EpisodeError(
            f"episode {folder}: expected time steps up to a LAST one and an ENDED event, got "
            f"{len(steps)} steps and {len(ended)} ENDED events. It is unfinished and is not used "
            "for training"
        )
    numbers = [step.step_index for step in steps]
    if numbers != list(range(len(steps))) or len(steps) != ended[-1].steps + 1 or len(steps) < 2:
        raise EpisodeError(
            f"episode {folder}: expected steps 0..{ended[-1].steps} without gaps, got "
            f"{_short(numbers)}. Messages were lost while recording"
        )
    sizes = {
        len(values)
        for record in messages["applied"]
        for values in (record.requested, record.executed)
    }
    if len(sizes) > 1:
        raise EpisodeError(
            f"episode {folder}: expected actions of one size, got {sorted(sizes)}. It is not used "
            "for training"
        )
    return _assemble(steps, messages, ended[-1], f"episode {folder}")


def _read_raw(folder: Path) -> Iterator[RawMessage]:
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


def _read(raws: Iterator[RawMessage]) -> Messages:
    """Read the topics of an episode, each message once."""
    messages: Messages = {topic: [] for topic in TYPES}
    # by topic and beginning, because hashing a whole image takes long
    raw_by_beginning: dict[tuple[str, bytes], list[bytes]] = {}
    stations: set[str] = set()
    appliers: set[str] = set()  # the station, or its arms
    for name, kind, definition, raw, _ in raws:
        topic = next((topic for topic in TYPES if name.endswith(f"/{topic}")), "")
        if not topic:
            continue
        arm_name = name.removesuffix(f"/{topic}")
        (appliers if topic == "applied" else stations).add(arm_name)
        if kind != TYPES[topic] or len(definition) > MAX_DEFINITIONS or len(stations) > 1:
            raise ValueError(
                f"'{name}' of type {kind}, not '{min(stations or appliers)}/{topic}' of "
                f"{TYPES[topic]}"
            )
        # costs no memory: a message's arrays are views of it
        equal_messages = raw_by_beginning.setdefault((name, bytes(raw[:BEGINNING])), [])
        if raw not in equal_messages:
            equal_messages.append(raw)
            messages[topic].append(_store(kind, definition).deserialize_cdr(raw, kind))
            messages[topic][-1].arm = arm_name
        if len(messages[topic]) > MAX_MESSAGES or len(equal_messages) > MAX_ALIKE:
            raise ValueError(
                f"more than {MAX_MESSAGES} messages on '{name}', or {MAX_ALIKE} that begin alike"
            )
    _check_arms(stations, appliers)
    return messages


def _check_arms(stations: set[str], appliers: set[str]) -> None:
    """Check that the station's one interlock, or those of its arms, applied the actions."""
    station = min(stations, default=None)
    strange = [
        name
        for name in appliers - stations
        if station is not None
        and not (name.startswith(f"{station}/") and ARM.fullmatch(name[len(station) + 1 :]))
    ]
    if strange or (appliers & stations and len(appliers) > 1):
        raise ValueError(
            f"'{max(appliers)}/applied' and '{station}/timestep': expected topics of one station "
            "and its arms"
        )


def _assemble(steps: list[Any], messages: Messages, ended: Any, where: str) -> Episode:
    applied = messages["applied"]
    stamps = np.array([to_ns(step.header.stamp) for step in steps])
    dim = len(applied[0].requested) if applied else 0
    firsts = {arm_of(record): record for record in reversed(applied)}
    count = len(steps) - 1
    requested, executed = np.zeros((count, dim)), np.zeros((count, dim))
    sources, limits = [""] * count, [()] * count
    ordered = sorted(
        applied, key=lambda record: (record.source == "operator", record.seq, record.index)
    )
    for k, record in zip(steps_of(stamps, ordered), ordered, strict=True):
        if not 0 <= k < count:
            continue
        requested[k] = record.requested
        executed[k] += record.executed
        sources[k] = "operator" if "operator" in (sources[k], record.source) else record.source
        limits[k] = tuple(sorted({*limits[k], *record.limits}))
    return Episode(
        id=ended.episode_id,
        station=ended.station,
        mode=ended.mode,
        seed=ended.seed,
        success=bool(ended.success),
        # older recordings only had success and time limits
        failure=bool(getattr(ended, "failure", False)),
        truncated=bool(getattr(ended, "truncated", not ended.success)),
        policy_version=ended.policy_version,
        spec_hash=ended.spec_hash,
        limits_hash="+".join(first.limits_hash for _, first in sorted(firsts.items())),
        instructions=tuple([step.instruction for step in steps]),
        observations=_observations(steps),
        requested=requested,
        executed=executed,
        sources=tuple(sources),
        limits=tuple(limits),
        rewards=np.array([s.reward for s in steps[1:]], np.float32),
        discounts=np.array([s.discount for s in steps[1:]], np.float32),
        stamps_ns=stamps,
        chunks=played_chunks(where, messages["policy/action"], applied, stamps, sources),
        arms=tuple(name.rpartition("/")[2] for name in sorted(firsts)) if len(firsts) > 1 else (),
    )


def _observations(steps: list[Any]) -> dict[str, np.ndarray]:
    every = [
        {vector.name: vector.data for vector in step.vectors}
        | {image.header.frame_id: _pixels(image) for image in step.images}
        for step in steps
    ]
    if any(one.keys() != every[0].keys() for one in every) or len(every[0]) < len(
        steps[0].vectors
    ) + len(steps[0].images):
        raise ValueError("the time steps do not all have the same observations")
    return {name: np.stack([one[name] for one in every]) for name in every[0]}


def _pixels(image: Any) -> np.ndarray:
    if image.encoding != "rgb8":
        raise ValueError(f"image '{image.header.frame_id}' is {image.encoding}, not rgb8")
    return np.asarray(image.data, np.uint8).reshape(image.height, image.width, 3)


def _short(numbers: list[int]) -> str:
    return (
        str(numbers)
        if len(numbers) <= 20
        else f"{len(numbers)} of them, {numbers[0]} to {numbers[-1]}"
    )
