"""The observations and actions of a station: names, shapes, dtypes, units and bounds.

An instruction is an array, too (``encode_instructions``: UTF-8, padded with 0). It is therefore
sent and recorded like all others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlinf_core.core.errors import SpecError

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ArraySpec:
    """One named array.

    Attributes:
        name: its name in a time step.
        shape: its shape; images are (height, width, 3).
        dtype: "float32" or "uint8".
        unit: SI unit of its elements.
        low: smallest meaningful value, per element or one for all.
        high: largest meaningful value.
        source: the robot-side channel it is read from, e.g. "current_pose".
        take: the part of the channel, e.g. "position" (see rlinf_core.tasks.task).
        around: the orientation (quaternion x y z w) around which a rotation is continuous. It is
            empty without one, and in specs from before 2026-11-29: there a rotation vector jumps at
            half a turn, and a quaternion's sign is the driver's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    unit: str = ""
    low: tuple[float, ...] = (-np.inf,)
    high: tuple[float, ...] = (np.inf,)
    source: str = ""
    take: str = ""
    around: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    def check(self, value: np.ndarray) -> np.ndarray:
        """Return ``value`` as an array of this shape and dtype.

        Raise SpecError if it is not one.
        """
        if isinstance(value, np.ndarray) and value.dtype == self._dtype:
            return self._checked(value)  # nothing is converted
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                array = np.asarray(value, dtype=self.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise SpecError(
                f"'{self.name}': expected {self.dtype} of shape {self.shape}, got "
                f"{type(value).__name__}: {error}"
            ) from error
        return self._checked(array)

    @cached_property
    def _dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    def _checked(self, array: np.ndarray) -> np.ndarray:
        """Return the array if it is finite and has this shape; else raise SpecError."""
        if array.shape != self.shape:
            raise SpecError(f"'{self.name}': expected shape {self.shape}, got {array.shape}")
        if self.dtype != "uint8" and not np.isfinite(array).all():
            raise SpecError(f"'{self.name}': expected finite values, got {first_not_finite(array)}")
        return array


def first_not_finite(array: np.ndarray) -> float:
    """Return the first NaN or infinity of an array that has one."""
    return float(array[~np.isfinite(array)].ravel()[0])


def finite(name: str, value: Any) -> float:
    """Convert a reward, or another single number, to a float.

    Raises:
        SpecError: ``value`` is not one finite number; the message contains ``name``.
    """
    try:
        number = float(np.asarray(value, float).reshape(()))
    except (TypeError, ValueError) as error:
        actual = (
            f"shape {np.shape(value)}"
            if isinstance(value, np.ndarray | list | tuple)
            else repr(value)
        )
        raise SpecError(f"{name}: expected one number, got {actual[:100]}") from error
    if not np.isfinite(number):
        raise SpecError(f"{name}: expected finite values, got {number}")
    return number


@dataclass(frozen=True)
class ActionSpec:
    """The actions of a station: a control mode and, per dimension, the largest step in SI units.

    A policy acts in [-1, 1] per dimension; ``to_si`` scales that for the wire.
    """

    control_mode: str
    names: tuple[str, ...]
    scale: tuple[float, ...]
    units: tuple[str, ...]

    @property
    def dim(self) -> int:
        return len(self.names)

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """The arms that it moves, in the order of its numbers; empty for one arm.

        An arm is the part of a name before ``/``.
        """
        return tuple(dict.fromkeys(name.partition("/")[0] for name in self.names if "/" in name))

    def rows(self, arm: str) -> slice:
        """Return the indices of an arm's numbers; all of them for one arm without a name."""
        indices = [index for index, name in enumerate(self.names) if name.startswith(f"{arm}/")]
        return slice(indices[0], indices[-1] + 1) if arm else slice(0, self.dim)

    def of_arm(self, arm: str) -> ActionSpec:
        """Return one arm's part, in the form of a station with one arm."""
        rows = self.rows(arm)
        names = tuple(name.removeprefix(f"{arm}/") for name in self.names[rows])
        return ActionSpec(self.control_mode, names, self.scale[rows], self.units[rows])

    def to_si(self, action: np.ndarray) -> np.ndarray:
        """Convert a normalised action (..., dim) in [-1, 1] to SI units."""
        return np.minimum(np.maximum(action, -1.0), 1.0) * self._scale

    def from_si(self, action: np.ndarray) -> np.ndarray:
        """Convert an SI action (..., dim) to normalised units, without clipping."""
        return np.asarray(action) / self._scale

    @cached_property
    def _scale(self) -> np.ndarray:
        return np.array(self.scale)


@dataclass(frozen=True)
class StationSpec:
    """All properties in which a policy and a station must agree.

    Attributes:
        observation: the observed arrays; vectors and images.
        action: the action of one time step.
        control_hz: time steps per second [1/s].
        instruction: sentence of the task; empty without one.

    Example:
        >>> from rlinf_core.specs.arrays import ActionSpec, ArraySpec
        >>> action = ActionSpec("tcp_delta", ("x", "y", "z"), (0.02, 0.02, 0.02), ("m", "m", "m"))
        >>> spec = StationSpec((ArraySpec("tcp_position", (3,), unit="m"),), action, 10.0)
        >>> spec.vector_size, spec.action.dim
        (3, 3)
    """

    observation: tuple[ArraySpec, ...]
    action: ActionSpec
    control_hz: float
    instruction: str = ""
    _by_name: dict[str, ArraySpec] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._by_name.update({spec.name: spec for spec in self.observation})
        if len(self._by_name) != len(self.observation):
            raise SpecError(
                "observation names must be unique, got "
                + ", ".join(s.name for s in self.observation)
            )

    def __getitem__(self, name: str) -> ArraySpec:
        return self._by_name[name]

    @cached_property
    def vectors(self) -> tuple[ArraySpec, ...]:
        return tuple(spec for spec in self.observation if not spec.is_image)

    @cached_property
    def images(self) -> tuple[ArraySpec, ...]:
        return tuple(spec for spec in self.observation if spec.is_image)

    @cached_property
    def vector_size(self) -> int:
        return sum(spec.size for spec in self.vectors)

    def flatten(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Concatenate the vectors of ``observation`` in declared order, float32 (vector_size,)."""
        return np.concatenate([observation[spec.name].ravel() for spec in self.vectors]).astype(
            np.float32, copy=False
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description; infinities are spelled as strings."""
        data = asdict(self)
        data.pop("_by_name")
        # 10 becomes 10.0, because the hash must not depend on the spelling
        data["control_hz"] = float(self.control_hz)
        for item in data["observation"]:
            if not item["around"]:
                del item["around"]  # specs without it keep their old hash
        for numbers, names in (
            (data["action"], ("scale",)),
            *((item, ("low", "high")) for item in data["observation"]),
        ):
            numbers.update({name: tuple(map(_spelled, numbers[name])) for name in names})
        return json.loads(json.dumps(data))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> StationSpec:
        observation = tuple(
            ArraySpec(
                **{
                    **item,
                    "shape": tuple(item["shape"]),
                    "low": tuple(map(float, item["low"])),
                    "high": tuple(map(float, item["high"])),
                    "around": tuple(map(float, item.get("around", ()))),
                }
            )
            for item in data["observation"]
        )
        action: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in data["action"].items()
        }
        return cls(
            observation,
            ActionSpec(**action),
            float(data["control_hz"]),
            data.get("instruction", ""),
        )

    @property
    def hash(self) -> str:
        """Twelve hex digits of a hash over everything but the instruction's wording."""
        data = self.to_dict()
        data.pop("instruction", None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]

    def member(self, spec_hash: str) -> StationSpec | None:
        """Return the specs with this hash among these, and those of several robots, or None.

        See ``embodiment`` for several robots.
        """
        return self if spec_hash == self.hash else None

    def with_others(
        self, member: StationSpec, vectors: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Place a robot's vectors (..., V) and actions (..., A) among those of all robots.

        ``member`` holds the robot's specs.
        """
        return vectors, actions

    @property
    def description(self) -> str:
        """The hash, or each robot's, for people."""
        return self.hash

    def difference(self, other: StationSpec) -> str:
        """Describe each difference from ``other`` in one line; empty when they agree."""
        lines = []
        items = {s.name: s for s in self.observation}
        other_items = {s.name: s for s in other.observation}
        for name in sorted(items.keys() | other_items.keys()):
            if items.get(name) != other_items.get(name):
                lines.append(
                    f"observation '{name}': {_short(items.get(name))} against "
                    f"{_short(other_items.get(name))}"
                )
        if self.action != other.action:
            lines.append(f"action: {self.action} against {other.action}")
        if self.control_hz != other.control_hz:
            lines.append(f"control_hz: {self.control_hz} against {other.control_hz}")
        return "\n".join(lines)


def _spelled(number: Any) -> float | str:
    """Return a number for JSON; infinity becomes text."""
    value = float(number)
    return str(value) if np.isinf(value) else value


def _short(spec: ArraySpec | None) -> str:
    if spec is None:
        return "absent"
    around = (
        f", continuous around {' '.join(f'{value:g}' for value in spec.around)}"
        if spec.around
        else ""
    )
    return f"{spec.dtype}{list(spec.shape)} [{spec.unit}] from {spec.source}.{spec.take}{around}"


INSTRUCTION = "instruction"  # name among observations
INSTRUCTION_BYTES = 128  # largest number of bytes


def encode_instructions(sentences: Iterable[str]) -> np.ndarray:
    """Encode sentences as (B, INSTRUCTION_BYTES) uint8; raise SpecError if one is too long."""
    rows = []
    for sentence in sentences:
        data = sentence.encode()
        if len(data) > INSTRUCTION_BYTES or "\0" in sentence:
            raise SpecError(
                f"instruction: expected at most {INSTRUCTION_BYTES} bytes of UTF-8 without NUL, "
                f"got {len(data)}: '{sentence[:40]}...'"
            )
        rows.append(np.frombuffer(data.ljust(INSTRUCTION_BYTES, b"\0"), np.uint8))
    return np.stack(rows)


def decode_instructions(rows: np.ndarray) -> tuple[str, ...]:
    """Return the sentences of rows (B, INSTRUCTION_BYTES)."""
    return tuple(bytes(row).rstrip(b"\0").decode() for row in np.asarray(rows, np.uint8))


FAR = 3.0  # in largest steps; data sets of faster arms stay below, other units exceed it


def other_units(action: ActionSpec, low: np.ndarray, high: np.ndarray, ratio: float = FAR) -> str:
    """Return the reason why actions of this range are not in the task's units, or "".

    Args:
        action: action spec of the task.
        low: (A,) the smallest of each number, in the task's units.
        high: (A,) the largest of each number, in the task's units.
        ratio: multiple of the largest step beyond which a number is in other units.
    """
    limits = np.asarray(action.scale) * ratio
    beyond = ~((np.asarray(low) >= -limits) & (np.asarray(high) <= limits))  # NaN is beyond
    if not beyond.any():
        return ""
    row = int(np.argmax(beyond))
    least, most = float(low[row]), float(high[row])
    actual = f"{most:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    return (
        f"expected '{action.names[row]}' within {action.scale[row]:g} {action.units[row]} in both "
        f"directions (a step of the station), got {actual}. Are its actions of another kind, or in "
        "other units?"
    )


@dataclass(frozen=True)
class TextSpec(StationSpec):
    """Conversations instead of arrays: no vectors, no images, and an action without dimensions."""

    observation: tuple[()] = ()
    action: ActionSpec = ActionSpec("text", (), (), ())
    control_hz: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description for ``spec_of``."""
        return {"text": True}

    def difference(self, other: StationSpec) -> str:
        """Describe the difference from the specs of a robot."""
        if isinstance(other, TextSpec):
            return ""
        return "a language policy, which writes text, against a robot's observations and actions"
