"""What a policy server counts of its clients' messages, in figures that no constant of it moves."""

import asyncio
import time

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from rlinf_core.deploy.serving.bounded import Bounds

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
