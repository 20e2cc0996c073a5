"""Common part of MuJoCo simulators: poses and speeds in the robot's base frame, and rendering."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlinf_core.core import rendering
from rlinf_core.core.errors import RlinfError

FILM_HEIGHT = 480  # a live view of less has no shadows

rendering.set_mujoco_gl()  # before anything below imports mujoco


class Scene:
    """A model in the frame of its robot's base.

    Args:
        model: MuJoCo model.
        data: MuJoCo data.
        tool: name of the tool's site.
        origin: position of the base in the world [m].
        yaw: rotation of the base about the world's z axis [rad].
        cameras: camera of the model by our name.
        hidden: geom groups that are not rendered.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        tool: str,
        origin: tuple[float, ...] = (0.0, 0.0, 0.0),
        yaw: float = 0.0,
        cameras: dict[str, str] | None = None,
        hidden: tuple[int, ...] = (),
    ) -> None:
        import mujoco

        self._mujoco, self.model, self.data = mujoco, model, data
        self.tool = model.site(tool).id
        self.cameras = cameras or {}
        self.hidden = hidden
        self.place(origin, yaw)
        self._renderers: dict[tuple[int, int], Any] = {}
        self.background: Any = None  # a sim_bridges.core.splats.Background

    def place(self, origin: tuple[float, ...], yaw: float = 0.0) -> None:
        """Set position [m] and yaw [rad] of the base in the world."""
        self.origin = np.array(origin)
        cos = np.cos(yaw)
        sin = np.sin(yaw)
        # from the base frame to the world frame
        self.rotation = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
        self._turn = np.array([np.cos(-yaw / 2), 0.0, 0.0, np.sin(-yaw / 2)])  # world to base, wxyz

    def to_base(self, position: np.ndarray) -> np.ndarray:
        """Transform a position (3,) from the world to the base frame."""
        return self.rotation.T @ (np.asarray(position) - self.origin)

    def to_world(self, position: np.ndarray) -> np.ndarray:
        """Transform a position (3,) from the base frame to the world."""
        return self.rotation @ np.asarray(position) + self.origin

    def pose(self, position: np.ndarray, quaternion_wxyz: np.ndarray) -> np.ndarray:
        """Return a world pose as (7,) xyz and quaternion xyzw in the base frame."""
        rotated, pose = np.empty(4), np.empty(7)
        self._mujoco.mju_mulQuat(rotated, self._turn, np.asarray(quaternion_wxyz, dtype=float))
        pose[:3], pose[3:6], pose[6] = self.to_base(position), rotated[1:], rotated[0]
        return pose

    def pose_of(self, part: Any) -> np.ndarray:
        """Return the pose (7,) of a body or site in the base frame."""
        if hasattr(part, "xquat"):
            return self.pose(part.xpos, part.xquat)
        quaternion = np.empty(4)
        self._mujoco.mju_mat2Quat(quaternion, part.xmat)
        return self.pose(part.xpos, quaternion)

    def tool_pose(self) -> np.ndarray:
        """Return the pose (7,) of the tool in the base frame."""
        quaternion = np.empty(4)
        self._mujoco.mju_mat2Quat(quaternion, self.data.site_xmat[self.tool])
        return self.pose(self.data.site_xpos[self.tool], quaternion)

    def tool_twist(self) -> np.ndarray:
        """Return linear and angular velocity (6,) of the tool in the base frame [m/s, rad/s]."""
        twist = np.empty(6)
        self._mujoco.mj_objectVelocity(
            self.model, self.data, self._mujoco.mjtObj.mjOBJ_SITE, self.tool, twist, 0
        )
        return np.concatenate([self.rotation.T @ twist[3:], self.rotation.T @ twist[:3]])

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        """Return a picture (height, width, 3) uint8.

        Only ``video`` has shadows and reflections, which are slow.
        """
        if (height, width) not in self._renderers:
            glob = self.model.vis.global_
            glob.offheight, glob.offwidth = max(glob.offheight, height), max(glob.offwidth, width)
            try:
                self._renderers[height, width] = self._mujoco.Renderer(self.model, height, width)
            except Exception as error:
                raise RlinfError(
                    f"cannot render a camera with MUJOCO_GL={os.environ.get(rendering.MUJOCO_GL)}: "
                    f"{error}. `rlinf doctor` names a renderer that works; libegl1 and libosmesa6 "
                    "(make setup installs them) need no display"
                ) from error
            # registered late, so that it runs before the graphics library's exit
            atexit.register(self.close)
        renderer, option = self._renderers[height, width], self._mujoco.MjvOption()
        for group in self.hidden:
            option.geomgroup[group] = 0
        option.sitegroup[:] = 0
        renderer.update_scene(self.data, self.cameras[camera], option)
        if camera != "video" or height < FILM_HEIGHT:
            renderer.scene.flags[self._mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[self._mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        picture = renderer.render().copy()
        if self.background is None or camera == "video":
            return picture
        return self._with_background(renderer, picture, camera)

    def _with_background(self, renderer: Any, picture: np.ndarray, camera: str) -> np.ndarray:
        """Return the picture with the background where no geometry is."""
        from sim_bridges.core.splats import View

        renderer.enable_segmentation_rendering()
        empty = renderer.render()[..., 0] < 0
        renderer.disable_segmentation_rendering()
        number = self.model.cam(self.cameras[camera]).id
        rotation = self.data.cam_xmat[number].reshape(3, 3).copy()
        view = View(self.data.cam_xpos[number].copy(), rotation, self.vertical_fov(camera))
        return self.background.behind(picture, empty, view)

    def vertical_fov(self, camera: str) -> float:
        """Return a camera's vertical field of view by our name [rad]."""
        return float(np.deg2rad(self.model.cam(self.cameras[camera]).fovy[0]))

    def close(self) -> None:
        """Free the renderers."""
        while self._renderers:
            self._renderers.popitem()[1].close()


@contextmanager
def numpy_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, which some simulators use, and restore it afterwards."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)
