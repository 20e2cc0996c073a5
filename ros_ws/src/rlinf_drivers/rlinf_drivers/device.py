"""A node that reads a device in a thread, because a device's library may block.

The node's own thread continues meanwhile. A device that is missing, unplugged or silent is retried
every second, and reported once.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Protocol

from rlinf_core.core.errors import DeviceError, RlinfError
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.station_node import ControlNode

RETRY_S = 1.0
# interval of the check for the node's end, while it is not configured
POLL_S = 0.1


class Closeable(Protocol):
    """An open resource."""

    def close(self) -> None:
        """Close the resource; a second call does nothing."""


class DeviceNode(Managed, ControlNode):
    """Base of nodes that read a device; a subclass calls ``begin()`` at its constructor's end.

    The device is open while the node is configured.

    Attributes:
        device_name: the device's name in the log.
        trouble: description of the device's error; empty without one.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.device_name = name
        self.trouble = ""
        self.stopping = threading.Event()
        self.configured = threading.Event()
        self.failed: RlinfError | None = None
        self.reading = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self.reading.start()

    def configure(self) -> str:
        """Open the device, or look for it every second."""
        self.configured.set()
        return ""

    def cleanup(self) -> None:
        """Close the device."""
        self.configured.clear()

    def check(self) -> None:
        """End the process on an error that plugging in cannot repair."""
        if self.failed:
            raise self.failed

    def finish(self) -> bool:
        """End the node once the device is closed."""
        self.stopping.set()
        return not self.reading.is_alive()

    # In the thread
    def open(self) -> Closeable:
        """Open the device.

        Raises:
            DeviceError: it is missing; opening is retried.
            RlinfError: another error, which is final.
        """
        raise NotImplementedError

    def poll(self, device: Any) -> None:
        """Read or write once; called repeatedly.

        Raises:
            DeviceError: the device must be reopened.
        """
        raise NotImplementedError

    def _read(self) -> None:
        while not self.stopping.is_set():
            if not self.configured.wait(POLL_S):
                continue
            device: Closeable | None = None
            try:
                device = self.open()
                while self.configured.is_set() and not self.stopping.is_set():
                    self.poll(device)
            except DeviceError as error:
                self.log_trouble(str(error))
            except RlinfError as error:
                self.failed = error
                return
            # a vendor's library may raise anything: report it and reopen
            except Exception as error:
                self.log_trouble(f"{type(error).__name__}: {error}")
            finally:
                if device is not None:
                    # an unplugged device may fail to close; it is reopened anyway
                    with contextlib.suppress(Exception):
                        device.close()
            self.stopping.wait(RETRY_S if self.configured.is_set() else 0.0)

    def log_trouble(self, trouble: str, ended: str = "the device works again") -> None:
        """Report a new trouble, or its end, once each."""
        if trouble and trouble != self.trouble:
            self.get_logger().error(f"{self.device_name}: {trouble}")
        elif self.trouble and not trouble:
            self.get_logger().info(f"{self.device_name}: {ended}")
        self.trouble = trouble
