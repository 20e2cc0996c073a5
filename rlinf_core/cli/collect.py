"""``rlinf collect``: record demonstrations by a person or a script until enough have succeeded."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from rlinf_core.algorithms.common.settings import is_offline
from rlinf_core.cli.demo import check_and_write, print_page_address, run_director, web_override
from rlinf_core.cli.terminal import Display, minutes_text, restore_terminal
from rlinf_core.config.overrides import quote_value
from rlinf_core.core.errors import RecipeError, escape_ascii
from rlinf_core.core.extras import how_to_get, missing
from rlinf_core.data.demonstrations import DemonstrationStats, demonstration_stats
from rlinf_core.launch.graph import collect_processes, load_collect_recipe
from rlinf_core.launch.preflight import listen_failure
from rlinf_core.launch.supervisor import Supervisor, only_station
from rlinf_core.page import PORT as PAGE_PORT
from rlinf_core.recipes import Recipe, station_robot, station_task
from rlinf_core.reports.curves import read_events
from rlinf_core.robots.drivers import SIMULATOR
from rlinf_core.robots.operators import KEYBOARD, SCRIPTED
from rlinf_core.robots.operators.device import axes
from rlinf_core.robots.operators.keyboard import PAIRS, PAUSE_KEY, REQUEST_BUTTONS

ROLE_TEXTS = {
    "ready": "the scene is ready",
    "success": "success",
    "failure": "failure",
    "rerecord": "once more",
    "discard": "discard",
    "arm": "arm",
    "disarm": "disarm",
}
ROLES_BEFORE_EPISODE = ("ready", "disarm")
ROLES_IN_EPISODE = ("success", "failure", "rerecord", "discard", "disarm")
ROLES_DISARMED = ("arm",)


def collect(
    name: str,
    overrides: list[str],
    run_dir: Path,
    episodes: int | None = None,
    quiet: bool = False,
    web: int | None = None,
) -> int:
    """Collect until ``episodes`` have succeeded, including those in ``run_dir``.

    Returns an exit code.
    """
    recipe, before = load_collect_recipe(name, [*overrides, *web_override(web)], run_dir, episodes)
    with_picture = web is None and _shows_picture(recipe)
    if with_picture:
        recipe, before = load_collect_recipe(
            name, [*overrides, *web_override(PAGE_PORT)], run_dir, episodes
        )
    missing = recipe.collect.episodes - before.succeeded
    _check(recipe, missing)
    code = _run(recipe, run_dir, before, quiet, with_picture) if missing > 0 else 0
    print(_result_text(recipe, demonstration_stats(run_dir, recipe), run_dir), flush=True)
    if code:
        print(
            f"stopped before its end; the same command with --out {run_dir} continues", flush=True
        )
    else:
        print(next_commands(recipe, name, overrides, run_dir), flush=True)
    return code


def _check(recipe: Recipe, missing: int) -> None:
    """Raise RecipeError if no episode is missing, or no terminal can read the keys."""
    station = recipe.station
    if not recipe.collect.episodes:
        raise RecipeError("--episodes: expected at least 1, got 0 (collect.episodes)")
    if (
        missing > 0
        and station.operator.kind == KEYBOARD
        and not station.web.port
        and not sys.stdin.isatty()
    ):
        raise RecipeError(
            "rlinf collect: expected a terminal for the keyboard, got none. Run it in one, or "
            "with --web, or with another device (station.operator.kind)"
        )


def _shows_picture(recipe: Recipe) -> bool:
    """Return whether the page shows a simulated arm to the person at this terminal."""
    station = recipe.station
    person = station.operator.kind != SCRIPTED and sys.stdin.isatty() and not station.web.port
    if not person or station_robot(recipe).driver != SIMULATOR:
        return False
    reason = (
        "it needs the extra 'page': " + how_to_get("page")
        if missing("page")
        else listen_failure("127.0.0.1", PAGE_PORT)
    )
    if reason:
        print(f"no picture of the scene: {reason}", flush=True)
    return not reason


def _run(
    recipe: Recipe, run_dir: Path, before: DemonstrationStats, quiet: bool, with_picture: bool
) -> int:
    """Run to the end. Returns an exit code; 130 after Ctrl-C."""
    try:
        with only_station(recipe.station.name, recipe.station.domain):
            check_and_write(recipe, run_dir)
            _start(recipe, run_dir, before, quiet, with_picture)
    except KeyboardInterrupt:
        return 130
    return 130 if read_events(run_dir)[-1]["event"] == "stopped" else 0


def _start(
    recipe: Recipe, run_dir: Path, before: DemonstrationStats, quiet: bool, with_picture: bool
) -> None:
    print(
        f"run folder: {run_dir}: {before.succeeded} of {recipe.collect.episodes} demonstrations "
        "are recorded",
        flush=True,
    )
    if with_picture:
        web = recipe.station.web
        print(
            f"a picture of the scene: http://{web.host}:{web.port}. The keys of this terminal move "
            f"the arm, once the panel below shows that the station has started",
            flush=True,
        )
    else:
        print_page_address(recipe)
    with restore_terminal(), Supervisor(run_dir, recipe.station.domain) as supervisor:
        *processes, director = collect_processes(
            recipe, run_dir, before, terminal=True, with_page=with_picture
        )
        (run_dir / "status.json").unlink(missing_ok=True)  # a status of an earlier run
        for process in processes:
            supervisor.start(process)
        run_director(
            supervisor,
            director,
            run_dir,
            CollectDisplay(recipe, run_dir, quiet, before, with_picture),
        )


class CollectDisplay(Display):
    """Shows takes, disk space, the current wait, and the meaning of keys and buttons."""

    def __init__(
        self,
        recipe: Recipe,
        run_dir: Path,
        quiet: bool,
        before: DemonstrationStats,
        with_picture: bool,
    ) -> None:
        super().__init__(recipe, run_dir, quiet)
        self.run_dir = run_dir
        self.before = before
        self.roles = role_keys(recipe, with_picture)
        self.moves = motion_keys(recipe, with_picture)

    def _changes(self, status: dict[str, Any]) -> Any:
        return status["done"], status["dropped"], status["waiting_for"]

    def _rows(self, status: dict[str, Any]) -> list[tuple[str, str]]:
        before, safety = self.before, status["safety"]
        failed = status["done"] - status["successes"] + before.failed
        succeeded = before.succeeded + status["successes"]
        rows = [
            (
                "takes",
                f"{succeeded} of {self.recipe.collect.episodes} succeeded, {failed} failed, "
                f"{status['dropped']} discarded",
            ),
            ("elapsed", minutes_text(self.elapsed)),
            ("disk", self._disk()),
            ("interlock", f"{safety['state']} {safety['cause']}".strip()),
        ]
        operator = status["operator"] or log_tail(self.run_dir / "logs/operator.log")
        more = {
            "waiting for you": status["waiting_for"],
            "operator": operator,
            "to move": self.moves,
            "now": self._keys(status),
        }
        return rows + [(title, text) for title, text in more.items() if text]

    def _disk(self) -> str:
        free = shutil.disk_usage(self.run_dir).free
        closed = list((self.run_dir / "spool/closed").glob("*/*"))
        size = sum(file.stat().st_size for file in closed)
        demonstrations = len({file.parent for file in closed})
        return f"{free / 1e9:.1f} GB free" + (
            f", about {free * demonstrations // size:,} takes" if size else ""
        )

    def _keys(self, status: dict[str, Any]) -> str:
        """Return the keys and buttons that have an effect now."""
        state = status["safety"]["state"]
        roles: tuple[str, ...]
        if state in ("DISARMED", "FAULT"):
            roles = ROLES_DISARMED
        elif status["waiting_for"]:
            roles = ROLES_BEFORE_EPISODE
        else:
            roles = ROLES_IN_EPISODE
        keys = " · ".join(
            f"{' or '.join(self.roles[role])}: {ROLE_TEXTS[role]}"
            for role in roles
            if role in self.roles
        )
        return f"reset the fault first; then {keys}" if keys and state == "FAULT" else keys


def log_tail(log: Path) -> str:
    """Return a node's last log line without time and name, such as why arming was refused."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return escape_ascii(lines[-1].rpartition("]: ")[2]) if lines else ""


def motion_keys(recipe: Recipe, with_picture: bool = False) -> str:
    """Return the keys of this terminal that move the arm; empty if there are none."""
    station = recipe.station
    if (
        station.operator.kind == SCRIPTED
        or not sys.stdin.isatty()
        or (station.web.port and not with_picture)
    ):
        return ""
    action = station_task(recipe).spec.action
    arm = action.of_arm(action.arms[0]) if action.arms else action
    joints = arm.control_mode != "tcp_delta"
    keys = [
        (PAIRS[axis], f"joint {place + 1}" if joints and axis != "grip" else PAIRS[axis][1])
        for axis, place in axes(arm).items()
    ]
    pairs = ", ".join(f"{pair[0]}/{pair[1]} {text}" for (pair, _), text in keys)
    return f"{pairs}; {PAUSE_KEY} rests"


def role_keys(recipe: Recipe, with_picture: bool = False) -> dict[str, list[str]]:
    """Return the keys and buttons of the operator's devices by their role."""
    station = recipe.station
    devices_by_role: dict[str, list[str]] = {}
    if station.operator.kind == SCRIPTED:
        return devices_by_role
    if (with_picture or not station.web.port) and sys.stdin.isatty():
        for key, role in REQUEST_BUTTONS.items():
            devices_by_role.setdefault(role, []).append("space" if key == " " else key)
    for settings in (station.operator, station.second_operator):
        if settings is None:
            continue
        buttons = getattr(settings, "buttons", None) or {}
        for button, role in buttons.items():
            devices_by_role.setdefault(role, []).append(f"{button} ({settings.kind})")
    if station.web.port and not with_picture:
        for role in ROLE_TEXTS:
            devices_by_role.setdefault(role, []).append("on the page")
    return devices_by_role


def _result_text(recipe: Recipe, demonstrations: DemonstrationStats, run_dir: Path) -> str:
    """Return the number of episodes so far, in words."""
    return (
        f"{demonstrations.succeeded} of {recipe.collect.episodes} demonstrations succeeded and "
        f"count, {demonstrations.failed} failed; {demonstrations.size / 1e6:.1f} MB in {run_dir}"
    )


def next_commands(recipe: Recipe, name: str, overrides: list[str], run_dir: Path) -> str:
    """Return commands for the next steps, one each."""
    folder, recipe_name = shlex.quote(str(run_dir)), shlex.quote(name)
    shown = shlex.quote(f"collect.recordings=[{quote_value(run_dir)}]")
    arguments = [
        shlex.quote(override)
        for override in overrides
        if not override.startswith(("station.operator", "station.second_operator"))
    ]
    train = " ".join(
        [
            "rlinf train",
            recipe_name,
            "--set",
            *arguments,
            shown,
            *([] if recipe.simulation.environments else ["simulation.environments=1"]),
        ]
    )
    station = (
        f"rlinf demo {recipe_name} --set {' '.join([*arguments, shown])} collect.episodes=0 "
        f"simulation.environments=0",
        "and on the station",
    )
    steps = [
        (f"rlinf data list {folder}", "list the episodes"),
        (train, "learn from them, in simulation"),
        *([] if is_offline(recipe.algorithm) else [station]),
        (
            f"rlinf data export lerobot {folder} --out {shlex.quote(str(run_dir) + '-lerobot')}",
            "a LeRobot data set",
        ),
    ]
    return "\n".join(["next:", *(f"    {command}    # {purpose}" for command, purpose in steps)])
