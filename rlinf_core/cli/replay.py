"""``rlinf replay``: repeat the recorded actions of an episode through a station's interlock."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from rlinf_core.cli.arguments import run_folder
from rlinf_core.cli.demo import exclusive_run, print_page_address, run_director
from rlinf_core.cli.output import write_json
from rlinf_core.cli.terminal import Display, restore_terminal
from rlinf_core.config.overrides import quote_value
from rlinf_core.core.errors import EpisodeError, RecipeError, RlinfError, escape_ascii
from rlinf_core.core.outputs import empty_folder
from rlinf_core.data.episodes import episode_spec, read_attachment
from rlinf_core.episodes.actions import RecordedActions, motion_difference, read_actions
from rlinf_core.episodes.read import read_episode
from rlinf_core.interlock import load_limits
from rlinf_core.launch.graph import (
    SHUTDOWN,
    compose,
    director_process,
    operator_process,
    station_processes,
    write_plan,
)
from rlinf_core.recipes import Recipe, load_recipe, station_robot, station_task
from rlinf_core.reports.recordings import run_recipe
from rlinf_core.robots.drivers import SIMULATOR
from rlinf_core.robots.operators import REPLAY

PERIOD = 0.2  # largest difference of the recorded rate, as a fraction of a time step


def replay(
    recording: Path,
    recipe: str | None,
    overrides: list[str],
    run_dir: Path | None,
    json_file: Path | None,
    in_sim: bool = False,
) -> int:
    """Play a recording on the station of its recipe, or of another; returns an exit code.

    In simulation the station is armed by itself. On a real arm a person arms at this terminal.
    With ``in_sim`` it plays in the recipe's simulator, without a station.
    """
    if in_sim and run_dir:
        raise RlinfError(
            f"--out {run_dir}: expected no --out with --in-sim, which writes no run folder. Use "
            "--json FILE for its figures",
            code="RL-E207",
        )
    run_dir = empty_folder(run_dir or run_folder(""))
    if in_sim:
        from rlinf_core.cli.real_to_sim import replay_in_sim

        return replay_in_sim(recording, recipe, overrides, json_file)
    actions = read_actions(recording)
    operator = f"station.operator={{kind: {REPLAY}, recording: {quote_value(recording.resolve())}}}"
    name = recipe or str(run_recipe(recording))
    loaded = load_recipe(
        name, [*overrides, operator, "collect.episodes=1", "collect.no_training=true"]
    )
    check_recording(actions, recording, loaded, name)
    code = _play(loaded, actions, run_dir)
    return code or _compare(actions, loaded, run_dir, json_file)


def check_recording(actions: RecordedActions, recording: Path, recipe: Recipe, name: str) -> None:
    """Raise EpisodeError if the recording's robot, limits, units or rate are not the station's."""
    episode = actions.episode
    robot = station_robot(recipe)
    spec = station_task(recipe).spec
    recorded = episode_spec(episode, recording, None)
    period_s = float(episode.stamps_ns[-1] - episode.stamps_ns[0]) / 1e9 / len(episode)
    if abs(period_s * spec.control_hz - 1.0) > PERIOD:
        raise EpisodeError(
            f"{recording}: expected {spec.control_hz:g} time steps per second (the station's), got "
            f"{1.0 / period_s:.1f}. Name the recipe of this recording: --recipe"
        )
    if recorded.hash != spec.hash and episode.spec_hash != spec.hash:
        difference = spec.difference(recorded) or "units or scales of the actions differ"
        raise EpisodeError(
            f"{recording}: expected the specs of the station of '{name}' ({spec.hash}), got "
            f"{episode.spec_hash}:\n{difference}\nName the recipe of this recording: --recipe"
        )
    before = _robot_of(recording)
    if before and Path(before).name != Path(recipe.station.robot).name:
        raise EpisodeError(
            f"{recording}: expected a recording of robot '{recipe.station.robot}', got one of "
            f"'{before}'. Name a recipe of that robot: --recipe"
        )
    limits = "+".join(load_limits(path).hash for _, path in sorted(robot.limits_by_arm.items()))
    if episode.limits_hash != limits:
        raise EpisodeError(
            f"{recording}: expected limits {limits} (the station's), got "
            f"{episode.limits_hash}{_limits_difference(recording, robot.limits_by_arm[''])}. The "
            "same actions would move the arm differently. Name the recipe and robot of this "
            "recording"
        )


def _robot_of(recording: Path) -> str:
    """Return the robot's name in the recording's attached recipe; empty without one."""
    import yaml

    document = yaml.safe_load(read_attachment(recording, "recipe.yaml") or b"") or {}
    return str(document.get("station", {}).get("robot", "")) if isinstance(document, dict) else ""


def _limits_difference(recording: Path, limits_file: Path) -> str:
    """Return the differences of the attached limits file from the station's, as text."""
    import yaml

    try:
        recorded_limits = yaml.safe_load(read_attachment(recording, "limits.yaml") or b"")
        station_limits = yaml.safe_load(limits_file.read_text())
    except (OSError, yaml.YAMLError):
        return ""
    if not isinstance(recorded_limits, dict) or not isinstance(station_limits, dict):
        return ""
    differences = [
        f"{name} {recorded_limits.get(name)}, here {station_limits.get(name)}"
        for name in sorted({*recorded_limits, *station_limits})
        if recorded_limits.get(name) != station_limits.get(name)
    ]
    return f" ({', '.join(differences)})" if differences else ""


def _play(recipe: Recipe, actions: RecordedActions, run_dir: Path) -> int:
    terminal = sys.stdin.isatty() and not recipe.station.web.port
    if not (station_robot(recipe).without_hardware or terminal or recipe.station.web.port):
        raise RecipeError(
            "rlinf replay: expected a terminal, where a person arms the arm, got none. Run it in "
            "a terminal"
        )
    operator = replace(operator_process(recipe, run_dir), terminal=terminal, restart=SHUTDOWN)
    with restore_terminal(), exclusive_run(recipe, run_dir) as supervisor:
        print(f"run folder: {run_dir}", flush=True)
        print_page_address(recipe)
        processes = station_processes(recipe, run_dir, without=("policy", "uplink", "operator"))
        for process in compose(recipe, [*processes, operator]):
            supervisor.start(process)
        write_plan(
            recipe,
            run_dir,
            first_seed=actions.episode.seed,
            person=not station_robot(recipe).without_hardware,
        )
        run_director(
            supervisor,
            director_process(recipe, run_dir),
            run_dir,
            Display(recipe, run_dir, quiet=True),
        )
    return 0


def _compare(
    actions: RecordedActions, recipe: Recipe, run_dir: Path, json_file: Path | None
) -> int:
    """Print how far the motion was from the recorded one.

    Returns 1 if a repeatable simulation differs.
    """
    closed = sorted((run_dir / "spool/closed").iterdir(), key=lambda folder: folder.stat().st_mtime)
    difference = motion_difference(actions.episode, read_episode(closed[-1]))
    lockstep = recipe.station.lockstep and station_robot(recipe).driver == SIMULATOR
    same = difference == 0.0
    text = (
        "the same motion, to the last bit"
        if same
        else (
            f"largest difference of the motion: {difference:.3g} (units of actions and "
            f"observations)"
        )
    )
    print(f"{text}; {escape_ascii(shlex.quote(str(closed[-1])))}", flush=True)
    write_json(json_file, {"same": same, "difference": min(difference, 1e9)})
    return int(lockstep and not same)
