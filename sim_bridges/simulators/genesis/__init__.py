"""Genesis: its Panda, a cube on the ground and a goal in the air.

The scene is that of ManiSkill's PickCube. Genesis AI 2024,
https://github.com/Genesis-Embodied-AI/Genesis. It needs another MuJoCo than ours and so has its own
environment. Its first start compiles its kernels, which takes minutes, and caches them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_core.core.rotation import rotate
from sim_bridges.core.adapters import next_command, resized, unrotated_pose

PACKAGE, INSTALL = "genesis", "make genesis"
HOME = (0.0, 0.3927, 0.0, -1.9635, 0.0, 2.3562, 0.7854, 0.04, 0.04)  # [rad], fingers [m]
HALF_M = 0.02  # half edge of the cube
TOOL_M = 0.1034  # from the hand's frame to between the finger tips
SQUEEZED_M = -0.01  # set-point of a closed finger, so that it presses
RADIUS_M = 0.025  # radius of the goal, as in ManiSkill


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is 50 ms, five steps of physics."""

    tick_s = 0.05
    cameras = ("front", "video")
    joint_names = tuple(f"panda_joint{i}" for i in range(1, 8))
    STEPS = 5

    def __init__(self) -> None:
        import genesis

        if not genesis._initialized:
            genesis.init(backend=genesis.cpu, logging_level="error", seed=0)
        self._scene = genesis.Scene(
            show_viewer=False, sim_options=genesis.options.SimOptions(dt=self.tick_s / self.STEPS)
        )
        morphs, surface = genesis.morphs, genesis.surfaces.Default
        self._scene.add_entity(morphs.Plane())
        self._cube = self._scene.add_entity(
            morphs.Box(size=(2 * HALF_M,) * 3, pos=(0.6, 0.0, HALF_M)),
            surface=surface(color=(0.9, 0.1, 0.1)),
        )
        self._goal_marker = self._scene.add_entity(
            morphs.Sphere(radius=RADIUS_M, pos=(0.6, 0.0, 0.3), fixed=True, collision=False),
            surface=surface(color=(0.1, 0.9, 0.1)),
        )
        self._robot = self._scene.add_entity(
            morphs.MJCF(file="xml/franka_emika_panda/panda.xml"),
            material=genesis.materials.Rigid(gravity_compensation=1.0),
        )
        self._cameras = {
            "front": self._scene.add_camera(
                res=(256, 256), pos=(1.5, 0.0, 0.7), lookat=(0.5, 0.0, 0.15), fov=45, GUI=False
            ),
            "video": self._scene.add_camera(
                res=(640, 480), pos=(1.4, -1.0, 0.8), lookat=(0.5, 0.0, 0.2), fov=40, GUI=False
            ),
        }
        self._scene.build()
        self._robot.set_dofs_kp(
            np.array([4500, 4500, 3500, 3500, 2000, 2000, 2000, 500, 500], float)
        )
        self._robot.set_dofs_kv(np.array([450, 450, 350, 350, 200, 200, 200, 20, 20], float))
        self._robot.set_dofs_force_range(
            np.array([-87, -87, -87, -87, -12, -12, -12, -40, -40], float),
            np.array([87, 87, 87, 87, 12, 12, 12, 40, 40], float),
        )
        self._hand = self._robot.get_link("hand")
        self.reset(0)

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._scene.reset()
        turn = random.uniform(-0.5, 0.5)
        self._cube.set_pos([*(np.array([0.615, 0.0]) + random.uniform(-0.1, 0.1, 2)), HALF_M])
        self._cube.set_quat([np.cos(turn / 2), 0.0, 0.0, np.sin(turn / 2)])
        goal = np.array(
            [*(np.array([0.615, 0.0]) + random.uniform(-0.1, 0.1, 2)), random.uniform(0.05, 0.3)]
        )
        self._goal_marker.set_pos(goal)
        self._goal = unrotated_pose(goal)
        home = np.array(HOME)
        home[:7] += random.normal(0.0, 0.02, 7)
        self._robot.set_qpos(home)
        self._robot.control_dofs_position(home)
        self._command = self.tcp_pose(), self.gripper_width()

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        joints = _array(
            self._robot.inverse_kinematics(
                link=self._hand,
                pos=pose[:3] - _hand_to_tool(pose[3:]),
                quat=pose[[6, 3, 4, 5]],
                init_qpos=self._robot.get_qpos(),
                seed=0,
            )
        )
        joints[7:] = width / 2 if width > 1e-3 else SQUEEZED_M
        self._robot.control_dofs_position(joints)
        for _ in range(self.STEPS):
            self._scene.step()

    def tcp_pose(self) -> np.ndarray:
        quaternion = _array(self._hand.get_quat())[[1, 2, 3, 0]]
        return np.concatenate(
            [_array(self._hand.get_pos()) + _hand_to_tool(quaternion), quaternion]
        )

    def gripper_width(self) -> float:
        return float(_array(self._robot.get_qpos())[7:].sum())

    def channels(self) -> dict[str, np.ndarray]:
        pose, angular = self.tcp_pose(), _array(self._hand.get_ang())
        linear = _array(self._hand.get_vel()) + np.cross(angular, _hand_to_tool(pose[3:]))
        return {
            "current_pose": pose,
            "current_twist": np.concatenate([linear, angular]),
            "joint_states": _array(self._robot.get_qpos())[:7],
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": np.concatenate(
                [_array(self._cube.get_pos()), _array(self._cube.get_quat())[[1, 2, 3, 0]]]
            ),
            "goal_pose": self._goal.copy(),
        }

    def succeeded(self) -> None:
        """Return None: the task is ours, Genesis has none."""

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        picture = np.asarray(self._cameras[camera].render()[0], np.uint8)[..., :3]
        return resized(picture, height, width)


def _array(tensor: Any) -> np.ndarray:
    return tensor.cpu().numpy().astype(float)


def _hand_to_tool(quaternion_xyzw: np.ndarray) -> np.ndarray:
    """Return the vector (3,) from the hand's frame to between the finger tips [m]."""
    return np.array(rotate(quaternion_xyzw, (0.0, 0.0, TOOL_M)))
