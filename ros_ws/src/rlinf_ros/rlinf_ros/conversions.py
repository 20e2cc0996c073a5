"""Conversions between ROS messages and rlinf_core: stamps, poses, joint angles, arrays."""

from __future__ import annotations

import array
import bisect
from collections.abc import Collection, Sequence

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose
from rlinf_msgs.msg import ActionChunk, NamedVector, TimeStep
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState

from rlinf_core.core.errors import SpecError
from rlinf_core.specs.arrays import StationSpec

NS = 1_000_000_000


def to_ns(stamp: Time) -> int:
    """Return the nanoseconds of a stamp."""
    return stamp.sec * NS + stamp.nanosec


def to_stamp(ns: int) -> Time:
    """Return the stamp of a time in nanoseconds."""
    return Time(sec=ns // NS, nanosec=ns % NS)


def set_stamp(stamp: Time, ns: int) -> None:
    """Write a time in nanoseconds into an existing stamp."""
    stamp.sec, stamp.nanosec = divmod(ns, NS)


def pose_values(pose: Pose) -> tuple[float, float, float, float, float, float, float]:
    """Return x y z [m] and the quaternion x y z w."""
    p, q = pose.position, pose.orientation
    return p.x, p.y, p.z, q.x, q.y, q.z, q.w


def set_pose(pose: Pose, values: Sequence[float]) -> None:
    """Write x y z [m] and the quaternion x y z w into an existing pose."""
    p, q = pose.position, pose.orientation
    p.x, p.y, p.z, q.x, q.y, q.z, q.w = values


def any_between(sorted_ns: list[int], low: int, high: int) -> bool:
    """Return whether one of these times lies in between, bounds included."""
    index = bisect.bisect_left(sorted_ns, low)
    return index < len(sorted_ns) and sorted_ns[index] <= high


def angles_of(message: JointState, names: Collection[str]) -> tuple[float, ...] | None:
    """Return the angles of these joints in this order [rad].

    None if one is missing, or occurs more than once.
    """
    joint_names = list(message.name)[: len(message.position)]
    angles = dict(zip(joint_names, message.position, strict=False))
    if any(name not in angles for name in names):
        return None
    if len(angles) < len(joint_names) and any(joint_names.count(name) > 1 for name in names):
        return None
    return tuple([angles[name] for name in names])


def to_image(name: str, pixels: np.ndarray, stamp: Time) -> Image:
    """Return an rgb8 image message from (H, W, 3) uint8; ``name`` becomes its frame."""
    message = Image(
        height=pixels.shape[0], width=pixels.shape[1], encoding="rgb8", step=pixels.shape[1] * 3
    )
    message.header.frame_id = name
    message.header.stamp = stamp
    message.data = array.array("B", np.ascontiguousarray(pixels).tobytes())
    return message


def compressed(image: Image, pixels: np.ndarray, quality: int) -> CompressedImage:
    """Return an image as image_transport's compressed one.

    Args:
        image: the image, whose header is used.
        pixels: (H, W, 3) uint8, RGB.
        quality: of JPEG, 1 to 100.
    """
    import cv2

    _, jpeg = cv2.imencode(
        ".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality]
    )
    return CompressedImage(
        header=image.header,
        format="rgb8; jpeg compressed bgr8",
        data=array.array("B", jpeg.tobytes()),
    )


def camera_info(image: Image, lens: Sequence[float] = ()) -> CameraInfo:
    """Return the CameraInfo of a pinhole camera. K is zero without calibration.

    Args:
        image: the image, whose header and size are used.
        lens: fx, fy, cx, cy [pixels] and distortion coefficients.
    """
    info = CameraInfo(
        header=image.header, height=image.height, width=image.width, distortion_model="plumb_bob"
    )
    if lens:
        fx, fy, cx, cy = lens[:4]
        distortion = [float(value) for value in lens[4:]]
        info.d = distortion + [0.0] * (5 - len(distortion))
        info.k = [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0]
        info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
        info.p = [fx, 0.0, cx, 0.0, 0.0, fy, cy, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


def from_image(message: Image) -> np.ndarray:
    """Return the pixels (H, W, 3) uint8 of an rgb8 or bgr8 image; refuse other encodings."""
    if message.encoding not in ("rgb8", "bgr8"):
        raise SpecError(
            f"image '{message.header.frame_id}': expected encoding rgb8 or bgr8, got "
            f"'{message.encoding}'. Set the camera driver to one of them (realsense2_camera: "
            "rgb_camera.color_format:=RGB8)"
        )
    if (
        message.step < 3 * message.width
        or len(message.data) != message.height * message.step
        or not message.data
    ):
        raise SpecError(
            f"image '{message.header.frame_id}': expected {message.height} rows of {message.step} "
            f"bytes for {message.width} pixels of 3, got {len(message.data)} bytes. Its publisher "
            "is defective"
        )
    rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    pixels = rows[:, : message.width * 3].reshape(message.height, message.width, 3)
    return pixels if message.encoding == "rgb8" else pixels[..., ::-1]


def fill_observation(
    message: TimeStep, spec: StationSpec, observation: dict[str, np.ndarray]
) -> None:
    """Put ``observation`` into ``message`` in the order of the spec."""
    message.vectors = [
        NamedVector(name=item.name, data=observation[item.name].ravel().tolist())
        for item in spec.vectors
    ]
    message.images = [
        to_image(item.name, observation[item.name], message.header.stamp) for item in spec.images
    ]


def observation_of(message: TimeStep, spec: StationSpec) -> dict[str, np.ndarray]:
    """Return the observation in ``message``, checked against the spec."""
    values = {vector.name: np.asarray(vector.data, np.float32) for vector in message.vectors}
    values |= {image.header.frame_id: from_image(image) for image in message.images}
    return {
        item.name: item.check(values[item.name].reshape(item.shape)) for item in spec.observation
    }


def action_chunk(
    spec: StationSpec,
    actions: np.ndarray,
    *,
    source: str,
    session: str,
    seq: int,
    version: int,
    observation_stamp: Time,
    execute: int = 1,
) -> ActionChunk:
    """Return a chunk message from normalised actions (horizon, dim)."""
    si = spec.action.to_si(np.atleast_2d(actions))
    message = ActionChunk(
        source=source,
        session=session,
        seq=seq,
        policy_version=version,
        observation_stamp=observation_stamp,
        dt=1.0 / spec.control_hz,
        control_mode=spec.action.control_mode,
        horizon=si.shape[0],
        dim=si.shape[1],
        execute=execute,
    )
    message.data = si.ravel().tolist()
    return message


def release_chunk(spec: StationSpec, *, session: str, seq: int, stamp: Time) -> ActionChunk:
    """Return the operator's release of a takeover: a chunk without actions, at that stamp."""
    return ActionChunk(
        source="operator",
        session=session,
        seq=seq,
        policy_version=-1,
        observation_stamp=stamp,
        dt=1.0 / spec.control_hz,
        control_mode=spec.action.control_mode,
    )


def fill_drawn(message: ActionChunk, drawn: np.ndarray, log_probs: np.ndarray | None) -> None:
    """Put a chunk's drawn values into its message.

    Args:
        message: the chunk.
        drawn: (horizon, D), or (D,).
        log_probs: (horizon,), or one.
    """
    message.drawn = _floats(drawn)
    message.drawn_dim = drawn.shape[-1]
    if log_probs is not None:
        message.log_probs = _floats(log_probs)


def _floats(values: np.ndarray) -> array.array:
    """Return exact float32 values; rclpy accepts an array unchecked, but checks list items."""
    return array.array("f", np.asarray(values, np.float32).tobytes())
