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
from enum import Enum, auto
from typing import Any

from rclpy.node import Node
from rclpy.serialization import serialize_message

from rlinf_core.core.errors import RlinfError
from rlinf_ros.conversions import NS

# docs/explain/timing.md explains the phase lock. Constants in [periods] are parts of the nominal
# period.

# Inputs after which another phase may be chosen.
SAMPLES = 16
# Newest inputs on which the choice of a phase is based.
HISTORY = 64
# A gap between two inputs that discards all older inputs [s].
PAUSE_S = 2.0
# Time by which an input should precede its tick [s].
MIN_WAIT_S = 0.0001
# Smallest steadiness of the inputs' phase, from 0 (random) to 1 (constant), for which the lock
# chooses a phase.
MIN_STEADINESS = 0.3
# With hurry: smallest reduction of the mean wait that justifies a change of phase [s].
MIN_GAIN_S = 0.0002
# Without hurry: smallest reduction of the mean wait that justifies a change of phase [periods].
# It is larger because an earlier phase is reached only through a whole period.
MIN_GAIN_PERIODS = 0.02
# Largest extension of one period while the phase moves later [periods].
MAX_STRETCH_PERIODS = 0.05
# Without hurry: smallest interval of two ticks [periods].
MIN_INTERVAL_PERIODS = 0.97
# Without hurry: shorter intervals make up for a late tick if its delay is below both of these
# bounds [s], [periods]. Stamps run ahead by the delay meanwhile. After a larger delay, longer
# intervals reach the old phase sooner.
MAX_CATCH_UP_S = 0.002
MAX_CATCH_UP_PERIODS = 0.375
# Largest advance of a timer's wake-up [periods].
MAX_ADVANCE_PERIODS = 0.1
# An input in this last part of a period belongs to the tick at its end [periods]. An earlier input
# may be late for the previous tick.
NEXT_TICK_PERIODS = 0.5
# Wait of a tick for a late input [s], and the bounds of this wait [periods].
PATIENCE_S = 0.004
MIN_PATIENCE_PERIODS, MAX_PATIENCE_PERIODS = 0.08, 0.35
# Largest difference of two clocks about a timer's wake-up [s].
TOO_SOON_S = 0.00002


class PhaseLock:
    """The time of the next tick: every ``period_s``, slowly moved to minimise the inputs' wait.

    Its mean rate exceeds the nominal one by at most ``hurry``. A late tick leaves the phase
    unchanged: the inputs after it are in time. Without hurry, no tick follows another sooner than
    MIN_INTERVAL_PERIODS. An earlier phase is then reached only through all later ones, while inputs
    wait half a period. The lock takes that path once earlier inputs have waited as long in vain, or
    to return after a very late tick.

    Args:
        period_s: nominal period [s].
        hurry: largest reduction of one period while the phase moves, of a period.
        now: monotonic time [s].

    Attributes:
        due_s: monotonic time of the next tick [s].
        soonest_s: earliest time of the next tick [s].
    """

    def __init__(self, period_s: float, hurry: float, now: float) -> None:
        self.period_s, self.hurry = period_s, hurry
        self.due_s = self.soonest_s = now + period_s
        self._inputs: deque[float] = deque(maxlen=HISTORY)  # times of the newest inputs
        self._new_inputs = 0  # since the last choice of a phase
        self._shift_s = 0.0  # remaining change of the phase
        self._wasted_s = 0.0  # time that inputs have waited more than at the best phase

    def after_tick(self, now: float) -> float:
        """Return the time to wake for the next tick [s], after a tick at ``now``."""
        missed_ticks = max(math.floor((now - self.due_s + TOO_SOON_S) / self.period_s), 0)
        self.due_s += missed_ticks * self.period_s
        late_s = max(now - self.due_s, 0.0)
        # a late tick is a part of the way to a later phase
        progress_s = min(late_s, max(self._shift_s, 0.0))
        self.due_s += progress_s
        self._shift_s -= progress_s
        late_s -= progress_s
        if not self.hurry and late_s > min(MAX_CATCH_UP_S, MAX_CATCH_UP_PERIODS * self.period_s):
            self.due_s = now
            self._shift_s = self.period_s - late_s
        step_s = min(
            max(self._shift_s, -self.hurry * self.period_s), MAX_STRETCH_PERIODS * self.period_s
        )
        self._shift_s -= step_s
        self.due_s += self.period_s + step_s
        self.soonest_s = now + (0.0 if self.hurry else MIN_INTERVAL_PERIODS * self.period_s)
        return max(self.due_s, self.soonest_s)

    def add_inputs(self, inputs: Collection[float]) -> None:
        """Add inputs at these times [s]; then choose another phase if enough of them are new."""
        for at in inputs:
            if self._inputs and at - self._inputs[-1] > PAUSE_S:
                self._inputs.clear()
                self._new_inputs = 0
                self._wasted_s = 0.0
            self._inputs.append(at)
            self._new_inputs += 1
        if self._shift_s == 0.0 and self._new_inputs >= SAMPLES:
            waits = [(self.due_s - at) % self.period_s for at in self._inputs]
            self._shift_s = self._worthwhile_shift(*best_shift(waits, self.period_s, self.hurry))
            self._new_inputs = 0

    def _worthwhile_shift(self, gain_s: float, shift_s: float) -> float:
        """Return the change of phase, or 0 while it costs more than staying has cost so far."""
        min_gain_s = MIN_GAIN_S if self.hurry else MIN_GAIN_PERIODS * self.period_s
        if gain_s <= min_gain_s:
            self._wasted_s = 0.0
            return 0.0
        self._wasted_s += self._new_inputs * gain_s
        interval_s = (self._inputs[-1] - self._inputs[0]) / (len(self._inputs) - 1)
        inputs_meanwhile = (
            max(shift_s, 0.0) / MAX_STRETCH_PERIODS / max(interval_s, self.period_s / SAMPLES)
        )
        if self._wasted_s < inputs_meanwhile * self.period_s:
            return 0.0
        self._wasted_s = 0.0
        return shift_s


class Wake(Enum):
    """The moment for which a ``PhaseLockedTimer`` is set."""

    TICK = auto()
    """The tick is due."""
    EARLY = auto()
    """The input is there, and the tick may be early from then on."""
    LATE = auto()
    """The tick is due and its input missing; the wait for the input ends then."""


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
        self._input_times: list[float] = []  # since the last tick
        self._had_input = False  # in the previous period
        self._called_early = False  # the callback has run before its tick
        self._wake = Wake.TICK
        self._wake_s = self.lock.due_s
        self._delays_s = deque[float](maxlen=SAMPLES)  # of the last wake-ups
        self.timer = node.create_timer(period_s, self._on_timer)
        self._stopped = False

    def stop(self, node: Node) -> None:
        """Stop calling back, even if the executor already holds the timer."""
        self._stopped = True
        node.destroy_timer(self.timer)

    def arrived(self, at: float | None = None) -> None:
        """Note that the awaited input is here, or was at that monotonic time [s]."""
        self._input_times.append(time.monotonic() if at is None else at)
        if at is None and not self._called_early and self._wake is not Wake.EARLY:
            self._tick_early(time.monotonic())

    def until_next(self) -> float:
        """Return the time to the next tick [s]; within a tick, to the one after it."""
        next_s = self.lock.due_s + (self.lock.period_s if self._called_early else 0.0)
        return next_s - time.monotonic()

    def _tick_early(self, now: float) -> None:
        """Tick now for a present input, or as soon as allowed.

        An input that may be late for the previous tick does not count: its own input would then
        lack a tick.
        """
        if self.lock.due_s - now <= self.early_s:
            self._call_early()
        elif self._had_input and self.lock.due_s - now <= NEXT_TICK_PERIODS * self.lock.period_s:
            self._wake_for(Wake.EARLY, self.lock.due_s - self.early_s)

    def _call_early(self) -> None:
        self._called_early = True
        self._callback()

    def _on_timer(self) -> None:
        if self._stopped:
            return
        now = time.monotonic()
        # the wake-up was already under way when the timer was set anew
        if now < self._wake_s - TOO_SOON_S:
            self._set_timer()
            return
        self._delays_s.append(
            min(max(now - self._wake_s, 0.0), MAX_ADVANCE_PERIODS * self.lock.period_s)
        )
        is_early = self._wake is Wake.EARLY
        soonest_s = self.lock.due_s - self.early_s if is_early else self.lock.soonest_s
        if now < soonest_s - TOO_SOON_S:  # it woke sooner than usual
            self._wake_s = soonest_s
            self._set_timer()
        elif is_early and now < self.lock.due_s:
            self._wake_for(Wake.TICK, self.lock.due_s)
            self._call_early()
        # an input may have arrived during a stall of this process: then it is next
        elif self._lacks_input() and self.late_s and self._wake is not Wake.LATE:
            self._wake_for(Wake.LATE, self.lock.due_s + self.late_s)
        else:
            self._tick(now)

    def _lacks_input(self) -> bool:
        return self._had_input and not self._input_times and not self._called_early

    def _tick(self, now: float) -> None:
        self._had_input = bool(self._input_times)
        self._wake_for(Wake.TICK, self.lock.after_tick(now))
        if not self._called_early:
            self._callback()
        self._called_early = False
        # after the command, which does not wait for it
        self.lock.add_inputs(self._input_times)
        self._input_times.clear()

    def _wake_for(self, wake: Wake, at: float) -> None:
        """Set the timer for a moment, earlier by the usual delay of its wake-ups."""
        usual_s = sorted(self._delays_s)[len(self._delays_s) // 4] if self._delays_s else 0.0
        self._wake = wake
        self._wake_s = at - usual_s
        self._set_timer()

    def _set_timer(self) -> None:
        self.timer.timer_period_ns = max(round((self._wake_s - time.monotonic()) * 1e9), 1)
        self.timer.reset()


def patience(period_s: float) -> float:
    """Return how long a tick waits for a late input, as a part of its period."""
    return max(MIN_PATIENCE_PERIODS, min(MAX_PATIENCE_PERIODS, PATIENCE_S / period_s))


def best_shift(waits: Collection[float], period_s: float, hurry: float) -> tuple[float, float]:
    """Return the reduction of the mean wait [s] and the shift of the ticks [s] that gives it.

    A negative shift means earlier ticks. The best phase is just behind an input. If the ticks move
    earlier by the kth shortest wait of n, all inputs wait less by as much, and the k - 1 inputs
    that then miss their tick wait a period longer.
    """
    direction = sum(cmath.exp(2j * math.pi * wait / period_s) for wait in waits) / len(waits)
    if abs(direction) < MIN_STEADINESS:
        return 0.0, 0.0
    # an input that comes later than MIN_WAIT_S before its tick may well miss the tick
    spare_s = sorted((wait - MIN_WAIT_S) % period_s for wait in waits)
    gain_s, advance_s = max(
        (spare - missed / len(spare_s) * period_s, spare) for missed, spare in enumerate(spare_s)
    )
    moves_earlier = advance_s * MAX_STRETCH_PERIODS < (period_s - advance_s) * hurry
    return gain_s, -advance_s if moves_earlier else period_s - advance_s


# Time from the warm-up to the real call, which finds the code still in the caches [s].
BEFORE_S = 0.004
# Calls that follow each other sooner than this need no warm-up: their code is in the caches [s].
SELDOM_S = 0.02


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
