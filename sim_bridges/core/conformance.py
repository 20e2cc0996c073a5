"""Conformance checks of a simulator against the robot interface (``rlinf check sim``)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, RlinfError, escape_ascii
from rlinf_core.interlock import load_limits
from rlinf_core.policies.base import ActionChunk, Observation
from rlinf_core.recipes import Recipe, load_recipe
from rlinf_core.recipes.station import station_robot
from rlinf_core.rollouts.envs import single_action_chunks
from rlinf_core.rollouts.evaluate import EpisodeResult, play
from rlinf_core.specs.topics import TOPICS, arm_of
from sim_bridges.core.gym import Environments, StationEnv
from sim_bridges.core.interface import Arms, Channels, as_arms
from sim_bridges.core.station import SimulatedStation, simulated_station

TIMEOUT_S = 90.0  # of a station without progress


@dataclass(frozen=True)
class Row:
    """The result of one check: name, whether it passed, the observed and the expected values."""

    name: str
    passed: bool
    measured: str
    expected: str = ""

    def __str__(self) -> str:
        expectation = "" if self.passed or not self.expected else f"; expected {self.expected}"
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name:<54}{self.measured}{expectation}"


def checks(
    recipe: Recipe, episodes: int, station: bool, figures: dict[str, Any], video: Path | None = None
) -> Iterator[Row]:
    """Yield the result of every check.

    ``figures`` collects the numbers; ``video`` is the file of a film.
    """
    started = time.perf_counter()
    simulated = simulated_station(recipe)
    simulator = simulated.simulator
    figures["build_s"] = time.perf_counter() - started
    yield Row("it starts", True, f"{figures['build_s']:.1f} s")
    robot = station_robot(recipe)
    yield from _scenes(simulator)
    yield from _channels(simulator, simulated.task.channels)
    for arm, limits in robot.limits_by_arm.items():
        yield from _motion(as_arms(simulator), arm, load_limits(limits))
    yield from _pictures(simulator, robot.cameras)
    if simulated.task.channels <= simulator.channels().keys() | {
        f"camera/{name}/image" for name in robot.cameras
    }:
        yield from _front_ends(recipe, simulated, episodes, station, figures, video)


def _state_after_motion(simulator: Any, seed: int) -> np.ndarray:
    robot = as_arms(simulator)
    robot.reset(seed)
    targets = {
        arm: pose + [0.02, -0.02, 0.02, 0, 0, 0, 0] for arm, pose in robot.tcp_poses().items()
    }
    for _ in range(round(0.5 / simulator.tick_s)):
        robot.advance_arms(targets, dict.fromkeys(robot.arms, 0.0))
    return np.concatenate(list(simulator.channels().values()))


def _scenes(simulator: Any) -> Iterator[Row]:
    first = _state_after_motion(simulator, 11)
    again = _state_after_motion(simulator, 11)
    other = _state_after_motion(simulator, 12)
    difference = float(np.abs(first - again).max())
    yield Row(
        "a seed gives the same scene and motion",
        difference < 1e-9,
        f"apart by {difference:.1e}",
        "less than 1e-9",
    )
    yield Row(
        "another seed gives another scene",
        not np.allclose(first, other),
        f"apart by {np.abs(first - other).max():.2g}",
        "some difference",
    )


def _channels(simulator: Any, needed: set[str]) -> Iterator[Row]:
    """Check the names, shapes and values of a simulator's channels."""
    simulator.reset(0)
    channels = simulator.channels()
    shapes = _expected_shapes(channels, len(simulator.joint_names))
    poses = {f"{arm}/current_pose" if arm else "current_pose" for arm in as_arms(simulator).arms}
    wrong = [
        name
        for name, value in channels.items()
        if value.shape != shapes.get(name)
        or value.dtype != np.float64
        or not np.isfinite(value).all()
    ]
    measured = [f"{name} {channels[name].dtype} {channels[name].shape}" for name in wrong]
    expected = [
        f"{name} float64 {shapes[name]}, finite" if name in shapes else f"no {name}"
        for name in wrong
    ]
    yield Row(
        "channels have the interface's names and shapes",
        not wrong and poses <= channels.keys(),
        ", ".join(measured or channels),
        ", ".join(expected) or f"{', '.join(sorted(poses))} among them",
    )
    missing = sorted(name for name in needed - channels.keys() if not name.startswith("camera/"))
    yield Row(
        "the channels of the task exist",
        not missing,
        f"missing {', '.join(missing)}" if missing else ", ".join(sorted(needed)),
        ", ".join(sorted(needed)),
    )
    lengths = [
        np.linalg.norm(value[3:]) for name, value in channels.items() if name.endswith("_pose")
    ]
    yield Row(
        "orientations are unit quaternions",
        np.allclose(lengths, 1.0, atol=1e-4),
        f"{min(lengths):.5f} to {max(lengths):.5f}",
        "length 1 within 1e-4",
    )


def _expected_shapes(channels: Channels, joints: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each channel that the robot interface knows."""
    shapes = {
        row.name: tuple(joints if size == -1 else size for size in row.channel)
        for row in TOPICS
        if row.channel
    }
    topics = {name: name.removeprefix(f"{arm_of(name)}/") for name in channels}
    return {name: shapes[topic] for name, topic in topics.items() if topic in shapes}


def _motion(robot: Arms, arm: str, limits: Any) -> Iterator[Row]:
    """Check the motion of one arm while the others stay."""
    suffix = f" ({arm})" if arm else ""
    widths = robot.gripper_widths()
    robot.reset(0)
    advance = _advance_one(robot, arm, widths)
    start = robot.tcp_poses()[arm]
    is_inside = bool(np.all(start[:3] >= limits.box_low) and np.all(start[:3] <= limits.box_high))
    yield Row(
        f"it starts inside the interlock's box{suffix}",
        is_inside,
        np.array2string(start[:3], precision=3),
        f"between box_low {list(limits.box_low)} and box_high {list(limits.box_high)}",
    )
    ticks_per_s = round(1.0 / robot.tick_s)
    worst_m, worst_text = 0.0, ""
    for axis in range(3):
        for distance in (0.03, 0.0):
            target = start.copy()
            target[axis] += distance if axis == 2 or distance == 0.0 else -distance
            for _ in range(ticks_per_s):
                advance(target)
            error = (robot.tcp_poses()[arm] - target)[:3]
            if (largest := float(np.abs(error).max())) > worst_m:
                error_axis = int(np.abs(error).argmax())
                worst_m = largest
                worst_text = (
                    f", worst along {'xyz'[error_axis]} ({1e3 * error[error_axis]:+.1f} mm) for "
                    f"targets along {'xyz'[axis]}"
                )
    yield Row(
        f"the tool follows its target along each axis{suffix}",
        worst_m < 0.005,
        f"within {1e3 * worst_m:.1f} mm after a second{worst_text}",
        "within 5 mm",
    )
    for _ in range(ticks_per_s):
        advance(None)
    rest = robot.tcp_poses()[arm][:3]
    for _ in range(ticks_per_s):
        advance(None)
    moved_m = float(np.abs(robot.tcp_poses()[arm][:3] - rest).max())
    yield Row(
        f"without targets it rests{suffix}",
        moved_m < 0.002,
        f"{1e3 * moved_m:.2f} mm in a second",
        "less than 2 mm",
    )
    if limits.gripper_width:
        measured_widths = []
        for target_width in (limits.gripper_width, 0.0, limits.gripper_width):
            for _ in range(ticks_per_s):
                advance(start, target_width)
            measured_widths.append(robot.gripper_widths()[arm] or 0.0)
        opened, closed, reopened = measured_widths
        error_m = max(abs(closed), limits.gripper_width - opened, limits.gripper_width - reopened)
        yield Row(
            f"the gripper opens and closes{suffix}",
            error_m < 0.01,
            " -> ".join(f"{1e3 * width:.0f}" for width in measured_widths) + " mm",
            f"{1e3 * limits.gripper_width:.0f} -> 0 -> {1e3 * limits.gripper_width:.0f} mm, within "
            f"10",
        )


def _advance_one(robot: Arms, arm: str, widths: dict[str, float | None]) -> Callable[..., None]:
    """Return a function that advances one tick with a command to one arm.

    The others stay at their poses, with these gripper widths.
    """
    poses: dict[str, np.ndarray | None] = {**robot.tcp_poses()}

    def advance(pose: np.ndarray | None, width: float | None = None) -> None:
        robot.advance_arms(poses | {arm: pose}, widths | {arm: width})

    return advance


def _pictures(simulator: Any, cameras: dict[str, Any]) -> Iterator[Row]:
    missing = [name for name in cameras if name not in simulator.cameras]
    yield Row(
        "the robot's cameras exist",
        not missing,
        ", ".join([f"no {name}" for name in missing] if missing else cameras),
        ", ".join(cameras),
    )
    results: dict[str, bool | str] = {}  # whether the pictures are as expected, or an error
    for name in (*cameras, "video"):
        pictures: list[np.ndarray] = []
        for seed in (1, 2):
            simulator.reset(seed)
            robot = as_arms(simulator)
            targets = {
                arm: pose + [0.0, 0.06 * (seed - 1.5), 0.0, 0, 0, 0, 0]
                for arm, pose in robot.tcp_poses().items()
            }
            for _ in range(round(0.5 / simulator.tick_s)):
                robot.advance_arms(targets, dict.fromkeys(robot.arms))
            try:
                pictures.append(np.asarray(simulator.render(name, 96, 128)).astype(int))
            except Exception as error:  # a renderer's failure must not stop the other checks
                results[name] = f"render raised {type(error).__name__}: {escape_ascii(error)[:160]}"
                break
        if len(pictures) < 2:
            continue
        is_picture = pictures[0].shape == (96, 128, 3) and pictures[0].std() > 5
        results[name] = (
            is_picture and float((np.abs(pictures[0] - pictures[1]).max(-1) > 25).mean()) > 0.0005
        )
    yield Row(
        "cameras see scene and arm change",
        all(result is True for result in results.values()),
        ", ".join(f"{name} {result}" for name, result in results.items()),
        "pictures (96, 128, 3) with more than one colour, different for another scene",
    )


def rotation_deg(pose: np.ndarray) -> str:
    """Return the orientation of a pose (7,) as a rotation vector in the base frame [degrees]."""
    axis, angle = pose[3:6], 2 * np.arctan2(np.linalg.norm(pose[3:6]), pose[6])
    rotation = np.rad2deg(angle) * axis / max(float(np.linalg.norm(axis)), 1e-9)
    return np.array2string(rotation, precision=0, suppress_small=True)


def _failures(guarded: SimulatedStation, scenes: list[int]) -> str:
    """Describe the first failed scene: the tool's start pose, and the interlock's last hold."""
    if not scenes:
        return ""
    guarded.reset(scenes[0])
    starts = ", ".join(
        f"{arm or 'the tool'} starts turned by {rotation_deg(pose)} degrees"
        for arm, pose in guarded.robot.tcp_poses().items()
    )
    last, cause = False, "never held it"
    while not last:
        last = guarded.step(guarded.expert())[1].last
        cause = next(
            (f"held it last for {reason}" for reason in guarded.hold_reasons if reason), cause
        )
    return f"; scene {scenes[0]}: {starts}; the interlock {cause}"


def film(guarded: SimulatedStation, scene: int) -> list[np.ndarray]:
    """Return pictures (480, 640, 3) of the script in a scene, one per time step."""
    guarded.reset(scene)
    pictures, last = [guarded.simulator.render("video", 480, 640)], False
    while not last:
        last = guarded.step(guarded.expert())[1].last
        pictures.append(guarded.simulator.render("video", 480, 640))
    return pictures


def _save_film(guarded: SimulatedStation, scene: int, video: Path) -> str:
    from rlinf_core.reports.films import write_video

    try:
        write_video(video, film(guarded, scene))
    except Exception as error:  # any failure of renderer or encoder
        return f"; no film: {type(error).__name__}: {error}"
    return f"; film of scene {scene}: {video}"


def _front_ends(
    recipe: Recipe,
    guarded: SimulatedStation,
    episodes: int,
    ros: bool,
    figures: dict[str, Any],
    video: Path | None = None,
) -> Iterator[Row]:
    """Check the task with its script: without the interlock, behind it, and over ROS."""
    scenes = range(recipe.collect.first_seed, recipe.collect.first_seed + episodes)
    results: dict[str, list[EpisodeResult]] = {}
    unguarded_note = ""
    try:
        unguarded = SimulatedStation(guarded.simulator, guarded.task, guarded.limits, guarded=False)
    except RecipeError as error:  # a task that needs the interlock
        unguarded_note = f"; not played without the interlock: {error}"
    else:
        results["vectorised"] = _play_script(unguarded, "vectorised", scenes, figures)
    reference = _play_script(guarded, "vectorised_interlock", scenes, figures)
    results["vectorised_interlock"] = reference
    # the simulator measures success only for its default task
    is_default_task = station_robot(recipe).task == recipe.station.task
    agreed = _agreement(guarded, scenes) if is_default_task else None
    failed = [scene for scene, result in zip(scenes, reference, strict=True) if not result.success]
    remark = unguarded_note + _failures(guarded, failed)
    remark += _save_film(guarded, (failed or [scenes[0]])[0], video) if video else ""
    successes = {name: [result.success for result in played] for name, played in results.items()}
    rate = float(np.mean(successes["vectorised_interlock"]))
    yield Row(
        "the script solves the task",
        rate >= 0.7,
        "; ".join(
            f"{name} {sum(won)} of {len(won)}, {figures[f'{name}_steps_per_s']:.0f} steps/s"
            for name, won in successes.items()
        )
        + remark,
        "70 % behind the interlock",
    )
    by_chance = random_success(Environments([StationEnv(guarded)]), scenes)
    yield Row(
        "random actions rarely solve the task",
        by_chance <= 0.5 * rate,
        f"{by_chance:.0%}",
        f"at most {0.5 * rate:.0%}, half of the script's success",
    )
    if agreed is not None:
        yield Row(
            "our success agrees with the simulator's",
            agreed >= 0.9,
            f"{agreed:.0%} of our successes",
            "90 %. Does 'task' in robot.yaml match the simulator's own measure?",
        )
    if ros:
        expected = [(result.success, result.steps) for result in reference]
        row, successes["station"] = _station_row(recipe, scenes, expected)
        yield row
    figures |= {f"success_{name}": float(np.mean(won)) for name, won in successes.items()}
    figures["episodes"] = len(scenes)


def _play_script(
    station: SimulatedStation, name: str, scenes: range, figures: dict[str, Any]
) -> list[EpisodeResult]:
    """Play the task's script in each scene, and note the time steps a second."""
    started, vector = time.perf_counter(), Environments([StationEnv(station)])
    results = play(vector, lambda _: single_action_chunks(vector.expert()), 1, scenes)
    seconds = time.perf_counter() - started
    figures[f"{name}_steps_per_s"] = sum(result.steps for result in results) / seconds
    return results


def _station_row(
    recipe: Recipe, scenes: range, expected: list[tuple[bool, int]]
) -> tuple[Row, list[bool]]:
    """Compare success and time steps over ROS with the expected ones of each scene."""
    attempts, same = 0, 0
    while same < len(scenes) and attempts < 2:  # a busy machine can cause a hold
        attempts += 1
        played = _through_the_station(recipe, scenes)
        same = sum(ros == direct for ros, direct in zip(played, expected, strict=True))
    successes = [success for success, _ in played]
    row = Row(
        "the station over ROS gives the same result, scene by scene",
        same == len(scenes),
        f"success and steps are the same in {same} of {len(scenes)}; "
        f"{sum(successes)} succeed{'; played twice' if attempts > 1 else ''}",
        "all of them",
    )
    return row, successes


def load_recipe_like(recipe: Recipe, *overrides: str) -> Recipe:
    """Return a recipe with the same robot and task, and overrides."""
    return load_recipe(
        "sim_rlpd",
        [
            f"station.robot='{recipe.station.robot}'",
            f"station.task='{recipe.station.task}'",
            "station.lockstep=true",
            *overrides,
        ],
    )


def _agreement(simulated: SimulatedStation, scenes: range) -> float | None:
    """Return the fraction of our successes that the simulator confirms.

    It is None if it has no measure.
    """
    verdicts: list[bool] = []
    for scene in scenes:
        simulated.reset(scene)
        last = False
        while not last:
            result = simulated.step(simulated.expert())[1]
            last = result.last
        if result.success:
            verdict = simulated.simulator.succeeded()
            if verdict is None:
                return None
            verdicts.append(verdict)
    return float(np.mean(verdicts)) if verdicts else None


def random_success(vector: Environments, scenes: range) -> float:
    """Return the success rate of uniform random actions."""
    random = np.random.default_rng(0)

    def decide(observation: Observation) -> ActionChunk:
        return single_action_chunks(
            random.uniform(-1, 1, (len(observation), vector.spec.action.dim))
        )

    results = play(vector, decide, 1, scenes)
    return float(np.mean([result.success for result in results]))


def _through_the_station(recipe: Recipe, scenes: range) -> list[tuple[bool, int]]:
    """Play the script on a whole station over ROS, in lockstep.

    Returns success and time steps of each scene.
    """
    from rlinf_core.cli.demo import check_and_write
    from rlinf_core.launch.graph import compose, director_process, station_processes
    from rlinf_core.launch.supervisor import Supervisor, only_station

    recipe = load_recipe_like(
        recipe,
        f"collect.episodes={len(scenes)}",
        f"collect.first_seed={scenes[0]}",
        "collect.no_training=true",
        "station.name=check",
        "station.domain_id=57",
    )
    with TemporaryDirectory(prefix="rlinf-check-") as folder, only_station("check", 57):
        run_dir = Path(folder)
        check_and_write(recipe, run_dir)
        with Supervisor(run_dir, recipe.station.domain) as supervisor:
            for process in compose(
                recipe, station_processes(recipe, run_dir, without=("policy", "uplink"))
            ):
                supervisor.start(process)
            director = supervisor.start(director_process(recipe, run_dir))
            trouble = _until_ended(director.popen, supervisor, run_dir)
        events = [
            json.loads(line) for line in (run_dir / "progress.jsonl").read_text().splitlines()
        ]
        if trouble or director.popen.returncode:
            logs = "\n".join(
                f"{path.name}:\n{path.read_text()[-1000:]}"
                for path in sorted((run_dir / "logs").iterdir())
            )
            raise RlinfError(
                f"the station stopped: {trouble or events[-1].get('detail', '')}\n{logs}"
            )
    played = {
        event["seed"]: (event["success"], event["steps"])
        for event in events
        if event["event"] == "episode"
    }
    return [played.get(scene, (False, 0)) for scene in scenes]


def _until_ended(director: Any, supervisor: Any, run_dir: Path) -> str:
    """Wait for the director's end.

    Returns what it waits for if there is no progress; else empty.
    """
    progress, changed_at, size = run_dir / "progress.jsonl", time.monotonic(), 0
    while director.poll() is None:
        supervisor.poll()
        new_size = progress.stat().st_size if progress.exists() else 0
        if new_size != size:
            changed_at, size = time.monotonic(), new_size
        if time.monotonic() - changed_at > TIMEOUT_S:
            status = run_dir / "status.json"
            waiting_for = json.loads(status.read_text())["waiting_for"] if status.exists() else ""
            return f"no progress for {TIMEOUT_S:.0f} s. {waiting_for}"
        time.sleep(0.1)
    return ""
