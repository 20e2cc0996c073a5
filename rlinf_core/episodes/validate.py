"""All checks that an episode must pass before anything learns from it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from rlinf_core.core.errors import EpisodeError, SpecError
from rlinf_core.episodes.types import Episode
from rlinf_core.specs.arrays import StationSpec, encode_instructions

MODES = ("demonstration", "train", "evaluate")
# a key of counters, such as the number of times it was learned from
STATION = re.compile("[A-Za-z][A-Za-z0-9_]{0,63}")
LARGEST = 1e6  # bound of any SI value or reward; sums of larger ones lose their meaning in learning


def check_episode(episode: Episode, spec: StationSpec, longest: int) -> None:
    """Raise EpisodeError with all faults of an episode.

    Args:
        episode: the episode as read.
        spec: specs of the stations that are trained for; an episode of several robots belongs to
            one.
        longest: number of transitions that the replay can hold.
    """
    member_spec = spec.member(episode.spec_hash) or spec
    faults = list(_episode_faults(episode, spec, longest)) or [
        *_observation_faults(episode, member_spec),
        *_instruction_faults(episode),
        *_action_faults(episode, member_spec),
        *_reward_faults(episode),
        *_chunk_faults(episode),
    ]
    if faults:
        raise EpisodeError(
            f"episode {episode.id}: {'; '.join(faults)}. It is not used for training"
        )


def _episode_faults(episode: Episode, spec: StationSpec, longest: int) -> Iterator[str]:
    if spec.member(episode.spec_hash) is None:
        yield (
            f"was recorded with specs {episode.spec_hash}, this trainer serves {spec.description}. "
            "Start station and trainer with the same recipe"
        )
    if episode.mode not in MODES:
        yield f"mode: expected one of {', '.join(MODES)}, got '{episode.mode}'"
    if not STATION.fullmatch(episode.station):
        yield (
            f"station: expected a name of at most 64 letters, digits and _, got "
            f"'{episode.station[:80]}'"
        )
    if not 1 <= len(episode) <= longest:
        yield f"expected 1 to {longest} transitions (replay.capacity), got {len(episode)}"


def _observation_faults(episode: Episode, spec: StationSpec) -> Iterator[str]:
    names = {item.name for item in spec.observation}
    if episode.observations.keys() != names:
        yield f"observations: expected {sorted(names)}, got {sorted(episode.observations)}"
        return
    for item in spec.observation:
        values = episode.observations[item.name]
        shape = (len(episode) + 1, *(item.shape if item.is_image else (item.size,)))
        if values.shape != shape or values.dtype != item.dtype:
            yield (
                f"'{item.name}': expected {item.dtype}{list(shape)}, got "
                f"{values.dtype}{list(values.shape)}"
            )
        elif not item.is_image:
            yield from _value_faults(f"'{item.name}'", values)
    if not (np.diff(episode.stamps_ns) > 0).all():
        yield "time steps: expected increasing stamps, got stamps out of order"


def _instruction_faults(episode: Episode) -> Iterator[str]:
    if len(episode.instructions) != len(episode) + 1:
        yield (
            f"instructions: expected {len(episode) + 1}, one of each observation, got "
            f"{len(episode.instructions)}"
        )
    try:
        encode_instructions(sorted(set(episode.instructions)))
    except SpecError as error:
        yield str(error)


def _action_faults(episode: Episode, spec: StationSpec) -> Iterator[str]:
    if not any(episode.sources):
        yield (
            "expected actions that the interlock applied, got none: the arm had no commander or "
            "was held all the time"
        )
        return
    for name, values in (("requested", episode.requested), ("executed", episode.executed)):
        if values.shape != (len(episode), spec.action.dim):
            yield (
                f"{name} actions: expected shape {(len(episode), spec.action.dim)}, got "
                f"{values.shape}"
            )
        else:
            yield from _value_faults(f"{name} actions", values)


def _reward_faults(episode: Episode) -> Iterator[str]:
    yield from _value_faults("rewards", episode.rewards)
    if episode.success + episode.failure + episode.truncated != 1:
        yield (
            f"expected one end of success, failure and time limit, got success={episode.success}, "
            f"failure={episode.failure}, truncated={episode.truncated}"
        )
    elif episode.truncated == (episode.discounts[-1] == 0.0):
        yield (
            f"discounts: expected {float(episode.truncated)} at its end, got "
            f"{episode.discounts[-1]}"
        )
    if not ((episode.discounts >= 0.0) & (episode.discounts <= 1.0)).all():
        yield "discounts: expected values from 0 to 1, got others"


def _chunk_faults(episode: Episode) -> Iterator[str]:
    chunks = episode.chunks
    if chunks is None:
        return
    yield from _value_faults("samples of the policy", chunks.drawn)
    if chunks.log_probs is not None:
        yield from _value_faults("log-probabilities", chunks.log_probs)
    others = set(chunks.versions.tolist()) - {episode.policy_version}
    if others:
        yield (
            f"chunks: expected chunks of the episode's policy, version {episode.policy_version}, "
            f"got {min(others)}"
        )


def _value_faults(name: str, values: np.ndarray) -> Iterator[str]:
    bad = ~(np.abs(values) <= LARGEST)  # so that NaN is bad too
    if bad.any():
        yield (
            f"{name}: expected finite values within {LARGEST:.0e}, got {values[bad].ravel()[0]} "
            f"({int(bad.sum())} of {values.size})"
        )
