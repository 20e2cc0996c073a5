"""Seconds on a core and seconds asleep are told from each other."""

import time

import pytest

from rlinf_core.core.usage import measure_usage


def test_sleep_is_idle_and_work_is_busy():
    with measure_usage() as asleep:
        time.sleep(0.2)
    with measure_usage() as working:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
    assert asleep.idle_s == pytest.approx(0.2, abs=0.15) and asleep.busy_s < 0.05
    assert (
        working.busy_s == pytest.approx(0.2, abs=0.05)
        and working.idle_s < 0.5 * working.wall_s + 0.05
    )
