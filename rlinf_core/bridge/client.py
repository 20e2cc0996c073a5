"""A station's end of the bridge: episodes up, policies down, reports. Raises BridgeError; the caller retries."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import grpc

from rlinf_core.atomic_io import publish_file
from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.bridge import bridge_pb2_grpc
from rlinf_core.bridge.server import PART_BYTES
from rlinf_core.episodes.checksums import episode_files, verify
from rlinf_core.errors import BridgeError, RefusedError
from rlinf_core.policies.files import policy_name

SLOWEST_BYTES_PER_S = 1e6


class BridgeClient:
    """Connects lazily and reconnects by itself; every call has a deadline."""

    def __init__(self, address: str, station: str) -> None:
        self.address, self.station = address, station
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 2000)])
        self._stub = bridge_pb2_grpc.BridgeStub(self._channel)

    def upload(self, folder: Path, timeout_s: float = 60.0) -> bool:
        """Send a closed episode; returns whether the trainer already had it. Returns only once it is durable there.

        Raises:
            EpisodeError: it is not what was closed.
            RefusedError: the trainer will never take it.
            BridgeError: not now; try again.
        """
        verify(folder)
        files = episode_files(folder)
        timeout_s += sum(file.stat().st_size for file in files) / SLOWEST_BYTES_PER_S
        try:
            reply = self._stub.Upload(self._parts(folder.name, files), timeout=timeout_s)
        except grpc.RpcError as error:
            raise BridgeError(f"trainer at {self.address}: {error.code().name.lower()}: {error.details()}") from error
        if not reply.stored:
            kind = RefusedError if reply.refused else BridgeError
            raise kind(f"trainer at {self.address} refused episode {folder.name}: {reply.error}")
        return reply.duplicate

    def next_policy(self, have_version: int, folder: Path, wait_s: float = 10.0) -> tuple[int, Path, str] | None:
        """Wait for a newer policy and keep it in ``folder``: (version, path, sha256), or None if there is none yet."""
        folder.mkdir(parents=True, exist_ok=True)
        request = pb.PolicyRequest(station=self.station, have_version=have_version, wait_s=wait_s)
        aside, version, told = folder / f".policy.{os.getpid()}.part", -1, ""
        sha = hashlib.sha256()
        try:
            with open(aside, "wb") as out:
                for part in self._stub.NextPolicy(request, timeout=wait_s + 60.0):
                    out.write(part.data)
                    sha.update(part.data)
                    version, told = part.version, part.sha256
            if version < 0:
                return None
            if sha.hexdigest() != told:
                raise BridgeError(f"policy {version} from {self.address} was cut short on the way; it is fetched again")
            return version, publish_file(aside, folder / policy_name(version)), told
        except grpc.RpcError as error:
            raise BridgeError(f"trainer at {self.address}: {error.code().name.lower()}: {error.details()}") from error
        finally:
            aside.unlink(missing_ok=True)

    def report(self, backlog: int, policy_version: int, timeout_s: float = 2.0) -> pb.TrainerReport:
        """Tell how the station stands and hear how the trainer does."""
        request = pb.StationReport(station=self.station, backlog=backlog, policy_version=policy_version)
        try:
            return self._stub.Report(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise BridgeError(f"trainer at {self.address}: {error.code().name.lower()}: {error.details()}") from error

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _parts(self, episode_id: str, files: list[Path]) -> Iterator[pb.EpisodePart]:
        first = True
        for file in files:
            sha, size, sent = hashlib.sha256(), file.stat().st_size, 0
            with open(file, "rb") as source:
                while sent < size or sent == 0:
                    data = source.read(PART_BYTES)
                    sha.update(data)
                    yield pb.EpisodePart(
                        station=self.station if first else "", episode_id=episode_id if first else "",
                        file=file.name if sent == 0 else "", data=data,
                        sha256=sha.hexdigest() if sent + len(data) >= size else "")
                    first, sent = False, sent + max(len(data), 1)
