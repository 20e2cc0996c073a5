"""Commands to a running trainer as files in ``<run>/orders``, each with an answer beside it.

Every user who can write to the run's folder can send commands; none comes over the network. The
sender renames a complete file into place. The trainer renames it again when it takes it, so a
command is taken once, or withdrawn before. The sender holds the lock of a third file until the
answer arrives. A command whose lock is free has no sender any more. No clock is involved: the files
are numbered.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from rlinf_core.core.atomic_io import replace_text
from rlinf_core.core.errors import BridgeError, RlinfError
from rlinf_core.deploy.releases.record import ALL, StoredModel
from rlinf_core.deploy.releases.releases import ReleaseController, StationReports
from rlinf_core.policies.policy_folder import policy_files, policy_version

COMMANDS_FOLDER = "orders"
WAITING_SUFFIX = ".waits"  # suffix of the file that a sender locks
PATIENCE_S = 30.0  # timeout of an answer; a trainer polls between two groups of updates


class ReleaseCommand(StoredModel):
    """A command, with the version and the stations that it applies to."""

    action: Literal["promote", "rollback", "pin", "unpin", "drain", "undrain"]
    version: int | None = None
    stations: list[str] = []


def send_command(run_dir: Path, order: ReleaseCommand, patience_s: float = PATIENCE_S) -> str:
    """Send a command to the trainer of a run and return its answer.

    Raises:
        BridgeError: the trainer refused, or did not answer within ``patience_s``.
    """
    if not (run_dir / "recipe.yaml").is_file():
        raise BridgeError(
            f"run: expected the folder of a run with stations, got {run_dir}. It is the --out of "
            "rlinf train"
        )
    folder = run_dir / COMMANDS_FOLDER
    folder.mkdir(exist_ok=True)
    path = (
        folder / f"{1 + max(map(_number, folder.iterdir()), default=0)}-{uuid.uuid4().hex[:8]}.json"
    )
    with _waiting(path.with_suffix(WAITING_SUFFIX)):
        replace_text(path, order.model_dump_json())
        answer, deadline = path.with_suffix(".answer"), time.monotonic() + patience_s
        try:
            while not answer.exists():
                if time.monotonic() > deadline:
                    raise BridgeError(
                        f"the trainer of {run_dir}: expected an answer within {patience_s:.0f} s, "
                        f"got none; {_end(path)}"
                    )
                time.sleep(0.05)
        except KeyboardInterrupt:
            path.unlink(missing_ok=True)  # withdraw it
            raise
        reply = json.loads(answer.read_text())
        answer.unlink()
    if reply["error"]:
        raise BridgeError(reply["error"])
    return reply["text"]


@contextlib.contextmanager
def _waiting(path: Path) -> Iterator[None]:
    """Hold the lock that marks a waiting sender."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_left(path: Path) -> bool:
    """Return whether a command has no waiting sender."""
    try:
        with path.with_suffix(WAITING_SUFFIX).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _number(path: Path) -> int:
    """Return the number of a command; 0 for a file with another name."""
    number = path.name.partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 20 else 0


def _end(path: Path) -> str:
    """Withdraw a command, and return text for an error about it."""
    try:
        path.unlink()
    except FileNotFoundError:
        return "but it has accepted the command. rlinf fleet status shows the outcome"
    return (
        "the command is withdrawn. Is rlinf train running with this folder as --out? See rlinf "
        "fleet status"
    )


class CommandQueue:
    """The trainer's end: it removes commands without a sender at its start, and executes new ones.

    Args:
        releases: controller that executes the commands.
        run_dir: folder of the run.
    """

    def __init__(self, releases: ReleaseController, run_dir: Path) -> None:
        self.releases = releases
        self.folder = run_dir / COMMANDS_FOLDER
        for left in self.folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):  # withdrawn, or answered
                if left.suffix == ".taken" or _is_left(left):
                    left.unlink()

    def execute(self, reports: StationReports) -> None:
        """Execute all new commands, oldest first."""
        for path in sorted(self.folder.glob("*.json"), key=lambda path: (_number(path), path.name)):
            taken = path.with_suffix(".taken")
            try:
                os.replace(path, taken)
            except FileNotFoundError:  # withdrawn
                continue
            try:
                replace_text(path.with_suffix(".answer"), json.dumps(self._answer(taken, reports)))
            finally:
                taken.unlink()

    def _answer(self, taken: Path, reports: StationReports) -> dict[str, str]:
        try:
            return {
                "text": self._obey(ReleaseCommand.model_validate_json(taken.read_text()), reports),
                "error": "",
            }
        except ValueError as error:
            return {
                "text": "",
                "error": f"command {taken.name}: expected a file of rlinf fleet, got: {error}",
            }
        except (RlinfError, OSError) as error:
            return {"text": "", "error": str(error)}

    def _obey(self, order: ReleaseCommand, reports: StationReports) -> str:
        releases = self.releases
        stations = {
            *reports,
            *{"unpin": releases.record.pins, "undrain": releases.record.drained}.get(
                order.action, ()
            ),
        }
        for station in order.stations:
            if station not in stations:  # pins of vanished stations can be removed
                raise BridgeError(
                    f"station '{station}': expected a station that has called this trainer: "
                    f"{', '.join(sorted(reports)) or 'none so far'}"
                )
        if order.version is not None and order.version not in map(
            policy_version, policy_files(releases.policies)
        ):
            raise BridgeError(
                f"version {order.version}: expected a version whose file is in {releases.policies}"
            )
        does: dict[str, Callable[[ReleaseCommand], str]] = {
            "promote": self._promote,
            "rollback": self._roll_back,
        }
        return does.get(order.action, self._by_station)(order)

    def _promote(self, order: ReleaseCommand) -> str:
        releases = self._staged()
        trial = releases.record.trial
        version = order.version if order.version is not None else trial.version if trial else None
        if version is None:
            raise BridgeError(
                "promote: expected a policy on trial or --version, got neither. All stations play "
                f"version {releases.record.current}"
            )
        return releases.promote(version, "by hand")

    def _roll_back(self, order: ReleaseCommand) -> str:
        releases = self._staged()
        if not releases.record.trial and not releases.record.previous:
            raise BridgeError(
                "rollback: expected a policy on trial or a version before "
                f"{releases.record.current}, which all stations play. There is neither"
            )
        return releases.roll_back("by hand")

    def _staged(self) -> ReleaseController:
        if not self.releases.settings.staged:
            raise BridgeError(
                "expected a trainer with staged releases (release.staged=true), got one that "
                "sends every new policy to all stations. rlinf fleet pin keeps stations at a "
                "version"
            )
        return self.releases

    def _by_station(self, order: ReleaseCommand) -> str:
        record = self.releases.record
        stations: dict[str, Any] = dict.fromkeys(order.stations or [ALL])
        names = ", ".join(f"'{name}'" for name in order.stations) or "all stations"
        if order.action == "pin" and order.version is not None:
            record.pins |= dict.fromkeys(stations, order.version)
            return self.releases.record_decision(f"pinned to version {order.version}: {names}")
        if order.action == "unpin":
            if free := [name for name in stations if name not in record.pins]:
                raise BridgeError(
                    "pin --off: expected a pinned station, "
                    f"{', '.join(record.pins) or 'none of them pinned'} ({ALL}: all stations), "
                    f"got {', '.join(free)}"
                )
            record.pins = {name: pin for name, pin in record.pins.items() if name not in stations}
            return self.releases.record_decision(f"no longer pinned: {names}")
        if order.action == "pin" or not order.stations:
            raise BridgeError(
                f"{order.action}: expected {'a version' if order.action == 'pin' else 'stations'}, "
                f"got none"
            )
        drained = [name for name in record.drained if name not in stations]
        record.drained = sorted([*drained, *(stations if order.action == "drain" else ())])
        return self.releases.record_decision(f"{order.action}ed: {names}")
