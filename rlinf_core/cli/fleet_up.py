"""``rlinf fleet up``: run a trainer and simulated stations on this machine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlinf_core.cli.evaluate import evaluation_hint
from rlinf_core.cli.fleet import table
from rlinf_core.cli.terminal import PHASES, Display
from rlinf_core.core import extras
from rlinf_core.core.errors import BridgeError, RlinfError, escape_ascii
from rlinf_core.deploy.releases.overview import read_overview
from rlinf_core.launch.fleet import FOLDER, Member, members
from rlinf_core.launch.graph import trainer_process
from rlinf_core.launch.restart import MAX_RESTARTS, describe_end
from rlinf_core.launch.supervisor import Supervisor, only_station
from rlinf_core.recipes import Recipe
from rlinf_core.reports.curves import read_events
from rlinf_core.trainer.folder import write_recipe

PLAYING = "playing"
FINISHED = "through"
LOST = "gone"
WINDOW_S = 600.0  # window of MAX_RESTARTS restarts of a station
WAITS_S = 30.0  # timeout for missing demonstrations
SHOWN = 200  # maximum length of a station's last error


def up(
    name: str,
    overrides: list[str],
    run_dir: Path,
    stations: list[str],
    respawn: bool,
    quiet: bool = False,
) -> int:
    """Start and supervise trainer and stations.

    Returns:
        0 if every station finished the recipe, 1 if one died, 130 after Ctrl-C.
    """
    recipe, fleet_members = members(name, overrides, stations or ["2"], run_dir)
    extras.require("trainer", "rlinf fleet up")
    with contextlib.ExitStack() as locks:
        for member in fleet_members:
            locks.enter_context(only_station(member.name, member.recipe.station.domain))
        write_recipe(recipe, run_dir)
        display = FleetDisplay(recipe, run_dir, quiet)
        display.stations = [Station(member, respawn, display.note) for member in fleet_members]
        print(
            f"run folder: {run_dir}; each station's: {run_dir / FOLDER}/<name>. Ctrl-C stops all",
            flush=True,
        )
        stopped = _run_all(recipe, run_dir, display)
    return _print_result(recipe, run_dir, display.stations, stopped)


class Station:
    """A supervised station of the fleet.

    Args:
        member: recipe and folder of the station.
        respawn: whether to restart it after its death.
        note: receives lines of text about it.
    """

    def __init__(self, member: Member, respawn: bool, note: Callable[[str], None]) -> None:
        self.member = member
        self.respawn = respawn
        self.note = note
        self.state = PLAYING
        self.reason = ""
        self.deaths = list[float]()
        self.event_count = 0
        self._prepare()

    def _prepare(self) -> None:
        self.processes = self.member.prepare()
        self.supervisor = Supervisor(self.member.folder, self.member.recipe.station.domain)

    def start(self) -> None:
        """Start its processes."""
        self.event_count = len(read_events(self.member.folder))
        for process in self.processes:
            self.supervisor.start(process)

    def poll(self) -> None:
        """Check its processes, and update whether it has finished or died."""
        if self.state != PLAYING:
            return
        try:
            for event in self.supervisor.poll():
                self.note(f"{self.member.name}: {event}")
            code = self.supervisor.children["director"].popen.poll()
            if code:
                detail = (
                    self._last("error").get("detail", "without a word")
                    if code > 0
                    else "see logs/director.log"
                )
                raise RlinfError(f"director ended ({describe_end(code)}): {detail}")
        except RlinfError as error:
            self._handle_death(str(error))
        else:
            self.state = PLAYING if code is None else FINISHED

    def _handle_death(self, reason: str) -> None:
        """Restart the station, if that is allowed; otherwise it is lost."""
        self.supervisor.stop()
        now = time.monotonic()
        self.deaths = [at for at in self.deaths if now - at < WINDOW_S] + [now]
        again = self.respawn and len(self.deaths) <= MAX_RESTARTS
        self.state = PLAYING if again else LOST
        self.reason = reason
        consequence = "The others continue; --respawn restarts a station"
        if again:
            consequence = "It is restarted"
        elif self.respawn:
            minutes = f"{WINDOW_S / 60:.0f} minutes"
            consequence = f"{len(self.deaths)} times within {minutes}: it is not restarted"
        self.note(f"station '{self.member.name}' died: {reason}. {consequence}")
        if again:
            try:
                self._prepare()
                self.start()
            except RlinfError as error:
                self.state = LOST
                self.reason = str(error)

    def _last(self, kind: str) -> dict[str, Any]:
        """Return its last event of a kind since the start."""
        events = read_events(self.member.folder)[self.event_count :]
        return next((event for event in reversed(events) if event["event"] == kind), {})

    @property
    def closed(self) -> int:
        """Return the number of closed episodes that are not sent yet."""
        return sum(1 for _ in (self.member.folder / "spool/closed").glob("*"))

    @property
    def progress_text(self) -> str:
        """Return the progress in words."""
        if self.state == LOST:
            return f"died: {self.reason[:SHOWN]}"
        phase = self._status().get("phase", "start")
        return PHASES.get(phase, phase)

    def _status(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return dict(json.loads((self.member.folder / "status.json").read_text()))
        return {}

    @property
    def accepted_episodes(self) -> float | None:
        """Return the number of episodes at the trainer, if it waits for more demonstrations.

        Otherwise it is None.
        """
        status = self._status()
        trainer = status.get("trainer", {})
        waits = (
            status.get("phase") == "sft"
            and trainer["phase"] == "waiting"
            and not (trainer["backlog"] or self.closed)
        )
        return float(trainer["episodes"]) if waits else None

    @property
    def result_text(self) -> str:
        """Return the result."""
        event = self._last("result")
        if self.state != FINISHED or not event:
            return (
                self.progress_text
                if self.state == LOST
                else f"stopped before its end ({self.progress_text})"
            )
        before, after = (
            f"{event[side]['successes']} of {event[side]['episodes']}"
            for side in ("before", "after")
        )
        return (
            f"evaluated {before} before and {after} after {event['env_steps']} time steps; "
            f"{event['ended']}"
        )


class FleetDisplay(Display):
    """Shows the table of ``rlinf fleet status`` and a line per station.

    Without a terminal it prints a line per change.
    """

    stations: list[Station] = []

    def update(self) -> None:
        """Show the current state."""
        now = {station.member.name: station.progress_text for station in self.stations}
        if self.live:
            self.live.update(self._group(now))
        else:
            before = self.changes or {}
            changed = [
                f"  {name}: {words}" for name, words in now.items() if words != before.get(name)
            ]
            print(*changed, sep="\n", end="\n" if changed else "", flush=True)
        self.changes = now

    def _group(self, now: dict[str, str]) -> Any:
        from rich.console import Group
        from rich.text import Text

        try:
            head: Any = table(read_overview(self.path.parent))
        except BridgeError:
            head = "the trainer is starting"
        lines = [
            *(f"{name}: {words}" for name, words in now.items()),
            *(f"! {note}" for note in self.notes),
        ]
        return Group(head, *(Text(escape_ascii(line)) for line in lines))


def _run_all(recipe: Recipe, run_dir: Path, display: FleetDisplay) -> bool:
    """Run trainer and stations to their end.

    Returns whether they were stopped early. Stations end first.
    """
    with Supervisor(run_dir, recipe.station.domain) as trainer:
        trainer.start(trainer_process(run_dir))
        try:
            with display:
                _play(trainer, display, recipe.online.drain_timeout_s)
        except KeyboardInterrupt:
            print("stopping the stations, then the trainer, which saves its state", flush=True)
            return True
        finally:
            with ThreadPoolExecutor(len(display.stations)) as pool:
                list(pool.map(lambda station: station.supervisor.stop(), display.stations))
    return False


def _play(trainer: Supervisor, display: FleetDisplay, drain_timeout_s: float) -> None:
    """Wait until no station plays, and all closed episodes of finished stations are sent."""
    for station in display.stations:
        station.start()
    ended = float("inf")
    since = float("inf")
    accepted_episodes = set[float | None]()
    while (left := time.monotonic() - ended) < drain_timeout_s:
        for event in trainer.poll():
            display.note(event)
        for station in display.stations:
            station.poll()
        display.update()
        all_lost, others = (
            [station for station in display.stations if station.state == state]
            for state in (LOST, PLAYING)
        )
        before = accepted_episodes
        accepted_episodes = {station.accepted_episodes for station in others} if all_lost else set()
        waits = (
            len(accepted_episodes) == 1
            and accepted_episodes == before
            and None not in accepted_episodes
        )
        since = min(since, time.monotonic()) if waits else float("inf")
        if time.monotonic() - since > WAITS_S:
            since = time.monotonic()
            # otherwise the trainer still reads arrived episodes
            if any(station.member.lacks_demonstrations for station in all_lost):
                names = ", ".join(station.member.name for station in all_lost)
                raise RlinfError(
                    f"the trainer waits for demonstrations of {names}, which ended. The same "
                    "command continues with all stations; --respawn restarts a station that ends"
                )
        playing = bool(others)
        if not playing and not any(
            station.closed for station in display.stations if station.state == FINISHED
        ):
            return
        ended = float("inf") if playing else min(ended, time.monotonic())
        time.sleep(0.25)
    print(f"waited {left:.0f} s for the last episodes to be sent", flush=True)


def _print_result(recipe: Recipe, run_dir: Path, stations: list[Station], stopped: bool) -> int:
    for station in stations:
        print(f"  {station.member.name}: {station.result_text}")
    if waiting := sum(station.closed for station in stations):
        print(
            f"{waiting} episodes wait in {run_dir / FOLDER}/*/spool/closed. The same command sends "
            "them"
        )
    print(f"the same command with --out {run_dir} continues{evaluation_hint(recipe, run_dir)}")
    return 130 if stopped else int(any(station.state == LOST for station in stations))
