"""The interface of an operator's device, and the guard that trusts it only while it behaves."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from rlinf_core.core.errors import DeviceError
from rlinf_core.core.machine import HeldError, access_denied_text, acquire_device, user_name
from rlinf_core.specs.arrays import ActionSpec

AXES = ("x", "y", "z", "rx", "ry", "rz", "grip")
# labels of the scene before an episode, and of the present one
LABELS = ("ready", "success", "failure", "rerecord", "discard")
RETRY_S = 1.0  # pause between two attempts to find a lost device
REST_S = 0.2
# a longer gap of polls voids the input, because it was meant for another moment (S26)
MAX_POLL_GAP_S = 3.0
# the same for a device that commanded; the interlock has stopped the arm meanwhile (S16)
MAX_POLL_GAP_COMMANDING_S = 0.5
DISCARD_S = 0.5  # for this long, a key that was read late would still move
FIRST_MESSAGE_S = 1.0  # time in which a silent device is tolerated after opening


def axes(action: ActionSpec) -> dict[str, int]:
    """Return the index of each device axis in an action of one arm.

    Axes that the action lacks are left out.
    """
    if action.control_mode != "tcp_delta":
        return {"x": 0, "y": 1, "z": 2} | ({"grip": action.dim - 1} if grips(action) else {})
    arm = ("x", "y", "z", "rx", "ry", "rz")[: 6 if action.dim >= 6 else 3]
    return {axis: index for index, axis in enumerate((*arm, "grip")[: action.dim])}


def grips(action: ActionSpec) -> bool:
    """Return True if the last number of an arm's joint action is its gripper's, by its name."""
    return "grip" in action.names[-1]


class Device:
    """A device in a person's hands; it only requests.

    A custom device is a class with these methods; its settings are its arguments. ``poll`` is
    called 50 times a second, ``motion`` once a time step. Both return at once.
    """

    rest_s: ClassVar[float] = REST_S  # time at rest before the device is trusted
    # topics of the station (rlinf_core.specs.topics); their messages go to ``receive``
    topics: ClassVar[tuple[str, ...]] = ()
    # a label renews the enable, because it proves a person's presence
    label_renews: ClassVar[bool] = True

    def attach(self, action: ActionSpec, control_hz: float) -> None:
        """Take the action of one arm and the rate; called once, before ``open``."""

    def open(self) -> None:
        """Open the device.

        Raises:
            DeviceError: something is missing; the message has the remedy.
        """

    def close(self) -> None:
        """Close the device; repeated calls are allowed."""

    def receive(self, message: Any) -> None:
        """Take a message of one of ``topics``."""

    def poll(self) -> tuple[str, ...]:
        """Read the device, and return the requests since the last call.

        Returns:
            ``enable`` (somebody is there: each of these renews the enable), ``arm``, ``disarm``,
            the number of an arm, ``next_arm``, or one of LABELS.

        Raises:
            DeviceError: the device is silent, gone, or sends garbage.
        """
        return ()

    def take_requests(self) -> tuple[str, ...]:
        """Return the requests that came before ``poll`` raised, each once.

        A disarming counts in any case.
        """
        return ()

    def motion(self) -> dict[str, float] | None:
        """Return the motion of this time step by axis, or None without any.

        The axes are AXES, or j1, j2, ... for joints; 1 is the task's largest step.
        """
        return None

    def has_reported(self) -> bool:
        """Return True if the device has reported anything yet; True by default."""
        return True

    def at_rest(self) -> bool:
        """Return True if the device requests no motion.

        The guard trusts it for the first time, and again after trouble, only at rest.
        """
        return True

    def help(self, axes: dict[str, int]) -> str:
        """Return instructions for an arm with these axes."""
        return ""


class RequestDevice(Device):
    """A device that keeps requests until they are handed on."""

    requests: list[str]

    def take_requests(self) -> tuple[str, ...]:
        requests = self.requests
        self.requests = []
        return tuple(requests)


class Guard:
    """Trusts a device only after it was at rest, and not while it is silent or sends garbage."""

    def __init__(self, name: str, device: Device) -> None:
        self.name, self.device = name, device
        self.trouble = ""
        self.trusted = False
        self._opened = False
        self._rest_since = 0.0
        self._searched_at = 0.0
        self._opened_at = 0.0
        self._polled_at = 0.0
        self._discards_until = 0.0
        self._is_commanding = False

    def open(self) -> None:
        """Open the device at the start; a missing device ends the process.

        Raises:
            DeviceError: the device is missing.
        """
        self.device.open()
        self._opened = True
        self._rest_since = time.monotonic()
        self._opened_at = self._rest_since

    def poll(self) -> tuple[str, ...]:
        """Return a device's requests; without trust, only those to disarm."""
        now, before = time.monotonic(), self._polled_at
        self._polled_at = now
        try:
            if not self._opened and not self._reopen():
                return ()
            requests = self.device.poll()
        except DeviceError as error:
            requests = self.device.take_requests()
            self._on_error(error)
        else:
            max_gap_s = MAX_POLL_GAP_COMMANDING_S if self._is_commanding else MAX_POLL_GAP_S
            if before and now - before > max_gap_s:
                self._discard_input(now, now - before)
            self._update_trust()
        return (
            requests
            if self.trusted
            else tuple(request for request in requests if request == "disarm")
        )

    def motion(self) -> dict[str, float] | None:
        """Return a device's motion; None without trust."""
        motion = self.device.motion() if self.trusted else None
        self._is_commanding = motion is not None
        return motion

    def distrust(self) -> None:
        """Believe the device again only once it has been at rest."""
        self.trusted = False
        self._rest_since = 0.0

    def close(self) -> None:
        """Close the device."""
        self.device.close()
        self._opened = False

    def _reopen(self) -> bool:
        """Return True if a lost device is back."""
        if time.monotonic() - self._searched_at < RETRY_S:
            return False
        self._searched_at = time.monotonic()
        self.device.open()
        self._opened = True
        self._opened_at = time.monotonic()
        return True

    def _on_error(self, error: DeviceError) -> None:
        if self._opened or not self.trouble:  # keep the first message while the device is away
            self.trouble = f"{self.name}: {error}"
        self.trusted = False
        self._rest_since = 0.0
        if error.disconnected and self._opened:
            self.close()
            self._searched_at = time.monotonic()

    def _discard_input(self, now: float, late_s: float) -> None:
        """Drop input that had waited, because its sender may stand beside the arm by now."""
        self.trouble = (
            f"{self.name}: the process was stopped for {late_s:.1f} s and did not read the device. "
            "Buttons of that time are ignored, except disarm. Press again"
        )
        self.trusted = False
        self._rest_since = 0.0
        self._discards_until = now + DISCARD_S

    def _update_trust(self) -> None:
        now = time.monotonic()
        resting = self.device.at_rest()
        has_reported = self.device.has_reported()
        if self.trusted or now < self._discards_until:
            return
        self._rest_since = (self._rest_since or now) if resting else 0.0
        if resting and now - self._rest_since >= self.device.rest_s:
            self.trusted = True
            self.trouble = ""
        elif (
            not resting
            and not self.trouble
            and (has_reported or now - self._opened_at > FIRST_MESSAGE_S)
        ):
            actual = (
                "a deflection or a pressed button. Let go of it"
                if has_reported
                else "no message yet. Is it publishing?"
            )
            self.trouble = (
                f"{self.name}: expected it at rest before its first command, got {actual}"
            )


class DeviceFile:
    """A device file that is read without waiting: hidraw, evdev, or the pipe of a twin."""

    def __init__(self, path: str | Path, device_name: str) -> None:
        self.path = Path(path)
        self.device_name = device_name
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise DeviceError(access_denied_text(device_name, path)) from error
        except OSError as error:
            raise DeviceError(
                f"expected {device_name} at {path}, got: {error.strerror}. Plug it in, or name "
                "another device: station.operator.device"
            ) from error
        self.lock = self._claim()
        status = os.fstat(self.fd)
        if stat.S_ISFIFO(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            self.close()
            raise DeviceError(
                f"expected {device_name} at {path}, got a pipe of {user_name(status.st_uid)}, "
                "another user, who could move the arm. Start your own twin in your own folder: "
                "rlinf fake-device"
            )

    def _claim(self) -> socket.socket | None:
        """Claim the device, because one person's device must move one arm only.

        Raises:
            DeviceError: another process reads it already; the message names that process.
        """
        try:
            return acquire_device(self.path)
        except HeldError as error:
            os.close(self.fd)
            raise DeviceError(
                f"expected {self.device_name} at {self.path} that no other program reads, got one "
                f"that {error} reads. One device would move two arms. End that program, or name "
                "another device: station.operator.device"
            ) from error
        except OSError:  # unplugged meanwhile; the first read reports it
            return None

    def reports(self) -> Iterator[bytes]:
        """Yield the data of each read.

        Raises:
            DeviceError: the device is gone.
        """
        while True:
            try:
                data = os.read(self.fd, 4096)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._disconnected(error.strerror) from error
            if not data:
                raise self._disconnected("its end")
            yield data

    def _disconnected(self, actual: str | None) -> DeviceError:
        return DeviceError(
            f"unplugged: expected reports of {self.device_name} at {self.path}, got {actual}. "
            "Plug it in again. The operator searches for it every second",
            disconnected=True,
        )

    def close(self) -> None:
        """Close the file; repeated calls are allowed."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        if self.lock is not None:
            self.lock.close()
