"""A bridge with many stations, and with whoever else finds its port: the others are served, and
memory stays bounded.
"""

import os
import resource
import socket
import threading
import time
from concurrent import futures
from pathlib import Path

import pytest

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge import server
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes.checksums import seal
from rlinf_core.policies.policy_folder import policy_name

pytestmark = pytest.mark.timed

MIB = 1 << 20


def episode(folder, mib=3):
    folder.mkdir(parents=True)
    (folder / "x.mcap").write_bytes(os.urandom(mib * MIB))
    seal(folder)
    return folder


def publish(trainer, version, data):
    aside = trainer.policies / ".part"
    aside.write_bytes(data)
    publish_file(aside, trainer.policies / policy_name(version))


def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def fetched(client):
    """Bytes of the first policy that there is, however long it takes."""
    while not (
        size := sum(
            len(part.data)
            for part in client._stub.NextPolicy(
                pb.PolicyRequest(have_version=0, wait_s=30.0), metadata=client._metadata
            )
        )
    ):
        pass
    return size


def many(trainer, tmp_path, stations, uploading, episodes_per_station, policy_mib):
    """So many wait for a policy while some upload; then all of them have it.

    Returns the memory taken.
    """
    clients = [
        BridgeClient(f"127.0.0.1:{trainer.port}", f"s{number}", instance=f"i{number}")
        for number in range(stations)
    ]
    folders = [
        episode(tmp_path / f"spool/{station}-{number}", 1)
        for station in range(uploading)
        for number in range(episodes_per_station)
    ]
    before = resident_mib()

    def send(number):
        for folder in folders[number::uploading]:
            assert clients[number].upload(folder) is False
            clients[number].report(0, 0, timeout_s=30.0)

    with (
        futures.ThreadPoolExecutor(stations) as waiting,
        futures.ThreadPoolExecutor(uploading) as pool,
    ):
        sizes = [waiting.submit(fetched, client) for client in clients]
        end = time.monotonic() + 60
        while sum(lease.calls for lease in trainer._admission._leases.values()) < stations:
            assert time.monotonic() < end
            time.sleep(0.02)
        list(pool.map(send, range(uploading)))
        assert sorted(trainer.journal.ids()) == sorted(folder.name for folder in folders)
        assert not any(size.done() for size in sizes), "they wait all the while"
        publish(trainer, 1, os.urandom(policy_mib * MIB))
        assert {size.result() for size in sizes} == {policy_mib * MIB}
    for client in clients:
        client.close()
    return resident_mib() - before


def test_fifty_stations_wait_while_five_upload(trainer, tmp_path):
    many(trainer, tmp_path, stations=50, uploading=5, episodes_per_station=2, policy_mib=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_stations_wait_while_twenty_upload_and_the_memory_stays_bounded(
    trainer, tmp_path
):
    """Clients and trainer are one process here: the bound is that of both."""
    grown = many(
        trainer, tmp_path, stations=200, uploading=20, episodes_per_station=5, policy_mib=8
    )
    assert grown < 600, f"{grown:.0f} MiB; one copy of the policy for each station would be 1600"


def silent(trainer, count, says=b""):
    """Connections of others that say little, or nothing."""
    ends = [socket.create_connection(("127.0.0.1", trainer.port)) for _ in range(count)]
    for end in ends:
        end.settimeout(30)
        if says:
            end.sendall(says)
    return ends


def closed(end):
    """Return whether the other side has closed the connection."""
    try:
        while end.recv(1 << 14):
            pass
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture(params=["loopback", "tls"])
def either(request, tmp_path, monkeypatch):
    """A trainer with a station, in the clear and over TLS; five times as impatient as it is."""
    patience = "grpc.server_handshake_timeout_ms"
    options = [(key, value // 5 if key == patience else value) for key, value in server.OPTIONS]
    monkeypatch.setattr(server, "OPTIONS", options)
    folder = None
    if request.param == "tls":
        Fleet(tmp_path / "fleet").enroll("a", tmp_path / "a")
        folder = tmp_path / "fleet"
    trainer = BridgeServer(
        "127.0.0.1:0", tmp_path / "run/inbox", tmp_path / "run/policies", print, dict, fleet=folder
    )
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "a", folder and tmp_path / "a")
    yield trainer, client
    client.close()
    trainer.stop()


GARBAGE = {
    "noise": os.urandom(1 << 16),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 9,
    "zeros": bytes(1 << 16),
    "half a preface": b"PRI * HTTP/2.0\r\n",
    "a preface and noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(1 << 14),
    "tls, then noise": b"\x16\x03\x01\x02\x00" + os.urandom(1 << 14),
}


def test_garbage_on_the_port_disturbs_nobody(either, tmp_path):
    trainer, client = either
    ends = [end for says in GARBAGE.values() for end in silent(trainer, 3, says)]
    for number in range(3):
        assert client.upload(episode(tmp_path / f"spool/e{number}", 1)) is False
        ends += [end for says in GARBAGE.values() for end in silent(trainer, 1, says)]
    client.report(0, 0, timeout_s=20.0)
    with futures.ThreadPoolExecutor(len(ends)) as pool:
        assert all(pool.map(closed, ends)), "each is hung up on"


def test_slow_connections_are_hung_up_on_while_a_station_uploads(either, tmp_path):
    trainer, client = either
    ends, drip = silent(trainer, 100), threading.Event()

    def slowly():
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 100:
            for end in ends[:50]:
                try:
                    end.send(bytes([byte]))
                except OSError:
                    continue
            if drip.wait(0.2):
                return

    dripping = threading.Thread(target=slowly)
    dripping.start()
    for number in range(3):
        assert client.upload(episode(tmp_path / f"spool/e{number}", 1)) is False
    client.report(0, 0, timeout_s=20.0)
    with futures.ThreadPoolExecutor(len(ends)) as pool:
        assert all(pool.map(closed, ends))
    drip.set()
    dripping.join()
    assert client.upload(episode(tmp_path / "spool/last", 1)) is False
