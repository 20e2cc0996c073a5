"""A bounded buffer of messages in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Message:
    """One serialised message.

    Attributes:
        topic: its full name.
        kind: its type, like "rlinf_msgs/msg/TimeStep".
        at_ns: time of arrival, by a clock that nobody sets (``time.monotonic_ns``).
        raw: CDR.
        wall_ns: time of arrival by the wall clock; None if unknown.
        simulated_ns: simulated time of arrival, if time is simulated.
    """

    topic: str
    kind: str
    at_ns: int
    raw: bytes
    wall_ns: int | None = None
    simulated_ns: int | None = None

    @property
    def log_ns(self) -> int:
        """Log time of a recording: simulated time if there is one, else the wall clock [ns]."""
        return self.real_ns if self.simulated_ns is None else self.simulated_ns

    @property
    def real_ns(self) -> int:
        """Log time of a session between episodes, which have separate times [ns]."""
        return self.at_ns if self.wall_ns is None else self.wall_ns

    def at_time_of(self, other: Message) -> Message:
        """Return the same message with the times of another."""
        return replace(
            self, at_ns=other.at_ns, wall_ns=other.wall_ns, simulated_ns=other.simulated_ns
        )


class Ring:
    """The newest messages, bounded by bytes, number and age.

    A message of more than a quarter of the bytes is dropped.
    """

    def __init__(
        self, max_bytes: int, max_messages: int | None = None, seconds: float = float("inf")
    ) -> None:
        self.max_bytes = max_bytes
        self.max_messages = max_messages
        self.seconds = seconds
        self.bytes = 0
        self._messages: deque[Message] = deque()

    def add(self, message: Message) -> None:
        """Add a message, and drop those that are too old or too many."""
        if len(message.raw) > self.max_bytes // 4:
            return
        self._messages.append(message)
        self.bytes += len(message.raw)
        while self._over(message.at_ns):
            self.bytes -= len(self._messages.popleft().raw)

    def take_all(self) -> list[Message]:
        """Return all messages, oldest first, and empty the buffer."""
        messages = list(self._messages)
        self.clear()
        return messages

    def clear(self) -> None:
        """Drop all messages."""
        self._messages.clear()
        self.bytes = 0

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def _over(self, now_ns: int) -> bool:
        return (
            self.bytes > self.max_bytes
            or (self.max_messages is not None and len(self._messages) > self.max_messages)
            or now_ns - self._messages[0].at_ns > self.seconds * 1e9
        )
