"""Scene of an episode: reset by the robot side, put right by a person, or both."""

from __future__ import annotations

from collections.abc import Callable

from builtin_interfaces.msg import Time
from rclpy.impl.rcutils_logger import RcutilsLogger

from rlinf_ros.scene import HomeMotion, Scene
from rlinf_station.labels import CANCELLED, PROMPT, Labels

STAND_CLEAR = (
    "stand clear, then confirm: the arm goes home (g at a keyboard, Ready on the page, or a "
    "button). A motion of a device, a disarming or a released enable ends that"
)
GOING_HOME = "the arm moves home"


class SceneRequests:
    """Requests a scene before each episode, from the robot side and from a person.

    Args:
        scene: the robot side's reset.
        labels: asks the person, and waits for their word.
        home: moves the arms home; None if the robot has no home.
        logger: logs why an arm is not at home.
        person: whether a person is there to ask.
        simulated: whether the robot side is a simulator, which always resets its scene.
        jumps: whether a reset of the robot side moves the arm at once, in real time.
        may_move: returns whether the interlock lets the arm move.
        start_stamp: returns the time of the first step after a person's word, from the time of the
            robot side's scene.
    """

    def __init__(
        self,
        scene: Scene,
        labels: Labels,
        home: HomeMotion | None,
        logger: RcutilsLogger,
        *,
        person: bool,
        simulated: bool,
        jumps: bool,
        may_move: Callable[[], bool],
        start_stamp: Callable[[Time | None], Time],
    ) -> None:
        self.scene = scene
        self.labels = labels
        self.home = home
        self.logger = logger
        self.person = person
        self.simulated = simulated
        self.jumps = jumps
        self.may_move = may_move
        self.start_stamp = start_stamp

    def _robot_side_resets(self) -> bool:
        return self.scene.client.server_is_ready() or self.simulated

    def waits_for_person(self, mode: str) -> bool:
        """Return whether only a person's word begins each episode of that mode."""
        return bool(self.person and (mode == "demonstration" or not self._robot_side_resets()))

    async def reset(self, seed: int, mode: str) -> tuple[Time | None, str]:
        """Get the scene of an episode; return the time of its first step, or None and the reason.

        The robot side resets it if possible. Else, or before a demonstration, a person's word is
        needed. The word comes before a reset that moves the arm at once: to the interlock such a
        jump is a fault unless an episode begins then.
        """
        robot_side_resets = self._robot_side_resets()
        waits_for_person = self.person and (mode == "demonstration" or not robot_side_resets)
        jumps = self.jumps and robot_side_resets
        if waits_for_person and jumps and not await self._confirm(PROMPT):
            return None, CANCELLED
        stamp: Time | None = None
        if robot_side_resets:
            stamp, trouble = await self.scene.reset(seed)
            if trouble:
                return stamp, trouble
        if not waits_for_person or jumps:
            return stamp, ""
        if not robot_side_resets and not await self._go_home():
            return None, CANCELLED
        if not await self._confirm(PROMPT):
            return None, CANCELLED
        return self.start_stamp(stamp), ""

    def cancel(self) -> None:
        """Cancel: no further episode is wanted, and an arm on its way home stops."""
        self.labels.cancel()
        if self.home is not None:
            self.home.cancel()

    async def _confirm(self, question: str) -> bool:
        """Wait for a person's word; return False once it is cancelled."""
        return await self.labels.ready(question, self.may_move)

    async def _go_home(self) -> bool:
        """Move home until it succeeds, however often it is stopped; False once cancelled."""
        if self.home is None:
            return True
        prompt = STAND_CLEAR
        while await self._confirm(prompt):
            self.labels.prompt(GOING_HOME)
            trouble = await self.home.go()
            if not trouble:
                return True
            stopped = f"the arm is not at home: {trouble.removeprefix('home: ')}"
            self.logger.warning(stopped)
            prompt = f"{stopped}. Once more: {STAND_CLEAR}"
        return False
