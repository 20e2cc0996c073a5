"""A short form of benchmarks/swap.py: a policy is swapped, or dies and restarts, in motion."""

import pytest

from benchmarks.swap import SPEED, measure
from tests.ros.fork_server import ForkingSupervisor

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
STEPS = 60


@pytest.mark.domain(92)
@pytest.mark.parametrize("mode", ["local", pytest.param("real_time", marks=pytest.mark.slow)])
def test_the_old_version_goes_on_or_the_arm_is_held_and_it_never_jumps(tmp_path, mode):
    rows = measure(tmp_path / mode, mode, 92, STEPS, ForkingSupervisor)
    assert list(rows) == ["swap", *([] if mode == "local" else ["server killed"]), "policy killed"]
    for name, row in rows.items():
        assert row["speed"] > 0.5 * SPEED and row["others"] == 0, name
        assert 0 < row["step"] <= row["allowed"] + 1e-8 and row["asked"] < 0.5 * SPEED, name
    assert rows["swap"]["at"] + rows["swap"]["old_went_on"] == STEPS
