"""A robot's URDF as transforms from link to link, computed like robot_state_publisher.

robot_state_publisher is C++ and is in no wheel. These are its rules: a fixed joint is a static
transform, a movable one is placed from the newest ``joint_states``, and an unreported joint is not
placed. ``<mimic>`` is followed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree

from rlinf_core.core.errors import RecipeError
from rlinf_core.core.rotation import Quaternion, Vector, product, rotate

IDENTITY: Quaternion = (0.0, 0.0, 0.0, 1.0)
MOVABLE = ("revolute", "continuous", "prismatic")


class Frame(NamedTuple):
    """A frame in its parent: position [m], orientation (x, y, z, w)."""

    parent: str
    child: str
    position: Vector
    orientation: Quaternion


@dataclass(frozen=True)
class Joint:
    """A joint of a URDF; ``axis`` is a unit vector in the frame of ``origin``."""

    name: str
    kind: str
    origin: Frame
    axis: Vector = (1.0, 0.0, 0.0)
    mimic: tuple[str, float, float] | None = None  # joint, multiplier, offset


@dataclass(frozen=True)
class Description:
    """The links and joints of a URDF.

    Attributes:
        links: names, in the file's order.
        root: the link that is no joint's child.
        joints: the joints that place a link.
    """

    links: tuple[str, ...]
    root: str
    joints: tuple[Joint, ...]

    def fixed_frames(self) -> list[Frame]:
        """Return the links that are fixed in their parent."""
        return [joint.origin for joint in self.joints if joint.kind not in MOVABLE]

    def moving_frames(self, positions: Mapping[str, float]) -> list[Frame]:
        """Return the links behind movable joints with a given position [rad, m]."""
        return [
            _joint_frame(joint, value)
            for joint in self.joints
            if joint.kind in MOVABLE and (value := _position(joint, positions)) is not None
        ]

    def pose(self, link: str, positions: Mapping[str, float]) -> tuple[Vector, Quaternion]:
        """Return position [m] and orientation (x, y, z, w) of a link in the root frame.

        Args:
            link: of the robot.
            positions: of all movable joints between the root and the link [rad, m].

        Raises:
            RecipeError: the robot has no such link, or a joint on the way has no position.
        """
        frames = {
            frame.child: frame for frame in [*self.fixed_frames(), *self.moving_frames(positions)]
        }
        position: Vector = (0.0, 0.0, 0.0)
        orientation, name = IDENTITY, link
        while name != self.root:
            if name not in frames:
                raise RecipeError(
                    f"robot_description: expected a position for all joints of link '{link}', got "
                    f"'{name}' without a pose. Its links: {', '.join(self.links)}"
                )
            frame = frames[name]
            x, y, z = rotate(frame.orientation, position)
            position = (x + frame.position[0], y + frame.position[1], z + frame.position[2])
            orientation, name = product(frame.orientation, orientation), frame.parent
        return position, orientation


def read(text: str) -> Description:
    """Read a URDF.

    Raises:
        RecipeError: a part is missing; the message names it.
    """
    try:
        robot = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise RecipeError(
            f"robot_description: expected a URDF, got invalid XML: {error}"
        ) from error
    links = tuple(link.get("name", "") for link in robot.iter("link"))
    if robot.tag != "robot" or not links:
        raise RecipeError(
            f"robot_description: expected a <robot> with links, got <{robot.tag}> with {len(links)}"
        )
    joints = tuple(_joint(element) for element in robot.findall("joint"))
    children = {joint.origin.child for joint in joints}
    roots = [link for link in links if link not in children]
    if len(roots) != 1:
        raise RecipeError(
            f"robot_description: expected one root link, got {', '.join(roots) or 'none'}"
        )
    return Description(links, roots[0], joints)


def _joint(element: ElementTree.Element) -> Joint:
    name, kind = element.get("name", ""), element.get("type", "fixed")
    ends = [
        part.get("link", "") if (part := element.find(tag)) is not None else ""
        for tag in ("parent", "child")
    ]
    if not all(ends):
        raise RecipeError(
            f"robot_description: joint '{name}': expected <parent link=...> and <child link=...>"
        )
    origin, axis, mimic = (element.find(tag) for tag in ("origin", "axis", "mimic"))
    place = _vector(name, "0 0 0" if origin is None else origin.get("xyz", "0 0 0"))
    turn = _vector(name, "0 0 0" if origin is None else origin.get("rpy", "0 0 0"))
    x, y, z = _vector(name, "1 0 0" if axis is None else axis.get("xyz", "1 0 0"))
    length = math.sqrt(x * x + y * y + z * z) or 1.0
    follows = (
        None
        if mimic is None
        else (
            mimic.get("joint", ""),
            float(mimic.get("multiplier", "1")),
            float(mimic.get("offset", "0")),
        )
    )
    return Joint(
        name,
        kind,
        Frame(ends[0], ends[1], place, _quaternion_from_rpy(*turn)),
        (x / length, y / length, z / length),
        follows,
    )


def _vector(name: str, text: str) -> Vector:
    try:
        x, y, z = map(float, text.split())
    except ValueError as error:
        raise RecipeError(
            f"robot_description: joint '{name}': expected three numbers, got '{text}'"
        ) from error
    return x, y, z


def _position(joint: Joint, positions: Mapping[str, float]) -> float | None:
    if joint.mimic is None:
        return positions.get(joint.name)
    other, multiplier, offset = joint.mimic
    value = positions.get(other)
    return None if value is None else multiplier * value + offset


def _joint_frame(joint: Joint, value: float) -> Frame:
    parent, child, place, turn = joint.origin
    if joint.kind == "prismatic":
        shift = rotate(turn, joint.axis)
        return Frame(
            parent,
            child,
            (place[0] + value * shift[0], place[1] + value * shift[1], place[2] + value * shift[2]),
            turn,
        )
    half, sine = math.cos(value / 2), math.sin(value / 2)
    x, y, z = joint.axis
    return Frame(
        parent,
        child,
        place,
        product(turn, (sine * x, sine * y, sine * z, half)),
    )


def _quaternion_from_rpy(roll: float, pitch: float, yaw: float) -> Quaternion:
    """Return the quaternion of rotations about the fixed axes x, y, z, URDF's convention."""
    cr, sr, cp, sp, cy, sy = (
        f(angle / 2) for angle in (roll, pitch, yaw) for f in (math.cos, math.sin)
    )
    return (
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    )
