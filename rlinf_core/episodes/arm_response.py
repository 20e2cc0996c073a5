"""An arm's response to its commands, fitted to recorded episodes.

The model is a first-order lag behind a pure delay, ``lag_s * dv/dt = gain * u(t - delay_s) - v``.
Here u is the speed at which the interlock let the set-point move, and v the tool's speed. A
Cartesian controller looks like this from outside (for a proportional one, 1 / lag_s is its gain),
and ``simulation.randomise`` varies it. Speeds are sampled once a time step. If the lag is much
shorter, delays that differ by less than a step look the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes.types import Episode

GRID_POINTS = 20  # of a time step
MAX_DELAY_S = 0.5
LAGS_S = (0.002, 1.0)  # smallest and largest lag


@dataclass(frozen=True)
class ArmResponse:
    """The parameters that fit the recordings best.

    Attributes:
        delay_s: time between a command and the first motion [s].
        lag_s: time constant of the tool's motion after that [s].
        gain: executed fraction of the commanded motion.
        explained: share of the tool's motion that the model explains, at most 1.
    """

    delay_s: float
    lag_s: float
    gain: float
    explained: float


def identify(episodes: Sequence[Episode], velocity: str = "tcp_velocity") -> ArmResponse:
    """Fit one response to all episodes, over the three axes of translation.

    Args:
        episodes: episodes with displacements of the tool in the first three dimensions of their
            actions.
        velocity: name of the observation with the tool's velocity, (3,) [m/s].

    Raises:
        EpisodeError: there is no such observation, the tool hardly moved, or there are several
            arms.
    """
    tracks = [_track(episode, velocity) for episode in episodes]
    motion = sum(float((measured**2).sum()) for _, measured, _ in tracks)
    if not tracks or motion < 1e-6:
        raise EpisodeError(
            f"{len(tracks)} episodes: expected a moving tool, got a sum of squared speeds "
            f"of {motion:.1e}. Record some episodes in which the tool moves to and fro"
        )
    step = tracks[0][2]
    best = _search(tracks, np.arange(0.0, MAX_DELAY_S, step / 4))
    error, delay, lag, gain = _search(
        tracks, np.clip(best[1] + np.arange(-6, 7) * step / GRID_POINTS, 0.0, None)
    )
    return ArmResponse(float(delay), float(lag), float(gain), 1.0 - error / motion)


def _track(episode: Episode, velocity: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return commanded speeds (T, 3), measured ones (T + 1, 3), and a step's duration [s]."""
    if episode.arms:
        raise EpisodeError(
            f"episode {episode.id}: expected one arm, got {', '.join(episode.arms)}. Several arms "
            "are not supported here. Record one arm at a separate station"
        )
    velocities = episode.observations.get(velocity)
    if velocities is None or velocities.shape[1:] != (3,) or episode.executed.shape[1] < 3:
        actual = ", ".join(
            f"{name} {value.shape[1:]}" for name, value in episode.observations.items()
        )
        raise EpisodeError(
            f"episode {episode.id}: expected an observation '{velocity}' of shape (3,) and "
            f"actions of at least 3 dimensions, got {actual} and actions of "
            f"{episode.executed.shape[1]}"
        )
    step = float(np.median(np.diff(episode.stamps_ns))) / 1e9
    if step <= 0.0:
        raise EpisodeError(
            f"episode {episode.id}: expected stamps of time steps that increase, got steps "
            f"of {step:g} s. Leave the episode out, or record it again"
        )
    return episode.executed[:, :3] / step, np.asarray(velocities, float), step


def _search(tracks: list, delays: np.ndarray) -> tuple[float, float, float, float]:
    """Return squared error, delay, lag and gain of the best of these delays."""
    from scipy.optimize import minimize_scalar

    candidates = []
    for delay in delays:
        fitted = minimize_scalar(
            lambda log_lag, delay=delay: _error(tracks, delay, np.exp(log_lag))[0],
            bounds=np.log(LAGS_S),
        )
        lag = float(np.exp(fitted.x))
        error, gain = _error(tracks, delay, lag)
        candidates.append((error, delay, lag, gain))
    return min(candidates)


def _error(tracks: list, delay: float, lag: float) -> tuple[float, float]:
    """Return the smallest squared error over the gain, and that gain."""
    pairs = [
        (_simulate_tool(commanded, step, delay, lag), measured[1:])
        for commanded, measured, step in tracks
    ]
    size = sum(float((predicted**2).sum()) for predicted, _ in pairs)
    gain = sum(float((predicted * measured).sum()) for predicted, measured in pairs) / max(
        size, 1e-12
    )
    return sum(
        float(((gain * predicted - measured) ** 2).sum()) for predicted, measured in pairs
    ), gain


def _simulate_tool(commanded: np.ndarray, step: float, delay: float, lag: float) -> np.ndarray:
    """Return speeds (T, 3) at the ends of the steps of a tool that begins at rest, at gain 1."""
    from scipy.signal import lfilter

    fine = step / GRID_POINTS
    times = (np.arange(len(commanded) * GRID_POINTS) + 0.5) * fine - delay
    index = np.floor(times / step).astype(int)
    commands = np.where(index[:, None] >= 0, commanded[np.maximum(index, 0)], 0.0)
    decay = np.exp(-fine / lag)
    return lfilter([1.0 - decay], [1.0, -decay], commands, axis=0)[GRID_POINTS - 1 :: GRID_POINTS]
