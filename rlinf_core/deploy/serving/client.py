"""A blocking client of ``rlinf serve`` and of openpi's server."""

from __future__ import annotations

import math
import socket
import struct
from typing import Any

from websockets.exceptions import InvalidURI, WebSocketException
from websockets.protocol import State
from websockets.sync.client import connect

from rlinf_core.core.errors import RefusedRequestError, ServingError, escape_ascii
from rlinf_core.deploy.serving import access
from rlinf_core.deploy.serving.protocol import MAX_BYTES, packed, unpacked


class PolicyClient:
    """A connection to a policy server. It connects in the constructor.

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
        try:
            self._socket = connect(
                address,
                compression=None,
                max_size=MAX_BYTES,
                open_timeout=timeout_s,
                proxy=None,
                close_timeout=0.2,
                ssl=tls,
                additional_headers={access.HEADER: access.SCHEME + key} if key else None,
            )
        except (OSError, WebSocketException, InvalidURI) as error:
            raise ServingError(
                f"policy server {address}: expected an answer, got {_error_text(error)}. Start it: "
                "rlinf serve POLICY"
            ) from error
        try:
            self.metadata = self._received()
            self._socket.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s)
            )
        except ServingError:
            self.close()
            raise

    def infer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send an observation and return the answer.

        Raises:
            RefusedRequestError: the server refused the observation; the text has its reason.
            ServingError: no answer came, and the connection is unusable.
        """
        try:
            self._socket.send(packed(message))
        except WebSocketException as error:
            late = isinstance(error.__cause__, BlockingIOError)  # of SO_SNDTIMEO
            expected = (
                f"expected it to accept an observation within {self.timeout_s:g} s"
                if late
                else "expected it to stay connected"
            )
            raise ServingError(
                f"policy server {self.address}: {expected}, got {_error_text(error)}"
            ) from error
        return self._received()

    @property
    def open(self) -> bool:
        """Whether the connection is open, as far as this end knows."""
        return self._socket.state is State.OPEN

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _received(self) -> dict[str, Any]:
        try:
            data = self._socket.recv(timeout=self.timeout_s)
        except TimeoutError as error:
            raise ServingError(
                f"policy server {self.address}: expected an answer within {self.timeout_s:g} s, "
                f"got "
                "none"
            ) from error
        except WebSocketException as error:
            raise ServingError(
                f"policy server {self.address}: expected an answer, got {_error_text(error)}"
            ) from error
        if isinstance(data, str):
            raise RefusedRequestError(
                f"policy server {self.address}: {escape_ascii(data.strip())[-600:]}"
            )
        return unpacked(data)


def _timeval(seconds: float) -> bytes:
    """Return a ``struct timeval`` of Linux."""
    return struct.pack(
        "@ll", *divmod(math.ceil(seconds * 1e6), 1_000_000)
    )  # never 0, which means no timeout


def _error_text(error: Exception) -> str:
    return f"'{escape_ascii(error)}'" if str(error) else type(error).__name__
