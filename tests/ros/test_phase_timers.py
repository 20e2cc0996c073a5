"""The timers that follow a phase lock, on a clock of the test's own."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_core.core.errors import RlinfError
from rlinf_ros import timer_phase
from rlinf_ros.timer_phase import MIN_INTERVAL_PERIODS, SAMPLES, PhaseLockedTimer, WarmUp, patience


class Clock:
    """Time that goes on to whatever comes next: a timer's end, or an input."""

    def __init__(self, monkeypatch):
        self.now, self.period_ns, self.due = 0.0, 0, 0.0
        monkeypatch.setattr("rlinf_ros.timer_phase.time.monotonic", lambda: self.now)

    def create_timer(self, period_s, callback):
        self.period_ns, self.callback = round(period_s * 1e9), callback
        self.reset()
        return self

    @property
    def timer_period_ns(self):
        return self.period_ns

    @timer_period_ns.setter
    def timer_period_ns(self, value):
        self.period_ns = value

    def reset(self):
        self.due = self.now + self.period_ns / 1e9


@pytest.mark.parametrize("slow_s", [0.0, 0.0002, 0.0004])
def test_a_timer_that_always_wakes_late_ticks_when_it_is_due_and_makes_up_for_what_was_later(
    monkeypatch, slow_s
):
    """3 % of a period are less than that: what would be late each time could not be made up for."""
    clock, ticks = Clock(monkeypatch), []
    timer = PhaseLockedTimer(clock, 0.005, lambda: ticks.append(clock.now), hurry=0.0, early=0.0)
    for number in range(400):
        clock.now = max(clock.due, clock.now) + slow_s + (0.0015 if number == 200 else 0.0)
        clock.callback()
    grid = ticks[100] + 0.005 * np.arange(400 - 100)
    off = np.array(ticks[100:]) - grid
    assert np.abs(off[:100]).max() < 2e-5 and off[100] == pytest.approx(0.0015, abs=2e-5)
    assert np.abs(off[112:]).max() < 2e-5, "on its grid again"
    assert (
        np.diff(ticks[100:]).min() >= MIN_INTERVAL_PERIODS * 0.005 - 1e-9
        and timer.lock.due_s > clock.now
    )


def test_a_timer_that_suddenly_wakes_at_once_ticks_no_sooner_than_it_may(monkeypatch):
    clock, ticks = Clock(monkeypatch), []
    PhaseLockedTimer(clock, 0.005, lambda: ticks.append(clock.now), hurry=0.0, early=0.0)
    for number in range(400):
        clock.now = max(clock.due, clock.now) + (
            0.0004 if number < 200 else 0.0012 if number == 200 else 0.00001
        )
        clock.callback()
    assert len(ticks) < 400, "it had to wait once more"
    assert np.diff(ticks).min() >= MIN_INTERVAL_PERIODS * 0.005 - 2e-5 and np.diff(
        ticks[-100:]
    ) == pytest.approx(0.005)


def test_a_timer_is_asked_to_wake_sooner_by_a_tenth_of_its_period_at_most(monkeypatch):
    clock = Clock(monkeypatch)
    timer = PhaseLockedTimer(clock, 0.01, lambda: None, hurry=0.05, early=0.25)
    for _ in range(SAMPLES):
        clock.now = clock.due + 0.003
        clock.callback()
    assert timer.lock.due_s - clock.due == pytest.approx(0.001)


class Taken:
    """A timer of 100 Hz that may be early by a quarter of a period; when it called back, up to
    which time.
    """

    def __init__(self, monkeypatch, late=0.0):
        self.clock, self.ticks = Clock(monkeypatch), []
        self.timer = PhaseLockedTimer(
            self.clock,
            0.01,
            lambda: self.ticks.append(self.clock.now),
            hurry=0.05,
            early=0.25,
            late=late,
        )

    def until(self, end):
        while self.clock.due <= end:
            self.clock.now = self.clock.due
            self.clock.callback()
        self.clock.now = end

    def comes(self, at):
        self.until(at)
        self.timer.arrived()

    @property
    def ms(self):
        return [round(1e3 * at, 1) for at in self.ticks]


def test_an_input_that_comes_sooner_than_its_tick_may_waits_no_longer_than_it_must(monkeypatch):
    taken = Taken(monkeypatch)
    for at in (0.0099, 0.0155, 0.016):  # and another one before it is taken
        taken.comes(at)
    taken.until(0.0176)
    assert taken.clock.due == pytest.approx(0.02), "its time is when the next one's begins"
    taken.until(0.022)
    assert taken.ms == [9.9, 17.5], "once, a quarter of a period before its time"
    taken.comes(0.029)
    assert taken.ms[2:] == [29.0], "at once, where it may"
    taken.until(0.0405)
    assert taken.ms[3:] == [40.0], "without an input as ever"


def test_nothing_is_early_for_an_input_that_may_be_late_for_the_tick_before(monkeypatch):
    """The one that the tick is for would then come just after it, and so would all that follow."""
    taken = Taken(monkeypatch)
    for at in (0.0099, 0.0199, 0.0205, 0.0301):
        taken.comes(at)
    assert taken.ms == [9.9, 19.9, 30.0], "two for the same tick"
    late = Taken(monkeypatch, late=0.35)
    for at in (0.0099, 0.0199):
        late.comes(at)
    late.comes(0.0360)  # of the tick of 30 ms, which has not waited for it any longer
    late.comes(0.0399)
    late.until(0.0449)
    assert late.ms == [9.9, 19.9, 33.5, 39.9], "and the next one is in time"


def test_an_input_that_comes_before_a_timer_that_is_late_makes_no_second_tick_of_it(monkeypatch):
    taken = Taken(monkeypatch)
    for at in (0.0099, 0.0199, 0.0260):
        taken.comes(at)
    taken.clock.now = 0.0285
    taken.timer.arrived()
    taken.clock.callback()
    taken.until(0.0399)
    assert taken.ms == [9.9, 19.9, 28.5]


def test_an_early_tick_that_wakes_when_all_is_late_is_the_tick_that_is_due(monkeypatch):
    taken = Taken(monkeypatch)
    for at in (0.0099, 0.0199, 0.0260):
        taken.comes(at)
    # it stood still from then on, and what came meanwhile is handed over behind the timer
    taken.clock.now = 0.038
    taken.clock.callback()
    taken.timer.arrived()
    assert taken.ms == [9.9, 19.9, 38.0, 38.0] and taken.timer.lock.due_s == pytest.approx(0.04)


def test_a_timer_that_wakes_sooner_than_usual_for_an_early_tick_goes_back_to_sleep(monkeypatch):
    """It was asked to wake sooner than the tick may come, by its usual lateness."""
    clock, ticks, wakes = Clock(monkeypatch), [], []
    timer = PhaseLockedTimer(clock, 0.01, lambda: ticks.append(clock.now), hurry=0.05, early=0.25)
    for number in range(60):
        if number == 49:
            timer.arrived()
        if number == 50:
            clock.now = timer.lock.due_s - 0.004
            timer.arrived()
            opens = timer.lock.due_s - timer.early_s
        clock.now = clock.due + (0.0004 if number < 50 else 0.0)
        wakes.append(clock.now)
        clock.callback()
        if number >= 50 and ticks[-1] == clock.now:
            break
    assert (
        ticks[-1] == pytest.approx(opens, abs=2e-5 + 1e-9)
        and number < 55
        and wakes[-2] < opens - 2e-4
    )


def answered(monkeypatch, late, delays, hz=20, stalls=(), timer_first=False):
    """How long each input waited for a tick [s], where it comes so much after its time [s]; when
    the ticks were; how many inputs were hidden by the next one. From the inputs of ``stalls`` on
    the process stands still for so long [s]; then it is handed the input first, or the timer."""
    clock, waiting, waits, ticks, hidden = Clock(monkeypatch), [], [], [], []

    def tick():
        ticks.append(clock.now)
        hidden.extend(waiting[:-1])
        waits.extend(clock.now - at for at in waiting)
        waiting.clear()

    timer = PhaseLockedTimer(clock, 1 / hz, tick, hurry=0.05, early=0.25, late=late)
    stalls, again = dict(stalls), 0.0
    for number, delay in enumerate(delays):
        at = 0.013 + number / hz + delay
        while clock.due < at:
            clock.now = max(clock.due, again)
            clock.callback()
        again = max(again, at + stalls.get(number, 0.0))
        clock.now = max(at, again)
        if timer_first and clock.due <= clock.now:
            clock.callback()
        waiting.append(at)
        timer.arrived()
    return np.array(waits), np.array(ticks), len(hidden)


def test_an_input_that_is_a_little_late_does_not_wait_for_the_next_tick(monkeypatch):
    random = np.random.default_rng(0)
    delays = np.abs(random.normal(0.0, 1e-4, 1000)) + np.where(
        random.random(1000) < 0.03, 0.003, 0.0
    )
    patient, ticks, _ = answered(monkeypatch, 0.08, delays)
    hurried, *_ = answered(monkeypatch, 0.0, delays)
    assert patient[50:].max() < 0.005 and hurried[50:].max() > 0.04
    assert np.median(patient) < 0.001
    assert np.diff(ticks).min() > 0.03 and abs(np.diff(ticks[50:]).mean() - 0.05) < 1e-4, (
        "its rate is what it was"
    )


def test_at_100_hz_none_is_hidden_by_the_next_though_some_are_late_by_a_third_of_a_period(
    monkeypatch,
):
    random = np.random.default_rng(0)
    times = (
        np.arange(3000) / 100
        + np.abs(random.normal(0.0, 1.5e-4, 3000))
        + (random.random(3000) < 0.03) * random.uniform(0.0, 0.003, 3000)
    )
    delays = np.maximum.accumulate(times) - np.arange(3000) / 100
    waits, ticks, hidden = answered(monkeypatch, patience(0.01), delays, hz=100)
    assert hidden <= 1 and waits[100:].max() < 0.001
    assert np.diff(ticks).min() > 0.005 and np.diff(ticks).mean() == pytest.approx(0.01, abs=1e-5)
    assert answered(monkeypatch, 0.08, delays, hz=100)[2] > 30, (
        "it is not the jitter that is too small"
    )


@pytest.mark.parametrize("hz, stall_s", [(100, 0.0082), (100, 0.0051), (100, 0.034), (20, 0.03)])
def test_a_process_that_stood_still_answers_the_inputs_after_it_in_time(monkeypatch, hz, stall_s):
    waits, ticks, _ = answered(
        monkeypatch, patience(1 / hz), np.zeros(600), hz=hz, stalls=[(200, stall_s), (400, stall_s)]
    )
    waits = waits[50:]
    assert waits.max() == pytest.approx(stall_s) and np.sum(waits > 0.001) <= 2 * np.ceil(
        stall_s * hz
    )
    assert np.diff(ticks).min() > 0.001 and np.diff(ticks[-100:]) == pytest.approx(1 / hz), (
        "one by one, none made up for"
    )


def test_so_it_does_where_inputs_come_unevenly_and_it_stood_still_for_nearly_a_period(monkeypatch):
    times = np.maximum.accumulate(
        np.arange(3000) / 100 + np.abs(np.random.default_rng(0).normal(0.0, 0.001, 3000))
    )
    stalls = [(number, 0.0099) for number in range(200, 3000, 100)]
    waits, _, hidden = answered(
        monkeypatch, patience(0.01), times - np.arange(3000) / 100, hz=100, stalls=stalls
    )
    assert np.sum(waits[50:] > 0.003) < 1.2 * len(stalls) and hidden <= 3


@pytest.mark.parametrize("hz, stall_s", [(100, 0.0085), (100, 0.0051), (20, 0.03)])
def test_an_input_that_came_while_the_process_stood_still_is_taken_before_its_tick(
    monkeypatch, hz, stall_s
):
    options = {"hz": hz, "stalls": [(200, stall_s), (400, stall_s)]}
    _, ticks, _ = answered(monkeypatch, patience(1 / hz), np.zeros(600), **options)
    waits, first, _ = answered(
        monkeypatch, patience(1 / hz), np.zeros(600), **options, timer_first=True
    )
    assert len(first) == len(ticks) and waits[50:].max() == pytest.approx(stall_s), (
        "it waits for no other tick"
    )


def test_a_late_input_is_waited_for_by_4_ms_within_a_share_of_the_period():
    assert [round(patience(1 / hz), 3) for hz in (5, 10, 20, 50, 100, 1000)] == [
        0.08,
        0.08,
        0.08,
        0.2,
        0.35,
        0.35,
    ]


def test_one_that_does_not_come_at_all_is_waited_for_once_and_the_ticks_go_on(monkeypatch):
    delays = np.zeros(60)
    delays[30] = 0.2  # four periods without; then all at once
    _, ticks, _ = answered(
        monkeypatch, 0.08, np.sort(np.arange(60) / 20 + delays) - np.arange(60) / 20
    )
    gaps = np.diff(ticks)
    assert len(ticks) >= 59 and gaps.max() < 0.05 * 1.1 and sum(gaps > 0.0525) <= 2


class Timer:
    """A node's timer that counts how often it was started and cancelled."""

    def __init__(self):
        self.timer_period_ns, self.running, self.starts = 0, True, 0

    def reset(self):
        self.running, self.starts = True, self.starts + 1

    def cancel(self):
        self.running = False


@pytest.mark.parametrize("error", [None, RlinfError("stale"), KeyError("wrist"), ValueError("nan")])
def test_a_message_is_made_once_shortly_before_it_is_due_and_discarded(monkeypatch, error):
    timer, periods, serialised, count = Timer(), [], [], []
    monkeypatch.setattr(timer_phase, "serialize_message", serialised.append)

    def create_timer(seconds, callback):
        periods.append((seconds, callback))
        return timer

    def make():
        count.append(1)
        if error:
            raise error
        return "message"

    warm_up = WarmUp(SimpleNamespace(create_timer=create_timer), make)
    [(seconds, due)] = periods
    assert seconds == 1.0 and not timer.running, "it is scheduled by `before` alone"
    warm_up.before(0.02)
    assert not timer.running, "so frequent a call is in the caches"
    warm_up.before(0.1)
    assert timer.running and timer.timer_period_ns == 96_000_000
    due()
    assert not timer.running and len(count) == 1 and serialised == ["message"] * (error is None)
    warm_up.before(0.05)
    assert timer.starts == 2 and timer.timer_period_ns == 46_000_000


def test_a_message_that_fails_in_another_way_is_a_defect():
    node = SimpleNamespace(create_timer=lambda seconds, callback: Timer())

    def make():
        raise TypeError("not an array")

    with pytest.raises(TypeError):
        WarmUp(node, make)._run_once()


def test_a_timer_that_was_stopped_calls_no_more(monkeypatch):
    now, calls, destroyed, timer = [10.0], [], [], Timer()
    monkeypatch.setattr(timer_phase, "time", SimpleNamespace(monotonic=lambda: now[0]))
    node = SimpleNamespace(
        create_timer=lambda seconds, callback: timer, destroy_timer=destroyed.append
    )
    phase = PhaseLockedTimer(node, 0.1, lambda: calls.append(now[0]), 0.0, 0.1)
    assert phase.until_next() == pytest.approx(0.1)
    now[0] = 10.05
    phase._on_timer()
    assert not calls and timer.timer_period_ns == 50_000_000, "it was set anew while it woke"
    now[0] = 10.1
    phase._on_timer()
    assert calls == [10.1] and timer.timer_period_ns == pytest.approx(100_000_000, abs=1)
    assert phase.until_next() == pytest.approx(0.1)
    now[0] = 10.195
    phase.arrived()
    assert calls == [10.1, 10.195] and phase.until_next() == pytest.approx(0.105), "the one after"
    phase.stop(node)
    now[0] = 10.4
    phase._on_timer()
    assert len(calls) == 2 and destroyed == [timer]


def test_a_timer_wakes_earlier_by_what_it_is_usually_late(monkeypatch):
    now, calls, timer = [0.0], [], Timer()
    monkeypatch.setattr(timer_phase, "time", SimpleNamespace(monotonic=lambda: now[0]))
    node = SimpleNamespace(create_timer=lambda seconds, callback: timer)
    phase = PhaseLockedTimer(node, 0.1, lambda: calls.append(now[0]), 0.0, 0.0)
    now[0] = 0.1
    for _ in range(40):
        now[0] += 0.001  # every wake-up is a millisecond late
        phase._on_timer()
        now[0] += timer.timer_period_ns / 1e9
    late = [(at + 0.05) % 0.1 - 0.05 for at in calls]
    assert late[0] == pytest.approx(0.001) and late[-1] == pytest.approx(0.0, abs=5e-5)
    assert np.diff(calls[10:]).mean() == pytest.approx(0.1, abs=2e-5)


def test_a_slow_timer_is_set_to_the_nanosecond(monkeypatch):
    now, timer = [8.0], Timer()
    monkeypatch.setattr(timer_phase, "time", SimpleNamespace(monotonic=lambda: now[0]))
    node = SimpleNamespace(create_timer=lambda seconds, callback: timer)
    phase = PhaseLockedTimer(node, 4.0, lambda: None, 0.0, 0.0)
    now[0] = 12.0
    phase._on_timer()
    assert timer.timer_period_ns == 4_000_000_000
