"""What every simulator file provides, and where to find it by name."""

from __future__ import annotations

import importlib
from typing import Protocol

import numpy as np

from rlinf_core.errors import RecipeError, nearest

Channels = dict[str, np.ndarray]

SIMULATORS = {"franka_mujoco": "sim_bridges.franka_mujoco:FrankaPegInsertion"}


class Simulator(Protocol):
    """A robot and its scene, advanced one tick at a time by target poses.

    Channels carry the names of the robot interface: current_pose (7,) xyz + quaternion xyzw [m], current_twist (6,)
    linear and angular [m/s, rad/s], wrench (6,) force and torque on the tool in the base frame [N, Nm], joint_states
    (7,) [rad], gripper/state (1,) width [m], object_pose (7,); all float64.
    """

    tick_s: float
    cameras: tuple[str, ...]

    def reset(self, seed: int) -> None:
        """Lay out a new scene, reproducibly."""

    def advance(self, target_pose: np.ndarray | None) -> None:
        """One tick under the controller; None lets the robot's own command timeout run."""

    def tcp_pose(self) -> np.ndarray:
        """The channel current_pose alone."""

    def channels(self) -> Channels:
        """The state now, without images."""

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        """(height, width, 3) uint8 picture of one of ``cameras``."""


def make(name: str, **options: object) -> Simulator:
    """Build a simulator by name; RecipeError names the nearest known one."""
    if name not in SIMULATORS:
        raise RecipeError(f"simulator '{name}': expected one of {', '.join(SIMULATORS)}{nearest(name, SIMULATORS)}")
    module, _, attribute = SIMULATORS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(**options)
