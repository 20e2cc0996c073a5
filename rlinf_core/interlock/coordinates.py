"""Poses, joints and actions in the coordinates of the limits' groups, and the arm's valid position.

``Track`` rejects a measured jump that is faster than the arm can move (S21).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import sub
from typing import TypeGuard

from rlinf_core.core.rotation import inverse, product, to_quaternion, to_vector, unit
from rlinf_core.interlock.limits import WIDE_M, Limits
from rlinf_core.interlock.motion import Numbers
from rlinf_core.interlock.types import COMMANDERS, MAX_ACTIONS, MAX_SEQ, NS, Chunk, Inputs, Pose

Coordinates = tuple[Numbers, ...]  # one entry per group
# Measurement noise: a sample may jump by this much.
NOISE_M, NOISE_RAD = 0.005, 0.03
# A resting arm may be measured to move by this much.
REST_M, REST_RAD = 0.002, 0.01


def measured_coordinates(limits: Limits, inputs: Inputs) -> Coordinates | None:
    """Return the arm's measured coordinates, or None if they are unknown.

    They are unknown if a number is missing, not finite (trap 2), or in another frame or unit (S5).
    """
    if inputs.frame not in ("", limits.frame) or topic_in_wrong_units(limits, inputs):
        return None
    arm: Coordinates | None
    if limits.control_mode == "joint_delta":
        arm = (tuple(inputs.joints),) if _finite(inputs.joints, len(limits.joint_low)) else None
    elif _finite(inputs.pose, 7) and abs(math.hypot(*inputs.pose[3:]) - 1.0) < 0.01:
        arm = (
            tuple(inputs.pose[:3]),
            to_vector(product(limits.from_nominal, unit(inputs.pose[3:]))),
        )
    else:
        arm = None
    if arm is None or not limits.gripper_width:
        return arm
    if inputs.gripper is None or not math.isfinite(inputs.gripper):
        return None
    return (*arm, (min(max(inputs.gripper, 0.0), limits.gripper_width),))


def topic_in_wrong_units(limits: Limits, inputs: Inputs) -> str:
    """Return the topic of a measured state in other units than metres and radians, or ""."""
    if limits.control_mode == "joint_delta":
        topic, values = "joint_states", inputs.joints
    else:
        topic, values = "current_pose", inputs.pose
    for (low, high), value in zip(limits.metric_range, values or (), strict=False):
        if value < low or value > high:
            return topic
    widest_m = max(WIDE_M, 2.0 * limits.gripper_width)
    if limits.gripper_width and abs(inputs.gripper or 0.0) > widest_m:
        return "gripper/state"
    return ""


def tool_pose(limits: Limits, coordinates: Coordinates) -> Pose:
    """Return the tool's pose at ``coordinates`` of the control mode ``tcp_delta``."""
    x, y, z = coordinates[0]
    return (x, y, z, *product(limits.nominal, to_quaternion(coordinates[1])))


def split_by_group(limits: Limits, action: Numbers) -> Coordinates:
    """Split an action into its groups; a group that the action leaves out gets zeros."""
    parts: Coordinates
    if limits.control_mode == "joint_delta":
        arm_size = len(limits.joint_low)
        parts = (action[:arm_size],)
    elif len(action) >= 6:
        arm_size = 6
        parts = (action[:3], action[3:6])
    else:
        arm_size = 3
        parts = (action[:3], (0.0, 0.0, 0.0))
    if not limits.gripper_width:
        return parts
    return (*parts, (action[arm_size] if len(action) > arm_size else 0.0,))


def velocities(limits: Limits, chunk: Chunk, action: Numbers, at: Coordinates) -> Coordinates:
    """Return the velocity of each group's coordinates that plays ``action`` from ``at``."""
    dt_s = chunk.dt_s
    requested = tuple(
        [tuple([value / dt_s for value in part]) for part in split_by_group(limits, action)]
    )
    if limits.control_mode == "joint_delta" or not any(requested[1]):
        return requested
    # A rotation in the base frame changes the tool's rotation vector, which is relative to
    # ``orientation``, by another vector.
    rotation = to_quaternion([value * limits.tick for value in requested[1]])
    tool = product(limits.nominal, to_quaternion(at[1]))
    rotated = to_vector(product(limits.from_nominal, product(rotation, tool)))
    turn_speed = tuple([delta / limits.tick for delta in map(sub, rotated, at[1])])
    return (requested[0], turn_speed, *requested[2:])


def displacement(limits: Limits, start: Coordinates, end: Coordinates, size: int) -> Numbers:
    """Return the displacement from ``start`` to ``end`` as an action of ``size`` numbers."""
    action = tuple(map(sub, end[0], start[0]))
    if limits.control_mode == "tcp_delta" and size >= 6:
        first = product(limits.nominal, to_quaternion(start[1]))
        last = product(limits.nominal, to_quaternion(end[1]))
        action += to_vector(product(last, inverse(first)))
    if size > len(action):
        action += tuple(map(sub, end[-1], start[-1]))
    return action


def refusal_reason(limits: Limits, chunk: Chunk, now_ns: int) -> str:
    """Return the reason to refuse a chunk (S4, S5, S6, S7), or "" if it is well formed."""
    if chunk.source not in COMMANDERS:
        return "source"
    if len(chunk.actions) > MAX_ACTIONS:
        return "horizon"
    if chunk.control_mode != limits.control_mode:
        return "control_mode"
    if chunk.frame not in ("", limits.frame):
        return "frame"
    if chunk.joint_names and chunk.joint_names != limits.joint_names:
        return "joint_names"
    if not (math.isfinite(chunk.dt_s) and 0.001 <= chunk.dt_s <= 10.0):
        return "dt"
    size = len(chunk.actions[0]) if chunk.actions else 0
    fits = size in limits.action_sizes and set(map(len, chunk.actions)) == {size}
    if not (fits or (chunk.is_release and not chunk.actions)):
        return "size"
    for action in chunk.actions:
        if not (
            all(map(math.isfinite, action)) and math.isfinite(max(map(abs, action)) / chunk.dt_s)
        ):
            return "not_finite"  # its velocity would not be finite either
    if chunk.seq >= MAX_SEQ:
        return "seq"
    if (chunk.observation_stamp_ns - now_ns) * 1e-9 > limits.future_stamp:
        return "future_stamp"
    jump = limits.jump_factor * chunk.dt_s
    for action in chunk.actions:
        for group, part in zip(limits.groups, split_by_group(limits, action), strict=True):
            if group.norm(part) > jump * group.speed:
                return "jump"
    return ""


def _finite(values: Numbers | None, size: int) -> TypeGuard[Numbers]:
    return values is not None and len(values) == size and all(map(math.isfinite, values))


@dataclass(frozen=True, slots=True)
class Track:
    """The arm's known position.

    Attributes:
        at: the last valid measured coordinates; None before the first.
        sampled_ns: time at which the newest sample was measured.
        jumped: True if a sample has jumped since the last valid one. An arm does not reach an
            impossible place by waiting.
        rest: the place at which the samples rest.
        rested: consecutive ticks for which the samples have rested there.
        valid: True if the arm can be at the newest sample.
    """

    at: Coordinates | None = None
    sampled_ns: int = 0
    jumped: bool = False
    rest: Coordinates | None = None
    rested: int = 0
    valid: bool = False


def measured_at_rest(limits: Limits, track: Track) -> bool:
    """Return True if the arm has rested for long enough to know its place."""
    return track.valid and track.rested >= limits.settle_ticks


def update_track(
    limits: Limits,
    track: Track,
    sample: Coordinates | None,
    age_ns: int,
    now_ns: int,
    may_relocate: bool,
) -> Track:
    """Advance the track by one tick.

    The first place becomes valid once the arm has rested there for ``SETTLE_S``. After that, a
    sample is valid if the arm can have come there from the last valid one.

    Args:
        limits: the limits in force.
        track: the track after the last tick.
        sample: the newest measured coordinates; None if there is no finite sample.
        age_ns: age of the sample.
        now_ns: time of this tick.
        may_relocate: True while nothing is armed: the arm may then rest at any new place.
            Otherwise a place that has jumped and stays is a fault, which a person inspects.
    """
    if sample is None:
        return replace(track, rest=None, rested=0, valid=False)
    rests = track.rest is not None and _within(limits, track.rest, sample, (REST_M, REST_RAD), 0.0)
    rest, rested = (track.rest, track.rested + 1) if rests else (sample, 1)
    sampled_ns = now_ns - age_ns
    max_s = limits.tick if track.jumped else limits.stale_state
    since_s = min(max((sampled_ns - track.sampled_ns) / NS, limits.tick), max_s)
    valid = track.at is not None and _within(
        limits, track.at, sample, (NOISE_M, NOISE_RAD), since_s
    )
    if valid or (rested >= limits.settle_ticks and (may_relocate or track.at is None)):
        return Track(sample, sampled_ns, False, rest, rested, True)
    return Track(track.at, sampled_ns, True, rest, rested, False)


def recheck_due(limits: Limits, track: Track) -> bool:
    """Return True in one tick of each ``SETTLE_S`` in which the arm rests."""
    return track.rested % limits.settle_ticks == 0


def track_at_rest(limits: Limits, sample: Coordinates, now_ns: int) -> Track:
    """Return the track of an arm that a simulator has put somewhere without motion."""
    return Track(sample, now_ns, False, sample, limits.settle_ticks, True)


def _within(
    limits: Limits, a: Coordinates, b: Coordinates, slack: tuple[float, float], seconds: float
) -> bool:
    """Return True if the arm's groups, without the gripper, are close enough together.

    The bound is ``slack`` plus the fastest possible motion during ``seconds``.
    """
    if limits.control_mode == "joint_delta":
        return (
            limits.groups[0].distance(a[0], b[0])
            <= slack[1] + limits.measured_joint_speed * seconds
        )
    return (
        math.dist(a[0], b[0]) <= slack[0] + limits.measured_speed * seconds
        and math.dist(a[1], b[1]) <= slack[1] + limits.measured_rotation_speed * seconds
    )
