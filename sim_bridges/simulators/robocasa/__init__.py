"""RoboCasa: a Panda on a wheeled base in a kitchen of robosuite.

Nasiriany et al. 2024, arXiv 2406.02523; written against version 1.0.1. The task's own check defines
success. Its own script downloads its kitchens, gigabytes of them (https://robocasa.ai/docs). The
base stays still, because the robot interface does not move bases.
"""

from __future__ import annotations

from typing import Any

from rlinf_core.core.errors import RecipeError, nearest
from sim_bridges.simulators import robosuite

PACKAGE = "robocasa"
INSTALL = (
    "see https://robocasa.ai/docs/introduction/installation.html, in a virtual environment of its "
    "own with robosuite from its repository's master (PyPI's 1.5.2 lacks what its kitchens pass "
    "to it, and has the same number), mujoco 3.3.1 and numpy 2.2.5; then export "
    "RLINF_PYTHON_ROBOCASA=<its python>"
)


class Simulator(robosuite.Simulator):
    """See ``sim_bridges.core.interface.Simulator``. A tick is RoboCasa's control period, 20 Hz.

    Each scene is another kitchen.

    Args:
        task: kitchen task of RoboCasa
        object: name of the object to move
        goal: goal, as the name of an object or of the task's attribute with a fixture
        layout, style: numbers of the kitchens to draw from; empty for all.
    """

    VIEWS = {
        "front": "robot0_agentview_left",
        "wrist": "robot0_eye_in_hand",
        "video": "robot0_agentview_center",
    }

    def __init__(
        self,
        task: str = "PickPlaceCounterToSink",
        object: str = "obj",
        goal: str = "sink",
        layout: tuple[int, ...] = (),
        style: tuple[int, ...] = (),
    ) -> None:
        try:
            import robocasa  # noqa: F401 (registers its tasks)
        except AssertionError as error:  # it asserts the versions of its dependencies
            raise ImportError(
                f"robocasa: expected its versions of mujoco, numpy and robosuite, got: {error}"
            ) from error
        from robosuite.environments.base import REGISTERED_ENVS

        if task not in REGISTERED_ENVS:
            raise RecipeError(
                f"robocasa: expected one of its tasks, got '{task}'{nearest(task, REGISTERED_ENVS)}"
            )
        self._names = object, goal
        self._build(
            task, "PandaOmron", None, layout_ids=list(layout) or None, style_ids=list(style) or None
        )

    def _begin(self) -> None:
        super()._begin()
        self.instruction = self.env.get_ep_meta()["lang"]

    def _find(self, name: str) -> object:
        if name in self.env.obj_body_id:
            return self.scene.data.body(self.env.obj_body_id[name])
        fixture: Any = getattr(self.env, name, None)
        if not hasattr(fixture, "root_body"):
            raise RecipeError(
                f"robocasa: '{name}': expected an object ({', '.join(self.env.obj_body_id)}) or an "
                "attribute of the task that holds a fixture"
            )
        return self.scene.data.body(fixture.root_body)
