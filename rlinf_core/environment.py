"""From robot-side channels to time steps: observation, reward, step type. For the ROS node and vectorised simulators.

A channel is the newest content of a robot-side topic, by the topic's name: current_pose (7,), current_twist (6,),
wrench (6,), joint_states (n,), gripper/state (1,), object_pose (7,), goal_pose (7,), task/success (1,),
camera/<name>/image (H, W, 3) uint8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlinf_core.errors import RecipeError, SpecError, nearest
from rlinf_core.interlock.rotation import to_vector
from rlinf_core.rewards import Success, make_success
from rlinf_core.specs import ActionSpec, ArraySpec, StationSpec

Channels = dict[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """What a station is asked to do: its specs, its terms (``rewards.step.step_result``), and who can show it.

    Attributes:
        success: when it is done.
        max_steps: time steps after which an episode is cut off.
        failure: when it cannot be done any more; None for never.
        shaping: weight of the progress that the reward counts beside success.
        script: the scripted operator that knows the task (sim_bridges/scripted.py), and its parameters.
    """

    spec: StationSpec
    success: Success
    max_steps: int
    failure: Success | None = None
    shaping: float = 0.0
    script: dict[str, Any] = field(default_factory=dict)

    @property
    def channels(self) -> set[str]:
        """Every channel that its observation and its terms need."""
        failure = self.failure.channels if self.failure else ()
        return {item.source for item in self.spec.observation} | {"current_pose", *self.success.channels, *failure}

    def with_images(self, cameras: dict[str, tuple[int, int]]) -> Task:
        """The same task observed through cameras too; ``cameras`` maps name to (height, width)."""
        images = tuple(ArraySpec(name, (*size, 3), "uint8", "", (0.0,), (255.0,), f"camera/{name}/image", "image")
                       for name, size in cameras.items())
        return replace(self, spec=replace(self.spec, observation=self.spec.observation + images))


def shaped(task: Task, weight: float) -> Task:
    """The task with its progress in the reward; RecipeError if it has no measure of progress."""
    if not hasattr(task.success, "progress"):
        raise RecipeError(f"simulation.shaping: expected 0, got {weight}: the reward {type(task.success).__name__} has no "
                          "measure of progress")
    return replace(task, shaping=weight)


def observe(spec: StationSpec, channels: Channels) -> dict[str, np.ndarray]:
    """The observation that ``spec`` declares, each array checked; SpecError names a channel that is missing."""
    observation = {}
    for item in spec.observation:
        if item.source not in channels:
            raise SpecError(f"observation '{item.name}': nothing has come on '{item.source}'. Is its publisher running "
                            f"and remapped to that name? Received so far: {', '.join(sorted(channels)) or 'nothing'}")
        observation[item.name] = item.check(_TAKE[item.take](channels, item))
    return observation


def _image(channels: Channels, item: ArraySpec) -> np.ndarray:
    image = channels[item.source]
    if image.shape == item.shape:
        return image
    import cv2

    return cv2.resize(image, (item.shape[1], item.shape[0]), interpolation=cv2.INTER_AREA)


_TAKE: dict[str, Callable[[Channels, ArraySpec], np.ndarray]] = {
    "all": lambda channels, item: channels[item.source],
    "position": lambda channels, item: channels[item.source][:3],
    "rotation": lambda channels, item: np.array(to_vector(channels[item.source][3:7])),
    "linear": lambda channels, item: channels[item.source][:3],
    "angular": lambda channels, item: channels[item.source][3:6],
    "force": lambda channels, item: channels[item.source][:3],
    "torque": lambda channels, item: channels[item.source][3:6],
    "offset": lambda channels, item: channels[item.source][:3] - channels["current_pose"][:3],
    "image": _image,
}
_TASK_KEYS = {"instruction", "control_hz", "max_steps", "observation", "action", "reward", "failure", "script"}
_OBSERVATION_KEYS = {"source", "take", "shape", "unit", "low", "high"}


def load_task(path: str | Path) -> Task:
    """Read a task YAML; RecipeError names the key at fault and the nearest known one."""
    try:
        data = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise RecipeError(f"task {path}: expected a readable YAML file, got: {error}") from error
    _check_keys(f"task {path}", data, _TASK_KEYS, required=_TASK_KEYS - {"instruction", "failure", "script"})
    observation = tuple(_array_spec(f"task {path}: observation '{name}'", name, entry)
                        for name, entry in data["observation"].items())
    spec = StationSpec(observation, _action_spec(f"task {path}: action", data["action"]), float(data["control_hz"]),
                       data.get("instruction", ""))
    failure = make_success(data["failure"], "failure") if data.get("failure") else None
    return Task(spec, make_success(data["reward"]), int(data["max_steps"]), failure, script=dict(data.get("script") or {}))


def _array_spec(where: str, name: str, entry: dict[str, Any]) -> ArraySpec:
    _check_keys(where, entry, _OBSERVATION_KEYS, required={"source", "take", "shape"})
    if entry["take"] not in _TAKE:
        raise RecipeError(f"{where}: take: expected one of {', '.join(_TAKE)}, got {entry['take']!r}"
                          f"{nearest(str(entry['take']), _TAKE)}")
    return ArraySpec(name, tuple(entry["shape"]), "float32", entry.get("unit", ""),
                     tuple(map(float, entry.get("low", [-np.inf]))), tuple(map(float, entry.get("high", [np.inf]))),
                     entry["source"], entry["take"])


def _action_spec(where: str, entry: dict[str, Any]) -> ActionSpec:
    _check_keys(where, entry, {"control_mode", "dimensions"}, required={"control_mode", "dimensions"})
    dimensions = entry["dimensions"]
    for name, item in dimensions.items():
        _check_keys(f"{where}: '{name}'", item, {"scale", "unit"}, required={"scale", "unit"})
    return ActionSpec(entry["control_mode"], tuple(dimensions), tuple(float(d["scale"]) for d in dimensions.values()),
                      tuple(d["unit"] for d in dimensions.values()))


def _check_keys(where: str, data: Any, known: set[str], required: set[str]) -> None:
    if not isinstance(data, dict):
        raise RecipeError(f"{where}: expected a mapping with {', '.join(sorted(known))}, got {type(data).__name__}")
    for key in data:
        if key not in known:
            raise RecipeError(f"{where}: unknown key '{key}'{nearest(str(key), known)}")
    for key in sorted(required - data.keys()):
        raise RecipeError(f"{where}: '{key}' is missing")
