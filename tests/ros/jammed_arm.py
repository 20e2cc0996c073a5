"""The demo's simulated arm, which jams in its first scene at a tilt that the limits forbid."""

import numpy as np

from sim_bridges.simulators.franka_mujoco import Simulator as Franka

FIRST_EPISODE = 3  # the simulator and its node each lay out one scene before
JAMS_AT_TICK = 60
TILT = np.array([np.cos(0.4), np.sin(0.4), 0.0, 0.0])  # xyzw: 0.8 rad from tool down, limit 0.5
SHIFT_M = np.array([0.08, 0.0, 0.0])


class Simulator(Franka):
    """The simulator ``franka_mujoco`` with a jam; a new scene frees the arm."""

    def __init__(self):
        self.scene_ticks = self.scenes = 0
        self.jam = None
        super().__init__()

    def reset(self, seed):
        super().reset(seed)
        self.scene_ticks = 0
        self.scenes += 1
        self.jam = None

    def advance(self, target_pose, gripper_width=None):
        self.scene_ticks += 1
        if self.scenes == FIRST_EPISODE and self.scene_ticks == JAMS_AT_TICK:
            self.jam = np.concatenate([self.tcp_pose()[:3] + SHIFT_M, TILT])
        super().advance(target_pose if self.jam is None else self.jam, gripper_width)
