"""A failure monitor in NumPy: a score of time steps and a threshold that bounds false alarms.

Features are the observation's distance to successful episodes, the difference between the action
and theirs, and the progress that their remaining time predicts. A logistic regression weighs them.
The threshold varies with time. It is conformal (functional prediction band, Diquigiovanni et al.
2021, arXiv 2102.06746; failure detection: FAIL-Detect, arXiv 2503.08558): of successful episodes of
the same kind, at most the share alpha raises an alarm. Half of alpha is for the score, half for the
time that an episode takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from rlinf_core.core.errors import RecipeError, RlinfError

FORMAT = "rlinf-monitor-1"
PERSON_NEEDED = (
    "failure monitor: this episode will probably fail. The arm holds. Take over, or discard the "
    "episode"
)
NEIGHBOURS = 10  # nearest time steps that a new one is compared with
REFERENCES = 2000  # largest number of time steps among which the nearest ones are found
BOUND = 5.0  # normalised numbers are clipped to this many standard deviations
EMA_RATE = 0.4  # weight of the newest value in the moving average of features
LAG = 4  # time steps over which progress is measured
MIN_EPISODES = 5  # smallest number of episodes that decide a time step's threshold
SMALLEST_DEVIATION = 1e-3
FEATURES = ("novelty", "disagreement", "time left", "stall", "time")


@dataclass(frozen=True)
class Steps:
    """An episode that a policy played alone.

    Attributes:
        vectors: (T, V) observed at each time step.
        actions: (T, A) normalised.
        success: whether the task was done.
    """

    vectors: np.ndarray
    actions: np.ndarray
    success: bool


@dataclass(frozen=True)
class Monitor:
    """A fitted monitor.

    Attributes:
        spec_hash: hash of the station's specs.
        alpha: largest fraction of successful episodes with a false alarm.
        mean, std: (V,) statistics of the observed numbers.
        vectors: (N, V) normalised observations of successful episodes.
        actions: (N, A) their actions.
        left: (N,) time steps from each observation to success.
        scale: (2, F) mean and deviation of the features.
        weights: (F + 1,) weights of the features, and the bias.
        threshold: (T,) threshold by time step; later time steps have the last one. It is -inf where
            few successful episodes take so long.
    """

    spec_hash: str
    alpha: float
    mean: np.ndarray
    std: np.ndarray
    vectors: np.ndarray
    actions: np.ndarray
    left: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    threshold: np.ndarray

    def watch(self) -> Watch:
        """Watch an episode from its first time step."""
        return Watch(self)

    def scores(self, episode: Steps) -> np.ndarray:
        """Return the score (T,) of each time step, from that step and those before."""
        watch = self.watch()
        return np.array(
            [watch.score(*step) for step in zip(episode.vectors, episode.actions, strict=True)]
        )

    def alarm(self, episode: Steps) -> int:
        """Return the first time step above the threshold; -1 if there is none."""
        scores = self.scores(episode)
        above = np.flatnonzero(scores > self.limits(len(scores)))
        return int(above[0]) if len(above) else -1

    def limits(self, length: int) -> np.ndarray:
        """Return the threshold (T,) of each time step."""
        return self.threshold[np.minimum(np.arange(length), len(self.threshold) - 1)]

    def save(self, path: Path) -> None:
        """Write a monitor file (safetensors)."""
        from safetensors.numpy import save_file

        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in TENSORS}
        about = json.dumps({"spec_hash": self.spec_hash, "alpha": self.alpha})
        save_file(tensors, path, {"format": FORMAT, "about": about})

    @classmethod
    def load(cls, path: Path, spec_hash: str = "") -> Monitor:
        """Read a monitor file.

        Raises:
            RecipeError: the file is damaged, or belongs to another station.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ValueError(f"format {metadata.get('format')!r}")
                monitor = cls(
                    **json.loads(metadata["about"]),
                    **{name: file.get_tensor(name) for name in TENSORS},
                )
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RecipeError(
                f"station.policy.monitor {path}: expected a file of rlinf monitor fit ({FORMAT}), "
                f"got: {error}"
            ) from error
        if spec_hash and monitor.spec_hash != spec_hash:
            raise RecipeError(
                f"station.policy.monitor {path}: expected one of specs {spec_hash}, got "
                f"{monitor.spec_hash}. Fit one to episodes of this station"
            )
        return monitor


TENSORS = ("mean", "std", "vectors", "actions", "left", "scale", "weights", "threshold")


class Watch:
    """Scores one episode, time step by time step."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.step = 0
        self._average: np.ndarray | None = None
        self._left: list[float] = []

    def score(self, vector: np.ndarray, action: np.ndarray) -> float:
        """Return the score of the next time step."""
        monitor = self.monitor
        features = (self.features(vector, action) - monitor.scale[0]) / monitor.scale[1]
        return float(features @ monitor.weights[:-1] + monitor.weights[-1])

    def features(self, vector: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return the features (F,) of the next time step."""
        monitor = self.monitor
        normalised = np.clip((vector - monitor.mean) / monitor.std, -BOUND, BOUND)
        distances = np.sqrt(((monitor.vectors - normalised) ** 2).sum(axis=1))
        count = min(NEIGHBOURS, len(distances))
        nearest = np.argpartition(distances, count - 1)[:count]
        now = np.array(
            [
                distances[nearest].mean(),
                np.linalg.norm(action - monitor.actions[nearest].mean(axis=0)),
                monitor.left[nearest].mean(),
            ]
        )
        self._average = (
            now if self._average is None else self._average + EMA_RATE * (now - self._average)
        )
        self._left.append(float(self._average[2]))
        before = self._left[max(0, len(self._left) - 1 - LAG)]
        stall = self._left[-1] - before + min(LAG, len(self._left) - 1)
        self.step += 1
        return np.array([*self._average, stall, float(self.step)])

    def is_alarm(self, vector: np.ndarray, action: np.ndarray) -> bool:
        """Return True if the next time step's score is above its threshold."""
        limit = self.monitor.threshold[min(self.step, len(self.monitor.threshold) - 1)]
        return self.score(vector, action) > limit


def fit(episodes: Sequence[Steps], alpha: float, spec_hash: str = "", seed: int = 0) -> Monitor:
    """Fit a monitor to episodes of one policy.

    A third of the successful episodes is the reference, a third weighs the features with all
    failures, and a third calibrates the threshold.

    Args:
        episodes: successful and failed ones.
        alpha: bound of false alarms.
        spec_hash: of the station's specs.
        seed: of the split.

    Raises:
        RlinfError: there are too few successful episodes for this alpha.
    """
    random = np.random.default_rng(seed)
    successes = [
        episodes[index] for index in random.permutation(len(episodes)) if episodes[index].success
    ]
    failures = [episode for episode in episodes if not episode.success]
    min_episodes = 3 * max(ceil(2.0 / alpha) - 1, 2 * MIN_EPISODES)
    if len(successes) < min_episodes:
        raise RlinfError(
            f"monitor: expected at least {min_episodes} successful episodes for alpha {alpha:g}, "
            f"got {len(successes)}. Play more, or choose a larger --alpha"
        )
    reference, weighing, calibrating = (successes[part::3] for part in range(3))
    vectors = np.concatenate([episode.vectors for episode in reference])
    std = np.maximum(vectors.std(axis=0), 0.05 * np.abs(vectors).max(axis=0)) + 1e-6
    chosen = np.sort(random.permutation(len(vectors))[:REFERENCES])
    lengths = [np.arange(len(episode.vectors), 0, -1, dtype=float) for episode in reference]
    mean = vectors.mean(axis=0)
    plain = Monitor(
        spec_hash,
        alpha,
        mean,
        std,
        np.clip((vectors - mean) / std, -BOUND, BOUND)[chosen],
        np.concatenate([episode.actions for episode in reference])[chosen],
        np.concatenate(lengths)[chosen],
        np.stack([np.zeros(len(FEATURES)), np.ones(len(FEATURES))]),
        np.zeros(len(FEATURES) + 1),
        np.zeros(1),
    )
    good, bad = (
        [np.stack([*_features(plain, episode)]) for episode in group]
        for group in (weighing, failures)
    )
    scale, weights = _weights(good, bad)
    weighed = Monitor(**vars(plain) | {"scale": scale, "weights": weights})
    middle, deviation = _band([weighed.scores(episode) for episode in weighing])
    steps = np.arange(max(len(episode.vectors) for episode in calibrating))
    within = np.minimum(steps, len(middle) - 1)
    peaks = [
        np.max((scores - middle[within[: len(scores)]]) / deviation[within[: len(scores)]])
        for scores in map(weighed.scores, calibrating)
    ]
    limit = middle + _conformal(peaks, alpha / 2.0) * deviation
    longest = int(_conformal([len(episode.vectors) for episode in calibrating], alpha / 2.0))
    threshold = np.append(limit[np.minimum(np.arange(longest), len(limit) - 1)], -np.inf)
    return Monitor(**vars(weighed) | {"threshold": threshold})


def _conformal(values: Sequence[float], alpha: float) -> float:
    """Return the bound that a further value exceeds with at most this chance."""
    return float(np.sort(values)[ceil((1.0 - alpha) * (len(values) + 1)) - 1])


def _features(monitor: Monitor, episode: Steps) -> Iterator[np.ndarray]:
    watch = monitor.watch()
    for step in zip(episode.vectors, episode.actions, strict=True):
        yield watch.features(*step)


def _weights(good: list[np.ndarray], bad: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return scale (2, F) and weights (F + 1,) of a logistic regression.

    Without enough failures the weights are fixed.
    """
    rows = np.concatenate(good + bad)
    scale = np.stack([rows.mean(axis=0), rows.std(axis=0) + 1e-6])
    if len(bad) < MIN_EPISODES:
        return scale, np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    inputs = np.column_stack([(rows - scale[0]) / scale[1], np.ones(len(rows))])
    labels = np.repeat([0.0] * len(good) + [1.0] * len(bad), [len(part) for part in good + bad])
    counts = np.concatenate(
        [
            np.full(len(part), 1.0 / len(part) / len(group))
            for group in (good, bad)
            for part in group
        ]
    )
    weights, prior = np.zeros(inputs.shape[1]), np.diag([1e-3] * (inputs.shape[1] - 1) + [1e-6])
    for _ in range(30):  # Newton's method
        chance = 1.0 / (1.0 + np.exp(-np.clip(inputs @ weights, -30.0, 30.0)))
        gradient = inputs.T @ (counts * (chance - labels)) + prior @ weights
        curvature = (inputs * (counts * chance * (1.0 - chance))[:, None]).T @ inputs + prior
        weights = weights - np.linalg.solve(curvature, gradient)
    return scale, weights


def _band(scores: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return median and deviation (T,) by time step, as long as enough episodes last."""
    length = sorted(map(len, scores))[-MIN_EPISODES]
    columns = [np.array([one[step] for one in scores if len(one) > step]) for step in range(length)]
    spread = np.array([column.std() for column in columns])
    floor = 0.25 * spread.mean() + SMALLEST_DEVIATION
    return np.array([np.median(column) for column in columns]), np.maximum(spread, floor)
