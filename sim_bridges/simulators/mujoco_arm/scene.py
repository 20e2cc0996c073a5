"""Completes an arm's model to a scene: tool site, goal, cameras, light, floor, shapes, drives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError
from sim_bridges.simulators.mujoco_arm.anatomy import Anatomy
from sim_bridges.simulators.mujoco_arm.loading import ModelSource

TOOL, GOAL = "rlinf_tool", "rlinf_goal"
Box = tuple[Sequence[float], Sequence[float]]
SLIDE_KP, HINGE_KP = 1000.0, 20.0  # gains of the drives in a model without actuators [N/m, Nm/rad]


def add_tool(source: ModelSource, model: Any, anatomy: Anatomy, offset: Sequence[float]) -> None:
    """Add a site at the tool's frame, moved by ``offset`` (3,) in it [m]."""
    sites = [model.site(index).name for index in range(model.nsite)]
    position, rotation = np.asarray(offset, dtype=float), np.array([1.0, 0.0, 0.0, 0.0])
    if anatomy.tool in sites:
        site = model.site(anatomy.tool)
        body, turn = model.body(site.bodyid[0]).name, np.empty(9)
        _mujoco().mju_quat2Mat(turn, site.quat)
        position, rotation = site.pos + turn.reshape(3, 3) @ position, site.quat
    else:
        body = anatomy.tool
    source.spec.body(body).add_site(
        name=TOOL, pos=position, quat=rotation, group=4, size=[0.005] * 3
    )


def add_drives(source: ModelSource, model: Any, names: Sequence[str]) -> None:
    """Give a gripper's joints position servos if the model has no actuators for them."""
    mujoco = _mujoco()
    actuators = {model.actuator(index).name for index in range(model.nu)}
    joints = {model.joint(index).name for index in range(model.njnt)}
    for name in names:
        if name in actuators or name not in joints:
            continue
        slide = int(model.joint(name).type[0]) == int(mujoco.mjtJoint.mjJNT_SLIDE)
        stiffness = SLIDE_KP if slide else HINGE_KP
        drive = source.spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        drive.gaintype, drive.biastype = mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtBias.mjBIAS_AFFINE
        drive.gainprm[0], drive.biasprm[1:3] = stiffness, (-stiffness, -0.1 * stiffness)
        source.spec.body(model.body(model.joint(name).bodyid[0]).name).gravcomp = 1.0


def add_surroundings(
    source: ModelSource, model: Any, anatomy: Anatomy, home: np.ndarray, goals: Box, radius_m: float
) -> tuple[str, ...]:
    """Add a goal, shapes for bare links, and light, floor and cameras if the model has none.

    Args:
        source: the model, which is changed.
        model: compiled from it before.
        anatomy: its parts.
        home: joints of the arm (J,).
        goals: lowest and highest x, y, z in the base frame [m].
        radius_m: radius of the goal [m]

    Returns:
        The names of its cameras; one is ``video``.
    """
    mujoco, spec = _mujoco(), source.spec
    for key in list(spec.keys):
        spec.delete(key)  # the model's keyframes have no entry for the goal
    # the stiff servos of grippers need an implicit integrator
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    data = at_home(model, anatomy, home)
    base = data.body(anatomy.base).xpos
    _exclude_contacts(source, model, data)
    _add_shapes(source, model, data, anatomy)
    goal = spec.worldbody.add_body(name=GOAL, mocap=True)
    goal.add_geom(
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
        size=[radius_m, 0, 0],
        rgba=[0.9, 0.3, 0.1, 1],
        contype=0,
        conaffinity=0,
        group=0,
    )
    if not any(int(kind) == int(mujoco.mjtGeom.mjGEOM_PLANE) for kind in model.geom_type):
        spec.worldbody.add_geom(
            name="rlinf_floor",
            type=mujoco.mjtGeom.mjGEOM_PLANE,
            size=[4, 4, 0.1],
            pos=[0, 0, floor_height(model, data, base)],
            rgba=[0.6, 0.62, 0.64, 1],
            contype=0,
            conaffinity=0,
            group=0,
        )
    if model.nlight == 0:
        spec.worldbody.add_light(
            pos=base + [1, -1, 2.5], dir=[-0.4, 0.4, -1], diffuse=[0.7, 0.7, 0.7], castshadow=False
        )
    spec.visual.headlight.ambient[:] = 0.35
    centre = base + (np.asarray(goals[0]) + np.asarray(goals[1])) / 2
    return _add_cameras(spec, model, base, centre, data.site_xpos, reach(model, data, anatomy))


def at_home(model: Any, anatomy: Anatomy, home: np.ndarray) -> Any:
    """Return MuJoCo's data with the arm at ``home`` (J,), and the rest at its keyframe."""
    mujoco = _mujoco()
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    for name, angle in zip(anatomy.joints, home, strict=True):
        data.qpos[model.joint(name).qposadr[0]] = angle
    mujoco.mj_forward(model, data)
    return data


def reach(model: Any, data: Any, anatomy: Anatomy) -> float:
    """Return the length of the stretched arm, from joint to joint and to the tool's body [m]."""
    places = [data.joint(name).xanchor for name in anatomy.joints]
    sites = [model.site(index).name for index in range(model.nsite)]
    places.append(
        data.site(anatomy.tool).xpos if anatomy.tool in sites else data.body(anatomy.tool).xpos
    )
    return float(
        sum(np.linalg.norm(far - near) for near, far in zip(places, places[1:], strict=False))
    )


def floor_height(model: Any, data: Any, base: np.ndarray) -> float:
    """Return the floor's height: below the base's own shapes, never above the base [m]."""
    lowest = [
        data.geom_xpos[index, 2] - model.geom_rbound[index]
        for index in range(model.ngeom)
        if model.geom_bodyid[index] == 0 and 0 < model.geom_rbound[index] < 1
    ]
    return float(min([base[2], *lowest]))


def _exclude_contacts(source: ModelSource, model: Any, data: Any) -> None:
    """Exclude contacts between links that touch at home.

    They touch because of their shapes' tolerance, not because of a motion.
    """
    pairs = {
        tuple(sorted((model.geom_bodyid[contact.geom1], model.geom_bodyid[contact.geom2])))
        for contact in data.contact
        if contact.dist < 0
    }
    for one, other in sorted(pairs):
        names = model.body(one).name, model.body(other).name
        if 0 not in (one, other):
            source.spec.add_exclude(bodyname1=names[0], bodyname2=names[1])
    if pairs:
        named = ", ".join(
            f"{model.body(one).name} and {model.body(other).name}" for one, other in sorted(pairs)
        )
        source.notes.append(f"these links touch at home, and their contact is left out: {named}")


def _add_shapes(source: ModelSource, model: Any, data: Any, anatomy: Anatomy) -> None:
    """Add a capsule from joint to joint for each link without a shape."""
    mujoco, radius = _mujoco(), 0.04 * reach(model, data, anatomy)
    links = [model.body(model.joint(name).bodyid[0]) for name in anatomy.joints]
    ends = [*(link.id for link in links[1:]), model.body(anatomy.last).id]
    for link, end in zip(links, ends, strict=True):
        bodies = _fixed_to(model, link.id)
        if any(model.body(body).geomnum[0] for body in bodies):
            continue
        turn = data.xmat[link.id].reshape(3, 3)
        tip = turn.T @ (data.xpos[end] - data.xpos[link.id])
        if np.linalg.norm(tip) < radius:
            tip = np.array([0.0, 0.0, radius])
        source.spec.body(link.name).add_geom(
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=[0, 0, 0, *tip],
            size=[radius, 0, 0],
            mass=0,
            rgba=[0.85, 0.86, 0.88, 1],
            contype=0,
            conaffinity=0,
            group=0,
        )


def _fixed_to(model: Any, body: int) -> list[int]:
    """Return the body, and those fixed to it."""
    return [
        index for index in range(model.nbody) if model.body_weldid[index] == model.body_weldid[body]
    ]


def _add_cameras(
    spec: Any, model: Any, base: np.ndarray, centre: np.ndarray, sites: np.ndarray, length: float
) -> tuple[str, ...]:
    names = [model.cam(index).name for index in range(model.ncam) if model.cam(index).name]
    away = (centre - base) * [1, 1, 0]
    forward = (
        away / np.linalg.norm(away) if np.linalg.norm(away) > 0.05 else np.array([1.0, 0.0, 0.0])
    )
    side = np.array([forward[1], -forward[0], 0.0])
    views = {
        "front": centre + 1.3 * length * forward + [0, 0, 0.5 * length],
        "video": centre + 1.1 * length * (forward + side) + [0, 0, 0.6 * length],
    }
    for name, eye in views.items():
        if name not in names:
            spec.worldbody.add_camera(name=name, pos=eye, quat=_look_at(eye, centre), fovy=45)
    return tuple(dict.fromkeys(["front", *names, "video"]))


def _look_at(eye: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the quaternion wxyz of an upright camera at ``eye`` that looks at ``at``."""
    backwards = (eye - at) / np.linalg.norm(eye - at)
    right = np.cross([0.0, 0.0, 1.0], backwards)
    if np.linalg.norm(right) < 1e-6:
        raise RlinfError("camera: expected a place that is not straight above its target")
    right /= np.linalg.norm(right)
    rotation, matrix = np.empty(4), np.column_stack([right, np.cross(backwards, right), backwards])
    _mujoco().mju_mat2Quat(rotation, matrix.flatten())
    return rotation


def _mujoco() -> Any:
    import mujoco

    return mujoco
