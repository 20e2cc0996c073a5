"""The page's server over real sockets, and open pages."""

import asyncio
import contextlib
import json
import socket
import time

import aiohttp

from rlinf_core.core.errors import RlinfError
from rlinf_core.page.access import Access
from rlinf_core.page.server import Server
from rlinf_core.page.views import Views

NONE = Views([], lambda camera: None)
TOKEN = "0123456789abcdef0123456789abcdef"


class Station:
    """Records the requests of pages."""

    def __init__(self):
        self.hands, self.requests, self.beats, self.stopped = [], [], [], []
        self.answer = ""

    def move(self, motion):
        self.hands.append(motion)

    def beat(self, stopped):
        self.beats.append(time.monotonic())
        self.stopped.append(stopped)

    async def handle(self, ask):
        self.requests.append(ask.what)
        if ask.what == "reset":
            raise RlinfError(self.answer or f"no fault '{ask.cause}' stands")
        return self.answer or f"done: {ask.what}"


def serve(token="", views=NONE, stop=None, needs_viewer=False):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    station, log = Station(), []
    server = Server(
        station,
        views,
        Access("station_a", token),
        "127.0.0.1",
        port,
        log.append,
        stop,
        needs_viewer,
    )
    server.url, server.lines, server.station_double = f"http://127.0.0.1:{port}", log, station
    return server


class Open:
    """An open page."""

    def __init__(self, socket):
        self.socket, self.seq = socket, 0

    async def hear(self, kind):
        while True:
            message = await asyncio.wait_for(self.socket.receive(), 10)
            assert message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY), message
            received = message.data if isinstance(message.data, bytes) else json.loads(message.data)
            if kind == (received["kind"] if isinstance(received, dict) else "frame"):
                return received

    async def say(self, kind, **word):
        await self.socket.send_json({"kind": kind, **word})

    async def ask(self, what, **more):
        await self.say("request", what=what, **{"shown_at": time.monotonic()} | more)
        return await self.hear("note")

    async def hand(self, **changes):
        self.seq += 1
        await self.say(
            "motion",
            **{
                "seq": self.seq,
                "shown_at": time.monotonic(),
                "held": True,
                "active": True,
                "axes": {"x": 1.0},
            }
            | changes,
        )


@contextlib.asynccontextmanager
async def opened(server, **more):
    headers = {"Origin": server.url} | more
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{server.url}/live", headers=headers) as socket,
    ):
        yield Open(socket)


def run(steps, server):
    async def begin():
        for _ in range(100):  # until it listens
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with aiohttp.ClientSession() as session, session.get(server.url):
                    break
            await asyncio.sleep(0.05)
        return await asyncio.wait_for(steps(), 60)

    return asyncio.run(begin())


async def until(holds):
    for _ in range(400):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("expected the condition within 8 s")


async def status(method, url, **headers):
    options = {"headers": headers, "allow_redirects": False}
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as got:
        return got.status, await got.text(), got.headers
