"""Finds an arm in a model: its joints from base to tool, the tool's frame and the gripper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError, nearest
from sim_bridges.simulators.mujoco_arm.loading import ModelSource

MIN_ARM_JOINTS = 4  # a shorter branch is a finger or a head
MAX_FINGER_ACTUATORS = 2
TOOL_NAMES = re.compile(
    r"tcp|attachment|tool|end.?eff|(^|_)ee($|_)|pinch|grip|grasp|flange|hand", re.I
)
GRIPPER_NAMES = re.compile(r"grip|jaw|finger|claw", re.I)
WRIST_NAMES = re.compile(r"wrist|rot|roll|yaw|pitch|flex", re.I)
BETWEEN_FINGERS = re.compile(r"tcp|tool|end.?eff|(^|_)ee($|_)|pinch|grasp|frame", re.I)


@dataclass(frozen=True)
class Anatomy:
    """The arm in a model.

    Attributes:
        joints: the arm's, from base to tool.
        tool: name of the site or body that is the tool's frame.
        base: name of the body that carries the first joint's link.
        last: name of the arm's last link.
        fingers: joints of the gripper; empty without one.
        actuators: the model's actuators of the fingers; empty if the model has none for them.
        hand: joints behind the arm that are more than a gripper, and stay at rest.
        ignored: other joints of the model, which stay at rest.
    """

    joints: tuple[str, ...]
    tool: str
    base: str
    last: str
    fingers: tuple[str, ...]
    actuators: tuple[str, ...]
    hand: tuple[str, ...]
    ignored: tuple[str, ...]


def name_parts(spec: Any) -> None:
    """Give each body and joint a name, so that files can refer to it."""
    for kind, parts in (
        ("body", spec.bodies[1:]),
        ("joint", spec.joints),
        ("actuator", spec.actuators),
    ):
        taken = {part.name for part in parts}
        for index, part in enumerate(parts):
            if not part.name:
                name = f"{kind}_{index + 1}"
                part.name = name if name not in taken else f"{name}_unnamed"


def find_arm(
    source: ModelSource, model: Any, joints: Sequence[str] = (), tool: str = ""
) -> Anatomy:
    """Find the arm.

    Args:
        source: the model's source; its bodies and joints have names.
        model: MuJoCo's model, compiled from it.
        joints: the arm's, from base to tool; found if empty.
        tool: site or body; found if empty.

    Raises:
        RlinfError: no arm, several arms, or a name that the model lacks.
    """
    tree = Tree(source, model)
    if tool and not joints:
        joints = tree.joints_above(tree.body_of(tool))
    elif not joints:
        joints = tree.main_chain()
    unknown = [name for name in joints if name not in tree.body_of_joint]
    if unknown:
        raise RlinfError(
            f"{source.path}: joints: expected hinge or slide joints of the model, got "
            f"'{unknown[0]}'{nearest(unknown[0], sorted(tree.body_of_joint))}. It has "
            f"{', '.join(tree.body_of_joint)}"
        )
    if len(joints) < 3:
        raise RlinfError(
            f"{source.path}: expected an arm of at least 3 joints, got "
            f"{', '.join(joints) or 'none'}. Name the arm's joints from base to tool with "
            "--joints, or its last body with --tool"
        )
    last = tree.body_of_joint[joints[-1]]
    behind = [
        name
        for name, body in tree.body_of_joint.items()
        if name not in joints and last in tree.ancestors(body)
    ]
    fingers, actuators = tree.gripper(behind)
    hand = tuple(behind) if behind and not fingers else ()
    ignored = tuple(
        name for name in tree.body_of_joint if name not in joints and name not in behind
    )
    base = tree.parent(tree.body_of_joint[joints[0]])
    return Anatomy(
        tuple(joints),
        tool or tree.tool(last, fingers),
        base,
        last,
        fingers,
        actuators,
        hand,
        ignored,
    )


class Tree:
    """Bodies and joints of a model by name."""

    def __init__(self, source: ModelSource, model: Any) -> None:
        import mujoco

        self._mujoco, self.source, self.model = mujoco, source, model
        kinds = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
        self.free = [
            model.joint(index).name
            for index in range(model.njnt)
            if int(model.jnt_type[index]) not in kinds
        ]
        self.body_of_joint = {
            model.joint(index).name: model.body(model.jnt_bodyid[index]).name
            for index in range(model.njnt)
            if int(model.jnt_type[index]) in kinds
        }
        self.mimics = set(source.mimics)

    def parent(self, body: str) -> str:
        return str(self.model.body(self.model.body(body).parentid[0]).name)

    def ancestors(self, body: str) -> list[str]:
        """Return the body and all above it, without the world."""
        chain = []
        while body != "world":
            chain.append(body)
            body = self.parent(body)
        return chain

    def body_of(self, name: str) -> str:
        """Return the body of a site, or the body itself; raise RlinfError for neither."""
        sites = [self.model.site(index).name for index in range(self.model.nsite)]
        bodies = [self.model.body(index).name for index in range(1, self.model.nbody)]
        if name in sites:
            return str(self.model.body(self.model.site(name).bodyid[0]).name)
        if name in bodies:
            return name
        allowed = [*filter(None, sites), *bodies]
        raise RlinfError(
            f"{self.source.path}: tool: expected a site or body of the model, got '{name}'"
            f"{nearest(name, allowed)}. It has {', '.join(allowed)}"
        )

    def joints_above(self, body: str) -> tuple[str, ...]:
        chain = self.ancestors(body)[::-1]
        return tuple(
            name for link in chain for name, at in self.body_of_joint.items() if at == link
        )

    def main_chain(self) -> tuple[str, ...]:
        """Return the joints from the root along the longest branch to the gripper.

        Raises:
            RlinfError: two branches are arms, or the base floats.
        """
        arms = self._arms("world", ())
        if not arms:
            raise RlinfError(
                f"{self.source.path}: expected an arm of at least 3 hinge or slide joints, got "
                f"{', '.join(self.body_of_joint) or 'none'}. Name the arm's model, not a "
                "gripper's or an object's"
            )
        best = max(map(len, arms))
        longest = (
            [arm for arm in arms if len(arm) >= max(MIN_ARM_JOINTS, best - 2)]
            if best >= MIN_ARM_JOINTS
            else arms[:1]
        )
        if len(longest) > 1:
            raise RlinfError(
                f"{self.source.path}: expected one arm, got {len(longest)}: "
                + "; ".join(f"{arm[0]} to {arm[-1]}" for arm in longest)
                + ". Choose one: --tool BODY_OR_SITE, or --joints from base to tool"
            )
        (arm,) = longest
        floating = [
            name
            for name in self.ancestors(self.body_of_joint[arm[0]])
            if self.model.body(name).jntnum[0]
            and self.model.body(name).jntadr[0] >= 0
            and self.model.joint(self.model.body(name).jntadr[0]).name in self.free
        ]
        if floating:
            raise RlinfError(
                f'{self.source.path}: <body name="{floating[0]}"> has a <freejoint> or ball joint: '
                f"expected "
                "an arm on a fixed base. Remove that joint"
            )
        return arm

    def _arms(self, body: str, joints: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return every chain of joints below a body that may be an arm.

        A chain ends at a gripper, at a tool, or at a body that branches into fingers.
        """
        local = tuple(
            name
            for name, at in self.body_of_joint.items()
            if at == body and name not in self.mimics
        )
        if local and joints and self._is_finger(local, joints):
            return [joints]
        joints += local
        branches = [child for child in self._children(body) if self._depth(child)]
        if not branches:
            return [joints] if len(joints) >= 3 else []
        deep = [child for child in branches if self._depth(child) >= MIN_ARM_JOINTS]
        is_hand = len(deep) > 1 and len(joints) > MIN_ARM_JOINTS
        if is_hand or (len(branches) > 1 and not deep and len(joints) >= 3):
            return [joints]
        return [arm for child in deep or branches for arm in self._arms(child, joints)]

    def _is_finger(self, local: tuple[str, ...], joints: tuple[str, ...]) -> bool:
        """Return whether the joints of a body, behind ``joints``, are a gripper's."""
        if len(joints) < 3:
            return False
        slides = [
            int(self.model.joint(name).type[0]) == int(self._mujoco.mjtJoint.mjJNT_SLIDE)
            for name in local
        ]
        is_short = all(
            slide and np.ptp(self.model.joint(name).range) < 0.15
            for slide, name in zip(slides, local, strict=True)
        )
        body = self.body_of_joint[local[0]]
        has_gripper_name = any(GRIPPER_NAMES.search(name) for name in local) or bool(
            GRIPPER_NAMES.search(body)
            and self._depth(body) == len(local)
            and not any(WRIST_NAMES.search(name) for name in local)
        )
        return (is_short or has_gripper_name) and self._depth(body) < MIN_ARM_JOINTS

    def _children(self, body: str) -> list[str]:
        return [
            self.model.body(index).name
            for index in range(1, self.model.nbody)
            if self.model.body(self.model.body_parentid[index]).name == body
        ]

    def _depth(self, body: str) -> int:
        """Return the largest number of joints on a path from here to a leaf."""
        local = sum(
            at == body and name not in self.mimics for name, at in self.body_of_joint.items()
        )
        return local + max((self._depth(child) for child in self._children(body)), default=0)

    def gripper(self, behind: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return finger joints and their actuators; two empty tuples for a hand or nothing."""
        behind = tuple(behind)
        if not behind:
            return (), ()
        actuators = tuple(
            self.model.actuator(index).name
            for index in range(self.model.nu)
            if set(self.actuated_joints(index)) & set(behind)
        )
        leading = [name for name in behind if name not in self.mimics]
        if len(actuators) > MAX_FINGER_ACTUATORS or (
            not actuators and len(leading) > MAX_FINGER_ACTUATORS
        ):
            return (), ()
        return behind, actuators

    def actuated_joints(self, actuator: int) -> list[str]:
        """Return the joints that an actuator moves."""
        kind = int(self.model.actuator_trntype[actuator])
        target = self.model.actuator_trnid[actuator, 0]
        transmissions = self._mujoco.mjtTrn
        if kind in (int(transmissions.mjTRN_JOINT), int(transmissions.mjTRN_JOINTINPARENT)):
            return [self.model.joint(target).name]
        if kind == int(transmissions.mjTRN_TENDON):
            first = self.model.tendon_adr[target]
            return [
                self.model.joint(self.model.wrap_objid[index]).name
                for index in range(first, first + self.model.tendon_num[target])
                if int(self.model.wrap_type[index]) == int(self._mujoco.mjtWrap.mjWRAP_JOINT)
            ]
        return []

    def tool(self, last: str, fingers: Sequence[str]) -> str:
        """Return the site or body of the tool's frame.

        It is chosen by name, else it is the deepest fixed body behind the last joint.
        """
        moving = {self.body_of_joint[name] for name in fingers}
        bodies = [self.model.body(index).name for index in range(1, self.model.nbody)]
        fixed = [
            body
            for body in bodies
            if last in self.ancestors(body)
            and not any(
                at in self.ancestors(body) and last in self.ancestors(at)[1:]
                for at in self.body_of_joint.values()
            )
        ]
        sites = [
            self.model.site(index).name
            for index in range(self.model.nsite)
            if self.model.body(self.model.site_bodyid[index]).name in fixed
            and self.model.site(index).name
        ]
        tool_names = [name for name in sites if TOOL_NAMES.search(name)]
        if tool_names:
            return tool_names[-1]
        pattern = BETWEEN_FINGERS if moving else TOOL_NAMES
        tool_names = [name for name in fixed if pattern.search(name) and name != last]
        return (
            tool_names[-1] if tool_names else sites[-1] if len(sites) == 1 and not moving else last
        )
