"""Timing of a node's ticks: a phase-locked timer, and a warm-up before each tick.

The timer's phase settles just behind its input. A processor runs code that it has not run for 50 ms
at a third of its speed: ``WarmUp`` runs it shortly before.
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

SAMPLES = 16  # inputs after which another phase may be chosen
HISTORY = 64  # inputs on which the choice is based
PAUSE_S = 2.0  # a gap of this length discards older inputs
STRETCH = 0.05  # largest extension of one period, as a part of it
MIN_WAIT_S = 0.0001  # time by which an input should precede its tick
SLACK_S = 0.0002  # smallest reduction of the mean wait that justifies a change
AROUND = 0.02  # the same, of a period, if the phase must be reached through a whole period
RHYTHM = 0.3  # smallest steadiness of the inputs, of 1, for which one phase is better than another
SOONEST = 0.97  # smallest interval of two ticks, of a period
# largest catch-up by shorter intervals without hurry; stamps run ahead by as much meanwhile
MAX_CATCH_UP_S = 0.002
# of a period: a later tick finds its phase sooner by longer periods, with SOONEST and STRETCH
SHORTER = 0.375
SLOWEST = 0.1  # largest advance of a timer's wake-up, of a period
# fraction of a period before the tick; an earlier input may be late for the previous tick
NEXT = 0.5
PATIENCE_S = 0.004  # wait for a late input, bounded by parts of a period ...
MIN_PART, MAX_PART = 0.08, 0.35  # ... smallest and largest part
TOO_SOON_S = 0.00002  # largest difference of two clocks about a timer's wake-up


class PhaseLock:
    """The time of the next tick: every ``period_s``, slowly moved to minimise the inputs' wait.

    Its mean rate exceeds the nominal one by at most ``hurry``. A late tick leaves the phase
    unchanged: the inputs after it are in time. Without hurry, no tick follows another sooner than
    SOONEST. An earlier phase is then reached only through all later ones, while inputs wait half a
    period. The lock takes that path once earlier inputs have waited as long in vain, or to return
    after a very late tick.

    Args:
        period_s: nominal period [s].
        hurry: largest reduction of one period while the phase moves, as a part of it.
        now: monotonic time [s].

    Attributes:
        due_s: monotonic time of the next tick [s].
        soonest_s: earliest time of the next tick [s].
    """

    def __init__(self, period_s: float, hurry: float, now: float) -> None:
        self.period_s, self.hurry = period_s, hurry
        self.due_s = self.soonest_s = now + period_s
        self._inputs: deque[float] = deque(maxlen=HISTORY)  # times of the newest inputs
        self._new = 0
        self._to_go_s = 0.0
        self._in_vain_s = 0.0

    def ticked(self, now: float) -> float:
        """Return the time to wake for the next tick [s], after a tick at ``now``."""
        self.due_s += (
            max(math.floor((now - self.due_s + TOO_SOON_S) / self.period_s), 0) * self.period_s
        )
        late = max(now - self.due_s, 0.0)
        progressed_s = min(late, max(self._to_go_s, 0.0))  # part of the path to a later phase
        self.due_s += progressed_s
        self._to_go_s -= progressed_s
        late -= progressed_s
        if not self.hurry and late > min(MAX_CATCH_UP_S, SHORTER * self.period_s):
            self.due_s = now
            self._to_go_s = self.period_s - late
        extra = min(max(self._to_go_s, -self.hurry * self.period_s), STRETCH * self.period_s)
        self._to_go_s -= extra
        self.due_s += self.period_s + extra
        self.soonest_s = now + (0.0 if self.hurry else SOONEST * self.period_s)
        return max(self.due_s, self.soonest_s)

    def add_inputs(self, inputs: Collection[float]) -> None:
        """Add inputs at these times [s]; then choose another phase if enough of them are new."""
        for at in inputs:
            if self._inputs and at - self._inputs[-1] > PAUSE_S:
                self._inputs.clear()
                self._new = 0
                self._in_vain_s = 0.0
            self._inputs.append(at)
            self._new += 1
        if self._to_go_s == 0.0 and self._new >= SAMPLES:
            self._to_go_s = self._worthwhile_shift(
                *best_shift(
                    [(self.due_s - at) % self.period_s for at in self._inputs],
                    self.period_s,
                    self.hurry,
                )
            )
            self._new = 0

    def _worthwhile_shift(self, gain_s: float, to_go_s: float) -> float:
        """Return the change of phase, or 0 while it costs more than staying has cost so far."""
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
    """Calls back at every tick of a ``PhaseLock``, so that fresh input does not wait.

    A control loop of two unsynchronised timers waits half a period on average at each of them. Call
    ``arrived`` when the awaited input has arrived. Timers wake a little late; this one asks to wake
    earlier by the usual delay, because it could not make up for a constant one.

    Args:
        node: owns the timer.
        period_s: nominal period [s].
        callback: called at every tick.
        hurry: see ``PhaseLock``.
        early: largest advance of a tick whose input is there, of a period.
        late: largest wait for a missing input that came in the previous period, of a period.
            Otherwise a slightly late input would wait for the next tick, unnoticed if the next
            input is in time.
    """

    def __init__(
        self,
        node: Node,
        period_s: float,
        callback: Callable[[], None],
        hurry: float,
        early: float,
        late: float = 0.0,
    ) -> None:
        self.lock = PhaseLock(period_s, hurry, time.monotonic())
        self.early_s, self.late_s = early * period_s, late * period_s
        self._callback = callback
        self._arrivals: list[float] = []
        self._done_early = self._expected = self._waits = self._opens = False
        self._wake_s = self.lock.due_s
        self._slow_s = deque[float](maxlen=SAMPLES)
        self.timer = node.create_timer(period_s, self._on_timer)
        self._stopped = False

    def stop(self, node: Node) -> None:
        """Stop calling back, even if the executor already holds the timer."""
        self._stopped = True
        node.destroy_timer(self.timer)

    def arrived(self, at: float | None = None) -> None:
        """Note that the awaited input is here, or was at that monotonic time [s]."""
        self._arrivals.append(time.monotonic() if at is None else at)
        if at is None and not self._done_early and not self._opens:
            self._come_early(time.monotonic())

    def until_next(self) -> float:
        """Return the time to the next tick [s]; within a tick, to the one after it."""
        return (
            self.lock.due_s + (self.lock.period_s if self._done_early else 0.0) - time.monotonic()
        )

    def _come_early(self, now: float) -> None:
        """Tick now for a present input, or as soon as allowed.

        An input that may be late for the previous tick does not count: its own input would then
        lack a tick.
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
        # the wake-up was already under way when the timer was set anew
        if now < self._wake_s - TOO_SOON_S:
            self._set()
            return
        self._slow_s.append(min(max(now - self._wake_s, 0.0), SLOWEST * self.lock.period_s))
        soonest_s = self.lock.due_s - self.early_s if self._opens else self.lock.soonest_s
        if now < soonest_s - TOO_SOON_S:  # it woke sooner than usual
            self._wake_s = soonest_s
            self._set()
            return
        opens = self._opens
        self._opens = False
        if opens and now < self.lock.due_s:
            self._wake(self.lock.due_s)
            self._early()
            return
        missing = self._expected and not self._arrivals and not self._done_early
        # it may have arrived during a stall of this process: then it is next
        if missing and not self._waits and self.late_s:
            self._waits = True
            self._wake(self.lock.due_s + self.late_s)
            return
        self._tick(now)

    def _tick(self, now: float) -> None:
        self._waits = False
        self._expected = bool(self._arrivals)
        self._wake(self.lock.ticked(now))
        if not self._done_early:
            self._callback()
        self._done_early = False
        self.lock.add_inputs(self._arrivals)  # after the command, which does not wait for it
        self._arrivals.clear()

    def _wake(self, at: float) -> None:
        usual_s = sorted(self._slow_s)[len(self._slow_s) // 4] if self._slow_s else 0.0
        self._wake_s = at - usual_s
        self._set()

    def _set(self) -> None:
        self.timer.timer_period_ns = max(round((self._wake_s - time.monotonic()) * 1e9), 1)
        self.timer.reset()


def patience(period_s: float) -> float:
    """Return how long a tick waits for a late input, as a part of its period."""
    return max(MIN_PART, min(MAX_PART, PATIENCE_S / period_s))


def best_shift(waits: Collection[float], period_s: float, hurry: float) -> tuple[float, float]:
    """Return the reduction of the mean wait [s] and the shift of the ticks [s] that gives it.

    A negative shift means earlier ticks. The best phase is just behind an input. If the ticks move
    earlier by the kth shortest wait of n, all inputs wait less by as much, and the k - 1 inputs
    that then miss their tick wait a period longer.
    """
    direction = sum(cmath.exp(2j * math.pi * wait / period_s) for wait in waits) / len(waits)
    if abs(direction) < RHYTHM:
        return 0.0, 0.0
    # a later input may well miss its tick
    in_vain = sorted((wait - MIN_WAIT_S) % period_s for wait in waits)
    gain, sooner = max(
        (wait - missed / len(in_vain) * period_s, wait) for missed, wait in enumerate(in_vain)
    )
    moves_earlier = sooner * STRETCH < (period_s - sooner) * hurry
    return gain, -sooner if moves_earlier else period_s - sooner


BEFORE_S = 0.004  # the warm-up then still sits in the caches, and ends before the real call
SELDOM_S = 0.02  # more frequent calls are still in the caches


class WarmUp:
    """Makes an extra message shortly before the next real one is due, and discards it.

    Args:
        node: owns the timer.
        make: makes the message; it must have no other effect. Its inputs may be invalid by now:
            errors are ignored here, because the real call reports them.
    """

    def __init__(self, node: Node, make: Callable[[], Any]) -> None:
        self._make = make
        self._timer = node.create_timer(1.0, self._run_once)
        self._timer.cancel()

    def before(self, seconds: float) -> None:
        """Schedule the warm-up for a message that is due in ``seconds``."""
        if seconds > SELDOM_S:
            self._timer.timer_period_ns = round((seconds - BEFORE_S) * NS)
            self._timer.reset()

    def _run_once(self) -> None:
        self._timer.cancel()
        with contextlib.suppress(RlinfError, KeyError, ValueError):
            serialize_message(self._make())
