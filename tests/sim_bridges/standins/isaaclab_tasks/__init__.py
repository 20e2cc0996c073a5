"""Registers two tasks like Isaac Lab: tensors with a leading axis, quaternions of the version.

3.0: isaaclab_tasks/contrib/lift/config/franka/__init__.py
id="IsaacContrib-Lift-Cube-Franka-IK-Abs", isaaclab_tasks/core/reach/config/franka/__init__.py
id="Isaac-Reach-Franka".
"""

from types import SimpleNamespace as Space

import gymnasium
import isaaclab
import numpy as np
import torch
from isaaclab.app import LAUNCHED
from isaaclab.envs.mdp import JointPositionActionCfg
from isaaclab.sensors import CameraCfg
from world import World

ORIGIN = np.array([2.5, -2.5, 0.0])  # of the environment in the world
OLD = isaaclab.__version__.startswith("2.")
ORDER = [3, 0, 1, 2] if OLD else [0, 1, 2, 3]  # from xyzw
IDENTITY = np.array([0.0, 0.0, 0.0, 1.0])


class Proxy:
    """A stand-in for 3.0's ProxyArray (isaaclab/utils/warp/proxy_array.py)."""

    def __init__(self, values):
        self.torch = values


def reported(values):
    return tensor(values) if OLD else Proxy(tensor(values))


class ManagerBasedRLEnv(gymnasium.Env):
    def __init__(self, cfg):
        assert isinstance(cfg.actions.gripper_action, JointPositionActionCfg) and isinstance(
            cfg.scene.front, CameraCfg
        )
        assert cfg.terminations.time_out is None and cfg.terminations.object_dropping is None
        assert (
            cfg.actions.arm_action.body_offset.pos == cfg.scene.ee_frame.target_frames[0].offset.pos
        )
        assert LAUNCHED
        self.cfg, self.device, self.world = cfg, "cpu", World()
        self.sim = Space(render=lambda: None)
        self.command_manager = Space(
            get_command=lambda name: tensor([*self.world.goal, *IDENTITY[ORDER]])
        )
        camera = Space(data=Space(output={}))
        camera.update = lambda dt, force_recompute: camera.data.output.update(
            rgb=torch.from_numpy(self.world.picture(cfg.scene.front.height, cfg.scene.front.width))[
                None
            ]
        )
        self.scene = {
            "robot": Space(find_bodies=lambda name: ([1], [name])),
            "ee_frame": Space(),
            "object": Space(),
            "front": camera,
        }

    def reset(self, seed=None):
        self.world.reset(seed)
        self._tell()
        return {}, {}

    def step(self, action):
        assert action.shape == (1, 9) and action.dtype == torch.float32
        values = action[0].double().numpy()
        for _ in range(self.cfg.decimation):
            self.world.step(
                values[:3], values[3:7][np.argsort(ORDER)], 2 * values[7], self.cfg.sim.dt
            )
        self._tell()

    def _tell(self):
        world = self.world
        still, moving = np.zeros(3), np.stack([np.zeros(3), world.velocity])
        self.scene["robot"].data = Space(
            root_pos_w=reported(ORIGIN),
            joint_pos=reported([0.1] * 7 + [world.opening / 2] * 2),
            body_link_pos_w=reported(np.stack([ORIGIN, world.position + ORIGIN])),
            body_link_lin_vel_w=reported(moving),
            body_link_ang_vel_w=reported(np.stack([still, still])),
        )
        self.scene["ee_frame"].data = Space(
            target_pos_source=reported(world.position[None]),
            target_pos_w=reported(world.position[None] + ORIGIN),
            target_quat_source=reported(world.quaternion[ORDER][None]),
        )
        self.scene["object"].data = Space(
            root_pos_w=reported(world.cube + ORIGIN), root_quat_w=reported(IDENTITY[ORDER])
        )


class Batch(gymnasium.Env):
    """N environments that observe (index, time step); episodes end after five time steps.

    Those of the last environment end by termination.
    """

    exists = False

    def __init__(self, cfg):
        if Batch.exists:
            raise RuntimeError("Simulation context already exists. Cannot create a new one.")
        Batch.exists = True
        self.size, self.device, self.step_dt = cfg.num_envs, cfg.device, 1 / 30
        self.action_manager = Space(total_action_dim=7)

    def reset(self, seed=None):
        self.at = torch.zeros(self.size)
        return self._observation(), {}

    def step(self, actions):
        self.at += 1
        ended, last = self.at >= 5, torch.arange(self.size) == self.size - 1
        self.at[ended] = 0
        return self._observation(), actions.sum(dim=1), ended & last, ended & ~last, {}

    def _observation(self):
        return {"policy": torch.stack([torch.arange(self.size).float(), self.at], dim=1)}


def tensor(values):
    return torch.tensor(np.asarray(values, np.float32))[None]


LIFT = "Isaac-Lift-Cube-Franka-IK-Abs-v0" if OLD else "IsaacContrib-Lift-Cube-Franka-IK-Abs"
for name, kind in ((LIFT, ManagerBasedRLEnv), ("Isaac-Reach-Franka" + "-v0" * OLD, Batch)):
    gymnasium.register(name, kind, disable_env_checker=True, order_enforce=False)
