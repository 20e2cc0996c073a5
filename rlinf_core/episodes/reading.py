"""From a recorded rosbag2 folder to an Episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.episodes.messages import store_for
from rlinf_core.episodes.types import Episode
from rlinf_core.errors import EpisodeError

NS = 1_000_000_000
LAST = 2
ENDED = 1


def read_episode(folder: str | Path) -> Episode:
    """Read one closed episode; EpisodeError names the folder, what is wrong with it and what to do."""
    messages = _read(Path(folder))
    ended = [event for event in messages.get("episode", []) if event.kind == ENDED]
    steps = sorted((step for step in messages.get("timestep", []) if ended and step.episode_id == ended[-1].episode_id),
                   key=lambda step: step.step_index)
    if not steps or steps[-1].step_type != LAST or not ended:
        raise EpisodeError(f"episode {folder}: expected time steps up to a LAST one and an ENDED event, got "
                           f"{len(steps)} steps and {len(ended)} ENDED events. It was not finished; it is not trained on")
    if [step.step_index for step in steps] != list(range(len(steps))) or len(steps) < 2:
        raise EpisodeError(f"episode {folder}: expected steps 0..{len(steps) - 1} without gaps, got "
                           f"{[step.step_index for step in steps]}. Messages were lost while recording")
    return _assemble(steps, messages.get("applied", []), ended[-1])


def _read(folder: Path) -> dict[str, list[Any]]:
    from rosbags.rosbag2 import Reader

    try:
        with Reader(folder) as reader:
            store = store_for(tuple(sorted({(c.msgtype, c.msgdef.data) for c in reader.connections})))
            messages: dict[str, list[Any]] = {}
            for connection, _, raw in reader.messages():
                topic = connection.topic.rsplit("/", 1)[-1]
                if topic in ("timestep", "applied", "episode"):
                    messages.setdefault(topic, []).append(store.deserialize_cdr(raw, connection.msgtype))
            return messages
    except Exception as error:  # the reader raises many kinds for damaged files; the user needs one
        raise EpisodeError(f"episode {folder}: expected a whole rosbag2 recording, got: {type(error).__name__}: {error}. "
                           "Leave it out of training, or repair it with `mcap recover`") from error


def _assemble(steps: list[Any], applied: list[Any], ended: Any) -> Episode:
    stamps = np.array([_ns(step.header.stamp) for step in steps])
    dim = len(applied[0].requested) if applied else 0
    count = len(steps) - 1
    requested, executed = np.zeros((count, dim)), np.zeros((count, dim))
    sources, limits = [""] * count, [()] * count
    for record in sorted(applied, key=lambda r: (_ns(r.header.stamp), r.seq, r.index)):
        k = int(np.searchsorted(stamps, _ns(record.header.stamp), side="right")) - 1
        if not 0 <= k < count:
            continue
        requested[k] = record.requested
        executed[k] += record.executed
        sources[k] = "operator" if "operator" in (sources[k], record.source) else record.source
        limits[k] = tuple(sorted({*limits[k], *record.limits}))
    return Episode(
        id=ended.episode_id, station=ended.station, mode=ended.mode, seed=ended.seed, success=bool(ended.success),
        policy_version=ended.policy_version, spec_hash=ended.spec_hash,
        limits_hash=applied[0].limits_hash if applied else "", instruction=steps[0].instruction,
        observations=_observations(steps), requested=requested, executed=executed, sources=tuple(sources),
        limits=tuple(limits), rewards=np.array([s.reward for s in steps[1:]], np.float32),
        discounts=np.array([s.discount for s in steps[1:]], np.float32), stamps_ns=stamps)


def _observations(steps: list[Any]) -> dict[str, np.ndarray]:
    vectors = {vector.name: np.stack([step.vectors[i].data for step in steps])
               for i, vector in enumerate(steps[0].vectors)}
    images = {image.header.frame_id: np.stack([_pixels(step.images[i]) for step in steps])
              for i, image in enumerate(steps[0].images)}
    return vectors | images


def _pixels(image: Any) -> np.ndarray:
    return np.asarray(image.data, np.uint8).reshape(image.height, image.width, 3)


def _ns(stamp: Any) -> int:
    return stamp.sec * NS + stamp.nanosec
