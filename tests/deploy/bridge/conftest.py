"""A trainer's bridge and a station's client of it, in this process."""

import threading
import time

import pytest

from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.client import BridgeClient, episode_offer
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes.spool import Spool


def until(condition, what="it", seconds=90):
    """Wait for a condition that another thread or process fulfils."""
    end = time.monotonic() + seconds
    while not (got := condition()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return got


def serve(tmp_path, address="127.0.0.1:0", arrived=print, **how):
    return BridgeServer(
        address, tmp_path / "run/inbox", tmp_path / "run/policies", arrived, dict, **how
    )


class Stalled:
    """An upload that sends only its description until the test releases it."""

    def __init__(self, client, folder):
        self.hold = threading.Event()
        self.call = client._stub.Upload.future(self._parts(folder), metadata=client._metadata)

    def _parts(self, folder):
        yield pb.UploadPart(episode=episode_offer(folder))
        self.hold.wait(60)

    def go_on(self):
        self.hold.set()

    def cancel(self):
        self.call.cancel()
        self.hold.set()


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


@pytest.fixture
def trainer(tmp_path):
    trainer = serve(tmp_path)
    yield trainer
    trainer.stop()


@pytest.fixture
def client(trainer):
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "a")
    yield client
    client.close()
