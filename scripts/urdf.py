"""Write the URDFs of the shipped robots.

    .venv/bin/python scripts/urdf.py [NAME ...]

The sources are the models of the simulators, and the published parameters of a UR5e and an SO-101.
A mesh becomes its bounding box, because the meshes are in wheels that a viewer on another machine
does not have.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SIMULATORS = ROOT / "sim_bridges/simulators"
BASE = "base_link"  # the robot interface's base frame


def main(names: list[str]) -> None:
    """Write all URDFs, or those with the given names."""
    for name in names or ROBOTS:
        path, make = ROBOTS[name]
        path.write_text(text(make()))
        print(path.relative_to(ROOT))


def text(robot: xml.Element) -> str:
    """Return the content of the file."""
    xml.indent(robot)
    note = "<!-- `python scripts/urdf.py` writes this file; do not edit it. -->"
    return f'<?xml version="1.0"?>\n{note}\n{xml.tostring(robot, encoding="unicode")}\n'


class OfMujoco:
    """A URDF of a body of a MuJoCo model with all its descendants.

    Args:
        model: the MuJoCo model.
        joints: name in the URDF of each movable joint, by the name in the model. All other
            joints are fixed at zero.
        prefix: prefix of the link names.
    """

    def __init__(self, model: Any, joints: dict[str, str], prefix: str = "") -> None:
        import mujoco

        self._mujoco, self.model, self.joints, self.prefix = mujoco, model, joints, prefix

    def add(
        self, robot: xml.Element, body: str, parent: str, origin: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Add the body below a link.

        Args:
            robot: the URDF.
            body: name in the model.
            parent: the link.
            origin: the body's position (3,) [m] and rotation (3, 3) in that link.
        """
        self._add(robot, self.model.body(body).id, parent, *origin)

    def _add(
        self, robot: xml.Element, body: int, parent: str, position: np.ndarray, rotation: np.ndarray
    ) -> None:
        model = self.model
        link = self.prefix + model_name(self.model.body(body).name or f"body{body}")
        joints = [index for index in range(model.njnt) if model.jnt_bodyid[index] == body]
        movable = [index for index in joints if model.joint(index).name in self.joints]
        assert len(movable) <= 1, "a link has one joint"
        shift = np.zeros(3)
        if movable:
            shift = model.jnt_pos[movable[0]]
            joint = self._joint(movable[0])
        else:
            joint = xml.Element("joint", name=f"{link}_fixed", type="fixed")
        joint.insert(0, _origin(position + rotation @ shift, rotation))
        joint[1:1] = [xml.Element("parent", link=parent), xml.Element("child", link=link)]
        robot.extend([self._link(link, body, shift), joint])
        for child in range(body + 1, model.nbody):
            if model.body_parentid[child] == body:
                self._add(
                    robot,
                    child,
                    link,
                    model.body_pos[child] - shift,
                    self._matrix(model.body_quat[child]),
                )

    def _joint(self, index: int) -> xml.Element:
        model = self.model
        slides = model.jnt_type[index] == self._mujoco.mjtJoint.mjJNT_SLIDE
        limited = bool(model.jnt_limited[index])
        kind = "prismatic" if slides else "revolute" if limited else "continuous"
        joint = xml.Element("joint", name=self.joints[model.joint(index).name], type=kind)
        xml.SubElement(joint, "axis", xyz=_numbers(model.jnt_axis[index]))
        if limited or slides:
            low, high = model.jnt_range[index]
            xml.SubElement(
                joint, "limit", lower=_number(low), upper=_number(high), effort="0", velocity="0"
            )
        return joint

    def _link(self, name: str, body: int, shift: np.ndarray) -> xml.Element:
        link, model = xml.Element("link", name=name), self.model
        geoms = [index for index in range(model.ngeom) if model.geom_bodyid[index] == body]
        shown = [
            index
            for index in geoms
            if model.geom_group[index] != 3 and model.geom_rgba[index][3] > 0
        ] or geoms
        if boxes := [
            self._corners(index)
            for index in shown
            if model.geom_type[index] == self._mujoco.mjtGeom.mjGEOM_MESH
        ]:
            low, high = np.min([box[0] for box in boxes], 0), np.max([box[1] for box in boxes], 0)
            link.append(visual((low + high) / 2 - shift, np.eye(3), "box", (high - low) / 2))
        for index in shown:
            kind = self._mujoco.mjtGeom(model.geom_type[index]).name.removeprefix("mjGEOM_").lower()
            if kind in ("box", "cylinder", "capsule", "sphere"):
                link.append(
                    visual(
                        model.geom_pos[index] - shift,
                        self._matrix(model.geom_quat[index]),
                        kind,
                        model.geom_size[index],
                        model.geom_rgba[index],
                    )
                )
        return link

    def _corners(self, geom: int) -> tuple[np.ndarray, np.ndarray]:
        """Return two corners (3,), (3,) of the box around a mesh, along the axes of its body."""
        model, mesh = self.model, self.model.geom_dataid[geom]
        first = model.mesh_vertadr[mesh]
        points = model.mesh_vert[first : first + model.mesh_vertnum[mesh]]
        placed = points @ self._matrix(model.geom_quat[geom]).T + model.geom_pos[geom]
        return placed.min(0), placed.max(0)

    def _matrix(self, quaternion_wxyz: np.ndarray) -> np.ndarray:
        matrix = np.empty(9)
        self._mujoco.mju_quat2Mat(matrix, quaternion_wxyz)
        return matrix.reshape(3, 3)


def model_name(name: str) -> str:
    """Return a link name for a body's name, without the colons that no frame may have."""
    return name.replace(":", "_")


def visual(
    position: np.ndarray, rotation: np.ndarray, kind: str, size: np.ndarray, rgba: Any = None
) -> xml.Element:
    """Return the visual element for a geom with MuJoCo's sizes [m]."""
    element = xml.Element("visual")
    element.append(_origin(position, rotation))
    shape = xml.SubElement(element, "geometry")
    if kind == "box":
        xml.SubElement(shape, "box", size=_numbers(2 * np.asarray(size[:3])))
    elif kind == "sphere":
        xml.SubElement(shape, "sphere", radius=_number(size[0]))
    else:
        length = 2 * size[1] + (2 * size[0] if kind == "capsule" else 0.0)
        xml.SubElement(shape, "cylinder", radius=_number(size[0]), length=_number(length))
    colour = [0.82, 0.84, 0.86, 1.0] if rgba is None else rgba
    material = xml.SubElement(
        element, "material", name=f"rgba_{'_'.join(_number(part) for part in colour)}"
    )
    xml.SubElement(material, "color", rgba=_numbers(colour))
    return element


def _origin(position: np.ndarray, rotation: np.ndarray) -> xml.Element:
    pitch = math.atan2(-rotation[2, 0], math.hypot(rotation[0, 0], rotation[1, 0]))
    if math.hypot(rotation[0, 0], rotation[1, 0]) > 1e-9:
        roll = math.atan2(rotation[2, 1], rotation[2, 2])
        yaw = math.atan2(rotation[1, 0], rotation[0, 0])
    else:
        roll, yaw = math.atan2(-rotation[1, 2], rotation[1, 1]), 0.0
    return xml.Element("origin", xyz=_numbers(position), rpy=_numbers([roll, pitch, yaw]))


def _numbers(values: Any) -> str:
    return " ".join(_number(value) for value in values)


def _number(value: float) -> str:
    return f"{value:.9g}" if abs(value) > 1e-12 else "0"


def robot(name: str, *links: str) -> xml.Element:
    """Return a URDF with these links."""
    element = xml.Element("robot", name=name)
    element.extend(xml.Element("link", name=link) for link in links)
    return element


STANDS = (np.zeros(3), np.eye(3))


def franka(name: str = "panda", base: str = BASE) -> xml.Element:
    """Return franka_mujoco's Panda with hand and peg, for all simulators and twins of a Franka."""
    from sim_bridges.simulators.franka_mujoco import Simulator

    result = robot(name, base)
    joints = {f"joint{number}": f"{name}_joint{number}" for number in range(1, 8)}
    OfMujoco(Simulator().model, joints, f"{name}_").add(result, "link0", base, STANDS)
    return result


def two_frankas() -> xml.Element:
    """Return both arms of two_frankas, 0.8 m apart."""
    from sim_bridges.simulators.two_frankas import BASES, Simulator

    result, model = robot("two_pandas", BASE), Simulator().model
    for arm, place in BASES.items():
        joint = xml.SubElement(result, "joint", name=f"{arm}_base", type="fixed")
        joint.extend(
            [
                _origin(np.array(place), np.eye(3)),
                xml.Element("parent", link=BASE),
                xml.Element("child", link=f"{arm}_{BASE}"),
            ]
        )
        result.insert(0, xml.Element("link", name=f"{arm}_{BASE}"))
        joints = {f"{arm}_joint{number}": f"{arm}_panda_joint{number}" for number in range(1, 8)}
        OfMujoco(model, joints, "").add(result, f"{arm}_link0", f"{arm}_{BASE}", STANDS)
    return result


def sawyer() -> xml.Element:
    """Return Meta-World's Sawyer."""
    from sim_bridges.simulators.metaworld import Simulator

    return _of_scene(
        "sawyer", Simulator(), "base", {f"right_j{index}": f"right_j{index}" for index in range(7)}
    )


def fetch() -> xml.Element:
    """Return Gymnasium-Robotics' Fetch, whose base has the interface's frame."""
    from sim_bridges.simulators.gymnasium_robotics import Simulator

    return _of_scene(
        "fetch", Simulator(), "robot0:base_link", {name: name for name in Simulator.joint_names}
    )


def _of_scene(name: str, simulator: Any, body: str, joints: dict[str, str]) -> xml.Element:
    """Return the robot in the base frame of its scene."""
    scene, result = simulator.scene, robot(name, BASE)
    root, turned = simulator.env.model.body(body).id, np.empty(9)
    scene._mujoco.mju_quat2Mat(turned, scene.data.xquat[root])
    place = scene.to_base(scene.data.xpos[root]), scene.rotation.T @ turned.reshape(3, 3)
    OfMujoco(scene.model, joints).add(result, body, BASE, place)
    return result


UR5E = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
UR5E_LINKS = (
    "shoulder_link",
    "upper_arm_link",
    "forearm_link",
    "wrist_1_link",
    "wrist_2_link",
    "wrist_3_link",
)


def ur5e() -> xml.Element:
    """Return a UR5e from its published Denavit-Hartenberg parameters.

    Its joints and links have the names of ur_description.
    """
    from sim_bridges.twins.universal_robots_state import UR5E as PARAMETERS

    result = robot("ur5e", "base")
    before, (position, rotation) = "base", STANDS
    for name, link, (a, d, alpha) in zip(UR5E, UR5E_LINKS, PARAMETERS, strict=True):
        after = np.array([a, 0.0, d])
        turned = np.array(
            [
                [1.0, 0.0, 0.0],
                [0.0, math.cos(alpha), -math.sin(alpha)],
                [0.0, math.sin(alpha), math.cos(alpha)],
            ]
        )
        element = xml.SubElement(result, "link", name=link)
        for start, end in ((np.zeros(3), [0.0, 0.0, d]), ([0.0, 0.0, d], after)):
            if (length := float(np.linalg.norm(np.subtract(end, start)))) > 0.01:
                along = _facing(np.subtract(end, start) / length)
                element.append(
                    visual(
                        np.add(start, end) / 2,
                        along,
                        "cylinder",
                        np.array([0.045, length / 2, 0.0]),
                    )
                )
        joint = xml.SubElement(result, "joint", name=f"{name}_joint", type="revolute")
        joint.extend(
            [
                _origin(position, rotation),
                xml.Element("parent", link=before),
                xml.Element("child", link=link),
                xml.Element("axis", xyz="0 0 1"),
                xml.Element(
                    "limit",
                    lower=_number(-2 * math.pi),
                    upper=_number(2 * math.pi),
                    effort="0",
                    velocity="0",
                ),
            ]
        )
        before, position, rotation = link, after, turned
    xml.SubElement(result, "link", name="tool0")
    joint = xml.SubElement(result, "joint", name="wrist_3-tool0", type="fixed")
    joint.extend(
        [
            _origin(position, rotation),
            xml.Element("parent", link=before),
            xml.Element("child", link="tool0"),
        ]
    )
    return result


# TheRobotStudio's so101_new_calib.urdf (Apache-2.0): joint, child, origin xyz [m] and rpy [rad],
# limits [rad]
SO101 = (
    (
        "shoulder_pan",
        "shoulder_link",
        "0.0388353 0 0.0624",
        "3.14159265 0 -3.14159265",
        -1.91986,
        1.91986,
    ),
    (
        "shoulder_lift",
        "upper_arm_link",
        "-0.0303992 -0.0182778 -0.0542",
        "-1.57079633 -1.57079633 0",
        -1.74533,
        1.74533,
    ),
    ("elbow_flex", "lower_arm_link", "-0.11257 -0.028 0", "0 0 1.57079633", -1.69, 1.69),
    ("wrist_flex", "wrist_link", "-0.1349 0.0052 0", "0 0 -1.57079633", -1.65806, 1.65806),
    (
        "wrist_roll",
        "gripper_link",
        "0 -0.0611 0.0181",
        "1.57079633 0.0486795 3.14159265",
        -2.74385,
        2.84121,
    ),
)
SO101_TOOL = ("-0.0079 -0.000218121 -0.0981274", "0 3.14159265 0")


def so101() -> xml.Element:
    """Return an SO-101 from its published joints, with cylinders as links.

    Angle 0 is the middle of a joint's range, as in LeRobot.
    """
    result, before = robot("so101", BASE), BASE
    for name, link, place, turn, low, high in SO101:
        xml.SubElement(result, "link", name=link)
        joint = xml.SubElement(result, "joint", name=name, type="revolute")
        joint.extend(
            [
                xml.Element("origin", xyz=place, rpy=turn),
                xml.Element("parent", link=before),
                xml.Element("child", link=link),
                xml.Element("axis", xyz="0 0 1"),
                xml.Element(
                    "limit", lower=_number(low), upper=_number(high), effort="0", velocity="0"
                ),
            ]
        )
        _rod(result, before, np.array(place.split(), float))
        before = link
    xml.SubElement(result, "link", name="gripper_frame_link")
    joint = xml.SubElement(result, "joint", name="gripper_frame_joint", type="fixed")
    joint.extend(
        [
            xml.Element("origin", xyz=SO101_TOOL[0], rpy=SO101_TOOL[1]),
            xml.Element("parent", link=before),
            xml.Element("child", link="gripper_frame_link"),
        ]
    )
    _rod(result, before, np.array(SO101_TOOL[0].split(), float))
    return result


def _rod(result: xml.Element, link: str, end: np.ndarray) -> None:
    """Return the visual of a link: a cylinder from its origin to the next joint."""
    length = float(np.linalg.norm(end))
    shown = next(element for element in result.findall("link") if element.get("name") == link)
    shown.append(
        visual(end / 2, _facing(end / length), "cylinder", np.array([0.02, length / 2, 0.0]))
    )


def _facing(direction: np.ndarray) -> np.ndarray:
    """Return a rotation (3, 3) whose z axis is this direction."""
    other = np.array([1.0, 0.0, 0.0]) if abs(direction[0]) < 0.9 else np.array([0.0, 1.0, 0.0])
    x = np.cross(other, direction)
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(direction, x), direction], axis=1)


ROBOTS: dict[str, tuple[Path, Callable[[], xml.Element]]] = {
    "panda": (SIMULATORS / "franka_mujoco/franka_sim/panda.urdf", franka),
    "fr3": (ROOT / "robots/franka_twin/fr3.urdf", lambda: franka("fr3", "base")),
    "two_pandas": (SIMULATORS / "two_frankas/two_franka_sim/two_pandas.urdf", two_frankas),
    "sawyer": (SIMULATORS / "metaworld/sawyer_metaworld/sawyer.urdf", sawyer),
    "fetch": (SIMULATORS / "gymnasium_robotics/fetch/fetch.urdf", fetch),
    "ur5e": (ROOT / "robots/ur5e_twin/ur5e.urdf", ur5e),
    "so101": (ROOT / "robots/so101/so101.urdf", so101),
}

if __name__ == "__main__":
    main(sys.argv[1:])
