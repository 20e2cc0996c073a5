"""Chunks that took time to compute, compared with the papers' formulas by hand."""

import numpy as np
import pytest

from rlinf_core.policies.chunking import Chunking, ChunkSchedule

OLD, NEW = np.zeros((8, 1)), np.ones((8, 1))


def test_synchronous_sends_what_is_played_and_receding_horizon_all():
    assert len(Chunking("synchronous", 3).merge(NEW, 0, 0)) == 3
    assert np.array_equal(Chunking("receding_horizon", 3).merge(NEW, 0, 2), NEW)


def test_real_time_keeps_what_has_begun_and_blends_what_overlaps():
    chunking = Chunking("real_time", 3)
    assert np.array_equal(chunking.merge(OLD, 0, 2), OLD), "nothing was in play"
    sent = chunking.merge(NEW, 3, 2)[:, 0]
    assert np.array_equal(sent[:2], [0, 0]) and np.array_equal(sent[5:], [1, 1, 1])
    c = np.array([3, 2, 1]) / 4  # of five left, two are frozen: (5 - i) / (5 - 2 + 1)
    assert sent[2:5] == pytest.approx(1 - c * (np.exp(c) - 1) / (np.e - 1))
    assert (np.diff(sent) >= 0).all()
    chunking.chunks[-1] = (0, OLD)
    assert np.array_equal(
        chunking.merge(NEW, 3, 2, continues=True)[:, 0], [0, 0, 1, 1, 1, 1, 1, 1]
    ), "made to follow it"
    chunking.cut()
    assert len(chunking.remaining(3)) == 0 and np.array_equal(
        chunking.merge(OLD + 2, 4, 2), OLD + 2
    )
    assert np.array_equal(chunking.merge(NEW, 40, 2), NEW), "the last one is over"


@pytest.mark.parametrize(
    "early, late", [(0.4, 1.6), (0.498, 1.502), (0.6, 1.4), (1e9 + 0.498, 1e9 + 1.502)]
)
def test_what_is_observed_a_little_early_or_late_is_of_the_next_time_step_all_the_same(early, late):
    """In real time a stamp is milliseconds off: the distance of two is what is rounded."""
    chunk = np.arange(8.0)[:, None]
    following, weighed = Chunking("real_time", 3), Chunking("temporal_ensembling", 8)
    following.merge(chunk, early, 0)
    assert following.remaining(late)[0] == 1.0 and following.remaining(early)[0] == 0.0
    weighed.merge(chunk, early, 0)
    assert np.allclose(weighed.merge(chunk[1:], late, 0), chunk[1:]), (
        "both say the same of each time step"
    )
    weighed.merge(chunk, late + 7, 0)
    assert len(weighed.chunks) == 1, "both are over"


def test_temporal_ensembling_weighs_the_oldest_most():
    chunking = Chunking("temporal_ensembling", 4)
    assert chunking.execute == 1
    chunking.merge(OLD, 0, 0)
    sent = chunking.merge(NEW, 2, 0)[:, 0]
    assert sent[:6] == pytest.approx(
        np.full(6, np.exp(-0.01) / (1 + np.exp(-0.01)))
    ) and np.array_equal(sent[6:], [1, 1])


def test_each_environment_needs_a_chunk_at_the_end_of_its_last_one_or_after_a_cut():
    schedule = ChunkSchedule(3, 2)
    assert schedule.execute == 2 and schedule.due.tolist() == [True] * 3, "at the start"
    schedule.replan()
    assert schedule.due.tolist() == [False] * 3 and schedule.index.tolist() == [0] * 3
    schedule.advance(np.array([True, False, True]))
    assert schedule.index.tolist() == [1, 0, 1] and not schedule.due.any()
    schedule.advance()
    assert schedule.due.tolist() == [True, False, True]
    schedule.replan(schedule.due)
    assert schedule.index.tolist() == [0, 1, 0]
    schedule.cut(np.array([2]))
    assert schedule.due.tolist() == [False, False, True]
    schedule.cut()
    assert schedule.due.all()
    schedule.replan()
    schedule.advance(slice(1, None), steps=2)
    assert schedule.due.tolist() == [False, True, True]
