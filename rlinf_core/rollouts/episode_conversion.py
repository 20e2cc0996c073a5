"""Convert a recorded episode to a trajectory, or to a rollout for on-policy algorithms.

Importing this module does not import torch, because processes that only check recordings need none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.types import Episode, PlayedChunks
from rlinf_core.episodes.validate import check_episode
from rlinf_core.policies.settings import FlowSettings, PolicySettings, PretrainedSettings
from rlinf_core.rollouts.types import TRAIN, Trajectory
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.algorithms.common.rollout import Rollout
    from rlinf_core.policies.base import Batch


def episode_to_rollout(episode: Episode, spec: StationSpec, config: PolicySettings) -> Rollout:
    """Return the policy's chunks of an episode as a rollout of one environment.

    The rollout is empty if the operator commanded all along. A chunk gets the rewards of the time
    steps in which it was executed. If another commander follows, or nobody, the chunk is truncated:
    its value is bootstrapped from the observation at that time, and later rewards do not count.

    Args:
        episode: recording that passed ``check_episode``.
        spec: spec of the station.
        config: settings of the policy: actions of a chunk, and executed actions.

    Raises:
        EpisodeError: the recording has no log-probabilities, or chunks of other sizes.
    """
    from rlinf_core.algorithms.common.rollout import Rollout

    chunks, log_probs = _checked_chunks(episode, spec, config)
    starts = chunks.starts
    lengths = chunks.lengths
    ends = starts + lengths  # the time step after each chunk
    execute = config.executed
    steps = starts[:, None] + np.arange(execute)
    rewards = np.where(
        np.arange(execute) < lengths[:, None],
        episode.rewards[np.minimum(steps, len(episode) - 1)],
        0.0,
    )
    # another commander, or nobody, follows the chunk
    done = ends != np.append(starts[1:], -1)[: len(starts)]
    terminated = (ends == len(episode)) & (episode.discounts[-1] == 0.0)
    if isinstance(config, FlowSettings):  # the path of a flow is one sample
        actions = chunks.drawn[:, None]
    else:
        drawn = chunks.drawn.reshape(len(chunks), config.horizon, spec.action.dim)
        actions = drawn[:, :execute]
    with_instruction = bool(config.sentence_features) or isinstance(config, PretrainedSettings)
    return Rollout(
        observations=_observations_at(episode, spec, starts, with_instruction),
        next_observations=_observations_at(episode, spec, ends, with_instruction),
        actions=_with_env_axis(actions),
        log_probs=_with_env_axis(log_probs),
        step_rewards=_with_env_axis(rewards),
        steps=_with_env_axis(lengths),
        terminated=_with_env_axis(terminated),
        done=_with_env_axis(done),
        mask=_with_env_axis(np.ones(len(chunks))),
        versions=_with_env_axis(chunks.versions),
    )


def _checked_chunks(
    episode: Episode, spec: StationSpec, config: PolicySettings
) -> tuple[PlayedChunks, np.ndarray]:
    """Return the episode's chunks and their log-probabilities.

    Raises EpisodeError if they do not fit.
    """
    chunks = episode.chunks
    if chunks is None or chunks.log_probs is None:
        raise EpisodeError(
            f"episode {episode.id}: expected log-probabilities of the sampled actions, got none. "
            "Stations record them for a policy with a density (policy.kind) that explores (mode "
            "train)"
        )
    size = chunks.drawn.shape[1]
    expected_size = config.horizon * spec.action.dim
    if isinstance(config, FlowSettings):  # a path of points; the network may pad each action
        points = config.horizon * (config.flow_steps + 1)
        is_padded = size >= points * spec.action.dim and size % points == 0
        expected_size = size if is_padded else points * spec.action.dim
    sizes, expected = (size, chunks.log_probs.shape[1]), (expected_size, config.executed)
    if sizes != expected:
        raise EpisodeError(
            f"episode {episode.id}: expected chunks of {expected[0]} samples and {expected[1]} "
            f"log-probabilities (policy.horizon {config.horizon}, policy.n_action_steps "
            f"{config.executed}), got {sizes[0]} and {sizes[1]}. Start station and trainer with "
            "the same recipe"
        )
    return chunks, chunks.log_probs


def _observations_at(
    episode: Episode, spec: StationSpec, steps: np.ndarray, with_instruction: bool
) -> Batch:
    """Return the observations at ``steps``, (T, 1, ...), optionally with the instruction."""
    import torch

    from rlinf_core.policies.base import Observation

    vectors = np.concatenate(
        [episode.observations[item.name][steps] for item in spec.vectors], axis=1
    )
    images = {image.name: episode.observations[image.name][steps] for image in spec.images}
    batch = Observation.from_arrays(spec, {"vectors": vectors} | images).batch
    if with_instruction:
        batch[arrays.INSTRUCTION] = torch.from_numpy(
            arrays.encode_instructions(episode.instructions)[steps]
        )
    return {name: values.unsqueeze(1) for name, values in batch.items()}


def _with_env_axis(values: np.ndarray) -> Tensor:
    """Add the dimension of one environment: (T, 1, ...)."""
    import torch

    return torch.from_numpy(np.asarray(values, np.float32)).unsqueeze(1)


def read_checked_episode(
    folder: Path, spec: StationSpec, max_transitions: int, sender: str
) -> Episode:
    """Read and check the episode in ``folder``.

    Raises:
        EpisodeError: it is invalid, longer than ``max_transitions``, or not of
            ``sender``.
    """
    episode = read_episode(folder, sealed=True)
    check_episode(episode, spec, max_transitions)
    if sender and sender != episode.station:
        raise EpisodeError(
            f"episode {folder.name}: station: expected '{sender}', the name of its sender, got a "
            f"recording of '{episode.station}'. It is not used for training. Does its "
            "recorder have another station.name than its uplink?"
        )
    if episode.id != folder.name:
        raise EpisodeError(
            f"episode {folder.name}: expected a recording of that id, got one of {episode.id}. It "
            "is not used for training"
        )
    return episode


def episode_to_trajectory(
    episode: Episode,
    spec: StationSpec,
    use_executed: bool = False,
    rollouts_of: PolicySettings | None = None,
) -> Trajectory:
    """Return a recorded episode as a trajectory. The arguments are those of ``Intake``."""
    member_spec = spec.member(episode.spec_hash) or spec
    names = [item.name for item in member_spec.vectors]
    observations = {
        "vectors": np.concatenate([episode.observations[name] for name in names], axis=1).astype(
            np.float32
        )
    }
    observations |= {image.name: episode.observations[image.name] for image in member_spec.images}
    observations[arrays.INSTRUCTION] = arrays.encode_instructions(episode.instructions)
    si = episode.executed if use_executed else episode.requested
    actions = np.clip(member_spec.action.from_si(si), -1.0, 1.0)
    observations["vectors"], actions = spec.with_others(
        member_spec, observations["vectors"], actions
    )
    chunks = episode.chunks
    length = len(episode)
    rollout = None
    if rollouts_of and episode.mode == TRAIN and "policy" in episode.sources:
        rollout = episode_to_rollout(episode, spec, rollouts_of)
    return Trajectory(
        observations,
        actions,
        episode.rewards,
        episode.discounts,
        episode.success,
        episode.mode,
        episode.sources,
        episode.policy_version,
        chunks.chunk_starts(length) if chunks else None,
        chunks.latents(length) if chunks else None,
        rollout if rollout and len(rollout.mask) else None,
        episode.id,
        episode.station,
        interlock_intervention_rate(episode),
    )


def interlock_intervention_rate(episode: Episode) -> float:
    """Return the share of time steps in which the interlock intervened; see ``Trajectory``."""
    steps = [
        bool(limits) or not source
        for source, limits in zip(episode.sources, episode.limits, strict=True)
        if source != "operator"
    ]
    return sum(steps) / max(len(steps), 1)
