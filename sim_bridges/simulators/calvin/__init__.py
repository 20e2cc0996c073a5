"""CALVIN: its play table and Panda in PyBullet; the task is to lift one of its blocks.

Mees et al. 2022, arXiv 2112.03227. The goal is a point above the block's start. CALVIN is not on
PyPI: ``make calvin`` fetches its environment's sources. The adapter leaves out two parts of its
``step``: relative actions and the cameras.
"""

from __future__ import annotations

import numpy as np

from rlinf_core.core.errors import RecipeError
from sim_bridges.core.adapters import next_command, unrotated_pose

PACKAGE, INSTALL = "calvin_env", "make calvin"
SCENES = tuple(f"calvin_scene_{letter}" for letter in "ABCD")
BLOCKS = ("red", "blue", "pink")
LIFT_M = 0.10  # height of the goal above the block's start
FINGER_FORCE_N = 20.0  # force of each finger; CALVIN's own 200 N push the block through the fingers


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is 50 ms, 12 steps of PyBullet.

    Args:
        scene: one of the four tables of CALVIN
        block: colour of the block to lift
    """

    tick_s = 0.05
    cameras = ("front", "wrist", "video")
    joint_names = tuple(f"panda_joint{i}" for i in range(1, 8))

    def __init__(self, scene: str = "calvin_scene_D", block: str = "red") -> None:
        import calvin_env
        import hydra

        if scene not in SCENES or block not in BLOCKS:
            raise RecipeError(
                f"calvin: expected a scene of {', '.join(SCENES)} and a block of "
                f"{', '.join(BLOCKS)}; got '{scene}' and '{block}'"
            )
        self._name = f"block_{block}"
        root = calvin_env.__path__[0] + "/.."
        with hydra.initialize_config_dir(f"{root}/conf", version_base=None):
            config = hydra.compose(
                "config_data_collection",
                [
                    "cameras=static_and_gripper",
                    "use_vr=false",
                    f"scene={scene}",
                    f"data_path={root}/data",
                    f"scene.objects.movable_objects.{self._name}.initial_pos=table",
                ],
            )
        config.env.use_egl, config.env.show_gui, config.env.use_scene_info = False, False, True
        self.env = hydra.utils.instantiate(config.env)
        self._oracle = hydra.utils.instantiate(config.tasks)
        self._p, self._robot = self.env.p, self.env.robot
        self._block = next(
            item for item in self.env.scene.movable_objects if item.name == self._name
        )
        self._base = np.array(self._robot.base_position)
        self._substeps = round(self.tick_s * config.env.bullet_time_step)
        self._initial_state = self._p.saveState(physicsClientId=self.env.cid)
        self.reset(0)

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.env.np_random = self.env.scene.np_random = random
        for item in self.env.scene.movable_objects:
            item.np_random = random
        # also restores the contacts' warm start
        self._p.restoreState(self._initial_state, physicsClientId=self.env.cid)
        self.env.scene.reset()
        self._robot.reset()
        self._command = self.tcp_pose(), self.gripper_width()
        for _ in range(4):
            self.advance(None)
        self._start = self.env.get_info()
        self._goal = unrotated_pose(self._block_pose()[:3] + [0.0, 0.0, LIFT_M])

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        joints = self._robot.mixed_ik.get_ik(pose[:3] + self._base, pose[3:])
        for joint, angle in zip(self._robot.arm_joint_ids, joints, strict=True):
            self._drive_joint(joint, angle, self._robot.max_joint_force, self._robot.max_velocity)
        for joint in self._robot.gripper_joint_ids:
            self._drive_joint(joint, width / 2, FINGER_FORCE_N, 0.2)
        for _ in range(self._substeps):
            self._p.stepSimulation(physicsClientId=self.env.cid)
        self.env.scene.step()

    def tcp_pose(self) -> np.ndarray:
        return self._tool_state()[0]

    def gripper_width(self) -> float:
        return float(sum(self._angles(self._robot.gripper_joint_ids)))

    def channels(self) -> dict[str, np.ndarray]:
        pose, twist = self._tool_state()
        return {
            "current_pose": pose,
            "current_twist": twist,
            "joint_states": self._angles(self._robot.arm_joint_ids),
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self._block_pose(),
            "goal_pose": self._goal.copy(),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        """Return CALVIN's own verdict: the block left the table and only the robot touches it."""
        task_name = f"lift_{self._name.removeprefix('block_')}_block_table"
        return task_name in self._oracle.get_task_info_for_set(
            self._start, self.env.get_info(), {task_name}
        )

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        static, gripper = self.env.cameras
        view = gripper if camera == "wrist" else static
        view.height, view.width = height, width
        return np.ascontiguousarray(view.render()[0][..., :3], np.uint8)

    def _drive_joint(self, joint: int, target: float, force: float, speed: float) -> None:
        self._p.setJointMotorControl2(
            self._robot.robot_uid,
            joint,
            self._p.POSITION_CONTROL,
            targetPosition=target,
            force=force,
            maxVelocity=speed,
            physicsClientId=self.env.cid,
        )

    def _angles(self, joints: list[int]) -> np.ndarray:
        states = self._p.getJointStates(
            self._robot.robot_uid, list(joints), physicsClientId=self.env.cid
        )
        return np.array([state[0] for state in states])

    def _tool_state(self) -> tuple[np.ndarray, np.ndarray]:
        state = self._p.getLinkState(
            self._robot.robot_uid,
            self._robot.tcp_link_id,
            computeLinkVelocity=1,
            computeForwardKinematics=1,
            physicsClientId=self.env.cid,
        )
        return np.concatenate([np.array(state[4]) - self._base, state[5]]), np.concatenate(
            [state[6], state[7]]
        )

    def _block_pose(self) -> np.ndarray:
        position, quaternion = self._p.getBasePositionAndOrientation(
            self._block.uid, physicsClientId=self.env.cid
        )
        return np.concatenate([np.array(position) - self._base, quaternion])
