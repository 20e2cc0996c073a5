"""Train a visual reward (``classifier.Network``) on frames of recordings, with a held-out score."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import Episode
from rlinf_core.episodes.messages import NS
from rlinf_core.tasks.rewards.classifier import STRIDE, Layer, Network

CHANNELS = (16, 32, 32)
KERNEL = 3
HIDDEN = 32
SMALLEST = 16
# frames, and time, before a success that may show it already, because the label comes later
DOUBTFUL, LATE_S = 3, 0.3
BATCH = 64
RATE = 1e-3
DECAY = 1e-3
SHIFT = 3
SHADE = 0.1


@dataclass(frozen=True)
class Frames:
    """Frames of episodes, with success at the last one of a successful episode, and no other.

    Attributes:
        images: (N, 3 * cameras, H, W) uint8.
        success: (N,) bool.
        episodes: (N,) number of the frame's episode.
        cameras: their names.
        labels: (N,) progress between 0 and 1, where that is learned instead of success.
    """

    images: np.ndarray
    success: np.ndarray
    episodes: np.ndarray
    cameras: tuple[str, ...]
    labels: np.ndarray | None = None

    def of(self, chosen: np.ndarray) -> Frames:
        """Return the frames of some episodes."""
        mask = np.isin(self.episodes, chosen)
        labels = None if self.labels is None else self.labels[mask]
        return Frames(
            self.images[mask], self.success[mask], self.episodes[mask], self.cameras, labels
        )


@dataclass(frozen=True)
class Scores:
    """Result on held-out frames: the number of each kind, and the errors in each."""

    positives: int
    negatives: int
    missed: int
    invented: int

    @property
    def accuracy(self) -> float:
        """Share of correct decisions."""
        return 1.0 - (self.missed + self.invented) / max(self.positives + self.negatives, 1)


def frames_of(
    episodes: Iterable[Episode],
    cameras: Sequence[str],
    failed: Collection[str] = (),
    late_s: float = LATE_S,
) -> Frames:
    """Return the frames of episodes with the same cameras.

    The last frame of a success shows it, unless its id is in ``failed``. The frames of the last
    ``late_s`` before it, three at least, may show it too and are left out.

    Raises:
        EpisodeError: a camera is missing, or the images are too small or of several sizes.
    """
    images = []
    success = []
    numbers = []
    for number, episode in enumerate(episodes):
        stacked, cameras = _images(episode, cameras)
        solved = episode.success and episode.id not in failed
        late = (episode.stamps_ns >= episode.stamps_ns[-1] - late_s * NS) & solved
        label_mask = (np.arange(len(stacked)) < len(stacked) - 1 - DOUBTFUL * solved) & ~late
        label_mask[-1] = True
        images.append(stacked[label_mask])
        success.append(_only_last(label_mask.sum(), solved))
        numbers.append(np.full(label_mask.sum(), number))
    return _frames(images, success, numbers, cameras)


def progress_of(
    episodes: Iterable[Episode], cameras: Sequence[str], failed: Collection[str] = ()
) -> Frames:
    """Return frames of episodes with the share of each successful one that is over.

    The second half of a failed episode has progress 0, so that a policy gains nothing there. Its
    first half is left out, because it may look like a successful one.

    Raises:
        EpisodeError: as ``frames_of``.
    """
    images = []
    success = []
    numbers = []
    labels = []
    for number, episode in enumerate(episodes):
        stacked, cameras = _images(episode, cameras)
        solved, length = episode.success and episode.id not in failed, len(stacked)
        images.append(stacked[0 if solved else length // 2 :])
        count = len(images[-1])
        success.append(_only_last(count, solved))
        numbers.append(np.full(count, number))
        labels.append(np.linspace(0.0, 1.0, count) if solved else np.zeros(count))
    return _frames(images, success, numbers, cameras, np.concatenate(labels))


def _only_last(count: int, solved: bool) -> np.ndarray:
    """Return for each frame whether it shows success: the last one of a solved episode."""
    return (np.arange(count) == count - 1) & solved


def _images(episode: Episode, cameras: Sequence[str]) -> tuple[np.ndarray, Sequence[str]]:
    """Return an episode's images (N, 3 * cameras, H, W) and their cameras: by default all."""
    available = [name for name, values in episode.observations.items() if values.ndim == 4]
    cameras = cameras or available
    if not cameras or set(cameras) - set(available):
        raise EpisodeError(
            f"episode {episode.id}: expected the cameras "
            f"{', '.join(cameras) or '(at least one)'}, got {', '.join(available) or 'none'}. "
            "Record with station.observe_cameras"
        )
    sizes = {name: episode.observations[name].shape[1:3] for name in cameras}
    if len(set(sizes.values())) > 1:
        raise EpisodeError(
            f"episode {episode.id}: expected images of one size, got {sizes}. Choose by --cameras"
        )
    stacked = np.concatenate([episode.observations[name] for name in cameras], axis=3)
    return stacked.transpose(0, 3, 1, 2), cameras


def _frames(
    images: list[np.ndarray],
    success: list[np.ndarray],
    numbers: list[np.ndarray],
    cameras: Sequence[str],
    labels: np.ndarray | None = None,
) -> Frames:
    """Return the frames of several episodes together."""
    sizes = sorted({stacked.shape[2:] for stacked in images})
    if len(sizes) > 1:
        raise EpisodeError(
            f"expected images of one size in all episodes, got {' and '.join(map(str, sizes))}: "
            "station.image_size"
        )
    if min(sizes[0]) < SMALLEST:
        raise EpisodeError(
            f"expected images of {SMALLEST} pixels or more, got {sizes[0]}: station.image_size"
        )
    return Frames(
        np.concatenate(images),
        np.concatenate(success),
        np.concatenate(numbers),
        tuple(cameras),
        labels,
    )


@dataclass(frozen=True)
class ProgressScores:
    """Result of a progress network on held-out episodes.

    Attributes:
        successes, failures: number of episodes.
        order: mean rank correlation of progress with time, of successful ones.
        fooled: share of failed ones whose progress exceeds 0.5 in their second half.
    """

    successes: int
    failures: int
    order: float
    fooled: float


def judge_progress(network: Network, frames: Frames) -> ProgressScores:
    """Return how well progress follows time, and how often a failure looks like progress."""
    predicted = judge(network, frames)[1]
    orders = []
    fooled = []
    for number in np.unique(frames.episodes):
        mask = frames.episodes == number
        if frames.success[mask].any():
            orders.append(_rank_correlation(predicted[mask]))
        else:
            fooled.append(bool(predicted[mask].max() > 0.5))
    share = float(np.mean(fooled)) if fooled else 0.0
    return ProgressScores(len(orders), len(fooled), float(np.mean(orders)), share)


def _rank_correlation(predicted: np.ndarray) -> float:
    """Return Spearman's rank correlation with time; 0 if all values are equal."""
    _, places, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return 0.0
    ranks = (np.cumsum(counts) - counts / 2)[places]  # equal values share their mean rank
    return float(np.corrcoef(ranks, np.arange(len(predicted)))[0, 1])


def split(frames: Frames, held_out: float, seed: int) -> tuple[Frames, Frames]:
    """Split into episodes to learn from and episodes to judge by.

    Raises:
        EpisodeError: one of the parts has no successful episode.
    """
    random = np.random.default_rng(seed)
    parts: tuple[list[int], list[int]] = ([], [])
    succeeded = np.unique(frames.episodes[frames.success])
    for group in (succeeded, np.setdiff1d(frames.episodes, succeeded)):
        count = round(held_out * len(group))
        mixed = random.permutation(group)
        parts[0].extend(mixed[count:])
        parts[1].extend(mixed[:count])
    split_frames = frames.of(np.array(parts[0])), frames.of(np.array(parts[1]))
    if not all(part.success.any() and not part.success.all() for part in split_frames):
        raise EpisodeError(
            "expected successful episodes for training and for the held-out test, got "
            f"{len(succeeded)}. Record more, about 50: rlinf demo RECIPE --set "
            "collect.no_training=true"
        )
    return split_frames


def train(
    frames: Frames, steps: int, seed: int, on_step: Callable[[int], Any] = lambda step: None
) -> Network:
    """Train a network to recognise success.

    Each batch has as many frames with success as without, shifted and shaded at random.
    """
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    colours, height, width = frames.images.shape[1:]
    net = _net(colours, height, width)
    adam = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    positive, negative = np.flatnonzero(frames.success), np.flatnonzero(~frames.success)
    targets = frames.success if frames.labels is None else frames.labels
    for step in range(steps):
        if frames.labels is None:
            chosen = np.concatenate(
                [random.choice(kind, BATCH // 2) for kind in (positive, negative)]
            )
        else:
            chosen = random.integers(0, len(targets), BATCH)
        logits = net(_as_input(_disturbed(frames.images[chosen], random)))[:, 0]
        labels = torch.tensor(targets[chosen], dtype=torch.float32)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        adam.zero_grad()
        loss.backward()
        adam.step()
        on_step(step)
    return _network(net, frames)


def judge(network: Network, frames: Frames) -> tuple[Scores, np.ndarray]:
    """Return the network's scores on frames, and its prediction for each (N,)."""
    names = [_channel(camera) for camera in frames.cameras]
    predicted = np.array(
        [
            network(
                dict(
                    zip(names, np.split(image.transpose(1, 2, 0), len(names), axis=2), strict=True)
                )
            )
            for image in frames.images
        ]
    )
    positive = predicted > 0.5
    return Scores(
        int(frames.success.sum()),
        int((~frames.success).sum()),
        int((frames.success & ~positive).sum()),
        int((~frames.success & positive).sum()),
    ), predicted


def _net(colours: int, height: int, width: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for channels in CHANNELS:
        parts += [nn.Conv2d(colours, channels, KERNEL, STRIDE), nn.ReLU()]
        colours = channels
        height = (height - KERNEL) // STRIDE + 1
        width = (width - KERNEL) // STRIDE + 1
    return nn.Sequential(
        *parts,
        nn.Flatten(),
        nn.Linear(colours * height * width, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 1),
    )


def _as_input(images: np.ndarray) -> torch.Tensor:
    return torch.tensor(images, dtype=torch.float32) / 255.0 - 0.5


def _disturbed(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Shift each image by a few pixels and change its brightness.

    The changes imitate another day and another camera mount.
    """
    padded = np.pad(images, ((0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)), mode="edge")
    height, width = images.shape[2:]
    moved = [
        image[:, y : y + height, x : x + width]
        for image, (y, x) in zip(
            padded, random.integers(0, 2 * SHIFT + 1, (len(images), 2)), strict=True
        )
    ]
    shade = random.uniform(1 - SHADE, 1 + SHADE, (len(images), 1, 1, 1))
    return np.clip(np.stack(moved) * shade, 0, 255)


def _network(net: nn.Sequential, frames: Frames) -> Network:
    def parts(kind: type[nn.Linear] | type[nn.Conv2d]) -> tuple[Layer, ...]:
        held = [part.state_dict() for part in net if isinstance(part, kind)]
        return tuple(
            (tensors["weight"].numpy(force=True), tensors["bias"].numpy(force=True))
            for tensors in held
        )

    height, width = frames.images.shape[2:]
    return Network(
        (),
        np.zeros(0),
        np.ones(0),
        parts(nn.Linear),
        tuple(map(_channel, frames.cameras)),
        (height, width),
        parts(nn.Conv2d),
    )


def _channel(camera: str) -> str:
    return f"camera/{camera}/image"
