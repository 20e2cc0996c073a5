"""The trainer's end of the bridge: receives episodes, serves policies, answers reports.

Each waiting call is a coroutine of a few kilobytes, not a thread. Only disk access runs in a small
pool of threads. ``families`` yields the Prometheus metrics of uploads, stations and training.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.metrics_core import Metric

from rlinf_core.core.atomic_io import make_folder
from rlinf_core.core.connections import LimitedLog
from rlinf_core.core.errors import BridgeError, EpisodeError, RefusedError
from rlinf_core.core.metrics import Durations, family
from rlinf_core.deploy.bridge import MAX_DOWNLOAD_S, MAX_MESSAGE_BYTES, SERVICE, bridge_pb2_grpc
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.admission import (
    MAX_STATIONS,
    Admission,
    DownloadSlots,
    OtherVersions,
    Refusal,
    Registrations,
)
from rlinf_core.deploy.bridge.credentials import link_token, unlink_token
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.deploy.bridge.inbox import MIN_FREE_MB, Inbox, PartialUpload
from rlinf_core.deploy.bridge.listener import Listener, run_in_bridge_loop, run_to_completion
from rlinf_core.deploy.bridge.policies import NewestForAll, Policies, PolicySelector
from rlinf_core.episodes.journal import Journal
from rlinf_core.specs.arrays import StationSpec

MAX_UPLOADS = 64  # concurrent uploads, one for each station; others wait
MAX_DOWNLOADS = 16  # concurrent downloads of policies
WAIT_S = 30.0  # timeout for a slot, for a part of an upload, for a newer policy
SLOWEST_BYTES_PER_S = 20e3  # a slower upload is cut; the station resumes it later
MAX_CALLS = 2000
# gRPC's names of callers on this machine
LOOPBACK_PEERS = (
    "ipv4:127.",
    "ipv6:[::1]:",
    "ipv6:%5B::1%5D:",
)
OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 1 << 14),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.http2.bdp_probe", 0),  # bound of buffered upload data
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_allowed_incoming_connections", 1000),
    ("grpc.server_handshake_timeout_ms", 10_000),  # TLS and HTTP/2 handshake
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


class BridgeServer(bridge_pb2_grpc.BridgeServicer):
    """The gRPC server of a trainer. It serves from its construction until ``stop``.

    Args:
        address: host and port to listen on, such as "127.0.0.1:50051"; port 0 picks a free one.
        inbox: folder that receives the episodes, one folder each.
        policies: folder of the files ``policy-<version>.safetensors``.
        on_episode: receives the folder of each new episode, after it is durable.
        report: returns the fields of a TrainerReport and ``waiting``: by name of a station, the
            reason why it must wait.
        journal: journal of arrivals; by default a file beside the inbox.
        fleet: folder of the fleet whose stations may connect, over TLS. None accepts connections
            without TLS.
        min_free_mb: free disk space [MB] below which stations keep their episodes.
        choice: selector of each station's policy; by default the newest for all.
        specs: specs that a registering station must have; by default any.
        token_file: file of the token that stations without a fleet must send; None requires none.
        stations: names of stations that may connect; empty allows all.
    """

    def __init__(
        self,
        address: str,
        inbox: Path,
        policies: Path,
        on_episode: Callable[[Path], None],
        report: Callable[[], dict[str, Any]],
        journal: Journal | None = None,
        fleet: Path | None = None,
        min_free_mb: float = MIN_FREE_MB,
        choice: PolicySelector | None = None,
        specs: StationSpec | None = None,
        token_file: Path | None = None,
        stations: Collection[str] = (),
    ) -> None:
        self.journal = journal or Journal(inbox.with_name("journal.jsonl"))
        self.inbox = Inbox(inbox, self.journal, on_episode, min_free_mb)
        self.policies = make_folder(policies)
        self.report = report
        # time and content of each one's last report
        self.stations: dict[str, tuple[float, pb.StationReport]] = {}
        self.fleet = Fleet(fleet) if fleet else None
        self.choice = choice or NewestForAll()
        self._admission = Admission(self.fleet, token_file, stations)
        self._policies = Policies(policies, self.choice)
        self.registered = Registrations(specs, MAX_STATIONS)
        self._sending: set[str] = set()
        # replies by outcome: stored, duplicate, refused, later
        self.answers: Counter[str] = Counter()
        self.uploads_s = Durations()
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)
        self._downloads = DownloadSlots(MAX_DOWNLOADS, MAX_DOWNLOAD_S)
        self.port = run_in_bridge_loop(self._start(address))
        self.token_file = token_file
        if token_file:
            link_token(token_file, self.port)

    async def _start(self, address: str) -> int:
        self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        bridge_pb2_grpc.add_BridgeServicer_to_server(self, self._server)
        in_bytes = grpc.unary_stream_rpc_method_handler(
            self.NextPolicy, pb.PolicyRequest.FromString
        )
        # replaces the generated handler
        self._server.add_registered_method_handlers(SERVICE, {"NextPolicy": in_bytes})
        self._server.add_generic_rpc_handlers((OtherVersions(),))
        self._listener = Listener(LimitedLog(print, "the bridge"))
        try:
            if self.fleet:
                self._server.add_secure_port(
                    self._listener.inner_address, self.fleet.server_credentials()
                )
            else:
                self._server.add_insecure_port(self._listener.inner_address)
            await self._server.start()
            port = await self._listener.start(address)
        except OSError as error:
            await self._server.stop(0)
            self._listener.close()
            raise BridgeError(
                f"bridge: cannot listen on {address}: the port is in use. Stop the other trainer, "
                "or choose another with bridge.port=<number> in the recipe",
                code="RL-E205",
            ) from error
        self._watching = asyncio.ensure_future(self._policies.watch())
        return port

    def stop(self) -> None:
        """Stop serving. Uploads in progress are cut; stations resume them with the next trainer."""
        self._watching.get_loop().call_soon_threadsafe(self._watching.cancel)
        run_in_bridge_loop(self._end())
        if self.token_file:
            unlink_token(self.token_file, self.port)

    async def _end(self) -> None:
        self._listener.stop_listening()
        await self._server.stop(grace=0.5)
        self._listener.close()

    @property
    def newest(self) -> int:
        """The newest version in the policy folder; -1 if it is empty."""
        return self._policies.newest

    async def _admit(self, context: grpc.aio.ServicerContext) -> str:
        """Return the name of the calling station, or abort the call with the reason."""
        try:
            station = self._admission.admit(context, self._listener.peer(context.peer()))
            self._listener.admitted(context.peer(), station)
            return station
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.reason)
        except BridgeError as error:  # the fleet's files are unreadable
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort raises")

    async def _recheck_certificate(self, context: grpc.aio.ServicerContext, station: str) -> None:
        """Abort the call if the station's certificate was revoked while it waited or sent."""
        try:
            self._admission.check_certificate(station, context)
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.reason)
        except BridgeError as error:  # the fleet's own files are damaged
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    # Episodes up
    async def Offer(
        self, request: pb.Episode, context: grpc.aio.ServicerContext
    ) -> pb.EpisodeReply:  # noqa: N802
        station = await self._admit(context)
        return self._count_reply(
            await _replied(run_to_completion(self.inbox.offer, station, request))
        )

    async def Upload(
        self,
        parts: AsyncIterator[pb.UploadPart],
        context: grpc.aio.ServicerContext,  # noqa: N802
    ) -> pb.EpisodeReply:
        station, start_s = await self._admit(context), time.monotonic()
        reply = self._count_reply(await _replied(self._upload(station, parts, context)))
        if reply.stored:
            self.uploads_s.note(time.monotonic() - start_s)
        return reply

    def _count_reply(self, reply: pb.EpisodeReply) -> pb.EpisodeReply:
        """Count a reply by its outcome; a reply without one asks for the upload."""
        if reply.duplicate:
            self.answers["duplicate"] += 1
        elif reply.stored:
            self.answers["stored"] += 1
        elif reply.refused:
            self.answers["refused"] += 1
        elif reply.error:
            self.answers["later"] += 1
        return reply

    async def _upload(
        self, station: str, parts: AsyncIterator[pb.UploadPart], context: grpc.aio.ServicerContext
    ) -> pb.EpisodeReply:
        if station in self._sending:
            raise BridgeError(
                f"station '{station}': expected one upload at a time, got another; the station "
                "offers it again"
            )
        self._sending.add(station)
        try:
            await asyncio.wait_for(self._uploads.acquire(), WAIT_S)
            try:
                return await self._receive(station, parts, context)
            finally:
                self._uploads.release()
        finally:
            self._sending.discard(station)

    async def _receive(
        self, station: str, parts: AsyncIterator[pb.UploadPart], context: grpc.aio.ServicerContext
    ) -> pb.EpisodeReply:
        """Receive one episode, or the rest of a partial upload."""
        first = await asyncio.wait_for(anext(parts, pb.UploadPart()), WAIT_S)
        if not first.HasField("episode"):
            raise RefusedError(
                f"station '{station}': upload: expected the episode as it was offered in the "
                f"first part, got {first.WhichOneof('part') or 'nothing'}"
            )
        upload = await run_to_completion(self.inbox.receive, station, first.episode)
        if upload is None:
            return pb.EpisodeReply(stored=True, duplicate=True)
        try:
            await _receive_chunks(upload, parts)
            await self._recheck_certificate(context, station)
            return pb.EpisodeReply(
                stored=True, duplicate=await run_to_completion(self.inbox.store, upload)
            )
        finally:
            upload.close()

    # Policies down
    async def NextPolicy(
        self,
        request: pb.PolicyRequest,
        context: grpc.aio.ServicerContext,  # noqa: N802
    ) -> AsyncIterator[bytes]:
        station = await self._admit(context)
        link = request.may_link and self._listener.peer(context.peer()).startswith(LOOPBACK_PEERS)
        if request.file:
            async with self._downloads.acquire(station, context):
                await self._recheck_certificate(context, station)
                async for part in self._policies.file(request.file, link, request.partial_size):
                    yield part
            return
        wait_s = min(max(0.0, request.wait_s), WAIT_S)
        if self.registered.refusal_reason(station):
            await asyncio.sleep(wait_s)
            return
        policy = await self._policies.wait_for_policy(station, request, wait_s)
        await self._recheck_certificate(context, station)
        if policy is not None and link:
            yield policy.link()
        elif policy is not None:
            async with self._downloads.acquire(station, context):
                await self._recheck_certificate(context, station)
                partial_size = (
                    request.partial_size if request.partial_version == policy.version else 0
                )
                for part in policy.parts(await self._policies.base(request, policy), partial_size):
                    yield part

    # Status
    async def Register(
        self,
        request: pb.Registration,
        context: grpc.aio.ServicerContext,  # noqa: N802
    ) -> pb.RegistrationReply:
        return pb.RegistrationReply(
            error=self.registered.register(await self._admit(context), request)
        )

    async def Report(
        self, request: pb.StationReport, context: grpc.aio.ServicerContext
    ) -> pb.TrainerReport:  # noqa: N802
        station = await self._admit(context)
        self.stations[station] = time.monotonic(), request
        if len(self.stations) > MAX_STATIONS:  # drop the one with the oldest report
            del self.stations[min(self.stations, key=lambda name: self.stations[name][0])]
        report = self.report()
        # a station gets no metrics of others
        metrics = {
            name: value
            for name, value in report.get("metrics", {}).items()
            if "/" not in name or name.startswith(f"{station}/")
        }
        fields = {name: value for name, value in report.items() if name != "waiting"}
        return pb.TrainerReport(
            **fields | {"metrics": metrics} | self._station_fields(station, report)
        )

    def _station_fields(self, station: str, report: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the report that depend on the station."""
        held = self.registered.refusal_reason(station) or self.choice.wait_reason(station)
        reason = held or report.get("waiting", {}).get(station, "")
        station_fields = {
            "policy_version": self.choice.version_for(station, report.get("policy_version", 0)),
            "registered": station in self.registered.entries,
            "held": bool(held),
        }
        return station_fields | ({"accepting": False, "message": reason} if reason else {})


async def _receive_chunks(upload: PartialUpload, parts: AsyncIterator[pb.UploadPart]) -> None:
    """Receive every chunk, with a timeout for each and a deadline for all."""
    left = sum(file.size for file in upload.episode.files) - sum(upload.have())
    deadline = time.monotonic() + 2 * WAIT_S + left / SLOWEST_BYTES_PER_S
    with contextlib.suppress(StopAsyncIteration):
        while True:
            part = await asyncio.wait_for(anext(parts), min(WAIT_S, deadline - time.monotonic()))
            await run_to_completion(upload.take, part.chunk)


async def _replied(work: Awaitable[pb.EpisodeReply]) -> pb.EpisodeReply:
    """Await an episode's reply, and turn its errors into replies."""
    try:
        return await work
    except (RefusedError, EpisodeError) as error:
        return pb.EpisodeReply(error=str(error), refused=True)
    except asyncio.TimeoutError:
        return pb.EpisodeReply(
            error=f"expected the next part of an upload, or a turn for one, within {WAIT_S:.0f} s; "
            "what has come is kept, and the rest is offered again"
        )
    except (BridgeError, OSError) as error:
        return pb.EpisodeReply(error=str(error))


AWAY_S = 10.0  # age of the last report after which a station counts as away
REPORT_FIELDS = {  # fields of a StationReport
    "backlog": "closed episodes waiting to be sent",
    "policy_version": "newest policy version that it has fetched",
    "set_aside": "episodes that the trainer refused",
    "spool_full": "used fraction of its spool",
}
TRAINER_FIELDS = {  # fields of a TrainerReport
    "policy_version": "newest policy version",
    "updates": "number of updates of the learner",
    "episodes": "number of ingested episodes",
    "transitions": "number of ingested transitions",
    "update_ratio": "updates per transition",
    "accepting": "1 if stations may continue, 0 if they wait for the learner",
}


def families(server: BridgeServer) -> Iterator[Metric]:
    """Yield the current Prometheus metrics of a server."""
    stations = {
        name: (time.monotonic() - at, station_report)
        for name, (at, station_report) in sorted(dict(server.stations).items())
    }
    yield family(
        "rlinf_fleet_uploads",
        "counter",
        "number of answered episodes, by outcome",
        [({"outcome": outcome}, count) for outcome, count in sorted(server.answers.items())],
    )
    yield server.uploads_s.family(
        "rlinf_fleet_upload_seconds", "time from the first part of an upload to its acknowledgment"
    )
    yield family(
        "rlinf_fleet_uploads_under_way", "gauge", "number of started uploads", len(server._sending)
    )
    yield family(
        "rlinf_station_up",
        "gauge",
        f"1 if the station has called in the last {AWAY_S:.0f} s",
        [({"station": name}, age < AWAY_S) for name, (age, _) in stations.items()],
    )
    for field, meaning in REPORT_FIELDS.items():
        yield family(
            f"rlinf_station_{field}",
            "gauge",
            meaning,
            [
                ({"station": name}, getattr(station_report, field))
                for name, (_, station_report) in stations.items()
            ],
        )
    yield family(
        "rlinf_station_certificate_days",
        "gauge",
        "time until the certificate of an enrolled station expires",
        [
            ({"station": name}, days)
            for name, days in (server.fleet.days_left() if server.fleet else {}).items()
        ],
    )
    report = server.report()
    for field, meaning in TRAINER_FIELDS.items():
        yield family(f"rlinf_trainer_{field}", "gauge", meaning, float(report.get(field, 0.0)))
