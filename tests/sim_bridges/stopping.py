"""A simulator whose arm stops by itself, in the interface of ``HasFaults``."""

import numpy as np


class Simulator:
    tick_s, cameras, joint_names = 0.01, (), ("one",)

    def __init__(self, recovers: bool = True):
        self.faults = ()
        self.recovers = recovers
        self.pose = np.array([0.5, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])

    def reset(self, seed):
        pass

    def advance(self, target_pose, gripper_width=None):
        self.pose = target_pose if target_pose is not None and not self.faults else self.pose

    def tcp_pose(self):
        return self.pose

    def gripper_width(self):
        return None

    def channels(self):
        return {"current_pose": self.pose, "object_pose": self.pose}

    def provoke(self, fault):
        self.faults = (fault,) if fault == "joint_reflex" else self.faults
        return fault == "joint_reflex"

    def recover(self):
        self.faults = () if self.recovers else self.faults
        return self.recovers
