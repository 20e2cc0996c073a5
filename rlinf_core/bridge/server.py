"""The trainer's end of the bridge: takes episodes into the inbox, serves policies, answers reports."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from rlinf_core.addresses import is_loopback
from rlinf_core.atomic_io import flush_folder, make_folder, move
from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.bridge import bridge_pb2_grpc
from rlinf_core.bridge.journal import Journal
from rlinf_core.bridge.receiving import Receiving
from rlinf_core.episodes.checksums import MAX_BYTES
from rlinf_core.errors import BridgeError, EpisodeError, RefusedError
from rlinf_core.policies.files import policy_version

PART_BYTES = 1 << 20
UPLOADS = 16   # at a time,
UPLOAD_S = 60.0 + MAX_BYTES / 1e6  # each no longer than this
FETCHES = 40   # calls for a policy at a time,
WAITING = 32   # of which so many may wait for one
THREADS = UPLOADS + FETCHES + 8  # the rest are for reports, and to say that there are too many
POLL_S = 0.1
MIN_FREE_MB = 200.0


def digest(files: dict[str, str]) -> str:
    """One SHA-256 over an episode's {file name: SHA-256}."""
    return hashlib.sha256("\n".join(f"{name} {sha}" for name, sha in sorted(files.items())).encode()).hexdigest()


def exposure(address: str) -> str:
    """A warning in words where others than this machine can reach ``address``; empty for loopback."""
    return "" if is_loopback(address) else (
        f"bridge: listens on {address}, without encryption and without asking who calls: anyone on that network can feed "
        "the training and fetch policies. Keep that network to yourself, or tunnel to bridge.host=127.0.0.1 (ssh -L)")


class BridgeServer(bridge_pb2_grpc.BridgeServicer):
    """Serves on ``address`` ("127.0.0.1:port"; port 0 picks one) until ``stop``.

    Args:
        inbox: where episodes land, one folder each; its journal lies beside them.
        policies: folder whose newest ``policy-<version>.safetensors`` is served.
        on_episode: called with the folder of each new episode, after it is durable.
        report: returns the fields of a TrainerReport.
        min_free_mb: with less free disk than this, episodes wait at their stations.
    """

    def __init__(self, address: str, inbox: Path, policies: Path, on_episode: Callable[[Path], None],
                 report: Callable[[], dict[str, Any]], min_free_mb: float = MIN_FREE_MB) -> None:
        make_folder(inbox)
        make_folder(policies)
        self.inbox, self.policies, self.on_episode, self.report = inbox, policies, on_episode, report
        self.min_free_mb = min_free_mb
        self.journal = Journal(inbox / "journal.sqlite")
        for left in inbox.glob(".part-*"):
            shutil.rmtree(left)
        self._storing = threading.Lock()
        self._stopping = threading.Event()
        self._uploads, self._fetches, self._waiting = map(threading.Semaphore, (UPLOADS, FETCHES, WAITING))
        self._server = grpc.server(futures.ThreadPoolExecutor(THREADS), options=[
            ("grpc.so_reuseport", 0), ("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)])
        bridge_pb2_grpc.add_BridgeServicer_to_server(self, self._server)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise BridgeError(f"bridge: cannot listen on {address}: the port is in use. Stop the other trainer, or choose "
                              "another with bridge.port=<number> in the recipe") from error
        self._server.start()

    def stop(self) -> None:
        """Stop serving; uploads under way are cut and will be sent again."""
        self._stopping.set()
        self._server.stop(grace=0.5).wait()

    # Episodes up
    def Upload(self, parts: Iterator[pb.EpisodePart], context: grpc.ServicerContext) -> pb.UploadReply:  # noqa: N802
        if not self._uploads.acquire(blocking=False):
            return pb.UploadReply(error=f"expected at most {UPLOADS} uploads at a time; it is sent again")
        patience = threading.Timer(UPLOAD_S, context.cancel)  # one that stalls makes room in the end
        patience.start()
        try:
            return pb.UploadReply(stored=True, duplicate=self._upload(parts))
        except (RefusedError, EpisodeError) as error:
            return pb.UploadReply(error=str(error), refused=True)
        except (BridgeError, OSError) as error:
            return pb.UploadReply(error=str(error))
        finally:
            patience.cancel()
            self._uploads.release()

    def _upload(self, parts: Iterator[pb.EpisodePart]) -> bool:
        """Receive and store one episode; returns whether it was here already."""
        free_mb = shutil.disk_usage(self.inbox).free / 1e6
        if free_mb < self.min_free_mb:
            raise BridgeError(f"inbox {self.inbox}: expected at least {self.min_free_mb:.0f} MB free, got {free_mb:.0f} "
                              "MB. Free the trainer's disk")
        aside = Path(tempfile.mkdtemp(prefix=".part-", dir=self.inbox))
        receiving = Receiving(aside)
        try:
            for part in parts:
                receiving.take(part)
            return self._store(*receiving.finish(), aside)
        finally:
            receiving.close()
            shutil.rmtree(aside, ignore_errors=True)

    def _store(self, station: str, episode_id: str, files: dict[str, str], aside: Path) -> bool:
        content, folder = digest(files), self.inbox / episode_id
        flush_folder(aside)
        with self._storing:
            known = self.journal.content(episode_id)
            if known == content:
                return True
            if known is not None:
                raise RefusedError(f"episode {episode_id} from {station}: another recording with this id has already "
                                   "arrived. Give every station its own name")
            shutil.rmtree(folder, ignore_errors=True)  # left by a crash between rename and journal
            move(aside, folder)
            self.journal.add(episode_id, station, content)
        self.on_episode(folder)
        return False

    # Policies down
    def NextPolicy(self, request: pb.PolicyRequest, context: grpc.ServicerContext) -> Iterator[pb.PolicyPart]:  # noqa: N802
        if not self._fetches.acquire(blocking=False):
            return
        try:
            newest = self._newer_policy(request, context)
            if newest is not None:
                yield from _policy_parts(*newest)
        finally:
            self._fetches.release()

    def _newer_policy(self, request: pb.PolicyRequest, context: grpc.ServicerContext) -> tuple[int, Path] | None:
        """Wait for a policy that is newer than the station's; where too many wait, look once."""
        may_wait = self._waiting.acquire(blocking=False)
        deadline = time.monotonic() + (min(request.wait_s, 30.0) if may_wait else 0.0)
        try:
            while not self._stopping.is_set() and context.is_active():
                newest = self.newest_policy()
                if newest is not None and newest[0] > request.have_version:
                    return newest
                if not time.monotonic() < deadline:  # so that NaN is no wait
                    return None
                self._stopping.wait(POLL_S)
            return None
        finally:
            if may_wait:
                self._waiting.release()

    def newest_policy(self) -> tuple[int, Path] | None:
        """Version and path of the newest policy file."""
        files = sorted(self.policies.glob("policy-*.safetensors"))
        return (policy_version(files[-1]), files[-1]) if files else None

    # Status
    def Report(self, request: pb.StationReport, context: grpc.ServicerContext) -> pb.TrainerReport:  # noqa: N802
        return pb.TrainerReport(**self.report())


def _policy_parts(version: int, path: Path) -> Iterator[pb.PolicyPart]:
    data = path.read_bytes()
    sha = hashlib.sha256(data).hexdigest()
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield pb.PolicyPart(version=version, data=data[start:end], sha256=sha if end >= len(data) else "")
