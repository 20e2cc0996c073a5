"""The interface of all simulators, and their lookup by name.

Each simulator has one folder with its robots; deleting the folder removes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rlinf_core.core import plugins
from rlinf_core.core.errors import RlinfError

if TYPE_CHECKING:
    from rlinf_core.config.base import Settings

SIMULATORS = Path(__file__).resolve().parents[1] / "simulators"
Channels = dict[str, np.ndarray]


class Simulator(Protocol):
    """A robot and its scene, advanced one tick at a time by target poses.

    Channels have the names of the robot interface: current_pose (7,) xyz + quaternion xyzw [m] in
        the robot's base frame,
    current_twist (6,) linear and angular [m/s, rad/s], wrench (6,) force and torque on the tool in
    the base frame [N, Nm], joint_states (n,) [rad], gripper/state (1,) width [m], object_pose (7,),
    goal_pose (7,), task/success (1,), which is 1.0 after ``succeeded``; all float64. A simulator
    always returns the same channels; current_pose is required.

    A simulator with several arms implements ``Arms`` instead.

    Attributes:
        tick_s: simulated time of one tick [s].
        cameras: names for ``render``; one of them is ``video``, for a person.
        joint_names: joints of the channel joint_states.

    A simulator whose instruction depends on the scene has an attribute ``instruction``; otherwise
    the task sets it. A simulator with resources has a method ``close()``.
    """

    tick_s: float
    cameras: tuple[str, ...]
    joint_names: tuple[str, ...]

    def reset(self, seed: int) -> None:
        """Lay out a new scene, reproducibly."""

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        """Advance one tick towards a pose and a gripper width [m].

        None lets the robot's command timeout run.
        """

    def tcp_pose(self) -> np.ndarray:
        """Return the channel current_pose."""

    def gripper_width(self) -> float | None:
        """Return the channel gripper/state [m]; None without a gripper."""

    def channels(self) -> Channels:
        """The state now, without images."""

    def succeeded(self) -> bool | None:
        """Whether the simulator's own task is done, by its own measure; None if it has none."""

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        """(height, width, 3) uint8 picture of one of ``cameras``."""


@runtime_checkable
class Arms(Protocol):
    """Several arms in one scene: like ``Simulator``, with commands and poses by arm.

    The channels of an arm have its name as prefix, such as ``left/current_pose``, and its own base
    frame.

    Attributes:
        arms: names of the arms, as in robot.yaml.
        joint_names: joints of each arm's channel joint_states.
    """

    arms: tuple[str, ...]
    tick_s: float
    cameras: tuple[str, ...]
    joint_names: tuple[str, ...]

    def reset(self, seed: int) -> None:
        """Lay out a new scene, reproducibly."""

    def advance_arms(
        self, targets: Mapping[str, np.ndarray | None], gripper_widths: Mapping[str, float | None]
    ) -> None:
        """Advance one tick, each arm towards its pose and gripper width [m].

        None lets the command timeout of an arm run.
        """

    def tcp_poses(self) -> Channels:
        """Return the channel current_pose of each arm."""

    def gripper_widths(self) -> dict[str, float | None]:
        """Return the channel gripper/state of each arm [m]; None without a gripper."""

    def channels(self) -> Channels:
        """The state now, without images."""

    def succeeded(self) -> bool | None:
        """Whether the simulator's own task is done, by its own measure; None if it has none."""

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        """(height, width, 3) uint8 picture of one of ``cameras``."""


@runtime_checkable
class HasTrueChannels(Protocol):
    """A simulator whose channels have errors of perception."""

    def true_channels(self) -> Channels:
        """Return the channels without errors, for the judgement of success."""


class HasFaults(Protocol):
    """A simulator whose arm stops by itself, like a robot with its own safety controller.

    Attributes:
        faults: active faults by the robot's names; empty while it can move.
    """

    faults: tuple[str, ...]

    def provoke(self, fault: str) -> bool:
        """Cause a fault of the robot; False if commands cannot cause this one."""

    def recover(self) -> bool:
        """Run the robot's error recovery, and return whether it can move again."""


class OneArm:
    """A ``Simulator`` as ``Arms`` with one arm without a name."""

    arms: tuple[str, ...] = ("",)

    def __init__(self, simulator: Simulator) -> None:
        _check_protocol(simulator, Simulator)
        self._simulator = simulator
        self.tick_s = simulator.tick_s
        self.cameras = simulator.cameras
        self.joint_names = simulator.joint_names
        self.reset, self.channels = simulator.reset, simulator.channels
        self.succeeded, self.render = simulator.succeeded, simulator.render

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulator, name)

    def advance_arms(
        self, targets: Mapping[str, np.ndarray | None], gripper_widths: Mapping[str, float | None]
    ) -> None:
        self._simulator.advance(targets[""], gripper_widths[""])

    def tcp_poses(self) -> Channels:
        return {"": self._simulator.tcp_pose()}

    def gripper_widths(self) -> dict[str, float | None]:
        return {"": self._simulator.gripper_width()}


def as_arms(simulator: Simulator | Arms) -> Arms:
    """Return a simulator as ``Arms``.

    Raises:
        RlinfError: the simulator lacks required attributes; the text names them.
    """
    if hasattr(simulator, "arms"):
        _check_protocol(simulator, Arms)
        return simulator  # type: ignore[return-value]
    return OneArm(simulator)


def _check_protocol(simulator: object, protocol: type) -> None:
    """Raise RlinfError if a simulator lacks attributes or methods of a protocol.

    The text names them.
    """
    names = sorted(
        {*protocol.__annotations__, *(name for name in vars(protocol) if name[0] != "_")}
    )
    if missing := [name for name in names if not hasattr(simulator, name)]:
        kind = type(simulator)
        raise RlinfError(
            f"simulator {kind.__module__}.{kind.__qualname__}: expected {', '.join(names)}, got "
            f"none of: {', '.join(missing)}. Add them to that class (see their description in "
            "sim_bridges/core/interface.py)"
        )


def instruction_of(simulator: object) -> str | None:
    """Return the simulator's instruction in the current scene; None if the task's counts."""
    return getattr(simulator, "instruction", None)


def simulators() -> list[str]:
    """Return the names of all simulators: folders, and entry points of other packages."""
    return plugins.valid_names("simulators", _builtin())


def simulator_class(name: str, where: str = "simulator") -> type:
    """Return the class of a simulator. Raises RecipeError with the nearest known name."""
    module = plugins.find("simulators", name, _builtin(), where)
    return module.Simulator if isinstance(module, ModuleType) else module


def options_of(name: str, where: str = "simulator") -> type[Settings]:
    """Return the settings class of a simulator's options, from its signature."""
    from rlinf_core.config.base import settings_model

    return settings_model(simulator_class(name, where))


def build(name: str, options: dict[str, Any]) -> Simulator | Arms:
    """Build a simulator in this process with checked options. It needs none of our dependencies."""
    kind = simulator_class(name)
    with import_errors_explained(name):
        return kind(**lists_to_tuples(options))


@contextmanager
def import_errors_explained(name: str) -> Iterator[None]:
    """Turn an ImportError of a simulator into an RlinfError with the installation command."""
    try:
        yield
    except ImportError as error:
        module = sys.modules[simulator_class(name).__module__]
        package = getattr(module, "PACKAGE", error.name)
        install = getattr(module, "INSTALL", f"pip install {error.name}")
        raise RlinfError(
            f"simulator '{name}': expected the package {package}, which is not installed "
            f"({error}). Run: {install}"
        ) from error


def batched_simulators() -> list[str]:
    """Return the names of batched simulators (``<simulator>/batched.py``)."""
    return sorted(path.parent.name for path in SIMULATORS.glob("*/batched.py"))


def _builtin() -> dict[str, str]:
    folders = {path.parent.parent.name for path in SIMULATORS.glob("*/*/robot.yaml")}
    return {name: f"sim_bridges.simulators.{name}" for name in sorted(folders)}


def lists_to_tuples(value: Any) -> Any:
    """Convert lists of JSON to tuples."""
    if isinstance(value, dict):
        return {key: lists_to_tuples(item) for key, item in value.items()}
    return (
        tuple(lists_to_tuples(item) for item in value) if isinstance(value, list | tuple) else value
    )
