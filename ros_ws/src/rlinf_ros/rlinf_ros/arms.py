"""A station's arms: their names, the combined state of their interlocks, and arming requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from rclpy.client import Client
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState
from std_msgs.msg import Empty
from std_srvs.srv import SetBool

from rlinf_core.interlock.safety_checks import ARM_PREFIX
from rlinf_core.specs.topics import of_arms
from rlinf_ros.qos import publisher, subscription

COUNTS = ("ticks", "holds", "refused", "dropped", "limited")
SEVEREST = (
    SafetyState.FAULT,
    SafetyState.DISARMED,
    SafetyState.HOLD,
    SafetyState.ARMED,
    SafetyState.ACTIVE,
)


def arms_of(node: Node) -> list[str]:
    """Return the names in the node's parameter ``arms``; none for one arm without a name."""
    return [name for name in node.declare_parameter("arms", [""]).value if name]


def arm_topic(arm: str, name: str) -> str:
    """Return the topic or service of an arm; the plain name if the arm has none."""
    return f"{arm}/{name}" if arm else name


def subscribe_arms(
    node: Node, topic: str, arms: Sequence[str], callback: Callable[[Any], None]
) -> None:
    """Subscribe to a topic of the interface, of every arm."""
    for name in of_arms(topic, arms):
        subscription(node, name, callback)


def arm_prefix(arm: str) -> str:
    """Return the prefix for a text about one of several arms."""
    return f"arm '{arm}': " if arm else ""


def subscribe_safety(
    node: Node,
    arms: Sequence[str],
    callback: Callable[[SafetyState], None],
    quality: QoSProfile | None = None,
    at: dict[str, float] | None = None,
) -> dict[str, SafetyState]:
    """Call ``callback`` with the combined state at each report, once all have been heard.

    Args:
        node: subscribes.
        arms: the arms' names.
        callback: takes the combined state.
        quality: replaces the topic's own.
        at: receives the time of each arm's last report (time.monotonic), by arm.

    Returns:
        Each arm's last report, by arm, updated on arrival.
    """
    states_by_arm: dict[str, SafetyState] = {}

    def on_safety(arm: str, message: SafetyState) -> None:
        states_by_arm[arm] = message
        if at is not None:
            at[arm] = time.monotonic()
        if len(states_by_arm) == len(arms or [""]):
            callback(combine_safety_states(states_by_arm.values()))

    for arm in arms or [""]:
        subscription(node, arm_topic(arm, "safety"), partial(on_safety, arm), quality=quality)
    return states_by_arm


def combine_safety_states(states: Iterable[SafetyState]) -> SafetyState:
    """Return the combined state of several interlocks: the severest with its cause, and all counts.

    An arm's own cause precedes that of another arm.
    """
    by_severity = sorted(
        states,
        key=lambda state: (
            SEVEREST.index(state.state),
            state.cause.startswith(ARM_PREFIX),
            state.source != "operator",
        ),
    )
    if len(by_severity) == 1:
        return by_severity[0]
    worst = by_severity[0]
    return SafetyState(
        header=worst.header,
        state=worst.state,
        source=worst.source,
        cause=worst.cause,
        limits_hash="+".join(sorted({state.limits_hash for state in by_severity})),
        **{name: sum(getattr(state, name) for state in by_severity) for name in COUNTS},
    )


EXPIRES_S = 6.0  # the interlock answers within five, or its services hang


def disarm_topics(node: Node, arms: Sequence[str]) -> list[Publisher]:
    """Return publishers on each arm's ``disarm``.

    The interlock hears them even if its services hang.
    """
    return [publisher(node, name) for name in of_arms("disarm", [arm for arm in arms if arm])]


class ArmRequests:
    """Sends requests to the interlocks of all arms.

    Args:
        node: publishes.
        arms: the arms' names; none for one arm without a name.
        clients: of ``interlock/arm``, one per arm.
        answered: gets each answer to an arming.
        disarmed: gets each answer to a disarming; ``answered`` by default.
    """

    def __init__(
        self,
        node: Node,
        arms: Sequence[str],
        clients: Sequence[Client],
        answered: Callable[[Future], None],
        disarmed: Callable[[Future], None] | None = None,
    ) -> None:
        self.node = node
        self.clients = clients
        self.answered = answered
        self.disarmed = answered if disarmed is None else disarmed
        self.topics = disarm_topics(node, arms)
        self.pending: list[Future] = []  # armings without an answer
        self.requested_s = 0.0

    def arm(self) -> None:
        """Ask every interlock to arm; ``expire`` withdraws it if one does not answer in time."""
        self.requested_s = time.monotonic()
        self.pending = [client.call_async(SetBool.Request(data=True)) for client in self.clients]
        for future in self.pending:
            future.add_done_callback(self.answered)

    def disarm(self) -> None:
        """Disarm by topic and by service; the later of an arming and a disarming counts."""
        self.pending = []
        for topic in self.topics:
            topic.publish(Empty())
        for client in self.clients:
            client.call_async(SetBool.Request(data=False)).add_done_callback(self.disarmed)

    def expire(self) -> None:
        """Withdraw an arming on every arm if an answer is overdue; call it often."""
        self.pending = [future for future in self.pending if not future.done()]
        if self.pending and time.monotonic() - self.requested_s > EXPIRES_S:
            self.node.get_logger().error(
                f"arming: no answer from the interlock within {EXPIRES_S:g} s. The arming is "
                "cancelled. Check that the interlock is running, then arm again"
            )
            self.disarm()
