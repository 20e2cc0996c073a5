"""An interlock's latch on disk, and its exclusive right to command a robot on this machine.

A robot's latch tells the next interlock whether the robot was left armed (S14). The latch belongs
to the machine, not to a login. Each user keeps a separate record for each robot and ROS domain.
Nobody else can change that record: the folder is root's, and sticky. Records are numbered, and only
one interlock at a time commands a robot (S23). The record with the largest number is therefore the
newest one. An interlock starts latched unless it can read that the robot was disarmed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.machine import HeldError, acquire, is_held, user_name
from rlinf_core.core.ros import shell_domain

ROBOT = "robot:"  # prefix of a robot's name, used in place of a file's path
FOLDERS = (Path("/var/lib/rlinf"), Path("/var/tmp"))
MAKE_FOLDER = f"sudo install -d -m 1777 {FOLDERS[0]}"
DISARMED = "DISARMED"
MAX_BYTES = 64
RECORD = re.compile(rb"(ARMED|DISARMED)(?: ([0-9]{1,15}))?\n?")


@dataclass(frozen=True)
class Record:
    """The content of one latch file.

    Attributes:
        path: path of the file.
        mode: ARMED or DISARMED; empty if the file cannot be read.
        number: number of the record; the largest is the newest.
        domain: ROS_DOMAIN_ID of the record's robot; -1 for a file without one.
        error: the reason why the file cannot be read, with its owner.
    """

    path: Path
    mode: str
    number: int = 0
    domain: int = -1
    error: str = ""


class Latch:
    """One robot's latch.

    Args:
        place: path of a file; or ``robot:NAME``, one robot of this machine for all of its users;
            or empty for no latch.
    """

    def __init__(self, place: str) -> None:
        self.robot = place.removeprefix(ROBOT) if place.startswith(ROBOT) else ""
        self.path = Path(place) if place and not self.robot else None
        self.domain = shell_domain() if self.robot else -1
        self.written_mode = ""

    def latch_reason(self) -> str:
        """Return the reason to start latched, with the file, or "" if the robot was disarmed."""
        if not self.robot:
            records = [_read(self.path)] if self.path and os.path.lexists(self.path) else []
            return next(filter(None, map(_reason, records)), "")
        try:
            records = list(self._records())
        except OSError as error:
            return f"{error}. It counts as armed"
        # a running interlock of another domain looks after its own robot
        other_domains = {record.domain for record in records} - {self.domain, -1}
        running = {
            domain for domain in other_domains if is_held(f"interlock/{domain}/{self.robot}")
        }
        records = [record for record in records if record.domain not in running]
        unreadable = [record for record in records if record.error]
        in_domain = [record for record in records if record.domain == self.domain]
        newest = [max(candidates, key=_order) for candidates in (in_domain, records) if candidates]
        return next(filter(None, map(_reason, [*unreadable, *newest])), "")

    def write(self, mode: str) -> str:
        """Write durably that the robot is ARMED or DISARMED; return the error text, or ""."""
        if not (self.robot or self.path) or mode == self.written_mode:
            return ""
        path = self.path
        try:
            if path is None:
                number = 1 + max((record.number for record in self._records()), default=0)
                path, text = self._user_record(), f"{mode} {number}\n"
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                text = mode
            _write(path, text)
        except OSError as error:
            reason = error.strerror or str(error)
            where = f"{path} " if path else ""
            return (
                f"latch_file {where}cannot be written: {reason}. A stop would not survive a "
                f"restart. Free disk space, or create the folder for all users: {MAKE_FOLDER}"
            )
        self.written_mode = mode
        return ""

    @property
    def _name(self) -> str:
        return self.robot.strip("/").replace("/", ".")

    def _records(self) -> Iterator[Record]:
        """Yield every user's record of this robot, in every domain.

        Raises:
            OSError: a folder of records cannot be trusted.
        """
        name = re.compile(rf"rlinf-latch\.{re.escape(self._name)}\.([0-9]+)\.[0-9]+")
        for folder in filter(os.path.lexists, FOLDERS):
            check(folder)
            for entry in sorted(os.listdir(folder)):
                if match := name.fullmatch(entry):
                    yield _read(folder / entry, int(match[1]))
        with contextlib.suppress(RuntimeError):  # a user without a home
            # the place in earlier versions
            before = Path.home() / ".ros/rlinf" / f"{self._name}.interlock"
            if os.path.lexists(before):
                yield _read(before)

    def _user_record(self) -> Path:
        """Return the path of this user's record.

        Raises:
            OSError: no shared folder is writable.
        """
        for folder in filter(os.path.isdir, FOLDERS):
            if os.access(folder, os.W_OK | os.X_OK):
                return folder / f"rlinf-latch.{self._name}.{self.domain}.{os.geteuid()}"
        folders = " or ".join(map(str, FOLDERS))
        raise OSError(f"expected {folders}, writable for {user_name(os.geteuid())}")


def check(folder: Path) -> None:
    """Raise OSError unless only root, or the owner of each file, can remove a file there."""
    status = folder.lstat()
    remedy = f"Inspect and remove it. Then {MAKE_FOLDER}"
    if stat.S_ISLNK(status.st_mode) and status.st_uid == 0:
        status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        got = f"a link or a file of {user_name(status.st_uid)}"
    else:
        remedy = f"Run: sudo chown root {folder} && sudo chmod 1777 {folder}"
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid != 0:
            got = f"one of {user_name(status.st_uid)}"
        elif shared and not status.st_mode & stat.S_ISVTX:
            got = "a folder in which users may remove the files of others"
        else:
            return
    raise OSError(
        f"{folder}: expected a folder of root's with the sticky bit, for the latches of "
        f"all users, got {got}. {remedy}"
    )


def _order(record: Record) -> tuple[int, bool]:
    """Return a sort key: the newest record last, and of equal numbers the one that latches."""
    return record.number, record.mode != DISARMED


def _reason(record: Record) -> str:
    """Return the reason to start latched with this record, or ""."""
    if record.error:
        return (
            f"{record.path}: expected {DISARMED} or ARMED and a number, got {record.error}. It "
            "counts as armed. Check the arm, remove that file, then start again"
        )
    if record.mode == DISARMED:
        return ""
    where = "" if record.domain < 0 else f" in ROS_DOMAIN_ID {record.domain}"
    return (
        f"{record.path}: the previous interlock, of {_owner(record.path)}{where}, was not disarmed "
        "at its end"
    )


def _read(path: Path, domain: int = -1) -> Record:
    """Read a record without following links or blocking."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return Record(path, "", domain=domain, error=f"no file, of {_owner(path)}")
            raw = file.read(MAX_BYTES)
    except OSError as error:
        reason = "a link" if path.is_symlink() else error.strerror or str(error)
        return Record(path, "", domain=domain, error=f"{reason}, of {_owner(path)}")
    match = RECORD.fullmatch(raw)
    if match is None:
        return Record(path, "", domain=domain, error=f"{raw!r}, of {_owner(path)}")
    return Record(path, match[1].decode(), int(match[2] or 0), domain)


def _owner(path: Path) -> str:
    try:
        return user_name(path.lstat().st_uid)
    except OSError:
        return "an unknown user"


def _write(path: Path, text: str) -> None:
    """Replace a file atomically, in a folder that other users may also write to."""
    handle, name = tempfile.mkstemp(prefix=".rlinf-latch.", dir=path.parent)
    temporary = Path(name)
    try:
        with open(handle, "w") as file:
            os.fchmod(handle, 0o644)  # readable for every user, whatever the umask is
            file.write(text)
        publish_file(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def lock_name(name: str) -> str:
    """Return the name of this machine's lock for a namespace or a command topic."""
    return f"interlock/{shell_domain()}/{name.strip('/') or 'station'}"


def exclusive_command(namespace: str, commands: Iterable[str] = ()) -> ExitStack:
    """Hold the right to command one arm until the result is closed.

    Args:
        namespace: namespace of the interlock.
        commands: full names of its command topics. An interlock of another namespace may share
            them.

    Raises:
        RlinfError: another process holds one of these rights; the message names it.
    """
    domain, locks = shell_domain(), ExitStack()
    for name in dict.fromkeys((namespace, *commands)):
        where = f"station '{namespace}'" if name == namespace else f"the robot on '{name}'"
        try:
            locks.enter_context(acquire(lock_name(name)))
        except HeldError as error:
            locks.close()
            raise RlinfError(
                f"interlock: another interlock commands {where} in ROS_DOMAIN_ID {domain} on this "
                f"machine: {error}. Two interlocks must not command one robot. Stop the other "
                "station, or rename this one"
            ) from error
        except OSError as error:
            locks.close()
            raise RlinfError(
                f"interlock: cannot check whether another interlock commands {where}: {error}. "
                "Free sockets of this machine"
            ) from error
    return locks
