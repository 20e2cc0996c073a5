"""Write an Episode as a sealed rosbag2 folder, which ``read_episode`` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf_core.episodes.checksums import seal
from rlinf_core.episodes.messages import (
    ENDED,
    FIRST,
    LAST,
    MID,
    NS,
    PACKAGE,
    STARTED,
    offered_qos,
    typestore,
)
from rlinf_core.episodes.storage import CheckedWriter
from rlinf_core.episodes.types import Episode

StampedMessage = tuple[str, int, Any]  # topic, time [ns], message


def write_episode(folder: Path, episode: Episode) -> Path:
    """Write an episode to a new folder.

    ``read_episode`` returns the same again, apart from the policy's draws.
    """
    store, connections = typestore(), dict[str, Any]()
    with CheckedWriter(folder) as bag:
        for name, at_ns, message in _messages(episode):
            topic, kind = f"/{episode.station}/{name}", message.__msgtype__
            if topic not in connections:
                connections[topic] = bag.add_topic(topic, kind, store, offered_qos(topic))
            bag.write(connections[topic], at_ns, bytes(store.serialize_cdr(message, kind)))
    seal(folder)
    return folder


def _messages(episode: Episode) -> Iterator[StampedMessage]:
    stamps = [int(stamp) for stamp in episode.stamps_ns]
    yield "episode", stamps[0], _event(episode, STARTED, stamps[0])
    for k, stamp in enumerate(stamps):
        yield "timestep", stamp, _step(episode, k)
        if k < len(episode):
            yield "applied", stamp, _applied(episode, k)
    yield "episode", stamps[-1], _event(episode, ENDED, stamps[-1])


def _applied(episode: Episode, k: int) -> Any:
    stamp = int(episode.stamps_ns[k])
    return _message(
        "Applied",
        stamp,
        source=episode.sources[k],
        session="",
        seq=k + 1,
        index=0,
        policy_version=episode.policy_version,
        observation_stamp=_stamp(stamp),
        requested=episode.requested[k],
        executed=episode.executed[k],
        limits=list(episode.limits[k]),
        limits_hash=episode.limits_hash,
    )


def _step(episode: Episode, k: int) -> Any:
    last = k == len(episode)
    stamp = int(episode.stamps_ns[k])
    types = typestore().types
    vectors, images = [], []
    for name, values in episode.observations.items():
        value = values[k]
        if value.ndim == 3:
            height, width, _ = value.shape
            images.append(
                types["sensor_msgs/msg/Image"](
                    _header(stamp, name), height, width, "rgb8", 0, 3 * width, value.ravel()
                )
            )
        else:
            vectors.append(types[f"{PACKAGE}/msg/NamedVector"](name, value.ravel()))
    return _message(
        "TimeStep",
        stamp,
        step_type=LAST if last else MID if k else FIRST,
        reward=float(episode.rewards[k - 1]) if k else 0.0,
        discount=float(episode.discounts[k - 1]) if k else 1.0,
        terminated=last and not episode.truncated,
        truncated=last and episode.truncated,
        success=last and episode.success,
        failure=last and episode.failure,
        episode_id=episode.id,
        step_index=k,
        mode=episode.mode,
        instruction=episode.instructions[k],
        vectors=vectors,
        images=images,
    )


def _event(episode: Episode, kind: int, stamp: int) -> Any:
    over = kind == ENDED
    return _message(
        "EpisodeEvent",
        stamp,
        kind=kind,
        episode_id=episode.id,
        station=episode.station,
        mode=episode.mode,
        seed=episode.seed,
        steps=len(episode) if over else 0,
        episode_return=float(episode.rewards.sum()) if over else 0.0,
        success=over and episode.success,
        failure=over and episode.failure,
        truncated=over and episode.truncated,
        policy_version=episode.policy_version,
        spec_hash=episode.spec_hash,
        detail="",
    )


def _message(name: str, stamp: int, **fields: Any) -> Any:
    return typestore().types[f"{PACKAGE}/msg/{name}"](header=_header(stamp), **fields)


def _header(stamp: int, frame: str = "") -> Any:
    return typestore().types["std_msgs/msg/Header"](_stamp(stamp), frame)


def _stamp(stamp: int) -> Any:
    return typestore().types["builtin_interfaces/msg/Time"](stamp // NS, stamp % NS)
