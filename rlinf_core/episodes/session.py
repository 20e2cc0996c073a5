"""Record the messages of a station's session that belong to no episode, within bounds.

The session is cut into parts. Each part is closed and sealed like an episode; the oldest are
removed for the next. A topic with repetitive messages is recorded when its content changes, and
every STEADY_S. Each part begins with the latched messages. It can therefore be understood alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import SpoolError
from rlinf_core.episodes.messages import typestore
from rlinf_core.episodes.names import time_stamp
from rlinf_core.episodes.ring import Message
from rlinf_core.episodes.spool import EpisodeWriter, Spool
from rlinf_core.specs import topics
from rlinf_core.specs.topics import SESSION

ROS_TOPICS = {
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
    "/parameter_events": "rcl_interfaces/msg/ParameterEvent",
}
STEADY_S = 10.0
PART_BYTES, PART_S = 16 << 20, 3600.0  # size and duration at which the next part begins
RETRY_S = 10.0  # pause after the disk has refused


class Session:
    """A station's session, recorded in parts.

    Parts lie in ``root/closed``, ``root/open`` (being written) and ``root/broken`` (cut short).

    Args:
        root: their folder, made if absent.
        station: the station's name, a prefix of the parts' names.
        max_gb: size of all parts; 0 records none.
        attachments: returns the attachments of each part, by name.
        trouble: called with an error of the disk; nothing is raised.
    """

    def __init__(
        self,
        root: Path,
        station: str,
        max_gb: float,
        attachments: Callable[[], dict[str, bytes]],
        trouble: Callable[[Exception], None],
    ) -> None:
        self.root = root
        self.station = station
        self.max_gb = max_gb
        self.attachments = attachments
        self.trouble = trouble
        self.part_bytes = min(PART_BYTES, int(max_gb * 1e9 / 4))
        self.parts = 0
        self.is_closed = max_gb <= 0
        # time.monotonic() at the end of this part, or of the pause before the next
        self._deadline = 0.0
        self._spool: Spool | None = None
        self._writer: EpisodeWriter | None = None
        # by topic and publisher: content, and time when it was recorded [ns]
        self._last_statements: dict[tuple[str, str], tuple[Any, int]] = {}
        self._latched: dict[str, Message] = {}

    def take(self, name: str, message: Message) -> None:
        """Take the next message of a topic.

        Args:
            name: name of the topic in the robot interface, or one of ROS_TOPICS.
            message: the serialised message.
        """
        try:
            if not self.is_closed and (self._writer or time.monotonic() >= self._deadline):
                self._take(name, message)
        except (SpoolError, OSError) as error:
            self._give_up(error)
        if name not in ROS_TOPICS and topics.topic(name).latched:
            self._latched[message.topic] = message

    def close(self) -> None:
        """End the session."""
        self.is_closed = True
        try:
            self._end()
        except (SpoolError, OSError) as error:
            self._give_up(error)

    def _take(self, name: str, message: Message) -> None:
        if self._writer is None:
            self._begin(message)
        if self._is_new(name, message):
            self._write(message)
        if self._writer and (
            self._writer.bytes >= self.part_bytes or time.monotonic() >= self._deadline
        ):
            self._end()

    def _begin(self, first: Message) -> None:
        if self._spool is None:
            self._spool = Spool(self.root, max_gb=self.max_gb, kind=SESSION)
            self._spool.attachments = self.attachments
            self._spool.recover()
        self._spool.forget("closed", "broken", needed=self.part_bytes)
        self.parts += 1
        self._writer = self._spool.open_episode(
            f"{self.station}-session-{time_stamp()}-{self.parts:03d}"
        )
        self._deadline = time.monotonic() + PART_S
        self._last_statements.clear()
        for message in self._latched.values():
            self._write(message.at_time_of(first))

    def _write(self, message: Message) -> None:
        assert self._writer
        self._writer.write(message.topic, message.kind, message.real_ns, message.raw)

    def _end(self) -> None:
        if self._writer:
            self._writer.close()
        self._writer = None
        self._deadline = 0.0

    def _give_up(self, error: Exception) -> None:
        writer = self._writer
        self._writer = None
        self._spool = None
        self._deadline = time.monotonic() + RETRY_S
        with contextlib.suppress(SpoolError):
            if writer:
                writer.abort()
        self.trouble(error)

    def _is_new(self, name: str, message: Message) -> bool:
        """Return True if the message has content that was not recorded lately."""
        is_new = False
        for source, statement in statements(name, message):
            before, at_ns = self._last_statements.get((message.topic, source), (None, 0))
            if (
                statement is None
                or statement != before
                or not 0 <= message.at_ns - at_ns < STEADY_S * 1e9
            ):
                self._last_statements[message.topic, source] = statement, message.at_ns
                is_new = True
        return is_new


def statements(name: str, message: Message) -> Iterator[tuple[str, Any]]:
    """Yield the publisher and content of a message; content None records every message."""
    try:
        fields = topics.topic(name).session if name not in ROS_TOPICS else ()
        if name == "/diagnostics":
            yield from [
                (status.name, (status.level, status.message))
                for status in typestore().deserialize_cdr(message.raw, message.kind).status
            ]
        elif fields:
            content = typestore().deserialize_cdr(message.raw, message.kind)
            yield "", tuple(getattr(content, field) for field in fields)
        else:
            yield "", None
    except Exception:  # a broken message may raise anything; it is kept unchanged
        yield "", None
