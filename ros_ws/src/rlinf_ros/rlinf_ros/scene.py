"""Clients of the actions ``reset_scene`` and ``home``, with timeouts."""

from __future__ import annotations

from typing import Any

from builtin_interfaces.msg import Time
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.action import Home, ResetScene

from rlinf_ros.action_clients import GoalHandle
from rlinf_ros.memory_bus import action_node
from rlinf_ros.workarounds import AwaitFuture

NO_SERVER = "'reset_scene' is not available. Is the robot side running?"
NO_OPERATOR = "'home' is not available. Is an operator with a device running (rlinf teleop)?"


async def sleep(node: Node, seconds: float) -> None:
    """Wait for ``seconds`` in a routine."""
    await wait_with_timeout(node, Future(), seconds)


async def wait_with_timeout(node: Node, future: Future, seconds: float) -> bool:
    """Wait in a routine for ``future`` or ``seconds``; return whether the future is done."""
    woken = Future(executor=node.executor)
    future.add_done_callback(lambda _: woken.done() or woken.set_result(None))
    timer = node.create_timer(seconds, lambda: woken.done() or woken.set_result(None))
    await AwaitFuture(woken)
    node.destroy_timer(timer)
    return bool(future.done())


class Request:
    """One goal at a time of an action that moves the arm between episodes.

    Args:
        node: the node whose routines make the requests.
        patience_s: timeout of a request: the middleware drops an answer to a client that it has not
            discovered.
        action: type of the action.
        name: name of the action.
        unavailable: error text if nobody answers.
    """

    def __init__(
        self, node: Node, patience_s: float, action: type, name: str, unavailable: str
    ) -> None:
        self.node = node
        self.patience_s = patience_s
        self.name = name
        self.unavailable = unavailable
        self.client = ActionClient(action_node(node), action, name)
        self.goal: GoalHandle | None = None  # the present goal

    def cancel(self) -> None:
        """Withdraw the present request, even if its acceptance is unknown."""
        if self.goal is not None:
            self.goal.withdraw()

    async def send(self, goal: Any) -> tuple[Any, str]:
        """Send a goal and await its result, however long that takes.

        If it fails, the result is None, with the reason.
        """
        self.goal = GoalHandle(self.client, goal)
        try:
            result, trouble = await self._answer(self.goal)
        finally:
            self.goal = None
        if result is not None and not result.success:
            return None, f"{self.name}: {result.message}"
        return result, trouble

    async def _answer(self, goal: GoalHandle) -> tuple[Any, str]:
        accepted = goal.send()
        if not await wait_with_timeout(self.node, accepted, self.patience_s):
            goal.withdraw()  # it must not begin once nobody waits for it
            return None, f"{self.unavailable} (no answer for {self.patience_s:.0f} s)"
        handle = accepted.result()
        if not handle.accepted:
            return None, f"{self.name} was refused"
        answer = handle.get_result_async()
        while not await wait_with_timeout(self.node, answer, self.patience_s):
            if not self.client.server_is_ready():
                goal.withdraw()  # it may be there after all, just not discovered now
                return None, f"{self.unavailable} The server ended during {self.name}"
            answer = handle.get_result_async()
        return answer.result().result, ""


class Scene(Request):
    """Scenes of one robot side.

    Attributes:
        instruction: the present scene's instruction; empty if the robot side has none.
    """

    instruction = ""

    def __init__(self, node: Node, patience_s: float) -> None:
        super().__init__(node, patience_s, ResetScene, "reset_scene", NO_SERVER)

    async def reset(self, seed: int) -> tuple[Time | None, str]:
        """Reset to a scene; returns the time from which it stands, or None and the reason."""
        result, trouble = await self.send(ResetScene.Goal(seed=seed))
        if result is None:
            return None, trouble
        self.instruction = result.instruction
        return result.stamp, ""


class HomeMotion(Request):
    """An operator's motion of the arm to its home."""

    def __init__(self, node: Node, patience_s: float) -> None:
        super().__init__(node, patience_s, Home, "home", NO_OPERATOR)

    async def go(self) -> str:
        """Move the arm to its home; returns why it is not there, or an empty string."""
        if not self.client.server_is_ready():
            return self.unavailable
        _, trouble = await self.send(Home.Goal())
        return trouble
