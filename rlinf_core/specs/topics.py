"""Every topic of a station: type, sender, receivers, rate, quality of service and channel.

Names are relative to the station's namespace. A station with two arms has each arm topic
(``per_arm``) once per arm, below the arm's name: ``left/current_pose``. Quality of service,
channels, recordings, conformance checks and the documentation (docs/reference/topics.md) are made
from this table. Reading it needs no ROS. A user may change some of the qualities by ROS's
parameters ``qos_overrides.<topic>.<entity>.<policy>`` (``parameters``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rlinf_core.core.errors import RlinfError, nearest

EPISODE, BLACK_BOX, SESSION = "episode", "black box", "session"  # kinds of recordings
DERIVED = "episode, computed"  # computed by the recorder from its inputs
FREE = (
    "camera/<name>/image",
    "camera/<name>/view",
    "camera/<name>/camera_info",
    "camera/<name>/image/compressed",
    "camera/<name>/depth",
    "robot_description",
    "tf",
    "tf_static",
    "markers",
    "joy",
    "vr/pose",
    "vr/joy",
    # topics whose quality of service may be overridden
    "policy/update",
    "policy/status",
    "trainer/status",
)
COUNTED = ("timestep", "applied", "safety/events", "episode", "label", "prompt")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One row.

    Attributes:
        name: name of the topic; ``<name>`` stands for a camera or an e-stop.
        type: type of its messages, in the form ``package/msg/Kind``.
        sender, receivers: nodes, and programs that are none; ``robot side`` for a driver, a
            simulator, and the nodes ``controller``, ``gripper`` and ``driver`` beside
            one. ``listeners`` adds the recorder.
        rate: minimum rate.
        depth: messages kept for a late receiver.
        latched: True if a late subscriber gets the last message (transient local).
        per_arm: True if there is one for each arm.
        channel: shape of the data that an observation takes from a message, in SI units; None for
            no data; -1 for one number per joint.
        newest: True if only the newest message counts: received with depth 1, reliable in lockstep,
            best effort in real time. This fits every driver's publisher.
        recorded: with an ``episode``, computed for it by the recorder, in the ``black box`` before
            a fault, or not at all.
        sampled: True if the message at a time step's time is recorded with the step; an image as
            JPEG, on ``<image>/compressed``.
        session: fields whose changes are recorded with the session; without fields each message is;
            None for no recording.
        meaning: one sentence.
    """

    name: str
    type: str
    sender: str
    receivers: str
    rate: str
    meaning: str
    depth: int = 10
    latched: bool = False
    per_arm: bool = False
    channel: tuple[int, ...] | None = None
    newest: bool = False
    recorded: str = ""
    sampled: bool = False
    session: tuple[str, ...] | None = None

    @property
    def fixed(self) -> str:
        """Reason why the user may not change the topic's quality of service.

        The reason is "" if ``qos_overrides`` may change it.
        """
        if self.name in FREE:
            return ""
        if self.name in COUNTED:
            return "each message counts"
        if self.name in ("clock", "endpoints") or (
            self.newest and "interlock" not in self.receivers.split(", ")
        ):
            return "only the newest message counts; in lockstep each counts"
        if self.name == "page":
            return "it moves the arm through the operator"
        return "the interlock depends on it"

    @property
    def listeners(self) -> str:
        """The receivers, with the recorder if it records the topic."""
        recorded = self.recorded or self.sampled or self.session is not None
        return ", ".join(filter(None, (self.receivers, "recorder" if recorded else "")))


def _state(
    name: str,
    kind: str,
    channel: tuple[int, ...],
    rate: str,
    meaning: str,
    package: str = "geometry_msgs",
    receivers: str = "environment",
    **changes: Any,
) -> Topic:
    row = Topic(
        name=name,
        type=f"{package}/msg/{kind}",
        sender="robot side",
        receivers=receivers,
        rate=rate,
        meaning=meaning,
        per_arm=True,
        channel=channel,
        newest=True,
        sampled=True,
    )
    return replace(row, **changes)


TOPICS = (
    _state(
        "current_pose",
        "PoseStamped",
        (7,),
        "100 Hz",
        "tool pose in the base frame. Position [m] and quaternion x y z w",
        receivers="interlock, environment, operator, page, robot side",
        recorded=BLACK_BOX,
    ),
    _state(
        "current_twist",
        "TwistStamped",
        (6,),
        "control rate",
        "tool velocity in the base frame [m/s, rad/s]",
    ),
    _state(
        "wrench",
        "WrenchStamped",
        (6,),
        "10 Hz",
        "external wrench at the tool [N, Nm]",
        receivers="interlock, environment",
    ),
    _state(
        "joint_states",
        "JointState",
        (-1,),
        "10 Hz",
        "joint angles [rad]",
        "sensor_msgs",
        "interlock, environment, operator",
    ),
    _state(
        "gripper/state",
        "JointState",
        (1,),
        "10 Hz",
        "gripper width [m]",
        "sensor_msgs",
        "interlock, environment, operator",
    ),
    _state(
        "object_pose",
        "PoseStamped",
        (7,),
        "control rate",
        "pose of the task's object, if a sensor or simulator measures it",
        receivers="environment, operator, page",
    ),
    _state(
        "goal_pose",
        "PoseStamped",
        (7,),
        "control rate",
        "goal pose of the object",
        receivers="environment, operator, page",
    ),
    _state(
        "task/success",
        "TaskStatus",
        (1,),
        "control rate",
        "success signal from outside. 1 means that the task is done",
        "rlinf_msgs",
        per_arm=False,
        sampled=False,
    ),
    Topic(
        name="camera/<name>/image",
        type="sensor_msgs/msg/Image",
        sender="robot side",
        receivers="environment, page",
        rate="control rate",
        depth=2,
        newest=True,
        channel=(-1, -1, 3),
        sampled=True,
        meaning="image in rgb8 or bgr8",
    ),
    Topic(
        name="camera/<name>/view",
        type="sensor_msgs/msg/Image",
        sender="robot side",
        receivers="page",
        rate="up to 10 Hz, while a page is open",
        depth=2,
        newest=True,
        meaning="image for people in any size. `video` is the simulator's own view",
    ),
    Topic(
        name="camera/<name>/camera_info",
        type="sensor_msgs/msg/CameraInfo",
        sender="robot side",
        receivers="RViz, Foxglove",
        rate="control rate",
        depth=2,
        newest=True,
        sampled=True,
        meaning="calibration of that image from its driver. K is zero without a calibration",
    ),
    Topic(
        name="camera/<name>/image/compressed",
        type="sensor_msgs/msg/CompressedImage",
        sender="robot side",
        receivers="RViz, Foxglove",
        rate="while it has a subscriber",
        depth=2,
        newest=True,
        meaning="the image as JPEG, as in image_transport. `jpeg` in robot.yaml sets its quality",
    ),
    Topic(
        name="camera/<name>/depth",
        type="sensor_msgs/msg/Image",
        sender="robot side",
        receivers="RViz, Foxglove",
        rate="control rate",
        depth=2,
        newest=True,
        meaning="depth in 16UC1 [mm], aligned to the image. `depth` in robot.yaml enables it",
    ),
    Topic(
        name="robot_description",
        type="std_msgs/msg/String",
        sender="robot side, recorder",
        receivers="RViz, Foxglove",
        rate="once",
        depth=1,
        latched=True,
        recorded=EPISODE,
        meaning="URDF from robot.yaml or from the driver's robot_state_publisher",
    ),
    Topic(
        name="tf",
        type="tf2_msgs/msg/TFMessage",
        sender="recorder",
        receivers="RViz, Foxglove",
        rate="30 Hz, while it has a subscriber",
        depth=100,
        recorded=DERIVED,
        meaning="frames of tool, target, object, goal and links. Each name begins with the "
        "station's",
    ),
    Topic(
        name="tf_static",
        type="tf2_msgs/msg/TFMessage",
        sender="recorder",
        receivers="RViz, Foxglove",
        rate="once",
        depth=1,
        latched=True,
        recorded=DERIVED,
        meaning="frames of cameras and fixed parts of the robot",
    ),
    Topic(
        name="markers",
        type="visualization_msgs/msg/MarkerArray",
        sender="recorder",
        receivers="RViz, Foxglove",
        rate="on change",
        depth=1,
        latched=True,
        recorded=DERIVED,
        meaning="box of the limits in the colour of the interlock's state, and the state as text",
    ),
    Topic(
        name="distance",
        type="sensor_msgs/msg/Range",
        sender="robot side",
        receivers="interlock",
        rate="20 Hz",
        per_arm=True,
        newest=True,
        meaning="distance to the nearest obstacle [m], if robot.yaml declares a sensor",
    ),
    Topic(
        name="robot/fault",
        type="std_msgs/msg/String",
        sender="robot side",
        receivers="interlock",
        rate="on change; from a driver of rlinf also at 10 Hz",
        depth=1,
        latched=True,
        per_arm=True,
        session=("data",),
        meaning="reflex or user stop as one word. Empty without a fault",
    ),
    Topic(
        name="robot/reset",
        type="std_msgs/msg/String",
        sender="interlock",
        receivers="robot side",
        rate="on a reset",
        depth=1,
        per_arm=True,
        session=(),
        meaning="name of the fault that a person resets, while the robot reports a fault of "
        "its own. Only now may the driver recover the robot. During the recovery "
        "`robot/fault` has another text",
    ),
    Topic(
        name="target_pose",
        type="geometry_msgs/msg/PoseStamped",
        sender="interlock",
        receivers="robot side, page",
        rate="every tick",
        per_arm=True,
        recorded=BLACK_BOX,
        sampled=True,
        meaning="set-point of the tool in the base frame",
    ),
    Topic(
        name="target_joints",
        type="sensor_msgs/msg/JointState",
        sender="interlock",
        receivers="robot side",
        rate="every tick",
        per_arm=True,
        meaning="set-point of the joints [rad], in joint_delta instead of target_pose",
    ),
    Topic(
        name="gripper/command",
        type="rlinf_msgs/msg/GripperWidth",
        sender="interlock",
        receivers="robot side",
        rate="every tick",
        per_arm=True,
        meaning="set-point of the gripper width [m]. Nothing is sent while `gripper/state` is "
        "silent",
    ),
    Topic(
        name="estop/<name>",
        type="std_msgs/msg/Bool",
        sender="e-stop",
        receivers="interlock",
        rate="10 Hz",
        depth=100,
        session=("data",),
        meaning="true while pressed. Silence counts as pressed",
    ),
    Topic(
        name="enable",
        type="std_msgs/msg/Bool",
        sender="operator",
        receivers="interlock, operator, page",
        rate="within the lease",
        session=("data",),
        meaning="the policy may move, until false or until the lease (enable_lease) ends",
    ),
    Topic(
        name="disarm",
        type="std_msgs/msg/Empty",
        sender="operator, page, `rlinf disarm`",
        receivers="interlock",
        rate="at a person's request",
        per_arm=True,
        meaning="disarms without the service `interlock/arm` and its process. It can do "
        "nothing else",
    ),
    Topic(
        name="timestep",
        type="rlinf_msgs/msg/TimeStep",
        sender="environment",
        receivers="policy, operator, page, interlock",
        rate="control rate",
        depth=50,
        recorded=EPISODE,
        meaning="observation, reward and end of the episode. The interlock receives it in lockstep",
    ),
    Topic(
        name="policy/action",
        type="rlinf_msgs/msg/ActionChunk",
        sender="policy",
        receivers="interlock",
        rate="each chunk",
        depth=50,
        recorded=EPISODE,
        meaning="action chunk of the policy, with its samples",
    ),
    Topic(
        name="teleop/action",
        type="rlinf_msgs/msg/ActionChunk",
        sender="operator",
        receivers="interlock",
        rate="each chunk",
        depth=50,
        recorded=EPISODE,
        meaning="action chunk of a person, with priority. A chunk without actions ends the "
        "takeover",
    ),
    Topic(
        name="applied",
        type="rlinf_msgs/msg/Applied",
        sender="interlock",
        receivers="environment, page, director",
        rate="each action",
        depth=50,
        per_arm=True,
        recorded=EPISODE,
        meaning="action that moved the arm, with its commander. Rows of other arms are zero",
    ),
    Topic(
        name="safety",
        type="rlinf_msgs/msg/SafetyState",
        sender="interlock",
        receivers="environment, policy, operator, page, director, robot side",
        rate="10 Hz, and on change",
        depth=1,
        latched=True,
        per_arm=True,
        recorded=EPISODE,
        session=("state", "source", "cause", "limits_hash"),
        meaning="state of the interlock and its cause",
    ),
    Topic(
        name="safety/to_others",
        type="rlinf_msgs/msg/SafetyState",
        sender="interlock",
        receivers="interlock",
        rate="every tick",
        per_arm=True,
        meaning="to the interlocks of the station's other arms. `cause` tells why this arm "
        "may not move. Empty means that it may",
    ),
    Topic(
        name="safety/events",
        type="rlinf_msgs/msg/SafetyEvent",
        sender="interlock",
        receivers="",
        rate="each intervention",
        depth=50,
        per_arm=True,
        recorded=EPISODE,
        session=("kind", "cause", "source"),
        meaning="refused, dropped, limited or held commands",
    ),
    Topic(
        name="episode",
        type="rlinf_msgs/msg/EpisodeEvent",
        sender="environment, recorder",
        receivers="environment, interlock, operator, page, director",
        rate="each event",
        depth=50,
        recorded=EPISODE,
        session=(),
        meaning="start, end, closing or abort of an episode",
    ),
    Topic(
        name="label",
        type="std_msgs/msg/String",
        sender="operator",
        receivers="environment, page",
        rate="at a person's request",
        session=(),
        meaning="`ready` for a scene before an episode. Later success, failure, rerecord or "
        "discard",
    ),
    Topic(
        name="prompt",
        type="std_msgs/msg/String",
        sender="environment",
        receivers="operator, director, page",
        rate="on change",
        depth=1,
        latched=True,
        session=(),
        meaning="request to a person before an episode. Empty without one",
    ),
    Topic(
        name="joy",
        type="sensor_msgs/msg/Joy",
        sender="joystick driver",
        receivers="operator",
        rate="10 Hz",
        meaning="gamepad, with station.operator.kind = joy",
    ),
    Topic(
        name="vr/pose",
        type="geometry_msgs/msg/PoseStamped",
        sender="a headset's bridge",
        receivers="operator",
        rate="20 Hz",
        meaning="pose of the controller in the headset's frame, with station.operator.kind = vr",
    ),
    Topic(
        name="vr/joy",
        type="sensor_msgs/msg/Joy",
        sender="a headset's bridge",
        receivers="operator",
        rate="20 Hz",
        meaning="buttons of that controller. Triggers are 0 to 1",
    ),
    Topic(
        name="page",
        type="sensor_msgs/msg/Joy",
        sender="page",
        receivers="operator",
        rate="20 Hz, during a command",
        meaning="pressed keys of the operator's page",
    ),
    Topic(
        name="policy/update",
        type="rlinf_msgs/msg/PolicyUpdate",
        sender="uplink",
        receivers="policy",
        rate="each version",
        depth=1,
        latched=True,
        session=(),
        meaning="path of a new policy on this machine",
    ),
    Topic(
        name="policy/status",
        type="rlinf_msgs/msg/PolicyStatus",
        sender="policy",
        receivers="environment, director, uplink, page",
        rate="0.5 Hz",
        depth=1,
        latched=True,
        session=("session", "version", "error"),
        meaning="playing version and response time",
    ),
    Topic(
        name="trainer/status",
        type="rlinf_msgs/msg/TrainerStatus",
        sender="uplink",
        receivers="environment, director, page",
        rate="2 Hz",
        depth=1,
        latched=True,
        session=("connected", "phase", "policy_version", "accepting", "set_aside", "message"),
        meaning="state of the trainer, and whether it wants more episodes",
    ),
    Topic(
        name="endpoints",
        type="std_msgs/msg/String",
        sender="each node of the loop, in lockstep",
        receivers="environment",
        rate="on change",
        depth=1,
        latched=True,
        meaning="matched publishers and subscriptions of a node. No episode begins before all "
        "match",
    ),
    Topic(
        name="clock",
        type="rosgraph_msgs/msg/Clock",
        sender="robot side",
        receivers="environment",
        rate="control rate",
        meaning="simulated time of a simulator in lockstep, also for `use_sim_time`",
    ),
)
_BY_NAME = {topic.name: topic for topic in TOPICS}


# names that an arm may not have
TAKEN = {name.partition("/")[0] for name in _BY_NAME if "/" in name} | {"interlock"}


def of_arms(name: str, arms: Sequence[str]) -> list[str]:
    """Return a row's topic names in a station with these arms.

    A ``per_arm`` row has one name per arm. No arms mean one arm without a name.
    """
    return [f"{arm}/{name}" for arm in arms] if arms and topic(name).per_arm else [name]


VECTORS = ("current_twist", "wrench")  # topics whose numbers lie along the axes of a frame


def arm_of(name: str) -> str:
    """Return the arm in a topic's name, or ""."""
    above, _, below = name.partition("/")
    return above if name not in _BY_NAME and below in _BY_NAME and _BY_NAME[below].per_arm else ""


@lru_cache(1024)
def topic(name: str) -> Topic:
    """Return the row of a station's topic, for any camera, e-stop or arm.

    Raises:
        RlinfError: there is no such topic; the message suggests the nearest name.
    """
    for key in (name, *_patterns(name), *([name.partition("/")[2]] if arm_of(name) else [])):
        if key in _BY_NAME:
            return _BY_NAME[key]
    raise RlinfError(
        f"topic '{name}': expected one of the robot interface (docs/reference/topics.md)"
        f"{nearest(name, _BY_NAME)}"
    )


def _patterns(name: str) -> tuple[str, ...]:
    parts = name.split("/")
    if len(parts) > 2 and parts[0] == "camera":
        return (f"camera/<name>/{'/'.join(parts[2:])}",)
    return ("estop/<name>",) if len(parts) == 2 and parts[0] == "estop" else ()


PREFIX = "qos_overrides."
ENTITIES = ("publisher", "subscription")
VALUES: dict[str, tuple[str, ...]] = {
    "reliability": ("reliable", "best_effort"),
    "history": ("keep_last", "keep_all"),
    "depth": (),
}
Overrides = Mapping[str, Mapping[str, Mapping[str, str | int]]]  # topic, entity, policy


def may_override(name: str) -> bool:
    """Return True if the user may override a station's topic; False for unknown topics."""
    try:
        return not topic(name).fixed
    except RlinfError:
        return False


def check(name: str, entity: str, policy: str, value: object) -> None:
    """Check an override of a station's topic.

    Raises:
        RlinfError: the override is not allowed or invalid.
    """
    where = f"qos_overrides: '{name}'"
    if reason := topic(name).fixed:
        raise RlinfError(f"{where}: expected none, since {reason} (docs/reference/topics.md)")
    if entity not in ENTITIES:
        raise RlinfError(
            f"{where}: expected {' or '.join(ENTITIES)}, got '{entity}'{nearest(entity, ENTITIES)}"
        )
    if policy not in VALUES:
        raise RlinfError(
            f"{where}: expected {', '.join(VALUES)}, got '{policy}'{nearest(policy, VALUES)}"
        )
    allowed = VALUES[policy]
    if (value not in allowed) if allowed else not (type(value) is int and 1 <= value <= 1000):
        raise RlinfError(
            f"{where}: {policy}: expected {' or '.join(allowed) or 'a number from 1 to 1000'}, got "
            f"{value!r}"
        )


def check_all(overrides: Overrides) -> None:
    """Check the overrides of a recipe."""
    for name, entities in overrides.items():
        for entity, policies in entities.items():
            for policy, value in policies.items():
                check(name, entity, policy, value)


def check_parameters(by_name: Mapping[str, object], name_of: Callable[[str], str]) -> None:
    """Check the overrides on a node's command line.

    Args:
        by_name: parameters of any kind, by their names.
        ours: maps a full name to the station's topic; empty for foreign topics, which are not
            checked here.
    """
    for parameter, value in by_name.items():
        topic_name, entity, policy = (parameter.removeprefix(PREFIX).rsplit(".", 2) + ["", ""])[:3]
        if parameter.startswith(PREFIX) and (name := name_of(topic_name)):
            check(name, entity, policy, value)


def parameters(
    overrides: Overrides, station: str, renamed: Mapping[str, str]
) -> dict[str, str | int]:
    """Return a recipe's overrides as ROS parameters, by a topic's full name.

    A robot's driver may rename topics (``renamed``).
    """
    return {
        f"{PREFIX}{renamed.get(name, f'{station}/{name}')}.{entity}.{policy}": value
        for name, entities in overrides.items()
        for entity, policies in entities.items()
        for policy, value in policies.items()
    }
