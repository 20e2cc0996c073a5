"""Client of ``reset_scene``: asks the robot side for a scene, and never waits for an answer that cannot come any more."""

from __future__ import annotations

from builtin_interfaces.msg import Time
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.action import ResetScene

from rlinf.workarounds import Until

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
    """One robot side's scenes.

    Args:
        node: whose routines ask.
        patience_s: after that a question counts as lost: the middleware drops an answer whose asker it has not met yet.

    Attributes:
        instruction: what is asked for in the present scene; empty where the robot side does not say it.
    """

    instruction = ""

    def __init__(self, node: Node, patience_s: float) -> None:
        self.node, self.patience_s = node, patience_s
        self.client = ActionClient(node, ResetScene, "reset_scene")

    async def reset(self, seed: int) -> tuple[Time | None, str]:
        """Reset to a scene, however long that takes; returns the time from which it stands, or None and what went wrong."""
        asked = self.client.send_goal_async(ResetScene.Goal(seed=seed))
        if not await either(self.node, asked, self.patience_s):
            return None, f"{GONE} (no answer for {self.patience_s:.0f} s)"
        handle = asked.result()
        if not handle.accepted:
            return None, "the robot side refused to reset the scene"
        answer = handle.get_result_async()
        while not await either(self.node, answer, self.patience_s):
            if not self.client.server_is_ready():
                return None, f"{GONE} It went while it reset the scene"
            answer = handle.get_result_async()
        result = answer.result().result
        self.instruction = result.instruction
        return (result.stamp, "") if result.success else (None, f"the scene was not reset: {result.message}")
