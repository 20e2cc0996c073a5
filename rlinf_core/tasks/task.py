"""Time steps from robot-side channels: observation, reward, step type.

The ROS node and vectorised simulators use this module. A channel is the newest content of a
robot-side topic, by the topic's name: current_pose (7,), current_twist (6,), wrench (6,),
joint_states (n,), gripper/state (1,), object_pose (7,), goal_pose (7,), task/success (1,),
camera/<name>/image (H, W, 3) uint8. ``step_result`` computes the result of a time step: success,
failure, time limit, progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from rlinf_core.config.base import Count, Settings
from rlinf_core.config.checking import validate
from rlinf_core.config.yaml_source import Document, read_document, resolve_file_reference
from rlinf_core.core.errors import RecipeError, RlinfError, SpecError, nearest
from rlinf_core.core.paths import data_folder, expand_user
from rlinf_core.core.rotation import same_hemisphere, to_vector, to_vector_around, unit
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec, encode_instructions
from rlinf_core.specs.topics import arm_of, of_arms, topic
from rlinf_core.tasks.rewards import REWARD, Shaped, Stateful, Success, make_success
from rlinf_core.tasks.rewards.arms import per_arm
from rlinf_core.tasks.scripts import SCRIPT

Channels = dict[str, np.ndarray]
IDENTITY = (0.0, 0.0, 0.0, 1.0)  # a quaternion


@dataclass(frozen=True)
class Task:
    """A station's task: its specs, its terms (``step_result``), and its scripts.

    Attributes:
        spec: specs of the station.
        success: test that it is done.
        max_steps: time steps after which an episode is cut off.
        failure: test that it cannot be done any more; None for never.
        shaping: weight of the progress in the reward, beside success.
        success_steps: number of time steps in a row that must look done.
        script: the scripted operator of the task (``rlinf_core.tasks.scripts``) and its parameters;
            None if there is none.

    Example:
        >>> task = load_task("configs/tasks/reach.yaml")
        >>> isinstance(task, Task), task.max_steps, task.spec.control_hz
        (True, 30, 10.0)
    """

    spec: StationSpec
    success: Success
    max_steps: int
    failure: Success | None = None
    shaping: float = 0.0
    success_steps: int = 1
    script: Settings | None = None

    @property
    def channels(self) -> set[str]:
        """All channels of its observation and its terms."""
        failure = self.failure.channels if self.failure else ()
        poses = of_arms("current_pose", self.spec.action.arms)
        return {item.source for item in self.spec.observation} | {
            *poses,
            *self.success.channels,
            *failure,
        }

    def with_images(self, cameras: dict[str, tuple[int, int]]) -> Task:
        """Return the same task with cameras; ``cameras`` maps a name to (height, width)."""
        images = tuple(
            ArraySpec(
                name, (*size, 3), "uint8", "", (0.0,), (255.0,), f"camera/{name}/image", "image"
            )
            for name, size in cameras.items()
        )
        return replace(self, spec=replace(self.spec, observation=self.spec.observation + images))

    def around(self, orientations: Mapping[str, Sequence[float]]) -> Task:
        """Return the same task with rotations continuous around each arm's own orientation.

        A tool's rotation vector and quaternion are then continuous up to half a turn from there.
        The quaternion of other poses has the sign with w >= 0.

        Args:
            orientations: an arm's name (empty for an arm without one) to the orientation of its
                limits, a quaternion x y z w.
        """
        return replace(
            self,
            spec=replace(
                self.spec,
                observation=tuple(
                    replace(item, around=_around(item, orientations))
                    for item in self.spec.observation
                ),
            ),
        )


def _around(item: ArraySpec, orientations: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """Return the orientation around which a pose's array is continuous; empty for other arrays."""
    arm = arm_of(item.source)
    if (
        item.take not in ("rotation", "all")
        or topic(item.source).channel != (7,)
        or arm not in orientations
    ):
        return ()
    if item.source == _tool(item.source):
        return unit(tuple(map(float, orientations[arm])))
    # an object's rotation vector has no such orientation
    return IDENTITY if item.take == "all" else ()


def with_shaping(task: Task, weight: float) -> Task:
    """Return the task with its progress in the reward.

    Raises:
        RecipeError: the task has no measure of progress.
    """
    if not isinstance(task.success, Shaped):
        raise RecipeError(
            f"simulation.shaping: expected 0, got {weight}: the reward "
            f"{type(task.success).__name__} has no measure of progress"
        )
    return replace(task, shaping=weight)


def observe(spec: StationSpec, channels: Channels) -> dict[str, np.ndarray]:
    """Return the observation that ``spec`` declares, each array checked.

    Raises:
        SpecError: a channel is missing; the message names it.
    """
    observation = {}
    for item in spec.observation:
        if item.source not in channels:
            raise SpecError(
                f"observation '{item.name}': no message on '{item.source}'. Is its publisher "
                "running and remapped to that name? Received so far: "
                f"{', '.join(sorted(channels)) or 'nothing'}"
            )
        observation[item.name] = item.check(_TAKE[item.take](channels, item))
    return observation


def _image(channels: Channels, item: ArraySpec) -> np.ndarray:
    image = channels[item.source]
    if image.shape == item.shape:
        return image
    import cv2

    return cv2.resize(image, (item.shape[1], item.shape[0]), interpolation=cv2.INTER_AREA)


def _all(channels: Channels, item: ArraySpec) -> np.ndarray:
    values = channels[item.source]
    return (
        np.array([*values[:3], *same_hemisphere(values[3:7], np.asarray(item.around))])
        if item.around
        else values
    )


def _rotation(channels: Channels, item: ArraySpec) -> np.ndarray:
    turned = channels[item.source][3:7]
    return np.asarray(
        to_vector_around(turned, np.asarray(item.around)) if item.around else to_vector(turned),
        float,
    )


_TAKE: dict[str, Callable[[Channels, ArraySpec], np.ndarray]] = {
    "all": _all,
    "position": lambda channels, item: channels[item.source][:3],
    "rotation": _rotation,
    "linear": lambda channels, item: channels[item.source][:3],
    "angular": lambda channels, item: channels[item.source][3:6],
    "force": lambda channels, item: channels[item.source][:3],
    "torque": lambda channels, item: channels[item.source][3:6],
    "offset": lambda channels, item: channels[item.source][:3] - channels[_tool(item.source)][:3],
    "turn": lambda channels, item: np.array(
        [turn_between(channels[_tool(item.source)], channels[item.source])]
    ),
    "image": _image,
}


def _tool(source: str) -> str:
    """Return the tool's channel for the base frame of a source."""
    return of_arms("current_pose", [arm] if (arm := arm_of(source)) else [])[0]


def turn_between(tool: np.ndarray, thing: np.ndarray) -> float:
    """Return the tool's turn about the vertical to lie along a thing, or across it [rad].

    Both are poses (7,). The result is within a quarter of pi to either side, as if both were
    square.
    """
    turn = _heading(thing) - _heading(tool)
    return float((turn + np.pi / 4) % (np.pi / 2) - np.pi / 4)


def _heading(pose: np.ndarray) -> float:
    """Return the direction of its x axis, seen from above [rad]."""
    x, y, z, w = pose[3:7]
    return float(np.arctan2(2 * (x * y + z * w), 1 - 2 * (y * y + z * z)))


TERMS = ("reward", "failure", "script")
SIZES = {
    "position": 3,
    "rotation": 3,
    "linear": 3,
    "angular": 3,
    "force": 3,
    "torque": 3,
    "offset": 3,
    "turn": 1,
}


class ObservationEntry(Settings):
    """One array of the observation."""

    source: str = Field(description="channel, which is a topic of the robot side")
    take: Literal[
        "all", "position", "rotation", "linear", "angular", "force", "torque", "offset", "turn"
    ] = Field(
        description="part of the channel. `rotation` is a rotation vector. That of a tool is "
        "continuous up to half a turn from the limits' orientation, so its length "
        "reaches 2 pi. `all` of a pose takes the quaternion's sign likewise. "
        "`offset` is the position relative to the tool. `turn` is the angle about "
        "the vertical from the tool's sides to the object's"
    )
    shape: tuple[Count, ...] = Field(min_length=1, max_length=1, description="shape of the array")
    unit: str = Field("", description="SI unit of the numbers")
    low: tuple[float, ...] = Field(
        (), description="smallest valid value, one for each number or one for all"
    )
    high: tuple[float, ...] = Field(
        (), description="largest valid value, one for each number or one for all"
    )

    @model_validator(mode="after")
    def _fits(self) -> ObservationEntry:
        try:
            channel = topic(self.source).channel
        except RlinfError as error:
            raise ValueError(f"source: {error}") from error
        if channel is None or len(channel) > 1:
            raise ValueError(f"source: expected a channel of numbers, got '{self.source}'")
        size = SIZES.get(self.take, channel[0])
        if size not in (-1, self.shape[0]):
            raise ValueError(
                f"shape: expected [{size}] of {self.source}.{self.take}, got {list(self.shape)}"
            )
        for name in ("low", "high"):
            if len(getattr(self, name)) not in (0, 1, self.shape[0]):
                raise ValueError(
                    f"{name}: expected 1 or {self.shape[0]} numbers, got "
                    f"{list(getattr(self, name))}"
                )
        if self.low and self.high and (np.array(self.low) > np.array(self.high)).any():
            raise ValueError(f"low: expected at most high {list(self.high)}, got {list(self.low)}")
        return self


class ActionDimension(Settings):
    """One dimension of the action."""

    scale: float = Field(gt=0, description="largest step, which is an action of 1 [SI unit]")
    unit: str = Field(description="SI unit of the step")


class ActionSettings(Settings):
    """The action space of a policy."""

    control_mode: Literal["tcp_delta", "joint_delta"] = Field(
        description="actions move the tool (tcp_delta) or the joints (joint_delta)"
    )
    dimensions: dict[str, ActionDimension] = Field(
        min_length=1,
        description="dimensions by name, in the order of the action's numbers. With several "
        "arms each name begins with the arm's: left/dx",
    )

    @model_validator(mode="after")
    def _check_arm_order(self) -> ActionSettings:
        arms = [name.partition("/")[0] if "/" in name else "" for name in self.dimensions]
        runs = [arm for index, arm in enumerate(arms) if index == 0 or arm != arms[index - 1]]
        if len(runs) != len(set(runs)) or (len(runs) > 1 and "" in runs):
            raise ValueError(
                "dimensions: expected the dimensions of each arm in one block, each with the "
                f"arm's name (left/dx), got {', '.join(self.dimensions)}"
            )
        return self


class TaskFile(Settings):
    """The keys of a task's YAML."""

    instruction: str = Field("", description="instruction in words")
    control_hz: float = Field(gt=0, le=1000, description="time steps per second [1/s]")
    max_steps: int = Field(gt=0, description="largest length of an episode [time steps]")
    observation: dict[str, ObservationEntry] = Field(
        min_length=1, description="what the policy observes, by name"
    )
    action: ActionSettings
    reward: Annotated[Settings, REWARD] = Field(description="test of success, with its parameters")
    success_steps: int = Field(
        1,
        ge=1,
        le=1000,
        description="consecutive time steps of success before the episode ends. Set more than 1 "
        "for a reward that may be wrong in a single frame",
    )
    failure: Annotated[Settings | None, REWARD] = Field(
        None, description="test of a final failure, with its parameters. The default has none"
    )
    script: Annotated[Settings | None, SCRIPT] = Field(
        None, description="script that can demonstrate the task, with its parameters"
    )

    @field_validator("instruction")
    @classmethod
    def _fits(cls, instruction: str) -> str:
        try:
            encode_instructions([instruction])
        except SpecError as error:
            raise ValueError(str(error)) from error
        return instruction

    @model_validator(mode="after")
    def _can_succeed(self) -> TaskFile:
        if self.success_steps > self.max_steps:
            raise ValueError(
                f"success_steps: expected at most max_steps, {self.max_steps}, since otherwise no "
                f"episode could succeed, got {self.success_steps}"
            )
        return self


def load_task(path: str | Path) -> Task:
    """Read a task YAML.

    Raises:
        RecipeError: an invalid key; the message names file, line, key, and the expected and actual
            values.

    Example:
        >>> load_task("configs/tasks/reach.yaml").spec.instruction
        'reach the socket'
    """
    file = validate(TaskFile, _document_of(Path(path)))
    observation = tuple(
        ArraySpec(
            name,
            item.shape,
            "float32",
            item.unit,
            item.low or (-np.inf,),
            item.high or (np.inf,),
            item.source,
            item.take,
        )
        for name, item in file.observation.items()
    )
    dimensions = file.action.dimensions
    action = ActionSpec(
        file.action.control_mode,
        tuple(dimensions),
        tuple(item.scale for item in dimensions.values()),
        tuple(item.unit for item in dimensions.values()),
    )
    spec = StationSpec(observation, action, file.control_hz, file.instruction)
    failure = per_arm(make_success(file.failure), action.arms, any) if file.failure else None
    return Task(
        spec,
        per_arm(make_success(file.reward), action.arms, all),
        file.max_steps,
        failure,
        success_steps=file.success_steps,
        script=file.script,
    )


def _document_of(path: Path, below: tuple[Path, ...] = ()) -> Document:
    """Return a file's values over those of the task in its ``defaults``.

    That task is a file beside it, or in configs/tasks.
    """
    if path.resolve() in below:
        raise RecipeError(f"task {path}: expected 'defaults' without a circle, got a circle")
    document = read_document(path, "task")
    for part in TERMS:
        resolve_file_reference(document, (part, "kind"), path.parent)
        _resolve_model_path(document, part, path.parent)
    base = document.data.pop("defaults", None)
    if base is None:
        return document
    tasks = {
        other.stem: other
        for folder in (data_folder() / "configs/tasks", path.parent)
        for other in folder.glob("*.yaml")
    }
    if str(base) not in tasks:
        raise RecipeError(
            f"{document.place(('defaults',))}: 'defaults': expected a task in the same folder or "
            f"in configs/tasks, one of {', '.join(sorted(tasks))}; got "
            f"'{base}'{nearest(str(base), tasks)}"
        )
    under = _document_of(tasks[str(base)], (*below, path.resolve()))
    for part in TERMS:
        part_values, base_values = document.data.get(part), under.data.get(part)
        if (
            isinstance(part_values, dict)
            and isinstance(base_values, dict)
            and part_values.get("kind", kind := base_values.get("kind")) != kind
        ):
            under.forget((part,))  # another kind has other parameters
            del under.data[part]
    return document.over(under)


def _resolve_model_path(document: Document, part: str, folder: Path) -> None:
    """Resolve a task's model file relative to the task's own folder."""
    section = document.data.get(part)
    if isinstance(section, dict) and isinstance(section.get("model"), str):
        where = f"{document.place((part, 'model'))}: '{part}.model'"
        section["model"] = str((folder / expand_user(section["model"], where)).resolve())


@dataclass(frozen=True)
class StepResult:
    """Reward of the transition that ends here, and the episode's end, if it ends here.

    Attributes:
        reward: reward of the transition.
        success: True if the task is done.
        failure: True if the task cannot be done any more.
        truncated: True if neither, but the time is up; later rewards would still count.
        progress: nearness to success, if the task has a measure.
        looked_done: number of time steps in a row, up to this one, that looked like success.
    """

    reward: float = 0.0
    success: bool = False
    failure: bool = False
    truncated: bool = False
    progress: float = 0.0
    looked_done: int = 0

    @property
    def terminated(self) -> bool:
        """Whether the task ended, either way, so that no value follows."""
        return self.success or self.failure

    @property
    def last(self) -> bool:
        """Whether the episode ends here."""
        return self.terminated or self.truncated

    @property
    def discount(self) -> float:
        """Discount of later rewards: 0 if the task ended."""
        return 0.0 if self.terminated else 1.0


@contextmanager
def _name_missing_channel(channels: dict[str, np.ndarray]) -> Iterator[None]:
    """Turn a reward's KeyError for a missing channel into a SpecError with the known channels."""
    try:
        yield
    except KeyError as error:
        name = error.args[0] if error.args else None
        if not isinstance(name, str) or name in channels:
            raise  # a KeyError of another mapping
        raise SpecError(
            f"reward: expected one of the channels {', '.join(sorted(channels))}; got "
            f"'{name}'{nearest(name, channels)}. A reward names the channels that it reads in its "
            "attribute `channels`, and the task then waits for them"
        ) from error


def step_result(
    task: Task, channels: dict[str, np.ndarray], step_index: int, before: StepResult | None = None
) -> StepResult:
    """Return a time step's result: reward 1 on success, else 0; a failed task has not succeeded.

    With shaping, the progress since ``before``, the last step, counts too. This shaping does not
    keep the best policy the best (unlike gamma phi(s') - phi(s), with phi 0 at the end; Ng, Harada,
    Russell 1999). Nearness pays by itself, the earlier the more, and a large weight may favour slow
    arrivals. Success needs ``task.success_steps`` steps in a row, because one frame may fool a
    learned reward.
    """
    for term in (task.success, task.failure) if before is None else ():
        if isinstance(term, Stateful):
            term.begin()
    with _name_missing_channel(channels):
        now = (
            task.success.progress(channels)
            if task.shaping and isinstance(task.success, Shaped)
            else 0.0
        )
        failure = task.failure is not None and task.failure(channels)
        looks_done = not failure and task.success(channels)
    shaped = task.shaping * (now - before.progress) if task.shaping and before is not None else 0.0
    looked_done = (before.looked_done if before else 0) + 1 if looks_done else 0
    success = looked_done >= task.success_steps
    truncated = not failure and not success and step_index >= task.max_steps
    return StepResult(success + shaped, success, failure, truncated, now, looked_done)
