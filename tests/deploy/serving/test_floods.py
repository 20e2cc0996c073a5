"""A policy server under floods: an honest client is served within 2 s, and memory stays bounded."""

import contextlib
import socket
import struct
import threading
import time

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rlinf_core.deploy.serving import bounded
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.server import MAX_CLIENTS, SILENT_S
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from tests.deploy.serving.test_bombs import peak_mb
from tests.deploy.serving.test_serving import Served, observed, policy_of, spec  # noqa: F401

pytestmark = pytest.mark.timed
WITHIN_S = 2.0
MESSAGE = 59 << 20
MAX_GROWTH_MB = 512  # twice the 256 MiB that all messages may hold


@pytest.fixture
def served(tmp_path, spec):
    save_policy(policy_of(spec, 0), tmp_path / policy_name(0))
    served = Served(tmp_path)
    yield served
    served.end()


@pytest.fixture
def opened():
    sockets = []
    yield sockets
    for connection in sockets:
        connection.close()


def answered_s(served, spec):
    """Seconds in which a new client gets an answer."""
    began = time.monotonic()
    client = PolicyClient(served.address, 10.0)
    assert client.infer(observed(spec))["actions"].shape == (8, 3)
    client.close()
    return time.monotonic() - began


def open_to(served, opened, data=b""):
    with contextlib.suppress(OSError):
        opened.append(one := socket.create_connection(("127.0.0.1", served.port), 5))
        if data:
            one.sendall(data)


def upgraded(served, opened):
    """Return a client that has shaken hands, as a plain socket."""
    open_to(
        served,
        opened,
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    )
    assert b"101" in opened[-1].recv(4096)
    return opened[-1]


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"], ids=["silent", "slow header"]
)
def test_a_thousand_connections_keep_no_client_out_and_disturb_none(served, spec, opened, data):
    honest = PolicyClient(served.address, 10.0)
    honest.infer(observed(spec))
    for _ in range(1000):
        open_to(served, opened, data)
    began = time.monotonic()
    honest.infer(observed(spec))  # on the connection that it had before
    assert time.monotonic() - began < WITHIN_S
    assert answered_s(served, spec) < WITHIN_S
    time.sleep(bounded.HEADER_S + 2.0)
    for one in opened:
        one.settimeout(1.0)
        with contextlib.suppress(ConnectionError):
            while one.recv(4096):  # closed by the server
                pass
    honest.close()


def test_silent_clients_give_way_where_there_are_too_many(served, spec, opened):
    for _ in range(MAX_CLIENTS):
        upgraded(served, opened)
    time.sleep(SILENT_S)
    assert answered_s(served, spec) < WITHIN_S


def test_the_bytes_of_all_messages_are_bounded_and_an_honest_client_is_answered(
    served, spec, opened
):
    honest = PolicyClient(served.address, 10.0)
    honest.infer(observed(spec))
    before, ending, sent = peak_mb(served), threading.Event(), []
    head = b"\x82\xff" + struct.pack(">Q", MESSAGE) + bytes(4)

    def attack():
        part = bytes(1 << 20)
        while not ending.is_set():
            with contextlib.suppress(OSError, AssertionError):
                one = upgraded(served, opened)
                one.sendall(head)
                for _ in range(58):  # the last one never comes
                    one.sendall(part)
                    sent.append(1)
                    if ending.is_set():
                        return

    threads = [threading.Thread(target=attack) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 60
        while len(sent) < 58 * 16:
            assert time.monotonic() < end
            began = time.monotonic()
            honest.infer(observed(spec))
            assert time.monotonic() - began < WITHIN_S
            time.sleep(0.05)
        assert answered_s(served, spec) < WITHIN_S
    finally:
        ending.set()
        for one in opened:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    assert peak_mb(served) - before < MAX_GROWTH_MB
    honest.close()


def test_a_message_of_tiny_frames_is_counted_with_what_its_frames_take(served, spec):
    before = peak_mb(served)
    with connect(served.address, compression=None, max_size=None) as bad:
        bad.recv()
        frames = b"\x02\x81\x00\x00\x00\x00a" + b"\x00\x81\x00\x00\x00\x00a" * 1_500_000
        with contextlib.suppress(OSError, ConnectionClosed):
            bad.socket.sendall(frames)
        assert answered_s(served, spec) < WITHIN_S
    assert peak_mb(served) - before < MAX_GROWTH_MB
