"""The world model of a run: its file, the episodes for its fit, and its predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlinf_core.core.errors import EpisodeError, RlinfError
from rlinf_core.data.episodes import intact_episodes
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.policies.base import Policy
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.station import station_task
from rlinf_core.reports.curves import wilson
from rlinf_core.rollouts.episode_conversion import episode_to_trajectory
from rlinf_core.rollouts.evaluate import evaluate
from rlinf_core.rollouts.types import DEMONSTRATION, EVALUATE, TRAIN, Trajectory
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.trainer import checkpoint
from rlinf_core.worlds.episodes import Episodes
from rlinf_core.worlds.imagined import ImaginedEnv
from rlinf_core.worlds.imagined_video import ImaginedVideoEnv, spec_camera
from rlinf_core.worlds.model import WorldModel, load_world
from rlinf_core.worlds.video import RemoteVideo

FILE = "world.safetensors"
AT_ONCE = 64  # imagined episodes in parallel


def world_file(run: Path) -> Path:
    """Return the file of a run's world model; a path of a file is returned unchanged."""
    return run if run.is_file() else run / FILE


def run_episodes(run_dir: Path, spec: StationSpec) -> list[Trajectory]:
    """Return a run's recorded episodes, or those in the replay buffer of its newest checkpoint.

    Evaluations are left out.
    """
    try:
        recorded = [
            episode_to_trajectory(episode, spec)
            for _, episode in intact_episodes([run_dir], lambda _: None)
            if episode.spec_hash == spec.hash
        ]
    except EpisodeError:
        recorded = []
    if episodes := [trajectory for trajectory in recorded if trajectory.mode != EVALUATE]:
        return episodes
    state = checkpoint.load_newest(run_dir / "checkpoints")
    data = state.get("data", {}) if state else {}
    demonstrations = _buffered_episodes(data.get("demonstrations", {}), spec, DEMONSTRATION)
    online = _buffered_episodes(data.get("online", {}), spec, TRAIN)
    if not (demonstrations or online):
        raise RlinfError(
            f"{run_dir}: expected recorded episodes, or a checkpoint with a replay, got neither. "
            "Record with rlinf collect, or train with an algorithm that replays (sac, rlpd, "
            "crossq)"
        )
    return demonstrations + online


def _buffered_episodes(state: dict, spec: StationSpec, mode: str) -> list[Trajectory]:
    """Return the episodes in the state of a replay buffer."""
    arrays = state.get("arrays", {})
    if "vectors" not in arrays:
        return []
    capacity = len(arrays["vectors"])
    if state["inserted"] + state["episodes"] < capacity or not capacity:
        return []
    buffer = ReplayBuffer(spec, capacity)
    images = [image.name for image in spec.images]
    if any(name not in arrays for name in images):
        return []
    names = ("vectors", *images, "action", "reward", "discount", "starts", "final", "origin")
    buffer.load_state_dict(
        state | {"arrays": {name: arrays[name] for name in names}, "next": state["next"] % capacity}
    )
    return buffer.trajectories(mode)


def imagined_envs(recipe: Recipe) -> ImaginedEnv | ImaginedVideoEnv:
    """Return the environments of a recipe that trains in a world model alone.

    Raises:
        RlinfError: the model is worse than persistence and therefore off.
    """
    if recipe.world.video.model:
        return video_envs(recipe, recipe.simulation.environments)
    world, episodes = load_world(
        world_file(Path(recipe.world.run)), station_task(recipe), recipe.seed
    )
    env = ImaginedEnv(world, episodes, recipe.simulation.environments, recipe.world.horizon)
    env.length  # noqa: B018 (refuses a world that is off)
    return env


def video_envs(recipe: Recipe, size: int) -> ImaginedVideoEnv:
    """Return branches of the recipe's video model, which runs in a process of its own."""
    task, world = station_task(recipe), recipe.world
    spec_camera(task.spec)
    episodes = run_episodes(Path(world.run), task.spec)
    model = RemoteVideo(world.video.model, world.video.options)
    return ImaginedVideoEnv(model, task, episodes, size, world.horizon)


@dataclass(frozen=True)
class Prediction:
    """The prediction of a world model for a policy.

    Attributes:
        success: fraction of imagined episodes that succeeded.
        low: lower bound of its 95 % interval, which does not include the model's error.
        high: upper bound of that interval.
        unsure: fraction of episodes in which the ensemble disagreed beyond its threshold.
    """

    success: float
    low: float
    high: float
    unsure: float


def predict(world: WorldModel, episodes: Episodes, policy: Policy, scenes: int) -> Prediction:
    """Predict a policy's success in imagined episodes, without exploration.

    They begin in the first states of recorded episodes, the same ones for every policy.
    """
    env = ImaginedEnv(
        world, episodes, min(scenes, AT_ONCE), world.task.max_steps, gated=False, full_episodes=True
    )
    results = evaluate(env, policy, range(scenes))
    successes = sum(result.success for result in results)
    return Prediction(
        successes / len(results),
        *wilson(successes, len(results)),
        env.flagged / max(1, env.branch_count),
    )
