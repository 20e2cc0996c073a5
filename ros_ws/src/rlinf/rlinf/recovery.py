"""What a driver asks of its vendor's driver while a person resets: step by step, each with a bound on its time."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rclpy.task import Future

from rlinf.scene import either
from rlinf.workarounds import Until

STEP_S, BACK_S = 4.0, 1.0  # for an answer; until the robot says itself that it is back


class Steps:
    """Questions of a routine that never wait for ever.

    Args:
        node: whose routine asks.
    """

    def __init__(self, node: Node) -> None:
        self.node, self.running = node, False

    async def run(self) -> str:
        """All of it; returns what went wrong, or an empty string."""
        raise NotImplementedError

    async def service(self, client: Any, request: Any) -> Any:
        """The answer of a service, or None where nobody is there, or nothing came in time."""
        return await self.answer(client.call_async(request)) if client.service_is_ready() else None

    async def answer(self, future: Future) -> Any:
        """What came, or None if nothing did in time."""
        return await Until(future) if await either(self.node, future, STEP_S) else None
