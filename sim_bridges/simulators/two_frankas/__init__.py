"""Two Franka Pandas side by side in MuJoCo, a station with two arms.

Each holds a peg and has its own mark to bring it to. Arms, hands and controllers are those of
``franka_mujoco``.
"""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Mapping
from typing import Any

import numpy as np

from sim_bridges.core.adapters import unrotated_pose
from sim_bridges.simulators.franka_mujoco import COMMON, Metres, elements, panda
from sim_bridges.simulators.franka_mujoco.tabletop import PEG_HALF_WIDTH_M, Tabletop

PACKAGE, INSTALL = "mujoco", "make setup"

BASES = {"left": (0.0, 0.4, 0.0), "right": (0.0, -0.4, 0.0)}  # in the world [m]
MARK_M = 0.05  # height of a mark's top
ABOVE_M, NEAR_M = 0.03, 0.03  # height of the goal above a mark; tolerance


class Simulator(Tabletop):
    """See ``sim_bridges.core.interface.Arms``. A TCP is the tip of its peg.

    The table's top is z = 0 for both.

    Args:
        mark_range_m: half the side of the square about (0.5, 0) of the arm with the mark's centre
            [m]
        start_range_m: half the side of the square in which the tool starts [m]
    """

    arms = tuple(BASES)
    cameras = ("front", "left_wrist", "right_wrist", "video")

    def __init__(self, mark_range_m: Metres = 0.06, start_range_m: Metres = 0.04) -> None:
        super().__init__(_model(), {f"{name}_": origin for name, origin in BASES.items()})
        self.mark_range_m, self.start_range_m = mark_range_m, start_range_m
        self._arms = dict(zip(BASES, self._arm_list, strict=True))
        self._marks = {name: self.model.body(f"{name}_mark").mocapid[0] for name in self.arms}
        self.reset(0)

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._clear()
        for name, arm in self._arms.items():
            mark = np.array([0.5, 0.0, 0.0]) + [
                *random.uniform(-self.mark_range_m, self.mark_range_m, 2),
                0.0,
            ]
            start = np.array([0.5, 0.0, 0.15]) + [
                *random.uniform(-self.start_range_m, self.start_range_m, 2),
                0.0,
            ]
            self.data.mocap_pos[self._marks[name]] = mark + BASES[name]
            arm.place(start)
        self._begin()

    def advance_arms(
        self, targets: Mapping[str, np.ndarray | None], gripper_widths: Mapping[str, float | None]
    ) -> None:
        """Advance one tick. After 200 ms without a target an arm holds its pose.

        The pegs are held all the time.
        """
        self._tick(*(targets[name] for name in self._arms))

    def tcp_poses(self) -> dict[str, np.ndarray]:
        return {name: arm.tcp_pose() for name, arm in self._arms.items()}

    def gripper_widths(self) -> dict[str, float | None]:
        return dict.fromkeys(self.arms, 2 * PEG_HALF_WIDTH_M)

    def channels(self) -> dict[str, np.ndarray]:
        return {
            f"{name}/{channel}": value
            for name, arm in self._arms.items()
            for channel, value in (arm.channels() | {"object_pose": self._mark(name)}).items()
        } | {"task/success": np.array([float(self.succeeded())])}

    def succeeded(self) -> bool:
        """Return whether both pegs are above their marks."""
        return all(
            bool(
                np.linalg.norm(arm.tcp_pose()[:3] - self._mark(name)[:3] - [0.0, 0.0, ABOVE_M])
                < NEAR_M
            )
            for name, arm in self._arms.items()
        )

    def _mark(self, name: str) -> np.ndarray:
        """Return the pose (7,) of a mark's top in its arm's base frame."""
        place = self.data.mocap_pos[self._marks[name]] - BASES[name]
        return unrotated_pose(place + [0.0, 0.0, MARK_M])


def _model() -> Any:
    """Return the compiled scene: table, marks, and the same arm twice."""
    import mujoco

    root = xml.Element("mujoco")
    root.extend(elements(f"<worldbody>{_WORLD}</worldbody>{COMMON}"))
    spec = mujoco.MjSpec.from_string(xml.tostring(root, encoding="unicode"))
    arm = xml.tostring(panda(), encoding="unicode")
    for name, origin in BASES.items():
        frame = spec.worldbody.add_frame(pos=origin)
        spec.attach(mujoco.MjSpec.from_string(arm), prefix=f"{name}_", frame=frame)
    return spec.compile()


_MARK = """
<body name="{name}_mark" mocap="true">
  <geom type="cylinder" size="0.02 0.025" pos="0 0 0.025" rgba="{rgba}" contype="0" conaffinity="0" group="0"/>
</body>
"""  # noqa: E501
_WORLD = (
    _MARK.format(name="left", rgba="0.20 0.42 0.62 1")
    + _MARK.format(name="right", rgba="0.25 0.55 0.30 1")
    + """
<geom name="table" type="box" size="0.45 1.0 0.02" pos="0.45 0 -0.02" rgba="0.78 0.72 0.64 1" friction="0.4" group="0"
  contype="1" conaffinity="1"/>
<geom name="floor" type="plane" size="4 4 0.1" pos="0 0 -0.75" material="floor" group="1" contype="0" conaffinity="0"/>
<light name="key" pos="1.2 -0.9 1.8" dir="-0.5 0.5 -0.9" directional="true" castshadow="true" diffuse="0.55 0.55 0.52"/>
<light name="fill" pos="0 1.5 1.5" dir="0.3 -0.6 -0.8" directional="true" castshadow="false" diffuse="0.3 0.32 0.36"/>
<camera name="front" pos="1.35 0 0.6" xyaxes="0 1 0 -0.5 0 0.87" fovy="60"/>
<camera name="video" pos="1.5 -1.1 0.9" xyaxes="0.725 0.689 -0.000 -0.224 0.236 0.946" fovy="50"/>
"""  # noqa: E501
)
