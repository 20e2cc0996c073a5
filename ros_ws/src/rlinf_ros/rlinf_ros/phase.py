"""Timing of a node's ticks: a timer whose phase settles just behind the input it waits for, and a rehearsal before each.

A processor runs code that it has not run for a twentieth of a second at a third of its speed: ``WarmUp`` runs it
shortly before.
"""

from __future__ import annotations

import cmath
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from rclpy.node import Node
from rclpy.serialization import serialize_message

from rlinf_core.core.errors import RlinfError
from rlinf_ros.conversions import NS

SAMPLES = 16            # inputs after which another phase may be chosen
HISTORY = 64               # inputs that it is chosen by
PAUSE_S = 2.0           # without an input: what was before counts no more
STRETCH = 0.05          # of a period, by which one period may be longer than the others
MIN_WAIT_S = 0.0001     # how long before its tick an input should be there
SLACK_S = 0.0002        # a mean wait that would be less by so little is left alone
AROUND = 0.02           # of a period: the same where the way to less leads around the whole of it
RHYTHM = 0.3            # of 1: how steadily inputs must come for one phase to be better than another
SOONEST = 0.97          # of a period, between two ticks
MAX_CATCH_UP_S = 0.002  # by ticks that come a little sooner, where it may not hurry: stamps run ahead by as much meanwhile
SHORTER = 0.375         # of a period: what was later finds its phase sooner by longer periods, with SOONEST and STRETCH
SLOWEST = 0.1           # of a period, by which a timer is asked to wake sooner, at most
NEXT = 0.5              # of a period before its tick: what comes sooner than that may be late for the one before
PATIENCE_S = 0.004      # for an input that is late: so long, but of a period ...
LEAST, MOST = 0.08, 0.35  # ... so much at least, and so much at most
TOO_SOON_S = 0.00002    # by which two clocks may differ on when a timer was to wake


class PhaseLock:
    """When the next tick is due: every ``period_s``, moved a little per period to where inputs wait the least for theirs.

    Its mean rate is never above nominal by more than ``hurry``. A tick that was late leaves the phase as it is: the inputs
    after it are in time. Where it may not hurry, no tick comes sooner than SOONEST after another, and the way to an earlier
    phase leads through all later ones, while inputs wait half a period: it goes there once those that came before have
    waited as long in vain, or where it was before a tick that was very late.

    Args:
        period_s: nominal period [s].
        hurry: of a period, by which one period may be shorter while the phase moves.
        now: monotonic time [s].

    Attributes:
        due_s: when the next tick is due, monotonic [s]; ``soonest_s``, when it may come.
    """

    def __init__(self, period_s: float, hurry: float, now: float) -> None:
        self.period_s, self.hurry = period_s, hurry
        self.due_s = self.soonest_s = now + period_s
        self._inputs: deque[float] = deque(maxlen=HISTORY)  # when the newest came
        self._new = 0
        self._to_go_s = 0.0
        self._in_vain_s = 0.0

    def ticked(self, now: float) -> float:
        """When to wake for the next one [s], after a tick at that time."""
        self.due_s += max(math.floor((now - self.due_s + TOO_SOON_S) / self.period_s), 0) * self.period_s
        late = max(now - self.due_s, 0.0)
        gone = min(late, max(self._to_go_s, 0.0))  # of the way to a later phase
        self.due_s = self.due_s + gone
        self._to_go_s = self._to_go_s - gone
        late = late - gone
        if not self.hurry and late > min(MAX_CATCH_UP_S, SHORTER * self.period_s):
            self.due_s, self._to_go_s = now, self.period_s - late
        extra = min(max(self._to_go_s, -self.hurry * self.period_s), STRETCH * self.period_s)
        self._to_go_s -= extra
        self.due_s += self.period_s + extra
        self.soonest_s = now + (0.0 if self.hurry else SOONEST * self.period_s)
        return max(self.due_s, self.soonest_s)

    def came(self, inputs: Collection[float]) -> None:
        """Inputs, at those times [s]; then, if it is time to, choose another phase for the ticks to come."""
        for at in inputs:
            if self._inputs and at - self._inputs[-1] > PAUSE_S:
                self._inputs.clear()
                self._new, self._in_vain_s = 0, 0.0
            self._inputs.append(at)
            self._new += 1
        if self._to_go_s == 0.0 and self._new >= SAMPLES:
            self._to_go_s = self._worth(*better([(self.due_s - at) % self.period_s for at in self._inputs],
                                                self.period_s, self.hurry))
            self._new = 0

    def _worth(self, gain_s: float, to_go_s: float) -> float:
        """Nothing, as long as the way costs more than it has cost so far to stay."""
        if gain_s <= (SLACK_S if self.hurry else AROUND * self.period_s):
            self._in_vain_s = 0.0
            return 0.0
        self._in_vain_s += self._new * gain_s
        every_s = (self._inputs[-1] - self._inputs[0]) / (len(self._inputs) - 1)
        meanwhile = max(to_go_s, 0.0) / STRETCH / max(every_s, self.period_s / SAMPLES)
        if self._in_vain_s < meanwhile * self.period_s:
            return 0.0
        self._in_vain_s = 0.0
        return to_go_s


class PhaseLockedTimer:
    """Calls back at every tick of a ``PhaseLock``, so that fresh input does not lie waiting.

    A control loop of two unsynchronised timers waits half a period on average at each of them. Call ``arrived`` when the
    awaited input has arrived. A timer wakes a little late, and is asked to as much sooner, so that ticks come when they are
    due: what is late by as much each time could not be made up for.

    Args:
        node: owns the timer.
        period_s: nominal period [s].
        callback: what to do at every tick.
        hurry: see ``PhaseLock``.
        early: of a period, by which a tick may come before its time when its input is there.
        late: of a period, by which it may wait for an input that came in the period before and is missing now: else that
            one, a little late, would wait for the next tick, and where the next one is in time, nobody would see it.
    """

    def __init__(self, node: Node, period_s: float, callback: Callable[[], None], hurry: float, early: float,
                 late: float = 0.0) -> None:
        self.lock = PhaseLock(period_s, hurry, time.monotonic())
        self.early_s, self.late_s = early * period_s, late * period_s
        self._callback = callback
        self._arrivals: list[float] = []
        self._done_early = self._expected = self._waits = self._opens = False
        self._wake_s, self._slow_s = self.lock.due_s, deque[float](maxlen=SAMPLES)
        self.timer, self._stopped = node.create_timer(period_s, self._on_timer), False

    def stop(self, node: Node) -> None:
        """Call back no more, not even where the executor has the timer in hand already."""
        self._stopped = True
        node.destroy_timer(self.timer)

    def arrived(self, at: float | None = None) -> None:
        """The awaited input is here, or was at that monotonic time [s]."""
        self._arrivals.append(time.monotonic() if at is None else at)
        if at is None and not self._done_early and not self._opens:
            self._come_early(time.monotonic())

    def until_next(self) -> float:
        """How long it is to the next tick [s]; called from within one, early or not, to the one after it."""
        return self.lock.due_s + (self.lock.period_s if self._done_early else 0.0) - time.monotonic()

    def _come_early(self, now: float) -> None:
        """An input is there: its tick comes now, or as soon as it may.

        Not where it may be late for the tick before: its own one would then be missing for the input that it is for.
        """
        if self.lock.due_s - now <= self.early_s:
            self._early()
        elif self._expected and self.lock.due_s - now <= NEXT * self.lock.period_s:
            self._opens = True
            self._wake(self.lock.due_s - self.early_s)

    def _early(self) -> None:
        self._done_early = True
        self._callback()

    def _on_timer(self) -> None:
        if self._stopped:
            return
        now = time.monotonic()
        if now < self._wake_s - TOO_SOON_S:  # it was on its way when the timer was set anew
            self._set()
            return
        self._slow_s.append(min(max(now - self._wake_s, 0.0), SLOWEST * self.lock.period_s))
        soonest_s = self.lock.due_s - self.early_s if self._opens else self.lock.soonest_s
        if now < soonest_s - TOO_SOON_S:  # it woke sooner than it usually does
            self._wake_s = soonest_s
            self._set()
            return
        opens, self._opens = self._opens, False
        if opens and now < self.lock.due_s:
            self._wake(self.lock.due_s)
            self._early()
            return
        missing = self._expected and not self._arrivals and not self._done_early
        if missing and not self._waits and self.late_s:  # it may have come while this process stood still: it is next then
            self._waits = True
            self._wake(self.lock.due_s + self.late_s)
            return
        self._tick(now)

    def _tick(self, now: float) -> None:
        self._waits, self._expected = False, bool(self._arrivals)
        self._wake(self.lock.ticked(now))
        if not self._done_early:
            self._callback()
        self._done_early = False
        self.lock.came(self._arrivals)  # what the command does not wait for
        self._arrivals.clear()

    def _wake(self, at: float) -> None:
        usual_s = sorted(self._slow_s)[len(self._slow_s) // 4] if self._slow_s else 0.0
        self._wake_s = at - usual_s
        self._set()

    def _set(self) -> None:
        self.timer.timer_period_ns = max(round((self._wake_s - time.monotonic()) * 1e9), 1)
        self.timer.reset()


def patience(period_s: float) -> float:
    """How long a tick waits for an input that is late, of its period."""
    return max(LEAST, min(MOST, PATIENCE_S / period_s))


def better(waits: Collection[float], period_s: float, hurry: float) -> tuple[float, float]:
    """How much less inputs would wait on average [s], had the ticks been later by the second [s], earlier if negative.

    Of all phases, one just behind an input is best: with ticks earlier by the wait of the kth shortest of n, all wait less
    by as much, and the k - 1 that then miss their tick wait longer by a period.
    """
    direction = sum(cmath.exp(2j * math.pi * wait / period_s) for wait in waits) / len(waits)
    if abs(direction) < RHYTHM:
        return 0.0, 0.0
    in_vain = sorted((wait - MIN_WAIT_S) % period_s for wait in waits)  # what comes later than it should may well miss it
    gain, sooner = max((wait - missed / len(in_vain) * period_s, wait) for missed, wait in enumerate(in_vain))
    return gain, -sooner if sooner * STRETCH < (period_s - sooner) * hurry else period_s - sooner


BEFORE_S = 0.004    # what has been rehearsed is then still in the caches, and over before the real thing comes
SELDOM_S = 0.02     # what is done more often is still in the caches from the time before


class WarmUp:
    """Makes a message once more, a little before the next one like it is due, and throws it away.

    Args:
        node: owns the timer.
        make: the message; what it does otherwise must not matter. What it is made of may be unfit by now: whoever makes
            the real one says so, here nothing is lost.
    """

    def __init__(self, node: Node, make: Callable[[], Any]) -> None:
        self._make = make
        self._timer = node.create_timer(1.0, self._rehearse)
        self._timer.cancel()

    def before(self, seconds: float) -> None:
        """The next one is due so long from now [s]."""
        if seconds > SELDOM_S:
            self._timer.timer_period_ns = round((seconds - BEFORE_S) * NS)
            self._timer.reset()

    def _rehearse(self) -> None:
        self._timer.cancel()
        with contextlib.suppress(RlinfError, KeyError, ValueError):
            serialize_message(self._make())
