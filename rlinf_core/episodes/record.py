"""Turn a stream of messages into episodes in a spool, in a thread that may wait for the disk.

``Session`` records the messages that belong to no episode, within bounds. The session is cut into
parts. Each part is closed and sealed like an episode; the oldest are removed for the next. A topic
with repetitive messages is recorded when its content changes, and every STEADY_S. Each part begins
with the latched messages. It can therefore be understood alone.
"""

from __future__ import annotations

import contextlib
import queue
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import SpoolError
from rlinf_core.episodes.messages import ABORTED, CLOSED, ENDED, STARTED, typestore
from rlinf_core.episodes.names import time_stamp
from rlinf_core.episodes.ring import Message, Ring
from rlinf_core.episodes.spool import EpisodeWriter, Spool
from rlinf_core.specs import topics
from rlinf_core.specs.topics import SESSION

# Wait for the missing messages of an ended episode, because topics are not ordered. It begins with
# the interlock's state of the last time step.
GRACE_S = 0.5
SILENT_S = 5.0  # longest wait for that state, which comes late on a busy machine
# motion before a scene is ready, such as homing, belongs to no episode
EARLY = 64
EARLY_BYTES = 64 << 20
EARLY_S = 1.0
WAITING_BYTES = 256 << 20
NAMED = 512  # leading bytes of a TimeStep that contain its episode id
LOOK_S = 0.05
REST_S = 0.01
# metadata key prefix before a topic; the value counts time steps without a new message of it
MISSED = "missed "
HELD = "the interlock applied no action: the arm had no commander or was held all the time"


class Recording:
    """Assignment of messages to episodes.

    Args:
        spool: destination of the episodes.
        publish_event: called with CLOSED or ABORTED, the episode's id, its last event,
            the reason.
        arms: number of arms that apply each action.
        cameras: full names of the image topics of each time step; missed images are counted.
        observed: likewise, other topics; their misses are only noted.
        sampled: likewise, topics that not every station has; they count if at least one message
            came.
    """

    def __init__(
        self,
        spool: Spool,
        publish_event: Callable[[int, str, Any, str], None],
        arms: int = 1,
        cameras: Sequence[str] = (),
        observed: Sequence[str] = (),
        sampled: Sequence[str] = (),
    ) -> None:
        self.spool = spool
        self.publish_event = publish_event
        self.arms = arms
        self.cameras = cameras
        self.observed, self.sampled = observed, sampled
        # True while somebody holds the last time step back for later; the grace period then waits
        self.held = False
        # messages of this episode by topic, and images missed in all closed ones
        self.counts = Counter[str]()
        self.missed = 0
        # topics are not ordered: data may beat STARTED
        self.early = Ring(EARLY_BYTES, EARLY, EARLY_S)
        self.writer: EpisodeWriter | None = None
        self.ended: Any = None
        self.ended_ns = self.steps = self.applied = 0
        self.stamps: deque[int] = deque(maxlen=3)  # stamps of the last time steps
        self.applied_ns: dict[str, int] = {}  # start of the newest action by topic, and so by arm
        self.safety_ns: dict[str, int] = {}  # stamp of the newest safety state, likewise
        # time when the newest safety state of each arm was of the last time step; 0: not yet
        self.grace_since_ns = 0

    def take(self, message: Message, event: Any = None) -> None:
        """Take the next message.

        Args:
            message: the serialised message.
            event: its content, if it is an EpisodeEvent.
        """
        if event is not None and event.kind == STARTED:
            self._open(event.episode_id)
        if self.writer is not None:
            self._write(message)
        else:
            self.early.add(message)
        if (
            event is not None
            and self.writer is not None
            and event.episode_id == self.writer.episode_id
        ):
            if event.kind == ENDED:
                self.ended = event
                self.ended_ns = message.at_ns
            elif event.kind == ABORTED:
                self.abort(event.detail, publish_event=False)
        self._close_if_complete()
        self.look(message.at_ns)

    def look(self, now_ns: int) -> None:
        """Close an ended episode after a short grace, or abort it if messages were lost.

        Some actions are never applied if the arm was held, so the wait must end. The grace begins
        once each interlock's state of the last time step has come: its actions are then due.
        """
        if self.held or self.ended is None:
            return
        if not self.grace_since_ns and self._is_recent(self.safety_ns):
            self.grace_since_ns = now_ns
        since_ns, wait_s = (
            (max(self.ended_ns, self.grace_since_ns), GRACE_S)
            if self.grace_since_ns
            else (self.ended_ns, SILENT_S)
        )
        if now_ns - since_ns <= wait_s * 1e9:
            return
        if self.steps <= self.ended.steps:
            self.abort(
                f"expected {self.ended.steps + 1} time steps, got {self.steps}; messages were lost"
            )
        elif not self.applied:
            self.abort(f"{HELD}. rlinf status shows the reason")
        else:
            self._close()

    def abort(self, reason: str, publish_event: bool = True) -> None:
        """Set the current episode aside, if there is one."""
        writer = self.writer
        self.writer = None
        self.ended = None
        if writer is None:
            return
        try:
            writer.abort()
        except SpoolError as error:
            reason = f"{reason}; its recording could not be moved to broken/: {error}"
        if publish_event:
            self.publish_event(ABORTED, writer.episode_id, None, reason)

    def _open(self, episode_id: str) -> None:
        self.abort("the next episode began before this one ended")
        self.steps = self.applied = self.grace_since_ns = 0
        self.counts.clear()
        self.stamps.clear()
        self.applied_ns.clear()
        self.safety_ns.clear()
        try:
            self.writer = self.spool.open_episode(episode_id)
        except SpoolError as error:
            self.publish_event(ABORTED, episode_id, None, str(error))
            return
        for message in self.early.take_all():
            self._write(message)

    def _write(self, message: Message) -> None:
        if self.writer is None:
            return
        if message.kind.endswith("/TimeStep"):
            if self.writer.episode_id.encode() not in message.raw[:NAMED]:
                return  # a step of the last episode, which was given up meanwhile
            self.steps += 1
            self.stamps.append(_stamp_ns(message.raw))
        elif message.kind.endswith("/Applied"):
            self.applied += 1
            _keep_newest(self.applied_ns, message)
        elif message.kind.endswith("/SafetyState"):
            _keep_newest(self.safety_ns, message)
        self.counts[message.topic.removesuffix("/compressed")] += 1
        try:
            self.writer.write(message.topic, message.kind, message.log_ns, message.raw)
        except SpoolError as error:
            self.abort(str(error))

    def _close_if_complete(self) -> None:
        if self.ended is None:
            return
        if (
            self.steps >= self.ended.steps + 1
            and self.applied >= self.arms * self.ended.steps
            and self._is_recent(self.applied_ns)
        ):
            self._close()

    def _is_recent(self, newest_ns: dict[str, int]) -> bool:
        """Return True if each arm has a stamp within the last time step.

        For actions, counting is not enough: one step may have two. The stamps are compared like a
        reader does (``played_chunks.steps_of``).
        """
        *before, last, _ = self.stamps if len(self.stamps) > 1 else (0, 0)
        begins = last - (last - before[-1]) // 4 if before else last
        return sum(at >= begins for at in newest_ns.values()) >= self.arms

    def _close(self) -> None:
        event, writer = self.ended, self.writer
        self.ended = self.writer = None
        self.early.clear()
        if writer is None:
            return
        missed = self._missed()
        writer.note(
            {
                f"{MISSED}{topic}": str(count)
                for topic, count in missed.items()
                if count or topic in self.cameras
            }
        )
        try:
            writer.close()
        except SpoolError as error:
            self.writer = writer
            self.abort(str(error))
            return
        self.missed += sum(missed[topic] for topic in self.cameras)
        self.publish_event(CLOSED, writer.episode_id, event, "")

    def _missed(self) -> dict[str, int]:
        """Count the time steps without a new message, for each topic that comes with time steps."""
        received = [topic for topic in self.sampled if self.counts[topic]]
        counted = dict.fromkeys((*self.cameras, *self.observed, *received))
        return {topic: max(0, self.steps - self.counts[topic]) for topic in counted}


def _stamp_ns(raw: bytes) -> int:
    """Return the stamp of a message's header in CDR [ns].

    Seconds and nanoseconds follow the four bytes of the encapsulation.
    """
    seconds, nanoseconds = struct.unpack_from("<iI" if raw[1] & 1 else ">iI", raw, 4)
    return seconds * 1_000_000_000 + nanoseconds


def _keep_newest(newest_ns: dict[str, int], message: Message) -> None:
    newest_ns[message.topic] = max(newest_ns.get(message.topic, 0), _stamp_ns(message.raw))


class Worker:
    """One thread that handles items in order, however long the disk takes.

    It rests for REST_S between batches of items. A wake-up for each item would take the
    interpreter from the publishing thread each time.

    Args:
        handle: called with each item.
        look: called after LOOK_S without an item.
        trouble: called with an exception of ``handle`` or ``look``.
        max_bytes: size of the queue; further items are refused.
    """

    def __init__(
        self,
        handle: Callable[[Any], None],
        look: Callable[[], None],
        trouble: Callable[[Exception], None],
        max_bytes: int = WAITING_BYTES,
    ) -> None:
        self._handle = handle
        self._poll = look
        self._trouble = trouble
        self.max_bytes = max_bytes
        self._queue: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._urgent: queue.SimpleQueue[None] = queue.SimpleQueue()  # ends the rest
        self._lock = threading.Lock()
        self._waiting = self._bytes = 0
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether everything has been handled and ``look`` is not running."""
        return self._waiting == 0

    @property
    def bytes(self) -> int:
        """Bytes in the queue."""
        return self._bytes

    def put(self, item: Any, size: int, anyway: bool = False, urgent: bool = False) -> bool:
        """Queue an item of ``size`` bytes; return False if the queue is full and not ``anyway``.

        An ``urgent`` item ends the thread's rest.
        """
        with self._lock:
            if self._bytes + size > self.max_bytes and not anyway:
                return False
            self._waiting += 1
            self._bytes += size
        self._queue.put((item, size))
        if urgent:
            self._urgent.put(None)
        return True

    def _run(self) -> None:
        while True:
            try:
                item, size = self._queue.get(timeout=LOOK_S)
            except queue.Empty:
                self._count(1, 0)
                self._try(self._poll)
                self._count(-1, 0)
                continue
            self._try(self._handle, item)
            self._count(-1, -size)
            if self._queue.empty():
                self._rest()

    def _rest(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._urgent.get(timeout=REST_S)
            while True:
                self._urgent.get_nowait()

    def _count(self, items: int, size: int) -> None:
        with self._lock:
            self._waiting += items
            self._bytes += size

    def _try(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # a failure of one message must not stop the next
            self._trouble(error)


OF_ROS = {
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
    "/parameter_events": "rcl_interfaces/msg/ParameterEvent",
}
STEADY_S = 10.0
PART_BYTES, PART_S = 16 << 20, 3600.0  # size and duration at which the next part begins
AGAIN_S = 10.0  # pause after the disk has refused


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
        self.over = max_gb <= 0
        # time.monotonic() at the end of this part, or of the pause before the next
        self.until = 0.0
        self._spool: Spool | None = None
        self._writer: EpisodeWriter | None = None
        # by topic and publisher: content, and time when it was recorded [ns]
        self._last_statements: dict[tuple[str, str], tuple[Any, int]] = {}
        self._latched: dict[str, Message] = {}

    def take(self, name: str, message: Message) -> None:
        """Take the next message of a topic by its name in the robot interface, or of one of
        OF_ROS.
        """
        try:
            if not self.over and (self._writer or time.monotonic() >= self.until):
                self._take(name, message)
        except (SpoolError, OSError) as error:
            self._give_up(error)
        if name not in OF_ROS and topics.topic(name).latched:
            self._latched[message.topic] = message

    def close(self) -> None:
        """End the session."""
        self.over = True
        try:
            self._end()
        except (SpoolError, OSError) as error:
            self._give_up(error)

    def _take(self, name: str, message: Message) -> None:
        if self._writer is None:
            self._begin(message)
        if self._news(name, message):
            self._write(message)
        if self._writer and (
            self._writer.bytes >= self.part_bytes or time.monotonic() >= self.until
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
        self.until = time.monotonic() + PART_S
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
        self.until = 0.0

    def _give_up(self, error: Exception) -> None:
        writer = self._writer
        self._writer = None
        self._spool = None
        self.until = time.monotonic() + AGAIN_S
        with contextlib.suppress(SpoolError):
            if writer:
                writer.abort()
        self.trouble(error)

    def _news(self, name: str, message: Message) -> bool:
        """Return True if the message has content that was not recorded lately."""
        news = False
        for source, statement in statements(name, message):
            before, at_ns = self._last_statements.get((message.topic, source), (None, 0))
            if (
                statement is None
                or statement != before
                or not 0 <= message.at_ns - at_ns < STEADY_S * 1e9
            ):
                self._last_statements[message.topic, source] = statement, message.at_ns
                news = True
        return news


def statements(name: str, message: Message) -> Iterator[tuple[str, Any]]:
    """Yield the publisher and content of a message; content None records every message."""
    try:
        fields = topics.topic(name).session if name not in OF_ROS else ()
        if name == "/diagnostics":
            yield from [
                (status.name, (status.level, status.message))
                for status in typestore().deserialize_cdr(message.raw, message.kind).status
            ]
        elif fields:
            read = typestore().deserialize_cdr(message.raw, message.kind)
            yield "", tuple(getattr(read, field) for field in fields)
        else:
            yield "", None
    except Exception:  # a broken message may raise anything; it is kept unchanged
        yield "", None
