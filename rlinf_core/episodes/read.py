"""Read a recorded rosbag2 folder as an Episode.

``validate`` has a trainer's further checks of an episode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import EpisodeError, is_transient
from rlinf_core.episodes.checksums import SUMS, verify
from rlinf_core.episodes.messages import ENDED, LAST, PACKAGE, to_ns
from rlinf_core.episodes.played_chunks import applied_steps, arm_of, played_chunks
from rlinf_core.episodes.raw_messages import RawMessage, decode, read_any_messages
from rlinf_core.episodes.types import Episode

TYPES = {
    "timestep": f"{PACKAGE}/msg/TimeStep",
    "applied": f"{PACKAGE}/msg/Applied",
    "episode": f"{PACKAGE}/msg/EpisodeEvent",
    "policy/action": f"{PACKAGE}/msg/ActionChunk",
}
MAX_MESSAGES = 200_000
# Messages differ in their first bytes, which hold stamps and numbers; this many may share them.
LEADING_BYTES, MAX_ALIKE = 512, 4
MAX_DEFINITIONS = 1 << 16  # characters
# name between the station's and the topic's, if there are several arms
ARM = re.compile("[A-Za-z][A-Za-z0-9_]*")

Messages = dict[str, list[Any]]


def read_episode(folder: str | Path, sealed: bool = False) -> Episode:
    """Read one closed episode.

    Args:
        folder: the recording. A seal (``checksums``), if present, is compared with it.
        sealed: True for an episode from a spool or an inbox. A recording without a seal is then
            refused, and only the format of our recorders is read.

    Raises:
        EpisodeError: the recording is damaged or invalid. The message names the folder, the fault
            and the remedy.
        OSError, MemoryError: the machine lacks something now.

    Example:
        >>> episode = read_episode("tests/previous_version/station_a-1")
        >>> len(episode), episode.success
        (5, True)
    """
    folder = Path(folder)
    try:
        if sealed or (folder / SUMS).exists():
            verify(folder)
        messages = _decode(read_any_messages(folder, sealed))
        ended, steps = _ended_episode(folder, messages)
        return _assemble(folder, ended, steps, messages)
    except EpisodeError as error:
        if str(folder) in str(error):
            raise
        raise EpisodeError(f"episode {folder}: {error}") from error
    except Exception as error:  # the readers raise many kinds for damaged files; the user needs one
        if is_transient(error):
            raise
        raise EpisodeError(
            f"episode {folder}: expected an intact rosbag2 recording, got: {type(error).__name__}: "
            f"{error}. Leave it out of training, or keep its intact part with `rlinf data repair`"
        ) from error


def _decode(raw_messages: Iterable[RawMessage]) -> Messages:
    """Decode the topics of an episode, each message once."""
    messages: Messages = {topic: [] for topic in TYPES}
    # by topic and first bytes, because hashing a whole image takes long
    alike_messages: dict[tuple[str, bytes], list[bytes]] = {}
    stations: set[str] = set()
    appliers: set[str] = set()  # the station, or its arms
    for raw in raw_messages:
        topic = next((topic for topic in TYPES if raw.topic.endswith(f"/{topic}")), None)
        if not topic:
            continue
        sender = raw.topic.removesuffix(f"/{topic}")
        (appliers if topic == "applied" else stations).add(sender)
        if raw.kind != TYPES[topic] or len(raw.definition) > MAX_DEFINITIONS or len(stations) > 1:
            raise ValueError(
                f"'{raw.topic}' of type {raw.kind}, not '{min(stations or appliers)}/{topic}' of "
                f"{TYPES[topic]}"
            )
        # costs no memory: a message's arrays are views of it
        alike = alike_messages.setdefault((raw.topic, bytes(raw.data[:LEADING_BYTES])), [])
        if raw.data not in alike:
            alike.append(raw.data)
            message = decode(raw)
            message.arm = sender
            messages[topic].append(message)
        if len(messages[topic]) > MAX_MESSAGES or len(alike) > MAX_ALIKE:
            raise ValueError(
                f"more than {MAX_MESSAGES} messages on '{raw.topic}', or {MAX_ALIKE} that begin "
                "alike"
            )
    _check_arms(stations, appliers)
    return messages


def _check_arms(stations: set[str], appliers: set[str]) -> None:
    """Check that the station's one interlock, or those of its arms, applied the actions."""
    station = min(stations, default=None)
    strange = [
        name
        for name in appliers - stations
        if station is not None
        and not (name.startswith(f"{station}/") and ARM.fullmatch(name[len(station) + 1 :]))
    ]
    if strange or (appliers & stations and len(appliers) > 1):
        raise ValueError(
            f"'{max(appliers)}/applied' and '{station}/timestep': expected topics of one station "
            "and its arms"
        )


def _ended_episode(folder: Path, messages: Messages) -> tuple[Any, list[Any]]:
    """Return the last ENDED event and the time steps of its episode, in order.

    Raises:
        EpisodeError: the episode is unfinished, or messages are missing.
    """
    ended_events = [event for event in messages["episode"] if event.kind == ENDED]
    ended = ended_events[-1] if ended_events else None
    steps = [step for step in messages["timestep"] if ended and step.episode_id == ended.episode_id]
    steps.sort(key=lambda step: step.step_index)
    if ended is None or not steps or steps[-1].step_type != LAST:
        raise EpisodeError(
            f"episode {folder}: expected time steps up to a LAST one and an ENDED event, got "
            f"{len(steps)} steps and {len(ended_events)} ENDED events. It is unfinished and is not "
            "used for training"
        )
    numbers = [step.step_index for step in steps]
    if numbers != list(range(len(steps))) or len(steps) != ended.steps + 1 or len(steps) < 2:
        raise EpisodeError(
            f"episode {folder}: expected steps 0..{ended.steps} without gaps, got "
            f"{_short(numbers)}. Messages were lost while recording"
        )
    return ended, steps


def _assemble(folder: Path, ended: Any, steps: list[Any], messages: Messages) -> Episode:
    """Return the episode of an ENDED event and its time steps."""
    applied = messages["applied"]
    stamps = np.array([to_ns(step.header.stamp) for step in steps])
    actions = _applied_actions(folder, applied, stamps)
    first_by_arm = {arm_of(record): record for record in reversed(applied)}
    arms = sorted(first_by_arm)
    return Episode(
        id=ended.episode_id,
        station=ended.station,
        mode=ended.mode,
        seed=ended.seed,
        success=bool(ended.success),
        # older recordings only had success and time limits
        failure=bool(getattr(ended, "failure", False)),
        truncated=bool(getattr(ended, "truncated", not ended.success)),
        policy_version=ended.policy_version,
        spec_hash=ended.spec_hash,
        limits_hash="+".join(first_by_arm[arm].limits_hash for arm in arms),
        instructions=tuple([step.instruction for step in steps]),
        observations=_observations(steps),
        requested=actions.requested,
        executed=actions.executed,
        sources=tuple(actions.sources),
        limits=tuple(actions.limits),
        rewards=np.array([step.reward for step in steps[1:]], np.float32),
        discounts=np.array([step.discount for step in steps[1:]], np.float32),
        stamps_ns=stamps,
        chunks=played_chunks(
            f"episode {folder}", messages["policy/action"], applied, stamps, actions.sources
        ),
        arms=tuple(arm.rpartition("/")[2] for arm in arms) if len(arms) > 1 else (),
    )


@dataclass
class AppliedActions:
    """The actions of an episode as the interlock applied them.

    Attributes:
        requested, executed: (T, A) SI units.
        sources: commander of each of the T transitions; "" without one.
        limits: names of the limits active in each transition.
    """

    requested: np.ndarray
    executed: np.ndarray
    sources: list[str]
    limits: list[tuple[str, ...]]


def _applied_actions(folder: Path, applied: list[Any], stamps: np.ndarray) -> AppliedActions:
    """Return the actions of each transition from the interlock's ``Applied`` messages.

    Within a time step the last request counts, an operator's before a policy's. Motion adds up.
    """
    sizes = {len(values) for record in applied for values in (record.requested, record.executed)}
    if len(sizes) > 1:
        raise EpisodeError(
            f"episode {folder}: expected actions of one size, got {sorted(sizes)}. It is not used "
            "for training"
        )
    count = len(stamps) - 1
    shape = (count, len(applied[0].requested) if applied else 0)
    actions = AppliedActions(np.zeros(shape), np.zeros(shape), [""] * count, [()] * count)
    # the last record of a time step wins: an operator's, then the newest chunk's
    records = sorted(
        applied, key=lambda record: (record.source == "operator", record.seq, record.index)
    )
    for step, record in zip(applied_steps(stamps, records), records, strict=True):
        if not 0 <= step < count:
            continue
        actions.requested[step] = record.requested
        actions.executed[step] += record.executed
        if actions.sources[step] != "operator":
            actions.sources[step] = record.source
        actions.limits[step] = tuple(sorted({*actions.limits[step], *record.limits}))
    return actions


def _observations(steps: list[Any]) -> dict[str, np.ndarray]:
    """Return the observations (T + 1, ...) by name; every time step must have the same ones."""
    by_step = [
        {vector.name: vector.data for vector in step.vectors}
        | {image.header.frame_id: _pixels(image) for image in step.images}
        for step in steps
    ]
    first = by_step[0]
    has_double_name = len(first) < len(steps[0].vectors) + len(steps[0].images)
    if has_double_name or any(observation.keys() != first.keys() for observation in by_step):
        raise ValueError("the time steps do not all have the same observations")
    return {name: np.stack([observation[name] for observation in by_step]) for name in first}


def _pixels(image: Any) -> np.ndarray:
    if image.encoding != "rgb8":
        raise ValueError(f"image '{image.header.frame_id}' is {image.encoding}, not rgb8")
    return np.asarray(image.data, np.uint8).reshape(image.height, image.width, 3)


def _short(numbers: list[int]) -> str:
    return (
        str(numbers)
        if len(numbers) <= 20
        else f"{len(numbers)} of them, {numbers[0]} to {numbers[-1]}"
    )
