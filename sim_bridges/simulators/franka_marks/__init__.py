"""A Franka Panda in MuJoCo above a red and a blue mark; an instruction names one of them.

Arm and controller are those of ``franka_mujoco``.
"""

from __future__ import annotations

import xml.etree.ElementTree as xml

import numpy as np

from sim_bridges.core.adapters import unrotated_pose
from sim_bridges.simulators.franka_mujoco import COMMON, WORLD, Metres, elements, panda
from sim_bridges.simulators.franka_mujoco.tabletop import OneArm, compile_model

PACKAGE, INSTALL = "mujoco", "make setup"

COLOURS = {"red": "0.80 0.15 0.12 1", "blue": "0.12 0.25 0.80 1"}
# height of a mark; height of the goal above it; tolerance
TOP_M, ABOVE_M, NEAR_M = 0.02, 0.03, 0.03


class Simulator(OneArm):
    """See ``sim_bridges.core.interface.Simulator``.

    Args:
        separation_m: smallest and largest sideways distance of a mark from the middle [m]. The
            sides are random
        mark_range_m: half the range of a mark's distance from the arm's base, about 0.5 m [m]
        start_range_m: half the side of the square about (0.5, 0) in which the tool starts [m]

    Attributes:
        colours: of the marks.
        instruction: of the present scene.
    """

    colours = tuple(COLOURS)

    def __init__(
        self,
        separation_m: tuple[Metres, Metres] = (0.05, 0.12),
        mark_range_m: Metres = 0.06,
        start_range_m: Metres = 0.04,
    ) -> None:
        super().__init__(compile_model(_scene()))
        self.separation_m = separation_m
        self.mark_range_m = mark_range_m
        self.start_range_m = start_range_m
        self._marks = {colour: self.model.body(colour).mocapid[0] for colour in COLOURS}
        self.reset(0)

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._clear()
        self.set_goal(str(random.choice(self.colours)))
        for mark, side in zip(self._marks.values(), random.permutation([-1.0, 1.0]), strict=True):
            self.data.mocap_pos[mark] = [
                0.5 + random.uniform(-self.mark_range_m, self.mark_range_m),
                side * random.uniform(*self.separation_m),
                0.0,
            ]
        self.arm.place(
            np.array([0.5, 0.0, 0.15])
            + [*random.uniform(-self.start_range_m, self.start_range_m, 2), 0.0]
        )
        self._begin()

    def set_goal(self, colour: str) -> None:
        """Ask for another mark in the present scene."""
        self.goal_colour = colour
        self.instruction = f"go to the {colour} mark"

    def channels(self) -> dict[str, np.ndarray]:
        return self.arm.channels() | {
            "object_pose": self._mark(self.goal_colour),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        """Return whether the peg's tip is above the requested mark."""
        return self.above(self.goal_colour)

    def above(self, colour: str) -> bool:
        """Return whether the peg's tip is above the mark of this colour."""
        offset = self.tcp_pose()[:3] - self._mark(colour)[:3] - [0.0, 0.0, ABOVE_M]
        return bool(np.linalg.norm(offset) < NEAR_M)

    def _mark(self, colour: str) -> np.ndarray:
        """Return the pose (7,) of a mark's top."""
        return unrotated_pose(self.data.mocap_pos[self._marks[colour]] + [0.0, 0.0, TOP_M])


def _scene() -> str:
    """Return the MJCF of arm, table and marks."""
    root = panda()
    marks = "".join(
        f"""
<body name="{colour}" mocap="true">
  <geom type="cylinder" size="0.025 {TOP_M / 2}" pos="0 0 {TOP_M / 2}" rgba="{rgba}" contype="0" conaffinity="0" group="0"/>
</body>"""  # noqa: E501
        for colour, rgba in COLOURS.items()
    )
    root.find("worldbody").extend(elements(WORLD + marks))
    root.extend(elements(COMMON))
    return xml.tostring(root, encoding="unicode")
