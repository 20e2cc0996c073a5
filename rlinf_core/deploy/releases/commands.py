"""Commands to a running trainer as files in ``<run>/orders``, each with an answer beside it.

Every user who can write to the run's folder can send commands; none comes over the network. The
sender renames a complete file into place. The trainer renames the file when it takes the command,
so a command is executed once, or withdrawn before. The sender holds the lock of a third file until
the answer arrives. A command whose lock is free has no sender any more. The files are numbered, so
no clock is involved.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
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


def send_command(run_dir: Path, command: ReleaseCommand, patience_s: float = PATIENCE_S) -> str:
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
        replace_text(path, command.model_dump_json())
        answer, deadline = path.with_suffix(".answer"), time.monotonic() + patience_s
        try:
            while not answer.exists():
                if time.monotonic() > deadline:
                    raise BridgeError(
                        f"the trainer of {run_dir}: expected an answer within {patience_s:.0f} s, "
                        f"got none; {_withdraw(path)}"
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


def _has_no_sender(path: Path) -> bool:
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


def _withdraw(path: Path) -> str:
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
                if left.suffix == ".taken" or _has_no_sender(left):
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
        """Execute the command in a file; return its result or its error, as the sender reads it."""
        try:
            command = ReleaseCommand.model_validate_json(taken.read_text())
            return {"text": self._execute(command, reports), "error": ""}
        except ValueError as error:
            text = f"command {taken.name}: expected a file of rlinf fleet, got: {error}"
            return {"text": "", "error": text}
        except (RlinfError, OSError) as error:
            return {"text": "", "error": str(error)}

    def _execute(self, command: ReleaseCommand, reports: StationReports) -> str:
        releases = self.releases
        stations = set(reports)
        # a pin or a drain of a station that has vanished can be removed
        if command.action == "unpin":
            stations |= set(releases.record.pins)
        elif command.action == "undrain":
            stations |= set(releases.record.drained)
        for station in command.stations:
            if station not in stations:
                raise BridgeError(
                    f"station '{station}': expected a station that has called this trainer: "
                    f"{', '.join(sorted(reports)) or 'none so far'}"
                )
        versions = map(policy_version, policy_files(releases.policies))
        if command.version is not None and command.version not in versions:
            raise BridgeError(
                f"version {command.version}: expected a version whose file is in "
                f"{releases.policies}"
            )
        if command.action == "promote":
            return self._promote(command)
        if command.action == "rollback":
            return self._roll_back()
        return self._change_stations(command)

    def _promote(self, command: ReleaseCommand) -> str:
        releases = self._staged()
        trial = releases.record.trial
        version = command.version
        if version is None and trial:
            version = trial.version
        if version is None:
            raise BridgeError(
                "promote: expected a policy on trial or --version, got neither. All stations play "
                f"version {releases.record.current}"
            )
        return releases.promote(version, "by hand")

    def _roll_back(self) -> str:
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

    def _change_stations(self, command: ReleaseCommand) -> str:
        record = self.releases.record
        stations: dict[str, Any] = dict.fromkeys(command.stations or [ALL])
        names = ", ".join(f"'{name}'" for name in command.stations) or "all stations"
        if command.action == "pin" and command.version is not None:
            record.pins |= dict.fromkeys(stations, command.version)
            return self.releases.record_decision(f"pinned to version {command.version}: {names}")
        if command.action == "unpin":
            if free := [name for name in stations if name not in record.pins]:
                raise BridgeError(
                    "pin --off: expected a pinned station, "
                    f"{', '.join(record.pins) or 'none of them pinned'} ({ALL}: all stations), got "
                    f"{', '.join(free)}"
                )
            record.pins = {name: pin for name, pin in record.pins.items() if name not in stations}
            return self.releases.record_decision(f"no longer pinned: {names}")
        if command.action == "pin" or not command.stations:
            missing = "a version" if command.action == "pin" else "stations"
            raise BridgeError(f"{command.action}: expected {missing}, got none")
        drained = [name for name in record.drained if name not in stations]
        record.drained = sorted([*drained, *(stations if command.action == "drain" else ())])
        return self.releases.record_decision(f"{command.action}ed: {names}")
