"""A machine's clock is set by an hour under a whole station that learns in real time."""

import time

import pytest

from tests.ros.runs import Run, check_nothing_lost, online
from tests.stepped_clock import SteppedClock

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(900)]
BACK_S = 200.0  # until nodes that lost each other have met again


@pytest.mark.domain(200)
def test_a_station_plays_on_after_its_clock_was_set_and_loses_no_episode(tmp_path, monkeypatch):
    (tmp_path / "clock").mkdir()
    clock = SteppedClock(tmp_path / "clock")
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    with Run(
        tmp_path / "run",
        "station.processes=several",
        "station.lockstep=false",
        "online.max_env_steps=100000",
        "online.max_minutes=10",
        domain=200,
    ) as run:
        run.wait(lambda: len(online(run)) >= 2, 200, "the online phase")
        for seconds in (3600, 0, -3600, 0):
            before, began = len(online(run)), time.monotonic()
            clock.step(seconds)
            run.wait(lambda n=before: len(online(run)) >= n + 2, BACK_S, f"episodes at {seconds}")
            print(f"clock at {seconds:+} s: two episodes after {time.monotonic() - began:.1f} s")
        run.supervisor.children["director"].popen.terminate()
    check_nothing_lost(run)
