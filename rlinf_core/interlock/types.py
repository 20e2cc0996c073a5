"""Inputs, outputs and state of the interlock's core."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from rlinf_core.interlock.motion import Numbers

# x y z [m], quaternion x y z w, base frame
Pose = tuple[float, float, float, float, float, float, float]

NS = 1_000_000_000
# sources of commands by authority, the operator last
COMMANDERS = ("policy", "operator")
OPERATOR = COMMANDERS[-1]
COMMAND_TOPICS = {"policy": "policy/action", OPERATOR: "teleop/action"}
MAX_SEQ = 2**40  # largest sequence number
MAX_SEQ_GAP = 100_000  # largest difference of sequence numbers between two chunks
MAX_ACTIONS = 1024  # actions in one chunk


class Mode(IntEnum):
    """States of S13; the numbers are those of rlinf_msgs/SafetyState."""

    DISARMED = 0
    ARMED = 1
    ACTIVE = 2
    HOLD = 3
    FAULT = 4


class ActionSlice(NamedTuple):
    """This arm's part of an action: ``first`` to before ``end`` of ``total`` numbers.

    If ``total`` is 0, all numbers are this arm's.
    """

    first: int = 0
    end: int = 0
    total: int = 0

    def part(self, actions: tuple[Numbers, ...]) -> tuple[Numbers, ...]:
        """Return this arm's part of all arms' actions.

        The part is NaN if any arm's number is not finite, because a chunk is refused as a whole.
        """
        if not self.total:
            return actions
        if not all(math.isfinite(value) for action in actions for value in action):
            return ((math.nan,) * (self.end - self.first),)
        return tuple([action[self.first : self.end] for action in actions])

    def embed(self, numbers: Numbers) -> Numbers:
        """Return this arm's numbers at their place among all arms' numbers, the rest zero."""
        return (0.0,) * self.first + numbers + (0.0,) * (self.total - self.end)


FULL_ACTION = ActionSlice()  # a station with one arm


@dataclass(frozen=True, slots=True)
class Chunk:
    """A plan of displacements, one row per action; see rlinf_msgs/ActionChunk.

    Attributes:
        source: the authority, one of COMMANDERS. The topic on which the chunk arrived sets it, not
            the chunk's content.
        actions: in ``tcp_delta`` x y z [m], or these and a rotation vector [rad] in the base frame;
            in ``joint_delta`` one angle [rad] per joint. If there is a gripper, one more number [m]
            opens it (positive) or closes it.
        frame: the frame of the displacements; empty for the base frame.
        joint_names: the joints that the actions move; empty for the robot's own order.
        all_arms: the actions of all arms of a station with several; ``actions`` are this arm's part
            of them.
        is_release: True if the operator lets go of a takeover; there are no actions.
    """

    source: str
    session: str
    seq: int
    policy_version: int
    observation_stamp_ns: int
    dt_s: float
    control_mode: str
    actions: tuple[tuple[float, ...], ...]
    execute: int = 1
    frame: str = ""
    joint_names: tuple[str, ...] = ()
    all_arms: tuple[tuple[float, ...], ...] = ()
    is_release: bool = False

    @property
    def dt_ns(self) -> int:
        return round(self.dt_s * NS)

    @property
    def valid_until_ns(self) -> int:
        """End of the chunk's last action; each is valid for two of its periods (S2)."""
        return self.observation_stamp_ns + (len(self.actions) + 1) * self.dt_ns


@dataclass(frozen=True, slots=True)
class EStop:
    """One source of the e-stop (S14): its last state, and its age, infinite without any."""

    name: str
    pressed: bool
    age_s: float


@dataclass(frozen=True, slots=True)
class ArmReport:
    """Another arm of the station (S27), and the reason why it could not move now, or ""."""

    name: str
    blocked: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that arrived since the last tick.

    Attributes:
        pose: the newest measured TCP pose; None if none ever came.
        frame: the frame of ``pose``; empty for the base frame.
        pose_age_ns: time since the measured state (the pose; in ``joint_delta`` the joints) was
            received.
        joints: the newest measured joint angles [rad], if the limits use joints.
        gripper: the newest measured gripper width [m], if there is a gripper.
        chunks: new chunks, in order of arrival.
        arm: True or False if someone requested to arm or disarm.
        end_episode: True if the environment reported the end of the episode.
        restart: True if the arm was put somewhere else without motion, like at a simulator's reset.
        reset_fault: the cause named in a request to clear a fault.
        recover: True if a person recovers the robot, which follows nothing because of its own
            fault, from its present place.
        estops: every source that the station declares.
        enable: True if the operator's enable was pressed when last heard.
        enable_age_s: time since the enable was last heard.
        enable_renewed: True if a held enable arrived since the last tick.
        wrench: the newest external force [N] and torque [Nm] at the tool, each as a norm.
        robot_fault: the robot's own fault, empty if it has none.
        distance: distance to the nearest obstacle [m] and its age [s], if the station declares such
            an input.
        silent: names of silent inputs that a limit in force needs (S22).
        foreign: command topics and e-stops with a publisher of somebody else (S23).
        doubled: other inputs with more than one publisher (S23).
        others: the station's other arms, each with its last report since the last tick; a silent
            one is in ``silent``.
        clock_stepped: True if this machine's clock has been set since arming, so that stamps have
            lost their meaning (S4).
        late_s: time beyond one tick since the last one (S24).
    """

    pose: Pose | None = None
    frame: str = ""
    pose_age_ns: int = 0
    joints: Numbers | None = None
    gripper: float | None = None
    chunks: tuple[Chunk, ...] = ()
    arm: bool | None = None
    end_episode: bool = False
    restart: bool = False
    reset_fault: str | None = None
    recover: bool = False
    estops: tuple[EStop, ...] = ()
    enable: bool = False
    enable_age_s: float = math.inf
    enable_renewed: bool = False
    wrench: tuple[float, float] | None = None
    robot_fault: str = ""
    distance: tuple[float, float] | None = None
    silent: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    others: tuple[ArmReport, ...] = ()
    clock_stepped: bool = False
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Applied:
    """One action's outcome; see rlinf_msgs/Applied."""

    source: str
    session: str
    seq: int
    index: int
    policy_version: int
    start_ns: int
    observation_stamp_ns: int
    requested: Numbers
    executed: Numbers
    limits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """An intervention or a change of mode, with its cause, time and command, if any (S20)."""

    kind: str  # mode | refused | dropped | limited | reseeded
    cause: str
    now_ns: int
    source: str = ""
    session: str = ""
    seq: int = -1
    requested: Numbers = ()


class Events:
    """The events of one tick; a call adds one.

    It holds no reference to the tick, so that no cycle is left to the garbage collector.
    """

    def __init__(self, now_ns: int) -> None:
        self.now = now_ns
        self.emitted: list[Event] = []

    def __call__(self, kind: str, cause: str, chunk: Chunk | None = None, index: int = 0) -> None:
        command: tuple = ()
        if chunk is not None:
            requested = tuple(chunk.actions[index]) if index < len(chunk.actions) else ()
            command = chunk.source, chunk.session, chunk.seq, requested
        self.emitted.append(Event(kind, cause, self.now, *command))


@dataclass(frozen=True, slots=True)
class Output:
    """Messages to publish in this tick.

    Attributes:
        target: the tool's target, in ``tcp_delta``; None only before the first measured state.
        joints: the joints' targets, in ``joint_delta``; empty before the first measured state.
        gripper: the gripper width to command [m], if there is a gripper.
        blocked: the reason why this arm could not move now, apart from the others; empty if it may,
            or if there are no others.
        suppress_setpoint: True if nothing is armed and the set-point is not at the arm. In real
            time the node then publishes no set-point. Otherwise an arm that is recovered or guided
            elsewhere would go there once its controller follows again.
    """

    target: Pose | None
    joints: Numbers
    gripper: float | None
    mode: Mode
    source: str
    cause: str
    applied: tuple[Applied, ...] = ()
    blocked: str = ""
    suppress_setpoint: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The action being played: its chunk, its index, and the set-point at its start."""

    chunk: Chunk
    index: int
    start: tuple[Numbers, ...]  # the set-point of each group
    limits: frozenset[str] = frozenset()
    done: bool = False
