"""The robot interface (rlinf_core.specs.topics) in ROS's own terms: by a topic's name its publisher, or who hears it."""

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
    return QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=depth,
                      reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
                      durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE)


MUCH = 5000  # messages
SHARED, AT_ONCE = "joint_states", 8  # where others may speak too, as a gripper's driver: the newest may not be the arm's
OVERHEARD = _keep(1, reliable=False)  # by whoever must be no burden to the sender


@cache
def overheard(depth: int, reliable: bool = False) -> QoSProfile:
    """Likewise, by whoever may be late."""
    return _keep(depth, reliable=reliable)


@cache
def profile(name: str) -> QoSProfile:
    """The profile of a topic by its relative name."""
    row = topic(name)
    return _keep(row.depth, latched=row.latched)


def witnessed(name: str) -> QoSProfile:
    """The profile with which a topic is heard by whoever must miss nothing of it, however late he is himself."""
    return _keep(MUCH, latched=topic(name).latched)


@cache
def received(name: str, lockstep: bool) -> QoSProfile:
    """The profile with which a topic is received; where only the newest message counts, in lockstep none may be lost."""
    return _keep(AT_ONCE if name.endswith(SHARED) else 1, reliable=lockstep) if topic(name).newest else profile(name)


def to_override(name: str, quality: Any) -> tuple[Any, dict[str, Any]]:
    """Return a copy of the topic's quality of service, which rclpy changes, and how to ask for
    overrides.
    """
    if not may_override(name):
        return quality, {}
    return copy(quality), {"qos_overriding_options": QoSOverridingOptions.with_default_policies()}


@cache
def kind(name: str) -> type:
    """The message class of a topic by its relative name."""
    package, _, message = topic(name).type.split("/")
    return getattr(importlib.import_module(f"{package}.msg"), message)


def publisher(node: Node, name: str, *, at: str = "") -> Publisher:
    """Make a publisher of a topic by its relative name, with the type and quality of the table.
    Raises RlinfError for other topics.

    Args:
        at: by what name the node knows it, if by another.
    """
    return node.create_publisher(kind(name), at or name, profile(name))


def subscription(node: Node, name: str, callback: Callable[[Any], None], *, quality: QoSProfile | None = None, at: str = "",
                 raw: bool = False, lazy: bool = False) -> Subscription:
    """To a topic, as ``publisher``.

    Args:
        quality: instead of the topic's own.
        raw: the callback takes messages as they come, not read.
        lazy: with ``raw``: of this process it takes an Envelope (``rlinf_ros.memory_bus``) instead of bytes.
    """
    more: dict[str, Any] = {"lazy": True} if lazy and type(node) is not Node else {}  # rclpy's own has no bus
    return node.create_subscription(kind(name), at or name, callback, quality or profile(name), raw=raw, **more)
