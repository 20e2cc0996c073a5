"""Frames for tf2 and markers of a station for RViz and Foxglove, as CDR, live and recorded.

Each frame begins with the station's name (``station_a/tool0``). Several stations in one ROS domain
therefore have separate trees. The headers of other messages keep the names of drivers and limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlinf_core.episodes.messages import POSE, TRANSFORMS, typestore
from rlinf_core.robots.description import IDENTITY, Description, Frame, read
from rlinf_core.specs.topics import arm_of, topic

JOINTS, MARKERS = "sensor_msgs/msg/JointState", "visualization_msgs/msg/MarkerArray"
# frames that the poses of these topics place
POSE_FRAMES = {"target_pose": "target", "object_pose": "object", "goal_pose": "goal"}
MOVING = ("current_pose", *POSE_FRAMES, "joint_states")
NAMES = ("DISARMED", "ARMED", "ACTIVE", "HOLD", "FAULT")  # SafetyState.state
COLOURS = ((0.6, 0.6, 0.6), (0.2, 0.5, 1.0), (0.1, 0.8, 0.2), (1.0, 0.75, 0.0), (1.0, 0.1, 0.1))
LINE_LIST, TEXT = 5, 9  # visualization_msgs/Marker
LINE_M, LETTER_M = 0.004, 0.05
# of a box: pairs of corners whose numbers differ in one bit
EDGES = tuple((a, b) for a in range(8) for b in range(a + 1, 8) if (a ^ b) in (1, 2, 4))

Box = tuple[tuple[float, ...], tuple[float, ...]]


class View:
    """The frames and markers of one station.

    Args:
        station: its name, without a slash.
        bases: the frame of each arm's limits, by arm; "" for an arm without a name.
        tool: frame of the tool, prefixed with the arm's name if there are several; empty for none.
        mounts: by fixed frame: parent ``frame``, ``position`` [m], ``orientation`` (xyzw).
        boxes: by arm, its workspace in the frame of its limits: lowest and highest corner [m].
    """

    def __init__(
        self,
        station: str,
        bases: Mapping[str, str],
        tool: str,
        mounts: Mapping[str, Any],
        boxes: Mapping[str, Box] | None = None,
    ) -> None:
        self.station = station
        self.bases = bases
        self.tool = tool
        self.mounts = [
            Frame(mount["frame"], child, tuple(mount["position"]), tuple(mount["orientation"]))
            for child, mount in mounts.items()
        ]
        self.boxes, self.description = dict(boxes or {}), Description((), "", ())
        self.states: dict[str, tuple[int, str]] = {}  # by arm: state and cause

    def describe(self, urdf: str) -> None:
        """Place the links of this URDF too, from now on.

        Raises:
            RecipeError: the URDF cannot be used; the message says why.
        """
        self.description = read(urdf)

    def fixed_frames(self, stamp: tuple[int, int]) -> bytes:
        """Return the fixed frames, as a TFMessage.

        Args:
            stamp: seconds and nanoseconds.
        """
        fixed = {frame.child: frame for frame in (*self.mounts, *self.description.fixed_frames())}
        root, base = self.description.root, next(iter(self.bases.values()))
        if (
            root
            and root not in fixed
            and not set(self.bases.values()) & set(self.description.links)
        ):
            fixed[root] = Frame(base, root, (0.0, 0.0, 0.0), IDENTITY)
        return self._transforms(fixed.values(), stamp)

    def moving_frames(self, name: str, raw: bytes) -> bytes | None:
        """Return the frames that a message places, as a TFMessage with its stamp, or None.

        Args:
            name: the station's name of the topic.
            raw: the message as CDR; an unreadable one places nothing.
        """
        row, arm = topic(name).name, arm_of(name)
        if row not in MOVING:
            return None
        try:
            message = typestore().deserialize_cdr(raw, JOINTS if row == "joint_states" else POSE)
        except Exception:  # a broken message may raise anything
            return None
        frames = (
            self._joint_frames(arm, message)
            if row == "joint_states"
            else self._pose_frames(row, arm, message)
        )
        stamp = message.header.stamp
        return self._transforms(frames, (stamp.sec, stamp.nanosec)) if frames else None

    def _pose_frames(self, row: str, arm: str, message: Any) -> list[Frame]:
        child = self.tool if row == "current_pose" else POSE_FRAMES[row]
        child = f"{arm}_{child}" if arm and child else child
        if not child or child in self.description.links:  # the URDF places it
            return []
        p, q = message.pose.position, message.pose.orientation
        parent = message.header.frame_id or self.bases.get(arm, "base_link")
        return [Frame(parent, child, (p.x, p.y, p.z), (q.x, q.y, q.z, q.w))]

    def _joint_frames(self, arm: str, message: Any) -> list[Frame]:
        values = dict(zip(message.name, map(float, message.position), strict=False))
        return self.description.moving_frames(
            {f"{arm}_{name}": value for name, value in values.items()} if arm else values
        )

    def update(self, arm: str, state: int, cause: str) -> bool:
        """Set an interlock's state; return True if the markers changed."""
        before = self.states.get(arm)
        self.states[arm] = (state, cause)
        return self.states[arm] != before

    def markers(self, stamp: tuple[int, int]) -> bytes:
        """Return the workspaces in their state's colour, and the state in words, as a
        MarkerArray.
        """
        types, results = typestore().types, []
        for arm, (low, high) in self.boxes.items():
            state, cause = self.states.get(arm, (0, ""))
            colour = types["std_msgs/msg/ColorRGBA"](
                *COLOURS[state if state < len(COLOURS) else -1], 1.0
            )
            header = self._header(self.bases.get(arm, "base_link"), stamp)
            corners = [
                [(low, high)[index >> axis & 1][axis] for axis in range(3)] for index in range(8)
            ]
            lines = [_point(corners[index]) for edge in EDGES for index in edge]
            above = ((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, high[2] + LETTER_M)
            words = " ".join(
                filter(None, (arm, NAMES[state] if state < len(NAMES) else str(state), cause))
            )
            results += [
                _marker(
                    header,
                    f"{arm}_workspace" if arm else "workspace",
                    LINE_LIST,
                    (0.0, 0.0, 0.0),
                    (LINE_M, 0.0, 0.0),
                    colour,
                    points=lines,
                ),
                _marker(
                    header,
                    f"{arm}_state" if arm else "state",
                    TEXT,
                    above,
                    (0.0, 0.0, LETTER_M),
                    colour,
                    words,
                ),
            ]
        return bytes(typestore().serialize_cdr(types[MARKERS](markers=results), MARKERS))

    def _header(self, frame: str, stamp: tuple[int, int]) -> Any:
        types = typestore().types
        return types["std_msgs/msg/Header"](
            stamp=types["builtin_interfaces/msg/Time"](*stamp), frame_id=f"{self.station}/{frame}"
        )

    def _transforms(self, frames: Iterable[Frame], stamp: tuple[int, int]) -> bytes:
        types = typestore().types
        results = [
            types["geometry_msgs/msg/TransformStamped"](
                header=self._header(frame.parent, stamp),
                child_frame_id=f"{self.station}/{frame.child}",
                transform=types["geometry_msgs/msg/Transform"](
                    translation=types["geometry_msgs/msg/Vector3"](*frame.position),
                    rotation=types["geometry_msgs/msg/Quaternion"](*frame.orientation),
                ),
            )
            for frame in frames
        ]
        return bytes(typestore().serialize_cdr(types[TRANSFORMS](transforms=results), TRANSFORMS))


def text_of(raw: bytes) -> str:
    """Return the text of a std_msgs/String as CDR."""
    return str(typestore().deserialize_cdr(raw, "std_msgs/msg/String").data)


def _point(place: Iterable[float]) -> Any:
    return typestore().types["geometry_msgs/msg/Point"](*place)


def _marker(
    header: Any,
    namespace: str,
    kind: int,
    place: tuple[float, ...],
    scale: tuple[float, float, float],
    colour: Any,
    text: str = "",
    points: Iterable[Any] = (),
) -> Any:
    import numpy as np

    types, nothing = typestore().types, np.zeros(0, np.uint8)
    image = types["sensor_msgs/msg/CompressedImage"](header=header, format="", data=nothing)
    return types["visualization_msgs/msg/Marker"](
        header=header,
        ns=namespace,
        id=0,
        type=kind,
        action=0,
        pose=types["geometry_msgs/msg/Pose"](
            position=_point(place), orientation=types["geometry_msgs/msg/Quaternion"](*IDENTITY)
        ),
        scale=types["geometry_msgs/msg/Vector3"](*scale),
        color=colour,
        lifetime=types["builtin_interfaces/msg/Duration"](sec=0, nanosec=0),
        frame_locked=False,
        points=[*points],
        colors=[],
        texture_resource="",
        texture=image,
        uv_coordinates=[],
        text=text,
        mesh_resource="",
        mesh_file=types["visualization_msgs/msg/MeshFile"](filename="", data=nothing),
        mesh_use_embedded_materials=False,
    )
