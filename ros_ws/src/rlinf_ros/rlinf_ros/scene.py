"""Client of ``reset_scene``: asks the robot side for a scene, and never waits for an answer that cannot come any more."""

from __future__ import annotations

from builtin_interfaces.msg import Time
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.action import ResetScene

from rlinf_ros.action_clients import GoalHandle
from rlinf_ros.memory_bus import action_node
from rlinf_ros.workarounds import Until

GONE = "nobody answers 'reset_scene'. Is the robot side running?"


async def sleep(node: Node, seconds: float) -> None:
    """In a routine: go on after so many seconds."""
    await either(node, Future(), seconds)


async def either(node: Node, future: Future, seconds: float) -> bool:
    """In a routine: go on once ``future`` is done or so many seconds have passed; returns whether it is done."""
    woken = Future(executor=node.executor)
    future.add_done_callback(lambda _: woken.done() or woken.set_result(None))
    timer = node.create_timer(seconds, lambda: woken.done() or woken.set_result(None))
    await Until(woken)
    node.destroy_timer(timer)
    return bool(future.done())


class Scene:
    """One robot side's scenes, or an operator's way home.

    Args:
        node: whose routines ask.
        patience_s: after that a question counts as lost: the middleware drops an answer whose asker it has not met yet.
        name: of the action.
        gone: what is said where nobody answers.

    Attributes:
        instruction: what is asked for in the present scene; empty where the robot side does not say it.
    """

    instruction = ""

    def __init__(self, node: Node, patience_s: float, name: str = "reset_scene", gone: str = GONE) -> None:
        self.node = node
        self.patience_s = patience_s
        self.name = name
        self.gone = gone
        self.client = ActionClient(action_node(node), ResetScene, name)
        self.goal: GoalHandle | None = None  # for now

    def cancel(self) -> None:
        """Nobody wants it any more, whether or not it was heard to begin."""
        if self.goal is not None:
            self.goal.withdraw()

    async def reset(self, seed: int) -> tuple[Time | None, str]:
        """Reset to a scene, however long that takes; returns the time from which it stands, or None and what went wrong."""
        self.goal = GoalHandle(self.client, ResetScene.Goal(seed=seed))
        try:
            return await self._answer(self.goal)
        finally:
            self.goal = None

    async def _answer(self, goal: GoalHandle) -> tuple[Time | None, str]:
        accepted = goal.send()
        if not await either(self.node, accepted, self.patience_s):
            goal.withdraw()  # it must not begin once nobody waits for it
            return None, f"{self.gone} (no answer for {self.patience_s:.0f} s)"
        handle = accepted.result()
        if not handle.accepted:
            return None, f"{self.name} was refused"
        answer = handle.get_result_async()
        while not await either(self.node, answer, self.patience_s):
            if not self.client.server_is_ready():
                goal.withdraw()  # or it is there, and not seen just now
                return None, f"{self.gone} It went in the middle of {self.name}"
            answer = handle.get_result_async()
        result = answer.result().result
        self.instruction = result.instruction
        return (result.stamp, "") if result.success else (None, f"{self.name}: {result.message}")
