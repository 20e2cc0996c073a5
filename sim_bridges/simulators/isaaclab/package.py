"""The installed Isaac Lab: the differences between its versions, and how to launch each."""

from __future__ import annotations

import importlib.metadata
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, RlinfError, nearest


@dataclass(frozen=True)
class Release:
    """A version of Isaac Lab that the adapter supports.

    Attributes:
        name: its version number.
        lift: its task in which a Franka lifts a cube to a pose under absolute inverse kinematics.
        xyzw: whether its quaternions are x y z w; else w x y z.
        launches_first: whether the application must be launched before its other imports. Otherwise
            it is launched around the environment.
    """

    name: str
    lift: str
    xyzw: bool
    launches_first: bool

    def to_xyzw(self, pose: np.ndarray) -> np.ndarray:
        """Return a pose (7,) of Isaac Lab's as position and quaternion x y z w."""
        return pose if self.xyzw else pose[[0, 1, 2, 4, 5, 6, 3]]

    def from_xyzw(self, quaternion: np.ndarray) -> np.ndarray:
        """Return a quaternion x y z w (4,) in Isaac Lab's order."""
        return quaternion if self.xyzw else quaternion[[3, 0, 1, 2]]

    def launch(self, exit_stack: ExitStack, device: str, cameras: bool, config: Any = None) -> None:
        """Launch Isaac Lab until ``exit_stack`` closes.

        A release with ``launches_first`` launches at the call without ``config``. Other releases
        launch at the call with the task's ``config``.
        """
        if (config is None) != self.launches_first:
            return
        if self.launches_first:
            from isaaclab.app import AppLauncher

            app = AppLauncher(headless=True, enable_cameras=cameras, device=device).app
            # keeps a reference; the application ends with the process
            exit_stack.push(lambda *_: bool(app is None))
            return
        from isaaclab.app import launch_simulation

        try:
            exit_stack.enter_context(
                launch_simulation(config, {"enable_cameras": cameras, "device": device})
            )
        except SystemExit as error:  # its launcher ends the process if Isaac Sim is missing
            raise RlinfError(
                f"isaaclab {self.name}: expected Isaac Sim, which this task's physics or cameras "
                "need, got Isaac Lab alone. Install isaacsim into the same Python environment. "
                "Tasks on Newton without cameras run without it"
            ) from error


RELEASES = {
    "2.3": Release("2.3", "Isaac-Lift-Cube-Franka-IK-Abs-v0", xyzw=False, launches_first=True),
    "3.0": Release("3.0", "IsaacContrib-Lift-Cube-Franka-IK-Abs", xyzw=True, launches_first=False),
}
EXTENSIONS = {"0.54": "2.3"}  # package version of a source checkout, and its release


def installed_release() -> Release:
    """Return the installed release.

    Raises:
        RlinfError: the adapter does not support the installed version.
    """
    import isaaclab

    try:
        version = importlib.metadata.version("isaaclab")
    except importlib.metadata.PackageNotFoundError:
        version = str(getattr(isaaclab, "__version__", "none"))
    short = ".".join(version.split(".")[:2])
    release = RELEASES.get(EXTENSIONS.get(short, short))
    if release is None:
        raise RlinfError(
            f"isaaclab: expected version {' or '.join(RELEASES)}, which the adapter supports, got "
            f"{version}. Install one of them, and name its Python in RLINF_PYTHON_ISAACLAB"
        )
    return release


def check_task(task: str, release: Release) -> None:
    """Check that Isaac Lab has registered ``task``.

    Raises:
        RecipeError: it has not.
    """
    import gymnasium

    names = [name for name in gymnasium.registry if name.startswith("Isaac")]
    if task not in names:
        raise RecipeError(
            f"isaaclab {release.name}: expected one of its tasks, got "
            f"'{task}'{nearest(task, names)}. Names end in -v0 in 2.3 alone"
        )


def tensor(values: Any) -> Any:
    """Return the torch tensor of a sensor's or an asset's value; 3.0 wraps it."""
    return getattr(values, "torch", values)
