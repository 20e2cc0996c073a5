"""The station's end of the bridge: it uploads episodes, downloads policies and exchanges reports.

Every failure is a BridgeError, and the caller retries. The client takes a policy in the cheapest
way: as a link if the trainer's files are readable here, else as the changed parts, else in full.
``Sender`` uploads the spool's closed episodes. It quarantines an episode that the trainer refuses
for good, so that the others are still sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import grpc

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.core.errors import (
    BridgeError,
    EpisodeError,
    RefusedError,
    UnreachableError,
    escape_ascii,
)
from rlinf_core.core.paths import VERSION as SOFTWARE_VERSION
from rlinf_core.deploy.bridge import (
    INSTANCE_KEY,
    MAX_DOWNLOAD_S,
    PART_BYTES,
    SERVICE,
    STATION_KEY,
    TRAINER_DNS_NAME,
    VERSION,
    bridge_pb2_grpc,
)
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.credentials import TOKEN_KEY, read_token
from rlinf_core.deploy.bridge.fleet import Credentials
from rlinf_core.deploy.bridge.policy_parts import Bytes, decode
from rlinf_core.episodes.checksums import SUMS, file_sha256, file_state, is_plain, verify
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.policy_folder import NAMED, policy_files, policy_name, policy_version

LOOPBACK = ("127.", "localhost:", "[::1]:")


class PolicyFile(NamedTuple):
    """A policy file that this station has, with its SHA-256."""

    version: int
    path: Path
    sha256: str


class Download(NamedTuple):
    """The result of one download request.

    Attributes:
        version: version of the policy, or -1 for another file.
        sha256: hash that the trainer reports; empty if the trainer sent nothing.
        written_sha256: hash of the file as it was written here.
        needs: name of the base file that an adapter needs; empty if it needs none.
    """

    version: int = -1
    sha256: str = ""
    written_sha256: str = ""
    needs: str = ""


def is_loopback_address(address: str) -> bool:
    """Return whether a trainer at this address may run on this machine (a loopback address)."""
    return address.startswith(LOOPBACK)


def partial_path(folder: Path, file: str, version: int) -> Path:
    """Return the temporary path of a download: of ``file``, or of policy ``version``.

    A partial download stays there and is resumed.
    """
    return folder / f".{file or policy_name(version)}.part"


def partial_download(folder: Path, file: str) -> tuple[int, int]:
    """Return version and size [bytes] of a partial download; (0, 0) if there is none.

    The download is that of ``file``, or of the newest policy if ``file`` is empty.
    """
    if file:
        left = [path] if (path := partial_path(folder, file, -1)).is_file() else []
    else:
        left = [path for path in folder.glob(".policy-*.part") if NAMED.fullmatch(path.name[1:-5])]
    newest = max(left, key=lambda path: (len(path.name), path.name), default=None)
    if newest is None:
        return 0, 0
    return -1 if file else policy_version(Path(newest.name[1:-5])), newest.stat().st_size


def assemble(
    parts: Iterable[tuple[pb.PolicyPart, Bytes]],
    base: PolicyFile | None,
    folder: Path,
    file: str = "",
) -> Download:
    """Assemble a download in its temporary file.

    Each part holds bytes of the trainer, a range to copy from ``base``, or a path to link.

    Args:
        parts: stream of the trainer.
        base: policy file of this station that the trainer's ranges refer to.
        folder: folder of the temporary file.
        file: name of the file; empty for a policy.
    """
    download, sha = Download(), hashlib.sha256()
    with contextlib.ExitStack() as files:
        out = None
        for part, sent in parts:
            download = Download(part.version, part.sha256, "", part.needs)
            if part.path:
                return download._replace(
                    written_sha256=_linked(part, partial_path(folder, file, part.version))
                )
            if out is None:
                partial_path(folder, file, part.version).touch()
                out = files.enter_context(open(partial_path(folder, file, part.version), "r+b"))
                _resume(out, part.first_offset, sha)
            copy = (
                read_range(base.path, part.copy_offset, part.copy_size)
                if base and part.copy_size
                else ()
            )
            for data in (sent, *copy):
                out.write(data)
                sha.update(data)
    return download._replace(written_sha256=sha.hexdigest())


def _resume(out: BinaryIO, first_offset: int, sha: Any) -> None:
    """Hash the first ``first_offset`` bytes of a partial file into ``sha``; cut off the rest."""
    while first_offset and (data := out.read(min(first_offset, PART_BYTES))):
        sha.update(data)
        first_offset -= len(data)
    out.truncate()


def _linked(part: pb.PolicyPart, to: Path) -> str:
    """Link the trainer's file to ``to``, or copy it, and return its hash.

    The link is the very file that the trainer hashed if its device, inode, size and time of change
    are those that the trainer saw. Then the hash is the trainer's. The hash of any other file is
    computed; it is empty if the file cannot be read.
    """
    path = Path(part.path)
    with contextlib.suppress(OSError):
        to.unlink(missing_ok=True)
        try:
            os.link(path, to)
        except OSError:  # another disk, or another user's file
            shutil.copyfile(path, to)
        return part.sha256 if file_state(to.stat()) == part.file_state else file_sha256(to)
    return ""


def read_range(path: Path, offset: int, size: int) -> Iterator[bytes]:
    """Yield ``size`` bytes of a file from ``offset`` on.

    Unreadable bytes are left out. The caller notices by the hash of the whole file.
    """
    with contextlib.suppress(OSError), open(path, "rb") as source:
        source.seek(offset)
        while size and (data := source.read(min(size, PART_BYTES))):
            yield data
            size -= len(data)


def prune_policies(folder: Path, max_gb: float, *versions: int) -> None:
    """Remove the oldest policies until the folder holds at most ``max_gb`` (10^9 bytes).

    The first policy stays, because the report compares with it. ``versions`` stay, too.
    """
    sizes = {path: path.stat().st_size for path in policy_files(folder)}
    left = sum(sizes.values()) - max_gb * 1e9
    for path in [path for path in [*sizes][1:] if policy_version(path) not in versions]:
        if left <= 0:
            return
        path.unlink(missing_ok=True)
        left -= sizes[path]


def last_policy(folder: Path) -> PolicyFile | None:
    """Return the newest policy that an earlier run of this station downloaded, or None."""
    for newest in policy_files(folder)[-1:]:
        with contextlib.suppress(OSError):  # the next policy is then sent in full
            return PolicyFile(policy_version(newest), newest, file_sha256(newest))
    return None


SLOWEST_BYTES_PER_S = 1e6
OPTIONS = [
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.ssl_target_name_override", TRAINER_DNS_NAME),
]
# in gRPC's details if TLS fails; gRPC names no reason
TLS_FAILURES = ("andshake", "Socket closed", "Connection reset")
PROCESS_INSTANCE = f"i{uuid.uuid4().hex}"


class BridgeClient:
    """A gRPC client that connects lazily and reconnects by itself. Every call has a deadline.

    Args:
        address: host and port of the trainer.
        station: name of the station.
        credentials: folder that ``rlinf fleet enroll`` wrote; None sends without TLS.
        instance: identifier of the process. All clients of a process are one station.
        links: take policies as hard links if the trainer runs on this machine.
        tokens: token files, in order of preference, for a trainer on loopback. Each call reads
            them, because the trainer writes its token when it starts.
    """

    def __init__(
        self,
        address: str,
        station: str,
        credentials: Path | None = None,
        instance: str = PROCESS_INSTANCE,
        links: bool = True,
        tokens: Sequence[Path] = (),
    ) -> None:
        self.address = address
        self.station = station
        self.links = links and is_loopback_address(address)
        self.credentials = Credentials(credentials, station) if credentials else None
        self._channel = (
            grpc.secure_channel(address, self.credentials.channel_credentials(), options=OPTIONS)
            if self.credentials
            else grpc.insecure_channel(address, options=OPTIONS)
        )
        self._stub = bridge_pb2_grpc.BridgeStub(self._channel)
        next_policy = f"/{SERVICE}/NextPolicy"
        self._next_policy = self._channel.unary_stream(
            next_policy, pb.PolicyRequest.SerializeToString, decode
        )
        self._name = ((STATION_KEY, station), (INSTANCE_KEY, instance))
        self._tokens = () if credentials else tuple(tokens)
        self._offered: PreparedOffer | None = None  # offer without an answer
        # bytes of each episode at the trainer at its last offer
        self._received_bytes: dict[str, int] = {}

    def upload(
        self, folder: Path, timeout_s: float = 60.0, prepared: PreparedOffer | None = None
    ) -> bool:
        """Send a closed episode and wait until it is durable at the trainer.

        Args:
            folder: folder of the episode in the spool.
            timeout_s: deadline of the offer; an upload gets more time by its size.
            prepared: the episode's offer, hashed a moment ago. It is used if the files have not
                changed since.

        Returns:
            Whether the trainer already had the episode.

        Raises:
            EpisodeError: the files changed since the episode was closed.
            RefusedError: the trainer refuses the episode for good.
            UnreachableError: no trainer answers, or the connection broke after progress.
            BridgeError: any other failure. A retry continues the upload.
        """
        fingerprint, before = _fingerprint(folder), self._offered
        # a retry does not hash the files again
        is_retry = before is not None and before.is_of(fingerprint)
        if before is not None and is_retry:
            episode = before.episode
        elif prepared is not None and prepared.is_of(fingerprint):
            episode = prepared.episode
        else:
            episode = episode_offer(folder)
        self._offered = PreparedOffer(fingerprint, episode)
        reply = self._checked_reply(
            self._call(self._stub.Offer, episode, timeout_s, unreachable=UnreachableError), episode
        )
        self._offered = None
        if not reply.stored and is_retry:
            episode = episode_offer(folder)
        if not reply.stored:
            have = sum(reply.have)
            left = sum(file.size for file in episode.files) - have
            # a bad connection that still makes progress is not the episode's fault
            has_progressed = have > self._received_bytes.get(episode.id, -1)
            cut = UnreachableError if has_progressed else BridgeError
            self._received_bytes[episode.id] = have
            missing = parts(folder, episode, list(reply.have))
            upload = self._call(
                self._stub.Upload,
                missing,
                timeout_s + left / SLOWEST_BYTES_PER_S,
                unreachable=cut,
                too_late=cut,
            )
            reply = self._checked_reply(upload, episode)
        self._received_bytes.pop(episode.id, None)
        return reply.duplicate

    def next_policy(
        self, have_version: int, folder: Path, wait_s: float = 10.0, base: PolicyFile | None = None
    ) -> PolicyFile | None:
        """Wait for a policy other than ``have_version`` and store it in ``folder``.

        The trainer sends only bytes that neither ``base`` nor a partial download holds. If the
        result has a wrong hash, the whole file is sent. A trainer on this machine sends nothing:
        the file is linked. The base file of an adapter is stored before the policy.

        Returns:
            The policy, or None if no other policy came within ``wait_s`` seconds.
        """
        folder.mkdir(parents=True, exist_ok=True)
        download = self._download(
            pb.PolicyRequest(have_version=have_version, wait_s=wait_s), folder, base
        )
        if download.version < 0:
            return None
        self._download_base(download, folder)
        # No fsync: after a power cut the hash differs, and the file is downloaded again.
        os.replace(
            partial_path(folder, "", download.version),
            path := folder / policy_name(download.version),
        )
        for older in folder.glob(".policy*.part"):  # partial downloads of older policies
            older.unlink(missing_ok=True)
        return PolicyFile(download.version, path, download.sha256)

    def _download_base(self, policy: Download, folder: Path) -> None:
        """Download the base file of an adapter, unless it is there. All versions share it."""
        name = policy.needs
        if not name or (is_plain(name) and (folder / name).exists()):
            return
        if not is_plain(name) or not self._download(pb.PolicyRequest(file=name), folder).sha256:
            raise BridgeError(
                f"policy {policy.version} from {self.address}: expected its base file, "
                f"'{name[:200]}', in the trainer's policies/, got none. The station requests it "
                "again"
            )
        # with fsync: later only its name is checked
        publish_file(partial_path(folder, name, -1), folder / name)

    def _download(
        self, request: pb.PolicyRequest, folder: Path, base: PolicyFile | None = None
    ) -> Download:
        """Download a file to its temporary path as a link, a patch of ``base``, or in full."""
        sources: list[tuple[PolicyFile | None, bool]] = []  # (base of a patch, may be a link)
        if self.links:
            sources.append((base, True))
        if base is not None:
            sources.append((base, False))
        sources.append((None, False))
        for source, request.may_link in sources:
            request.have_sha256, request.have_file = (
                (source.sha256, source.version) if source else ("", 0)
            )
            request.partial_version, request.partial_size = partial_download(folder, request.file)
            download = self._download_once(request, source, folder)
            if (
                download.sha256 == download.written_sha256
                or not download.sha256
                and download.version < 0
            ):
                return download
            partial_path(folder, request.file, download.version).unlink(missing_ok=True)
        raise BridgeError(
            f"policy {download.version} from {self.address} arrived incomplete; the station "
            "fetches it again"
        )

    def _download_once(
        self, request: pb.PolicyRequest, base: PolicyFile | None, folder: Path
    ) -> Download:
        try:  # keepalive ends a dead connection before this deadline
            parts = self._call(self._next_policy, request, request.wait_s + MAX_DOWNLOAD_S)
            return assemble(parts, base, folder, request.file)
        except grpc.RpcError as error:
            raise self._error(error) from error

    def register(self, specs: str, limits_hash: str, timeout_s: float = 5.0) -> str:
        """Register the station's specs (JSON) and limits.

        Returns:
            The reason why the station may not play; empty if it may.
        """
        request = pb.Registration(specs=specs, limits_hash=limits_hash, software=SOFTWARE_VERSION)
        reply: pb.RegistrationReply = self._call(self._stub.Register, request, timeout_s)
        return reply.error

    def report(
        self, backlog: int, policy_version: int, timeout_s: float = 2.0, **more: Any
    ) -> pb.TrainerReport:
        """Exchange reports: send the station's, return the trainer's.

        ``more`` are fields of StationReport.
        """
        request = pb.StationReport(
            backlog=backlog, policy_version=policy_version, software=SOFTWARE_VERSION, **more
        )
        return self._call(self._stub.Report, request, timeout_s)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call."""
        token = read_token(self._tokens)
        return (*self._name, (TOKEN_KEY, token)) if token else self._name

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _call(
        self,
        method: Callable[..., Any],
        request: Any,
        timeout_s: float,
        unreachable: type[BridgeError] = BridgeError,
        too_late: type[BridgeError] = BridgeError,
    ) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(error, unreachable, too_late) from error

    def _checked_reply(self, reply: pb.EpisodeReply, episode: pb.Episode) -> pb.EpisodeReply:
        """Return the reply, or raise its error.

        A final refusal is a RefusedError, any other error a BridgeError.
        """
        if not reply.error:
            return reply
        kind = RefusedError if reply.refused else BridgeError
        raise kind(f"trainer at {self.address} refused episode {episode.id}: {reply.error}")

    def _error(
        self,
        error: grpc.RpcError,
        unreachable: type[BridgeError] = BridgeError,
        too_late: type[BridgeError] = BridgeError,
    ) -> BridgeError:
        """Return the error for a failed call, with advice.

        Args:
            error: error of gRPC.
            unreachable: class of the result if the trainer is unreachable.
            too_late: class of the result if the deadline passed.
        """
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.UNIMPLEMENTED:
            details = (
                f"expected version {VERSION} of the bridge's protocol of this station, got a "
                f"trainer without it ({details}). Install the same version of rlinf on trainer and "
                "stations"
            )
        if code == grpc.StatusCode.UNAVAILABLE and any(sign in details for sign in TLS_FAILURES):
            details += "; " + (
                self.credentials.advice()
                if self.credentials
                else (
                    "if the trainer uses bridge.fleet, this station needs bridge.credentials "
                    "(docs/howto/fleet.md)"
                )
            )
        if code == grpc.StatusCode.UNAUTHENTICATED and self._tokens:
            details += (
                f". This station searched {', '.join(map(str, self._tokens))}, and "
                f"{'found another' if read_token(self._tokens) else 'found none'}"
            )
        kind = {
            grpc.StatusCode.UNAVAILABLE: unreachable,
            grpc.StatusCode.DEADLINE_EXCEEDED: too_late,
        }.get(code, BridgeError)
        return kind(f"trainer at {self.address}: {code.name.lower()}: {details}")


def _fingerprint(folder: Path) -> tuple[Any, ...]:
    """Return names, sizes and times of a folder's files, to notice a change without reading them.

    Empty if the folder cannot be listed; reading it will report the error.
    """
    try:
        return folder, *sorted(
            (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()
        )
    except OSError:
        return ()


def episode_offer(folder: Path) -> pb.Episode:
    """Return the offer of a closed episode. Raises EpisodeError if its files changed since then."""
    sums = verify(folder) | {SUMS: file_sha256(folder / SUMS)}
    return pb.Episode(
        id=folder.name,
        files=[
            pb.File(name=name, size=(folder / name).stat().st_size, sha256=sha)
            for name, sha in sorted(sums.items())
        ],
    )


class PreparedOffer(NamedTuple):
    """An episode's offer, and the names, sizes and times of its files before they were hashed."""

    fingerprint: tuple[Any, ...]
    episode: pb.Episode

    def is_of(self, fingerprint: tuple[Any, ...]) -> bool:
        """Return whether it belongs to files with this fingerprint."""
        return self.fingerprint == fingerprint != ()


def prepare_offer(folder: Path) -> PreparedOffer:
    """Hash a closed episode for its offer. Raises EpisodeError if its files changed."""
    fingerprint = _fingerprint(folder)
    return PreparedOffer(fingerprint, episode_offer(folder))


def parts(folder: Path, episode: pb.Episode, have: list[int]) -> Iterator[pb.UploadPart]:
    """Yield the parts that the trainer lacks, given its number of bytes of each file."""
    yield pb.UploadPart(episode=episode)
    for number, (file, offset) in enumerate(zip(episode.files, have, strict=True)):
        with open(folder / file.name, "rb") as source:
            source.seek(offset)
            while data := source.read(PART_BYTES):
                # filled in place, as protobuf copies a message that is assigned
                part = pb.UploadPart()
                part.chunk.file = number
                part.chunk.offset = offset
                part.chunk.crc32 = zlib.crc32(data)
                part.chunk.data = data
                yield part
                offset += len(data)


class Sender:
    """Uploads the closed episodes of a spool.

    Args:
        spool: spool of the station.
        client: client of the trainer.
        log: receives a line of text for each episode that is quarantined.
        may_send: whether the next episode may be uploaded.
    """

    def __init__(
        self,
        spool: Spool,
        client: BridgeClient,
        log: Callable[[str], None],
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self.spool = spool
        self.client = client
        self.log = log
        self.may_send = may_send
        self._failures: Counter[str] = Counter()

    def send_all(self) -> str:
        """Try each closed episode once, oldest first and failed ones last.

        A thread hashes the next episode during an upload, once the trainer has taken one.

        Returns:
            Text of the last failure; empty if there was none.
        """
        last_error = ""
        trainer_answers = False
        waiting = sorted(self.spool.closed(), key=lambda folder: self._failures[folder.name])
        next_offer: Future[PreparedOffer] | None = None
        with ThreadPoolExecutor(1, "hash") as hasher:
            for folder, following in itertools.zip_longest(waiting, waiting[1:]):
                if not self.may_send():
                    break
                offer, next_offer = next_offer, None
                if following and trainer_answers:
                    next_offer = hasher.submit(prepare_offer, following)
                try:
                    self._send(folder, offer)
                    self._failures.pop(folder.name, None)
                    trainer_answers = True
                except UnreachableError as error:
                    # not this episode's fault: it stays first, to keep the order
                    return escape_ascii(error)
                except BridgeError as error:  # the trainer accepts nothing now
                    self._failures[folder.name] += 1
                    return escape_ascii(error)
                except Exception as error:  # unreadable now; it must not block the others
                    self._failures[folder.name] += 1
                    last_error = f"episode {folder.name}: {type(error).__name__}: {error}"
        return escape_ascii(last_error)

    def _send(self, folder: Path, offer: Future[PreparedOffer] | None) -> None:
        try:
            self.client.upload(folder, prepared=offer.result() if offer else None)
        except (RefusedError, EpisodeError) as error:
            refused_folder = self.spool.refuse(folder.name, str(error))
            self.log(escape_ascii(f"moved to {refused_folder}: {error}"))
        else:
            self.spool.mark_sent(folder.name)
