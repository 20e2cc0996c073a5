"""TCP connections of a server: their bounds, and loopback addresses.

The bounds are a number, a number per peer, and a time without a request. The operator's page, the
bridge and the policy server use them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlinf_core.core.errors import escape_control

MAX_CONNECTIONS, MAX_PER_PEER = 128, 64
REQUEST_S = 5.0  # for a complete request header, and from one answer to the next request
ANSWER_S = 20.0  # for an answer; a WebSocket has no limit
SILENT_S = 2.0  # ``accepting`` is False for this long after a connection could not be accepted
ACCEPTED_AT_ONCE = 8  # a request is read before this many newer connections could evict it
BACKLOG = 1024
MAX_LINES, LINES_S = 20, 10.0


class LimitedLog(logging.Handler):
    """Passes at most ``MAX_LINES`` lines in ``LINES_S`` seconds, then the number of the others.

    It escapes control characters, so each of them stays one line. It is also the handler of a
    library's logger.
    """

    def __init__(self, log: Callable[[str], object], name: str) -> None:
        super().__init__(logging.WARNING)
        self.log = log
        self.name = name
        self.window_at = -math.inf
        self.lines = 0

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        if now - self.window_at > LINES_S:
            if self.lines > MAX_LINES:
                self.log(f"{self.name}: {self.lines - MAX_LINES} lines were left out")
            self.window_at = now
            self.lines = 0
        self.lines += 1
        if self.lines <= MAX_LINES:
            self.log(escape_control(line))

    def emit(self, record: logging.LogRecord) -> None:
        """Log a library's record as one line, without its traceback."""
        error = record.exc_info[1] if record.exc_info else None
        self(f"{self.name}: {record.getMessage()}" + (f": {error!r}"[:200] if error else ""))


class Connection(asyncio.Protocol):
    """An accepted connection; the HTTP protocol takes it over if it is admitted."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.transport = None
        self.peer = ""
        self.since = time.monotonic()
        self.limit_s = connections.idle_s
        self.busy = False

    transport: asyncio.Transport | None

    def connection_made(self, transport: Any) -> None:
        """Admit it or abort it; never raise RuntimeError, because the accept loop must go on."""
        self.transport = transport
        self.peer = (transport.get_extra_info("peername") or ("",))[0]
        if not self.connections.admit(self):
            transport.abort()
            return
        protocol = self.connections.make_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def restart(self, busy: bool = False, limit_s: float | None = None) -> None:
        """Restart its time limit; an idle connection has the time of a request."""
        self.busy = busy
        self.since = time.monotonic()
        self.limit_s = self.connections.idle_s if limit_s is None else limit_s

    @property
    def is_open(self) -> bool:
        """Whether it holds a file descriptor."""
        assert self.transport is not None
        return bool(self.transport.get_extra_info("socket").fileno() >= 0)

    def abort(self) -> None:
        """Close it at once and drop unsent data."""
        assert self.transport is not None
        self.transport.abort()


class Connections:
    """All open connections. Idle ones give way to newer ones, against floods of idle ones.

    Args:
        make_protocol: makes the protocol of an admitted connection.
        log: receives log lines.
        name: name of the server, for log lines.
        consequence: consequence of a connection that is not accepted, for log lines.
        most, most_per_peer: largest number of connections, in all and of one peer.
        request_s: time for which an idle connection stays open; REQUEST_S if None.
        count_busy: True if ``most`` and ``most_per_peer`` include busy connections.
    """

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        log: Callable[[str], object],
        name: str,
        consequence: str = "",
        most: int = MAX_CONNECTIONS,
        most_per_peer: int = MAX_PER_PEER,
        request_s: float | None = None,
        count_busy: bool = True,
    ) -> None:
        self.make_protocol, self.log = make_protocol, log
        self.name, self.consequence = name, consequence
        self.most, self.most_per_peer = most, most_per_peer
        self.request_s, self.count_busy = request_s, count_busy
        self.open: dict[Any, Connection] = {}  # by transport, the oldest first
        self.listening = False
        self.failed_at = -math.inf

    def __call__(self) -> Connection:
        return Connection(self)

    @property
    def idle_s(self) -> float:
        """Time for which an idle connection stays open."""
        return REQUEST_S if self.request_s is None else self.request_s

    @property
    def accepting(self) -> bool:
        """Whether a new connection would be accepted now.

        Otherwise the page's stop falls silent.
        """
        return self.listening and time.monotonic() - self.failed_at > SILENT_S

    def admit(self, connection: Connection) -> bool:
        """Make room for a connection; return False if all others are in use."""
        counted = [
            candidate for candidate in self.open.values() if self.count_busy or not candidate.busy
        ]
        peers = Counter(candidate.peer for candidate in counted)
        full = len(counted) >= self.most
        if full or peers[connection.peer] >= self.most_per_peer:
            crowded = connection.peer if not full else max(peers, key=peers.__getitem__)
            idle = [candidate for candidate in self.open.values() if not candidate.busy]
            oldest = next((candidate for candidate in idle if candidate.peer == crowded), None)
            if full and oldest is None:
                oldest = next(iter(idle), None)
            if oldest is None:
                self.fail(
                    f"expected at most {self.most_per_peer} connections from {connection.peer} and "
                    f"{self.most} in total; all of them are in use. Close some"
                )
                return False
            self._abort(oldest)
        self.open[connection.transport] = connection
        return True

    def fail(self, reason: str) -> None:
        """Note that a connection was not accepted; the page's silent stop then stops the arm."""
        self.failed_at = time.monotonic()
        self.log(f"{self.name} accepts no connection{self.consequence}: {reason}")

    @contextmanager
    def answering(self, transport: Any, limit_s: float = ANSWER_S) -> Iterator[None]:
        """Protect a connection from eviction while its request is answered."""
        connection = self.open.get(transport)
        if connection is None:  # closed before the answer began
            yield
            return
        connection.restart(busy=True, limit_s=limit_s)
        try:
            yield
        finally:
            connection.restart()

    def sweep(self) -> None:
        """Close the connections that took too long, and drop the closed ones."""
        now = time.monotonic()
        for connection in list(self.open.values()):
            if not connection.is_open:
                del self.open[connection.transport]
            elif now - connection.since > connection.limit_s:
                self._abort(connection)

    def _abort(self, connection: Connection) -> None:
        del self.open[connection.transport]
        connection.abort()

    def on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle the event loop's exceptions; a failed accept is one of these."""
        error = context.get("exception")
        if "accept" in str(context.get("message")):
            self.fail(
                f"{error}. End the program that holds so many files open, or raise `ulimit -n`"
            )
        else:
            self.log(f"{self.name}: {context.get('message')}: {error!r}"[:400])


def deepen_backlog(server: Any) -> None:
    """Let the system queue more connections than the loop accepts at once."""
    for listening in server.sockets:
        with socket.socket(fileno=socket.dup(listening.fileno())) as same:
            same.listen(BACKLOG)


def is_loopback(host: str) -> bool:
    """Return True for loopback addresses and ``localhost``.

    Other host names are not resolved; they give False.
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def connect_address(host: str) -> str:
    """Return the address to connect to for a server on this machine that listens on ``host``.

    A wildcard address (0.0.0.0, ::) becomes the loopback address.
    """
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
