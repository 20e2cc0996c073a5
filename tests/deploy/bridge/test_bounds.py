"""The bridge's bounds on single stations: whose episodes they send, how long they wait, how many
calls they open.
"""

import threading

import grpc
import pytest

from rlinf_core.deploy.bridge import admission, server
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.client import BridgeClient
from tests.deploy.bridge.conftest import until
from tests.deploy.bridge.test_hardened import chunk, episode_of, left, offer, parts_of, send

pytestmark = pytest.mark.timed


@pytest.mark.parametrize(
    "episode_id", ["b-7-001", "b-", "other-session-20261129T000000-000", "A-1"]
)
def test_an_id_of_another_station_is_refused_by_name_and_leaves_no_trace(
    trainer, client, episode_id
):
    owner = episode_id.partition("-")[0]
    for reply in (
        offer(client, episode_of({"x": b"x"}, episode_id)[0]),
        send(client, parts_of({"x": b"x"}, episode_id=episode_id)),
    ):
        assert reply.refused and not reply.stored and f"station '{owner}'" in reply.error, (
            reply.error
        )
        assert "station 'a'" in reply.error and f"station.name={owner}" in reply.error
    assert left(trainer) == []


@pytest.mark.parametrize("episode_id", ["a-7-001", "a-session-1", "e", "0-conflict"])
def test_ids_of_ones_own_or_of_no_station_are_taken(client, episode_id):
    assert send(client, parts_of({"x": b"x"}, episode_id=episode_id)).stored


def test_bytes_that_change_on_the_trainers_disk_are_not_acknowledged(trainer, client):
    episode, contents = episode_of({"x": b"x" * 1000, "y": b"y" * 1000}, "a-1")
    written, changed = threading.Event(), threading.Event()

    def parts():
        yield pb.UploadPart(episode=episode)
        yield chunk(0, contents[0])
        yield chunk(1, contents[1])
        written.set()
        assert changed.wait(60)
        yield chunk(2, contents[2])

    call = client._stub.Upload.future(parts(), metadata=client._metadata)
    assert written.wait(60)
    path = until(lambda: next(trainer.inbox.folder.glob(".part-*/x"), None))
    until(lambda: path.stat().st_size == 1000)
    with open(path, "r+b") as file:
        file.seek(500)
        file.write(b"?")
    changed.set()
    reply = call.result(60)
    assert not reply.stored and not reply.refused and "'x' was damaged" in reply.error
    assert not (trainer.inbox.folder / "a-1").exists() and trainer.journal.content("a-1") is None
    have = list(offer(client, episode).have)
    assert have[0] == 0 and have[1] == 1000, "the damaged file alone is sent again"
    again = [pb.UploadPart(episode=episode), chunk(0, contents[0])]
    assert (
        send(client, again).stored and (trainer.inbox.folder / "a-1/x").read_bytes() == contents[0]
    )


@pytest.mark.parametrize("wait_s", [1e9, float("inf")])
def test_a_wait_for_a_policy_is_capped(client, monkeypatch, wait_s):
    monkeypatch.setattr(server, "WAIT_S", 0.3)
    request = pb.PolicyRequest(have_version=-1, wait_s=wait_s)
    assert list(client._next_policy(request, timeout=60, metadata=client._metadata)) == [], (
        "it ends before its deadline"
    )


@pytest.mark.parametrize("wait_s", [-1e9, float("nan"), float("-inf")])
def test_a_wait_of_less_than_nothing_ends_at_once(client, wait_s):
    request = pb.PolicyRequest(have_version=-1, wait_s=wait_s)
    assert list(client._next_policy(request, timeout=20, metadata=client._metadata)) == []


def test_one_station_with_many_waits_locks_nobody_out(trainer, client):
    channels = [
        grpc.insecure_channel(client.address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(8)
    ]
    request = pb.PolicyRequest(have_version=-1, wait_s=30.0).SerializeToString()
    calls = [
        channel.unary_stream(f"/{server.SERVICE}/NextPolicy")(request, metadata=client._metadata)
        for channel in channels
        for _ in range(12)
    ]
    lease = until(lambda: trainer._admission._leases.get("a"))
    until(
        lambda: (
            sum(call.code() is not None for call in calls if call.done())
            == len(calls) - admission.MAX_STATION_CALLS
        )
    )
    assert lease.calls == admission.MAX_STATION_CALLS
    refused = next(call for call in calls if call.done())
    assert (
        refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        and "at most 16 calls" in refused.details()
    )
    other = BridgeClient(client.address, "b")
    other.report(0, -1, timeout_s=2.0)
    other.close()
    for call in calls:
        call.cancel()
    until(lambda: lease.calls == 0)
    client.report(0, -1)
    for channel in channels:
        channel.close()
