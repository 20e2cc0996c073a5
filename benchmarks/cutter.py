"""A network that fails: TCP between stations and a trainer, which closes everything, or lets
nothing pass, for a while.
"""

from __future__ import annotations

import asyncio
import threading
import time


class Cutter:
    """Listens on ``port``, and passes on to the port behind it.

    Args:
        behind: the trainer's port on this machine. It need not listen all the while.
    """

    def __init__(self, behind: int) -> None:
        self.behind, self.cuts, self._down = behind, 0, False
        self._ends: set[asyncio.StreamWriter] = set()
        self._loop, self._passing = asyncio.new_event_loop(), asyncio.Event()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        self._passing.set()
        return await asyncio.start_server(self._join, "127.0.0.1", 0)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            if self._down:
                return
            behind, onward = await asyncio.open_connection("127.0.0.1", self.behind)
            self._ends.add(onward)
            await asyncio.gather(self._pump(reader, onward), self._pump(behind, writer))
        except OSError:  # nobody listens behind it, or an end was closed
            pass
        finally:
            for end in (writer, *({onward} if "onward" in locals() else ())):
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
        """For so long nothing passes; what is connected stays so where it is ``silent``."""
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
        """For good."""
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._close)
