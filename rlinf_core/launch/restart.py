"""What a station does when one of its processes ends, and in which order it ends: for ``rlinf up`` and for ROS's launch.

| process ends | the station |
|---|---|
| with exit code 78 | ends: the process has said why it cannot go on |
| and its restart is SHUTDOWN | ends: it cannot go on without it |
| and its restart is RESPAWN | starts it again, at most 5 times in 60 s, and 5 times in a row for one reason |
| and its restart is ONCE | goes on |

A process that hosts several nodes ends with NODE_FAILED and the index of the node that failed: that node's restart counts.

A station ends in two steps: first what commands and records, then interlock and robot side, which bring the arm to rest
meanwhile. A process gets SIGINT, then SIGTERM, then SIGKILL, each ``stop_s`` after the other.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from rlinf_core.core.errors import NODE_FAILED, REFUSED
from rlinf_core.launch.graph import ONCE, SHUTDOWN, Process

MAX_RESTARTS, RESTART_WINDOW_S = 5, 60.0
RESPAWN_DELAY_S = 1.0  # of ROS's launch, in which its handlers decide
LONG_S = 3600.0  # a process that has lived so long has another reason


@dataclass(frozen=True)
class Outcome:
    """What becomes of a station whose process has ended.

    Attributes:
        goes_on: whether the station goes on, with the process started again unless its restart is ONCE.
        text: what happened, for people.
        refusal: the reason that the process gave; empty if it gave none.
    """

    goes_on: bool
    text: str
    refusal: str = ""


@dataclass
class History:
    """The ends of one process.

    Attributes:
        process: of the station.
        started: when it started the last time [s of a monotonic clock].
        restarts: when it ended within the last minute.
        reason: of its last end.
        alike: ends in a row with that reason, but the first.
    """

    process: Process
    started: float
    restarts: list[float] = field(default_factory=list)
    reason: str = ""
    alike: int = 0

    def ended(self, code: int, now: float, refusal: str = "") -> Outcome:
        """Decide about an end.

        Args:
            code: exit code; negative for a signal.
            now: the same clock as ``started`` [s].
            refusal: the last error that the process has printed.
        """
        name, restart, how = self.process.name, self.process.restart, ending(code)
        if 0 <= (index := code - NODE_FAILED) < len(self.process.nodes):
            node = self.process.nodes[index]
            name, restart, how = node.name, node.restart, f"in the process '{name}', with all its nodes"
        if restart == ONCE:
            return Outcome(True, f"{name} ended ({how})")
        if code == REFUSED:
            return Outcome(False, f"{name} cannot go on", refusal)
        if restart == SHUTDOWN:
            return Outcome(False, f"{name} ended ({how}), and the station cannot go on without it: the robot side "
                                  "stops by its own timeout")
        self.restarts = [t for t in self.restarts if now - t < RESTART_WINDOW_S] + [now]
        if len(self.restarts) > MAX_RESTARTS:
            return Outcome(False, f"{name} ended {len(self.restarts)} times within {RESTART_WINDOW_S:.0f} s "
                                  f"(last: {how})")
        reason = refusal[:300] if code == 1 else ""
        self.alike = self.alike + 1 if reason and reason == self.reason and now - self.started < LONG_S else 0
        self.reason, self.started = reason, now
        if self.alike >= MAX_RESTARTS:
            return Outcome(False, f"{name} ended {self.alike + 1} times for one reason", reason)
        return Outcome(True, f"{name} ended ({how}) and was started again", reason)


def ending(code: int) -> str:
    """How a process ended, in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def refusal_in(text: str) -> str:
    """The last error that a command has printed, which may have several lines; empty for none."""
    return f"\n{text}".rpartition("\nrlinf: ")[2].strip() if "\nrlinf: " in f"\n{text}" else ""


def ends_last(process: Process) -> bool:
    """Whether a process ends after what commands and records: interlock and robot side."""
    return process.restart == SHUTDOWN


def in_order(processes: Iterable[Process]) -> list[list[str]]:
    """Names of the processes in the order in which they end: each group after the one before."""
    every = list(processes)
    return [[process.name for process in reversed(every) if ends_last(process) == last] for last in (False, True)]
