"""``rlinf arm`` and ``rlinf disarm``.

Either all arms are armed or none. Each arm is asked to disarm at once, whatever another one
answers. If an arming fails in part, every arm is asked to disarm again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rclpy.client import Client
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState
from std_msgs.msg import Empty
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RlinfError
from rlinf_ros.arms import arm_prefix, arm_topic, disarm_topics
from rlinf_ros.station_state import RUN_CONTINUES, command, is_directed, state_text

# the middleware drops an answer to a client that it has not discovered; a repeated request changes
# nothing
AGAIN_S = 1.0
PUBLISH_S = 0.1
ANSWER_S = 12.0  # the interlock's services answer within five


class ArmingStation(Protocol):
    """The part of a client of a station that arming and disarming need.

    Attributes:
        name: of the station.
        node: publishes and calls.
        arms: names of the arms; "" if there is only one.
        patience_s: timeout of an answer [s].
        latest: the newest message of each topic, by its name.
    """

    name: str
    node: Node
    arms: list[str]
    patience_s: float
    latest: dict[str, Any]

    def meet(self) -> SafetyState:
        """Wait for the interlocks; an RlinfError names the nodes found instead."""

    def call(self, client: Client, request: Any) -> Any:
        """Return the answer to a request; raise RlinfError if none comes."""

    def parameter(self, node: str, name: str) -> Any:
        """Return a parameter of a node."""

    def changed(self, state: int) -> SafetyState:
        """Return the interlocks' state once it differs from ``state``."""

    def within(self, seconds: float, ready: Callable[[], bool], awaited: str = "") -> bool:
        """Return whether something becomes true in time; a line every 5 s names ``awaited``."""


def disarm(station: ArmingStation) -> None:
    """Disarm all arms.

    Raises:
        RlinfError: an interlock did not confirm; the message names each such arm.
    """
    clients = {
        arm: station.node.create_client(SetBool, arm_topic(arm, "interlock/arm"))
        for arm in station.arms
    }
    topics, published_s = disarm_topics(station.node, list(clients)), float("-inf")
    pending: dict[str, list[Future]] = {arm: [] for arm in clients}
    requested_at = dict.fromkeys(clients, float("-inf"))

    def request() -> bool:
        nonlocal published_s
        now = time.monotonic()
        # repeat until its interlock has been discovered, and has heard it
        if now - published_s > PUBLISH_S:
            published_s = now
            for topic in topics:
                topic.publish(Empty())
        for arm, client in clients.items():
            if (
                answer(arm) is None
                and now - requested_at[arm] > AGAIN_S
                and client.service_is_ready()
            ):
                pending[arm].append(client.call_async(SetBool.Request(data=False)))
                requested_at[arm] = now
        return all(answer(arm) is not None for arm in clients)

    def answer(arm: str) -> SetBool.Response | None:
        return next((future.result() for future in pending[arm] if future.done()), None)

    awaited = "the answer of each interlock to the disarming"
    if not station.within(station.patience_s, request, awaited) and any(pending.values()):
        station.within(
            ANSWER_S,
            lambda: request() or all(answer(arm) is not None for arm in clients if pending[arm]),
            awaited,
        )
    if not any(pending.values()):
        station.meet()  # raises an error that names the nodes found
    results = [(arm, answer(arm)) for arm in clients]
    messages = [result.message for _, result in results if result and result.success]
    troubles = [
        f"{arm_prefix(arm)}{result.message if result else 'its interlock does not answer'}"
        for arm, result in results
        if not (result and result.success)
    ]
    if troubles:
        others = "; the others are disarmed" if len(troubles) < len(clients) else ""
        raise RlinfError(f"not disarmed (stop it by its e-stop{others}): {'; '.join(troubles)}")
    station.within(
        2.0,
        lambda: (
            "safety" in station.latest and station.latest["safety"].state == SafetyState.DISARMED
        ),
    )
    now = (
        f": the interlock is {state_text(station.latest['safety'])}"
        if "safety" in station.latest
        else ""
    )
    print(f"{messages[-1]}{now}")


def _disarm_all(
    station: ArmingStation, clients: Mapping[str, Client], topics: Sequence[Publisher]
) -> list[str]:
    """Ask each arm to disarm; return advice for each that does not confirm."""
    for topic in topics:
        topic.publish(Empty())
    pending = {
        arm: client.call_async(SetBool.Request(data=False))
        for arm, client in clients.items()
        if client.service_is_ready()
    }
    station.within(
        ANSWER_S,
        lambda: all(future.done() for future in pending.values()),
        "the disarming of all arms",
    )
    succeeded = [
        arm for arm, future in pending.items() if future.done() and future.result().success
    ]
    remark = f"it may be armed: {command('disarm', station.name)}, or its e-stop"
    return [f"{arm_prefix(arm)}{remark}" for arm in clients if arm not in succeeded]


def arm(station: ArmingStation) -> None:
    """Arm all arms; an RlinfError gives the reason for a refusal.

    A person arms a real arm, at a terminal.
    """
    before = station.meet()
    if is_directed(station.node, f"/{station.name}"):
        print(RUN_CONTINUES)
    if not sys.stdin.isatty() and not all(
        station.parameter(arm_topic(arm, "interlock"), "teleports") for arm in station.arms
    ):
        raise RlinfError(
            "arm: expected a person at a terminal, since this is the interlock of a real arm. Run "
            "rlinf arm or rlinf teleop there"
        )
    clients = {
        arm: station.node.create_client(SetBool, arm_topic(arm, "interlock/arm"))
        for arm in station.arms
    }
    topics = disarm_topics(station.node, list(clients))  # discovered while the interlock is asked
    refused, no_answer = list[str](), True
    try:
        for name, client in clients.items():
            # after a refusal, the others are asked to disarm, so that no arm is armed alone
            answer = station.call(client, SetBool.Request(data=not refused))
            refused += [] if answer.success else [f"{arm_prefix(name)}{answer.message}"]
        no_answer = False
    finally:
        # all arms are armed or none, and none without a confirmation
        if no_answer or (refused and len(clients) > 1):
            refused += _disarm_all(station, clients, topics)
            if refused and no_answer:
                print("; ".join(refused), file=sys.stderr)
    if refused:
        raise RlinfError("; ".join(refused))
    print(f"{answer.message}: the interlock is {state_text(station.changed(before.state))}")
