"""A client whose server stands still, over real sockets."""

import asyncio
import queue
import threading

import numpy as np
import pytest
from websockets.asyncio.server import serve

from rlinf_core.core.errors import ServingError
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.protocol import packed

pytestmark = pytest.mark.timed


def test_a_server_that_stands_still_keeps_nobody_who_sends_to_it():
    ports, over = queue.Queue(), threading.Event()

    async def stand_still(socket):
        await socket.send(packed({}))
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
            client.infer(
                {"image": np.zeros(100_000_000, np.uint8)}
            )  # more than the buffers of both take
        assert not client.open
    finally:
        over.set()
        thread.join()
