"""The line between the interlock and its desk: whole JSON objects, bounded in size, and nobody ever waits to say one."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from typing import Any

MAX_BYTES = 60_000
TAKEN_S = 3.0   # what is not done so long after it was asked for is refused; the desk waits longer
ROBOTS_OWN = "robot's own; "  # begins the answer to a reset that nothing but the robot's own fault forbids
Message = dict[str, Any]


class Channel:
    """One end. What does not fit into the line is lost and counted: the control loop waits for nobody.

    Args:
        end: of a socket pair of kind SOCK_SEQPACKET.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end, self.lost, self.open = end, 0, True
        end.setblocking(False)

    def send(self, message: Message) -> bool:
        """Whether it is on its way."""
        raw = json.dumps(message).encode()
        if self.open and len(raw) <= MAX_BYTES:
            with contextlib.suppress(BlockingIOError):
                try:
                    self._end.send(raw)
                    return True
                except (BrokenPipeError, ConnectionError):
                    self.open = False
        self.lost += 1
        return False

    def receive(self, limit: int = 20) -> list[Message]:
        """What has come, up to so many messages."""
        messages: list[Message] = []
        while self.open and len(messages) < limit:
            try:
                raw = self._end.recv(MAX_BYTES + 1)
            except BlockingIOError:
                break
            except ConnectionError:
                raw = b""
            if raw:
                messages.append(json.loads(raw))
            else:
                self.open = False
        return messages

    def wait(self, seconds: float) -> None:
        """Until something has come, or so long."""
        select.select([self._end], [], [], seconds)

    def close(self) -> None:
        """Hang up."""
        self.open = False
        self._end.close()
