"""The test of a duel: how often it errs, and how many pairs it needs; what makes one episode better
than another.
"""

import math

import numpy as np
import pytest

from rlinf_core.reports.duel import (
    A_BETTER,
    ALIKE,
    B_BETTER,
    MEASURES,
    OPEN,
    Duel,
    DuelEpisode,
    compare_pair,
    throughput_of,
)

TRIALS, MAX_PAIRS = 2000, 600


def duels(success_a, success_b, seed=0, trials=TRIALS):
    """Verdicts and numbers of pairs of duels between policies of these success rates."""
    rng = np.random.default_rng(seed)
    pairs = (rng.random((trials, MAX_PAIRS)) < success_a).astype(int) - (
        rng.random((trials, MAX_PAIRS)) < success_b
    )
    ended = []
    for row in pairs.tolist():
        duel = Duel()
        next((None for pair in row if duel.add(pair) != OPEN), None)
        ended.append((duel.verdict, len(duel.pairs)))
    return ended


@pytest.mark.parametrize("success", [0.5, 0.8, 0.95])
def test_equal_policies_are_called_different_in_at_most_5_of_100_duels(success):
    verdicts = [verdict for verdict, _ in duels(success, success)]
    false = sum(verdict in (A_BETTER, B_BETTER) for verdict in verdicts)
    assert false <= 0.05 * TRIALS
    assert verdicts.count(ALIKE) > 0.9 * (TRIALS if success < 0.9 else 0)


def test_90_against_70_is_found_with_at_most_half_of_the_pairs_of_a_fixed_test_of_equal_power():
    ended = duels(0.9, 0.7)
    power = sum(verdict == A_BETTER for verdict, _ in ended) / TRIALS
    assert power >= 0.95
    # McNemar's test, sizes by Connor, Biometrics 43 (1987)
    differ = 0.9 * 0.3 + 0.1 * 0.7
    gap = 0.2
    z_alpha, z_beta = 1.959964, float(np.sqrt(2) * _inverse_erf(2 * power - 1))
    fixed = (z_alpha * math.sqrt(differ) + z_beta * math.sqrt(differ - gap**2)) ** 2 / gap**2
    mean = np.mean([pairs for _, pairs in ended])
    assert mean <= 0.5 * fixed, (mean, fixed)
    assert sum(verdict == B_BETTER for verdict, _ in ended) == 0


def _inverse_erf(x):
    from statistics import NormalDist

    return NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)


def test_the_test_is_the_same_for_both_sides_and_a_verdict_stays():
    one, other = Duel(), Duel()
    for pair in [1] * 40:
        one.add(pair)
        other.add(-pair)
    assert (one.verdict, other.verdict) == (A_BETTER, B_BETTER)
    for _ in range(100):
        one.add(-1)
    assert one.verdict == A_BETTER


def test_pairs_that_do_alike_decide_nothing():
    duel = Duel()
    assert {duel.add(0) for _ in range(500)} == {OPEN}
    assert math.isnan(duel.share_a.value)
    assert duel.fixed_pairs == 0


def test_the_number_of_pairs_is_the_fewest_that_reach_the_bound():
    duel = Duel()
    needed = math.ceil(math.log(2 / 0.05) / math.log(1.5))
    verdicts = [duel.add(1) for _ in range(needed)]
    assert verdicts == [OPEN] * (needed - 1) + [A_BETTER]


@pytest.mark.parametrize(
    ("a", "b", "measures", "better"),
    [
        ((True, 9.0, 0.0), (False, 1.0, 5.0), ["success"], 1),
        ((False, 1.0, 5.0), (True, 9.0, 0.0), MEASURES, -1),
        ((True, 9.0, 1.0), (True, 5.0, 0.0), ["success"], 0),
        ((True, 9.0, 1.0), (True, 5.0, 0.0), ["success", "time"], -1),
        ((True, 5.1, 0.0), (True, 5.0, 0.0), ["success", "time"], 0),
        ((False, 1.0, 0.2), (False, 9.0, 0.1), ["success", "time"], 0),
        ((False, 1.0, 0.2), (False, 9.0, 0.1), MEASURES, 1),
    ],
)
def test_the_first_measure_that_differs_says_which_did_better(a, b, measures, better):
    assert compare_pair(DuelEpisode(*a), DuelEpisode(*b), measures) == better
    assert compare_pair(DuelEpisode(*b), DuelEpisode(*a), measures) == -better


def test_the_figures_of_a_side_are_its_robot_time():
    of = throughput_of([DuelEpisode(True, 6.0, 1.0), DuelEpisode(False, 12.0, 0.0)])
    assert of.success.value == 0.5
    assert of.successes_per_hour.value == pytest.approx(200.0)
    assert of.time_to_success_s.value == 6.0
