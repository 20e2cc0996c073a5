"""Write rosbag2 folders with checksums in the MCAP file, which ``rosbags`` leaves out."""

from __future__ import annotations

from collections.abc import Mapping
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

from rlinf_core.episodes.messages import LIBRARY
from rlinf_core.specs.topics import EPISODE, SESSION

if TYPE_CHECKING:
    from rosbags.interfaces import Connection, Qos

CHUNK_BYTES = 1 << 20  # size at which a chunk is written
KIND_BYTES = 1 << 16  # largest record that may hold a recording's kind
# PyYAML may have been built without libyaml
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
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
    return yaml.dump(metadata, Dumper=DUMPER, sort_keys=False, allow_unicode=True).strip()
