"""GSEnv: ManiSkill-GS, a task of ManiSkill with Gaussian splats as its pictures.

Written against its repository of 2025. Its splats, meshes and URDF come with its own data set, and
its renderer needs CUDA. Physics, tool and success are ManiSkill's, so the adapter extends that one.
The scene's camera is fixed; a picture shows the splats of table, robot and objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, RlinfError, nearest
from sim_bridges.core.adapters import resized
from sim_bridges.simulators import maniskill

PACKAGE = "mani_skill_gs"
INSTALL = (
    "git clone https://github.com/andylin-hao/ManiSkill-GS, pip install it in a Python environment "
    "of its own with a CUDA GPU, put its assets into the clone's folder assets, and export "
    "RLINF_PYTHON_GSENV=<its python>"
)
TASKS = {"PutCubeOnPlate-v0": ("obj_cube", "obj_plate")}


class Simulator(maniskill.Simulator):
    """See ``sim_bridges.core.interface.Simulator``. A tick is its control period, 10 Hz.

    Args:
        task: task of ManiSkill-GS
        device: torch device of the renderer
    """

    tick_s = 0.1
    joint_names = tuple(f"fr3_joint{i}" for i in range(1, 8))

    def __init__(self, task: str = "PutCubeOnPlate-v0", device: str = "cuda") -> None:
        if task not in TASKS:
            raise RecipeError(
                f"gsenv: task: expected one of {', '.join(TASKS)}, got '{task}'"
                f"{nearest(task, TASKS)}"
            )
        import gymnasium
        import sapien

        try:
            import mani_skill_gs  # noqa: F401 (registers its tasks)
        except (AssertionError, OSError) as error:  # it asserts that its assets are there
            raise RlinfError(
                f"gsenv: expected the assets of ManiSkill-GS in its folder assets, got: {error}"
            ) from error
        self._sapien = sapien
        self._names = TASKS[task]
        self._splats: Any = gymnasium.make(
            f"GSEnv-{task}",
            robot_uids="my_franka",
            obs_mode="state",
            reward_mode="none",
            control_mode="pd_ee_target_delta_pose",
            render_mode="rgb_array",
            num_envs=1,
            sim_backend="cpu",
            disable_env_checker=True,
            gs_kwargs={
                "render_interface": "gs_rlinf",
                "cache_table": True,
                "render_bs": 1,
                "device": device,
            },
        )
        self.env = self._splats.unwrapped
        self.reset(0)

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        wrapper = self._splats
        while not hasattr(type(wrapper), "update_gs_params"):  # Gymnasium puts its own around it
            wrapper = wrapper.env
        wrapper.update_gs_params()
        return resized(wrapper.render()[0].numpy(), height, width)
