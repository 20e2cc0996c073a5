"""A blocking client of ``rlinf serve`` and of openpi's server."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.protocol import State
from websockets.typing import Data
from websockets.uri import parse_uri

from rlinf_core.core.errors import RefusedRequestError, ServingError, escape_ascii
from rlinf_core.deploy.serving import access
from rlinf_core.deploy.serving.protocol import MAX_BYTES, pack, unpack

Result = TypeVar("Result")


class PolicyClient:
    """A connection to a policy server. It connects in the constructor.

    One thread does all reading and writing. OpenSSL allows no read beside a write on the same
    connection. The blocking client of websockets 17.4 reads in a thread of its own; over TLS on a
    busy machine it lost 4 of 1,580 requests.

    Args:
        address: ``ws://host:port``, or ``wss://host:port`` for TLS.
        timeout_s: timeout of the connection, of sending and of each answer [s].
        key: API key of the server; empty for none.
        authority: file of trusted certificates; empty uses those of the machine.

    Attributes:
        metadata: metadata that the server sent.

    Raises:
        ServingError: no policy server listens there.
    """

    def __init__(self, address: str, timeout_s: float, key: str = "", authority: str = "") -> None:
        self.address, self.timeout_s = address, timeout_s
        tls = access.client_context(authority) if address.startswith("wss:") else None
        self._socket: ClientConnection | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="policy client", daemon=True
        )
        self._thread.start()
        try:
            try:
                uri = parse_uri(address)
                at = socket.create_connection((uri.host, uri.port), timeout_s)
                self._socket = self._run(self._opened(at, tls, key))
            except (OSError, WebSocketException) as error:
                raise ServingError(
                    f"policy server {address}: expected an answer, got {_error_text(error)}. Start "
                    "it: rlinf serve POLICY"
                ) from error
            self.metadata = self._read(self._run(self._message()))
        except BaseException:
            self.close()
            raise

    def infer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send an observation and return the answer.

        Raises:
            RefusedRequestError: the server refused the observation; the text has its reason.
            ServingError: no answer came, and the connection is unusable.
        """
        return self._read(self._run(self._exchange(pack(message))))

    @property
    def open(self) -> bool:
        """Whether the connection is open, as far as this end knows."""
        return self._socket is not None and self._socket.state is State.OPEN

    def close(self) -> None:
        """Close the connection."""
        if self._loop.is_closed():
            return
        if self._socket is not None:
            self._run(self._socket.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the connection's thread and wait for it."""
        if self._loop.is_closed():
            coroutine.close()
            raise ServingError(
                f"policy server {self.address}: expected an open connection, got a closed one"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _opened(
        self, at: socket.socket, tls: ssl.SSLContext | None, key: str
    ) -> ClientConnection:
        """Open a WebSocket over a TCP connection."""
        return await connect(
            self.address,
            sock=at,
            compression=None,
            max_size=MAX_BYTES,
            open_timeout=self.timeout_s,
            proxy=None,
            close_timeout=0.2,
            ssl=tls,
            additional_headers={access.HEADER: access.SCHEME + key} if key else None,
        )

    async def _exchange(self, data: bytes) -> Data:
        """Send an observation and return the server's message."""
        assert self._socket is not None
        try:
            await asyncio.wait_for(self._socket.send(data), self.timeout_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            self._socket.transport.abort()  # a part of the message is sent
            await self._socket.wait_closed()
            raise ServingError(
                f"policy server {self.address}: expected it to accept an observation within "
                f"{self.timeout_s:g} s, got no room for it"
            ) from error
        except WebSocketException as error:
            raise ServingError(
                f"policy server {self.address}: expected it to stay connected, got "
                f"{_error_text(error)}"
            ) from error
        return await self._message()

    async def _message(self) -> Data:
        """Return the server's next message."""
        assert self._socket is not None
        try:
            return await asyncio.wait_for(self._socket.recv(), self.timeout_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise ServingError(
                f"policy server {self.address}: expected an answer within {self.timeout_s:g} s, "
                "got none"
            ) from error
        except WebSocketException as error:
            raise ServingError(
                f"policy server {self.address}: expected an answer, got {_error_text(error)}"
            ) from error

    def _read(self, data: Data) -> dict[str, Any]:
        if isinstance(data, str):
            raise RefusedRequestError(
                f"policy server {self.address}: {escape_ascii(data.strip())[-600:]}"
            )
        return unpack(data)


def _error_text(error: Exception) -> str:
    return f"'{escape_ascii(error)}'" if str(error) else type(error).__name__
