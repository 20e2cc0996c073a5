"""A node that reads a device in a thread, since a device's library waits as it likes: the node's own goes on meanwhile.

A device that is not there, is unplugged or falls silent is looked for every second, and said once.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Protocol

from rlinf_core.core.errors import DeviceError, RlinfError
from rlinf_ros.managed import Managed
from rlinf_ros.spinning import ControlNode

AGAIN_S = 1.0
LOOK_S = 0.1  # whether the node ends, while it is not configured


class Closes(Protocol):
    """Something that is open."""

    def close(self) -> None:
        """End, as often as it is called."""


class DeviceNode(Managed, ControlNode):
    """Base of such nodes: ``begin()`` at the end of the constructor. The device is open while the node is configured.

    Attributes:
        what: the device, in the log.
        trouble: what is wrong with it, in words; empty while nothing is.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.what = name
        self.trouble = ""
        self.over = threading.Event()
        self.configured = threading.Event()
        self.failed: RlinfError | None = None
        self.reading = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """From now on."""
        self.reading.start()

    def configure(self) -> str:
        """Open the device, or look for it every second."""
        self.configured.set()
        return ""

    def cleanup(self) -> None:
        """Close the device."""
        self.configured.clear()

    def check(self) -> None:
        """End the process on an error that plugging in cannot mend."""
        if self.failed:
            raise self.failed

    def finish(self) -> bool:
        """Asked to end: once the device is closed."""
        self.over.set()
        return not self.reading.is_alive()

    # In the thread
    def open(self) -> Closes:
        """Begin; DeviceError says what is missing, and it is tried again; any other RlinfError is for good."""
        raise NotImplementedError

    def turn(self, device: Any) -> None:
        """Once, again and again; DeviceError where it must be opened anew."""
        raise NotImplementedError

    def _read(self) -> None:
        while not self.over.is_set():
            if not self.configured.wait(LOOK_S):
                continue
            device: Closes | None = None
            try:
                device = self.open()
                while self.configured.is_set() and not self.over.is_set():
                    self.turn(device)
            except DeviceError as error:
                self.tell(str(error))
            except RlinfError as error:
                self.failed = error
                return
            except Exception as error:  # whatever a vendor's library raises: it is begun anew, and that is said
                self.tell(f"{type(error).__name__}: {error}")
            finally:
                if device is not None:
                    with contextlib.suppress(Exception):  # of what is unplugged: it is begun anew all the same
                        device.close()
            self.over.wait(AGAIN_S if self.configured.is_set() else 0.0)

    def tell(self, trouble: str, ended: str = "all is well again") -> None:
        """Once each; no trouble is the end of it."""
        if trouble and trouble != self.trouble:
            self.get_logger().error(f"{self.what}: {trouble}")
        elif self.trouble and not trouble:
            self.get_logger().info(f"{self.what}: {ended}")
        self.trouble = trouble
