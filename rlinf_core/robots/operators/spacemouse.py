"""3Dconnexion SpaceMouse: its HID reports, read from hidraw."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Literal

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import DeviceFile
from rlinf_core.robots.operators.sticks import Axis, Button, Role, Sticks

NAMES = ("tx", "ty", "tz", "rx", "ry", "rz")  # the device's axes: right, towards you, down
Deflection = Literal["tx", "ty", "tz", "rx", "ry", "rz", "-tx", "-ty", "-tz", "-rx", "-ry", "-rz"]
TRANSLATION = 1
ROTATION = 2
BUTTONS = 3
IGNORED_REPORTS = {4, 0x17}  # LED, battery: no input of the person
FULL_DEFLECTION, MAX_COUNT = (
    350.0,
    512,
)  # counts of a usual full deflection, and the largest valid count
DEFAULT_AXES: dict[Axis, Deflection] = {
    "x": "-ty",
    "y": "-tx",
    "z": "-tz",
    "rx": "-ry",
    "ry": "-rx",
    "rz": "-rz",
}
REQUEST_BUTTONS: dict[Button, Role] = {"1": "close", "2": "open"}
VENDORS = ("046D", "256F")  # Logitech, the earlier maker, and 3Dconnexion
AUTO = "auto"
MULTI_AXIS = b"\x05\x01\x09\x08"  # usage of generic desktop, the start of the report descriptor


def find(
    identity: str = AUTO, folder: Path = Path("/sys/class/hidraw"), devices: Path = Path("/dev")
) -> Path:
    """Return the file of a six-axis device of 3Dconnexion, with any product id.

    Args:
        identity: its serial number or its port, in the kernel's form; auto for the only one.
        folder: folder of the kernel's entries.
        devices: folder of the files.

    Raises:
        DeviceError: there is none, or more than one; each is named.
    """
    mice = {
        devices / entry.name: properties
        for entry in sorted(folder.glob("hidraw*"))
        if (properties := _properties(entry))
    }
    chosen = [
        path
        for path, properties in mice.items()
        if identity == AUTO or identity in (properties["HID_UNIQ"], properties["HID_PHYS"])
    ]
    if len(chosen) == 1:
        return chosen[0]
    listing = "; ".join(
        f"{path} ({mouse['HID_NAME'] or 'no name'}, serial {mouse['HID_UNIQ'] or 'none'}, port "
        f"{mouse['HID_PHYS'] or 'unknown'})"
        for path, mouse in mice.items()
    )
    if not mice:
        raise DeviceError(
            f"expected a SpaceMouse, found none in {folder}. Plug it in, or name its file: "
            "station.operator.device=/dev/hidraw0; without one: rlinf fake-device spacemouse"
        )
    expected = (
        "one SpaceMouse"
        if identity == AUTO
        else f"one SpaceMouse with the serial or port '{identity}'"
    )
    raise DeviceError(
        f"expected {expected}, found {listing}. Unplug the others, or choose one by serial or "
        "port: station.operator.device=<serial or port>"
    )


def _properties(entry: Path) -> dict[str, str]:
    """Return the kernel's properties of a SpaceMouse; empty for any other device."""
    lines = (entry / "device/uevent").read_text(errors="replace").splitlines()
    properties = dict.fromkeys(("HID_ID", "HID_NAME", "HID_PHYS", "HID_UNIQ"), "")
    properties |= {key: value.strip() for key, _, value in (line.partition("=") for line in lines)}
    vendor = properties["HID_ID"].split(":")[1:2]
    descriptor = (entry / "device/report_descriptor").read_bytes()[:8]
    is_mouse = vendor and vendor[0][-4:].upper() in VENDORS and MULTI_AXIS in descriptor
    return properties if is_mouse else {}


class SpaceMouse(Sticks):
    """Six axes and buttons 1, 2, ...; both layouts of its reports, two halves or one for all."""

    def __init__(
        self,
        *,
        device: str = AUTO,
        axes: dict[Axis, Deflection] = DEFAULT_AXES,
        buttons: dict[Button, Role] = REQUEST_BUTTONS,
        **shaping: Any,
    ) -> None:
        """Settings.

        Args:
            device: device file (/dev/hidraw0), serial number or port. `auto` finds the only one
            axes: deflection for each axis of the tool. The device's tx is right, ty towards you, tz
                down
            buttons: request of each button 1, 2, and so on. open, close and intervene last while it
                is held
        """
        super().__init__(axes={**axes}, buttons=buttons, **shaping)
        self.device = device
        self.file: DeviceFile | None = None

    def open(self) -> None:
        self._reset_input()
        path = self.device if self.device.startswith(("/", ".")) else find(self.device)
        self.file = DeviceFile(path, "a SpaceMouse")

    def close(self) -> None:
        if self.file:
            self.file.close()

    def read_reports(self) -> None:
        for report in self.file.reports() if self.file else ():
            self._report(report)

    def _report(self, report: bytes) -> None:
        kind, size = report[0], len(report) - 1
        if kind == TRANSLATION and size == 12:
            self._deflections(NAMES, report)
        elif kind in (TRANSLATION, ROTATION) and size == 6:
            self._deflections(NAMES[:3] if kind == TRANSLATION else NAMES[3:], report)
        elif kind == BUTTONS and 1 <= size <= 8:
            bits = int.from_bytes(report[1:], "little")
            for number in range(8 * size):
                self.press(str(number + 1), bool(bits >> number & 1))
        elif kind not in IGNORED_REPORTS:
            raise self._garbage(report, "report 1, 2 or 3 of its size")
        self.note_report()

    def _deflections(self, names: tuple[str, ...], report: bytes) -> None:
        counts = struct.unpack_from(f"<{len(names)}h", report, 1)
        if any(abs(count) > MAX_COUNT for count in counts):
            raise self._garbage(report, f"deflections up to {MAX_COUNT}")
        self.values |= {
            name: count / FULL_DEFLECTION for name, count in zip(names, counts, strict=True)
        }

    def _garbage(self, report: bytes, expected: str) -> DeviceError:
        return DeviceError(
            f"garbage: expected {expected}, got {report[:16].hex(' ')}. Is it a SpaceMouse? Let "
            "go of it, or name another file: station.operator.device"
        )
