"""The phase lock of the real-time timers, in numbers; no clock is involved (timers:
test_phase_timers).
"""

import numpy as np
import pytest

from rlinf_ros.timer_phase import (
    MIN_GAIN_S,
    MIN_INTERVAL_PERIODS,
    MIN_WAIT_S,
    SAMPLES,
    PhaseLock,
    best_shift,
)


def settle(period, jitter, hurry, start, seed=0):
    """Apply ``better`` until it is content; returns the waits at the end and the shifts on
    the way.
    """
    random, tick, shifts = np.random.default_rng(seed), start, []
    for _ in range(40):
        arrivals = random.normal(0.0, jitter, SAMPLES) if jitter else np.zeros(SAMPLES)
        waits = [(tick - arrival) % period for arrival in arrivals]
        gain, to_go = best_shift(waits, period, hurry)
        shifts.append(to_go if gain > 0.0 else 0.0)
        tick += shifts[-1]
    return np.array(waits), shifts


@pytest.mark.parametrize("start", [0.0, 0.001, 0.004, 0.0099])
@pytest.mark.parametrize("hurry", [0.0, 0.01, 0.05])
def test_the_tick_settles_just_behind_its_input(start, hurry):
    waits, shifts = settle(0.01, 0.0, hurry, start)
    assert 0.5 * MIN_WAIT_S <= waits.mean() <= MIN_WAIT_S + MIN_GAIN_S + 1e-9
    assert shifts[-1] == 0.0


def test_a_timer_that_may_not_hurry_only_moves_later():
    assert all(
        s >= 0.0 for start in np.linspace(0, 0.01, 50) for s in settle(0.01, 0.0003, 0.0, start)[1]
    )


def test_jitter_widens_the_margin():
    waits, _ = settle(0.05, 0.002, 0.05, 0.03)
    assert 0.001 < np.median(waits) < 0.006


def test_inputs_without_a_rhythm_move_nothing():
    random = np.random.default_rng(0)
    assert best_shift(list(random.uniform(0, 0.01, 200)), 0.01, 0.05) == (0.0, 0.0)


@pytest.mark.parametrize("hurry", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_of_all_phases_it_is_the_one_in_which_inputs_wait_least(hurry, seed):
    random = np.random.default_rng(seed)
    waits = (
        0.004 + random.gamma(1.0, 0.0004 * (seed + 1), 64) + 0.003 * (random.random(64) < 0.1)
    ) % 0.01
    gain, later = best_shift(waits, 0.01, hurry)

    def mean(by):
        return np.mean((waits - MIN_WAIT_S + by) % 0.01)

    assert gain == pytest.approx(mean(0.0) - mean(later + 1e-12), abs=1e-9), (
        "as much less as it says"
    )
    assert mean(later + 1e-12) <= min(map(mean, np.linspace(0, 0.01, 2001))) + 1e-9
    assert (later < 0.0) == (hurry > 0.0), "backwards only where that is allowed"


def run_lock(lateness, seconds=60.0, hz=20, offset=0.0043, jitter=0.0001, hurry=0.0, period=0.01):
    """Ticks that come late, and inputs at a rate: when each tick was, and what each input
    waited.
    """
    random = np.random.default_rng(0)
    lock = PhaseLock(period, hurry, 0.0)
    wake = period
    ticks = []
    waits = []
    sent = 0
    next_input = offset
    while wake < seconds:
        now, arrived = wake + lateness(random), []
        while next_input <= now:
            arrived.append(next_input)
            waits.append(now - next_input)
            sent += 1
            next_input = offset + sent / hz + random.normal(0.0, jitter)
        ticks.append(now)
        wake = lock.after_tick(now)
        lock.add_inputs(arrived)
    return np.array(ticks), np.array(waits)


def sometimes_late(random):
    return abs(random.normal(0.0, 2e-5)) + (0.0008 if random.random() < 0.02 else 0.0)


@pytest.mark.parametrize("hz", [20, 100])
def test_a_lock_that_may_not_hurry_finds_its_input_and_rests_there(hz):
    ticks, waits = run_lock(sometimes_late, hz=hz)
    assert np.percentile(waits[len(waits) // 4 :], 95) < 0.002, "ticks come just behind their input"
    stretched = np.abs(np.diff(ticks) - 0.0105) < 2e-4
    assert stretched.mean() < 0.02, "it does not go around and around"


def test_ticks_are_never_sooner_than_allowed_and_small_lateness_is_caught_up():
    ticks, _ = run_lock(sometimes_late, jitter=0.0)
    assert np.diff(ticks).min() >= MIN_INTERVAL_PERIODS * 0.01 - 1e-9
    after = np.flatnonzero(np.diff(ticks) > 0.0107)[-1] + 1
    assert abs((ticks[after + 5] - ticks[after - 1]) - 0.06) < 2e-4, (
        "six periods, one of them late, take six periods"
    )


def test_after_a_stall_the_next_tick_has_its_whole_period():
    lock = PhaseLock(0.01, 0.0, 0.0)
    assert lock.after_tick(0.060) == pytest.approx(0.070)


@pytest.mark.parametrize(
    "late_s, ticks_in_transit", [(0.0012, 8), (0.0018, 12), (0.0021, 12), (0.004, 4), (0.013, 8)]
)
def test_after_a_tick_that_was_late_inputs_are_soon_in_time_again(late_s, ticks_in_transit):
    """At 200 Hz: by ticks that are as much sooner as they may be, or, where that is shorter, once
    around.
    """
    lates, tick_numbers = {4000: late_s, 8000: late_s}, iter(range(100_000))
    ticks, waits = run_lock(
        lambda _: lates.get(next(tick_numbers), 0.0), hz=100, jitter=0.0, period=0.005
    )
    settled = waits[1000:]
    assert np.sum(settled > 0.0004) <= 2 * (ticks_in_transit / 2 + late_s * 100 + 1)
    assert np.diff(ticks).min() >= MIN_INTERVAL_PERIODS * 0.005 - 1e-9


def driven(wait_s, ticks, every, late_s=0.0, hurry=0.0, period=0.01):
    """Ticks that come so late, for inputs that wait so long for when the tick is due; the periods
    that the lock makes.
    """
    lock, due = PhaseLock(period, hurry, 0.0), []
    for tick in range(ticks):
        due.append(lock.due_s)
        at = lock.due_s - wait_s
        lock.after_tick(lock.due_s + late_s)
        lock.add_inputs([at] if tick % every == 0 else [])
    return np.diff(due)


@pytest.mark.parametrize("hurry", [0.0, 0.05])
def test_late_ticks_do_not_make_an_input_wait(hurry):
    assert driven(MIN_WAIT_S, 2000, 1, late_s=0.0006, hurry=hurry) == pytest.approx(0.01), (
        "what was on time stays so"
    )


def test_no_way_around_is_taken_for_a_fiftieth_of_a_period():
    assert driven(MIN_WAIT_S + 0.00015, 20_000, 5) == pytest.approx(0.01)


def test_a_way_around_is_taken_only_once_it_pays():
    periods = driven(0.001, ticks=4000, every=5)  # waits 1 ms: the way to less leads 9 ms later
    assert periods.max() == pytest.approx(0.0105), "a period is stretched by a twentieth"
    first = np.argmax(periods > 0.0101)
    cost = 0.2 * 0.009 / (0.05 * 0.01) * 0.01  # inputs a tick, ticks on the way, a period each [s]
    assert first * 0.2 * 0.001 >= cost, (
        "those before it have waited as long in vain as those on the way will"
    )


def test_after_a_pause_a_phase_is_chosen_by_new_inputs_alone():
    lock, now, waits = PhaseLock(0.005, 0.0, 0.0), 0.005, []
    for offset, begin, end in ((0.001, 0.0, 2.0), (0.003, 5.0, 6.0)):
        while now < begin:
            now = lock.after_tick(now)
        at = begin + offset
        while at < end:
            while now < at:
                now = lock.after_tick(now)
            waits.append(now - at)
            lock.add_inputs([at])
            at += 0.01
    assert max(waits[160:200]) < 2.5e-4, "it had found the first"
    assert min(waits[200:216]) > 0.001 and max(waits[222:]) < 2.5e-4, (
        "what was before does not hold it"
    )


@pytest.mark.parametrize(
    "period_s, late_s, around_s",
    [(0.01, 0.0019, 0.0), (0.01, 0.0021, 0.0079), (0.005, 0.0018, 0.0), (0.005, 0.0019, 0.0031)],
)
def test_what_a_tick_was_late_by_is_made_up_for_to_2_ms_and_three_eighths_of_a_period(
    period_s, late_s, around_s
):
    lock = PhaseLock(period_s, 0.0, 0.0)
    due = lock.due_s
    lock.after_tick(due + late_s)
    for _ in range(30):
        lock.after_tick(lock.due_s)
    assert lock.due_s - due - 31 * period_s == pytest.approx(
        late_s + around_s if around_s else 0.0, abs=1e-9
    )


@pytest.mark.parametrize(
    "late_s, left_s", [(0.0004, 0.0019), (0.0024, 0.0), (0.0027, 0.0), (0.0047, 0.0026)]
)
def test_a_tick_that_is_late_on_the_way_to_a_later_phase_is_on_its_way(late_s, left_s):
    lock, periods = PhaseLock(0.005, 0.0, 0.0), []
    # 2.8 ms around, of which it goes 0.25 a tick, the first at once
    lock.after_tick(lock.due_s + 0.0022)
    lock.after_tick(lock.due_s + late_s)
    for _ in range(20):
        before = lock.due_s
        lock.after_tick(before)
        periods.append(lock.due_s - before)
    assert sum(periods) - 20 * 0.005 == pytest.approx(left_s, abs=1e-9)
