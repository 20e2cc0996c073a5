"""A station's end of the bridge: episodes up, policies down, reports. Raises BridgeError; the caller retries."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from rlinf_core import __version__
from rlinf_core.atomic_io import publish_file
from rlinf_core.bridge import INSTANCE, PART_BYTES, SERVED_AS, STATION, VERSION, bridge_pb2_grpc
from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.bridge.fleet import Credentials
from rlinf_core.episodes.checksums import SUMS, file_sha256, verify
from rlinf_core.errors import BridgeError, RefusedError
from rlinf_core.policies.files import POLICIES, policy_name, policy_version

SLOWEST_BYTES_PER_S = 1e6
OPTIONS = [
    ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", SERVED_AS)]
NO_TLS = ("andshake", "Socket closed")  # what gRPC says where TLS fails; neither side is told why
THIS_PROCESS = f"i{uuid.uuid4().hex}"


class Fetched(NamedTuple):
    """A policy file of this station."""

    version: int
    path: Path
    sha256: str


class BridgeClient:
    """Connects lazily and reconnects by itself; every call has a deadline.

    Args:
        address: of the trainer.
        station: the station's name.
        credentials: the folder that ``rlinf fleet enroll`` has made for it; None talks in the clear.
        instance: which process it is; all of one process are one station.
    """

    def __init__(self, address: str, station: str, credentials: Path | None = None, instance: str = THIS_PROCESS) -> None:
        self.address, self.station = address, station
        self.credentials = Credentials(credentials, station) if credentials else None
        self._channel = (grpc.secure_channel(address, self.credentials.channel_credentials(), options=OPTIONS)
                         if self.credentials else grpc.insecure_channel(address, options=OPTIONS))
        self._stub = bridge_pb2_grpc.BridgeStub(self._channel)
        self._who = ((STATION, station), (INSTANCE, instance))

    def upload(self, folder: Path, timeout_s: float = 60.0) -> bool:
        """Send a closed episode; returns whether the trainer already had it. Returns only once it is durable there.

        Raises:
            EpisodeError: it is not what was closed.
            RefusedError: the trainer will never take it.
            BridgeError: not now; try again, and what was sent need not be sent again.
        """
        episode = described(folder)
        reply = self._answer(self._call(self._stub.Offer, episode, timeout_s), episode)
        if not reply.stored:
            left = sum(file.size for file in episode.files) - sum(reply.have)
            missing = parts(folder, episode, list(reply.have))
            reply = self._answer(self._call(self._stub.Upload, missing, timeout_s + left / SLOWEST_BYTES_PER_S), episode)
        return reply.duplicate

    def next_policy(self, have_version: int, folder: Path, wait_s: float = 10.0, base: Fetched | None = None
                    ) -> Fetched | None:
        """Wait for another policy than ``have_version`` and keep it in ``folder``; None if there is none yet.

        Of what is in ``base``, nothing is sent again; where that comes to a wrong file, all of it is.
        """
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f".policy.{os.getpid()}.part"
        try:
            for source in [base, None] if base else [None]:
                version, told, got = self._fetch(have_version, wait_s, source, aside)
                if version < 0:
                    return None
                if got == told:
                    return Fetched(version, publish_file(aside, folder / policy_name(version)), told)
            raise BridgeError(f"policy {version} from {self.address} was cut short on the way; it is fetched again")
        except grpc.RpcError as error:
            raise self._error(error) from error
        finally:
            aside.unlink(missing_ok=True)

    def _fetch(self, have_version: int, wait_s: float, base: Fetched | None, aside: Path) -> tuple[int, str, str]:
        """Write what the trainer sends, and what it says to copy; returns the version, and the hash told and found."""
        request = pb.PolicyRequest(have_version=have_version, wait_s=wait_s)
        if base:
            request.have_sha256, request.have_file = base.sha256, base.version
        version, told, sha = -1, "", hashlib.sha256()
        with open(aside, "wb") as out:
            for part in self._call(self._stub.NextPolicy, request, wait_s + 60.0):
                copy = copied(base.path, part.copy_offset, part.copy_size) if base and part.copy_size else ()
                for data in (part.data, *copy):
                    out.write(data)
                    sha.update(data)
                version, told = part.version, part.sha256
        return version, told, sha.hexdigest()

    def report(self, backlog: int, policy_version: int, timeout_s: float = 2.0, **more: Any) -> pb.TrainerReport:
        """Tell how the station stands and hear how the trainer does; ``more`` are further fields of a StationReport."""
        request = pb.StationReport(backlog=backlog, policy_version=policy_version, software=__version__, **more)
        return self._call(self._stub.Report, request, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _call(self, method: Callable[..., Any], request: Any, timeout_s: float) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._who)
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _answer(self, reply: pb.EpisodeReply, episode: pb.Episode) -> pb.EpisodeReply:
        """A reply, unless it says no."""
        if not reply.error:
            return reply
        kind = RefusedError if reply.refused else BridgeError
        raise kind(f"trainer at {self.address} refused episode {episode.id}: {reply.error}")

    def _error(self, error: grpc.RpcError) -> BridgeError:
        """A call that did not come through, with what may help."""
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.UNIMPLEMENTED:
            details = (f"expected version {VERSION} of the bridge's protocol, which this station speaks, got a trainer "
                       f"that does not know it ({details}). Install the same version of rlinf at trainer and stations")
        if code == grpc.StatusCode.UNAVAILABLE and any(sign in details for sign in NO_TLS):
            details += "; " + (self.credentials.advice() if self.credentials else (
                "if it listens with bridge.fleet, this station needs bridge.credentials (docs/fleet.md)"))
        return BridgeError(f"trainer at {self.address}: {code.name.lower()}: {details}")


def described(folder: Path) -> pb.Episode:
    """A closed episode as it is offered; EpisodeError if it is not what was closed."""
    sums = verify(folder) | {SUMS: file_sha256(folder / SUMS)}
    return pb.Episode(id=folder.name, files=[
        pb.File(name=name, size=(folder / name).stat().st_size, sha256=sha) for name, sha in sorted(sums.items())])


def parts(folder: Path, episode: pb.Episode, have: list[int]) -> Iterator[pb.UploadPart]:
    """What the trainer has not got, if it has so many bytes of each file."""
    yield pb.UploadPart(episode=episode)
    for number, (file, offset) in enumerate(zip(episode.files, have, strict=True)):
        with open(folder / file.name, "rb") as source:
            source.seek(offset)
            while data := source.read(PART_BYTES):
                part = pb.UploadPart()  # filled in place: a message that is put into another one is copied
                part.chunk.file, part.chunk.offset, part.chunk.crc32 = number, offset, zlib.crc32(data)
                part.chunk.data = data
                yield part
                offset += len(data)


def copied(path: Path, offset: int, size: int) -> Iterator[bytes]:
    """So many bytes of a file, from there on; without those that cannot be read, which the hash of the whole tells."""
    with contextlib.suppress(OSError), open(path, "rb") as source:
        source.seek(offset)
        while size and (data := source.read(min(size, PART_BYTES))):
            yield data
            size -= len(data)


def last_fetched(folder: Path) -> Fetched | None:
    """The newest policy that an earlier start of this station has left; None where there is none."""
    newest = max(folder.glob(POLICIES), key=lambda path: path.name, default=None)
    with contextlib.suppress(OSError):  # then all of the next one is sent
        return Fetched(policy_version(newest), newest, file_sha256(newest)) if newest else None
    return None
