"""A Franka Panda in MuJoCo with a peg in its gripper and a socket on the table.

A Cartesian impedance controller moves the arm. The arm's meshes and inertias come from the
``gym_hil`` wheel (MuJoCo Menagerie's Panda). This package builds everything else.
"""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as xml
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlinf_core.core.errors import RlinfError
from sim_bridges.simulators.franka_mujoco.tabletop import PEG_HALF_WIDTH_M, OneArm, compile_model

Metres = Annotated[float, Field(ge=0, lt=1)]
Clearance = Annotated[float, Field(ge=1e-4, le=0.01)]
Turn = Annotated[float, Field(ge=0, le=0.7)]
Friction = Annotated[float, Field(ge=0.01, le=5)]
PACKAGE, INSTALL = "mujoco", "make setup"

WALL_M = 0.012
RIM_M = 0.05


class Simulator(OneArm):
    """See ``sim_bridges.core.interface.Simulator``.

    Args:
        clearance_m: clearance between peg and socket on each side [m]
        pose_noise_m: standard deviation of the socket position's error in an episode [m]
        turn_noise_rad: standard deviation of its error about the vertical [rad]
        socket_range_m: half the side of the square about (0.5, 0) with the socket's centre [m]
        socket_turn_rad: largest turn of the socket about the vertical [rad]
        start_range_m: half the side of the square in which the tool starts [m]
        start_height_m: smallest and largest height of the start above the table [m]
        friction: coefficient of sliding friction of the peg, the socket and the table
        front_camera: shift [m] of the front camera in the base frame, and its turn about its own
            axes as a rotation vector [rad]
        background: PLY file of Gaussian splats in the base frame, behind the scene in the pictures;
            empty shows the sky
    """

    def __init__(
        self,
        clearance_m: Clearance = 0.002,
        pose_noise_m: Metres = 0.0007,
        turn_noise_rad: Turn = 0.0,
        socket_range_m: Metres = 0.06,
        socket_turn_rad: Turn = 0.0,
        start_range_m: Metres = 0.04,
        start_height_m: tuple[Metres, Metres] = (0.12, 0.17),
        friction: Friction = 0.4,
        front_camera: tuple[float, float, float, float, float, float] = (0.0,) * 6,
        background: str = "",
    ) -> None:
        super().__init__(compile_model(_scene(clearance_m)))
        self.set_friction(friction)
        self._front = self.model.camera("front").id
        self._front_pose = (
            self.model.cam_pos[self._front].copy(),
            (self.model.cam_quat[self._front].copy()),
        )
        self.aim_camera("front", front_camera)
        if background:
            from sim_bridges.core.splats import Background, load

            self.scene.background = Background(load(Path(background)))
        self.pose_noise_m, self.turn_noise_rad = pose_noise_m, turn_noise_rad
        self.socket_range_m, self.socket_turn_rad = socket_range_m, socket_turn_rad
        self.start_range_m, self.start_height_m = start_range_m, start_height_m
        self._socket = self.model.body("socket").mocapid[0]
        self.reset(0)

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._clear()
        socket = np.array([0.5, 0.0, 0.0]) + [
            *random.uniform(-self.socket_range_m, self.socket_range_m, 2),
            0.0,
        ]
        self.data.mocap_pos[self._socket] = socket
        start = np.array([0.5, 0.0, 0.0]) + [
            *random.uniform(-self.start_range_m, self.start_range_m, 2),
            random.uniform(*self.start_height_m),
        ]
        noise = random.normal(0.0, self.pose_noise_m, 2)
        turn = random.uniform(-self.socket_turn_rad, self.socket_turn_rad)
        self.data.mocap_quat[self._socket] = _turn_about_vertical(turn)[[3, 0, 1, 2]]
        reported = _turn_about_vertical(turn + random.normal(0.0, self.turn_noise_rad))
        self._object = np.concatenate([socket + [*noise, RIM_M], reported])
        self.arm.place(start)
        self._begin()

    def arrange(self, channels: Mapping[str, np.ndarray]) -> None:
        """Put the tool at ``current_pose``, at rest, and the socket at ``object_pose``."""
        self._clear()
        if (reported := channels.get("object_pose")) is not None:
            self._object = np.array(reported, dtype=float)
            self.data.mocap_pos[self._socket] = self._object[:3] - [0.0, 0.0, RIM_M]
            self.data.mocap_quat[self._socket] = self._object[[6, 3, 4, 5]]
        self.arm.place(np.asarray(channels["current_pose"], dtype=float)[:3])
        self._begin()

    def set_friction(self, friction: float) -> None:
        """Set the coefficient of sliding friction of the peg, the socket and the table."""
        self.model.geom_friction[self.model.geom_contype > 0, 0] = friction

    def aim_camera(self, camera: str, offset: Sequence[float]) -> None:
        """Move a camera from its designed pose by ``offset``; see the option ``front_camera``."""
        if camera != "front":
            raise RlinfError(f"expected the camera front, got {camera}. The others are fixed")
        position, quaternion = self._front_pose
        turn, rotated, angle = np.array(offset[3:], dtype=float), np.empty(4), np.zeros(4)
        size = float(np.linalg.norm(turn))
        self._mujoco.mju_axisAngle2Quat(angle, turn / max(size, 1e-12), size)
        self._mujoco.mju_mulQuat(rotated, quaternion, angle)
        self.model.cam_pos[self._front] = position + np.array(offset[:3])
        self.model.cam_quat[self._front] = rotated
        self._mujoco.mj_camlight(self.model, self.data)

    def channels(self) -> dict[str, np.ndarray]:
        return self.arm.channels() | {
            "object_pose": self._object.copy(),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        """Return whether the peg's tip is inside the socket, 2 cm below the rim."""
        offset = self.tcp_pose()[:3] - self.data.mocap_pos[self._socket] - [0.0, 0.0, RIM_M]
        return bool(offset[2] < -0.02 and np.abs(offset[:2]).max() < PEG_HALF_WIDTH_M)


def _assets() -> Path:
    spec = importlib.util.find_spec("gym_hil")
    if spec is None or not spec.submodule_search_locations:
        raise RlinfError(
            "the Panda's meshes: expected the package gym_hil, which is not installed. Run: make "
            "setup"
        )
    return Path(spec.submodule_search_locations[0]) / "assets"


def _turn_about_vertical(angle: float) -> np.ndarray:
    """Return the quaternion xyzw of a turn about the vertical [rad]."""
    return np.array([0.0, 0.0, np.sin(angle / 2), np.cos(angle / 2)])


def _scene(clearance_m: float) -> str:
    """Return the MJCF of the scene: arm, socket and table."""
    root = panda()
    root.find("worldbody").extend(elements(WORLD + _socket(clearance_m)))
    root.extend(elements(COMMON))
    return xml.tostring(root, encoding="unicode")


def panda() -> Any:
    """Return the MJCF of Menagerie's arm with our hand, peg and wrist sensor.

    The gripper's linkage is removed.
    """
    assets = _assets()
    # the wheel's own file has every element that find() requests
    root: Any = xml.parse(assets / "panda.xml").getroot()
    for tag in ("contact", "tendon", "equality", "sensor"):
        root.remove(root.find(tag))
    root.find("compiler").set("meshdir", str(assets))
    for mesh in root.find("asset").findall("mesh"):
        if "name" not in mesh.attrib:
            mesh.set("name", Path(mesh.get("file")).stem)
    actuators = root.find("actuator")
    actuators.remove(actuators.find("general"))
    for geom in root.iter("geom"):
        geom.set("contype", "0")
        geom.set("conaffinity", "0")
    attachment = next(body for body in root.iter("body") if body.get("name") == "attachment")
    for child in list(attachment):
        attachment.remove(child)
    attachment.extend(elements(_HAND))
    root.extend(elements(_SENSORS))
    return root


def elements(text: str) -> list[xml.Element]:
    """Return the elements of a piece of MJCF."""
    return list(xml.fromstring(f"<all>{text}</all>"))


_HAND = f"""
<geom name="hand" type="box" size="0.095 0.028 0.032" pos="0 0 0.035" rgba="0.93 0.94 0.95 1" mass="0.6"
  contype="0" conaffinity="0" group="0"/>
<geom name="mount" type="cylinder" size="0.045 0.008" pos="0 0 0.005" rgba="0.25 0.25 0.27 1" mass="0.05"
  contype="0" conaffinity="0" group="0"/>
<geom name="finger_left" type="box" size="0.009 0.011 0.027" pos="{PEG_HALF_WIDTH_M + 0.009} 0 0.094"
  rgba="0.25 0.25 0.27 1" mass="0.02" contype="0" conaffinity="0" group="0"/>
<geom name="finger_right" type="box" size="0.009 0.011 0.027" pos="{-PEG_HALF_WIDTH_M - 0.009} 0 0.094"
  rgba="0.25 0.25 0.27 1" mass="0.02" contype="0" conaffinity="0" group="0"/>
<camera name="wrist" pos="0.0 -0.11 0.0" euler="2.75 0 0" fovy="60"/>
<body name="peg" pos="0 0 0.085">
  <site name="wrist_force" pos="0 0 0" quat="0 0 0 1"/>
  <geom name="peg" type="box" size="{PEG_HALF_WIDTH_M} {PEG_HALF_WIDTH_M} 0.042" pos="0 0 0.042"
    rgba="0.90 0.42 0.13 1" mass="0.05" friction="0.4" contype="1" conaffinity="1" group="0"
    solref="0.004 1" solimp="0.95 0.99 0.001"/>
  <site name="tcp" pos="0 0 0.084" quat="0 0 0 1"/>
</body>
"""  # noqa: E501

WORLD = """
<geom name="table" type="box" size="0.45 0.6 0.02" pos="0.45 0 -0.02" rgba="0.78 0.72 0.64 1" friction="0.4" group="0"
  contype="1" conaffinity="1"/>
<geom name="floor" type="plane" size="4 4 0.1" pos="0 0 -0.75" material="floor" group="1" contype="0" conaffinity="0"/>
<geom name="pedestal" type="box" size="0.12 0.12 0.365" pos="-0.05 0 -0.385" rgba="0.3 0.32 0.35 1" group="1"
  contype="0" conaffinity="0"/>
<geom name="leg1" type="box" size="0.03 0.03 0.355" pos="0.85 0.55 -0.395" rgba="0.35 0.33 0.3 1" group="1"
  contype="0" conaffinity="0"/>
<geom name="leg2" type="box" size="0.03 0.03 0.355" pos="0.85 -0.55 -0.395" rgba="0.35 0.33 0.3 1" group="1"
  contype="0" conaffinity="0"/>
<light name="key" pos="1.2 -0.9 1.8" dir="-0.5 0.5 -0.9" directional="true" castshadow="true" diffuse="0.55 0.55 0.52"/>
<light name="fill" pos="0 1.5 1.5" dir="0.3 -0.6 -0.8" directional="true" castshadow="false" diffuse="0.3 0.32 0.36"/>
<camera name="front" pos="0.95 0 0.33" xyaxes="0 1 0 -0.5 0 0.87" fovy="45"/>
<camera name="video" pos="1.12 -0.78 0.62" xyaxes="0.725 0.689 -0.000 -0.224 0.236 0.946" fovy="42"/>
"""  # noqa: E501

COMMON = """
<option timestep="0.0025" integrator="implicitfast" cone="elliptic" impratio="10"/>
<visual>
  <headlight ambient="0.35 0.35 0.35" diffuse="0.25 0.25 0.25" specular="0.05 0.05 0.05"/>
  <quality shadowsize="2048" offsamples="0"/>
  <global offwidth="1280" offheight="960"/>
</visual>
<asset>
  <texture name="sky" type="skybox" builtin="gradient" rgb1="0.93 0.95 0.97" rgb2="0.68 0.75 0.82" width="64" height="256"/>
  <texture name="floor" type="2d" builtin="flat" rgb1="0.55 0.58 0.6" width="16" height="16"/>
  <material name="floor" texture="floor" reflectance="0"/>
</asset>
"""  # noqa: E501

_SENSORS = """
<sensor>
  <force name="force" site="wrist_force"/>
  <torque name="torque" site="wrist_force"/>
</sensor>
"""


def _socket(clearance_m: float) -> str:
    """Return four walls about a square hole, on a body that ``reset`` moves."""
    hole, half, parts = PEG_HALF_WIDTH_M + clearance_m, WALL_M / 2, []
    look = (
        'rgba="0.20 0.42 0.62 1" friction="0.4" contype="1" conaffinity="1" group="0" '
        'solref="0.004 1" solimp="0.95 0.99 0.001"'
    )
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        centre = hole + half
        size = f"{half if x else hole + WALL_M} {half if y else hole + WALL_M} {RIM_M / 2}"
        parts.append(
            f'<geom type="box" size="{size}" pos="{x * centre} {y * centre} {RIM_M / 2}" {look}/>'
        )
    return f'<body name="socket" mocap="true">{"".join(parts)}</body>'
