"""Which rule of the recipe ends training at a station."""

import time
from collections import deque

import pytest

from rlinf.director import Director


@pytest.mark.parametrize("recent, steps, minutes, why", [
    ([1] * 5, 10, 1, "5 of the last 5 training episodes succeeded (online.stop_at_success)"),
    ([0, 0, 1, 1, 0, 1, 1], 10, 1, "4 of the last 5 training episodes succeeded (online.stop_at_success)"),
    ([1] * 4, 10, 1, ""), ([1, 1, 1, 0, 0, 1, 1], 10, 1, ""),
    ([1, 0], 500, 1, "500 time steps were played (online.max_env_steps)"),
    ([1, 0], 10, -1, "3 minutes were over (online.max_minutes)"), ([], 0, 1, "")])
def test_it_says_why_training_ends(recent, steps, minutes, why):
    director = Director.__new__(Director)  # without ROS
    director.recent, director.env_steps = deque(map(bool, recent), maxlen=50), steps
    online = {"stop_at_success": 0.8, "stop_episodes": 5, "max_env_steps": 500, "max_minutes": 3.0}
    assert director._why_to_end(online, time.time() + 60 * minutes) == why
    assert director._success_of_last(2) == pytest.approx(sum(recent[-2:]) / max(len(recent[-2:]), 1))
