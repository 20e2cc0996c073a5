"""The restart policy and the shutdown order of a station, for ``rlinf up`` and for ROS's launch.

| process ends | the station |
|---|---|
| with exit code 78 | ends: the process has printed why it cannot run |
| and its restart is SHUTDOWN | ends: it needs the process |
| and its restart is RESPAWN | restarts it, at most 5 times in 60 s, 5 times for one reason |
| and its restart is ONCE | continues |

A process with several nodes ends with exit code NODE_FAILED plus the index of the failed node. The
restart setting of that node applies.

A station ends in two steps: first the nodes that command and record, then interlock and robot side.
The arm comes to rest between the two. A process gets SIGINT, then SIGTERM, then SIGKILL, ``stop_s``
apart.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from rlinf_core.core.errors import NODE_FAILED, REFUSED
from rlinf_core.launch.graph import ONCE, SHUTDOWN, Process

MAX_RESTARTS, RESTART_WINDOW_S = 5, 60.0
RESPAWN_DELAY_S = 1.0  # delay of ROS's launch, in which our handlers decide
LONG_S = 3600.0  # after this run time an equal reason does not count as "in a row"


@dataclass(frozen=True)
class Outcome:
    """The decision after the end of a process.

    Attributes:
        restarts: whether the station continues; the process restarts unless its restart is ONCE.
        text: description for a person.
        refusal: reason that the process printed; empty if it printed none.
        exit_code: exit code of ROS's launch if the station ends. REFUSED: nothing may start the
            station again, because it would end in the same way, or because a person ended it.
    """

    restarts: bool
    text: str
    refusal: str = ""
    exit_code: int = 1


@dataclass
class History:
    """The ends of one process.

    Attributes:
        process: process of the station.
        started: time of its last start [s, monotonic].
        restarts: times of its ends within the last minute [s, monotonic].
        reason: reason of its last end.
        equal_failures: number of repeated ends with that reason.
    """

    process: Process
    started: float
    restarts: list[float] = field(default_factory=list)
    reason: str = ""
    equal_failures: int = 0

    def record_end(self, code: int, now: float, refusal: str = "") -> Outcome:
        """Record an end of the process, and decide whether the station continues.

        Args:
            code: exit code; negative for a signal.
            now: current time [s, monotonic].
            refusal: last error that the process printed.
        """
        name = self.process.name
        restart = self.process.restart
        end_text = describe_end(code)
        index = code - NODE_FAILED
        if 0 <= index < len(self.process.nodes):
            node = self.process.nodes[index]
            end_text = f"in the process '{name}', with all its nodes"
            name = node.name
            restart = node.restart
        if restart == ONCE:
            return Outcome(True, f"{name} ended ({end_text})")
        if code == REFUSED:
            return Outcome(False, f"{name} cannot continue", refusal, REFUSED)
        if restart == SHUTDOWN:
            return Outcome(
                False,
                f"{name} ended ({end_text}). The station cannot continue without it: the robot "
                "side stops by its own timeout",
                exit_code=1 if code else REFUSED,  # 0: a person ended it in order
            )
        self.restarts = [t for t in self.restarts if now - t < RESTART_WINDOW_S] + [now]
        if len(self.restarts) > MAX_RESTARTS:
            return Outcome(
                False,
                f"{name} ended {len(self.restarts)} times within {RESTART_WINDOW_S:.0f} s "
                f"(last: {end_text})",
            )
        reason = refusal[:300] if code == 1 else ""
        self.equal_failures = (
            self.equal_failures + 1
            if reason and reason == self.reason and now - self.started < LONG_S
            else 0
        )
        self.reason, self.started = reason, now
        if self.equal_failures >= MAX_RESTARTS:
            return Outcome(
                False, f"{name} ended {self.equal_failures + 1} times for the same reason", reason
            )
        return Outcome(True, f"{name} ended ({end_text}) and was restarted", reason)


def describe_end(code: int) -> str:
    """Return how a process ended, in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def last_error_in(text: str) -> str:
    """Return the last error in a command's output, which may have several lines.

    It is empty if there is none.
    """
    _, prefix, error = f"\n{text}".rpartition("\nrlinf: ")
    return error.strip() if prefix else ""


def ends_last(process: Process) -> bool:
    """Return whether a process ends in the second step: interlock and robot side."""
    return process.restart == SHUTDOWN


def shutdown_groups(processes: Iterable[Process]) -> list[list[str]]:
    """Return the names of the processes in two groups, in the order in which they end."""
    every = list(processes)
    return [
        [process.name for process in reversed(every) if ends_last(process) == last]
        for last in (False, True)
    ]
