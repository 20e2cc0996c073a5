"""Client of ``reset_scene``: requests a scene from the robot side, and never waits in vain."""

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
    """Wait for ``seconds`` in a routine."""
    await either(node, Future(), seconds)


async def either(node: Node, future: Future, seconds: float) -> bool:
    """Wait in a routine for ``future`` or ``seconds``; return whether the future is done."""
    woken = Future(executor=node.executor)
    future.add_done_callback(lambda _: woken.done() or woken.set_result(None))
    timer = node.create_timer(seconds, lambda: woken.done() or woken.set_result(None))
    await Until(woken)
    node.destroy_timer(timer)
    return bool(future.done())


class Scene:
    """One robot side's scenes, or an operator's motion home.

    Args:
        node: its routines make the requests.
        patience_s: timeout of a request: the middleware drops an answer to a client that it has not
            discovered.
        name: of the action.
        gone: error text if nobody answers.

    Attributes:
        instruction: the present scene's instruction; empty if the robot side has none.
    """

    instruction = ""

    def __init__(self, node: Node, patience_s: float, name: str = "reset_scene", gone: str = GONE) -> None:
        self.node = node
        self.patience_s = patience_s
        self.name = name
        self.gone = gone
        self.client = ActionClient(action_node(node), ResetScene, name)
        self.goal: GoalHandle | None = None  # the present goal

    def cancel(self) -> None:
        """Withdraw the present request, even if its acceptance is unknown."""
        if self.goal is not None:
            self.goal.withdraw()

    async def reset(self, seed: int) -> tuple[Time | None, str]:
        """Reset to a scene, however long that takes.

        Returns:
            The time from which the scene is ready, or None; and the error.
        """
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
                goal.withdraw()  # it may be there after all, just not discovered now
                return None, f"{self.gone} It went in the middle of {self.name}"
            answer = handle.get_result_async()
        result = answer.result().result
        self.instruction = result.instruction
        return (result.stamp, "") if result.success else (None, f"{self.name}: {result.message}")
