"""The page's server over real sockets: who is let in, who commands, what is sent, and what garbage does."""

import asyncio
import contextlib
import json
import socket
import time

import aiohttp
import pytest

from rlinf_core.errors import RlinfError
from rlinf_core.page.access import Access
from rlinf_core.page.server import MOST_PAGES, MOST_WORDS, Server
from rlinf_core.page.views import Views

pytestmark = pytest.mark.timed

NONE = Views([], lambda camera: None)
TOKEN = "0123456789abcdef0123456789abcdef"


class Station:
    """Keeps what it is asked."""

    def __init__(self):
        self.hands, self.asked, self.beats, self.stopped = [], [], [], []

    def hand(self, hand):
        self.hands.append(hand)

    def beat(self, stopped):
        self.beats.append(time.monotonic())
        self.stopped.append(stopped)

    async def ask(self, ask):
        self.asked.append(ask.what)
        if ask.what == "reset":
            raise RlinfError(f"no fault '{ask.cause}' stands")
        return f"done: {ask.what}"


def serve(token="", views=NONE):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    station, log = Station(), []
    server = Server(station, views, Access("station_a", token), "127.0.0.1", port, log.append)
    server.url, server.lines, server.kept_station = f"http://127.0.0.1:{port}", log, station
    return server


@pytest.fixture
def server():
    server = serve()
    yield server
    server.close()


class Open:
    """A page that is open."""

    def __init__(self, socket):
        self.socket, self.seq = socket, 0

    async def hear(self, kind):
        while True:
            message = await asyncio.wait_for(self.socket.receive(), 10)
            assert message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY), message
            said = message.data if isinstance(message.data, bytes) else json.loads(message.data)
            if kind == (said["kind"] if isinstance(said, dict) else "frame"):
                return said

    async def say(self, kind, **word):
        await self.socket.send_json({"kind": kind, **word})

    async def ask(self, what, **more):
        await self.say("ask", what=what, **more)
        return await self.hear("note")

    async def hand(self, **changes):
        self.seq += 1
        await self.say("hand", **{"seq": self.seq, "seen": time.monotonic(), "held": True, "active": True,
                                  "axes": {"x": 1.0}} | changes)


@contextlib.asynccontextmanager
async def opened(server, **more):
    said = {"Origin": server.url} | more
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{server.url}/live", headers=said) as found:
        yield Open(found)


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
    raise AssertionError("it did not come")


async def status(method, url, **headers):
    said = {"headers": headers, "allow_redirects": False}
    async with aiohttp.ClientSession() as session, session.request(method, url, **said) as got:
        return got.status, await got.text(), got.headers


def test_one_page_commands_the_others_watch_and_taking_is_said_to_both(server):
    async def steps():
        station = server.kept_station
        async with opened(server) as one, opened(server) as two:
            first = (await one.hear("you"))["page"]
            assert (await one.ask("arm")) == {"kind": "note", "what": "arm", "well": False,
                                              "text": "arm: this page only watches. Take the controls first"}
            await one.hand()
            assert (await one.ask("take"))["well"] and (await one.ask("arm"))["text"] == "done: arm"
            await one.hand(axes={"y": -0.5})
            await until(lambda: station.hands)
            assert [hand.axes for hand in station.hands] == [{"y": -0.5}], "what it said before it had the controls is gone"
            server.tell("state", {})
            assert (await two.hear("state"))["holder"] == first
            assert not (await two.ask("success"))["well"]
            assert (await two.ask("disarm"))["well"], "whoever sees it may disarm"
            assert (await one.ask("reset", cause="x"))["text"] == "no fault 'x' stands"
            await two.ask("take")
            await one.hand()
            assert not (await one.ask("arm"))["well"] and len(station.hands) == 1
            assert station.asked == ["arm", "disarm", "reset"]
        await until(lambda: server.controls.holder == 0)

    run(steps, server)


def test_a_stop_comes_from_any_page_without_controls_and_stands_until_it_is_released(server):
    async def steps():
        station = server.kept_station
        await until(lambda: len(station.beats) > 5)
        assert not any(station.stopped)
        assert (await status("POST", f"{server.url}/stop", Origin=server.url))[0] == 200
        await until(lambda: station.stopped[-5:] == [True] * 5)
        async with opened(server) as page:
            assert not (await page.ask("release"))["well"]
            await page.ask("take")
            assert (await page.ask("release"))["well"]
        await until(lambda: station.stopped[-1] is False)
        assert (await status("GET", f"{server.url}/stop"))[0] == 405, "nothing changes by being looked at"
        assert not station.stopped[-1]

    run(steps, server)


@pytest.mark.parametrize("headers, wanted", [
    ({"Origin": "http://evil.example"}, "expected a page of this server, got one of 'http://evil.example'"),
    ({"Host": "evil.example:8080"}, "expected Host localhost or 127.0.0.1, got 'evil.example:8080'"),
    ({"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}, "expected Host localhost")])
def test_other_sites_are_refused_on_every_path(server, headers, wanted):
    async def steps():
        for method, path in (("GET", "/"), ("POST", "/stop"), ("GET", "/live"), ("GET", "/static/page.js")):
            code, text, _ = await status(method, server.url + path, **headers)
            assert code == 403 and wanted in text
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with opened(server, **headers):
                pass
        assert not any(server.kept_station.stopped)

    run(steps, server)


def test_with_a_token_everything_needs_it_once_and_the_address_does_not_keep_it():
    server = serve(TOKEN)

    async def steps():
        for path in ("/", "/static/page.js", "/?token=wrong", "/?token=", "/live"):
            assert (await status("GET", server.url + path))[0] == 403
        assert (await status("POST", f"{server.url}/stop"))[0] == 403 and not any(server.kept_station.stopped)
        code, _, headers = await status("GET", f"{server.url}/?token={TOKEN}")
        cookie = headers["Set-Cookie"]
        assert code == 303 and headers["Location"] == "/" and TOKEN not in cookie
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and cookie.startswith("rlinf_station_a=")
        sent = {"Cookie": cookie.partition(";")[0]}
        assert (await status("GET", server.url, **sent))[0] == 200
        async with opened(server, **sent) as page:
            assert (await page.ask("take"))["well"]
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with opened(server, Cookie="rlinf_station_a=" + "0" * 64):
                pass
        assert TOKEN not in "".join(server.lines)

    try:
        run(steps, server)
    finally:
        server.close()


@pytest.mark.parametrize("garbage", [b"\x00\xff", "no json", '{"kind": "hand"}', "x" * 5000, "[" * 1000, "flood"])
def test_garbage_ends_its_own_connection_and_nothing_else(server, garbage):
    async def steps():
        async with opened(server) as good, opened(server) as bad:
            await bad.ask("take")
            words = [json.dumps({"kind": "seen"})] * (MOST_WORDS + 5) if garbage == "flood" else [garbage]
            with contextlib.suppress(ConnectionError):
                for word in words:
                    await (bad.socket.send_bytes(word) if isinstance(word, bytes) else bad.socket.send_str(word))
            while (message := await asyncio.wait_for(bad.socket.receive(), 10)).type is aiohttp.WSMsgType.TEXT:
                pass
            assert message.type is aiohttp.WSMsgType.CLOSE and message.data in (1008, 1009)
            await until(lambda: server.controls.holder == 0)
            assert (await good.ask("take"))["well"]
        assert not server.kept_station.hands

    run(steps, server)


def test_a_page_that_draws_slowly_gets_the_newest_frame_and_no_backlog(server):
    async def steps():
        async with opened(server) as page:
            for number in range(50):
                server.show(0, bytes([number]))
                await asyncio.sleep(0.002)
            got = [(await page.hear("frame"))[1] for _ in range(2)]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(page.hear("frame"), 0.3)
            assert not server.watched, "nothing need be encoded"
            await page.say("seen")
            assert got[1] < 40 and (await page.hear("frame"))[1] == 49

    run(steps, server)


def test_too_many_pages_and_a_missing_file_are_said(server):
    async def steps():
        async with contextlib.AsyncExitStack() as pages:
            for _ in range(MOST_PAGES):
                await pages.enter_async_context(opened(server))
            code, text, _ = await status("GET", f"{server.url}/live", Origin=server.url)
            assert code == 503 and f"{MOST_PAGES} pages are open" in text
        for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/nothing"):
            assert (await status("GET", server.url + path))[0] in (403, 404)

    run(steps, server)


def test_a_taken_port_is_said_and_tried_again(server):
    async def steps():
        other = Server(Station(), NONE, Access("b", ""), *server.address, lines.append)
        await until(lambda: lines)
        other.close()

    lines = []
    run(steps, server)
    assert f"expected port {server.address[1]} of 127.0.0.1 free, got" in lines[0]
