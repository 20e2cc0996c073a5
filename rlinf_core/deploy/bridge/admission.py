"""Admission to a trainer: it checks certificate, name, token and specs of each station.

``DownloadSlots`` bounds concurrent downloads of policies: one for each station, each with a
deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from rlinf_core.core.errors import RlinfError, escape_ascii
from rlinf_core.deploy.bridge import INSTANCE_KEY, STATION_KEY, VERSION
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.credentials import (
    TOKEN_KEY,
    common_name,
    make_token,
    parse_certificate,
    same_token,
)
from rlinf_core.deploy.bridge.fleet import STATION_NAME, Fleet
from rlinf_core.specs.arrays import StationSpec

# silence without an open call after which another process may take the station's name
LEASE_S = 5.0
# concurrent calls over all connections of a station; our client opens at most 5
MAX_STATION_CALLS = 16
MAX_STATIONS = 1000  # station names without certificates
VERSIONS = re.compile(r"/rlinf\.bridge\.v(\d+)\.")


class Refusal(Exception):
    """A refused call: its gRPC status and reason."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass
class Lease:
    """The process that holds a station's name."""

    instance: str
    peer: str
    calls: int = 0
    last_call_at: float = 0.0

    @property
    def alive(self) -> bool:
        return self.calls > 0 or time.monotonic() - self.last_call_at < LEASE_S


class Admission:
    """Checks every call first. It is used from one thread.

    Args:
        fleet: fleet whose stations may call; None believes the name that a caller sends.
        token_file: file of the token that every caller must send; None requires none.
        stations: names that may call; empty allows all.

    Raises:
        BridgeError: ``token_file`` holds no token, or other users can read it.
    """

    def __init__(
        self, fleet: Fleet | None, token_file: Path | None = None, stations: Collection[str] = ()
    ) -> None:
        self.fleet = fleet
        self.token_file = token_file
        self.stations = stations
        self._token = make_token(token_file) if token_file else ""
        self._leases: dict[str, Lease] = {}

    def admit(self, context: grpc.aio.ServicerContext, peer: str) -> str:
        """Return the calling station and let it hold its name until the call ends.

        Raises:
            Refusal: the station may not call.
        """
        metadata = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        station, instance = metadata.get(STATION_KEY, ""), metadata.get(INSTANCE_KEY, "")
        for field, value in ((STATION_KEY, station), (INSTANCE_KEY, instance)):
            if not STATION_NAME.fullmatch(value):
                raise Refusal(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{field}: expected a letter, then up to 63 letters, digits and _, in the "
                    f"call's metadata, got {value[:100]!r}",
                )
        self.check_certificate(station, context)
        self._check_token(station, metadata.get(TOKEN_KEY, ""))
        lease = self._lease(station, instance, peer)
        if lease.calls >= MAX_STATION_CALLS:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"station '{station}': expected at most {MAX_STATION_CALLS} calls at a time, got "
                "one more. Let a call end first",
            )
        lease.calls += 1
        context.add_done_callback(lambda _: _end_call(lease))
        return station

    def check_certificate(self, station: str, context: grpc.aio.ServicerContext) -> None:
        """Check the caller's certificate.

        Raises:
            Refusal: the certificate belongs to another station, expired or was revoked.
        """
        if self.fleet is None:
            return
        certificate = parse_certificate(context.auth_context()["x509_pem_cert"][0])
        name = common_name(certificate)
        if name != station:
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"station '{station}': its certificate belongs to '{name}'. Expected the same "
                f"name in {STATION_KEY}. Set station.name={name}, or copy the right files to this "
                "station",
            )
        if reason := self.fleet.refusal_reason(station, certificate):
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, f"station '{station}': {reason}")

    def _check_token(self, station: str, token: str) -> None:
        """Check the caller's token and name. Raises Refusal."""
        if self._token and not same_token(self._token, token):
            raise Refusal(
                grpc.StatusCode.UNAUTHENTICATED,
                (
                    f"station '{station}': expected the token of this trainer from "
                    f"{self.token_file}, got {'another' if token else 'none'}. A station of the "
                    "same user on this machine reads that file. Another station needs a copy of "
                    "the file and bridge.token_file=<copy> (docs/howto/fleet.md)"
                ),
            )
        if self.stations and station not in self.stations:
            got = escape_ascii(station)
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                (
                    f"station '{got}': expected one of bridge.stations of the trainer's recipe, "
                    f"{', '.join(self.stations)}, got another. Add it there, or set station.name"
                ),
            )

    def _lease(self, station: str, instance: str, peer: str) -> Lease:
        lease = self._leases.get(station)
        if lease and lease.instance == instance:
            return lease
        if lease and lease.alive:
            raise Refusal(
                grpc.StatusCode.ALREADY_EXISTS,
                f"station '{station}': another station of that name is connected, from "
                f"{lease.peer}. Give each station its own station.name (a restarted station is "
                f"accepted after {LEASE_S:.0f} s)",
            )
        self._leases = {name: other for name, other in self._leases.items() if other.alive}
        if len(self._leases) >= MAX_STATIONS:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"station '{station}': expected at most {MAX_STATIONS} stations, got one more",
            )
        self._leases[station] = Lease(instance, peer)
        return self._leases[station]


def _end_call(lease: Lease) -> None:
    lease.calls -= 1
    lease.last_call_at = time.monotonic()


class OtherVersions(grpc.GenericRpcHandler):
    """Refuses calls of another protocol version, and names both versions."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Refuse a call of an unknown method."""
        match = VERSIONS.match(details.method)
        if not match:
            return None

        async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                (
                    f"the bridge's protocol: expected version {VERSION} of this trainer, got "
                    f"version {match[1]}. Install the same version of rlinf on trainer and stations"
                ),
            )

        return grpc.stream_stream_rpc_method_handler(refuse)


MAX_SPECS_CHARS, MAX_REASON = 1 << 16, 2000  # characters: of specs, and of the reason of a refusal


@dataclass(frozen=True)
class Entry:
    """The registration of one station.

    Attributes:
        refusal_reason: reason why the station may not play; empty if it may.
    """

    spec_hash: str
    limits_hash: str
    software: str
    refusal_reason: str


class Registrations:
    """The registrations of all stations. It is used from one thread.

    Args:
        specs: specs that the trainer learns for; None allows any.
        limit: maximum number of stations. Beyond it the oldest registration is dropped, and that
            station registers again.
    """

    def __init__(self, specs: StationSpec | None, limit: int) -> None:
        self.specs, self.limit = specs, limit
        self.entries: dict[str, Entry] = {}

    def register(self, station: str, registration: pb.Registration) -> str:
        """Store a registration and return the reason why the station may not play.

        The reason is empty if the station may play.
        """
        try:
            specs = _read(registration.specs)
            spec_hash, reason = specs.hash, self._difference(specs)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            RlinfError,
        ) as error:
            spec_hash = ""
            reason = (
                f"specs: expected JSON of a StationSpec, at most {MAX_SPECS_CHARS} characters, "
                f"got {len(registration.specs)} with {type(error).__name__}: {error}"
            )
        reason = escape_ascii(f"station '{station}': {reason}")[:MAX_REASON] if reason else ""
        self.entries.pop(station, None)
        self.entries[station] = Entry(
            spec_hash, registration.limits_hash[:200], registration.software[:100], reason
        )
        if len(self.entries) > self.limit:
            del self.entries[next(iter(self.entries))]
        return reason

    def _difference(self, specs: StationSpec) -> str:
        if self.specs is None or self.specs.member(specs.hash) is not None:
            return ""
        return (
            f"specs: expected those of this trainer ({self.specs.description}), got those of this "
            f"station ({specs.hash}): {self.specs.difference(specs)}. Start both with the same "
            "task, cameras and image size"
        )

    def refusal_reason(self, station: str) -> str:
        """Return why a station may not play; empty if it may, or has not registered."""
        entry = self.entries.get(station)
        return entry.refusal_reason if entry else ""


def _read(text: str) -> StationSpec:
    if len(text) > MAX_SPECS_CHARS:
        raise ValueError("too long")
    return StationSpec.from_dict(json.loads(text))


class DownloadSlots:
    """Slots for downloads. A slow station occupies one slot at most, and only until its deadline.

    Args:
        limit: number of slots; further calls wait.
        longest_s: deadline of a call [s], including its wait.
    """

    def __init__(self, limit: int, longest_s: float) -> None:
        self.longest_s = longest_s
        self._free = asyncio.Semaphore(limit)
        self._calls: dict[str, _Call] = {}

    @contextlib.asynccontextmanager
    async def acquire(self, station: str, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """Wait for a slot. An older download of the same station is ended."""
        if older := self._calls.get(station):
            older.end(f"station '{station}': a newer call for a policy has replaced this one")
        call = self._calls[station] = _Call(context)
        late = asyncio.get_running_loop().call_later(
            self.longest_s,
            call.end,
            f"station '{station}': expected the station to read a policy within "
            f"{self.longest_s:.0f} s",
        )
        try:
            async with self._free:
                yield
        finally:
            late.cancel()
            if self._calls.get(station) is call:
                del self._calls[station]


class _Call:
    """A streaming call. Its task blocks while the station does not read."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self.context = context
        self.task = asyncio.current_task()
        self.ending: asyncio.Task[Any] | None = None

    def end(self, reason: str) -> None:
        """Free the slot now, and abort the call with ``reason`` once its task has ended."""
        if self.ending is None:
            self.ending = asyncio.ensure_future(self._answer(reason))
            if self.task is not None:
                asyncio.get_running_loop().call_soon(self.task.cancel)

    async def _answer(self, reason: str) -> None:
        with contextlib.suppress(Exception):  # abort always raises
            await self.context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
