"""``rlinf demo``, ``up``, ``run`` and ``teleop``: run a recipe's station and its phases."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rlinf_core.cli.output import write_json
from rlinf_core.cli.terminal import Display, foreground
from rlinf_core.core import extras
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.progress import Progress
from rlinf_core.episodes.storage import kind_of
from rlinf_core.launch.graph import (
    Process,
    check_operator,
    compose,
    director_process,
    operator_process,
    station_processes,
    trainer_process,
    write_plan,
)
from rlinf_core.launch.preflight import check_page, check_policy_device, check_report, check_trainer
from rlinf_core.launch.supervisor import Supervisor, command_line, only_station, ros_environment
from rlinf_core.page.access import token_of
from rlinf_core.recipes import Recipe, check_recipe, load_recipe
from rlinf_core.recipes.sources import STATIONS, source_of
from rlinf_core.reports.curves import read_events
from rlinf_core.reports.report import REPORT_STEPS, write_report
from rlinf_core.robots.operators import KEYBOARD, SCRIPTED
from rlinf_core.specs.topics import EPISODE
from rlinf_core.trainer.folder import write_recipe


def next_steps(
    recipe: Recipe, name: str, overrides: list[str], run_dir: Path, director: bool = False
) -> str:
    """Return the next commands for a user, one per line.

    Args:
        recipe: recipe of the station.
        name: name of the recipe, for the commands.
        overrides: its overrides, for the commands.
        run_dir: folder of the station, which its director shares.
        director: whether a director runs already.
    """
    station = recipe.station
    arguments = [
        *(item for item in overrides if not item.startswith("station.domain_id=")),
        *([f"station.domain_id={station.domain}"] if station.domain else []),
    ]
    same = " ".join(
        [shlex.quote(name), *(["--set", *map(shlex.quote, arguments)] if arguments else [])]
    )
    learns = not recipe.collect.no_training
    # two operators would cause HOLD
    needs_operator = station.operator.kind != SCRIPTED and not station.web.port
    steps = []
    if needs_operator:
        steps.append((f"rlinf teleop {same}", "the operator: arms, moves the arm, stops"))
    if learns:
        steps.append((f"rlinf train {same}", "the trainer, if none runs yet"))
    if not director:
        more = ", wait for the trainer, evaluate, improve" if learns else ""
        command = f"rlinf run {same} --out {shlex.quote(str(run_dir))}"
        steps.append((command, f"the phases: collect{more}"))
    steps.append((f"rlinf status {same}", "the state of the station"))
    head = (
        f"station '{station.name}' (ROS_DOMAIN_ID {station.domain}) now waits for you; next, "
        f"each in a terminal:"
    )
    return "\n".join([head, *(f"    {command}    # {purpose}" for command, purpose in steps)])


def demo(
    name: str, overrides: list[str], run_dir: Path, quiet: bool = False, web: int | None = None
) -> int:
    """Run a recipe from demonstrations to a report, with the operator's page on port ``web``.

    Returns an exit code.
    """
    recipe = load_recipe(name, [*overrides, *web_override(web)])
    _check_stations(recipe, name)
    extras.require("trainer", "rlinf demo")
    check_trainer(recipe, run_dir)
    check_policy_device(recipe)
    with Progress(1 + REPORT_STEPS) as progress:
        with exclusive_run(recipe, run_dir) as supervisor:
            print(f"run folder: {run_dir}", flush=True)
            if remark := short_run_note(recipe):
                print(remark, flush=True)
            print_page_address(recipe)
            supervisor.start(trainer_process(run_dir))
            for process in compose(recipe, station_processes(recipe, run_dir)):
                supervisor.start(process)
            director = director_process(recipe, run_dir)
            since = run_director(supervisor, director, run_dir, Display(recipe, run_dir, quiet))
            progress.step("stopping the station and its trainer")
        return _print_result(recipe, run_dir, since, progress)


SHORT_STEPS = 2000  # environment steps of online training; demo_tiny has 400


def short_run_note(recipe: Recipe) -> str:
    """Return a note that a run is too short to learn; empty if it is long enough."""
    online = recipe.online
    if recipe.collect.no_training or online.max_env_steps >= SHORT_STEPS:
        return ""
    return (
        f"this run is short: {online.max_env_steps} time steps of online training "
        "(online.max_env_steps). It tries all parts. Success afterwards may be lower than before. "
        "`rlinf demo` takes about ten minutes and learns"
    )


def _check_stations(recipe: Recipe, name: str) -> None:
    """Raise RecipeError if the recipe's trainer uses no station."""
    if recipe.simulation.environments:
        raise RecipeError(
            f"recipe {recipe.name}: expected one for stations, got simulation.environments = "
            f"{recipe.simulation.environments}. Run `rlinf train {name}`, or set it to 0"
        )
    if source_of(recipe) != STATIONS:
        raise RecipeError(
            f"recipe {recipe.name}: expected one for stations, got one that learns from "
            f"collect.recordings alone ({recipe.algorithm.name}). Run `rlinf train {name}`, with "
            "the same --set"
        )


@contextlib.contextmanager
def exclusive_run(recipe: Recipe, run_dir: Path) -> Iterator[Supervisor]:
    """Check a station, hold the lock of its name, write its recipe, and yield its supervisor."""
    check_station(recipe, run_dir)
    station = recipe.station
    with only_station(station.name, station.domain):
        _write(recipe, run_dir)
        with Supervisor(run_dir, station.domain) as supervisor:
            yield supervisor


def run_phases(name: str, overrides: list[str], run_dir: Path, quiet: bool = False) -> int:
    """Run the phases of a recipe on a running station."""
    recipe = load_recipe(name, overrides)
    check_report(recipe, "rlinf run")
    check_and_write(recipe, run_dir, starts=False)
    with Supervisor(run_dir, recipe.station.domain) as supervisor:
        since = run_director(
            supervisor, director_process(recipe, run_dir), run_dir, Display(recipe, run_dir, quiet)
        )
    with Progress(REPORT_STEPS) as progress:
        return _print_result(recipe, run_dir, since, progress)


def _print_result(
    recipe: Recipe, run_dir: Path, since: int = 0, progress: Progress | None = None
) -> int:
    """Print the report, or the recordings of a run without training.

    Args:
        recipe: recipe of the run.
        run_dir: folder of the run.
        since: number of events of earlier attempts, which are ignored.
        progress: progress bar.

    Returns:
        An exit code; 130 after Ctrl-C.
    """
    if read_events(run_dir)[-1]["event"] == "stopped":
        print(f"stopped before its end; everything recorded is in {run_dir}", flush=True)
        return 130
    if recipe.collect.no_training:
        recordings = [path.parent for path in run_dir.glob("**/metadata.yaml")]
        # spool and inbox may hold the same ones
        recorded = {folder.name for folder in recordings if kind_of(folder) == EPISODE}
        print(
            f"{len(recorded)} episodes recorded in {run_dir}: rlinf show {run_dir}, rlinf "
            f"find-dynamics {run_dir}",
            flush=True,
        )
    else:
        print(write_report(recipe, run_dir, since, progress), flush=True)
    return 0


def run_director(supervisor: Supervisor, process: Process, run_dir: Path, display: Display) -> int:
    """Run the director to its end with a display. Returns the number of events before it."""
    before = len(read_events(run_dir))
    director = supervisor.start(process)
    with display as show:
        while director.popen.poll() is None:
            for event in supervisor.poll():
                show.note(event)
            show.update()
            time.sleep(0.25)
    if director.popen.returncode != 0:
        last = next(
            (
                event["detail"]
                for event in reversed(read_events(run_dir)[before:])
                if event["event"] == "error"
            ),
            f"the director ended without a message; see {run_dir / 'logs/director.log'}",
        )
        raise RlinfError(f"the run stopped: {last}\nEverything recorded is in {run_dir}")
    return before


def web_override(web: int | None) -> list[str]:
    """Return the override that serves the operator's page on a port."""
    return [] if web is None else [f"station.web.port={web}"]


def print_page_address(recipe: Recipe) -> None:
    """Print the address of the operator's page, if there is one."""
    web = recipe.station.web
    if web.port:
        shown = f", once with ?token=... ({web.token_file})" if web.token_file else ""
        print(f"the operator's page: http://{web.host}:{web.port}{shown}", flush=True)


def up(
    name: str,
    overrides: list[str],
    run_dir: Path,
    web: int | None = None,
    episodes: int = 0,
    json_file: Path | None = None,
) -> int:
    """Start a recipe's station and supervise it until Ctrl-C.

    Args:
        name: name of the recipe.
        overrides: its overrides.
        run_dir: folder of the run.
        web: port of the operator's page; None serves none.
        episodes: number of demonstrations after which the station ends; 0 for none.
        json_file: file for the result of these demonstrations.

    Returns:
        An exit code.
    """
    collect_overrides = (
        [f"collect.episodes={episodes}", "collect.no_training=true"] if episodes else []
    )
    recipe = load_recipe(name, [*overrides, *web_override(web), *collect_overrides])
    if json_file and not episodes:
        raise RecipeError(
            "--json: expected together with --episodes, which ends the station, got it alone"
        )
    station = recipe.station
    if not episodes:
        extras.require(
            "serving" if station.policy.backend == "remote" else "policy",
            f"rlinf up, station.policy.backend {station.policy.backend}",
        )
        check_policy_device(recipe)
    with exclusive_run(recipe, run_dir) as supervisor:
        silent = ("policy",) if episodes else ()
        for process in compose(recipe, station_processes(recipe, run_dir, without=silent)):
            supervisor.start(process)
        print(
            f"station '{station.name}' is up: {', '.join(supervisor.children)} (ROS_DOMAIN_ID "
            f"{station.domain}, logs in {run_dir / 'logs'}). Ctrl-C stops it",
            flush=True,
        )
        print_page_address(recipe)
        if episodes:
            return _record_demonstrations(supervisor, recipe, run_dir, json_file)
        print(next_steps(recipe, name, overrides, run_dir), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                for event in supervisor.poll():
                    print(event, flush=True)
                time.sleep(0.25)
    return 0


def _record_demonstrations(
    supervisor: Supervisor, recipe: Recipe, run_dir: Path, json_file: Path | None
) -> int:
    """Record the requested demonstrations and write their counts, also after a failure."""
    before = len(read_events(run_dir))
    try:
        run_director(
            supervisor,
            director_process(recipe, run_dir),
            run_dir,
            Display(recipe, run_dir, quiet=True),
        )
    finally:
        events = read_events(run_dir)[before:]
        closed = [event for event in events if event["event"] == "episode"]
        faults = [event["cause"] for event in events if event["event"] == "fault"]
        result = {
            "episodes": len(closed),
            "successes": sum(event["success"] for event in closed),
            "interlock_faults": len(faults),
            "faults": ", ".join(faults),
        }
        print(
            "; ".join(f"{key} {value}" for key, value in result.items() if value != ""), flush=True
        )
        write_json(json_file, result)
    return _print_result(recipe, run_dir)


def teleop(name: str, overrides: list[str]) -> int:
    """Read a person's device in this terminal: the recipe's device, or else the keyboard."""
    recipe = load_recipe(name, overrides)
    if recipe.station.operator.kind == SCRIPTED:
        recipe = load_recipe(name, [*overrides, f"station.operator={{kind: {KEYBOARD}}}"])
    with tempfile.TemporaryDirectory(prefix="rlinf-teleop-") as folder:
        command = command_line(operator_process(recipe), Path(folder))
        return foreground(command, ros_environment(recipe.station.domain))


def check_and_write(recipe: Recipe, run_dir: Path, starts: bool = True) -> None:
    """Check a recipe before anything starts, and write it.

    With ``starts`` check its processes, too.
    """
    check_station(recipe, run_dir, starts)
    _write(recipe, run_dir)


def check_station(recipe: Recipe, run_dir: Path, starts: bool = True) -> None:
    """Check a recipe without writing it."""
    check_recipe(recipe)
    check_operator(recipe)
    if starts:
        station_processes(recipe, run_dir)  # raises RecipeError for missing parts
    if recipe.station.web.port:
        extras.require("page", "the operator's page")
        token_of(recipe.station.web)
    if starts:
        check_page(recipe.station.web)


def _write(recipe: Recipe, run_dir: Path) -> None:
    write_recipe(recipe, run_dir)
    write_plan(recipe, run_dir)
