"""Checks before any motion that a policy fits a data set and a station.

They cover statistics, actions, rate, cameras and the first chunk. Each fault makes a checkpoint
score nothing without an error (openpi issue 1025, LeRobot issues 3954 and 4206).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from rlinf_core.core.errors import RlinfError, escape_ascii
from rlinf_core.data.episodes import intact_episodes
from rlinf_core.policies.base import NetworkPolicy, Observation
from rlinf_core.policies.normalization import BOUND
from rlinf_core.policies.pretrained.dataset_statistics import FixedNormalisation
from rlinf_core.policies.pretrained.flow_matching import FlowMatching
from rlinf_core.policies.pretrained.huggingface import read_json
from rlinf_core.policies.pretrained.visuomotor import Visuomotor
from rlinf_core.specs.arrays import FAR, StationSpec, other_units

# episodes that are read
MAX_EPISODES = 20
# chunks that are timed
TIMED_CHUNKS = 5
# share of a data set's numbers that may lie outside the statistics
MAX_OUTSIDE_SHARE = 0.05
# smallest spread in the network's range, and smallest share of the largest step; less means that
# the numbers are in other units
MIN_SPREAD = 0.02
MIN_STEP_SHARE = 0.01
# correlation with a state above which an action counts as a position
POSITION_CORRELATION = 0.98
# share of the tokens that an instruction may fill
MAX_TOKEN_SHARE = 0.9


@dataclass(frozen=True)
class CheckResult:
    """One check: its subject, whether it passed, and its finding."""

    name: str
    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAULT':5} {self.name}: {self.text}"


@dataclass
class Samples:
    """A part of a data set.

    Attributes:
        hz: its time steps per second.
        states, actions: (N, V) and (N, A), in its units and its order.
        first: the first observation of each episode, by name.
        chunk: the actions of the first episode (T, A).
        cameras: shape of each camera's pictures (H, W, 3), in its order.
        sentences: its instructions.
    """

    hz: float
    states: np.ndarray
    actions: np.ndarray
    first: list[dict[str, np.ndarray]]
    chunk: np.ndarray
    cameras: dict[str, tuple[int, ...]]
    sentences: list[str] = field(default_factory=list)


def check_policy(
    load: Callable[[], NetworkPolicy], spec: StationSpec, samples: Samples, folder: Path
) -> Iterator[CheckResult]:
    """Yield the result of each check; none follows ``loads`` if the policy cannot be made.

    Args:
        load: makes the policy.
        spec: specs of the station.
        samples: a part of the policy's training data, or of another data set.
        folder: folder of the checkpoint.
    """
    yield _check_rate(spec, samples)
    yield _check_cameras(spec, samples)
    yield _check_camera_order(spec, folder)
    yield _check_sizes(spec, samples)
    try:
        policy = load()
    except RlinfError as error:
        yield CheckResult("loads", False, str(error))
        return
    yield CheckResult(
        "loads",
        True,
        f"{policy.config.kind}, chunks of {policy.config.horizon}, {policy.config.executed} "
        "actions of each are executed",
    )
    if samples.actions.shape[1:] != (spec.action.dim,) or samples.states.shape[1:] != (
        spec.vector_size,
    ):
        return
    yield _check_finite(samples)
    yield _check_state_statistics(policy, samples)
    yield _check_action_statistics(policy, samples)
    yield _check_delta_actions(spec, samples)
    yield _check_horizon(policy, samples)
    yield _check_prompt(policy, samples)
    if any(image.shape != samples.cameras.get(image.name) for image in spec.images) or (
        policy.needs_instruction and not (samples.sentences or [spec.instruction])[0].strip()
    ):
        return
    chunks, took_s = _time_chunks(policy, spec, samples)
    yield _check_first_command(spec, chunks, samples)
    yield _check_latency(policy, spec, took_s)
    yield _compare_with_recorded(spec, chunks, samples)


def read_samples(folder: Path, spec: StationSpec) -> Samples:
    """Read samples from recordings in a spool or a run.

    Raises:
        EpisodeError: no episode is intact.
    """
    states = []
    actions = []
    first = []
    sentences = set[str]()
    chunk = np.zeros((0, spec.action.dim))
    hz = spec.control_hz
    for number, (_, episode) in enumerate(intact_episodes([folder])):
        if number >= MAX_EPISODES:
            break
        vectors = [
            np.asarray(episode.observations[item.name], np.float64).reshape(len(episode) + 1, -1)
            for item in spec.vectors
            if item.name in episode.observations
        ]
        states.append(
            np.concatenate(vectors, axis=1)[:-1] if vectors else np.zeros((len(episode), 0))
        )
        actions.append(np.asarray(episode.requested, np.float64))
        first.append({name: values[0] for name, values in episode.observations.items()})
        sentences.update(episode.instructions)
        if not number:
            chunk, hz = actions[0], 1e9 / float(np.median(np.diff(episode.stamps_ns)))
    pictures = {name: tuple(value.shape) for name, value in first[0].items() if value.ndim == 3}
    return Samples(
        hz,
        np.concatenate(states),
        np.concatenate(actions),
        first,
        chunk,
        pictures,
        sorted(sentences),
    )


def _check_rate(spec: StationSpec, samples: Samples) -> CheckResult:
    passed = abs(samples.hz - spec.control_hz) <= 0.1 * spec.control_hz
    return CheckResult(
        "rate",
        passed,
        f"expected {spec.control_hz:g} time steps per second (the station's), got data with "
        f"{samples.hz:.3g}",
    )


def _check_cameras(spec: StationSpec, samples: Samples) -> CheckResult:
    def size(shape: Sequence[int] | None) -> str:
        return "none" if shape is None else "x".join(map(str, shape[:2]))

    wrong = [
        f"{image.name} of {size(image.shape)}, got {size(samples.cameras.get(image.name))}"
        for image in spec.images
        if samples.cameras.get(image.name) != image.shape
    ]
    names = ", ".join(samples.cameras) or "none"
    return CheckResult(
        "cameras",
        not wrong,
        f"expected {'; '.join(wrong)} (the data has {names})" if wrong else names,
    )


def _check_camera_order(spec: StationSpec, folder: Path) -> CheckResult:
    """Compare the camera order with LeRobot's input_features, the order of the network's images."""
    try:
        features = read_json(folder / "config.json").get("input_features") or {}
    except RlinfError:
        features = {}
    policy_names = [
        name.rpartition(".")[2] for name in features if name.startswith("observation.image")
    ]
    policy_names = [name for name in policy_names if not name.startswith("empty_camera")]
    station_names = [image.name for image in spec.images]
    if not policy_names:
        return CheckResult("camera order", True, "the checkpoint names no cameras")
    if len(policy_names) != len(station_names):
        return CheckResult(
            "camera order",
            False,
            f"expected {len(policy_names)} cameras of the checkpoint's training "
            f"({', '.join(map(escape_ascii, policy_names))}), got "
            f"{', '.join(station_names) or 'none'} (station.observe_cameras)",
        )
    if sorted(policy_names) == sorted(station_names) and policy_names != station_names:
        return CheckResult(
            "camera order",
            False,
            f"expected {', '.join(policy_names)}, the checkpoint's order, got "
            f"{', '.join(station_names)} (station.observe_cameras)",
        )
    return CheckResult(
        "camera order",
        True,
        ", ".join(
            f"{camera} as {escape_ascii(name)}"
            for camera, name in zip(station_names, policy_names, strict=True)
        ),
    )


def _check_sizes(spec: StationSpec, samples: Samples) -> CheckResult:
    actual = (samples.states.shape[1], samples.actions.shape[1])
    expected = (spec.vector_size, spec.action.dim)
    return CheckResult(
        "sizes",
        actual == expected,
        f"expected {expected[0]} numbers of state and {expected[1]} of an action (the station's), "
        f"got data with {actual[0]} and {actual[1]}",
    )


def _check_finite(samples: Samples) -> CheckResult:
    wrong = [
        name
        for name, values in (("state", samples.states), ("action", samples.actions))
        if not np.isfinite(values).all()
    ]
    return CheckResult(
        "finite data",
        not wrong,
        f"NaN or Inf in {' and '.join(wrong)}" if wrong else f"{len(samples.actions)} time steps",
    )


def _check_state_statistics(policy: NetworkPolicy, samples: Samples) -> CheckResult:
    """Check the distance of the data's states from a checkpoint's own statistics."""
    normalisation = getattr(policy, "normalisation", None)
    if not isinstance(policy, FlowMatching | Visuomotor) or not isinstance(
        normalisation, FixedNormalisation
    ):
        return CheckResult("state statistics", True, "learned from the data")
    states = torch.from_numpy(samples.states.astype(np.float32))
    numbers = normalisation.normalize(states).numpy(force=True) / policy.state_divisor
    names = [f"{item.name}.{index}" for item in policy.spec.vectors for index in range(item.size)]
    room = BOUND if policy.state_divisor == 1.0 else 1.5
    return _check_range("state statistics", numbers, names, room, samples.states.std(axis=0))


def _check_action_statistics(policy: NetworkPolicy, samples: Samples) -> CheckResult:
    """Check that the data's actions are in the network's range and in the station's steps."""
    action = policy.spec.action
    if wrong := other_units(action, samples.actions.min(axis=0), samples.actions.max(axis=0)):
        return CheckResult(
            "action statistics",
            False,
            f"{wrong} {FAR:g} largest steps: the data set looks like that of a faster arm",
        )
    largest = np.abs(samples.actions) / np.asarray(action.scale)
    if largest.max() < MIN_STEP_SHARE:
        return CheckResult(
            "action statistics",
            False,
            f"expected steps of up to {action.scale[0]:g} {action.units[0]}, got none "
            f"beyond {np.abs(samples.actions).max():.2g}. Are they in other units?",
        )
    if not isinstance(policy, FlowMatching | Visuomotor) or not policy.config.statistics:
        return CheckResult(
            "action statistics",
            True,
            "the actions are in the task's units, in [-1, 1] of its largest steps",
        )
    scaled = torch.from_numpy((samples.actions / np.asarray(action.scale)).astype(np.float32))
    numbers = policy.units.to_network(scaled).numpy(force=True)
    return _check_range(
        "action statistics", numbers, list(action.names), BOUND, samples.actions.std(axis=0)
    )


def _check_range(
    name: str, numbers: np.ndarray, names: list[str], room: float, varies: np.ndarray
) -> CheckResult:
    """Check that a network's numbers (N, D) fill its range: not beyond it, not in a small part."""
    shares, spread = (np.abs(numbers) > room).mean(axis=0), numbers.std(axis=0)
    if shares.max(initial=0.0) > MAX_OUTSIDE_SHARE:  # a station may have no numbers of state
        worst = int(shares.argmax())
        return CheckResult(
            name,
            False,
            f"expected numbers within {room:g} for the network, got {100 * shares[worst]:.0f} % "
            f"of '{names[worst]}' beyond it. Are the statistics from another data set, in other "
            "units or in another order?",
        )
    narrow = [names[index] for index in np.flatnonzero((spread < MIN_SPREAD) & (varies > 0.0))]
    if narrow:
        return CheckResult(
            name,
            False,
            "expected varying numbers for the network, got nearly constant ones for "
            f"'{narrow[0]}'. Are the statistics from a wider data set, or from one in which it "
            "never changed?",
        )
    return CheckResult(name, True, f"at most {100 * shares.max(initial=0.0):.1f} % beyond {room:g}")


def _check_delta_actions(spec: StationSpec, samples: Samples) -> CheckResult:
    """Check that the data's actions are steps, the station's kind of action, and not positions."""
    for index, name in enumerate(spec.action.names):
        action = samples.actions[:, index]
        for column in samples.states.T:
            if (
                action.std() > 0.0
                and column.std() > 0.0
                and np.corrcoef(action, column)[0, 1] > POSITION_CORRELATION
                and np.abs(action - column).mean() < column.std()
            ):
                return CheckResult(
                    "delta or absolute",
                    False,
                    f"expected steps of '{name}', got numbers that follow a state. The actions "
                    "are positions and would be played as steps",
                )
    return CheckResult("delta or absolute", True, "no action is a position")


def _check_horizon(policy: NetworkPolicy, samples: Samples) -> CheckResult:
    horizon = policy.config.horizon
    return CheckResult(
        "horizon",
        horizon <= len(samples.chunk),
        f"expected episodes of {horizon} time steps or more (the chunk horizon), got a first one "
        f"of {len(samples.chunk)}",
    )


def _check_prompt(policy: NetworkPolicy, samples: Samples) -> CheckResult:
    """Check that the instructions exist and fit into the policy's tokens."""
    sentences = samples.sentences or [policy.spec.instruction]
    if not policy.needs_instruction:
        return CheckResult("prompt", True, "the policy reads none")
    if not all(sentence.strip() for sentence in sentences):
        return CheckResult(
            "prompt",
            False,
            "expected an instruction in each episode, got none in some. This policy needs "
            "instructions",
        )
    task = policy.spec.instruction
    if task and samples.sentences and task not in samples.sentences:
        return CheckResult(
            "prompt",
            False,
            f"expected one of the data's sentences ({escape_ascii(samples.sentences[0])[:60]}), "
            f"got the task's '{escape_ascii(task)[:60]}'",
        )
    room = getattr(policy.config, "tokens", 0)
    if isinstance(policy, FlowMatching):
        longest = max(len(policy.prompt_tokens(text)) for text in sentences)
        if longest > MAX_TOKEN_SHARE * room:
            return CheckResult(
                "prompt",
                longest <= room,
                f"{longest} tokens of {room} (policy.tokens); longer instructions are cut",
            )
    return CheckResult("prompt", True, f"{len(sentences)} sentences")


def _time_chunks(
    policy: NetworkPolicy, spec: StationSpec, samples: Samples
) -> tuple[list[np.ndarray], float]:
    """Return chunks [SI units] at the beginning of episodes, each (H, A), and a median time [s]."""
    sentence = (samples.sentences or [spec.instruction])[0]
    took = []
    chunks = []
    for number in range(max(TIMED_CHUNKS, 2)):
        observation = Observation.from_single(
            spec, samples.first[number % len(samples.first)], policy.device, sentence
        )
        started = time.monotonic()
        chunk = policy.act(observation, False, torch.Generator(policy.device).manual_seed(0))
        took.append(time.monotonic() - started)
        chunks.append(np.asarray(spec.action.scale) * chunk.actions[0].numpy(force=True))
    return chunks, statistics.median(took[1:])


def _check_first_command(
    spec: StationSpec, chunks: list[np.ndarray], samples: Samples
) -> CheckResult:
    """Check that the first chunk is finite and not at the largest step throughout."""
    first = chunks[0]
    if not np.isfinite(first).all():
        return CheckResult("first command", False, "expected finite actions, got NaN or Inf")
    full = float((np.abs(first) >= 0.999 * np.asarray(spec.action.scale)).mean())
    data = float((np.abs(samples.actions) >= 0.999 * np.asarray(spec.action.scale)).mean())
    return CheckResult(
        "first command",
        full <= max(0.5, 2.0 * data),
        f"{100 * full:.0f} % of the first chunk's numbers are at the largest step; in the data "
        f"{100 * data:.0f} %",
    )


def _check_latency(policy: NetworkPolicy, spec: StationSpec, took_s: float) -> CheckResult:
    budget = policy.config.executed / spec.control_hz
    return CheckResult(
        "latency",
        took_s < budget,
        f"a chunk in {1e3 * took_s:.0f} ms, and {1e3 * budget:.0f} ms are available until the "
        "next one",
    )


def _compare_with_recorded(
    spec: StationSpec, chunks: list[np.ndarray], samples: Samples
) -> CheckResult:
    """Compare the first chunk with the recorded one.

    The number means nothing for a policy that was not trained on the data.
    """
    length = min(len(samples.chunk), len(chunks[0]))
    scale = np.asarray(spec.action.scale)
    error = float(np.abs((chunks[0][:length] - samples.chunk[:length]) / scale).mean())
    resting = float(np.abs(samples.chunk[:length] / scale).mean())
    return CheckResult(
        "replay",
        bool(np.isfinite(error)),
        f"mean distance of {error:.3f} largest steps from the recorded chunk, {resting:.3f} for "
        "an arm at rest",
    )


def to_json(rows: list[CheckResult]) -> str:
    """Return the rows as JSON."""
    return json.dumps(
        {
            "faults": [row.name for row in rows if not row.passed],
            "checks": len(rows),
            "rows": {row.name: row.text for row in rows},
        },
        indent=1,
    )
