"""The phase lock of the real-time timers, in numbers; no clock is involved."""

import numpy as np
import pytest

from rlinf.phase import MIN_WAIT_S, SAMPLES, SLACK_S, shift


def settle(period, jitter, hurry, start, seed=0):
    """Apply ``shift`` until it is content; returns the waits at the end and the shifts on the way."""
    random, tick, shifts = np.random.default_rng(seed), start, []
    for _ in range(40):
        arrivals = random.normal(0.0, jitter, SAMPLES) if jitter else np.zeros(SAMPLES)
        waits = [(tick - arrival) % period for arrival in arrivals]
        shifts.append(shift(waits, period, hurry))
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
    assert shift(list(random.uniform(0, 0.01, 200)), 0.01, 0.05) == 0.0
