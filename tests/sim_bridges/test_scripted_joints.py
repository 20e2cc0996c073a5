"""The script of an arm that takes joint steps, at a UR5e's kinematics: it reaches the goals that
the twin draws.
"""

import numpy as np
import pytest

from rlinf_core.interlock import load_limits
from rlinf_core.recipes import load_recipe, station_robot, station_task
from rlinf_core.tasks.scripts import make_script
from sim_bridges.twins.universal_robots import NEAR_M
from sim_bridges.twins.universal_robots_state import HOME, tool_pose


@pytest.fixture(scope="module")
def recipe():
    return load_recipe("ur5e_twin")


def plays(task, goals, noise=0.12):
    """Time steps to each of them in turn, the arm beginning where it was; those of an episode where
    it did not come.
    """
    joints, taken = np.array(HOME), []
    for seed, goal in enumerate(goals):
        script = make_script(task, noise=noise, seed=seed)
        step = 0
        while step < task.max_steps:
            pose = tool_pose(joints)
            if np.linalg.norm(pose[:3] - goal[:3]) < NEAR_M:
                break
            action = script.act({"joint_states": joints, "current_pose": pose, "goal_pose": goal})
            assert action.shape == (6,) and np.abs(action).max() <= 1
            joints, step = joints + task.spec.action.to_si(action), step + 1
        taken.append(step)
    return np.array(taken)


def drawn(count):
    return [
        tool_pose(np.array(HOME) + np.random.default_rng(seed).uniform(-0.3, 0.3, 6))
        for seed in range(count)
    ]


def test_it_reaches_the_goals_of_the_twin_which_lie_within_the_arms_box(recipe):
    limits, goals = load_limits(station_robot(recipe).limits), drawn(100)
    assert all(
        np.all(goal[:3] > limits.box_low) and np.all(goal[:3] < limits.box_high) for goal in goals
    )
    task = station_task(recipe)
    steady, unsteady = plays(task, goals, noise=0.0), plays(task, goals)
    assert np.mean(steady < task.max_steps) == 1.0 and steady.max() < 60
    assert np.mean(unsteady < task.max_steps) >= 0.99
