"""What every simulator file provides, and where to find it by name: one file each, deleted by deleting the file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

import numpy as np

from rlinf_core.errors import RecipeError, RlinfError, nearest
from sim_bridges.apart import Apart, python_of

Channels = dict[str, np.ndarray]


class Simulator(Protocol):
    """A robot and its scene, advanced one tick at a time by target poses.

    Channels carry the names of the robot interface: current_pose (7,) xyz + quaternion xyzw [m] in the robot's base frame,
    current_twist (6,) linear and angular [m/s, rad/s], wrench (6,) force and torque on the tool in the base frame [N, Nm],
    joint_states (n,) [rad], gripper/state (1,) opening [m], object_pose (7,), goal_pose (7,), task/success (1,)
    1.0 where ``succeeded``; all float64. A simulator has those that make sense for it, always the same ones; current_pose
    always.

    Attributes:
        tick_s: simulated time of one tick [s].
        cameras: names that ``render`` takes; one of them is ``video``, for people.
        joint_names: of the channel joint_states.
    """

    tick_s: float
    cameras: tuple[str, ...]
    joint_names: tuple[str, ...]

    def reset(self, seed: int) -> None:
        """Lay out a new scene, reproducibly."""

    def advance(self, target_pose: np.ndarray | None, opening: float | None = None) -> None:
        """One tick under the controller, towards a pose and an opening [m]; None lets the robot's own timeout run."""

    def tcp_pose(self) -> np.ndarray:
        """The channel current_pose alone."""

    def opening(self) -> float | None:
        """The channel gripper/state alone [m]; None without one."""

    def channels(self) -> Channels:
        """The state now, without images."""

    def succeeded(self) -> bool | None:
        """Whether the simulator's own task is done, by its own measure; None if it has none."""

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        """(height, width, 3) uint8 picture of one of ``cameras``."""


def simulators() -> list[str]:
    """Names of all simulators: of the files that say which package they need."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if "\nPACKAGE, INSTALL = " in path.read_text())


def make(name: str, apart: bool = True, **options: object) -> Simulator:
    """Build a simulator by name, in a Python environment of its own if it has one (``sim_bridges.apart``).

    Raises:
        RecipeError: no such simulator, with the nearest name, or options that it does not have.
        RlinfError: it is not installed, with the command that installs it.
    """
    known = simulators()
    if name not in known:
        raise RecipeError(f"simulator '{name}': expected one of {', '.join(known)}{nearest(name, known)}")
    own = python_of(name) if apart else None
    if own:
        return Apart(own, name, options)
    module = importlib.import_module(f"sim_bridges.{name}")
    try:
        return module.Simulator(**options)
    except ImportError as error:
        raise RlinfError(f"simulator '{name}': expected the package {module.PACKAGE}, which is not installed ({error}). "
                         f"Run: {module.INSTALL}") from error
    except TypeError as error:
        raise RecipeError(f"simulator '{name}': {error}") from error
