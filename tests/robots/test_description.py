"""The shipped URDFs are those of the simulators' models: forward kinematics, at random joints,
against MuJoCo's own.
"""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from rlinf_core.core.errors import RlinfError
from rlinf_core.robots.description import read

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
POSES = 100


def pose(description, positions, link):
    """(4, 4): a link in the root, multiplied along its chain."""
    frames = {
        frame.child: frame
        for frame in [*description.fixed_frames(), *description.moving_frames(positions)]
    }
    result = np.eye(4)
    while link != description.root:
        frame, step = frames[link], np.eye(4)
        step[:3, :3] = Rotation.from_quat(frame.orientation).as_matrix()
        step[:3, 3] = frame.position
        result, link = step @ result, frame.parent
    return result


def in_mujoco(simulator, joints, body, origin=None, zero=()):
    """A function of joint positions to a body's pose (4, 4) in the base frame, by MuJoCo; joints of
    ``zero`` at 0.
    """
    import mujoco

    scene = simulator.scene
    model, data = scene.model, mujoco.MjData(scene.model)
    addresses = [model.joint(name).qposadr[0] for name in joints]

    def placed(positions):
        data.qpos[:] = scene.data.qpos
        data.qpos[[model.joint(name).qposadr[0] for name in zero]] = 0.0
        data.qpos[addresses] = positions
        mujoco.mj_kinematics(model, data)
        result, part = np.eye(4), data.body(body)
        result[:3, :3] = scene.rotation.T @ part.xmat.reshape(3, 3)
        result[:3, 3] = scene.rotation.T @ (
            part.xpos - (scene.origin if origin is None else origin)
        )
        return result

    return placed


def simulator(name):
    return importlib.import_module(f"sim_bridges.simulators.{name}").Simulator()


def ur5e():
    from sim_bridges.twins.universal_robots_state import tool_pose

    def placed(positions):
        result, values = np.eye(4), tool_pose(np.asarray(positions))
        result[:3, :3], result[:3, 3] = Rotation.from_quat(values[3:]).as_matrix(), values[:3]
        return result

    return placed


SEVEN = range(1, 8)
CASES = {  # file: joints of the URDF, link, what computes the same
    "panda": (
        [f"panda_joint{n}" for n in SEVEN],
        "panda_peg",
        lambda: in_mujoco(simulator("franka_mujoco"), [f"joint{n}" for n in SEVEN], "peg"),
    ),
    "gym_hil": (
        [f"panda_joint{n}" for n in SEVEN],
        "panda_link7",
        lambda: in_mujoco(simulator("gym_hil"), [f"joint{n}" for n in SEVEN], "link7"),
    ),
    "robosuite": (
        [f"panda_joint{n}" for n in SEVEN],
        "panda_link7",
        lambda: in_mujoco(
            simulator("robosuite"), [f"robot0_joint{n}" for n in SEVEN], "robot0_link7"
        ),
    ),
    "fr3": (
        [f"fr3_joint{n}" for n in SEVEN],
        "fr3_peg",
        lambda: in_mujoco(simulator("franka_mujoco"), [f"joint{n}" for n in SEVEN], "peg"),
    ),
    "two_pandas": (
        [f"right_panda_joint{n}" for n in SEVEN],
        "right_peg",
        lambda: in_mujoco(
            simulator("two_frankas"),
            [f"right_joint{n}" for n in SEVEN],
            "right_peg",
            origin=np.zeros(3),
        ),
    ),
    "sawyer": (
        [f"right_j{n}" for n in range(7)],
        "hand",
        lambda: in_mujoco(simulator("metaworld"), [f"right_j{n}" for n in range(7)], "hand"),
    ),
    "fetch": (
        [
            f"robot0:{name}_joint"
            for name in (
                "shoulder_pan",
                "shoulder_lift",
                "upperarm_roll",
                "elbow_flex",
                "forearm_roll",
                "wrist_flex",
                "wrist_roll",
            )
        ],
        "robot0_gripper_link",
        lambda: in_mujoco(
            simulator("gymnasium_robotics"),
            [
                f"robot0:{name}_joint"
                for name in (
                    "shoulder_pan",
                    "shoulder_lift",
                    "upperarm_roll",
                    "elbow_flex",
                    "forearm_roll",
                    "wrist_flex",
                    "wrist_roll",
                )
            ],
            "robot0:gripper_link",
            zero=["robot0:torso_lift_joint"],
        ),
    ),  # which nobody reports
    "ur5e": (
        [
            f"{name}_joint"
            for name in ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
        ],
        "tool0",
        ur5e,
    ),
}
NEEDS = {
    "gym_hil": "gym_hil",
    "robosuite": "robosuite",
    "sawyer": "metaworld",
    "fetch": "gymnasium_robotics",
}


@pytest.mark.parametrize("name", CASES)
def test_forward_kinematics_of_the_urdf_are_those_of_the_simulator(name):
    from urdf import ROBOTS

    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="make simulators")
    joints, link, make = CASES[name]
    description = read((ROBOTS.get(name) or ROBOTS["panda"])[0].read_text())
    placed, random = make(), np.random.default_rng(0)
    for _ in range(POSES):
        values = random.uniform(-3.0, 3.0, len(joints))
        ours = pose(description, dict(zip(joints, values, strict=True)), link)
        np.testing.assert_allclose(ours, placed(values), atol=1e-6)


@pytest.mark.parametrize("name", ["panda", "fr3", "two_pandas", "sawyer", "fetch", "ur5e"])
def test_the_shipped_file_is_what_the_script_makes(name):
    from urdf import ROBOTS, text

    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="make simulators")
    path, make = ROBOTS[name]
    assert path.read_text() == text(make()), f"run scripts/urdf.py {name}"


def test_joints_slide_turn_follow_others_and_are_not_placed_while_nobody_reports_them():
    description = read("""<robot name="r"><link name="a"/><link name="b"/><link name="c"/><link name="d"/><link name="e"/>
      <joint name="f" type="fixed"><parent link="a"/><child link="b"/>
        <origin xyz="1 0 0" rpy="0 0 1.5707963267948966"/></joint>
      <joint name="s" type="prismatic"><parent link="b"/><child link="c"/><origin rpy="0 0 1.5707963267948966"/>
        <axis xyz="2 0 0"/></joint>
      <joint name="m" type="prismatic"><parent link="b"/><child link="d"/>
        <mimic joint="s" multiplier="-2" offset="0.1"/></joint>
      <joint name="t" type="continuous"><parent link="c"/><child link="e"/><axis xyz="0 0 1"/></joint></robot>""")
    assert description.root == "a" and [frame.child for frame in description.fixed_frames()] == [
        "b"
    ]
    moved = {frame.child: frame for frame in description.moving_frames({"s": 0.25})}
    assert moved.keys() == {"c", "d"}, "nobody reports t"
    np.testing.assert_allclose(moved["c"].position, [0.0, 0.25, 0.0], atol=1e-12)
    np.testing.assert_allclose(moved["d"].position, [-0.4, 0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    "text, message",
    [
        ("no xml", "got invalid XML"),
        ("<model/>", "expected a <robot> with links, got <model> with 0"),
        (
            '<robot name="r"><link name="a"/><link name="b"/></robot>',
            "expected one root link, got a, b",
        ),
        (
            '<robot name="r"><link name="a"/><joint name="j"><parent link="a"/></joint></robot>',
            "joint 'j': expected <parent",
        ),
        (
            '<robot name="r"><link name="a"/><link name="b"/><joint name="j" type="fixed"><parent '
            'link="a"/><child link="b"/>'
            '<origin xyz="1 2"/></joint></robot>',
            "joint 'j': expected three numbers, got '1 2'",
        ),
    ],
)
def test_a_description_that_cannot_be_read_is_refused_with_the_reason(text, message):
    with pytest.raises(RlinfError, match="robot_description"):
        try:
            read(text)
        except RlinfError as error:
            assert message in str(error)
            raise
