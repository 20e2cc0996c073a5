"""A node that reads a device: whatever its library raises, it is looked for again."""

import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rlinf_core.core.errors import DeviceError, RlinfError
from rlinf_drivers import device
from rlinf_drivers.device import DeviceNode


class Stubborn:
    """Neither read nor closed once it is unplugged."""

    def close(self):
        raise RuntimeError("no such device")


def test_a_device_that_cannot_even_be_closed_is_opened_again(monkeypatch):
    node, opened = DeviceNode.__new__(DeviceNode), threading.Event()  # without ROS
    node.device_name = "camera"
    node.trouble = ""
    node.stopping = threading.Event()
    node.failed = None
    count = []
    node.get_logger = MagicMock()
    node.configured = threading.Event()
    node.configured.set()

    def begin():
        count.append(1)
        if len(count) == 3:
            opened.set()
            node.stopping.set()
        return Stubborn()

    def poll(_):
        raise DeviceError("unplugged")

    node.open, node.poll = begin, poll
    monkeypatch.setattr(device, "RETRY_S", 0.01)
    reading = threading.Thread(target=node._read)
    reading.start()
    assert opened.wait(20)
    reading.join(20)
    assert not reading.is_alive() and len(count) == 3 and node.trouble == "unplugged"


class Reader(DeviceNode):
    """A node whose device works, raises, or ends the node, as the test says."""

    def __init__(self, *outcomes):
        self.device_name, self.trouble, self.failed = "camera", "", None
        self.stopping, self.configured = threading.Event(), threading.Event()
        self.outcomes, self.closed, self.logged = list(outcomes), 0, []
        self.reading = threading.Thread(target=self._read, daemon=True)

    def get_logger(self):
        return SimpleNamespace(
            error=lambda text: self.logged.append(("error", text)),
            info=lambda text: self.logged.append(("info", text)),
        )

    def close(self):
        self.closed += 1

    def open(self):
        self._next()
        return self

    def poll(self, opened):
        assert opened is self
        self._next()

    def _next(self):
        if not self.outcomes:
            self.stopping.set()
        elif (outcome := self.outcomes.pop(0)) == "cleanup":
            self.cleanup()
        elif outcome:
            raise outcome

    def run(self):
        self.begin()
        self.reading.join(20)
        assert not self.reading.is_alive()


def test_a_device_is_read_until_the_node_ends_and_then_closed():
    node = Reader(None, None, None)
    assert node.configure() == "" and node.configured.is_set()
    node.run()
    assert node.closed == 1 and not node.logged and node.finish() and node.stopping.is_set()
    node.check()


@pytest.mark.parametrize(
    "error, words",
    [
        (DeviceError("unplugged"), "camera: unplugged"),
        (RuntimeError("bus"), "camera: RuntimeError: bus"),
    ],
)
def test_a_lost_device_is_told_once_opened_again_and_closed_each_time(monkeypatch, error, words):
    monkeypatch.setattr(device, "RETRY_S", 0.01)
    node = Reader(None, error, error, error, None, None)
    node.configure()
    node.run()
    assert node.logged == [("error", words)] and node.closed == 2
    node.log_trouble("")
    node.log_trouble("")
    assert node.logged[1:] == [("info", "camera: the device works again")] and node.trouble == ""
    node.log_trouble("cold")
    node.log_trouble("hot")
    node.log_trouble("", "it is warm")
    assert node.logged[2:] == [
        ("error", "camera: cold"),
        ("error", "camera: hot"),
        ("info", "camera: it is warm"),
    ]


def test_what_plugging_in_cannot_repair_ends_the_process():
    node = Reader(None, RlinfError("other firmware"), None)
    node.configure()
    node.run()
    assert node.closed == 1 and not node.logged and node.outcomes == [None]
    with pytest.raises(RlinfError, match="other firmware"):
        node.check()


def test_a_device_is_open_only_while_its_node_is_configured(monkeypatch):
    monkeypatch.setattr(device, "POLL_S", 0.01)
    monkeypatch.setattr(device, "RETRY_S", 60.0)
    node = Reader(None, None, "cleanup", None)
    node.begin()
    time.sleep(0.05)
    assert len(node.outcomes) == 4 and node.reading.is_alive(), "nothing is opened before"
    node.configure()
    deadline = time.monotonic() + 20
    while not node.closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert node.outcomes == [None] and not node.configured.is_set()
    node.configure()
    node.reading.join(20)
    assert node.closed == 2 and node.stopping.is_set()


def test_a_node_that_has_just_begun_has_no_device_yet(monkeypatch):
    names = []
    monkeypatch.setattr(device.Managed, "__init__", lambda node, name: names.append(name))
    node = DeviceNode("camera")
    assert names == ["camera"] and (node.device_name, node.trouble) == ("camera", "")
    assert node.failed is None and not node.stopping.is_set() and not node.configured.is_set()
    assert node.reading.daemon and not node.reading.is_alive()
    node.check()
    node.begin()
    assert node.reading.is_alive() and not node.finish()
    node.reading.join(20)
    assert node.finish()
    for method in (node.open, lambda: node.poll(None)):
        with pytest.raises(NotImplementedError):
            method()
