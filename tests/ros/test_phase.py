"""The phase lock of the real-time timers, in numbers; no clock is involved."""

import numpy as np
import pytest

from rlinf.phase import MIN_WAIT_S, SAMPLES, SLACK_S, SOONEST, PhaseLock, PhaseLockedTimer, better, patience


def settle(period, jitter, hurry, start, seed=0):
    """Apply ``better`` until it is content; returns the waits at the end and the shifts on the way."""
    random, tick, shifts = np.random.default_rng(seed), start, []
    for _ in range(40):
        arrivals = random.normal(0.0, jitter, SAMPLES) if jitter else np.zeros(SAMPLES)
        waits = [(tick - arrival) % period for arrival in arrivals]
        gain, to_go = better(waits, period, hurry)
        shifts.append(to_go if gain > 0.0 else 0.0)
        tick += shifts[-1]
    return np.array(waits), shifts


@pytest.mark.parametrize("start", [0.0, 0.001, 0.004, 0.0099])
@pytest.mark.parametrize("hurry", [0.0, 0.01, 0.05])
def test_the_tick_settles_just_behind_its_input(start, hurry):
    waits, shifts = settle(0.01, 0.0, hurry, start)
    assert 0.5 * MIN_WAIT_S <= waits.mean() <= MIN_WAIT_S + SLACK_S + 1e-9
    assert shifts[-1] == 0.0


def test_a_timer_that_may_not_hurry_only_moves_later():
    assert all(s >= 0.0 for start in np.linspace(0, 0.01, 50) for s in settle(0.01, 0.0003, 0.0, start)[1])


def test_jitter_widens_the_margin():
    waits, _ = settle(0.05, 0.002, 0.05, 0.03)
    assert 0.001 < np.median(waits) < 0.006


def test_inputs_without_a_rhythm_move_nothing():
    random = np.random.default_rng(0)
    assert better(list(random.uniform(0, 0.01, 200)), 0.01, 0.05) == (0.0, 0.0)


@pytest.mark.parametrize("hurry", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_of_all_phases_it_is_the_one_in_which_inputs_wait_least(hurry, seed):
    random = np.random.default_rng(seed)
    waits = (0.004 + random.gamma(1.0, 0.0004 * (seed + 1), 64) + 0.003 * (random.random(64) < 0.1)) % 0.01
    gain, later = better(waits, 0.01, hurry)

    def mean(by):
        return np.mean((waits - MIN_WAIT_S + by) % 0.01)

    assert gain == pytest.approx(mean(0.0) - mean(later + 1e-12), abs=1e-9), "as much less as it says"
    assert mean(later + 1e-12) <= min(map(mean, np.linspace(0, 0.01, 2001))) + 1e-9
    assert (later < 0.0) == (hurry > 0.0), "backwards only where that is allowed"


def run_lock(lateness, seconds=60.0, hz=20, offset=0.0043, jitter=0.0001, hurry=0.0, period=0.01):
    """Ticks that come late, and inputs at a rate: when each tick was, and what each input waited."""
    random = np.random.default_rng(0)
    lock, wake, ticks, waits, sent, next_input = PhaseLock(period, hurry, 0.0), period, [], [], 0, offset
    while wake < seconds:
        now, arrived = wake + lateness(random), []
        while next_input <= now:
            arrived.append(next_input)
            waits.append(now - next_input)
            sent += 1
            next_input = offset + sent / hz + random.normal(0.0, jitter)
        ticks.append(now)
        wake = lock.ticked(now)
        lock.came(arrived)
    return np.array(ticks), np.array(waits)


def sometimes_late(random):
    return abs(random.normal(0.0, 2e-5)) + (0.0008 if random.random() < 0.02 else 0.0)


@pytest.mark.parametrize("hz", [20, 100])
def test_a_lock_that_may_not_hurry_finds_its_input_and_rests_there(hz):
    ticks, waits = run_lock(sometimes_late, hz=hz)
    assert np.percentile(waits[len(waits) // 4:], 95) < 0.002, "ticks come just behind their input"
    stretched = np.abs(np.diff(ticks) - 0.0105) < 2e-4
    assert stretched.mean() < 0.02, "it does not go around and around"


def test_ticks_are_never_sooner_than_allowed_and_small_lateness_is_caught_up():
    ticks, _ = run_lock(sometimes_late, jitter=0.0)
    assert np.diff(ticks).min() >= SOONEST * 0.01 - 1e-9
    after = np.flatnonzero(np.diff(ticks) > 0.0107)[-1] + 1
    assert abs((ticks[after + 5] - ticks[after - 1]) - 0.06) < 2e-4, "six periods, one of them late, take six periods"


def test_after_a_stall_the_next_tick_has_its_whole_period():
    lock = PhaseLock(0.01, 0.0, 0.0)
    assert lock.ticked(0.060) == pytest.approx(0.070)


@pytest.mark.parametrize("late_s, ticks_on_the_way", [(0.0012, 8), (0.0018, 12), (0.0021, 12), (0.004, 4), (0.013, 8)])
def test_after_a_tick_that_was_late_inputs_are_soon_in_time_again(late_s, ticks_on_the_way):
    """At 200 Hz: by ticks that are as much sooner as they may be, or, where that is shorter, once around."""
    lates, made = {4000: late_s, 8000: late_s}, iter(range(100_000))
    ticks, waits = run_lock(lambda _: lates.get(next(made), 0.0), hz=100, jitter=0.0, period=0.005)
    settled = waits[1000:]
    assert np.sum(settled > 0.0004) <= 2 * (ticks_on_the_way / 2 + late_s * 100 + 1)
    assert np.diff(ticks).min() >= SOONEST * 0.005 - 1e-9


def driven(wait_s, ticks, every, late_s=0.0, hurry=0.0, period=0.01):
    """Ticks that come so late, for inputs that wait so long for when the tick is due; the periods that the lock makes."""
    lock, due = PhaseLock(period, hurry, 0.0), []
    for tick in range(ticks):
        due.append(lock.due_s)
        at = lock.due_s - wait_s
        lock.ticked(lock.due_s + late_s)
        lock.came([at] if tick % every == 0 else [])
    return np.diff(due)


@pytest.mark.parametrize("hurry", [0.0, 0.05])
def test_late_ticks_do_not_make_an_input_wait(hurry):
    assert driven(MIN_WAIT_S, 2000, 1, late_s=0.0006, hurry=hurry) == pytest.approx(0.01), "what was on time stays so"


def test_no_way_around_is_taken_for_a_fiftieth_of_a_period():
    assert driven(MIN_WAIT_S + 0.00015, 20_000, 5) == pytest.approx(0.01)


def test_a_way_around_is_taken_only_once_it_pays():
    periods = driven(0.001, ticks=4000, every=5)  # waits 1 ms: the way to less leads 9 ms later
    assert periods.max() == pytest.approx(0.0105), "a period is stretched by a twentieth"
    first = np.argmax(periods > 0.0101)
    cost = 0.2 * 0.009 / (0.05 * 0.01) * 0.01  # inputs a tick, ticks on the way, a period each [s]
    assert first * 0.2 * 0.001 >= cost, "those before it have waited as long in vain as those on the way will"


class Clock:
    """Time that goes on to whatever comes next: a timer's end, or an input."""

    def __init__(self, monkeypatch):
        self.now, self.period_ns, self.due = 0.0, 0, 0.0
        monkeypatch.setattr("rlinf.phase.time.monotonic", lambda: self.now)

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
def test_a_timer_that_always_wakes_late_ticks_when_it_is_due_and_makes_up_for_what_was_later(monkeypatch, slow_s):
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
    assert np.diff(ticks[100:]).min() >= SOONEST * 0.005 - 1e-9 and timer.lock.due_s > clock.now


def test_a_timer_that_suddenly_wakes_at_once_ticks_no_sooner_than_it_may(monkeypatch):
    clock, ticks = Clock(monkeypatch), []
    PhaseLockedTimer(clock, 0.005, lambda: ticks.append(clock.now), hurry=0.0, early=0.0)
    for number in range(400):
        clock.now = max(clock.due, clock.now) + (0.0004 if number < 200 else 0.0012 if number == 200 else 0.00001)
        clock.callback()
    assert len(ticks) < 400, "it had to wait once more"
    assert np.diff(ticks).min() >= SOONEST * 0.005 - 2e-5 and np.diff(ticks[-100:]) == pytest.approx(0.005)


def test_after_a_pause_a_phase_is_chosen_by_new_inputs_alone():
    lock, now, waits = PhaseLock(0.005, 0.0, 0.0), 0.005, []
    for offset, begin, end in ((0.001, 0.0, 2.0), (0.003, 5.0, 6.0)):
        while now < begin:
            now = lock.ticked(now)
        at = begin + offset
        while at < end:
            while now < at:
                now = lock.ticked(now)
            waits.append(now - at)
            lock.came([at])
            at += 0.01
    assert max(waits[160:200]) < 2.5e-4, "it had found the first"
    assert min(waits[200:216]) > 0.001 and max(waits[260:]) < 2.5e-4, "what was before does not hold it"


@pytest.mark.parametrize("late_s, left_s", [(0.0004, 0.0019), (0.0024, 0.0), (0.0027, 0.0), (0.0047, 0.0026)])
def test_a_tick_that_is_late_on_the_way_to_a_later_phase_is_on_its_way(late_s, left_s):
    lock, periods = PhaseLock(0.005, 0.0, 0.0), []
    lock.ticked(lock.due_s + 0.0022)    # 2.8 ms around, of which it goes 0.25 a tick, the first at once
    lock.ticked(lock.due_s + late_s)
    for _ in range(20):
        before = lock.due_s
        lock.ticked(before)
        periods.append(lock.due_s - before)
    assert sum(periods) - 20 * 0.005 == pytest.approx(left_s, abs=1e-9)


def answered(monkeypatch, late, delays, hz=20, stalls=(), timer_first=False):
    """How long each input waited for a tick [s], where it comes so much after its time [s]; when the ticks were; how many
    inputs were hidden by the next one. From the inputs of ``stalls`` on the process stands still for so long [s]; then it
    is handed the input first, or the timer."""
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
    delays = np.abs(random.normal(0.0, 1e-4, 1000)) + np.where(random.random(1000) < 0.03, 0.003, 0.0)
    patient, ticks, _ = answered(monkeypatch, 0.08, delays)
    hurried, *_ = answered(monkeypatch, 0.0, delays)
    assert patient[50:].max() < 0.005 and hurried[50:].max() > 0.04
    assert np.median(patient) < 0.001
    assert np.diff(ticks).min() > 0.03 and abs(np.diff(ticks[50:]).mean() - 0.05) < 1e-4, "its rate is what it was"


def test_at_100_hz_none_is_hidden_by_the_next_though_some_are_late_by_a_third_of_a_period(monkeypatch):
    random = np.random.default_rng(0)
    times = np.arange(3000) / 100 + np.abs(random.normal(0.0, 1.5e-4, 3000)) + (
        random.random(3000) < 0.03) * random.uniform(0.0, 0.003, 3000)
    delays = np.maximum.accumulate(times) - np.arange(3000) / 100
    waits, ticks, hidden = answered(monkeypatch, patience(0.01), delays, hz=100)
    assert hidden <= 1 and waits[100:].max() < 0.001
    assert np.diff(ticks).min() > 0.005 and np.diff(ticks).mean() == pytest.approx(0.01, abs=1e-5)
    assert answered(monkeypatch, 0.08, delays, hz=100)[2] > 30, "it is not the jitter that is too small"


@pytest.mark.parametrize("hz, stall_s", [(100, 0.0082), (100, 0.0051), (100, 0.034), (20, 0.03)])
def test_a_process_that_stood_still_answers_the_inputs_after_it_in_time(monkeypatch, hz, stall_s):
    waits, ticks, _ = answered(monkeypatch, patience(1 / hz), np.zeros(600), hz=hz, stalls=[(200, stall_s), (400, stall_s)])
    waits = waits[50:]
    assert waits.max() == pytest.approx(stall_s) and np.sum(waits > 0.001) <= 2 * np.ceil(stall_s * hz)
    assert np.diff(ticks).min() > 0.001 and np.diff(ticks[-100:]) == pytest.approx(1 / hz), "one by one, none made up for"


def test_so_it_does_where_inputs_come_unevenly_and_it_stood_still_for_nearly_a_period(monkeypatch):
    times = np.maximum.accumulate(np.arange(3000) / 100 + np.abs(np.random.default_rng(0).normal(0.0, 0.001, 3000)))
    stalls = [(number, 0.0099) for number in range(200, 3000, 100)]
    waits, _, hidden = answered(monkeypatch, patience(0.01), times - np.arange(3000) / 100, hz=100, stalls=stalls)
    assert np.sum(waits[50:] > 0.003) < 1.2 * len(stalls) and hidden <= 3


@pytest.mark.parametrize("hz, stall_s", [(100, 0.0085), (100, 0.0051), (20, 0.03)])
def test_an_input_that_came_while_the_process_stood_still_is_taken_before_its_tick(monkeypatch, hz, stall_s):
    said = {"hz": hz, "stalls": [(200, stall_s), (400, stall_s)]}
    _, ticks, _ = answered(monkeypatch, patience(1 / hz), np.zeros(600), **said)
    waits, first, _ = answered(monkeypatch, patience(1 / hz), np.zeros(600), **said, timer_first=True)
    assert len(first) == len(ticks) and waits[50:].max() == pytest.approx(stall_s), "it waits for no other tick"


def test_a_late_input_is_waited_for_by_4_ms_within_a_share_of_the_period():
    assert [round(patience(1 / hz), 3) for hz in (5, 10, 20, 50, 100, 1000)] == [0.08, 0.08, 0.08, 0.2, 0.35, 0.35]


def test_one_that_does_not_come_at_all_is_waited_for_once_and_the_ticks_go_on(monkeypatch):
    delays = np.zeros(60)
    delays[30] = 0.2  # four periods without; then all at once
    _, ticks, _ = answered(monkeypatch, 0.08, np.sort(np.arange(60) / 20 + delays) - np.arange(60) / 20)
    gaps = np.diff(ticks)
    assert len(ticks) >= 59 and gaps.max() < 0.05 * 1.1 and sum(gaps > 0.0525) <= 2
