"""A slow reader of a policy delays no other reader; a withdrawn station gets nothing more."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.admission import DownloadSlots
from rlinf_core.deploy.bridge.client import BridgeClient, episode_offer, parts
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.policy_folder import policy_name
from tests.messages import record

pytestmark = pytest.mark.timed

BYTES = 32 << 20  # more than lies between two sockets
BASE = f"base-{'0' * 16}.safetensors"


def ask(client, have=-1, wait_s=5.0):
    return client._next_policy(
        pb.PolicyRequest(have_version=have, wait_s=wait_s), timeout=120, metadata=client._metadata
    )


@pytest.fixture
def clients(trainer):
    (trainer.policies / policy_name(1)).write_bytes(bytes(BYTES))
    by_name = {name: BridgeClient(f"127.0.0.1:{trainer.port}", name, links=False) for name in "ab"}
    yield by_name
    for client in by_name.values():
        client.close()


def test_a_station_that_does_not_read_is_cut_off_and_the_next_has_its_turn(
    trainer, clients, tmp_path
):
    trainer._downloads = DownloadSlots(1, 2.0)
    stuck = ask(clients["a"])
    next(stuck)
    trainer._downloads.longest_s = 60.0
    assert clients["b"].next_policy(-1, tmp_path / "b").path.stat().st_size == BYTES
    with pytest.raises(grpc.RpcError) as ended:
        list(stuck)
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert ended.value.details() == "station 'a': expected the station to read a policy within 2 s"
    assert (
        clients["a"].next_policy(-1, tmp_path / "a").version == 1 and not trainer._downloads._calls
    )


def test_a_station_has_one_call_for_a_policy_at_a_time_the_newest(trainer, clients, tmp_path):
    trainer._downloads = DownloadSlots(2, 60.0)
    stuck = []
    for _ in range(4):
        stuck.append(ask(clients["a"]))
        _, first = next(stuck[-1])
    assert clients["b"].next_policy(-1, tmp_path / "b").version == 1
    for older in stuck[:-1]:
        with pytest.raises(
            grpc.RpcError, match="station 'a': a newer call for a policy has replaced this one"
        ):
            list(older)
    assert sum(len(sent) for _, sent in stuck[-1]) + len(first) == BYTES


@pytest.fixture
def withdrawn(tmp_path, request):
    """A trainer, its fleet, and an enrolled station, which may take policies as links."""
    fleet = Fleet(tmp_path / "fleet")
    fleet.enroll("a", tmp_path / "of_a")
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "run/inbox",
        tmp_path / "run/policies",
        print,
        dict,
        fleet=fleet.folder,
    )
    client = BridgeClient(
        f"127.0.0.1:{server.port}", "a", tmp_path / "of_a", links=getattr(request, "param", False)
    )
    yield server, fleet, client
    client.close()
    server.stop()


def until(ready):
    end = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("withdrawn", [False, True], indirect=True)
def test_who_is_withdrawn_while_they_wait_for_a_policy_get_none(withdrawn, tmp_path):
    server, fleet, client = withdrawn
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(client.next_policy, -1, tmp_path / "a", 20.0)
        until(lambda: any(lease.calls for lease in server._admission._leases.values()))
        fleet.revoke("a")
        (server.policies / policy_name(1)).write_bytes(b"secret")
        with pytest.raises(BridgeError, match="its certificate was revoked"):
            waits.result(30)
    assert not list((tmp_path / "a").iterdir())


@pytest.mark.parametrize("what", [{"have_version": -1, "wait_s": 20.0}, {"file": BASE}])
def test_who_is_withdrawn_while_they_wait_for_their_turn_get_none(withdrawn, tmp_path, what):
    server, fleet, client = withdrawn
    fleet.enroll("b", tmp_path / "of_b")
    server._downloads = DownloadSlots(1, 60.0)
    for name in (policy_name(1), BASE):
        (server.policies / name).write_bytes(bytes(BYTES))
    other = BridgeClient(f"127.0.0.1:{server.port}", "b", tmp_path / "of_b", links=False)
    stuck = ask(other)
    next(stuck)
    waits = client._next_policy(pb.PolicyRequest(**what), timeout=60, metadata=client._metadata)
    until(lambda: "a" in server._downloads._calls)
    fleet.revoke("a")
    other.close()
    with pytest.raises(grpc.RpcError, match="its certificate was revoked"):
        next(waits)


def test_who_is_withdrawn_while_they_send_an_episode_leave_none(withdrawn, tmp_path, task):
    server, fleet, client = withdrawn
    folder = record(Spool(tmp_path / "spool"), task.spec, "one").close()

    def revoked_in_transit():
        sent = parts(folder, episode_offer(folder), [0] * len(episode_offer(folder).files))
        yield next(sent)
        fleet.revoke("a")
        yield from sent

    with pytest.raises(grpc.RpcError, match="its certificate was revoked"):
        client._stub.Upload(revoked_in_transit(), metadata=client._metadata)
    assert server.journal.ids() == [] and not (tmp_path / "run/inbox/one").exists()
