"""Chooses options that a model lacks: a home posture, a workspace and the gripper's opening."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError
from sim_bridges.simulators.mujoco_arm import Simulator
from sim_bridges.simulators.mujoco_arm.scene import reach

MAX_POSTURES = 600  # postures in the search for a home
MARGIN_M = 0.04  # between the goals and the interlock's box
MIN_HALF_M, MAX_HALF_M = 0.02, 0.12
GOOD_SHARE = 0.6  # share of the largest workspace that ends the search
NEAR_M, NEAR_RAD = 0.002, 0.3
CHECKED_M = 0.03  # motion of the tool in `rlinf check sim` from an episode's start
# corners first: they fail first
SIDES = sorted(
    ((x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1) if x or y or z),
    key=lambda side: -sum(map(abs, side)),
)
MIN_OPENING_M, CLOSING_S = 0.002, 1.5
MAX_REST_SPEED = 0.5  # speed of a resting gripper's drive that counts as trembling [rad/s or m/s]


@dataclass
class Design:
    """An arm and its first task.

    Attributes:
        options: the simulator's options.
        anatomy: the model's parts.
        joint_ranges: lowest and highest of each joint (J, 2); infinite without limits.
        box: lowest and highest x, y, z of the tool, for the interlock [m].
        orientation: the tool's orientation at home, quaternion xyzw.
        cone: largest turn of the tool away from it [rad].
        step_m: motion of one action.
        notes: remarks for the user.
    """

    options: dict[str, Any]
    anatomy: Any
    joint_ranges: np.ndarray
    box: np.ndarray
    orientation: np.ndarray
    cone: float
    step_m: float
    notes: list[str] = field(default_factory=list)


def design(
    model: Path,
    joints: tuple[str, ...] = (),
    tool: str = "",
    home: tuple[float, ...] = (),
    gripper: bool = True,
) -> Design:
    """Choose the options of a simulator for a model.

    Args:
        model: an MJCF or a URDF.
        joints: the arm's, from base to tool; found if empty.
        tool: site or body; found if empty.
        home: joint angles [rad or m]; the model's keyframe or a search if empty.
        gripper: whether to use the model's gripper.

    Raises:
        RlinfError: the file is no model, or the arm has no workspace; the message has the remedy.
    """
    options: dict[str, Any] = {"model": str(model), "joints": joints, "tool": tool, "home": home}
    simulator = Simulator(**options)
    notes = list(simulator.notes)
    options |= {"joints": simulator.anatomy.joints, "tool": simulator.anatomy.tool}
    if simulator.anatomy.fingers and gripper:
        options |= _gripper(simulator, notes)
        simulator = Simulator(**options)
        if simulator.anatomy.tool == simulator.anatomy.last:
            options["tool_offset"] = _between_fingers(simulator)
            simulator = Simulator(**options)
    posture, half = _find_home(simulator, chosen=bool(home), notes=notes)
    options["home"] = _rounded(posture, 4)
    place = _tool_at(simulator, posture)
    low, high = place - half, place + half
    options |= {
        "goal_low": _rounded(low),
        "goal_high": _rounded(high),
        "start_range_m": round(0.3 * half, 3),
        "radius_m": round(float(np.clip(0.2 * half, 0.006, 0.02)), 3),
    }
    arm = simulator.arm
    free = [
        name
        for name, top in zip(simulator.joint_names, arm.high, strict=True)
        if not np.isfinite(top)
    ]
    if free:
        notes.append(f"these joints of the model have no end stops: {', '.join(free)}")
    slim = len(posture) < 6
    if slim:
        notes.append(
            f"{len(posture)} joints: the tool's position is controlled, and its orientation follows"
        )
    return Design(
        options,
        simulator.anatomy,
        np.column_stack([arm.low, arm.high]),
        np.array([low - MARGIN_M, high + MARGIN_M]),
        simulator.tcp_pose()[3:],
        1.5 if slim else 0.5,
        round(float(np.clip(0.25 * half, 0.008, 0.03)), 3),
        notes,
    )


def _rounded(values: np.ndarray, digits: int = 3) -> tuple[float, ...]:
    return tuple(round(float(value), digits) + 0.0 for value in values)


def _tool_at(simulator: Simulator, posture: np.ndarray) -> np.ndarray:
    """Return the tool's position (3,) in the base frame [m]; the simulator stays there."""
    simulator.home = simulator.arm.home = posture
    simulator.data.qpos[simulator.arm.positions] = posture
    simulator._mujoco.mj_kinematics(simulator.model, simulator.data)
    return simulator.tcp_pose()[:3]


def _find_home(simulator: Simulator, chosen: bool, notes: list[str]) -> tuple[np.ndarray, float]:
    """Return a posture, and half the edge of the cube about its tool that the arm reaches."""
    half = workspace(simulator, simulator.home)
    if chosen and half < MIN_HALF_M:
        raise RlinfError(
            f"--home {' '.join(f'{angle:g}' for angle in simulator.home)}: expected a posture "
            f"from which the tool moves {100 * MIN_HALF_M:.0f} cm to every side, got "
            f"{100 * half:.1f} cm. Choose another, with the elbow bent and joints away from their "
            "ends"
        )
    length = reach(simulator.model, simulator.data, simulator.anatomy)
    min_half = GOOD_SHARE * min(MAX_HALF_M, 0.2 * length)
    if half >= min_half or chosen:
        return simulator.home, half
    best, best_half = simulator.home, half
    for posture in chain(_postures_near_home(simulator, length), _random_postures(simulator)):
        half = workspace(simulator, posture, beyond=best_half)
        if half > best_half:
            best, best_half = posture, half
        if half >= min_half:
            break
    if best_half < MIN_HALF_M:
        raise RlinfError(
            f"{simulator.path}: expected a posture from which the tool moves "
            f"{100 * MIN_HALF_M:.0f} cm to every side, found none in {MAX_POSTURES}. Name one with "
            f"--home, one angle a joint: {', '.join(simulator.joint_names)}; or the tool's frame "
            "with --tool"
        )
    notes.append(
        "the tool has little room at the model's default posture (stretched, at a joint's end or "
        "on the floor); episodes begin at another posture"
    )
    return best, best_half


def _postures_near_home(simulator: Simulator, length: float) -> list[np.ndarray]:
    """Return variants of the model's own posture, with the tool lower, higher or nearer."""
    natural, postures = simulator.home, []
    place = _tool_at(simulator, natural)
    position, quaternion = simulator._tool()
    flat = place * [1, 1, 0]
    forward = flat / np.linalg.norm(flat) if np.linalg.norm(flat) > 0.01 else np.zeros(3)
    moves = sorted(
        product((0.0, -0.1, -0.2, 0.1, -0.3), repeat=2), key=lambda move: float(np.abs(move).sum())
    )
    for away, up in moves[1:]:
        target = position + length * (away * forward + [0, 0, up])
        joints = simulator.arm.solve(simulator.data, natural, target, quaternion, steps=60)
        postures.append(joints)
    return postures


def _random_postures(simulator: Simulator) -> Iterator[np.ndarray]:
    """Return random postures, those with the tool in a comfortable place first."""
    random = np.random.default_rng(0)
    low = np.where(np.isfinite(simulator.arm.low), simulator.arm.low, -np.pi)
    high = np.where(np.isfinite(simulator.arm.high), simulator.arm.high, np.pi)
    length = max(reach(simulator.model, simulator.data, simulator.anatomy), 0.05)
    scored: list[tuple[float, int, np.ndarray]] = []
    for _ in range(MAX_POSTURES):
        posture = random.uniform(0.85 * low + 0.15 * high, 0.15 * low + 0.85 * high)
        place = _tool_at(simulator, posture)
        height = place[2] / length
        forward = place[0] / length
        scored.append(
            (
                abs(forward - 0.5)
                + abs(place[1] / length)
                + 2 * max(0.0, 0.15 - height)
                + max(0.0, height - 0.6),
                len(scored),
                posture,
            )
        )
    return (posture for _, _, posture in sorted(scored)[:60])


def workspace(simulator: Simulator, posture: np.ndarray, beyond: float = 0.0) -> float:
    """Return half the edge of a cube about the tool in which the arm follows its targets.

    It is at most ``MAX_HALF_M``, and 0 if it does not exceed ``beyond``.
    """
    largest = min(MAX_HALF_M, 0.2 * reach(simulator.model, simulator.data, simulator.anatomy))
    smallest = max(MIN_HALF_M, 1.2 * beyond)
    if smallest > largest or not _reaches_cube(simulator, posture, smallest):
        return 0.0
    half = smallest
    while half < largest and _reaches_cube(simulator, posture, min(1.25 * half, largest)):
        half = min(1.25 * half, largest)
    return half


def _reaches_cube(simulator: Simulator, posture: np.ndarray, half: float) -> bool:
    """Return whether the tool reaches each side and corner of a cube and its margin.

    The cube must lie above the floor, and the arm must not touch itself.
    """
    place = _tool_at(simulator, posture)
    position, quaternion = simulator._tool()
    edge = max(half + MARGIN_M, 1.3 * half + CHECKED_M)
    if simulator.scene.to_world(place)[2] - edge < min(simulator.scene.origin[2], 0.0):
        return False
    reached = []
    for side in SIDES:
        joints = _joints_at(simulator, posture, position + edge * np.array(side), quaternion)
        if joints is None:
            return False
        reached.append(joints)
    return not any(_touches(simulator, joints) for joints in reached)


def _joints_at(
    simulator: Simulator, posture: np.ndarray, position: np.ndarray, quaternion: np.ndarray
) -> np.ndarray | None:
    """Return the joints with the tool at a pose in the world, or None if it is out of reach.

    The search begins at ``posture``.
    """
    arm, data = simulator.arm, simulator.data
    joints = arm.solve(data, posture, position, quaternion, steps=40)
    data.qpos[arm.positions] = joints
    simulator._mujoco.mj_kinematics(simulator.model, data)
    error = np.abs(arm.error(data, position, quaternion))
    data.qpos[arm.positions] = posture
    turned = len(posture) < 6 or error[3:].max() < NEAR_RAD
    return joints if error[:3].max() < NEAR_M and turned else None


def _touches(simulator: Simulator, joints: np.ndarray) -> bool:
    """Return whether links touch at these joints; the gripper's own may."""
    data, model = simulator.data, simulator.model
    fingers = {
        int(model.joint(name).bodyid[0])
        for name in (*simulator.anatomy.fingers, *simulator.anatomy.hand)
    }
    data.qpos[simulator.arm.positions] = joints
    simulator._mujoco.mj_kinematics(simulator.model, data)
    simulator._mujoco.mj_collision(simulator.model, data)
    pairs = [
        {int(model.geom_bodyid[contact.geom1]), int(model.geom_bodyid[contact.geom2])}
        for contact in data.contact
        if contact.dist < 0
    ]
    return any(not pair <= fingers for pair in pairs)


def _gripper(simulator: Simulator, notes: list[str]) -> dict[str, Any]:
    """Return the options of the gripper's drives, found by trying both ends of their range."""
    anatomy = simulator.anatomy
    drives = anatomy.actuators or tuple(
        name for name in anatomy.fingers if name not in _followers(simulator)
    )
    options: dict[str, Any] = {
        "model": str(simulator.path),
        "joints": anatomy.joints,
        "tool": anatomy.tool,
        "gripper": drives,
    }
    ranges = [_range(simulator, name) for name in drives]
    gaps, lengths, places = [], [], []
    tips, trembles = _tips(simulator), False
    for end in (0, 1):
        at = tuple(float(span[end]) for span in ranges)
        trial = Simulator(**options, gripper_open=at, gripper_closed=at)
        trial.home = trial.arm.home = simulator.home
        trial.place(np.zeros(3))
        trial._set_gripper(trial.width_m)
        for _ in range(round(CLOSING_S / trial.tick_s)):
            trial._step()
        gaps.append(_gap(trial, tips))
        places.append(_places(trial, tips))
        lengths.append(float(trial.data.actuator_length[trial._drives[0]]))
        trembles |= bool(np.abs(trial.data.actuator_velocity[trial._drives]).max() > MAX_REST_SPEED)
    width = (
        abs(gaps[1] - gaps[0]) if len(tips) > 1 else float(np.linalg.norm(places[1] - places[0]))
    )
    if trembles or width < MIN_OPENING_M or abs(lengths[1] - lengths[0]) < 1e-6:
        reason = (
            "does not come to rest. Damp its joints, or lower its gain in the model"
            if trembles
            else f"moves its fingers less than {1e3 * MIN_OPENING_M:.0f} mm"
        )
        notes.append(f"gripper {', '.join(drives)} {reason}. It is left out")
        return {}
    opened = int(gaps[1] > gaps[0])
    ends = [_rounded(np.array([span[end] for span in ranges]), 5) for end in (0, 1)]
    return {
        "gripper": drives,
        "gripper_open": ends[opened],
        "gripper_closed": ends[1 - opened],
        "gripper_travel": _rounded(np.array([lengths[1 - opened], lengths[opened]]), 5),
        "gripper_width": round(width, 3),
    }


def _followers(simulator: Simulator) -> set[str]:
    """Return the joints that an equality makes follow another."""
    model, joint = simulator.model, int(simulator._mujoco.mjtEq.mjEQ_JOINT)
    return {
        model.joint(model.eq_obj1id[index]).name
        for index in range(model.neq)
        if int(model.eq_type[index]) == joint and model.eq_obj2id[index] >= 0
    }


def _range(simulator: Simulator, drive: str) -> np.ndarray:
    """Return the lowest and highest command (2,) of an actuator or of a joint with a drive."""
    model = simulator.model
    names = [model.actuator(index).name for index in range(model.nu)]
    joint = drive
    if drive in names:
        actuator = model.actuator(drive)
        span = np.array(actuator.ctrlrange) if actuator.ctrllimited[0] else None
        on_joint = int(actuator.trntype[0]) == int(simulator._mujoco.mjtTrn.mjTRN_JOINT)
        servo = actuator.gainprm[0] > 0 and np.isclose(actuator.gainprm[0], -actuator.biasprm[1])
        if span is not None and not (on_joint and servo):
            return span
        joint = model.joint(actuator.trnid[0]).name
        if span is not None:
            limited = model.joint(joint).limited[0]
            return np.clip(span, *model.joint(joint).range) if limited else span
    if not model.joint(joint).limited[0]:
        raise RlinfError(
            f"{simulator.path}: gripper joint '{joint}': expected a range, got none. Add "
            f'range="LOW HIGH" to '
            "<joint>, or leave the gripper out with --no-gripper"
        )
    return np.array(model.joint(joint).range)


def _tips(simulator: Simulator) -> list[tuple[str, int]]:
    """Return the outermost shape of each finger, as ("geom", index).

    A finger without a shape gives its body, as ("body", index).
    """
    model, data = simulator.model, simulator.data
    bodies = [int(model.joint(name).bodyid[0]) for name in simulator.anatomy.fingers]
    parents = {int(model.body_parentid[body]) for body in bodies}
    leaves = [body for body in bodies if body not in parents] or bodies
    return [
        _outermost(model, data, leaf, data.body(simulator.anatomy.last).xpos) for leaf in leaves
    ]


def _outermost(model: Any, data: Any, body: int, hub: np.ndarray) -> tuple[str, int]:
    geoms = [
        index
        for index in range(model.ngeom)
        if model.body_weldid[model.geom_bodyid[index]] == model.body_weldid[body]
    ]
    if not geoms:
        return "body", body
    return "geom", max(geoms, key=lambda index: float(np.linalg.norm(data.geom_xpos[index] - hub)))


def _places(simulator: Simulator, tips: list[tuple[str, int]]) -> np.ndarray:
    """Return the positions (F, 3) of finger tips in the world [m]."""
    data = simulator.data
    return np.array(
        [data.geom_xpos[index] if kind == "geom" else data.xipos[index] for kind, index in tips]
    )


def _gap(simulator: Simulator, tips: list[tuple[str, int]]) -> float:
    """Return the distance between the two fingers that are farthest apart [m].

    A single finger is measured from the opposite shape of the last link.
    """
    places = _places(simulator, tips)
    if len(places) > 1:
        return max(float(np.linalg.norm(one - other)) for one in places for other in places)
    model, data = simulator.model, simulator.data
    last = model.body(simulator.anatomy.last).id
    jaw = _places(simulator, [_outermost(model, data, last, data.xpos[last])])[0]
    return float(np.linalg.norm(places[0] - jaw))


def _between_fingers(simulator: Simulator) -> tuple[float, ...]:
    """Return the middle of the finger tips in the last link's frame [m]."""
    middle = _places(simulator, _tips(simulator)).mean(axis=0)
    last = simulator.data.body(simulator.anatomy.last)
    return _rounded(last.xmat.reshape(3, 3).T @ (middle - last.xpos))
