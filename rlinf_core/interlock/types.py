"""What goes into the interlock's core each tick, what comes out, and what it remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

Vector = tuple[float, float, float]
Pose = tuple[float, float, float, float, float, float, float]  # x y z [m], quaternion x y z w, base frame

NS = 1_000_000_000


class Mode(IntEnum):
    """States of S13; the numbers are those of rlinf_msgs/SafetyState."""

    DISARMED = 0
    ARMED = 1
    ACTIVE = 2
    HOLD = 3
    FAULT = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """A plan of TCP displacements; see rlinf_msgs/ActionChunk. ``actions`` are (horizon, 3) in metres per action."""

    source: str
    session: str
    seq: int
    policy_version: int
    observation_stamp_ns: int
    dt_s: float
    control_mode: str
    actions: tuple[tuple[float, ...], ...]
    execute: int = 1

    @property
    def dt_ns(self) -> int:
        return round(self.dt_s * NS)


@dataclass(frozen=True, slots=True)
class EStop:
    """One source of the e-stop (S14): what it last said, and how long ago; never heard is infinitely long ago."""

    name: str
    pressed: bool
    age_s: float


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that arrived since the last tick.

    Attributes:
        pose: the newest measured TCP pose, or None if none ever came.
        pose_age_ns: how long ago it was received.
        chunks: new chunks, in order of arrival.
        arm: True or False when someone asked to arm or disarm.
        end_episode: the environment said that the episode is over.
        reset_fault: the cause named in a request to clear a fault.
        estops: every source that the station declares.
        enable: whether the operator's enable was pressed when last heard, and ``enable_age_s`` how long ago.
        wrench: the newest external force [N] and torque [Nm] at the tool, each as a norm.
        robot_fault: the robot's own fault, empty if it has none.
    """

    pose: Pose | None = None
    pose_age_ns: int = 0
    chunks: tuple[Chunk, ...] = ()
    arm: bool | None = None
    end_episode: bool = False
    reset_fault: str | None = None
    estops: tuple[EStop, ...] = ()
    enable: bool = False
    enable_age_s: float = math.inf
    wrench: tuple[float, float] | None = None
    robot_fault: str = ""


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
    requested: Vector
    executed: Vector
    limits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """An intervention or a change of mode: what, why, and when (S20)."""

    kind: str  # mode | refused | dropped | limited
    cause: str
    now_ns: int


@dataclass(frozen=True, slots=True)
class Output:
    """What to publish in this tick; ``target`` is None only before any state was ever measured."""

    target: Pose | None
    mode: Mode
    source: str
    cause: str
    applied: tuple[Applied, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """The action being played: which one, since when, and how far the set-point stood at its start."""

    chunk: Chunk
    index: int
    start: Vector
    limits: frozenset[str] = frozenset()
    done: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """The core's whole memory."""

    mode: Mode = Mode.DISARMED
    cause: str = ""
    command: Pose | None = None
    velocity: Vector = (0.0, 0.0, 0.0)
    chunk: Chunk | None = None          # the one that commands
    window: Window | None = None        # its action in play
    sessions: tuple[tuple[str, str, int], ...] = ()  # (source, session, last seq)
    refusals_ns: tuple[int, ...] = ()   # times of recent refusals
    contacts: tuple[int, int] = (0, 0)  # consecutive samples beyond the holding and the latching wrench
