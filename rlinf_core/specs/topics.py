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
FREE = ("camera/<name>/image", "camera/<name>/view", "camera/<name>/camera_info", "camera/<name>/image/compressed",
        "camera/<name>/depth", "robot_description", "tf", "tf_static", "markers", "joy", "vr/pose", "vr/joy",
        # topics whose quality of service may be overridden
        "policy/update", "policy/status", "trainer/status")
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
        """Reason why the user may not change its quality of service; "" if ``qos_overrides`` may.
        """
        if self.name in FREE:
            return ""
        if self.name in COUNTED:
            return "each of its messages counts"
        if self.name in ("clock", "endpoints") or (self.newest and "interlock" not in self.receivers.split(", ")):
            return "only its newest message counts, and in lockstep each"
        if self.name == "page":
            return "the operator goes by it, and the arm moves with it"
        return "the interlock goes by it, and the arm's safety by the interlock"

    @property
    def listeners(self) -> str:
        """The receivers, with the recorder if it records the topic."""
        recorded = self.recorded or self.sampled or self.session is not None
        return ", ".join(filter(None, (self.receivers, "recorder" if recorded else "")))


def _state(name: str, kind: str, channel: tuple[int, ...], rate: str, meaning: str, package: str = "geometry_msgs",
           receivers: str = "environment", **changes: Any) -> Topic:
    row = Topic(name=name, type=f"{package}/msg/{kind}", sender="robot side", receivers=receivers, rate=rate,
                meaning=meaning, per_arm=True, channel=channel, newest=True, sampled=True)
    return replace(row, **changes)


TOPICS = (
    _state("current_pose", "PoseStamped", (7,), "100 Hz", "the tool in the base frame: position [m], quaternion x y z w",
           receivers="interlock, environment, operator, page, robot side", recorded=BLACK_BOX),
    _state("current_twist", "TwistStamped", (6,), "control rate", "its velocity [m/s, rad/s]"),
    _state("wrench", "WrenchStamped", (6,), "10 Hz", "the external wrench at the tool [N, Nm]",
           receivers="interlock, environment"),
    _state("joint_states", "JointState", (-1,), "10 Hz", "the joints [rad]", "sensor_msgs",
           "interlock, environment, operator"),
    _state("gripper/state", "JointState", (1,), "10 Hz", "the gripper's width [m]", "sensor_msgs",
           "interlock, environment, operator"),
    _state("object_pose", "PoseStamped", (7,), "control rate", "the object of the task, where something knows it",
           receivers="environment, operator, page"),
    _state("goal_pose", "PoseStamped", (7,), "control rate", "where it belongs", receivers="environment, operator, page"),
    _state("task/success", "JointState", (1,), "control rate", "external success signal: 1 once the task is done",
           "sensor_msgs", per_arm=False, sampled=False),
    Topic(name="camera/<name>/image", type="sensor_msgs/msg/Image", sender="robot side",
          receivers="environment, page", rate="control rate", depth=2, newest=True,
          channel=(-1, -1, 3), sampled=True, meaning="rgb8 or bgr8"),
    Topic(name="camera/<name>/view", type="sensor_msgs/msg/Image", sender="robot side", receivers="page",
          rate="up to 10 Hz, while a page is open", depth=2, newest=True,
          meaning="a picture for people, whatever size the policy sees; `video` is the simulator's own view"),
    Topic(name="camera/<name>/camera_info", type="sensor_msgs/msg/CameraInfo", sender="robot side",
          receivers="RViz, Foxglove", rate="control rate", depth=2, newest=True, sampled=True,
          meaning="of that image, as its driver calibrated it; K is zero where nobody has"),
    Topic(name="camera/<name>/image/compressed", type="sensor_msgs/msg/CompressedImage", sender="robot side",
          receivers="RViz, Foxglove", rate="while somebody listens", depth=2, newest=True,
          meaning="the same as JPEG, as image_transport has it; `jpeg` in robot.yaml is its quality"),
    Topic(name="camera/<name>/depth", type="sensor_msgs/msg/Image", sender="robot side", receivers="RViz, Foxglove",
          rate="control rate", depth=2, newest=True,
          meaning="16UC1 [mm], aligned to that image, with `depth` in robot.yaml"),
    Topic(name="robot_description", type="std_msgs/msg/String", sender="robot side, recorder", receivers="RViz, Foxglove",
          rate="once", depth=1, latched=True, recorded=EPISODE,
          meaning="the URDF that the robot's YAML names, or that of the driver's robot_state_publisher"),
    Topic(name="tf", type="tf2_msgs/msg/TFMessage", sender="recorder", receivers="RViz, Foxglove",
          rate="30 Hz, while somebody listens", depth=100, recorded=DERIVED,
          meaning="tool, target, object, goal and the robot's links; each frame begins with the station's name"),
    Topic(name="tf_static", type="tf2_msgs/msg/TFMessage", sender="recorder", receivers="RViz, Foxglove", rate="once",
          depth=1, latched=True, recorded=DERIVED, meaning="likewise: cameras, and what stands still of the robot"),
    Topic(name="markers", type="visualization_msgs/msg/MarkerArray", sender="recorder", receivers="RViz, Foxglove",
          rate="on change", depth=1, latched=True, recorded=DERIVED,
          meaning="the limits' box, in the colour of the interlock's state, and the state in words"),
    Topic(name="distance", type="sensor_msgs/msg/Range", sender="robot side", receivers="interlock", rate="20 Hz",
          per_arm=True, newest=True, meaning="to the nearest obstacle [m], where the robot's YAML declares it"),
    Topic(name="robot/fault", type="std_msgs/msg/String", sender="robot side", receivers="interlock",
          rate="on change; by a driver of ours also 10 Hz",
          depth=1, latched=True, per_arm=True, session=("data",),
          meaning="a reflex or a user stop, in a word; empty when there is none"),
    Topic(name="robot/reset", type="std_msgs/msg/String", sender="interlock", receivers="robot side", rate="on a reset",
          depth=1, per_arm=True, session=(),
          meaning="a person resets the fault of this name, and the robot's own stands: what brings "
          "the robot back may be asked of it now, and at no other time; meanwhile `robot/fault` is another"),
    Topic(name="target_pose", type="geometry_msgs/msg/PoseStamped", sender="interlock",
          receivers="robot side, page", rate="every tick", per_arm=True, recorded=BLACK_BOX, sampled=True,
          meaning="where the tool shall be, in the base frame"),
    Topic(name="target_joints", type="sensor_msgs/msg/JointState", sender="interlock", receivers="robot side",
          rate="every tick", per_arm=True, meaning="the same for joints, in joint_delta instead of target_pose [rad]"),
    Topic(name="gripper/command", type="std_msgs/msg/Float64", sender="interlock", receivers="robot side",
          rate="every tick", per_arm=True,
          meaning="how far the gripper shall be open [m]; nothing while `gripper/state` is silent"),
    Topic(name="estop/<name>", type="std_msgs/msg/Bool", sender="e-stop", receivers="interlock", rate="10 Hz",
          depth=100, session=("data",), meaning="true when pressed; silence is pressed"),
    Topic(name="enable", type="std_msgs/msg/Bool", sender="operator",
          receivers="interlock, operator, page", rate="within the lease",
          session=("data",), meaning="the policy may move, until false or the lease (enable_lease) has passed"),
    Topic(name="disarm", type="std_msgs/msg/Empty", sender="operator, page, `rlinf disarm`", receivers="interlock",
          rate="on a person's word", per_arm=True,
          meaning="disarms, beside the service `interlock/arm`, and needs no second process; it can do nothing else"),
    Topic(name="timestep", type="rlinf_msgs/msg/TimeStep", sender="environment",
          receivers="policy, operator, page, interlock", rate="control rate", depth=50, recorded=EPISODE,
          meaning="observation, reward, how the episode ended; the interlock hears it in lockstep"),
    Topic(name="policy/action", type="rlinf_msgs/msg/ActionChunk", sender="policy", receivers="interlock",
          rate="each chunk", depth=50, recorded=EPISODE, meaning="what the policy wants, and what it drew for it"),
    Topic(name="teleop/action", type="rlinf_msgs/msg/ActionChunk", sender="operator", receivers="interlock",
          rate="each chunk", depth=50, recorded=EPISODE,
          meaning="what a person wants, who goes first; a chunk without actions says that they let go"),
    Topic(name="applied", type="rlinf_msgs/msg/Applied", sender="interlock",
          receivers="environment, page, director", rate="each action", depth=50, per_arm=True, recorded=EPISODE,
          meaning="what moved the arm, and who asked for it; what other arms did is zero here"),
    Topic(name="safety", type="rlinf_msgs/msg/SafetyState", sender="interlock",
          receivers="environment, policy, operator, page, director, robot side", rate="10 Hz, and on change",
          depth=1, latched=True, per_arm=True, recorded=EPISODE,
          session=("state", "source", "cause", "limits_hash"),
          meaning="state of the interlock, and why"),
    Topic(name="safety/to_others", type="rlinf_msgs/msg/SafetyState", sender="interlock",
          receivers="interlock", rate="every tick", per_arm=True,
          meaning="where there are several arms, to the interlocks of the others: why this one could not move now, as "
          "`cause`; empty if it may"),
    Topic(name="safety/events", type="rlinf_msgs/msg/SafetyEvent", sender="interlock", receivers="",
          rate="each intervention", depth=50, per_arm=True, recorded=EPISODE, session=("kind", "cause", "source"),
          meaning="what was refused, dropped, limited or held"),
    Topic(name="episode", type="rlinf_msgs/msg/EpisodeEvent", sender="environment, recorder",
          receivers="environment, interlock, operator, page, director", rate="each event",
          depth=50, recorded=EPISODE, session=(), meaning="an episode started, ended, was closed or aborted"),
    Topic(name="label", type="std_msgs/msg/String", sender="operator", receivers="environment, page",
          rate="on a person's word", session=(),
          meaning="ready, of the scene before an episode; of that in play success, failure, rerecord or discard"),
    Topic(name="prompt", type="std_msgs/msg/String", sender="environment", receivers="operator, director, page",
          rate="on change", depth=1, latched=True, session=(),
          meaning="what a person is asked before an episode; empty if nothing"),
    Topic(name="joy", type="sensor_msgs/msg/Joy", sender="joystick driver", receivers="operator", rate="10 Hz",
          meaning="a gamepad, with station.operator.kind = joy"),
    Topic(name="vr/pose", type="geometry_msgs/msg/PoseStamped", sender="a headset's bridge", receivers="operator",
          rate="20 Hz", meaning="the controller in the headset's frame, with station.operator.kind = vr"),
    Topic(name="vr/joy", type="sensor_msgs/msg/Joy", sender="a headset's bridge", receivers="operator", rate="20 Hz",
          meaning="what is pressed on it, triggers from 0 to 1"),
    Topic(name="page", type="sensor_msgs/msg/Joy", sender="page", receivers="operator",
          rate="20 Hz, while somebody commands", meaning="what is held on the operator's page"),
    Topic(name="policy/update", type="rlinf_msgs/msg/PolicyUpdate", sender="uplink", receivers="policy",
          rate="each version", depth=1, latched=True, session=(), meaning="a new policy lies on this machine"),
    Topic(name="policy/status", type="rlinf_msgs/msg/PolicyStatus", sender="policy",
          receivers="environment, director, uplink, page", rate="0.5 Hz", depth=1, latched=True,
          session=("session", "version", "error"),
          meaning="which version plays, and how fast it answers"),
    Topic(name="trainer/status", type="rlinf_msgs/msg/TrainerStatus", sender="uplink",
          receivers="environment, director, page", rate="2 Hz", depth=1, latched=True,
          session=("connected", "phase", "policy_version", "accepting", "set_aside", "message"),
          meaning="what the trainer does, and whether it wants more"),
    Topic(name="endpoints", type="std_msgs/msg/String", sender="each node of the loop, in lockstep",
          receivers="environment", rate="on change", depth=1, latched=True,
          meaning="which publishers and subscriptions a node has matched; no episode begins before all have"),
    Topic(name="clock", type="rosgraph_msgs/msg/Clock", sender="robot side", receivers="environment",
          rate="control rate", meaning="simulated time, of a simulator in lockstep; also for `use_sim_time`"),
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
    raise RlinfError(f"topic '{name}': expected one of the robot interface (docs/reference/topics.md)"
                     f"{nearest(name, _BY_NAME)}")


def _patterns(name: str) -> tuple[str, ...]:
    parts = name.split("/")
    if len(parts) > 2 and parts[0] == "camera":
        return (f"camera/<name>/{'/'.join(parts[2:])}",)
    return ("estop/<name>",) if len(parts) == 2 and parts[0] == "estop" else ()


PREFIX = "qos_overrides."
ENTITIES = ("publisher", "subscription")
VALUES: dict[str, tuple[str, ...]] = {"reliability": ("reliable", "best_effort"), "history": ("keep_last", "keep_all"),
                                      "depth": ()}
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
    if why := topic(name).fixed:
        raise RlinfError(f"{where}: expected none, as {why} (docs/reference/topics.md)")
    if entity not in ENTITIES:
        raise RlinfError(f"{where}: expected {' or '.join(ENTITIES)}, got '{entity}'{nearest(entity, ENTITIES)}")
    if policy not in VALUES:
        raise RlinfError(f"{where}: expected {', '.join(VALUES)}, got '{policy}'{nearest(policy, VALUES)}")
    allowed = VALUES[policy]
    if (value not in allowed) if allowed else not (type(value) is int and 1 <= value <= 1000):
        raise RlinfError(f"{where}: {policy}: expected {' or '.join(allowed) or 'a number from 1 to 1000'}, got {value!r}")


def check_all(overrides: Overrides) -> None:
    """Check the overrides of a recipe."""
    for name, entities in overrides.items():
        for entity, policies in entities.items():
            for policy, value in policies.items():
                check(name, entity, policy, value)


def check_parameters(by_name: Mapping[str, object], ours: Callable[[str], str]) -> None:
    """Check the overrides on a node's command line.

    Args:
        by_name: parameters of any kind, by their names.
        ours: maps a full name to the station's topic; empty for foreign topics, which are not
            checked here.
    """
    for parameter, value in by_name.items():
        topic_name, entity, policy = (parameter.removeprefix(PREFIX).rsplit(".", 2) + ["", ""])[:3]
        if parameter.startswith(PREFIX) and (name := ours(topic_name)):
            check(name, entity, policy, value)


def parameters(overrides: Overrides, station: str, renamed: Mapping[str, str]) -> dict[str, str | int]:
    """Return a recipe's overrides as ROS parameters, by a topic's full name.

    A robot's driver may rename topics (``renamed``).
    """
    return {f"{PREFIX}{renamed.get(name, f'{station}/{name}')}.{entity}.{policy}": value
            for name, entities in overrides.items() for entity, policies in entities.items()
            for policy, value in policies.items()}
