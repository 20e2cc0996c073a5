"""Assign a stream of messages to episodes, and write the episodes to a spool."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_core.core.errors import SpoolError
from rlinf_core.episodes.messages import ABORTED, CLOSED, ENDED, STARTED
from rlinf_core.episodes.ring import Message, Ring
from rlinf_core.episodes.spool import EpisodeWriter, Spool

# Wait for the missing messages of an ended episode, because topics are not ordered. It begins with
# the interlock's state of the last time step.
GRACE_S = 0.5
SILENT_S = 5.0  # longest wait for that state, which comes late on a busy machine
# bounds of the messages from before STARTED; earlier motion, such as homing, is of no episode
EARLY_MESSAGES = 64
EARLY_BYTES = 64 << 20
EARLY_S = 1.0
ID_BYTES = 512  # leading bytes of a TimeStep that contain its episode id
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
        self.early = Ring(EARLY_BYTES, EARLY_MESSAGES, EARLY_S)
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
        self.close_if_due(message.at_ns)

    def close_if_due(self, now_ns: int) -> None:
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
            if self.writer.episode_id.encode() not in message.raw[:ID_BYTES]:
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
        reader does (``played_chunks.applied_steps``).
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
