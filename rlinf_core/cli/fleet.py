"""``rlinf fleet``: certificates of stations, a live table, and commands to a running trainer.

``promote``, ``rollback``, ``pin`` and ``drain`` are such commands.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.cli.output import TABLE_WIDTH
from rlinf_core.core.errors import BridgeError, escape_ascii
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.deploy.releases.commands import ReleaseCommand, send_command
from rlinf_core.deploy.releases.overview import read_overview

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """Turn an OSError of the disk into an RlinfError."""
    try:
        yield
    except OSError as error:
        raise BridgeError(
            f"rlinf fleet: expected folders that can be read and written, got: {error}"
        ) from error


@on_disk()
def enroll(station: str, out: Path, days: float, renew: bool, fleet: Path) -> None:
    """Enroll a station and print what to do with its files."""
    carried = Fleet(fleet).enroll(station, out, days, renew)
    print(
        f"station '{station}' is {'renewed' if renew else 'enrolled'} in {fleet.resolve()}. Copy "
        "these files to the station over a private channel:"
    )
    print(*(f"  {path.resolve()}" for path in carried), sep="\n")
    print(
        f"there:    rlinf up RECIPE --set station.name={station} bridge.host=<this machine> "
        "bridge.credentials=<their folder>"
    )
    print(f"here:     rlinf train RECIPE --set bridge.host=0.0.0.0 bridge.fleet={fleet}")


@on_disk()
def revoke(station: str, fleet: Path) -> None:
    """Revoke a station's certificate."""
    moved_to = Fleet(fleet).revoke(station)
    print(
        f"station '{station}' is revoked: its next call is refused. Its certificate is in "
        f"{moved_to}"
    )


@on_disk()
def stations(fleet: Path) -> None:
    """Print a line for each certificate."""
    authority = Fleet(fleet)
    rows = authority.stations()
    print(
        *(f"{name:<24} {state:<10} until {deadline}" for name, state, deadline in rows)
        if rows
        else [
            f"no station is enrolled in {fleet.resolve()}: rlinf fleet enroll STATION --out FOLDER"
        ],
        sep="\n",
    )
    print(*authority.warnings(), sep="\n", end="\n" if authority.warnings() else "")


@on_disk()
def promote(run_dir: Path, version: int | None = None) -> None:
    """Send the policy on trial, or another version, to all stations."""
    print(send_command(run_dir, ReleaseCommand(action="promote", version=version)))


@on_disk()
def rollback(run_dir: Path) -> None:
    """Roll back the policy on trial, or the current one."""
    print(send_command(run_dir, ReleaseCommand(action="rollback")))


@on_disk()
def pin(run_dir: Path, version: int | None, off: bool, stations: list[str]) -> None:
    """Pin stations to a version, or unpin them."""
    print(
        send_command(
            run_dir,
            ReleaseCommand(action="unpin" if off else "pin", version=version, stations=stations),
        )
    )


@on_disk()
def drain(run_dir: Path, stations: list[str], off: bool) -> None:
    """Let stations start no further episode, or play again."""
    print(
        send_command(
            run_dir, ReleaseCommand(action="undrain" if off else "drain", stations=stations)
        )
    )


GONE_S = 15.0  # age of the overview after which the trainer may be gone
COLUMNS = (
    "station",
    "heard",
    "plays",
    "meant",
    "backlog",
    "refused",
    "spool",
    "played",
    "success",
    "interlock",
    "",
)


@on_disk()
def status(run_dir: Path, once: bool) -> int:
    """Show the stations until Ctrl-C, or once without a terminal.

    Returns 1 if the trainer is silent.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False)
    document = read_overview(run_dir)
    if once or not console.is_terminal:
        console.print(table(document))
        return int(time.time() - document["time"] > GONE_S)
    with Live(table(document), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(0.5)
            live.update(table(read_overview(run_dir)), refresh=True)


def table(status: dict[str, Any]) -> Group:
    """Return a table with a row per station, and lines about all of them."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, header_style="bold", pad_edge=False)
    for column in COLUMNS:
        rows.add_column(
            column, justify="left" if column in ("station", "") else "right", no_wrap=bool(column)
        )
    for name, station in status["stations"].items():
        _row(rows, name, station)
    return Group(rows, *(Text(escape_ascii(line)) for line in lines(status)))


def _row(rows: Table, name: str, station: dict[str, Any]) -> None:
    from rich.text import Text

    def percent(field: str) -> str:
        return f"{station[field]:.0%}" if field in station else "-"

    notes = [*station["notes"], *([station["policy_error"]] if station["policy_error"] else [])]
    cells = (
        name,
        f"{station['last_report_s']:.0f} s",
        station["playing"] if station["playing"] >= 0 else "-",
        station["meant"],
        station["backlog"],
        station["set_aside"],
        percent("spool_full"),
        station["episodes"],
        percent("success"),
        percent("interlock"),
        ", ".join(notes),
    )
    rows.add_row(*(Text(escape_ascii(cell)) for cell in cells))


def lines(document: dict[str, Any]) -> list[str]:
    """Return the state of the release in words."""
    silent = time.time() - document["time"]
    trial = document["trial"]
    result = []
    if silent > GONE_S:
        result.append(f"The trainer has been silent for {silent:.0f} s. This is its last state.")
    if not document["stations"]:
        result.append("No station has called yet.")
    if not document["staged"]:
        result.append(
            f"Every new policy goes to all stations (release.staged=false); newest: "
            f"{document['newest']}."
        )
    elif trial:
        result.append(
            f"All play version {document['current']}; version {trial['version']} is on trial at "
            f"'{trial['station']}', {trial['episodes']} of at most {trial['of']} episodes: "
            f"{trial['figures']}."
        )
    else:
        result.append(
            f"All play version {document['current']}; the newest is {document['newest']}. A newer "
            f"one is tried once a station has played {document['needed']} training episodes; the "
            f"most so far: {document['known']}."
        )
    if watched := document.get("watched"):
        result.append(_watched(document["current"], watched))
    result += [
        f"pinned: {'all' if name == '*' else name} to version {version}"
        for name, version in document["pins"].items()
    ]
    return result + document["decisions"]


def _watched(current: int, watched: dict[str, Any]) -> str:
    """Return the comparison of the current version with the previous one, in words."""
    if not watched["episodes"]:
        return (
            f"Version {current} was released to all and is watched: no episode of it has "
            "arrived yet."
        )
    values = ", ".join(f"{name} {value:.3g}" for name, value in watched["p_values"].items())
    end = "" if watched["left"] else " No episode is left for a comparison, so it stays."
    return (
        f"Version {current} since its release to all, {watched['episodes']} episodes: "
        f"{watched['figures']}. p: {values}; rolled back at {watched['rolled_back_at']:.3g}.{end}"
    )
