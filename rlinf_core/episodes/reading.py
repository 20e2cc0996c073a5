"""From a recorded rosbag2 folder to an Episode. What a trainer asks of one besides is in ``validation``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.episodes.messages import PACKAGE, store_for
from rlinf_core.episodes.sums import SUMS, verify
from rlinf_core.episodes.types import Episode
from rlinf_core.errors import EpisodeError

NS = 1_000_000_000
LAST = 2
ENDED = 1
TYPES = {"timestep": f"{PACKAGE}/msg/TimeStep", "applied": f"{PACKAGE}/msg/Applied",
         "episode": f"{PACKAGE}/msg/EpisodeEvent"}
MOST_MESSAGES = 200_000
MOST_DEFINITIONS = 1 << 16  # characters
MOST_CHUNK_BYTES = 128 << 20

Messages = dict[str, list[Any]]


def read_episode(folder: str | Path, sealed: bool = False) -> Episode:
    """Read one closed episode; EpisodeError names the folder, what is wrong with it and what to do.

    Args:
        folder: the recording. If it has a seal (``sums``), it is compared with it.
        sealed: it comes from a spool or an inbox: refuse one without a seal, and read nothing but what a recorder writes.
    """
    folder = Path(folder)
    try:
        if sealed or (folder / SUMS).exists():
            verify(folder)
        return _episode(folder, _read(_recorded(folder) if sealed else folder))
    except EpisodeError:
        raise
    except Exception as error:  # the readers raise many kinds for damaged files; the user needs one
        raise EpisodeError(f"episode {folder}: expected a whole rosbag2 recording, got: {type(error).__name__}: {error}. "
                           "Leave it out of training, or repair it with `mcap recover`") from error


def _episode(folder: Path, messages: Messages) -> Episode:
    ended = [event for event in messages["episode"] if event.kind == ENDED]
    steps = sorted((step for step in messages["timestep"] if ended and step.episode_id == ended[-1].episode_id),
                   key=lambda step: step.step_index)
    if not steps or steps[-1].step_type != LAST or not ended:
        raise EpisodeError(f"episode {folder}: expected time steps up to a LAST one and an ENDED event, got "
                           f"{len(steps)} steps and {len(ended)} ENDED events. It was not finished; it is not trained on")
    numbers = [step.step_index for step in steps]
    if numbers != list(range(len(steps))) or len(steps) != ended[-1].steps + 1 or len(steps) < 2:
        raise EpisodeError(f"episode {folder}: expected steps 0..{ended[-1].steps} without gaps, got "
                           f"{_short(numbers)}. Messages were lost while recording")
    sizes = {len(values) for record in messages["applied"] for values in (record.requested, record.executed)}
    if len(sizes) > 1:
        raise EpisodeError(f"episode {folder}: expected actions of one size, got {sorted(sizes)}. It is not trained on")
    return _assemble(steps, messages["applied"], ended[-1])


def _recorded(folder: Path) -> Path:
    """The one MCAP file of an episode as a recorder writes it: no compression, which could hide any amount of data."""
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader

    files = list(folder.glob("*.mcap"))
    if len(files) != 1:
        raise EpisodeError(f"episode {folder}: expected one MCAP file, got {len(files)}. It is not trained on")
    with open(files[0], "rb") as stream:
        for record in StreamReader(stream, emit_chunks=True).records:
            if isinstance(record, Chunk) and (record.compression or len(record.data) > MOST_CHUNK_BYTES):
                raise EpisodeError(f"episode {folder}: expected chunks without compression of at most "
                                   f"{MOST_CHUNK_BYTES >> 20} MiB, got {record.compression or 'none'} and "
                                   f"{len(record.data) >> 20} MiB. It is not trained on")
    return files[0]


def _read(path: Path) -> Messages:
    """What is on the three topics that make an episode, once each."""
    from rosbags.rosbag2 import Reader

    messages: dict[str, dict[bytes, Any]] = {topic: {} for topic in TYPES}
    with Reader(path) as reader:
        wanted = [connection for connection in reader.connections if _topic(connection) in TYPES]
        _check_connections(wanted)
        if not wanted:
            return {topic: [] for topic in TYPES}
        store = store_for(tuple(sorted({(c.msgtype, c.msgdef.data) for c in wanted})))
        for number, (connection, _, raw) in enumerate(reader.messages(wanted)):
            if number >= MOST_MESSAGES:
                raise ValueError(f"more than {MOST_MESSAGES} messages")
            messages[_topic(connection)].setdefault(bytes(raw), store.deserialize_cdr(raw, connection.msgtype))
    return {topic: list(found.values()) for topic, found in messages.items()}


def _topic(connection: Any) -> str:
    return connection.topic.rsplit("/", 1)[-1]


def _check_connections(connections: list[Any]) -> None:
    for connection in connections:
        if connection.msgtype != TYPES[_topic(connection)] or len(connection.msgdef.data) > MOST_DEFINITIONS:
            raise ValueError(f"'{connection.topic}' is of type {connection.msgtype}, not {TYPES[_topic(connection)]}")
    if len({_topic(connection) for connection in connections}) < len(connections):
        raise ValueError(f"messages of several stations: {sorted(connection.topic for connection in connections)}")


def _assemble(steps: list[Any], applied: list[Any], ended: Any) -> Episode:
    stamps = np.array([_ns(step.header.stamp) for step in steps])
    dim = len(applied[0].requested) if applied else 0
    count = len(steps) - 1
    requested, executed = np.zeros((count, dim)), np.zeros((count, dim))
    sources, limits = [""] * count, [()] * count
    for record in sorted(applied, key=lambda r: (_ns(r.header.stamp), r.seq, r.index)):
        k = int(np.searchsorted(stamps, _ns(record.header.stamp), side="right")) - 1
        if not 0 <= k < count:
            continue
        requested[k] = record.requested
        executed[k] += record.executed
        sources[k] = "operator" if "operator" in (sources[k], record.source) else record.source
        limits[k] = tuple(sorted({*limits[k], *record.limits}))
    return Episode(
        id=ended.episode_id, station=ended.station, mode=ended.mode, seed=ended.seed, success=bool(ended.success),
        policy_version=ended.policy_version, spec_hash=ended.spec_hash,
        limits_hash=applied[0].limits_hash if applied else "", instruction=steps[0].instruction,
        observations=_observations(steps), requested=requested, executed=executed, sources=tuple(sources),
        limits=tuple(limits), rewards=np.array([s.reward for s in steps[1:]], np.float32),
        discounts=np.array([s.discount for s in steps[1:]], np.float32), stamps_ns=stamps)


def _observations(steps: list[Any]) -> dict[str, np.ndarray]:
    every = [{vector.name: vector.data for vector in step.vectors}
             | {image.header.frame_id: _pixels(image) for image in step.images} for step in steps]
    if any(one.keys() != every[0].keys() for one in every) or len(every[0]) < len(steps[0].vectors) + len(steps[0].images):
        raise ValueError("the time steps do not all have the same observations")
    return {name: np.stack([one[name] for one in every]) for name in every[0]}


def _pixels(image: Any) -> np.ndarray:
    if image.encoding != "rgb8":
        raise ValueError(f"image '{image.header.frame_id}' is {image.encoding}, not rgb8")
    return np.asarray(image.data, np.uint8).reshape(image.height, image.width, 3)


def _ns(stamp: Any) -> int:
    return stamp.sec * NS + stamp.nanosec


def _short(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 20 else f"{len(numbers)} of them, {numbers[0]} to {numbers[-1]}"
