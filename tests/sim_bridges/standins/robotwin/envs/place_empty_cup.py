import tempfile
from pathlib import Path
from types import SimpleNamespace as Space

import mani_skill
import numpy as np
import sapien
import transforms3d as t3d

from .utils import UnStableError

URDF = Path(mani_skill.__file__).parent / "assets/robots/panda/panda_v2.urdf"
ROOT = sapien.Pose([0, -0.65, 0.0], [np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
FOOTPRINT = """<link name="footprint"/><joint name="stand" type="fixed"><parent link="footprint"/>
<child link="panda_link0"/><origin xyz="0 0 0.74"/></joint></robot>"""
HOME = [0.0, 0.3927, 0.0, -1.9635, 0.0, 2.3562, 0.7854, 0.04, 0.04]
# the tool's x is the hand's z
DELTA = np.array([[0.0, 0.0, 1.0], [0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
REACH_M = 0.1034


class Robot:
    left_gripper_scale = [0.0, 0.04]

    def __init__(self, scene):
        loader = scene.create_urdf_loader()
        loader.fix_root_link = True
        with tempfile.TemporaryDirectory() as folder:
            text = URDF.read_text().replace('filename="', f'filename="{URDF.parent}/')
            (path := Path(folder) / "panda.urdf").write_text(text.replace("</robot>", FOOTPRINT))
            self.left_entity = loader.load(str(path))
        self.left_entity.set_root_pose(ROOT)
        self.left_entity.set_qpos(HOME)
        find = self.left_entity.find_joint_by_name
        self.left_arm_joints = [find(f"panda_joint{i}") for i in range(1, 8)]
        self.left_gripper = [
            (find("panda_finger_joint1"), 1.0, 0.0),
            (find("panda_finger_joint2"), 1.0, 0.0),
        ]
        self.left_ee = find("panda_hand_joint")
        for joint in self.left_arm_joints:
            joint.set_drive_property(stiffness=1000, damping=200)
            joint.set_friction(0.0)
        for joint, _, _ in self.left_gripper:
            joint.set_drive_property(stiffness=1000, damping=200)
            joint.set_friction(0.1)
        self.left_gripper_val = 1.0
        self.set_arm_joints(HOME[:7], [0.0] * 7, "left")

    def get_left_tcp_pose(self):
        pose = self.left_ee.child_link.get_entity_pose()
        turned = t3d.quaternions.quat2mat(pose.q) @ DELTA
        return [*(pose.p + turned @ [REACH_M, 0, 0]), *t3d.quaternions.mat2quat(turned)]

    def set_arm_joints(self, position, velocity, arm_tag):
        entity = self.left_entity
        entity.set_qf(entity.compute_passive_force(gravity=True, coriolis_and_centrifugal=True))
        for joint, angle, speed in zip(self.left_arm_joints, position, velocity, strict=True):
            joint.set_drive_target(angle)
            joint.set_drive_velocity_target(speed)

    def set_gripper(self, value, arm_tag, gripper_eps=0.1):
        assert gripper_eps == 0.0 and arm_tag == "left"
        self.left_gripper_val = float(np.clip(value, 0, 1))
        for joint, scale, bias in self.left_gripper:
            joint.set_drive_target(self.left_gripper_val * 0.04 * scale + bias)


class place_empty_cup:
    def setup_demo(
        self, now_ep_num, seed, is_test, domain_randomization, left_embodiment_config, **options
    ):
        assert options["dual_arm_embodied"] and options["task_name"] == "place_empty_cup"
        if seed % 7 == 3:
            raise UnStableError(f"Objects is unstable in seed({seed})")
        np.random.seed(seed % 2**32)
        self.scene = sapien.Scene()
        self.scene.set_timestep(1 / 250)
        self.scene.set_ambient_light([0.5, 0.5, 0.5])
        self.scene.add_directional_light([0, 0.5, -1], [0.5, 0.5, 0.5])
        self._box([0.6, 0.35, 0.02], [0, 0, 0.72], [0.8, 0.8, 0.8], kind="static")
        tag = np.random.randint(0, 2)
        low, high = [[0.15, 0.3], [-0.3, -0.15]][tag]
        place = np.random.uniform([low, -0.2], [high, 0.05])
        low, high = [[-0.05, 0.1], [-0.1, 0.05]][tag]
        goal = place
        while np.sum((goal - place) ** 2) < 0.01:
            goal = np.random.uniform([low, -0.2], [high, 0.05])
        self.cup = self._box([0.02, 0.02, 0.02], [*place, 0.76], [0.9, 0.1, 0.1])
        self.coaster = self._box([0.05, 0.05, 0.002], [*goal, 0.742], [0.1, 0.1, 0.9], "static")
        self.robot = Robot(self.scene)
        head = self.scene.add_camera("head_camera", 320, 240, 0.9, 0.01, 10)
        head.set_entity_pose(
            sapien.Pose([0.0, 0.65, 1.4], t3d.euler.euler2quat(0, 0.75, -np.pi / 2))
        )
        wrist = self.scene.add_camera("left_camera", 320, 240, 1.2, 0.01, 10)
        views = (head, wrist)
        self.cameras = Space(
            update_picture=lambda: [view.take_picture() for view in views],
            get_rgb=lambda: {
                view.name: {"rgb": (view.get_picture("Color")[..., :3] * 255).astype(np.uint8)}
                for view in views
            },
        )
        self._wrist = wrist
        for _ in range(50):
            self.scene.step()

    def _box(self, half, place, colour, kind="dynamic"):
        builder = self.scene.create_actor_builder()
        builder.add_box_collision(half_size=half, density=300)
        builder.add_box_visual(half_size=half, material=colour)
        builder.set_initial_pose(sapien.Pose(place))
        return builder.build_static() if kind == "static" else builder.build()

    def _update_render(self):
        pose = self.robot.left_ee.child_link.get_entity_pose()
        self._wrist.set_entity_pose(
            pose * sapien.Pose([0.08, 0, 0.0], t3d.euler.euler2quat(0, -np.pi / 2, 0))
        )
        self.scene.update_render()

    def close_env(self, clear_cache=False):
        self.scene = None

    def check_success(self):
        cup, coaster = self.cup.get_pose().p, self.coaster.get_pose().p
        near = (
            np.sum((cup[:2] - coaster[:2]) ** 2) < 0.035**2
            and abs(cup[2] - coaster[2] - 0.022) < 0.015
        )
        return bool(near and self.robot.left_gripper_val > 0.8)
