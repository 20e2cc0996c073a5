"""The websocket server of policies: isolates clients' errors, and swaps versions between episodes.

``Metrics`` counts requests and latencies, for a log line and for Prometheus.
"""

from __future__ import annotations

import asyncio
import http
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from ssl import SSLContext
from typing import Any

from prometheus_client.metrics_core import Metric
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from rlinf_core.core import metrics
from rlinf_core.core.connections import ACCEPTED_AT_ONCE, LimitedLog, deepen_backlog
from rlinf_core.core.errors import EngineError, ServingError, SpecError, escape_ascii
from rlinf_core.core.metrics import Durations, family
from rlinf_core.deploy.serving import access
from rlinf_core.deploy.serving.batching import Batcher
from rlinf_core.deploy.serving.bounded import HEADER_S, BoundedConnection, Bounds
from rlinf_core.deploy.serving.protocol import MAX_BYTES, pack, read_request, unpack
from rlinf_core.deploy.serving.weights import Version, Weights


class Metrics:
    """Counts since the start, and the latencies of the newest thousand requests."""

    def __init__(self) -> None:
        self.refused = self.swaps = self.clients = self.version = 0
        self.batches: Counter[int] = Counter()  # number of batches by size
        self.latencies = Durations()
        self._last_requests = 0

    def answered(self, latency_s: float, batch: int) -> None:
        """Count an answered request. A batch is counted once by each of its requests."""
        self.batches[batch] += 1
        self.latencies.note(latency_s)

    @property
    def requests(self) -> int:
        """Number of answered requests."""
        return self.latencies.count

    @property
    def batch(self) -> float:
        """Mean number of requests in a batch."""
        count = sum(requests / size for size, requests in self.batches.items())
        return self.requests / count if count else 0.0

    def line(self, seconds: float) -> str:
        """Describe the ``seconds`` since the last line; empty if nothing happened."""
        done = self.requests - self._last_requests
        self._last_requests = self.requests
        if not done:
            return ""
        p50, p99 = 1e3 * self.latencies.quantiles()
        return (
            f"version {self.version}: {self.clients} clients, {done / seconds:.1f} requests/s, "
            f"batches of {self.batch:.1f}, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {self.refused} "
            "refused"
        )

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return metrics.prometheus_text(self._families)

    def _families(self) -> Iterator[Metric]:
        yield family(
            "rlinf_serve_requests", "counter", "number of answered observations", self.requests
        )
        yield family("rlinf_serve_refused", "counter", "number of refused requests", self.refused)
        yield family("rlinf_serve_swaps", "counter", "number of loaded newer versions", self.swaps)
        yield family("rlinf_serve_clients", "gauge", "number of connected clients", self.clients)
        yield family("rlinf_serve_version", "gauge", "newest policy version", self.version)
        yield family(
            "rlinf_serve_batches",
            "counter",
            "number of batches, by size",
            [
                ({"size": str(size)}, requests // size)
                for size, requests in sorted(self.batches.items())
            ],
        )
        yield self.latencies.family(
            "rlinf_serve_latency_seconds", "time from a request to its answer"
        )


MAX_CLIENTS = 64
MAX_UNPACKING = 2  # largest number of messages that are unpacked at a time
# largest message that is unpacked in the event loop, with a single client
INLINE_BYTES = 1 << 20
POLL_S, REPORT_S = 1.0, 10.0
SILENT_S = 1.0  # with MAX_CLIENTS connections, a new client replaces one that was silent this long
ACTIVE_S = 1.0  # a batch does not wait for a client that was silent this long
CLOSE_S = 1.0  # time for clients to confirm the close of their connection


class Client:
    """One connection, with the policy version of its episode and the time of its last answer."""

    def __init__(self, connection: BoundedConnection, newest: Version) -> None:
        self.connection, self.version = connection, newest
        self.since = time.monotonic()  # time of its last message
        self.episode = ""
        self.requested_at = 0.0
        self.total_s = 0.0

    def begin(self, episode: str, newest: Version) -> Version:
        """Return the version that plays this episode.

        Without an episode's name it is the newest version.
        """
        if not episode or episode != self.episode:
            self.episode, self.version = episode, newest
        return self.version


class PolicyServer:
    """Answers observations with action chunks.

    Args:
        weights: the served policy; it looks for a newer version every second.
        max_batch: largest number of requests in a batch.
        max_wait_s: longest wait of a request for others of its batch [s].
        log_line: receives log lines.
        key: API key that a client must send (``access``); empty for none.
        tls: TLS context of the socket; None for none.
    """

    def __init__(
        self,
        weights: Weights,
        max_batch: int,
        max_wait_s: float,
        log_line: Callable[[str], None],
        key: str = "",
        tls: SSLContext | None = None,
    ) -> None:
        self.weights = weights
        self.log_line = log_line
        self.metrics = Metrics()
        self.key = key
        self.tls = tls
        self.clients: set[Client] = set()
        self.log = LimitedLog(log_line, "serve")
        self.bounds = Bounds(self.log)
        self.unpacking = asyncio.Semaphore(MAX_UNPACKING)
        self.batcher = Batcher(
            lambda kind, requests: kind[0].answers(requests),
            max_batch,
            max_wait_s,
            self._connection_count,
        )

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while the block runs; yields the port, which 0 leaves to the system."""
        self.metrics.version = self.weights.newest.number
        logger = logging.Logger("rlinf.serve", logging.WARNING)
        logger.addHandler(self.log)
        try:
            # connections from a page in a browser (with an origin) are refused
            server = await serve(
                self._handle,
                host,
                port,
                compression=None,
                max_size=MAX_BYTES,
                max_queue=1,
                ssl=self.tls,
                open_timeout=HEADER_S,
                logger=logger,
                backlog=ACCEPTED_AT_ONCE,
                create_connection=self.bounds.connection,  # type: ignore[arg-type]
                origins=[None],
                process_request=self._http,
            )
        except OSError as error:
            raise ServingError(
                f"serve: cannot listen on {host}:{port}: {error.strerror}. Stop the program on "
                "that port, or choose another with --port",
                code="RL-E205",
            ) from error
        deepen_backlog(server)
        self.bounds.admission.listening = True
        tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (self._poll(), self._report(), self.bounds.sweep())
        ]
        self.batcher.start()
        try:
            yield _port(server)
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            self.batcher.close()
            await asyncio.wait([asyncio.create_task(server.wait_closed())], timeout=CLOSE_S)

    def _connection_count(self) -> int:
        since = time.monotonic() - ACTIVE_S
        return sum(client.requested_at > since for client in self.clients)

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, BoundedConnection)
        client = Client(connection, self.weights.newest)
        connection.handler_task = asyncio.current_task()
        connection.opened()
        self.clients.add(client)
        self.metrics.clients = len(self.clients)
        try:
            await connection.send(pack(client.version.metadata))
            async for message in connection:
                connection.begin()
                try:
                    await self._answer(client, message)
                finally:
                    client.since = time.monotonic()
                    connection.end(len(message))
        except ConnectionClosed:
            pass
        except asyncio.CancelledError:
            if connection in self.bounds.open:  # not dropped: the server ends
                raise
        finally:
            self.clients.discard(client)
            self.metrics.clients = len(self.clients)

    async def _answer(self, client: Client, message: str | bytes) -> None:
        """Send the answer; an error is a text, as from openpi's server.

        A client that speaks no msgpack is disconnected.
        """
        started = time.monotonic()
        try:
            await client.connection.send(pack(await self._infer(client, message, started)))
            client.total_s = time.monotonic() - started
        except ServingError as error:
            await self._refuse(client, error)
            await client.connection.close(CloseCode.UNSUPPORTED_DATA, "expected openpi's protocol")
        except (SpecError, EngineError) as error:
            await self._refuse(client, error)
        except ConnectionClosed:
            raise
        except Exception as error:  # a policy may raise anything
            self.log_line(f"a request failed: {type(error).__name__}: {escape_ascii(error)}")
            await self._refuse(
                client, f"inference failed: {type(error).__name__}: {escape_ascii(error)}"
            )

    async def _infer(self, client: Client, message: str | bytes, started: float) -> dict[str, Any]:
        if isinstance(message, str):
            raise ServingError("message: expected a map in msgpack, got a text")
        version = self.weights.newest
        if len(self.clients) == 1 and len(message) <= INLINE_BYTES:
            # no other client waits, and the change of threads would cost as much as the call
            observation = unpack(message)
        else:
            async with self.unpacking:  # off the event loop: other clients are answered meanwhile
                observation = await asyncio.to_thread(unpack, message)
        request = read_request(version.policy.spec, observation, version.needs_instruction)
        client.requested_at, version = started, client.begin(request.episode, version)
        done = await self.batcher.submit(version.kind(request), request)
        answer: dict[str, Any] = done.request
        answer["server_timing"] = {
            "infer_ms": 1e3 * done.took_s,
            "wait_ms": 1e3 * (done.started_at - done.since),
            "batch": done.size,
        } | ({"prev_total_ms": 1e3 * client.total_s} if client.total_s else {})
        self.metrics.answered(time.monotonic() - started, done.size)
        return answer

    async def _refuse(self, client: Client, error: object) -> None:
        self.metrics.refused += 1
        await client.connection.send(str(error))

    def _http(self, connection: ServerConnection, request: HttpRequest) -> Response | None:
        """Answer requests for openpi's /healthz page, which needs no key.

        None passes the connection on to the WebSocket.
        """
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if not access.is_allowed(self.key, request.headers.get(access.HEADER)):
            self.metrics.refused += 1
            self.log("serve: refused a client without the right API key")
            return connection.respond(
                http.HTTPStatus.UNAUTHORIZED,
                f"expected '{access.HEADER}: {access.SCHEME}<key>' with this server's API key, "
                "got another or none\n",
            )
        if request.path == "/metrics":
            return connection.respond(http.HTTPStatus.OK, self.metrics.text())
        if len(self.clients) >= MAX_CLIENTS and not self._make_room():
            return connection.respond(
                http.HTTPStatus.SERVICE_UNAVAILABLE, f"expected at most {MAX_CLIENTS} clients\n"
            )
        return None

    def _make_room(self) -> bool:
        """Close the client that was silent for longest, if that is longer than SILENT_S."""
        idle = [client for client in self.clients if not client.connection.busy]
        oldest = min(idle, key=lambda client: client.since, default=None)
        if oldest is None or time.monotonic() - oldest.since < SILENT_S:
            return False
        self.clients.discard(oldest)
        oldest.connection.drop()
        return True

    async def _poll(self) -> None:
        """Load and warm up newer versions in a thread, while the current one is served."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                self.metrics.swaps += await asyncio.to_thread(
                    self.weights.load_newer, self.log_line
                )
            except Exception as error:  # the folder may be gone for a while
                self.log_line(
                    f"version {self.weights.newest.number} is still served: {escape_ascii(error)}"
                )
                await asyncio.sleep(REPORT_S)
            self.metrics.version = self.weights.newest.number

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            if line := self.metrics.line(REPORT_S):
                self.log_line(line)


def _port(server: Server) -> int:
    port: int = next(iter(server.sockets)).getsockname()[1]
    return port


async def serve_until_cancelled(
    server: PolicyServer,
    host: str,
    port: int,
    ready: Callable[[int], None],
    other: AbstractAsyncContextManager[object] | None = None,
) -> None:
    """Serve until this task is cancelled.

    Args:
        server: the server.
        host: address to listen on.
        port: TCP port; 0 for a free one.
        ready: called with the port once the server listens.
        other: serves another protocol at the same time.
    """
    with suppress(asyncio.CancelledError):
        async with server.listening(host, port) as at, other or nullcontext():
            ready(at)
            await asyncio.Event().wait()
