"""The robot interface (rlinf_core.specs.topics) in ROS: endpoints by topic name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription

from rlinf_core.specs.topics import may_override, topic


def _keep(depth: int, *, reliable: bool = True, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


LOSSLESS_DEPTH = 5000  # messages
# others, such as a gripper's driver, may publish there: the newest message may not be the arm's
SHARED, AT_ONCE = "joint_states", 8
LAZY_PROFILE = _keep(1, reliable=False)  # for subscribers that must not burden the sender


@cache
def lazy_profile(depth: int, reliable: bool = False) -> QoSProfile:
    """Return such a profile with a queue, for subscribers that may be late."""
    return _keep(depth, reliable=reliable)


@cache
def profile(name: str) -> QoSProfile:
    """Return the profile of a topic by its relative name."""
    row = topic(name)
    return _keep(row.depth, latched=row.latched)


def lossless_profile(name: str) -> QoSProfile:
    """Return the profile for a subscriber that must miss nothing, however late it is."""
    return _keep(LOSSLESS_DEPTH, latched=topic(name).latched)


@cache
def received(name: str, lockstep: bool) -> QoSProfile:
    """Return the profile for receiving a topic.

    If only the newest message counts, the queue is short; in lockstep no message may be lost.
    """
    return (
        _keep(AT_ONCE if name.endswith(SHARED) else 1, reliable=lockstep)
        if topic(name).newest
        else profile(name)
    )


def to_override(name: str, quality: Any) -> tuple[Any, dict[str, Any]]:
    """Return a copy of the quality of service, which rclpy changes, and override options."""
    if not may_override(name):
        return quality, {}
    return copy(quality), {"qos_overriding_options": QoSOverridingOptions.with_default_policies()}


@cache
def kind(name: str) -> type:
    """Return the message class of a topic by its relative name."""
    package, _, message = topic(name).type.split("/")
    return getattr(importlib.import_module(f"{package}.msg"), message)


def publisher(node: Node, name: str, *, at: str = "") -> Publisher:
    """Make a publisher of a topic by its relative name, with the table's type and quality.

    Args:
        node: the node.
        name: the topic's relative name.
        at: the node's name for the topic, if it differs.

    Raises:
        RlinfError: the table has no such topic.
    """
    return node.create_publisher(kind(name), at or name, profile(name))


def subscription(
    node: Node,
    name: str,
    callback: Callable[[Any], None],
    *,
    quality: QoSProfile | None = None,
    at: str = "",
    raw: bool = False,
    lazy: bool = False,
) -> Subscription:
    """Make a subscription to a topic by its relative name, as ``publisher`` does.

    Args:
        node: the node.
        name: the topic's relative name.
        callback: takes a message.
        quality: replaces the topic's own.
        at: the node's name for the topic, if it differs.
        raw: the callback takes serialised messages.
        lazy: with ``raw``, the callback takes an Envelope (``rlinf_ros.memory_bus``) for messages
            of this process, instead of bytes.
    """
    # rclpy's own has no bus
    more: dict[str, Any] = {"lazy": True} if lazy and type(node) is not Node else {}
    return node.create_subscription(
        kind(name), at or name, callback, quality or profile(name), raw=raw, **more
    )
