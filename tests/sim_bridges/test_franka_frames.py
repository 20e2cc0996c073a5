"""The tool of our Frankas is where, and turned as, libfranka has it: by the arm's published
parameters, not by ours.
"""

import numpy as np
import pytest

from rlinf_core.interlock import load_limits
from sim_bridges.core.isolated import make

READY = np.pi / 4 * np.array([0, -1, 0, -3, 0, 2, 1])


def fr3(joints, tool_m=0.1034, turned=-np.pi / 4):
    """(4, 4) pose of a tool so far from the flange, by the FR3's Denavit-Hartenberg parameters
    (Craig's; Franka's documentation); the hand's by default (F_T_NE)."""
    pose = np.eye(4)
    for a, d, alpha, theta in zip(
        (0, 0, 0, 0.0825, -0.0825, 0, 0.088, 0),
        (0.333, 0, 0.316, 0, 0.384, 0, 0, 0.107 + tool_m),
        np.pi / 2 * np.array([0, -1, 1, 1, -1, 1, 1, 0]),
        (*joints, turned),
        strict=True,
    ):
        (ca, sa), (ct, st) = ((np.cos(angle), np.sin(angle)) for angle in (alpha, theta))
        pose = pose @ np.array(
            [
                [ct, -st, 0, a],
                [st * ca, ct * ca, -sa, -d * sa],
                [st * sa, ct * sa, ca, d * ca],
                [0, 0, 0, 1],
            ]
        )
    return pose


def axes(quaternion):
    """(3, 3) rotation of x, y, z, w."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@pytest.mark.parametrize(
    "limits",
    [
        "robots/franka_fr3/limits.yaml",
        "sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml",
    ],
)
def test_the_nominal_orientation_is_that_of_the_hand_where_the_arm_is_ready(limits):
    assert axes(load_limits(limits).orientation) == pytest.approx(fr3(READY)[:3, :3], abs=1e-9)


def test_the_demos_panda_has_its_tool_turned_as_libfranka_has_the_hand():
    simulator = make("franka_mujoco")
    for seed in range(3):
        simulator.reset(seed)
        channels = simulator.channels()
        expected = fr3(channels["joint_states"], tool_m=0.0)
        assert axes(channels["current_pose"][3:]) == pytest.approx(expected[:3, :3], abs=1e-3)
        away = expected[:3, :3].T @ (channels["current_pose"][:3] - expected[:3, 3])
        assert away[:2] == pytest.approx([0.0, 0.0], abs=1e-3) and away[2] > 0.1, (
            "the peg's tip, on the flange's axis"
        )
