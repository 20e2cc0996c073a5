"""Connections that say nothing, or no certificate, and an enrolled station that must get in all the
same.
"""

import contextlib
import os
import socket
import ssl
import threading
import time

import pytest

from rlinf_core.deploy.bridge import listener
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.deploy.bridge.credentials import TOKEN_FILE
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.deploy.bridge.server import BridgeServer
from tests.deploy.bridge.conftest import until

pytestmark = pytest.mark.timed


class Server:
    """A trainer over TLS, or with a token; its enrolled station is a."""

    def __init__(self, folder, tls):
        self.folder, self.tls = folder, tls
        if tls:
            Fleet(folder / "fleet").enroll("a", folder / "a")
        self.server = BridgeServer(
            "127.0.0.1:0",
            folder / "run/inbox",
            folder / "run/policies",
            print,
            dict,
            fleet=folder / "fleet" if tls else None,
            token_file=None if tls else folder / TOKEN_FILE,
        )
        self.port = self.server.port

    def report_s(self, name="a"):
        """Seconds until a new station is let in."""
        began = time.monotonic()
        client = BridgeClient(
            f"127.0.0.1:{self.port}",
            name,
            self.folder / "a" if self.tls else None,
            tokens=[self.folder / TOKEN_FILE],
        )
        client.report(0, 0, timeout_s=20.0)
        client.close()
        return time.monotonic() - began


@pytest.fixture
def trainer(tmp_path, monkeypatch, request):
    monkeypatch.setenv("HOME", str(tmp_path))
    server = Server(tmp_path, request.param)
    yield server
    server.server.stop()
    assert not server.server._listener.folder.exists()


@pytest.fixture
def flood():
    opened = []

    def connect(port, data=b""):
        with contextlib.suppress(OSError):
            opened.append(one := socket.create_connection(("127.0.0.1", port), 5))
            if data:
                one.sendall(data)

    yield lambda port, number, data=b"": [connect(port, data) for _ in range(number)]
    for one in opened:
        one.close()


def pending(server):
    return [
        connection
        for connection in list(server._listener.connections.open.values())
        if not connection.busy
    ]


BOTH = pytest.mark.parametrize("trainer", [False, True], indirect=True, ids=["token", "tls"])


@BOTH
def test_a_thousand_connections_that_say_nothing_keep_no_station_out(trainer, flood):
    flood(trainer.port, 1000)
    assert trainer.report_s() < 2.0
    assert len(pending(trainer.server)) <= listener.MAX_PENDING_PER_PEER
    assert len(os.listdir("/proc/self/fd")) < 3000


@BOTH
def test_a_thousand_connections_that_speak_slowly_keep_no_station_out(trainer, flood):
    first = b"\x16\x03\x01" if trainer.tls else b"PRI * HTTP/2.0\r"
    flood(trainer.port, 1000, first)
    assert trainer.report_s() < 2.0
    until(
        lambda: len(trainer.server._listener._by_name) <= listener.MAX_PENDING_PER_PEER + 8,
        "the oldest to go",
    )


@pytest.mark.parametrize("trainer", [True], indirect=True)
def test_handshakes_without_a_certificate_keep_no_station_out(trainer):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    ending, attempts, opened = threading.Event(), [], []

    def attack():
        while not ending.is_set():
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", trainer.port), 5)
                opened.append(context.wrap_socket(one))
            attempts.append(1)
            while len(opened) > 1000:
                opened.pop(0).close()

    threads = [threading.Thread(target=attack) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(attempts) >= 1000, "a thousand handshakes")
        assert trainer.report_s() < 2.0
    finally:
        ending.set()
        for thread in threads:
            thread.join()
        for one in opened:
            one.close()


@BOTH
def test_a_pending_connection_is_closed_in_time_and_an_admitted_one_stays(
    trainer, flood, monkeypatch
):
    monkeypatch.setattr(trainer.server._listener.connections, "request_s", 0.5)
    name = "a"
    client = BridgeClient(
        f"127.0.0.1:{trainer.port}",
        name,
        trainer.folder / "a" if trainer.tls else None,
        tokens=[trainer.folder / TOKEN_FILE],
    )
    client.report(0, 0)
    admitted = list(trainer.server._listener._by_station["a"])
    flood(trainer.port, 5)
    until(lambda: not pending(trainer.server), "the idle ones to be closed")
    time.sleep(1.0)
    client.report(0, 0)
    assert trainer.server._listener._by_station["a"] == admitted
    client.close()
    until(
        lambda: not trainer.server._listener._by_station and not trainer.server._listener._by_name,
        "it to be forgotten",
    )


@pytest.mark.parametrize("trainer", [False], indirect=True)
def test_a_station_has_so_many_connections_and_its_oldest_gives_way(trainer):
    clients = [
        BridgeClient(f"127.0.0.1:{trainer.port}", "a", tokens=[trainer.folder / TOKEN_FILE])
        for _ in range(30)
    ]
    for client in clients:
        client.report(0, 0)
    until(
        lambda: len(trainer.server._listener._by_station["a"]) <= listener.MAX_PER_STATION,
        "the oldest to go",
    )
    clients[-1].report(0, 0)
    for client in clients:
        client.close()


@pytest.mark.parametrize("trainer", [False], indirect=True)
def test_the_trainer_names_the_address_of_a_peer_and_not_its_own_socket(trainer):
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "a", tokens=[trainer.folder / TOKEN_FILE])
    client.report(0, 0)
    peers = [lease.peer for lease in trainer.server._admission._leases.values()]
    assert len(peers) == 1 and peers[0].startswith("ipv4:127.0.0.1:")
    client.close()


def test_every_form_of_an_address_is_listened_on(tmp_path):
    for number, host in enumerate(("localhost", "0.0.0.0", "[::]", "[::1]")):
        server = BridgeServer(
            f"{host}:0", tmp_path / f"{number}/inbox", tmp_path / f"{number}/policies", print, dict
        )
        called = {
            "localhost": ["localhost"],
            "0.0.0.0": ["127.0.0.1"],
            "[::]": ["127.0.0.1", "[::1]"],
            "[::1]": ["[::1]"],
        }
        for address in called[host]:
            client = BridgeClient(f"{address}:{server.port}", "a")
            assert client.report(0, 0, timeout_s=5.0) is not None
            client.close()
        server.stop()
