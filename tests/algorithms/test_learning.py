"""Every algorithm learns where random fails.

Thresholds: ``Run.at_most`` before, ``Run.at_least`` after; seed 0.
"""

import pytest

from rlinf_core.algorithms import algorithms
from tests.algorithms.learning import RUNS


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("CrossQ", "SAC-Flow", "DSRL") else ())
        for name in RUNS
    ],
)
def test_it_learns_where_random_fails(name):
    run = RUNS[name](seed=0)
    assert run.learned, run


def test_no_algorithm_is_left_out():
    run_names = " ".join(RUNS).lower().replace("++", "").replace("-", "_").replace(" ", "_")
    assert [name for name in algorithms() if name not in run_names] == []
