"""Actions of a recorded episode as they were sent, and the arm at its first time step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes.messages import to_ns
from rlinf_core.episodes.raw_messages import decode, read_messages
from rlinf_core.episodes.read import read_episode
from rlinf_core.episodes.types import Episode

# topics of chunks; the later one wins, because an operator commands before a policy
CHUNKS = ("policy/action", "teleop/action")
STATE = ("current_pose", "joint_states")
OPERATOR = "operator"


@dataclass(frozen=True)
class SentChunk:
    """A chunk as it was sent in answer to a time step.

    Attributes:
        data: its actions one after another, SI units; none where a person let go.
        horizon: number of actions.
        execute: number of actions that are meant to be played.
    """

    data: tuple[float, ...]
    horizon: int
    execute: int


@dataclass(frozen=True)
class RecordedActions:
    """The actions that a replay sends.

    Attributes:
        episode: the recording.
        chunks: chunks by the time step that each answers, without those that moved no arm.
        pose: (7,) position [m] and quaternion of the tool at the first time step; empty if it is
            not recorded.
        joints: angles [rad] by name at the first time step.
    """

    episode: Episode
    chunks: Mapping[int, SentChunk]
    pose: tuple[float, ...]
    joints: Mapping[str, float]


def read_actions(folder: str | Path) -> RecordedActions:
    """Read the actions of a sealed episode of one arm.

    Raises:
        EpisodeError: it is no such episode, or nobody moved the arm in it.
    """
    folder = Path(folder)
    episode = read_episode(folder)
    if episode.arms:
        raise EpisodeError(
            f"episode {folder}: expected a recording of one arm, got {', '.join(episode.arms)}"
        )
    messages: dict[str, list[Any]] = {name: [] for name in (*CHUNKS, *STATE, "applied")}
    for raw in read_messages(folder):
        name = next((name for name in messages if raw.topic.endswith(f"/{name}")), None)
        if name and (name not in STATE or len(messages[name]) < len(episode)):
            messages[name].append(decode(raw))
    steps = {int(stamp): step for step, stamp in enumerate(episode.stamps_ns)}
    applied = {(record.source, record.session, record.seq) for record in messages["applied"]}
    chunks = {}
    for name in CHUNKS:
        for chunk in messages[name]:
            step = steps.get(to_ns(chunk.observation_stamp))
            released = chunk.source == OPERATOR and not chunk.horizon
            if step is not None and (
                released or (chunk.source, chunk.session, chunk.seq) in applied
            ):
                chunks[step] = SentChunk(
                    tuple(map(float, chunk.data)), chunk.horizon, chunk.execute
                )
    if not any(chunk.horizon for chunk in chunks.values()):
        raise EpisodeError(
            f"episode {folder}: expected actions that moved the arm, got none. Name another "
            f"recording"
        )
    begin = int(episode.stamps_ns[0])
    pose, joints = (_nearest(messages[name], begin) for name in STATE)
    return RecordedActions(
        episode,
        chunks,
        _pose_values(pose.pose) if pose else (),
        dict(zip(joints.name, map(float, joints.position), strict=False)) if joints else {},
    )


def _nearest(messages: list[Any], at_ns: int) -> Any:
    return min(messages, key=lambda message: abs(to_ns(message.header.stamp) - at_ns), default=None)


def _pose_values(pose: Any) -> tuple[float, ...]:
    p, q = pose.position, pose.orientation
    return p.x, p.y, p.z, q.x, q.y, q.z, q.w


def motion_difference(before: Episode, after: Episode) -> float:
    """Return the largest difference between two episodes, of executed actions and observed vectors.

    Infinite if their time steps differ.
    """
    names = [name for name, values in before.observations.items() if values.dtype.kind == "f"]
    pairs = [
        (before.executed, after.executed),
        *((before.observations[name], after.observations.get(name)) for name in names),
    ]
    if any(second is None or first.shape != second.shape for first, second in pairs):
        return np.inf
    return max(float(np.abs(first - second).max(initial=0.0)) for first, second in pairs)
