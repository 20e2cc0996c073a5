"""A client and what its server does or does not, over real sockets."""

import asyncio
import contextlib
import queue
import socket
import threading
import time

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

from rlinf_core.core.errors import RefusedRequestError, ServingError
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.protocol import MAX_BYTES, pack

pytestmark = pytest.mark.timed


def test_a_server_that_stands_still_keeps_nobody_who_sends_to_it():
    ports, over = queue.Queue(), threading.Event()

    async def stand_still(socket):
        await socket.send(pack({}))
        over.wait(60)

    async def serving():
        async with serve(stand_still, "127.0.0.1", 0) as server:
            ports.put(server.sockets[0].getsockname()[1])
            await asyncio.to_thread(over.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(serving(),))
    thread.start()
    try:
        client = PolicyClient(f"ws://127.0.0.1:{ports.get(timeout=30)}", 1.0)
        with pytest.raises(ServingError, match="expected it to accept an observation within 1 s"):
            # more than the buffers of both take
            client.infer({"image": np.zeros(100_000_000, np.uint8)})
        assert not client.open
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def serving(handle, **options):
    """Provide a server whose handler gets each socket; yields its address."""
    ports, over = queue.Queue(), threading.Event()

    async def run():
        async with serve(handle, "127.0.0.1", 0, max_size=None, **options) as server:
            ports.put(server.sockets[0].getsockname()[1])
            while not over.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        yield f"ws://127.0.0.1:{ports.get(timeout=30)}"
    finally:
        over.set()
        thread.join()


def client_threads():
    return [thread for thread in threading.enumerate() if thread.name == "policy client"]


def test_a_client_has_the_metadata_and_the_answers_and_shows_its_key():
    headers = []

    async def answer(socket):
        headers.append(socket.request.headers)
        await socket.send(pack({"policy": "mine"}))
        async for message in socket:
            await socket.send(message)

    before = client_threads()
    with serving(answer) as address:
        client = PolicyClient(address, 20.0, "k" * 20)
        assert client.metadata == {"policy": "mine"} and client.open
        assert (client.address, client.timeout_s) == (address, 20.0)
        sent = {"a": np.arange(3), "b": "x"}
        got = client.infer(sent)
        assert got["b"] == "x" and np.array_equal(got["a"], sent["a"])
        (thread,) = set(client_threads()) - set(before)
        assert thread.daemon
        client.close()
        client.close()
        assert not client.open and not thread.is_alive()
        PolicyClient(address, 20.0).close()
    assert headers[0]["Authorization"] == "Api-Key " + "k" * 20
    assert "Authorization" not in headers[1] and "Sec-WebSocket-Extensions" not in headers[0]


def test_a_refusal_is_told_with_its_last_600_characters_and_the_client_goes_on():
    async def refuse(socket):
        await socket.send(pack({}))
        async for _ in socket:
            await socket.send("first" + "x" * 595 + "last\x1b \n")

    with serving(refuse) as address:
        client = PolicyClient(address, 20.0)
        for _ in range(2):
            with pytest.raises(RefusedRequestError) as refused:
                client.infer({})
            reason = "first" + "x" * 595 + "last\\x1b"
            assert str(refused.value) == f"policy server {address}: {reason[-600:]}"
        assert client.open
        client.close()


def message_of(call, *arguments):
    with pytest.raises(ServingError) as refused:
        call(*arguments)
    return str(refused.value)


def test_a_server_that_does_not_answer_or_goes_away_is_told():
    async def play(socket):
        await socket.send(pack({}))
        message = await socket.recv()
        if b"wait" in message:
            await socket.wait_closed()
        await socket.close(1008, "go\x1b away")

    with serving(play) as address:
        client = PolicyClient(address, 0.2)
        assert message_of(client.infer, {"a": "wait"}) == (
            f"policy server {address}: expected an answer within 0.2 s, got none"
        )
        client.close()
        client = PolicyClient(address, 20.0)
        text = message_of(client.infer, {})
        assert text.startswith(f"policy server {address}: expected an answer, got 'received 1008")
        assert "go\\x1b away" in text and not client.open
        again = message_of(client.infer, {})  # on a connection that is closed
        assert again.startswith(f"policy server {address}: expected") and "got 'received" in again
        client.close()


def test_a_server_that_is_not_there_or_is_another_is_told_with_the_remedy():
    remedy = ". Start it: rlinf serve POLICY"
    before = client_threads()
    for address, cause in (
        ("ws://127.0.0.1:9", "[Errno 111] Connection refused"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9 isn't a valid URI: scheme isn't ws or wss"),
    ):
        text = message_of(PolicyClient, address, 5.0)
        assert text == f"policy server {address}: expected an answer, got '{cause}'{remedy}"

    async def silent(socket):
        await socket.wait_closed()

    with serving(silent) as address:
        assert message_of(PolicyClient, address, 0.2) == (
            f"policy server {address}: expected an answer within 0.2 s, got none"
        )
    assert client_threads() == before, "no thread is left"


def test_an_answer_of_more_than_64_mib_is_cut_off():
    async def answer(socket):
        await socket.send(pack({}))
        async for message in socket:
            await socket.send(pack({"a": bytes(MAX_BYTES - 16 + len(message))}))

    with serving(answer) as address:
        client = PolicyClient(address, 30.0)
        assert len(client.infer({})["a"]) == MAX_BYTES - 15
        assert "message too big" in message_of(client.infer, {"much": "x" * 30})
        client.close()


def test_a_client_opens_one_connection():
    peers = []

    class Counted(ServerConnection):
        def connection_made(self, transport):
            peers.append(transport.get_extra_info("peername"))
            super().connection_made(transport)

    async def answer(socket):
        await socket.send(pack({}))
        await socket.wait_closed()

    with serving(answer, create_connection=Counted) as address:
        PolicyClient(address, 20.0).close()
        client = PolicyClient(address, 20.0)
        client.close()
    assert len(peers) == 2


def test_a_machine_that_takes_no_connection_is_waited_for_no_longer_than_said():
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # more than its queue holds
            client = sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        assert message_of(PolicyClient, address, 0.3) == (
            f"policy server {address}: expected an answer, got 'timed out'. Start it: rlinf serve "
            "POLICY"
        )


def test_a_server_that_stands_still_does_not_hold_up_the_end():
    moves = threading.Event()

    async def stand_still(socket):
        await socket.send(pack({}))
        moves.wait(60)

    with serving(stand_still) as address:
        client = PolicyClient(address, 20.0)
        started = time.monotonic()
        client.close()
        took_s = time.monotonic() - started
        moves.set()
    assert took_s < 5.0 and not client.open
