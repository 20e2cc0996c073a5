"""A small run of benchmarks/fuzz_episodes.py, whose large one is in benchmarks/results."""

import pytest

from benchmarks.fuzz_episodes import PLACES, fuzz


@pytest.mark.timeout(300)
def test_nothing_spoiled_raises_and_nothing_spoiled_is_learned_from(tmp_path):
    figures = fuzz(200, 1, tmp_path)
    assert (
        figures["exceptions"]
        == figures["silent_changes"]
        == figures["refused_by_the_last_resort"]
        == 0
    ), figures
    assert (
        figures["refused"] >= 100
        and figures["accepted_unchanged"] >= 200 / len(PLACES) / 2
        and figures["valid"] > 0
    )
