"""Rosbag2 folders whose MCAP file has checksums; the writer of ``rosbags`` leaves them out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.rosbag2 import StoragePlugin, Writer

from rlinf_core.episodes.messages import LIBRARY

if TYPE_CHECKING:
    from rosbags.rosbag2.writer import StorageWriter

MEDIA_TYPES = {".json": "application/json", ".yaml": "application/yaml"}


class CheckedMcap:
    """A storage of ``rosbags``'s writer, on the ``mcap`` package: a CRC for every chunk, the data and the summary."""

    def __init__(self, path: Path, compression: Any) -> None:
        self.path = path / f"{path.name}.mcap"
        self._file = self.path.open("xb")
        self._mcap = McapWriter(self._file, compression=CompressionType.NONE, enable_data_crcs=True)
        self._mcap.start(profile="ros2", library=LIBRARY)
        self._schemas: dict[str, int] = {}
        self._channels: dict[int, int] = {}

    def add_msgtype(self, connection: Any) -> None:
        """A message type, with its definition."""
        self._schemas[connection.msgtype] = self._mcap.register_schema(connection.msgtype, "ros2msg",
                                                                       connection.msgdef.data.encode())

    def add_connection(self, connection: Any, offered_qos_profiles: str) -> None:
        """A topic."""
        self._channels[connection.id] = self._mcap.register_channel(
            connection.topic, "cdr", self._schemas[connection.msgtype], {"offered_qos_profiles": offered_qos_profiles})

    def attach(self, name: str, data: bytes, at_ns: int) -> None:
        """A file that belongs to it, as ``mcap get attachment`` gives it back."""
        kind = MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream")
        self._mcap.add_attachment(create_time=at_ns, log_time=at_ns, name=name, media_type=kind, data=data)

    def write(self, connection: Any, timestamp: int, data: bytes | memoryview) -> None:
        """A message."""
        self._mcap.add_message(self._channels[connection.id], timestamp, bytes(data), timestamp)

    def close(self, version: int, metadata: str) -> None:
        """Write what a reader begins with."""
        self._mcap.add_metadata("rosbag2", {"serialized_metadata": metadata})
        self._mcap.finish()
        self._file.close()

    def abort(self) -> None:
        """Leave it as it is."""
        self._file.close()


class CheckedWriter(Writer):
    """``rosbags``'s writer of rosbag2 folders, on that storage."""

    STORAGE_PLUGINS: Mapping[StoragePlugin, type[StorageWriter]] = {StoragePlugin.MCAP: CheckedMcap}

    def __init__(self, path: Path) -> None:
        super().__init__(path, version=8, storage_plugin=StoragePlugin.MCAP)
