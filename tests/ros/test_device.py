"""A node that reads a device: whatever its library raises, it is looked for again."""

import threading
from unittest.mock import MagicMock

from rlinf_core.core.errors import DeviceError
from rlinf_drivers import device
from rlinf_drivers.device import DeviceNode


class Stubborn:
    """Neither read nor closed once it is unplugged."""

    def close(self):
        raise RuntimeError("no such device")


def test_a_device_that_cannot_even_be_closed_is_opened_again(monkeypatch):
    node, opened = DeviceNode.__new__(DeviceNode), threading.Event()  # without ROS
    node.device_name, node.trouble, node.over, node.failed, count = (
        "camera",
        "",
        threading.Event(),
        None,
        [],
    )
    node.get_logger = MagicMock()
    node.configured = threading.Event()
    node.configured.set()

    def begin():
        count.append(1)
        if len(count) == 3:
            opened.set()
            node.over.set()
        return Stubborn()

    def turn(_):
        raise DeviceError("unplugged")

    node.open, node.turn = begin, turn
    monkeypatch.setattr(device, "AGAIN_S", 0.01)
    reading = threading.Thread(target=node._read)
    reading.start()
    assert opened.wait(20)
    reading.join(20)
    assert not reading.is_alive() and len(count) == 3 and node.trouble == "unplugged"
