"""Different robots in one policy: their specs side by side, each with separate numbers.

All layers between a network's first and last are shared. In the first layer each robot has the
columns of its own numbers, in the last one the rows of its own actions. This is a state encoder and
a head for each robot, in a network without knowledge of robots.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlinf_core.core.errors import SpecError
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec, TextSpec

EMBODIMENT = "embodiment"


@dataclass(frozen=True)
class JointSpec(StationSpec):
    """Specs of several robots; made by ``joined``.

    The first numbers, one per robot, name the observing robot: 1 for that robot, 0 for the others.
    Each robot's vectors follow; those of other robots are zero. Actions have the same layout.

    Attributes:
        robots: specs by name.
    """

    robots: Mapping[str, StationSpec] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """Twelve hex digits of a hash over the robots' names and hashes."""
        document = json.dumps({name: spec.hash for name, spec in self.robots.items()})
        return hashlib.sha256(document.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description for ``spec_of``."""
        return {"robots": {name: spec.to_dict() for name, spec in self.robots.items()}}

    def member(self, spec_hash: str) -> StationSpec | None:
        """Return the specs of the robot with this hash, or None."""
        return (
            self
            if spec_hash == self.hash
            else next((spec for spec in self.robots.values() if spec.hash == spec_hash), None)
        )

    def difference(self, other: StationSpec) -> str:
        """Describe the difference to the robot with the nearest specs."""
        differences = {name: spec.difference(other) for name, spec in self.robots.items()}
        nearest = min(differences, key=lambda name: differences[name].count("\n"))
        return f"nearest is robot '{nearest}': {differences[nearest]}"

    @property
    def description(self) -> str:
        """Each robot's name and hash, for people."""
        return ", ".join(f"{name} {spec.hash}" for name, spec in self.robots.items())

    def slices_of(self, member: StationSpec) -> tuple[int, slice, slice]:
        """Return a robot's number, and the slices of its vectors and actions.

        Raises:
            SpecError: no robot has the specs of ``member``.
        """
        vector_start, action_start = len(self.robots), 0
        for number, spec in enumerate(self.robots.values()):
            vector_end = vector_start + spec.vector_size
            action_end = action_start + spec.action.dim
            if spec.hash == member.hash:
                return number, slice(vector_start, vector_end), slice(action_start, action_end)
            vector_start, action_start = vector_end, action_end
        raise SpecError(
            f"robot with specs {member.hash}: expected one of {self.description}. "
            f"{self.difference(member)}"
        )

    @cached_property
    def dimension_masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Masks of the numbers (N, V) and actions (N, A) of each of the N robots, as 0 and 1."""
        count = len(self.robots)
        numbers = np.zeros((count, self.vector_size), np.float32)
        actions = np.zeros((count, self.action.dim), np.float32)
        numbers[:, :count] = 1.0
        for spec in self.robots.values():
            number, vectors, rows = self.slices_of(spec)
            numbers[number, vectors], actions[number, rows] = 1.0, 1.0
        return numbers, actions

    def with_others(
        self, member: StationSpec, vectors: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Place a robot's vectors (..., V) and actions (..., A) among those of all."""
        number, place, rows = self.slices_of(member)
        all_vectors = np.zeros((*vectors.shape[:-1], self.vector_size), np.float32)
        all_actions = np.zeros((*actions.shape[:-1], self.action.dim), actions.dtype)
        all_vectors[..., number] = 1.0
        all_vectors[..., place] = vectors
        all_actions[..., rows] = actions
        return all_vectors, all_actions


def joined(robots: Mapping[str, StationSpec]) -> JointSpec:
    """Return the specs of several robots that share a policy, by name.

    Raises:
        SpecError: two are the same, or their cameras differ.
    """
    first = next(iter(robots))
    for name, spec in robots.items():
        if _image_shapes(spec) != _image_shapes(robots[first]):
            raise SpecError(
                f"embodiments: '{name}': expected the images of '{first}', "
                f"{_image_shapes(robots[first]) or 'none'}, since all robots share the image "
                f"encoder, got {_image_shapes(spec) or 'none'}. Give them the same cameras"
            )
        twin = next(other for other, robot_spec in robots.items() if robot_spec.hash == spec.hash)
        if twin != name:
            raise SpecError(
                f"embodiments: '{name}': expected specs that differ from those of '{twin}', got "
                f"the same ({spec.hash}). Robots with the same specs are one embodiment: leave one "
                "of them out"
            )
    vectors = tuple(
        replace(item, name=f"{name}.{item.name}")
        for name, spec in robots.items()
        for item in spec.vectors
    )
    actions = [
        (f"{name}.{dim}", scale, unit)
        for name, spec in robots.items()
        for dim, scale, unit in zip(
            spec.action.names, spec.action.scale, spec.action.units, strict=True
        )
    ]
    names, scales, units = zip(*actions, strict=True)
    return JointSpec(
        (ArraySpec(EMBODIMENT, (len(robots),)), *vectors, *robots[first].images),
        ActionSpec("several", names, scales, units),
        robots[first].control_hz,
        robots=dict(robots),
    )


def spec_of(document: dict[str, Any]) -> StationSpec:
    """Return the specs in ``to_dict``'s result: one robot, several, or a language policy."""
    if "text" in document:
        return TextSpec()
    if "robots" not in document:
        return StationSpec.from_dict(document)
    return joined({name: StationSpec.from_dict(spec) for name, spec in document["robots"].items()})


def _image_shapes(spec: StationSpec) -> dict[str, tuple[int, ...]]:
    return {image.name: image.shape for image in spec.images}
