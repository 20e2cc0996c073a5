"""A fixed-rate timer whose phase settles just behind the input it waits for, so that fresh input does not lie waiting."""

from __future__ import annotations

import cmath
import math
import statistics
import time
from collections.abc import Callable

from rclpy.node import Node

SAMPLES = 16            # arrivals that are looked at before the phase is moved
STRETCH = 0.05          # of a period, by which one period may be longer than the others
MIN_WAIT_S = 0.0001     # how long before its tick an input should be there, if it comes without jitter
MARGIN = 1.5            # standard deviations of the arrivals that an input should be there before its tick
SLACK_S = 0.0003        # a wait this much longer than wanted is left alone
AROUND = 0.02           # of a period: the same where the way to less leads around the whole of it
SOONEST = 0.97          # of a period, between two ticks
LATE = 0.1              # of a period: where it may not hurry, a later tick moves all after it; after less, they catch up
PATIENCE_S = 0.004      # for an input that is late: so long, but of a period ...
LEAST, MOST = 0.08, 0.35  # ... so much at least, and so much at most
TOO_SOON_S = 0.00002    # by which two clocks may differ on when a timer was to wake


class PhaseLock:
    """When the next tick is due: every ``period_s``, moved a little per period until the input comes just before the tick.

    Its mean rate is never above nominal by more than ``hurry``. Where it may hurry, a tick that was late leaves the phase
    as it is: the inputs after it are in time. Where it may not, no tick comes sooner than SOONEST after another, and the
    way to an earlier phase leads through all later ones, while inputs wait half a period: it goes there once those that
    came before have waited as long in vain.

    Args:
        period_s: nominal period [s].
        hurry: of a period, by which one period may be shorter while the phase moves.
        now: monotonic time [s].
        late: of a period, by which a tick may wait for its input: those after it catch up, as with LATE.
    """

    def __init__(self, period_s: float, hurry: float, now: float, late: float = 0.0) -> None:
        self.period_s, self.hurry, self.late = period_s, hurry, max(LATE, late)
        self.due_s = self.wake_s = now + period_s
        self._waits: list[float] = []
        self._ticks, self._to_go_s, self._in_vain_s = 0, 0.0, 0.0

    def ticked(self, now: float, arrivals: list[float]) -> float:
        """When to wake for the next one [s], after a tick at that time and inputs that had arrived since the last."""
        if now > self.due_s + self.late * self.period_s + TOO_SOON_S:
            missed = math.floor((now - self.due_s) / self.period_s) * self.period_s
            self.due_s = self.due_s + missed if self.hurry else now
        if self._to_go_s == 0.0:
            self._ticks += 1
            self._waits += [(self.due_s - arrival) % self.period_s for arrival in arrivals]
            if len(self._waits) >= SAMPLES:
                self._to_go_s = self._worth(shift(self._waits, self.period_s, self.hurry))
                self._ticks = 0
                self._waits.clear()
        extra = min(max(self._to_go_s, -self.hurry * self.period_s), STRETCH * self.period_s)
        self._to_go_s -= extra
        self.due_s += self.period_s + extra
        soonest = 0.0 if self.hurry else SOONEST * (self.period_s + min(extra, 0.0))
        self.wake_s = max(self.due_s, now + soonest)
        return self.wake_s

    def _worth(self, to_go_s: float) -> float:
        """Nothing, as long as the way around costs more than it has cost so far to stay."""
        if to_go_s <= 0.5 * self.period_s:
            self._in_vain_s = 0.0
            return to_go_s
        self._in_vain_s += len(self._waits) * (self.period_s - to_go_s)
        meanwhile = len(self._waits) / self._ticks * to_go_s / (STRETCH * self.period_s)
        if self._in_vain_s < meanwhile * self.period_s:
            return 0.0
        self._in_vain_s = 0.0
        return to_go_s


class PhaseLockedTimer:
    """Calls back at every tick of a ``PhaseLock``, so that fresh input does not lie waiting.

    A control loop of two unsynchronised timers waits half a period on average at each of them. Call ``arrived`` when the
    awaited input has arrived.

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
        self.lock = PhaseLock(period_s, hurry, time.monotonic(), late)
        self.early_s, self.late_s = early * period_s, late * period_s
        self._callback = callback
        self._arrivals: list[float] = []
        self._done_early = self._expected = self._waits = False
        self.timer, self._stopped = node.create_timer(period_s, self._on_timer), False

    def stop(self, node: Node) -> None:
        """Call back no more, not even where the executor has the timer in hand already."""
        self._stopped = True
        node.destroy_timer(self.timer)

    def arrived(self, at: float | None = None) -> None:
        """The awaited input is here, or was at that monotonic time [s]."""
        self._arrivals.append(time.monotonic() if at is None else at)
        if at is None and not self._done_early and self.lock.due_s - time.monotonic() <= self.early_s:
            self._done_early = True
            self._callback()

    def until_next(self) -> float:
        """How long it is to the next tick [s]; called from within one, early or not, to the one after it."""
        return self.lock.due_s + (self.lock.period_s if self._done_early else 0.0) - time.monotonic()

    def _on_timer(self) -> None:
        if self._stopped:
            return
        now = time.monotonic()
        if now < self.lock.wake_s - TOO_SOON_S:  # it was on its way when the timer was set anew
            self._wake(self.lock.wake_s)
            return
        missing = self._expected and not self._arrivals and not self._done_early
        if missing and not self._waits and self.late_s:  # it may have come while this process stood still: it is next then
            self._waits = True
            self._wake(self.lock.due_s + self.late_s)
            return
        self._tick(now)

    def _tick(self, now: float) -> None:
        self._waits, self._expected = False, bool(self._arrivals)
        self._wake(self.lock.ticked(now, self._arrivals))
        self._arrivals.clear()
        if not self._done_early:
            self._callback()
        self._done_early = False

    def _wake(self, at: float) -> None:
        self.timer.timer_period_ns = max(round((at - time.monotonic()) * 1e9), 1)
        self.timer.reset()


def patience(period_s: float) -> float:
    """How long a tick waits for an input that is late, of its period."""
    return max(LEAST, min(MOST, PATIENCE_S / period_s))


def shift(waits: list[float], period_s: float, hurry: float) -> float:
    """By how much the ticks should move [s], later if positive, for inputs that waited so long for theirs [s].

    The waits live on a circle of one period: their mean direction is where the input comes, its length says how steadily.
    """
    direction = sum(cmath.exp(2j * math.pi * wait / period_s) for wait in waits) / len(waits)
    if abs(direction) < 0.3:
        return 0.0
    mean = cmath.phase(direction) / (2.0 * math.pi) * period_s
    around = [_wrapped(wait - mean, period_s) for wait in waits]  # medians: one late input in eight moves nothing
    middle = statistics.median(around)
    spread = 1.48 * statistics.median(abs(wait - middle) for wait in around)
    mean = (mean + middle) % period_s
    wanted = min(MIN_WAIT_S + MARGIN * spread, 0.25 * period_s)
    excess = _wrapped(mean - wanted, period_s)
    if -0.5 * wanted <= excess <= (SLACK_S if hurry else AROUND * period_s):
        return 0.0
    sooner_by_hurrying = excess * STRETCH < (period_s - excess) * hurry
    return -excess if excess < 0.0 or sooner_by_hurrying else period_s - excess


def _wrapped(wait: float, period_s: float) -> float:
    """On the circle of one period, in [-period / 2, period / 2)."""
    return (wait + 0.5 * period_s) % period_s - 0.5 * period_s
