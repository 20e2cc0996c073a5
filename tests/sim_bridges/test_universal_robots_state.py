"""The twin of a Universal Robots arm, without ROS: where its tool is, what stops it, and how it
plays a trajectory.
"""

import numpy as np
import pytest

from sim_bridges.twins.universal_robots_state import HOME, Control, quaternion, tool_pose


def test_the_twins_tool_is_where_universal_robots_own_spreadsheet_has_it():
    """All joints at zero the arm lies along -x: a2 + a3, d4 + d6 sideways, d1 - d5 high; the tool
    looks along -y.
    """
    pose = tool_pose(np.zeros(6))
    assert pose[:3] == pytest.approx([-0.425 - 0.3922, -0.1333 - 0.0996, 0.1625 - 0.0997])
    x, y, z, w = pose[3:]
    looks = (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y))
    assert looks == pytest.approx((0.0, -1.0, 0.0), abs=1e-9)
    for turn in np.random.default_rng(0).normal(size=(50, 4)):
        w, x, y, z = turn / np.linalg.norm(turn)
        m = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )
        assert abs(quaternion(m) @ [x, y, z, w]) == pytest.approx(1.0)


def test_a_protective_stop_of_the_twin_is_locked_for_five_seconds_and_an_estop_needs_power():
    control = Control()
    control.inject("protective_stop", now=10.0)
    assert "until 5s" in control.unlock(14.9) and control.start() and not control.follows
    assert control.unlock(15.0) == control.start() == "" and control.follows
    control.inject("robot_emergency_stop", now=20.0)
    assert control.power(7) and control.start()
    control.inject("", now=21.0)
    assert (
        control.start() == "the robot does not run"
        and not control.power(7)
        and not control.start()
        and control.follows
    )


def test_the_twin_plays_a_trajectory_in_its_time_and_more_slowly_where_its_slider_is_down():
    for slowed, steps, far in (("", 10, 0.06), ("slowed", 10, 0.0), ("slowed", 60, 0.06)):
        control = Control()
        target = control.joints + 0.1
        control.inject(slowed, now=0.0)
        control.command([0.1], target[None])
        for _ in range(steps):
            control.advance(0.01)
        assert np.all(control.joints - np.array(HOME) > far)
        assert np.all(control.joints - np.array(HOME) < 0.021) == (far == 0.0), (
            "a fifth of the way after all the time"
        )
    control.command([0.0, 0.1], np.stack([target + 0.05, target]))
    control.advance(0.01)
    assert np.all(control.joints > target), "it begins where it is told to"
