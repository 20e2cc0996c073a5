"""Lifecycle manager: brings a station's managed nodes up in order, and down in reverse order.

A node whose process was restarted is activated again. A node that a person has deactivated stays
inactive. The idea, and the names of the services, come from Nav2's lifecycle manager (navigation2,
``nav2_lifecycle_manager``), which has a bond with each node. Here the endpoint of the node's
``transition_event`` distinguishes processes.
"""

from __future__ import annotations

import time
from typing import Any

from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.node import Node
from std_srvs.srv import SetBool, Trigger

from rlinf_ros.diagnostics import ERROR, OK, WARN, Diagnostics, Health
from rlinf_ros.scene import sleep, wait_with_timeout
from rlinf_ros.spinning import run
from rlinf_ros.station_node import StationNode
from rlinf_ros.station_state import publisher_ids
from rlinf_ros.workarounds import AwaitFuture, run_routine

POLL_S = 1.0
ANSWER_S = 5.0  # an interlock may brake before it answers
DOWN_S = 3.5  # the part of rlinf_ros.spinning.FINISH_S in which all nodes are shut down
UNKNOWN, UNCONFIGURED = State.PRIMARY_STATE_UNKNOWN, State.PRIMARY_STATE_UNCONFIGURED
INACTIVE = State.PRIMARY_STATE_INACTIVE
ACTIVE = State.PRIMARY_STATE_ACTIVE
FINALIZED = State.PRIMARY_STATE_FINALIZED
LABELS = {
    UNKNOWN: "absent",
    UNCONFIGURED: "unconfigured",
    INACTIVE: "inactive",
    ACTIVE: "active",
    FINALIZED: "finalized",
}
UP = {
    UNCONFIGURED: (Transition.TRANSITION_CONFIGURE, "configure", INACTIVE),
    INACTIVE: (Transition.TRANSITION_ACTIVATE, "activate", ACTIVE),
}
DOWN = {
    ACTIVE: (Transition.TRANSITION_DEACTIVATE, "deactivate", INACTIVE),
    INACTIVE: (Transition.TRANSITION_CLEANUP, "cleanup", UNCONFIGURED),
}
Identity = frozenset[tuple[int, ...]]


class Member:
    """One managed node.

    Args:
        node: the manager's.
        name: the managed node's, in the station's namespace, e.g. ``left/interlock``.

    Attributes:
        state: the last answered state; UNKNOWN while the node is absent.
        brought_up: the process that was brought up; a later process differs.
        trouble: reason why the node is not in its wanted state; empty if it is.
    """

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name
        self.change_state_client = node.create_client(ChangeState, f"{name}/change_state")
        self.state_client = node.create_client(GetState, f"{name}/get_state")
        self.state = UNKNOWN
        self.brought_up: Identity = frozenset()
        self.trouble = ""

    @property
    def status_text(self) -> str:
        """The state, and the reason why it is not the wanted one."""
        return f"{LABELS.get(self.state, 'changing')}{f' ({self.trouble})' if self.trouble else ''}"

    @property
    def identity(self) -> Identity:
        """The process, by the middleware's identifier; empty while the node is absent."""
        return frozenset(publisher_ids(self.node, f"{self.name}/transition_event"))

    async def query_state(self) -> int:
        """Ask for the node's state."""
        answer = await self._answer(self.state_client, GetState.Request())
        self.state = UNKNOWN if answer is None else answer.current_state.id
        return self.state

    async def transition(self, steps: dict[int, tuple[int, str, int]]) -> bool:
        """Take the node through all transitions in ``steps``; return whether all succeeded."""
        identity = self.identity
        self.trouble = ""
        await self.query_state()
        while self.state in steps:
            number, label, goal = steps[self.state]
            answer = await self._answer(
                self.change_state_client, ChangeState.Request(transition=Transition(id=number))
            )
            if answer is None or not answer.success:
                reason = "had no answer" if answer is None else "was refused; see its log"
                self.trouble = f"'{label}' {reason}"
                return False
            self.state = goal
        if self.state == ACTIVE:
            self.brought_up = identity
            self.node.get_logger().info(f"{self.name} is active")
        return True

    async def _answer(self, client: Any, request: Any) -> Any:
        """Return the answer of a service; None if none came in time."""
        if not client.service_is_ready():
            return None
        future = client.call_async(request)
        has_answer = await wait_with_timeout(self.node, future, ANSWER_S)
        return await AwaitFuture(future) if has_answer else None


class LifecycleManager(StationNode):
    """Brings all nodes up or down (``manage_nodes``) and reports the result (``is_active``)."""

    def __init__(self) -> None:
        super().__init__("lifecycle_manager")
        names = [name for name in self.declare_parameter("node_names", [""]).value if name]
        self.members = [Member(self, name) for name in names]
        self.is_enabled = bool(self.declare_parameter("autostart", True).value)
        self.is_transitioning = self.is_ending = False
        self.ends_at = 0.0
        self.create_service(SetBool, "~/manage_nodes", self._on_manage)
        self.create_service(Trigger, "~/is_active", self._on_is_active)
        self.create_timer(POLL_S, self._begin)
        self.diagnostics = Diagnostics(self, self._health)

    # Services
    def _on_manage(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.is_enabled = request.data
        for member in self.members:
            # also brings up nodes that a person has deactivated
            member.trouble = ""
            member.brought_up = frozenset()
        response.success = True
        response.message = (
            f"nodes go {'up' if request.data else 'down'}; the service is_active returns their "
            "state"
        )
        self._begin()
        return response

    def _on_is_active(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = all(member.state == ACTIVE for member in self.members)
        response.message = self._inactive_nodes() or "all nodes are active"
        return response

    def _inactive_nodes(self) -> str:
        """Return the nodes that are not active, with their states."""
        return ", ".join(
            f"{member.name}: {member.status_text}"
            for member in self.members
            if member.state != ACTIVE
        )

    def _health(self) -> Health:
        values = {member.name: member.status_text for member in self.members}
        if self.is_enabled and (missing := self._inactive_nodes()):
            failed = any(member.trouble for member in self.members)
            return Health(ERROR if failed else WARN, missing, values)
        return Health(
            OK, "all nodes are active" if self.is_enabled else "the nodes are inactive", values
        )

    # Routines, one at a time
    def _begin(self) -> None:
        if not self.is_transitioning:
            self.is_transitioning = True
            run_routine(self._poll(), self._on_routine_end)

    def _on_routine_end(self, _: None) -> None:
        self.is_transitioning = False

    async def _poll(self) -> None:
        if self.is_enabled and not self.is_ending:
            await self._bring_up()
        else:
            await self._bring_down()

    async def _bring_up(self) -> None:
        """Bring the nodes up in order; at first, a failing one keeps its successors down."""
        for member in self.members:
            before = member.state
            await member.query_state()
            if not self.is_enabled or self.is_ending:
                return
            is_new = member.identity != member.brought_up
            if member.state in UP and is_new:
                if before == UNKNOWN and member.brought_up:
                    self.get_logger().warning(f"{member.name} was restarted and is activated")
                if not await member.transition(UP):
                    self.get_logger().error(
                        f"{member.name}: {member.trouble}", throttle_duration_sec=10.0
                    )
            elif member.state == ACTIVE and is_new:
                member.brought_up = member.identity
                member.trouble = ""
            if member.state != ACTIVE and not member.brought_up:
                return

    async def _bring_down(self) -> None:
        """Bring the nodes down in reverse order, whatever one of them answers."""
        for member in reversed(self.members):
            if self.is_enabled and not self.is_ending:
                return
            await member.query_state()
            if member.state in DOWN and not member.trouble:  # an interlock is configured only once
                await member.transition({ACTIVE: DOWN[ACTIVE]} if self.is_ending else DOWN)

    def finish(self) -> bool:
        """End the node: deactivate the nodes first, in turn.

        A refusing node ends by its own signal.
        """
        now = time.monotonic()
        if not self.is_ending:
            self.is_ending = True
            self.ends_at = now + DOWN_S
            for member in self.members:
                member.trouble = ""
            run_routine(self._shut_down(), lambda _: setattr(self, "ends_at", 0.0))
        return now > self.ends_at

    async def _shut_down(self) -> None:
        while self.is_transitioning:  # the present routine ends first
            await sleep(self, 0.02)
        await self._bring_down()


def main() -> None:
    """Entry point."""
    run(LifecycleManager, listens=False)


if __name__ == "__main__":
    main()
