"""A faulty network between stations and a trainer: a TCP relay that closes or stops its
connections.
"""

from __future__ import annotations

import asyncio
import threading
import time


class FaultyRelay:
    """Relays TCP connections from ``port`` to another port of this machine.

    Args:
        target_port: the trainer's port on this machine; nothing needs to listen there yet.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port, self.cuts, self._down = target_port, 0, False
        self._ends: set[asyncio.StreamWriter] = set()
        self._loop, self._passing = asyncio.new_event_loop(), asyncio.Event()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        self._passing.set()
        return await asyncio.start_server(self._relay, "127.0.0.1", 0)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._ends.add(writer)
        try:
            if self._down:
                return
            target_reader, target_writer = await asyncio.open_connection(
                "127.0.0.1", self.target_port
            )
            ends.append(target_writer)
            self._ends.add(target_writer)
            await asyncio.gather(
                self._pump(reader, target_writer), self._pump(target_reader, writer)
            )
        except OSError:  # the trainer does not listen, or an end was closed
            pass
        finally:
            for end in ends:
                end.close()
                self._ends.discard(end)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._passing.wait()
                target.write(data)
                await target.drain()
        finally:
            target.close()

    def cut(self, seconds: float, silent: bool) -> None:
        """Interrupt the network for a time.

        Args:
            silent: keep the connections open but pass no data, as an unplugged cable does;
                otherwise close all connections and refuse new ones.
        """
        self.cuts += 1
        self._loop.call_soon_threadsafe(self._passing.clear if silent else self._close)
        time.sleep(seconds)
        self._loop.call_soon_threadsafe(self._passing.set if silent else self._open)

    def _close(self) -> None:
        self._down = True
        for end in list(self._ends):
            end.close()

    def _open(self) -> None:
        self._down = False

    def close(self) -> None:
        """Close the relay and all its connections."""
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._close)
