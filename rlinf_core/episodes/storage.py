"""Write rosbag2 folders with checksums in the MCAP file, and sealed Episodes.

``rosbags`` leaves the checksums out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from mcap.records import Metadata
from mcap.stream_reader import StreamReader
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.rosbag2.metadata import dump_qos_v8

from rlinf_core.episodes.checksums import seal
from rlinf_core.episodes.messages import (
    ENDED,
    FIRST,
    LAST,
    LIBRARY,
    MID,
    NS,
    PACKAGE,
    STARTED,
    offered_qos,
    typestore,
)
from rlinf_core.episodes.types import Episode
from rlinf_core.specs.topics import EPISODE, SESSION

if TYPE_CHECKING:
    from rosbags.interfaces import Connection, Qos

CHUNK_BYTES = 1 << 20  # size at which a chunk is written
KIND_BYTES = 1 << 16  # largest record that may hold a recording's kind
MEDIA_TYPES = {".json": "application/json", ".yaml": "application/yaml"}


class CheckedMcap:
    """A storage of ``rosbags``'s writer, on the ``mcap`` package.

    It has a CRC for every chunk, the data and the summary. A recording of another kind than an
    episode names its kind at the beginning. Each message of a session is a chunk, written at once.
    """

    def __init__(self, path: Path, compression: Any, kind: str = EPISODE) -> None:
        self.path = path / f"{path.name}.mcap"
        self._file = self.path.open("xb")
        self._at_once = kind == SESSION
        self._mcap = McapWriter(
            self._file,
            0 if self._at_once else CHUNK_BYTES,
            compression=CompressionType.NONE,
            enable_data_crcs=True,
        )
        self._mcap.start(profile="ros2", library=LIBRARY)
        if kind != EPISODE:
            self._mcap.add_metadata(LIBRARY, {"kind": kind})
        self._schemas: dict[str, int] = {}
        self._channels: dict[int, int] = {}

    def add_msgtype(self, connection: Any) -> None:
        """Register a message type, with its definition."""
        self._schemas[connection.msgtype] = self._mcap.register_schema(
            connection.msgtype, "ros2msg", connection.msgdef.data.encode()
        )

    def add_connection(self, connection: Any, offered_qos_profiles: str) -> None:
        """Register a topic with the QoS text from ``CheckedWriter``."""
        self._channels[connection.id] = self._mcap.register_channel(
            connection.topic,
            "cdr",
            self._schemas[connection.msgtype],
            {"offered_qos_profiles": connection.owner.qos[connection.topic]},
        )

    def attach(self, name: str, data: bytes, at_ns: int) -> None:
        """Attach a file; ``mcap get attachment`` returns it."""
        kind = MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream")
        self._mcap.add_attachment(
            create_time=at_ns, log_time=at_ns, name=name, media_type=kind, data=data
        )

    def write(self, connection: Any, timestamp: int, data: bytes | memoryview) -> None:
        """Append a message."""
        self._mcap.add_message(self._channels[connection.id], timestamp, bytes(data), timestamp)
        if self._at_once:
            self._file.flush()

    def close(self, version: int, metadata: str) -> None:
        """Write the summary that a reader begins with."""
        self._mcap.add_metadata("rosbag2", {"serialized_metadata": metadata})
        self._mcap.finish()
        self._file.close()

    def abort(self) -> None:
        """Close the file unfinished."""
        self._file.close()


class CheckedWriter(Writer):
    """``rosbags``'s writer of rosbag2 folders, on ``CheckedMcap``.

    Writing YAML in Python is most of the cost of a short episode. Here libyaml writes
    metadata.yaml. A topic's QoS text and definition are made once per process.
    """

    def __init__(self, path: Path, kind: str = EPISODE) -> None:
        super().__init__(path, version=8, storage_plugin=StoragePlugin.MCAP)
        self.STORAGE_PLUGINS: Mapping[StoragePlugin, Any] = {
            StoragePlugin.MCAP: partial(CheckedMcap, kind=kind)
        }
        self.qos: dict[str, str] = {}

    def add_topic(self, topic: str, msgtype: str, typestore: Any, qos: Qos) -> Connection:
        """Add a topic with its offered QoS."""
        self.qos[topic] = _qos_text(qos)
        definition, digest = _definition(typestore, msgtype)
        return self.add_connection(topic, msgtype, msgdef=definition, rihs01=digest)

    def close(self) -> None:
        """Finish the MCAP file, then write metadata.yaml."""
        assert self.storage
        metadata = self._metadata()
        self.storage.close(self.version, _text(metadata))
        self.storage = None
        temporary = self.metapath.with_suffix(".yaml.tmp")
        temporary.write_text(f"{_text({'rosbag2_bagfile_information': metadata})}\n", "utf-8")
        temporary.replace(self.metapath)

    def _metadata(self) -> dict[str, Any]:
        """Return the metadata of ``rosbag2``, version 8."""
        assert self.storage
        topics = [
            {
                "topic_metadata": {
                    "name": connection.topic,
                    "type": connection.msgtype,
                    "serialization_format": "cdr",
                    "offered_qos_profiles": self.qos[connection.topic],
                    "type_description_hash": connection.digest,
                },
                "message_count": self.counts[connection.id],
            }
            for connection in self.connections
        ]
        name = self.storage.path.name
        return {
            "version": self.version,
            "storage_identifier": "mcap",
            "relative_file_paths": [name],
            **self._span(),
            "topics_with_message_count": topics,
            "compression_format": "",
            "compression_mode": "",
            "files": [{"path": name, **self._span()}],
            "custom_data": self.custom_data or None,
            "ros_distro": "rosbags",
        }

    def _span(self) -> dict[str, Any]:
        return {
            "starting_time": {"nanoseconds_since_epoch": self.min_timestamp},
            "duration": {"nanoseconds": max(0, self.max_timestamp - self.min_timestamp)},
            "message_count": sum(self.counts.values()),
        }


def kind_of(folder: Path) -> str:
    """Return a recording's kind from the beginning of its file; EPISODE if there is none.

    An unreadable file also counts as EPISODE.
    """
    with suppress(Exception), next(folder.glob("*.mcap")).open("rb") as file:
        for record in islice(StreamReader(file, record_size_limit=KIND_BYTES).records, 2):
            if isinstance(record, Metadata) and record.name == LIBRARY:
                return record.metadata.get("kind", EPISODE)
    return EPISODE


@cache
def _definition(store: Any, kind: str) -> tuple[str, str]:
    """Return a message type's definition and hash, which take a millisecond."""
    return store.generate_msgdef(kind, ros_version=2)[0], store.hash_rihs01(kind)


@cache
def _qos_text(qos: Qos) -> str:
    return dump_qos_v8([qos])


def _text(metadata: dict[str, Any]) -> str:
    # PyYAML may have been built without libyaml
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(metadata, Dumper=dumper, sort_keys=False, allow_unicode=True).strip()


StampedMessage = tuple[str, int, Any]  # topic, time [ns], message


def write_episode(folder: Path, episode: Episode) -> Path:
    """Write an episode to a new folder.

    ``read_episode`` returns the same again, apart from the policy's draws.
    """
    store, connections = typestore(), dict[str, Any]()
    with CheckedWriter(folder) as bag:
        for name, at_ns, message in _messages(episode):
            topic, kind = f"/{episode.station}/{name}", message.__msgtype__
            if topic not in connections:
                connections[topic] = bag.add_topic(topic, kind, store, offered_qos(topic))
            bag.write(connections[topic], at_ns, bytes(store.serialize_cdr(message, kind)))
    seal(folder)
    return folder


def _messages(episode: Episode) -> Iterator[StampedMessage]:
    count, stamps = len(episode), [int(stamp) for stamp in episode.stamps_ns]
    yield "episode", stamps[0], _event(episode, STARTED, stamps[0])
    for k, stamp in enumerate(stamps):
        yield "timestep", stamp, _step(episode, k)
        if k < count:
            yield (
                "applied",
                stamp,
                _message(
                    "Applied",
                    stamp,
                    source=episode.sources[k],
                    session="",
                    seq=k + 1,
                    index=0,
                    policy_version=episode.policy_version,
                    observation_stamp=_stamp(stamp),
                    requested=episode.requested[k],
                    executed=episode.executed[k],
                    limits=list(episode.limits[k]),
                    limits_hash=episode.limits_hash,
                ),
            )
    yield "episode", stamps[-1], _event(episode, ENDED, stamps[-1])


def _step(episode: Episode, k: int) -> Any:
    last = k == len(episode)
    stamp = int(episode.stamps_ns[k])
    types = typestore().types
    vectors, images = [], []
    for name, values in episode.observations.items():
        value = values[k]
        if value.ndim == 3:
            height, width, _ = value.shape
            images.append(
                types["sensor_msgs/msg/Image"](
                    _header(stamp, name), height, width, "rgb8", 0, 3 * width, value.ravel()
                )
            )
        else:
            vectors.append(types[f"{PACKAGE}/msg/NamedVector"](name, value.ravel()))
    return _message(
        "TimeStep",
        stamp,
        step_type=LAST if last else MID if k else FIRST,
        reward=float(episode.rewards[k - 1]) if k else 0.0,
        discount=float(episode.discounts[k - 1]) if k else 1.0,
        terminated=last and not episode.truncated,
        truncated=last and episode.truncated,
        success=last and episode.success,
        failure=last and episode.failure,
        episode_id=episode.id,
        step_index=k,
        mode=episode.mode,
        instruction=episode.instructions[k],
        vectors=vectors,
        images=images,
    )


def _event(episode: Episode, kind: int, stamp: int) -> Any:
    over = kind == ENDED
    return _message(
        "EpisodeEvent",
        stamp,
        kind=kind,
        episode_id=episode.id,
        station=episode.station,
        mode=episode.mode,
        seed=episode.seed,
        steps=len(episode) if over else 0,
        episode_return=float(episode.rewards.sum()) if over else 0.0,
        success=over and episode.success,
        failure=over and episode.failure,
        truncated=over and episode.truncated,
        policy_version=episode.policy_version,
        spec_hash=episode.spec_hash,
        detail="",
    )


def _message(name: str, stamp: int, **fields: Any) -> Any:
    return typestore().types[f"{PACKAGE}/msg/{name}"](header=_header(stamp), **fields)


def _header(stamp: int, frame: str = "") -> Any:
    return typestore().types["std_msgs/msg/Header"](_stamp(stamp), frame)


def _stamp(stamp: int) -> Any:
    return typestore().types["builtin_interfaces/msg/Time"](stamp // NS, stamp % NS)
