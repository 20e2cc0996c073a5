"""Recorded episodes played again in a simulator, and the simulator's parameters fitted to them.

The fit needs no gradient: it searches the parameters whose replay is nearest to the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlinf_core.core.errors import EpisodeError, RecipeError
from rlinf_core.episodes.arm_response import identify
from rlinf_core.episodes.types import Episode
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.schema import Dynamics
from rlinf_core.recipes.station import station_task
from rlinf_core.specs.arrays import ArraySpec, StationSpec
from rlinf_core.specs.frames import CHANNELS, frames_fault
from rlinf_core.specs.topics import topic
from rlinf_core.worlds.coordinates import Coordinates
from sim_bridges.core.interface import options_of
from sim_bridges.core.station import SimulatedStation, simulated_station

CONTACT_N = 2.0  # force above which a time step counts as contact
FRICTIONS = np.geomspace(0.05, 2.0, 8)
MAX_CONTACT_EPISODES = 2  # episodes with contact in the fit of the friction
MAX_EPISODES = 4  # in a fit
MAX_FREE_STEPS = 30  # time steps of an episode in the fit of the response
MIN_FREE_STEPS = 10  # time steps before contact for that fit
MAX_FRAMES = 8  # pictures in the fit of a camera
BLURS_PX = (4.0, 2.0, 1.0)  # standard deviations of the blur, one after the other [pixels]
CAMERA_STEP = 6e-3  # step of a camera's numerical derivative [m, rad]; about half a pixel
MAX_CAMERA_UPDATES = 25  # steps of a camera's pose for each blur
FIRST_STEPS = (0.08, 0.08, 0.1)  # first steps of the search, of delay [s], lag [s] and gain
# search directions of delay, lag and gain; a longer delay with a shorter lag looks similar
DIRECTIONS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, -1, 0), (1, -0.5, 0))
MIN_STEP_S = 0.004  # the search ends at this step of the delay
QUATERNION_TOLERANCE = 0.01  # allowed error of its length; float32 has a far smaller one
REPAIR = "Leave this recording out, or record it again. `rlinf data check` looks for more"


@dataclass(frozen=True)
class Replay:
    """A recorded episode of T transitions beside its replay in a simulator.

    Attributes:
        tool_mm: (T + 1,) distance of the tool from the recorded one [mm].
        force_n: (T + 1,) difference of the measured force [N]; empty if it was not recorded.
        contact: (T + 1,) mask of the time steps with recorded contact.
        arranged: False if the simulator cannot put tool and object where they were; then
            displacements are compared.
        speeds: (T + 1, 3) of the tool in the replay [m/s]; empty without a measurement.
    """

    tool_mm: np.ndarray
    force_n: np.ndarray
    contact: np.ndarray
    arranged: bool
    speeds: np.ndarray


def replay(station: SimulatedStation, episode: Episode) -> Replay:
    """Play a recorded episode's executed actions in a simulated station without interlock.

    Raises:
        EpisodeError: the recording has other observations or actions than the station, not the
            tool's position, or damaged numbers.
    """
    spec = station.task.spec
    channels = recorded_channels(spec, episode)
    if "current_pose" not in channels[0] or episode.executed.shape[1] != spec.action.dim:
        raise EpisodeError(
            f"episode {episode.id}: expected the tool's position among the observations and "
            f"actions of {spec.action.dim} dimensions, got {', '.join(episode.observations)} and "
            f"{episode.executed.shape[1]}. Name the recipe of this recording: --recipe"
        )
    if not np.isfinite(episode.executed).all():
        row = int(np.flatnonzero(~np.isfinite(episode.executed).all(1))[0])
        raise EpisodeError(
            f"episode {episode.id}: expected finite actions, got {episode.executed[row].tolist()} "
            f"at time step {row}. {REPAIR}"
        )
    arranged = hasattr(station.simulator, "arrange") and _can_arrange(station)
    station.reset(episode.seed, channels[0] if arranged else None)
    played = [station.channels]
    for executed in episode.executed:
        station.step(spec.action.from_si(executed))
        played.append(station.channels)
    recorded_tool = np.array([step["current_pose"][:3] for step in channels])
    played_tool = np.array([step["current_pose"][:3] for step in played])
    shift = np.zeros(3) if arranged else recorded_tool[0] - played_tool[0]
    force = np.zeros(0)
    contact = np.zeros(len(recorded_tool), bool)
    if any(item.source == "wrench" for item in spec.vectors):
        recorded_force = np.array([step["wrench"][:3] for step in channels])
        force = np.linalg.norm(
            np.array([step["wrench"][:3] for step in played]) - recorded_force, axis=1
        )
        contact = np.linalg.norm(recorded_force, axis=1) > CONTACT_N
    distance = np.linalg.norm(played_tool + shift - recorded_tool, axis=1) * 1000.0
    twists = [step["current_twist"][:3] for step in played if "current_twist" in step]
    return Replay(distance, force, contact, arranged, np.array(twists))


def _can_arrange(station: SimulatedStation) -> bool:
    inner = getattr(station.simulator, "_simulator", station.simulator)
    return hasattr(inner, "arrange")


def recorded_channels(spec: StationSpec, episode: Episode) -> list[dict[str, np.ndarray]]:
    """Return the channels of each time step, as far as the observed numbers contain them.

    Raises:
        EpisodeError: an observation is missing, has another shape, is not finite, or its pose has
            no rotation. The message names it and the time step.
    """
    missing = [item.name for item in spec.vectors if item.name not in episode.observations]
    if missing:
        raise EpisodeError(
            f"episode {episode.id}: expected the observations of the recipe's task, got none "
            f"called {', '.join(missing)}. Name the recipe of this recording: --recipe"
        )
    for item in spec.vectors:
        _check_observed(item, episode)
    coordinates = Coordinates(spec)
    observed = {item.source for item in spec.vectors}
    rows = []
    for step in range(len(episode) + 1):
        values = {item.name: episode.observations[item.name][step] for item in spec.vectors}
        channels = coordinates.channels(
            np.concatenate([np.ravel(values[item.name]) for item in spec.vectors])
        )
        rows.append({name: value for name, value in channels.items() if name in observed})
    return rows


def _check_observed(item: ArraySpec, episode: Episode) -> None:
    """Raise EpisodeError if an observation's numbers cannot be a robot's."""
    values, name = episode.observations[item.name], f"episode {episode.id}: '{item.name}'"
    rows = np.reshape(values, (len(values), -1))
    if rows.shape != (len(episode) + 1, item.size):
        raise EpisodeError(
            f"{name}: expected shape {(len(episode) + 1, item.size)}, got {values.shape}. Name "
            "the recipe of this recording: --recipe"
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(bad):
        raise EpisodeError(
            f"{name}: expected finite numbers, got {rows[bad[0]].tolist()} at time step {bad[0]}. "
            f"{REPAIR}"
        )
    if item.take != "all" or topic(item.source).channel != (7,):
        return
    lengths = np.linalg.norm(rows[:, 3:7], axis=1)
    bad = np.flatnonzero(np.abs(lengths - 1.0) > QUATERNION_TOLERANCE)
    if len(bad):
        raise EpisodeError(
            f"{name}: expected a quaternion xyzw of length 1, got {rows[bad[0], 3:7].tolist()} of "
            f"length {lengths[bad[0]]:.3g} at time step {bad[0]}. {REPAIR}"
        )


def with_dynamics(recipe: Recipe, dynamics: Dynamics, options: dict[str, Any]) -> Recipe:
    """Return the recipe with another response of the arm and further options of its simulator."""
    station = recipe.station.model_copy(update={"options": {**recipe.station.options, **options}})
    simulation = recipe.simulation.model_copy(update={"dynamics": dynamics, "interlock": False})
    return recipe.model_copy(update={"station": station, "simulation": simulation})


@dataclass(frozen=True)
class Fit:
    """A simulator fitted to recordings.

    Attributes:
        dynamics: the arm's response beside the simulator's own.
        options: options of the simulator: friction and camera poses, as far as it has them.
        before_mm: mean distance of the tool in a replay with the recipe's values [mm].
        after_mm: the same with the fitted values.
        picture_errors: by camera, mean difference of the pictures before and after (of 255).
    """

    dynamics: Dynamics
    options: dict[str, Any]
    before_mm: float
    after_mm: float
    picture_errors: dict[str, tuple[float, float]]


def fit(recipe: Recipe, episodes: Sequence[Episode], log: Callable[[str], None]) -> Fit:
    """Fit delay, lag, gain, friction and camera poses of a recipe's simulator to recordings.

    Args:
        recipe: its simulator, robot and task; its values are the beginning of the search.
        episodes: recordings of the same task; the longest motions and the most contact are used.
        log: receives a line about each part.
    """

    def motion(episode: Episode) -> float:
        return float(np.abs(episode.executed[:, :3]).sum())

    longest_motions = sorted(episodes, key=lambda episode: -motion(episode))[:MAX_EPISODES]
    if not longest_motions:
        raise EpisodeError("a fit of the simulator: expected recorded episodes, got none")
    start, spec = recipe.simulation.dynamics, station_task(recipe).spec
    options: dict[str, Any] = {}
    player = Player(recipe)
    before = player.tool_error(start, longest_motions)
    free_motions = [_beginning(spec, episode) for episode in longest_motions]
    dynamics = _fit_response(player, free_motions, _first_guess(player, free_motions, spec, start))
    log(f"delay {dynamics.delay_s:.3f} s, lag {dynamics.lag_s:.3f} s, gain {dynamics.gain:.3f}")
    available = options_of(_simulator_name(recipe)).model_fields
    if "friction" in available:
        friction = fit_friction(player, spec, dynamics, episodes)
        if friction is None:
            log("friction: no recorded contact, so it stays. Record the tool sliding on the table")
        else:
            options["friction"] = friction
            log(f"friction {friction:.3f}")
            player.station.simulator.set_friction(friction)
    pictures: dict[str, tuple[float, float]] = {}
    for camera, name in _cameras(recipe):
        if f"{camera}_camera" in available:
            offset, errors = fit_camera(recipe, camera, name, episodes)
            options[f"{camera}_camera"] = tuple(round(float(value), 5) for value in offset)
            pictures[camera] = errors
            offset_text = ", ".join(f"{value:.4f}" for value in offset)
            log(
                f"camera {camera}: moved by {offset_text} [m, rad]; mean difference of the "
                f"pictures {errors[0]:.1f} before, {errors[1]:.1f} after (of 255)"
            )
    after = player.tool_error(dynamics, longest_motions)
    return Fit(dynamics, options, before, after, pictures)


def object_range(
    recipe: Recipe, episodes: Sequence[Episode]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the smallest and largest recorded position of each object and goal [m]."""
    spec = station_task(recipe).spec
    first = [recorded_channels(spec, episode)[0] for episode in episodes]
    names = [
        name for name in ("object_pose", "goal_pose") if all(name in channels for channels in first)
    ]
    places = {name: np.array([channels[name][:3] for channels in first]) for name in names if first}
    return {name: (place.min(0), place.max(0)) for name, place in places.items()}


def _simulator_name(recipe: Recipe) -> str:
    from rlinf_core.recipes.station import station_robot

    robot = station_robot(recipe)
    if robot.driver != "simulator":
        raise RecipeError(
            f"a replay in simulation: expected a recipe with a simulated robot, got "
            f"'{recipe.station.robot}'. Name one: --recipe RECIPE --set station.robot=ROBOT"
        )
    return str(robot.simulator)


def _cameras(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield each observed camera with the name of its pictures in an episode."""
    for image in station_task(recipe).spec.images:
        yield image.source.split("/")[1], image.name


class Player:
    """Plays recordings in a recipe's simulator, with one response of the arm after another.

    Args:
        recipe: its simulator and task; cameras are left out.
        options: further options of the simulator.
    """

    def __init__(self, recipe: Recipe, options: dict[str, Any] | None = None) -> None:
        blind = recipe.station.model_copy(update={"observe_cameras": ()})
        recipe = recipe.model_copy(update={"station": blind})
        # any response but the simulator's own, so that the station has a changeable one
        self.station = simulated_station(with_dynamics(recipe, Dynamics(gain=2.0), options or {}))

    def replays(self, dynamics: Dynamics, episodes: Sequence[Episode]) -> list[Replay]:
        """Return the replay of each episode."""
        self.station.simulator.dynamics = dynamics
        return [replay(self.station, episode) for episode in episodes]

    def tool_error(self, dynamics: Dynamics, episodes: Sequence[Episode]) -> float:
        """Return the mean distance of the tool [mm]."""
        replays = self.replays(dynamics, episodes)
        return float(np.concatenate([replay.tool_mm for replay in replays]).mean())


def _beginning(spec: StationSpec, episode: Episode) -> Episode:
    """Return an episode's time steps before its first contact, at most ``MAX_FREE_STEPS``."""
    names = [item.name for item in spec.vectors if item.source == "wrench"]
    end = min(len(episode), MAX_FREE_STEPS)
    if names and names[0] in episode.observations:
        force = np.linalg.norm(episode.observations[names[0]][:, :3], axis=1)
        touching = np.flatnonzero(force > CONTACT_N)
        if len(touching) and touching[0] >= MIN_FREE_STEPS:
            end = min(end, int(touching[0]))
    observations = {name: values[: end + 1] for name, values in episode.observations.items()}
    return replace(
        episode,
        observations=observations,
        executed=episode.executed[:end],
        rewards=episode.rewards[:end],
        stamps_ns=episode.stamps_ns[: end + 1],
    )


def _first_guess(
    player: Player, episodes: Sequence[Episode], spec: StationSpec, start: Dynamics
) -> Dynamics:
    """Return the difference of the responses of arm and simulator, each fitted to its speeds."""
    name = next((item.name for item in spec.vectors if item.take == "linear"), "")
    replays = player.replays(start, episodes)
    if not name or not all(len(replay.speeds) for replay in replays):
        return start
    simulated = [
        replace(episode, observations=episode.observations | {name: replay.speeds})
        for episode, replay in zip(episodes, replays, strict=True)
    ]
    arm, simulator = identify(episodes, name), identify(simulated, name)
    return Dynamics(
        delay_s=min(max(start.delay_s + arm.delay_s - simulator.delay_s, 0.0), 2.0),
        lag_s=min(max(start.lag_s + arm.lag_s - simulator.lag_s, 0.0), 5.0),
        gain=float(np.clip(start.gain * arm.gain / max(simulator.gain, 1e-3), 0.05, 2.0)),
    )


def _fit_response(player: Player, episodes: Sequence[Episode], first: Dynamics) -> Dynamics:
    """Search delay, lag and gain along ``DIRECTIONS``, with ever smaller steps."""
    values = np.array([first.delay_s, first.lag_s, first.gain])
    directions, scale = np.array(DIRECTIONS), 0.5

    def response(values: np.ndarray) -> Dynamics:
        delay_s, lag_s, gain = (round(float(value), 4) for value in values)
        return Dynamics(delay_s=delay_s, lag_s=lag_s, gain=gain)

    best = player.tool_error(first, episodes)
    while scale * FIRST_STEPS[0] > MIN_STEP_S:
        better = False
        for direction in directions:
            for signed in (direction, -direction):
                candidate = np.maximum(values + scale * signed * FIRST_STEPS, (0.0, 0.0, 0.05))
                candidate = np.minimum(candidate, (2.0, 5.0, 2.0))
                if (candidate == values).all():
                    continue
                if (now := player.tool_error(response(candidate), episodes)) < best:
                    values, best, better = candidate, now, True
                    break
        scale = scale if better else scale / 2
    return response(values)


def fit_friction(
    player: Player, spec: StationSpec, dynamics: Dynamics, episodes: Sequence[Episode]
) -> float | None:
    """Search the coefficient whose forces in contact are nearest to the recorded ones.

    Returns:
        The coefficient; None without recorded contact.
    """
    forces = [item.name for item in spec.vectors if item.source == "wrench"]

    def touching(episode: Episode) -> int:
        values = [episode.observations[name] for name in forces if name in episode.observations]
        sizes = [np.linalg.norm(value[:, :3], axis=1) > CONTACT_N for value in values]
        return int(sizes[0].sum()) if sizes else 0

    chosen = sorted(filter(touching, episodes), key=lambda episode: -touching(episode))[
        :MAX_CONTACT_EPISODES
    ]
    if not chosen:
        return None

    def error(friction: float) -> float:
        player.station.simulator.set_friction(friction)
        replays = player.replays(dynamics, chosen)
        return float(np.concatenate([replay.force_n[replay.contact] for replay in replays]).mean())

    grid = FRICTIONS
    for _ in range(4):
        best = int(np.argmin([error(float(friction)) for friction in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        grid = np.geomspace(low, high, 5)
    return round(float(np.sqrt(low * high)), 4)


def fit_camera(
    recipe: Recipe, camera: str, name: str, episodes: Sequence[Episode]
) -> tuple[np.ndarray, tuple[float, float]]:
    """Fit a camera's shift and turn (6,) [m, rad] to recorded pictures, by Gauss and Newton.

    The simulator is put where the recording was, and its pictures are compared. The scene must look
    like the recorded one; a real camera is located with ``rlinf camera locate``.

    Raises:
        EpisodeError: no episode has pictures of the camera, or pictures are not uint8 (H, W, 3) of
            one size.

    Returns:
        The offset, and the mean difference of the pictures before and after (of 255).
    """
    frames = _recorded_frames(recipe, camera, name, episodes)
    station = simulated_station(with_dynamics(recipe, Dynamics(), {}))
    recorded = np.array([picture for _, picture in frames], float)
    height, width = recorded.shape[1:3]

    def render(offsets: Sequence[np.ndarray]) -> np.ndarray:
        """Return the pictures (offsets, frames, H, W, 3) of a camera with these offsets."""
        simulator: Any = station.simulator
        rows = []
        for channels, _ in frames:
            simulator.arrange(channels)
            row = []
            for offset in offsets:
                simulator.aim_camera(camera, offset)
                row.append(simulator.render(camera, height, width).astype(float))
            rows.append(row)
        return np.array(rows).swapaxes(0, 1)

    offset = np.zeros(6)
    before = float(np.abs(render([offset])[0] - recorded).mean())
    for blur in BLURS_PX:
        offset = _fit_offset(render, recorded, offset, blur * min(height, width) / 64.0)
    after = float(np.abs(render([offset])[0] - recorded).mean())
    return offset, (before, after)


def _recorded_frames(
    recipe: Recipe, camera: str, name: str, episodes: Sequence[Episode]
) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Return channels and picture (H, W, 3) of MAX_FRAMES time steps, evenly over all episodes."""
    spec = station_task(recipe).spec
    frames = []
    shape: tuple[int | None, ...] = (None, None, CHANNELS)
    for episode in episodes:
        if name not in episode.observations:
            continue
        if fault := frames_fault(episode.observations[name], (len(episode) + 1, *shape)):
            raise EpisodeError(f"episode {episode.id}: camera {name}: {fault}. {REPAIR}")
        shape = episode.observations[name].shape[1:]
        channels = recorded_channels(spec, episode)
        frames += [
            (channels[step], episode.observations[name][step]) for step in range(len(episode))
        ]
    if not frames:
        raise EpisodeError(
            f"camera {camera}: expected recorded pictures called {name}, got none. Record with "
            f"station.observe_cameras=[{camera}]"
        )
    return [frames[index] for index in np.linspace(0, len(frames) - 1, MAX_FRAMES).astype(int)]


def _fit_offset(
    render: Callable[[Sequence[np.ndarray]], np.ndarray],
    recorded: np.ndarray,
    offset: np.ndarray,
    blur_px: float,
) -> np.ndarray:
    """Return the offset (6,) of a camera whose blurred pictures are nearest to the recorded ones.

    Levenberg and Marquardt: Gauss-Newton steps, damped until they reduce the squared difference.
    """
    from scipy.ndimage import gaussian_filter

    def blurred(images: np.ndarray) -> np.ndarray:
        return gaussian_filter(images, [0] * (images.ndim - 3) + [blur_px, blur_px, 0])

    target, damping = blurred(recorded), 1e-3
    # each of the six numbers increased, then each decreased
    steps = [sign * CAMERA_STEP * unit for sign in (1, -1) for unit in np.eye(6)]
    for _ in range(MAX_CAMERA_UPDATES):
        images = blurred(render([offset, *(offset + step for step in steps)]))
        residual = (target - images[0]).ravel()
        slopes = ((images[1:7] - images[7:]) / (2 * CAMERA_STEP)).reshape(6, -1)
        gram, gradient = slopes @ slopes.T, slopes @ residual
        has_improved = False
        for _ in range(4):
            change = np.linalg.solve(gram + damping * np.diag(np.diag(gram)), gradient)
            change *= min(1.0, 0.03 / max(float(np.abs(change).max()), 1e-12))
            new_residual = (target - blurred(render([offset + change])[0])).ravel()
            if new_residual @ new_residual < residual @ residual:
                offset, damping, has_improved = offset + change, damping / 5, True
                break
            damping *= 8
        if not has_improved or np.abs(change).max() < 1e-4:
            break
    return offset
