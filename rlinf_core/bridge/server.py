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

from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.bridge import bridge_pb2_grpc
from rlinf_core.bridge.journal import Journal
from rlinf_core.durable import fsync
from rlinf_core.errors import BridgeError
from rlinf_core.policies.files import policy_version

PART_BYTES = 1 << 20


def digest(files: dict[str, str]) -> str:
    """One SHA-256 over an episode's {file name: SHA-256}."""
    return hashlib.sha256("\n".join(f"{name} {sha}" for name, sha in sorted(files.items())).encode()).hexdigest()


class BridgeServer(bridge_pb2_grpc.BridgeServicer):
    """Serves on ``address`` ("127.0.0.1:port"; port 0 picks one) until ``stop``.

    Args:
        inbox: where episodes land, one folder each; its journal lies beside them.
        policies: folder whose newest ``policy-<version>.safetensors`` is served.
        on_episode: called with the folder of each new episode, after it is durable.
        report: returns the fields of a TrainerReport.
    """

    def __init__(self, address: str, inbox: Path, policies: Path, on_episode: Callable[[Path], None],
                 report: Callable[[], dict[str, Any]]) -> None:
        inbox.mkdir(parents=True, exist_ok=True)
        policies.mkdir(parents=True, exist_ok=True)
        self.inbox, self.policies, self.on_episode, self.report = inbox, policies, on_episode, report
        self.journal = Journal(inbox / "journal.sqlite")
        for left in inbox.glob(".part-*"):
            shutil.rmtree(left)
        self._storing = threading.Lock()
        self._stopping = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
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
        aside = Path(tempfile.mkdtemp(prefix=".part-", dir=self.inbox))
        try:
            station, episode_id, files = self._receive(parts, aside)
            return self._store(station, episode_id, files, aside)
        except (BridgeError, OSError) as error:
            return pb.UploadReply(stored=False, error=str(error))
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _receive(self, parts: Iterator[pb.EpisodePart], aside: Path) -> tuple[str, str, dict[str, str]]:
        station = episode_id = ""
        files: dict[str, str] = {}
        out, sha, name = None, hashlib.sha256(), ""
        try:
            for part in parts:
                station, episode_id = part.station or station, part.episode_id or episode_id
                if part.file:
                    name, sha = _plain(part.file), hashlib.sha256()
                    out = open(aside / name, "wb")  # noqa: SIM115 (closed below, at the file's last part)
                if out is None:
                    raise BridgeError("upload: expected a part that names its file first")
                out.write(part.data)
                sha.update(part.data)
                if part.sha256:
                    out.close()
                    out = None
                    if sha.hexdigest() != part.sha256:
                        raise BridgeError(f"upload of {episode_id}: '{name}' was damaged on the way; it is sent again")
                    files[name] = part.sha256
                    fsync(aside / name)
        finally:
            if out is not None:
                out.close()
        if out is not None or not files or not episode_id:
            raise BridgeError(f"upload of '{episode_id}': expected whole files, got {len(files)}; it is sent again")
        return station, _plain(episode_id), files

    def _store(self, station: str, episode_id: str, files: dict[str, str], aside: Path) -> pb.UploadReply:
        content, folder = digest(files), self.inbox / episode_id
        with self._storing:
            known = self.journal.content(episode_id)
            if known == content:
                return pb.UploadReply(stored=True, duplicate=True)
            if known is not None:
                raise BridgeError(f"episode {episode_id} from {station}: another recording with this id has already "
                                  "arrived. Give every station its own name")
            shutil.rmtree(folder, ignore_errors=True)  # left by a crash between rename and journal
            aside.rename(folder)
            fsync(self.inbox)
            self.journal.add(episode_id, station, content)
        self.on_episode(folder)
        return pb.UploadReply(stored=True)

    # Policies down
    def NextPolicy(self, request: pb.PolicyRequest, context: grpc.ServicerContext) -> Iterator[pb.PolicyPart]:  # noqa: N802
        deadline = time.monotonic() + min(request.wait_s, 30.0)
        while not self._stopping.is_set() and context.is_active() and time.monotonic() < deadline:
            newest = self.newest_policy()
            if newest is not None and newest[0] > request.have_version:
                yield from _policy_parts(*newest)
                return
            self._stopping.wait(0.1)

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


def _plain(name: str) -> str:
    """A name that stays inside its folder."""
    if not name or name != Path(name).name or name.startswith("."):
        raise BridgeError(f"upload: expected a plain file name, got {name!r}")
    return name
