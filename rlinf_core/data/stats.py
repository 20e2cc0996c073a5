"""Statistics of episodes: every key and dimension, and the success rate."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from rlinf_core.episodes import Episode
from rlinf_core.episodes.messages import NS
from rlinf_core.reports.throughput import wilson

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# distance of the sampled pixels, in either direction
PIXEL_STEP = 4
# sampled images per episode, in equal steps; LeRobot's minimum
SAMPLED_FRAMES = 100

ColumnStats = dict[str, np.ndarray]


def describe(values: np.ndarray) -> ColumnStats:
    """Return count, mean, std, extremes and quantiles of every column of ``values`` (N, D)."""
    values = np.asarray(values, np.float64)
    statistics = {
        "count": np.array([len(values)]),
        "mean": values.mean(0),
        "std": values.std(0),
        "min": values.min(0),
        "max": values.max(0),
    }
    return statistics | dict(
        zip(QUANTILES, np.quantile(values, list(QUANTILES.values()), axis=0), strict=True)
    )


def sample_frames(images: np.ndarray) -> np.ndarray:
    """Return the images of an episode that enter the statistics, of (N, H, W, C)."""
    return images[:: len(images) // SAMPLED_FRAMES or 1]


def histogram(images: np.ndarray) -> np.ndarray:
    """Return the frequency (C, 256) of each value in each channel of uint8 images (N, H, W, C)."""
    pixels = sample_frames(images)[:, ::PIXEL_STEP, ::PIXEL_STEP]
    return np.stack(
        [
            np.bincount(pixels[..., channel].ravel(), minlength=256)
            for channel in range(images.shape[-1])
        ]
    )


def describe_histogram(counts: np.ndarray) -> ColumnStats:
    """Return the same statistics of pixels, without count, in [0, 1], from frequencies (C, 256)."""
    values, total = np.arange(256) / 255.0, counts.sum(1)
    mean = counts @ values / total
    occupied, below = counts > 0, np.cumsum(counts, axis=1) / total[:, None]
    statistics = {
        "mean": mean,
        "std": np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0.0)),
        "min": values[occupied.argmax(1)],
        "max": values[255 - occupied[:, ::-1].argmax(1)],
    }
    return statistics | {name: values[(below >= q).argmax(1)] for name, q in QUANTILES.items()}


@dataclass
class Statistics:
    """A collector of episodes."""

    vectors: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    images: dict[str, np.ndarray] = field(default_factory=dict)
    outcomes: list[bool] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0

    def add(self, episode: Episode) -> None:
        """Add an episode."""
        vectors = {
            name: values
            for name, values in episode.observations.items()
            if values.dtype != np.uint8
        }
        vectors |= {"action requested": episode.requested, "action executed": episode.executed}
        vectors |= {
            "return": episode.rewards.sum(keepdims=True)[None],
            "steps": np.array([[len(episode)]]),
        }
        for name, values in vectors.items():
            self.vectors[name].append(values)
        for name in episode.observations.keys() - vectors.keys():
            self.images[name] = self.images.get(name, 0) + histogram(episode.observations[name])
        self.outcomes.append(episode.success)
        self.steps += len(episode)
        self.seconds += (episode.stamps_ns[-1] - episode.stamps_ns[0]) / NS

    def keys(self) -> dict[str, ColumnStats]:
        """Return each key's statistics."""
        return {name: describe(np.concatenate(values)) for name, values in self.vectors.items()} | {
            name: describe_histogram(counts) for name, counts in sorted(self.images.items())
        }

    def summary(self) -> dict[str, float]:
        """Return the statistics of all episodes, and the success rate with its 95 % interval."""
        low, high = wilson(sum(self.outcomes), len(self.outcomes))
        return {
            "episodes": len(self.outcomes),
            "steps": self.steps,
            "seconds": self.seconds,
            "success": sum(self.outcomes) / len(self.outcomes),
            "low": low,
            "high": high,
        }
