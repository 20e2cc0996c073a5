"""The interlock's inputs: taken at its ticks, e-stops first, bounded in size and number, with ages.

Only the interlock's own tick wakes it, so that no sender, however busy, can keep it from hearing an
e-stop. The topic identifies the sender: a message's own claim about its source does not count (S6).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy
from rclpy.serialization import deserialize_message
from rlinf_msgs.msg import ActionChunk, EpisodeEvent
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from rlinf_core.interlock import ArmReport, Chunk, EStop, Limits, Pose
from rlinf_core.interlock.safety_checks import POLICY_CAUSES
from rlinf_core.interlock.types import COMMAND_TOPICS, FULL_ACTION, NS, ActionSlice
from rlinf_core.specs.topics import topic as topic_of
from rlinf_interlock import safety_messages as messages
from rlinf_ros.conversions import angles_of, pose_values
from rlinf_ros.memory_bus import Envelope, PulledNode, take
from rlinf_ros.qos import kind, received, subscription

ROLES = {topic: source for source, topic in COMMAND_TOPICS.items()}
OVER = (EpisodeEvent.ENDED, EpisodeEvent.ABORTED)
NO_ESTOP = (
    "expected at least one e-stop source for a real arm, got none. Name the sources in "
    "robot.yaml, e.g. estops: [pendant]. To arm without any, confirm it in robot.yaml: "
    "no_estop_reason: '<why>' (docs/safety.md)"
)
MAX_AT_ONCE = 10  # messages of one topic per tick
MAX_BYTES = {ActionChunk: 131_072, JointState: 16_384, EpisodeEvent: 16_384, String: 4_096}
FEW_BYTES = 1_024  # largest message of all other types
TO_OTHERS = "safety/to_others"  # topic of another arm, below that arm's name
FEW_TICKS = 4
NOT_RECEIVED = "unheard"
# checks for publishers between two looks at the durability of the faults' publishers
DURABILITY_CHECK_INTERVAL = 100
# latched: messages of a publisher with other durability do not arrive (S17)
FAULT_TOPIC = "robot/fault"
# a driver's node that repeats its fault but is silent this long hangs
DRIVER_S = 0.5
STATE_TOPICS = (
    "current_pose",
    "wrench",
    "gripper/state",
    "distance",
    "robot/fault",
    "enable",
    *ROLES,
)


@dataclass
class Listener:
    """One topic: its subscription, and the time of its last message."""

    topic: str
    kind: type
    subscription: Any
    received_ns: int = 0  # monotonic; 0 before the first message
    arrived: list[int] = field(default_factory=list)


class OtherArm:
    """The last reports of another arm's interlock: why it could not move, or nothing (S27)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = ""
        self.newest = ""
        self.blocked_at: dict[int, str] = {}  # the last few, by the time of their tick

    def update(self, stamp_ns: int, blocked: str) -> None:
        """Store the report of one of the other arm's ticks."""
        self.blocked_at[stamp_ns] = self.newest = blocked
        # holds of the policy hide none that also holds an operator
        if blocked and self.held in ("", *POLICY_CAUSES):
            self.held = blocked
        while len(self.blocked_at) > FEW_TICKS:
            del self.blocked_at[next(iter(self.blocked_at))]

    def forget(self) -> None:
        """Forget a hold that was handed over; the newest report still counts."""
        self.held = ""

    def now(self, before_ns: int | None) -> ArmReport:
        """Return the report that counts in this tick.

        It is a hold since the last tick, else the newest report. In lockstep it is the report of
        the last tick: all arms share their ticks, so it does not matter which one ticks first.
        """
        if before_ns is None:
            return ArmReport(self.name, self.held or self.newest)
        earlier = [stamp for stamp in self.blocked_at if stamp < before_ns]
        return ArmReport(self.name, self.blocked_at[max(earlier)] if earlier else NOT_RECEIVED)

    def up_to(self) -> int:
        """Return the time of its newest tick [ns]; 0 before any."""
        return max(self.blocked_at, default=0)


def needs(limits: Limits) -> set[str]:
    """Return the topics that the limits in force need."""
    topics = set()
    if limits.control_mode == "joint_delta":
        topics.add("current_pose")
    elif limits.joint_names:
        topics.add("joint_states")
    if min(limits.contact_force, limits.contact_torque, limits.contact_fault) < float("inf"):
        topics.add("wrench")
    if limits.gripper_width:
        topics.add("gripper/state")
    return topics


class Inputs:
    """All inputs that arrive on topics.

    Args:
        owner: the interlock's node, which resolves topic names.
        limits: the limits in force, which decide which topics are needed.
        estops: names of e-stop sources.
        distance: whether the station declares a distance input.
        lockstep: whether no message may be lost, and ages mean nothing.
        others: names of the station's other arms.
        rows: the numbers of an action that are this arm's.
        driver: whether a node beside the vendor's driver publishes the robot's faults, ten times a
            second.
    """

    def __init__(
        self,
        owner: Node,
        limits: Limits,
        estops: list[str],
        distance: bool,
        lockstep: bool,
        others: Sequence[str] = (),
        rows: ActionSlice = FULL_ACTION,
        driver: bool = False,
    ) -> None:
        self.owner = owner
        self.limits = limits
        self.lockstep = lockstep
        self.rows = rows
        self.driver = driver
        self.node = PulledNode(owner)
        self.listeners: dict[str, Listener] = {}
        self.counts: Counter[str] = Counter()
        self.pose: Pose | None = None
        self.joints: tuple[float, ...] | None = None
        self.frame = ""
        self.pose_stamp_ns = 0
        self.robot_fault = ""
        self.gripper_width: float | None = None
        self.wrench: tuple[float, float] | None = None
        self.estops, self.pressed = dict.fromkeys(estops, False), dict.fromkeys(estops, False)
        self.enable = False
        self.enable_renewed = False
        self.distance = float("nan") if distance else None
        self.disarm = False
        self.chunks: list[Chunk] = []
        self.events: list[EpisodeEvent] = []
        self.foreign: tuple[str, ...] = ()
        self.doubled: tuple[str, ...] = ()
        self.unmatched = False
        self.fault_publishers = -1  # number of publishers of faults
        self.looks = 0  # number of checks for publishers
        self.commands: tuple[str, ...] = ()
        self.others = {f"{name}/{TO_OTHERS}": OtherArm(name) for name in others}
        for name in estops:
            self.subscribe(f"estop/{name}")
        self.subscribe("enable")
        self.subscribe("disarm")
        self.subscribe(FAULT_TOPIC)
        for topic, is_used in (
            ("wrench", "wrench" in needs(limits)),
            ("distance", distance),
            ("gripper/state", limits.gripper_width),
            ("joint_states", limits.joint_names),
        ):
            if is_used:
                self.subscribe(topic)
        for topic in () if lockstep else ("current_pose", "episode", *ROLES, *self.others):
            self.subscribe(topic)
        self.state_topic = (
            "joint_states" if limits.control_mode == "joint_delta" else "current_pose"
        )
        self.pulled_ns = time.monotonic_ns()

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic."""
        name, quality = self.owner.resolve_topic_name(topic), received(topic, self.lockstep)
        self.listeners[topic] = Listener(
            topic,
            kind(topic),
            subscription(self.node, topic, _ignore, quality=quality, at=name, raw=True),
        )

    # Taking
    def pull(self) -> None:
        """Take new messages in the order of subscription: e-stops and enable first."""
        now = time.monotonic_ns()
        since_ns = now - self.pulled_ns
        self.pulled_ns = now
        released = False
        doubled: list[str] = []
        for topic, listener in self.listeners.items():
            listener.arrived.clear()
            taken = self._take(listener, since_ns)
            if taken and listener.subscription.get_publisher_count() > 1:
                doubled.append(topic)
            for raw, age_ns in taken:
                message = self.decode(topic, listener.kind, raw)
                if message is None:
                    continue
                if self.receive(topic, message):
                    listener.received_ns = now - age_ns
                    listener.arrived.append(listener.received_ns)
                released |= topic == "enable" and not message.data
        if released:  # a release counts even if it is renewed at once
            self.enable = self.enable_renewed = False
        self._add_second_publishers(doubled)

    def take_disarm(self) -> None:
        """Take only disarm messages, between two ticks."""
        self.disarm |= bool(self._take(self.listeners["disarm"], 0))

    def _take(self, listener: Listener, since_ns: int) -> list[tuple[bytes | Envelope, int]]:
        """Return raw messages with their ages [ns], at most the time since the last call."""
        taken: list[tuple[bytes | Envelope, int]] = []
        while len(taken) < MAX_AT_ONCE:
            sample = take(listener.subscription, raw=True)
            if sample is None:
                break
            raw, arrived_ns = sample[0], sample[1]["received_timestamp"]
            if not isinstance(raw, Envelope) and len(raw) > FEW_BYTES * 64:
                # the next one at the next tick, because each copy costs time
                taken.append((raw, 0))
                break
            age_ns = min(max(time.time_ns() - arrived_ns, 0), since_ns) if arrived_ns else 0
            taken.append((raw, age_ns))
        return taken

    def decode(self, topic: str, kind: type, raw: bytes | Envelope) -> Any:
        """Return the message, or None if it is too large or unreadable.

        The core refuses such a command.
        """
        try:
            if isinstance(raw, Envelope):
                if kind not in MAX_BYTES or len(raw.raw) <= MAX_BYTES[kind]:
                    return raw.message
            elif len(raw) <= MAX_BYTES.get(kind, FEW_BYTES):
                return deserialize_message(raw, kind)
            self.counts["oversized"] += 1
        except Exception:  # a broken message may raise anything in the middleware; it is dropped
            self.counts["unreadable"] += 1
        if topic in ROLES:
            self.chunks.append(messages.refused_chunk(ROLES[topic], self.limits.control_mode))
        elif topic == FAULT_TOPIC:  # an unreadable report is no all-clear
            self.robot_fault = "unreadable"
        return None

    def take_inputs(self) -> tuple[dict[str, Any], list[EpisodeEvent]]:
        """Return the core's inputs and the episode events; events are handed over only once."""
        inputs = self.surroundings() | {
            "chunks": tuple(self.chunks),
            "wrench": self.wrench,
            "pose": self.pose,
            "joints": self.joints,
        }
        inputs["enable_renewed"] = self.enable_renewed
        events = self.events
        self.chunks = []
        self.events = []
        self.wrench = None
        self.enable_renewed = False
        self.pressed = dict.fromkeys(self.pressed, False)
        for other in self.others.values():
            other.forget()
        return inputs, events

    def receive(self, topic: str, message: Any) -> bool:
        """Store one message; return False if it holds nothing about the arm."""
        if topic in ROLES:
            self.chunks.append(messages.to_chunk(message, ROLES[topic], self.rows))
        elif topic.startswith("estop/"):
            name = topic.removeprefix("estop/")
            self.estops[name] = message.data
            self.pressed[name] |= message.data
        elif topic == "current_pose":
            self.pose = pose_values(message.pose)
            self.frame = message.header.frame_id
            self.pose_stamp_ns = messages.to_ns(message.header.stamp)
        elif topic == "joint_states":
            return self._joints(message)
        elif topic == "gripper/state":
            self.gripper_width = float(message.position[0]) if len(message.position) else None
        elif topic == "wrench":
            self.wrench = messages.norms(message.wrench)
        elif topic == "distance":
            self.distance = message.range
        elif topic == FAULT_TOPIC:
            self.robot_fault = message.data[:200]
        elif topic == "enable":
            self.enable = message.data
            self.enable_renewed |= message.data
        elif topic == "disarm":
            self.disarm = True
        elif topic in self.others:
            self.others[topic].update(messages.to_ns(message.header.stamp), message.cause)
        elif topic == "episode":
            self.events.append(message)
            if message.kind in OVER:
                self.chunks = [chunk for chunk in self.chunks if chunk.is_release]
        return True

    def _joints(self, message: JointState) -> bool:
        """Store joint angles in the order of the limits.

        A message that lacks one of their joints, or has it twice, is ignored.
        """
        angles = angles_of(message, self.limits.joint_names)
        if angles is None:
            self.counts["of_other_joints"] += 1
            return False
        self.joints = angles
        return True

    # Publishers
    def check_publishers(self) -> None:
        """Find other publishers of commands, and second publishers of other topics (S23)."""
        count = self.owner.count_publishers
        commands = [t for t in self.commands if count(self.owner.resolve_topic_name(t)) > 1]
        estops = [t for t in map("estop/{}".format, self.estops) if self._publishers(t) > 1]
        self.foreign = (*commands, *estops)
        self.doubled = tuple(
            [
                topic
                for topic in (*STATE_TOPICS, *self.others)
                if topic in self.listeners and self._publishers(topic) > 1
            ]
        )
        self.looks += 1
        name = self._name(FAULT_TOPIC)
        publishers = count(name)
        is_due = self.looks % DURABILITY_CHECK_INTERVAL == 0
        if publishers != self.fault_publishers or self.unmatched or is_due:
            offered = [
                info.qos_profile.durability
                for info in self.owner.get_publishers_info_by_topic(name)
            ]
            self.fault_publishers = publishers
            self.unmatched = DurabilityPolicy.VOLATILE in offered

    def _add_second_publishers(self, topics: Sequence[str]) -> None:
        """Note the topics that have two matched publishers and have just brought messages (S23).

        The middleware delivers the messages of a publisher once it has matched the publisher. The
        graph may show the publisher only later. Therefore a message of a second publisher is not
        taken before the second publisher counts.
        """
        estops = tuple(f"estop/{name}" for name in self.estops)
        watched = (*STATE_TOPICS, *self.others)
        self.foreign += tuple([t for t in topics if t in estops and t not in self.foreign])
        self.doubled += tuple([t for t in topics if t in watched and t not in self.doubled])

    def _publishers(self, topic: str) -> int:
        """Return the number of publishers of a topic: in the graph, or matched already."""
        matched = self.listeners[topic].subscription.get_publisher_count()
        return max(self.owner.count_publishers(self._name(topic)), matched)

    def unexpected_types(self, topic: str) -> str:
        """Return, as text, the unexpected types in which a topic is published; empty if none."""
        infos = self.owner.get_publishers_info_by_topic(self._name(topic))
        expected = topic_of(topic).type
        types = ", ".join(sorted({info.topic_type for info in infos} - {expected}))
        return f"published as {types}; expected {expected}" if types else ""

    def publishers_of(self, topic: str) -> str:
        """Return the nodes that publish on a topic, for people."""
        infos = self.owner.get_publishers_info_by_topic(self.owner.resolve_topic_name(topic))
        return ", ".join(
            sorted(f"{info.node_namespace.rstrip('/')}/{info.node_name}" for info in infos)
        )

    def _name(self, topic: str) -> str:
        return self.listeners[topic].subscription.topic_name

    # Results
    def age_ns(self, topic: str) -> int:
        """Return the time since a topic's last message [ns]; a very long time if there was none."""
        received_ns = self.listeners[topic].received_ns
        return time.monotonic_ns() - received_ns if received_ns else 10**18

    def silent(self) -> tuple[str, ...]:
        """Return the inputs that a limit needs and that are silent now (S22)."""
        oldest = 10**17 if self.lockstep else self.limits.stale_input * NS
        needed = {*needs(self.limits), *self.others}
        missing = {name for name in self.others if not self.others[name].blocked_at}
        if self.unmatched or (self.driver and self.age_ns(FAULT_TOPIC) > DRIVER_S * NS):
            missing.add(FAULT_TOPIC)
        subscribed = needed & self.listeners.keys()
        missing |= {topic for topic in subscribed if self.age_ns(topic) > oldest}
        return tuple(sorted(missing))

    def surroundings(self) -> dict[str, Any]:
        """Return the inputs from people and surroundings, as inputs of the core."""
        distance = None if self.distance is None else (self.distance, self.age_ns("distance") / NS)
        return {
            "estops": tuple(
                [
                    EStop(
                        name,
                        self.estops[name] or self.pressed[name],
                        self.age_ns(f"estop/{name}") / NS,
                    )
                    for name in self.estops
                ]
            ),
            "enable": self.enable,
            "enable_age_s": self.age_ns("enable") / NS,
            "robot_fault": self.robot_fault,
            "gripper": self.gripper_width,
            "distance": distance,
            "silent": self.silent(),
            "foreign": self.foreign,
            "doubled": self.doubled,
            "frame": self.frame,
            "others": tuple(
                [
                    other.now(self.pose_stamp_ns if self.lockstep else None)
                    for other in self.others.values()
                ]
            ),
        }


def _ignore(_: Any) -> None:
    """Do nothing; never called, because nobody spins the node of these topics."""
