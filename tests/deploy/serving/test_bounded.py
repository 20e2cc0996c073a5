"""A policy server's limits on clients' messages, in figures independent of its constants."""

import asyncio
import math
import time

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from rlinf_core.deploy.serving import bounded
from rlinf_core.deploy.serving.bounded import Bounds

pytestmark = pytest.mark.timed

MIB = 1 << 20
FRAMES = 1000
HEAD, FRAME = b"\x02\x81\x00\x00\x00\x00a", b"\x00\x81\x00\x00\x00\x00a"  # the message never ends


def with_clients(number, steps):
    """Run ``steps`` with bounds, their log, the clients and the server's side of each."""
    lines = []

    async def run():
        bounds = Bounds(lines.append)

        async def wait(client):
            client.handler_task = asyncio.current_task()
            await client.wait_closed()

        async with serve(
            wait, "127.0.0.1", 0, max_queue=None, create_connection=bounds.connection
        ) as server:
            address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            clients, sides = [], []
            for _ in range(number):
                clients.append(await connect(address, compression=None))
                sides.append(next(side for side in bounds.open if side not in sides))
            await steps(bounds, lines, clients, sides)
            for client in clients:
                client.transport.abort()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_256_mib_of_all_messages_are_held_and_beyond_them_the_largest_client_is_closed():
    async def steps(bounds, lines, clients, sides):
        large, small, tiny = sides
        large.held, small.held, tiny.held = 150 * MIB, 105 * MIB, MIB
        bounds.check_held()
        assert bounds.open == set(sides) and not lines
        tiny.held += 1
        bounds.check_held()
        assert bounds.open == {small, tiny} and large.held == 0
        assert len(lines) == 1 and "256 MiB" in lines[0] and "150 MiB" in lines[0]
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(clients[0].recv(), 10)

    with_clients(3, steps)


def test_a_tiny_frame_is_counted_with_hundreds_of_bytes_for_its_object():
    async def steps(bounds, lines, clients, sides):
        clients[0].transport.write(HEAD + FRAME * (FRAMES - 1))
        end = time.monotonic() + 10
        while len(sides[0].recv_messages.frames) < FRAMES and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert 256 * FRAMES < sides[0].held < 1024 * FRAMES
        assert bounds.open == set(sides) and not lines

    with_clients(1, steps)


async def until(what):
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_a_connection_begins_with_nothing_and_is_admitted_once_it_is_open():
    async def steps(bounds, lines, clients, sides):
        (side,) = sides
        assert (side.held, side.busy, side.admitted) == (0, False, True)
        assert (
            side.admission_entry.transport is side.transport
            and side.admission_entry.peer == "127.0.0.1"
        )
        assert side.bounds is bounds and side.handler_task is not None
        assert bounds.admission.name == "serve" and bounds.admission.request_s == 5.0
        assert bounds.admission.count_busy is False
        assert list(bounds.admission.open.values()) == [side.admission_entry]
        assert not side.admission_entry.busy
        side.opened()
        assert side.admission_entry.busy and side.admission_entry.limit_s == math.inf
        await clients[0].close()
        await until(lambda: not bounds.open and not bounds.admission.open)

    with_clients(1, steps)


def test_a_message_is_held_until_it_is_answered():
    async def steps(bounds, lines, clients, sides):
        (side,) = sides
        began = time.monotonic()
        await clients[0].send(b"x" * 1000)
        await until(lambda: side.held)
        assert 1000 < side.held < 1000 + 600 and began <= side.since <= time.monotonic()
        since = side.since
        await clients[0].send(b"y" * 500)
        await until(lambda: side.held > 2000)
        assert side.since == since, "of the first one"
        for size, rest in ((1000, True), (500, False)):
            await side.recv()
            side.begin()
            assert side.busy
            before, held = time.monotonic(), side.held
            side.end(size)
            assert not side.busy and side.since >= before
            assert side.held == (held - 1000 if rest else 0)
        await clients[0].ping()
        await asyncio.sleep(0.05)
        assert side.held == 0, "control frames do not add up"
        side.busy = True
        await clients[0].send(b"z" * 100)
        await until(lambda: side.held)
        await side.recv()
        side.end(10**9)
        assert side.held == 0, "never less than nothing"

    with_clients(1, steps)


def test_a_dropped_connection_ends_its_answer():
    async def steps(bounds, lines, clients, sides):
        one, other = sides
        task = asyncio.create_task(asyncio.sleep(60))
        one.handler_task, one.held = task, 7
        one.drop()
        assert one.held == 0 and bounds.open == {other}
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(clients[0].recv(), 10)
        other.handler_task = None
        other.drop()
        assert not bounds.open and not lines

    with_clients(2, steps)


def test_late_messages_are_swept_away_and_answers_are_not(monkeypatch):
    monkeypatch.setattr(bounded, "SWEEP_S", 0.02)

    async def steps(bounds, lines, clients, sides):
        late, early, busy, idle = sides
        for side in sides:
            side.held, side.since = 9, time.monotonic() - 20.5
        early.since += 5.0
        busy.busy, idle.held = True, 0
        swept = []
        monkeypatch.setattr(bounds.admission, "sweep", lambda: swept.append(1))
        task = asyncio.create_task(bounds.sweep())
        await until(lambda: len(swept) > 3)
        assert bounds.open == {early, busy, idle}
        task.cancel()

    with_clients(4, steps)


def test_the_refusal_of_too_much_says_how_much():
    async def steps(bounds, lines, clients, sides):
        sides[0].held = 257 * MIB
        bounds.check_held()
        assert lines == [
            "serve: expected messages of at most 256 MiB in total, got more. The connection of the "
            "client with 257 MiB is closed"
        ]

    with_clients(1, steps)


def test_a_connection_that_is_not_admitted_is_aborted(monkeypatch):
    class Transport:
        aborted = 0

        def get_extra_info(self, name):
            return None

        def abort(self):
            self.aborted += 1

    async def steps(bounds, lines, clients, sides):
        side = bounds.connection(sides[0].protocol, sides[0].server)
        assert (side.held, side.since, side.busy, side.admitted) == (0, 0.0, False, False)
        assert side.handler_task is None
        monkeypatch.setattr(bounds.admission, "admit", lambda place: False)
        transport = Transport()
        side.connection_made(transport)
        assert transport.aborted == 1 and side not in bounds.open and not side.admitted
        assert side.admission_entry.peer == ""
        side.connection_lost(None)  # there is nothing to end
        assert bounds.open == set(sides)

    with_clients(1, steps)
