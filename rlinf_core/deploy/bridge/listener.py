"""The bridge's listening socket: it bounds connections and forwards their bytes to gRPC's server.

gRPC bounds only the sum of connections: 1,000 idle ones would lock out a station. Here a connection
is pending until a station was admitted on it. Pending connections are bounded in number, per peer
and in time, and a new one replaces the oldest. gRPC listens on a socket in a private folder. Its
asyncio code runs on one event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import resource
import secrets
import shutil
import socket
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rlinf_core.core.connections import ACCEPTED_AT_ONCE, Connections, deepen_backlog

T = TypeVar("T")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the one event loop for gRPC.

    With several, gRPC would wake all of them for each event.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="bridge", daemon=True).start()
    return loop


def run_in_bridge_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in the bridge's event loop and wait for its result, from another thread."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


async def run_to_completion(call: Callable[..., T], *arguments: Any) -> T:
    """Run ``call`` in a worker thread to its end, even if the caller is cancelled meanwhile.

    The cancellation takes effect after the end of the call.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    running.add_done_callback(_retrieve_exception)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task without a caller, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


MAX_PENDING, MAX_PENDING_PER_PEER = 256, 192
PENDING_S = 10.0  # timeout of TLS and the first call
MAX_PER_STATION = 16  # connections of an admitted station; an uplink opens 2
SWEEP_S = 0.5
MAX_DESCRIPTORS = 8192  # file descriptors: each connection takes three
UNIX = "unix-abstract:"


class End(asyncio.Protocol):
    """One of two paired connections. Each sends the bytes that the other receives."""

    transport: asyncio.Transport
    partner: End | None = None

    def connection_made(self, transport: Any) -> None:
        """Store the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Forward the bytes to the partner."""
        if self.partner is not None:
            self.partner.transport.write(data)

    def pause_writing(self) -> None:
        """Stop reading from the partner while this end is slow."""
        if self.partner is not None:
            self.partner.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the partner again."""
        if self.partner is not None:
            self.partner.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """Close the partner after it has sent its buffer."""
        if self.partner is not None:
            self.partner.transport.close()


class Inner(End):
    """The connection to gRPC's server."""

    def __init__(self, partner: Outer) -> None:
        self.partner = self.outer = partner

    def connection_lost(self, error: Exception | None) -> None:
        """Make the outer connection pending, so that the sweep closes a peer that does not read."""
        self.outer.listener.mark_pending(self.outer)
        super().connection_lost(error)


class Outer(End):
    """The connection to the peer. Its first bytes open the connection to gRPC's server."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.station = ""
        self.name = ""
        self.first = b""
        self.connecting = False

    def connection_made(self, transport: Any) -> None:
        """Store the transport and the peer's address."""
        super().connection_made(transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        host = host.removeprefix("::ffff:")
        self.peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def data_received(self, data: bytes) -> None:
        """Forward the bytes. The first ones wait until the inner connection is open."""
        if self.partner is not None:
            super().data_received(data)
        elif not self.connecting:
            self.first = data
            self.connecting = True
            self.transport.pause_reading()
            self.listener.start_task(self.listener.connect(self))

    def connection_lost(self, error: Exception | None) -> None:
        """Remove this connection from the front."""
        self.listener.remove(self)
        super().connection_lost(error)


class Listener:
    """The bridge's listening socket. All methods run in the bridge's event loop.

    Args:
        log: receives lines of text for a person.
    """

    def __init__(self, log: Callable[[str], object]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rlinf-bridge-"))  # mode 0700
        self.inner_address = f"unix:{self.folder}/grpc"
        self.connections = Connections(
            lambda: Outer(self),
            log,
            "the bridge",
            "",
            MAX_PENDING,
            MAX_PENDING_PER_PEER,
            PENDING_S,
            count_busy=False,
        )
        self._by_name: dict[str, Outer] = {}
        self._by_station: dict[str, list[Outer]] = defaultdict(list)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> int:
        """Listen on ``address`` ("host:port"; port 0 picks a free one) and return the port.

        Raises:
            OSError: the address is in use or invalid.
        """
        _raise_file_limit()
        host, _, port = address.rpartition(":")
        host, loop = host.strip("[]"), asyncio.get_running_loop()
        if host == "::":  # IPv4 as well
            listening = socket.create_server(
                ("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True
            )
            self._server = await loop.create_server(
                self.connections, sock=listening, backlog=ACCEPTED_AT_ONCE
            )
        else:
            self._server = await loop.create_server(
                self.connections, host, int(port), backlog=ACCEPTED_AT_ONCE
            )
        deepen_backlog(self._server)
        self.start_task(self._sweep())
        result: int = self._server.sockets[0].getsockname()[1]
        return result

    def start_task(self, work: Any) -> None:
        """Start a task that ``close`` cancels."""
        self._tasks.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._tasks.discard)

    async def connect(self, outer: Outer) -> None:
        """Open the peer's connection to gRPC's server, under a name that ``peer`` resolves."""
        outer.name = f"rlinf-bridge-{secrets.token_hex(16)}"
        self._by_name[UNIX + outer.name] = outer
        inner = socket.socket(socket.AF_UNIX)
        inner.setblocking(False)
        try:
            inner.bind(f"\0{outer.name}")
            loop = asyncio.get_running_loop()
            await loop.sock_connect(inner, self.inner_address.removeprefix("unix:"))
            _, outer.partner = await loop.create_connection(lambda: Inner(outer), sock=inner)
        except OSError:  # the server ends
            inner.close()
            outer.transport.abort()
            return
        if outer.transport.is_closing():
            outer.partner.transport.abort()
            return
        outer.partner.transport.write(outer.first)
        outer.first = b""
        outer.transport.resume_reading()

    def peer(self, inner: str) -> str:
        """Return the address of a call's peer in gRPC's notation."""
        outer = self._by_name.get(inner)
        return outer.peer if outer else inner

    def admitted(self, inner: str, station: str) -> None:
        """Mark a connection as admitted.

        The oldest of a station beyond MAX_PER_STATION is closed.
        """
        outer = self._by_name.get(inner)
        if outer is None or outer.station == station:
            return
        if outer.station:
            self._by_station[outer.station].remove(outer)
        outer.station = station
        if connection := self.connections.open.get(outer.transport):
            connection.restart(busy=True, limit_s=math.inf)
        others = self._by_station[station]
        others.append(outer)
        if len(others) > MAX_PER_STATION:
            others[0].transport.abort()

    def mark_pending(self, outer: Outer) -> None:
        """Make a connection pending again: it is closed within PENDING_S."""
        if connection := self.connections.open.get(outer.transport):
            connection.restart()

    def remove(self, outer: Outer) -> None:
        """Remove a closed connection."""
        self.connections.open.pop(outer.transport, None)
        self._by_name.pop(UNIX + outer.name, None)
        if outer.station:
            self._by_station[outer.station].remove(outer)
            if not self._by_station[outer.station]:
                del self._by_station[outer.station]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.connections.sweep()

    def stop_listening(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def close(self) -> None:
        """Close all connections and cancel all tasks."""
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections.open.values()):
            connection.abort()
        shutil.rmtree(self.folder, ignore_errors=True)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
