"""The chunks of the policy that were played in a recorded episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes.messages import to_ns
from rlinf_core.episodes.types import PlayedChunks

MAX_DRAWN = 1 << 15  # numbers in one chunk; the interlock refuses a message of 128 KiB

Key = tuple[int, str]  # sequence number and session


def played_chunks(
    where: str, sent: list[Any], applied: list[Any], stamps: np.ndarray, sources: Sequence[str]
) -> PlayedChunks | None:
    """Return the played chunks, or None if no chunk records its draw.

    Args:
        where: the episode, for errors.
        sent: ``ActionChunk`` messages of the policy, of other episodes too.
        applied: ``Applied`` messages, likewise.
        stamps: (T + 1,) of the time steps [ns].
        sources: the commander of each of the T transitions.

    Raises:
        EpisodeError: a chunk's draw does not fit its sizes, or the chunks differ in size.
    """
    steps = {int(stamp): step for step, stamp in enumerate(stamps[:-1])}
    chunks = {
        (chunk.seq, chunk.session): chunk
        for chunk in sent
        if to_ns(chunk.observation_stamp) in steps
    }
    if not any(len(getattr(chunk, "drawn", ())) for chunk in chunks.values()):
        return None
    size, log_prob_size, execute = _sizes(where, list(chunks.values()))
    actions = _policy_actions(chunks, applied, stamps)
    played = []  # (first time step, number of actions, message) of each played chunk
    for key, chunk in chunks.items():
        start = end = steps[to_ns(chunk.observation_stamp)]
        while (
            end < min(start + execute, len(sources))
            and actions.get(end) == (*key, end - start)
            and sources[end] != "operator"
        ):
            end += 1
        if end > start:
            played.append((start, end - start, chunk))
    played.sort()  # no two begin together
    messages = [chunk for _, _, chunk in played]
    log_probs = None
    if log_prob_size:
        log_probs = np.array([chunk.log_probs[:execute] for chunk in messages], np.float32)
        log_probs = log_probs.reshape(len(messages), min(log_prob_size, execute))
    return PlayedChunks(
        starts=np.array([start for start, _, _ in played], int),
        lengths=np.array([length for _, length, _ in played], int),
        execute=execute,
        drawn=np.array([chunk.drawn for chunk in messages], np.float32).reshape(len(played), size),
        log_probs=log_probs,
        versions=np.array([chunk.policy_version for chunk in messages], np.int64),
    )


def applied_steps(stamps: np.ndarray, records: list[Any]) -> list[int]:
    """Return the time step of each applied action; -1 before the first one.

    In real time the two clocks drift apart by some milliseconds. An action that begins in the last
    quarter of a time step therefore belongs to the next one.
    """
    begins = np.array([to_ns(record.header.stamp) for record in records])
    from_then_on = np.append(stamps[:1], stamps[1:] - np.diff(stamps) // 4)
    return (np.searchsorted(from_then_on, begins, side="right") - 1).tolist()


def _policy_actions(
    chunks: dict[Key, Any], applied: list[Any], stamps: np.ndarray
) -> dict[int, tuple[int, str, int]]:
    """Return the policy's last action in each time step: its chunk and its index in the chunk.

    Until a new chunk arrives, the last one goes on within the same time step; the new one counts.
    If there are several arms, all must have played it.
    """
    by_arm: dict[str, dict[int, tuple[int, str, int]]] = {arm_of(record): {} for record in applied}
    records = [
        record
        for record in applied
        if record.source == "policy" and (record.seq, record.session) in chunks
    ]
    for step, record in zip(applied_steps(stamps, records), records, strict=True):
        actions = by_arm[arm_of(record)]
        action = (record.seq, record.session, record.index)
        actions[step] = max(actions.get(step, action), action)
    first, *others = by_arm.values() or [{}]
    return {
        step: action
        for step, action in first.items()
        if all(other.get(step) == action for other in others)
    }


def arm_of(record: Any) -> str:
    """Return the topic prefix of an ``Applied``; "" for all if the reader recorded none."""
    return getattr(record, "arm", "")


def _sizes(where: str, chunks: list[Any]) -> tuple[int, int, int]:
    """Return a chunk's numbers drawn, its log-probabilities, and its actions to be played."""
    for chunk in chunks:
        drawn = len(chunk.drawn)
        log_prob_size = len(chunk.log_probs)
        horizon = chunk.horizon
        wrong = ""
        if drawn not in (chunk.drawn_dim, horizon * chunk.drawn_dim) or not 0 < drawn <= MAX_DRAWN:
            wrong = (
                f"drawn: expected 1 or {horizon} rows of {chunk.drawn_dim}, at most "
                f"{MAX_DRAWN} numbers, got {drawn}"
            )
        elif log_prob_size not in (0, 1, horizon):
            wrong = f"log_probs: expected none, 1 or {horizon} (its horizon), got {log_prob_size}"
        elif not 1 <= chunk.execute <= horizon:
            wrong = f"execute: expected 1 to {horizon} (its horizon), got {chunk.execute}"
        if wrong:
            raise EpisodeError(
                f"{where}: chunk {chunk.seq} of the policy: {wrong}. It is not used for training"
            )
    sizes = {(len(chunk.drawn), len(chunk.log_probs), chunk.execute) for chunk in chunks}
    if len(sizes) > 1:
        raise EpisodeError(
            f"{where}: expected chunks of one size, got (drawn, log_probs, execute) "
            f"{sorted(sizes)}. It is not used for training"
        )
    return sizes.pop()
