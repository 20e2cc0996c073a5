"""Bounds on a policy server's connections and on the memory of their messages."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from websockets.asyncio.server import ServerConnection

from rlinf_core.core.connections import Connection, Connections
from rlinf_core.deploy.serving.protocol import MAX_BYTES

HEADER_S = 5.0  # timeout of a complete request header
MESSAGE_S = 20.0  # timeout of a complete message, from its first byte
MAX_HELD_BYTES = 4 * MAX_BYTES  # sum of all messages that are received, unpacked or answered
FRAME_BYTES = 512  # memory of a frame object, besides its data
SWEEP_S = 0.5


class Bounds:
    """The connections of one server. It is used in the server's event loop.

    Args:
        log: receives lines of text for a person.
    """

    def __init__(self, log: Callable[[str], object]) -> None:
        self.log = log
        self.admission = Connections(
            asyncio.Protocol, log, "serve", request_s=HEADER_S, count_busy=False
        )
        self.open: set[BoundedConnection] = set()

    def connection(self, *arguments: Any, **options: Any) -> BoundedConnection:
        """Return a new connection; websockets calls this for each accepted socket."""
        return BoundedConnection(self, *arguments, **options)

    def check_held(self) -> None:
        """Close the largest connections while the sum of held bytes exceeds MAX_HELD_BYTES."""
        while sum(connection.held for connection in self.open) > MAX_HELD_BYTES:
            largest = max(self.open, key=lambda connection: connection.held)
            self.log(
                f"serve: expected messages of at most {MAX_HELD_BYTES >> 20} MiB in total, got "
                f"more. The connection of the client with {largest.held >> 20} MiB is closed"
            )
            largest.drop()

    async def sweep(self) -> None:
        """Close connections whose header or message times out, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.admission.sweep()
            late = time.monotonic() - MESSAGE_S
            for connection in list(self.open):
                if not connection.busy and connection.held and connection.since < late:
                    connection.drop()


class BoundedConnection(ServerConnection):
    """The connection of one client.

    Attributes:
        held: bytes of messages that are not answered yet.
        since: arrival of the first of them [s, monotonic].
        busy: whether a message is being answered.
        handler_task: task that answers; ``drop`` cancels it.
    """

    def __init__(self, bounds: Bounds, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.bounds = bounds
        self.admission_entry = Connection(bounds.admission)
        self.held = 0
        self.since = 0.0
        self.busy = False
        self.admitted = False
        self.handler_task: asyncio.Task[Any] | None = None

    def connection_made(self, transport: Any) -> None:
        """Admit or abort the connection."""
        self.admission_entry.transport = transport
        self.admission_entry.peer = (transport.get_extra_info("peername") or ("",))[0]
        self.admitted = self.bounds.admission.admit(self.admission_entry)
        if not self.admitted:
            transport.abort()
            return
        self.bounds.open.add(self)
        super().connection_made(transport)

    def opened(self) -> None:
        """Mark the WebSocket as open, so that no pending connection replaces it."""
        self.admission_entry.restart(busy=True, limit_s=math.inf)

    def data_received(self, data: bytes) -> None:
        """Count the bytes before they are stored."""
        if not self.held:
            self.since = time.monotonic()
        self.held += len(data)
        super().data_received(data)
        self._settle()
        self.bounds.check_held()

    def process_event(self, event: Any) -> None:
        """Count the object of a frame."""
        self.held += FRAME_BYTES
        super().process_event(event)

    def begin(self) -> None:
        """Mark the start of an answer."""
        self.busy = True

    def end(self, size: int) -> None:
        """Mark the end of an answer to a message of ``size`` bytes."""
        self.busy = False
        self.held, self.since = max(0, self.held - size), time.monotonic()
        self._settle()

    def _settle(self) -> None:
        """Reset the count if no message waits, so that headers and control frames do not add up."""
        waits = self.protocol.reader.buffer or len(self.recv_messages.frames)
        if not (self.busy or waits or self.protocol.current_size is not None):
            self.held = 0

    def drop(self) -> None:
        """Abort the connection and cancel its answer."""
        self.held = 0
        self.bounds.open.discard(self)
        if self.handler_task is not None:
            self.handler_task.cancel()
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the connection."""
        self.bounds.open.discard(self)
        self.bounds.admission.open.pop(self.admission_entry.transport, None)
        if self.admitted:
            super().connection_lost(error)
