"""A tiny video model: a convolutional network that predicts how a small picture changes.

It tests everything around a video model on a machine without a GPU. Its pictures blur after some
time steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import RlinfError
from rlinf_core.specs.frames import CHANNELS
from rlinf_core.worlds.frames import check_actions, check_frames

FORMAT = "rlinf-video-1"
CONDITION = 2  # frames
UNROLL = 3  # time steps along which a gradient step predicts
HELD_OUT_EVERY = 5  # one episode in this many is held out
BATCH, RATE = 24, 2e-3


class Network(nn.Module):
    """C frames and C actions to the change of the last frame.

    Args:
        actions: A, numbers of an action.
        width: channels of the first layer.
    """

    def __init__(self, actions: int, width: int = 24) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [
                nn.Conv2d(3 * CONDITION + 2, width, 3, padding=1),
                nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
                nn.Conv2d(2 * width, 2 * width, 4, stride=2, padding=1),
            ]
        )
        self.play = nn.Linear(actions * CONDITION, 4 * width)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(2 * width, 2 * width, 4, stride=2, padding=1),
                nn.ConvTranspose2d(4 * width, width, 4, stride=2, padding=1),
            ]
        )
        self.out = nn.Conv2d(2 * width, 3, 3, padding=1)
        for parameter in self.out.parameters():  # at first nothing changes
            nn.init.zeros_(parameter)

    def forward(self, frames: Tensor, actions: Tensor) -> Tensor:
        """Return the next frames (B, 3, H, W) in [0, 1].

        Args:
            frames: (B, C, 3, H, W) in [0, 1].
            actions: (B, C, A), the present one last.
        """
        size, _, _, height, width = frames.shape
        rows = torch.linspace(-1, 1, height).view(1, 1, -1, 1).expand(size, 1, height, width)
        columns = torch.linspace(-1, 1, width).view(1, 1, 1, -1).expand(size, 1, height, width)
        features = torch.cat([frames.flatten(1, 2) - 0.5, rows, columns], 1)
        levels = []
        for layer in self.down:
            features = nn.functional.silu(layer(features))
            levels.append(features)
        scale, shift = self.play(actions.flatten(1))[:, :, None, None].chunk(2, 1)
        features = nn.functional.silu(self.middle(features * (1 + scale) + shift))
        features = nn.functional.silu(self.up[0](features))
        features = nn.functional.silu(self.up[1](torch.cat([features, levels[1]], 1)))
        change = self.out(torch.cat([features, levels[0]], 1))
        return (frames[:, -1] + change).clamp(0.0, 1.0)


@dataclass(frozen=True)
class VideoCheck:
    """Open-loop predictions of held-out episodes.

    Attributes:
        errors: (K,) mean absolute error after k + 1 time steps (of 255).
        persistence: (K,) the same if nothing changed.
        moving: (K,) and ``moving_persistence``: the same over the pixels that changed by more than
            ``MOVED``.
    """

    errors: tuple[float, ...]
    persistence: tuple[float, ...]
    moving: tuple[float, ...]
    moving_persistence: tuple[float, ...]


MOVED = 20  # change of a pixel that counts as motion (of 255)


def fit(
    episodes: Sequence[tuple[np.ndarray, np.ndarray]],
    updates: int = 1500,
    seed: int = 0,
    width: int = 24,
) -> tuple[Network, VideoCheck]:
    """Fit a network to episodes of frames (T + 1, H, W, 3) uint8 and actions (T, A).

    Every fifth episode is held out for the check. ``width`` is the number of channels of the first
    layer.

    Raises:
        RlinfError: fewer than two episodes, episodes too short, sides that 4 does not divide, or
            damaged frames or actions. The message names the episode by its number, from 0 on.
    """
    _check_episodes(episodes)
    shortest = CONDITION + UNROLL
    usable = [one for one in episodes if len(one[1]) >= shortest]
    if len(usable) < 2:
        raise RlinfError(
            f"a video model: expected at least 2 episodes of {shortest} time steps or more, got "
            f"{len(usable)}. Record more with station.observe_cameras"
        )
    height, width = usable[0][0].shape[1:3]
    if height % 4 or width % 4:
        raise RlinfError(
            f"a video model: expected pictures whose sides 4 divides, got {height} x {width}. Set "
            "station.image_size"
        )
    held_out = [one for number, one in enumerate(usable) if _is_held_out(number, len(usable))]
    fitted = [one for number, one in enumerate(usable) if not _is_held_out(number, len(usable))]
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    network = Network(usable[0][1].shape[1], width)
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates, RATE / 50)
    for _ in range(updates):
        frames, actions = _batch(fitted, random)
        loss = torch.zeros(())
        shown = frames[:, :CONDITION]
        for step in range(UNROLL):
            after = network(shown, actions[:, step : step + CONDITION])
            truth = frames[:, CONDITION + step]
            # moving pixels are few; without weight the network would predict a still picture
            moved = (truth - frames[:, CONDITION - 1]).abs().amax(1, keepdim=True) > MOVED / 255
            loss = loss + ((after - truth).abs() * (1.0 + 10.0 * moved)).mean()
            shown = torch.cat([shown[:, 1:], after[:, None]], 1)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return network.eval(), check(network.eval(), held_out)


def _check_episodes(episodes: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Raise RlinfError if an episode has damaged frames or actions, or others than the first."""
    picture: tuple[int | None, ...] = (None, None, CHANNELS)
    remedy = "Leave this episode out, or record it again"
    for number, (frames, actions) in enumerate(episodes):
        name = f"a video model: episode {number}"
        check_frames(frames, (len(actions) + 1, *picture), name, remedy)
        picture = frames.shape[1:]
        check_actions(actions, (len(actions), *episodes[0][1].shape[1:]), name, remedy)


def _is_held_out(number: int, count: int) -> bool:
    return number % HELD_OUT_EVERY == min(HELD_OUT_EVERY, count) - 1


def _batch(
    episodes: Sequence[tuple[np.ndarray, np.ndarray]], random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return frames (B, C + U, 3, H, W) and actions (B, C - 1 + U, A) of random windows."""
    frames, actions = [], []
    for _ in range(BATCH):
        shots, played = episodes[int(random.integers(len(episodes)))]
        start = int(random.integers(len(played) - CONDITION - UNROLL + 2))
        frames.append(shots[start : start + CONDITION + UNROLL])
        actions.append(played[start : start + CONDITION - 1 + UNROLL])
    return _as_input(np.stack(frames)), torch.from_numpy(np.stack(actions)).float()


def _as_input(frames: np.ndarray) -> Tensor:
    """Return (..., H, W, 3) uint8 as (..., 3, H, W) in [0, 1]."""
    return torch.from_numpy(np.moveaxis(frames, -1, -3).astype(np.float32) / 255.0)


@torch.no_grad()
def check(
    network: Network, episodes: Sequence[tuple[np.ndarray, np.ndarray]], steps: int = 10
) -> VideoCheck:
    """Return the errors of open-loop predictions, from evenly spaced time steps."""
    steps = min(steps, *(len(played) - CONDITION + 1 for _, played in episodes))
    rows: list[np.ndarray] = []
    for shots, played in episodes:
        last = len(played) - steps
        for start in np.unique(np.linspace(CONDITION - 1, last, 8).astype(int)):
            shown = _as_input(shots[start - CONDITION + 1 : start + 1])[None]
            first = shots[start].astype(float)
            row = []
            for step in range(steps):
                index = start + step
                actions = torch.from_numpy(played[index - CONDITION + 1 : index + 1]).float()
                after = network(shown, actions[None])
                picture = np.moveaxis(after[0].numpy(), 0, -1) * 255.0
                truth = shots[index + 1].astype(float)
                wrong, still = np.abs(picture - truth), np.abs(first - truth)
                moved = still.max(-1) > MOVED
                share = max(int(moved.sum()), 1)
                row.append(
                    [
                        *(wrong.mean(), still.mean()),
                        *(wrong.mean(-1)[moved].sum() / share, still.mean(-1)[moved].sum() / share),
                    ]
                )
                shown = torch.cat([shown[:, 1:], after[:, None]], 1)
            rows.append(np.array(row))
    mean = np.mean(rows, 0)
    return VideoCheck(*(tuple(float(value) for value in column) for column in mean.T))


@torch.no_grad()
def film_imagination(network: Network, frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return an episode beside its imagination from the first frames, (T, H, 2 W, 3) uint8."""
    shown = _as_input(frames[:CONDITION])[None]
    pairs = []
    for step in range(CONDITION - 1, len(actions)):
        played = torch.from_numpy(actions[step - CONDITION + 1 : step + 1]).float()
        after = network(shown, played[None])
        picture = (np.moveaxis(after[0].numpy(), 0, -1) * 255.0).round().astype(np.uint8)
        pairs.append(np.concatenate([frames[step + 1], picture], 1))
        shown = torch.cat([shown[:, 1:], after[:, None]], 1)
    return np.stack(pairs)


def save(network: Network, result: VideoCheck, path: Path) -> Path:
    """Write the network as safetensors."""
    from safetensors.torch import save_file

    metadata = {"format": FORMAT, "check": json.dumps(asdict(result))}
    tensors = {name: value.contiguous() for name, value in network.state_dict().items()}
    return write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


class TinyVideo:
    """A fitted network as a ``rlinf_core.worlds.video.VideoModel``.

    Args:
        file: file that ``rlinf world fit-video`` has written.

    Raises:
        RlinfError: the file is damaged, or of another kind.
    """

    condition, chunk = CONDITION, 1

    def __init__(self, file: str) -> None:
        from safetensors import SafetensorError, safe_open

        torch.set_num_threads(1)
        expected = f"{file}: expected a video model"
        try:
            with safe_open(file, "pt") as opened:
                metadata = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            if metadata.get("format") != FORMAT:
                raise RlinfError(f"{expected}, got another file. rlinf world fit-video makes one")
            width, played = len(tensors["down.0.bias"]), tensors["play.weight"].shape[1]
            self.actions = played // CONDITION
            self.network = Network(self.actions, width)
            self.network.load_state_dict(tensors)
            if bad := [name for name, one in tensors.items() if not bool(one.isfinite().all())]:
                raise RlinfError(
                    f"{expected} with finite weights, got others in {', '.join(bad)}. rlinf world "
                    "fit-video makes one"
                )
        except (SafetensorError, OSError, RuntimeError, LookupError, TypeError) as error:
            raise RlinfError(
                f"{expected}, got none or a damaged one: {error}. rlinf world fit-video makes one"
            ) from error
        self.network.eval()
        self._frames: dict[int, Tensor] = {}
        self._actions: dict[int, Tensor] = {}

    def begin(self, rows: Sequence[int], frames: np.ndarray, actions: np.ndarray) -> None:
        """See ``VideoModel``.

        Raises:
            RlinfError: frames or actions have another type or shape, or 4 does not divide a side.
        """
        name, remedy = "video model 'tiny'", "Use the camera and the robot that it was fitted to"
        check_frames(frames, (len(rows), CONDITION, None, None, CHANNELS), name, remedy)
        check_actions(actions, (len(rows), CONDITION - 1, self.actions), name, remedy)
        if frames.shape[2] % 4 or frames.shape[3] % 4:
            raise RlinfError(
                f"{name}: expected pictures whose sides 4 divides, got {frames.shape[2]} x "
                f"{frames.shape[3]}. Set station.image_size"
            )
        shown, played = _as_input(frames), torch.from_numpy(np.array(actions, np.float32))
        for index, row in enumerate(rows):
            self._frames[row], self._actions[row] = shown[index], played[index]

    @torch.no_grad()
    def step(self, rows: Sequence[int], actions: np.ndarray) -> np.ndarray:
        """See ``VideoModel``.

        Raises:
            RlinfError: the actions have another shape, or are not finite.
        """
        shape, remedy = (len(rows), 1, self.actions), "Correct the policy"
        check_actions(actions, shape, "video model 'tiny'", remedy)
        shown = torch.stack([self._frames[row] for row in rows])
        present = torch.from_numpy(np.array(actions, np.float32))
        played = torch.cat([torch.stack([self._actions[row] for row in rows]), present], 1)
        after = self.network(shown, played)
        for index, row in enumerate(rows):
            self._frames[row] = torch.cat([shown[index, 1:], after[index : index + 1]])
            self._actions[row] = played[index, 1:]
        picture = (after * 255.0).round().to(torch.uint8).numpy()
        return np.moveaxis(picture, 1, -1)[:, None]
