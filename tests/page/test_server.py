"""The page's server over real sockets: who commands, what is sent, and what garbage does."""

import asyncio
import contextlib
import json
import time

import aiohttp
import pytest

from rlinf_core.page.access import Access
from rlinf_core.page.controls import MAX_PRESS_AGE_S, REQUESTS
from rlinf_core.page.server import MAX_MESSAGES_PER_S, MAX_PAGES, Server, Stop
from rlinf_core.robots.operators.device import LABELS
from tests.page.pages import NONE, Station, opened, run, serve, status, until

pytestmark = pytest.mark.timed


def test_one_page_commands_the_others_watch_and_taking_is_said_to_both(server):
    async def steps():
        station = server.station_double
        async with opened(server) as one, opened(server) as two:
            first = (await one.hear("you"))["page"]
            assert (await one.ask("arm")) == {
                "kind": "note",
                "what": "arm",
                "well": False,
                "text": "arm: this page only watches. Take the controls first",
            }
            await one.hand()
            assert (await one.ask("take"))["well"] and (await one.ask("arm"))["text"] == "done: arm"
            await one.hand(axes={"y": -0.5})
            await until(lambda: station.hands)
            assert [hand.axes for hand in station.hands] == [{"y": -0.5}], (
                "what it said before it had the controls is gone"
            )
            server.broadcast("state", {})
            assert (await two.hear("state"))["holder"] == first
            assert not (await two.ask("success"))["well"]
            assert (await two.ask("disarm"))["well"], "whoever sees it may disarm"
            assert (await one.ask("reset", cause="x"))["text"] == "no fault 'x' stands"
            await two.ask("take")
            await one.hand()
            assert not (await one.ask("arm"))["well"] and len(station.hands) == 1
            assert station.requests == ["arm", "disarm", "reset"]
        await until(lambda: server.controls.holder == 0)

    run(steps, server)


def test_a_stop_that_is_the_only_one_is_heard_only_while_a_browser_has_the_page_open():
    server = serve(needs_viewer=True)

    async def steps():
        station = server.station_double
        await asyncio.sleep(0.3)
        assert station.beats == [], "nobody has it open"
        async with opened(server):
            await until(lambda: len(station.beats) > 5)
            async with opened(server):
                await until(lambda: len(server.pages) == 2)
            await until(lambda: len(server.pages) == 1)
            before = len(station.beats)
            await until(lambda: len(station.beats) > before + 5)
        await until(lambda: not server.pages)
        await asyncio.sleep(0.1)
        before = len(station.beats)
        await asyncio.sleep(0.3)
        assert len(station.beats) == before, "the last one has left"
        assert (await status("POST", f"{server.url}/stop", Origin=server.url))[0] == 200
        await until(lambda: station.stopped[-5:] == [True] * 5)

    try:
        run(steps, server)
    finally:
        server.close()


def test_a_browser_that_answers_no_ping_holds_no_stop(monkeypatch):
    """Its machine sleeps or its network is gone: the socket is open without a browser."""
    monkeypatch.setattr("rlinf_core.page.server.VIEWER_PING_S", 0.2)
    server = serve(needs_viewer=True)

    async def steps():
        headers = {"Origin": server.url}
        async with aiohttp.ClientSession() as session:
            socket = await session.ws_connect(f"{server.url}/live", headers=headers, autoping=False)
            await until(lambda: server.pages)
            await until(lambda: not server.pages)
            await asyncio.sleep(0.1)
            before = len(server.station_double.beats)
            await asyncio.sleep(0.3)
            assert len(server.station_double.beats) == before
            await socket.close()

    try:
        run(steps, server)
    finally:
        server.close()


def test_a_stop_comes_from_any_page_without_controls_and_stands_until_it_is_released(server):
    async def steps():
        station = server.station_double
        await until(lambda: len(station.beats) > 5)
        assert not any(station.stopped)
        assert (await status("POST", f"{server.url}/stop", Origin=server.url))[0] == 200
        await until(lambda: station.stopped[-5:] == [True] * 5)
        async with opened(server) as page:
            assert not (await page.ask("release"))["well"]
            await page.ask("take")
            assert (await page.ask("release"))["well"]
        await until(lambda: station.stopped[-1] is False)
        assert (await status("GET", f"{server.url}/stop"))[0] == 405, (
            "nothing changes by being looked at"
        )
        assert not station.stopped[-1]

    run(steps, server)


@pytest.mark.parametrize("age_s", [MAX_PRESS_AGE_S + 0.1, 9.0, -5.0])
def test_what_begins_something_is_refused_where_it_comes_late_and_what_ends_something_never(
    server, age_s
):
    async def steps():
        station, notes = server.station_double, {}
        async with opened(server) as page:
            assert (await page.ask("take"))["well"]
            for what in (*REQUESTS, *LABELS):
                notes[what] = await page.ask(what, shown_at=time.monotonic() - age_s)
                assert (await page.ask("take"))["well"]
        refused = {
            what
            for what, note in notes.items()
            if f"{what}: expected within 1 s of the displayed state" in note["text"]
        }
        assert refused == {"take", "arm", "reset", "release", "start", "ready"}
        assert all(note["well"] == (what not in refused) for what, note in notes.items())
        assert station.requests == ["disarm", "cancel", "success", "failure", "rerecord", "discard"]

    run(steps, server)


def test_a_late_release_leaves_the_stop_pressed(server):
    async def steps():
        station = server.station_double
        async with opened(server) as page:
            await page.ask("take")
            assert (await status("POST", f"{server.url}/stop", Origin=server.url))[0] == 200
            assert not (await page.ask("release", shown_at=time.monotonic() - 2 * MAX_PRESS_AGE_S))[
                "well"
            ]
            before = len(station.stopped)
            await until(lambda: len(station.stopped) > before + 3)
            assert all(station.stopped[before:])

    run(steps, server)


def test_a_page_may_draw_as_many_frames_as_it_is_sent_and_say_no_more_than_that(
    server, monkeypatch
):
    monkeypatch.setattr("rlinf_core.page.server.MAX_MESSAGES_PER_S", 20)

    async def steps():
        async with opened(server) as page:
            begun = time.monotonic()
            for number in range(60):
                server.show(0, bytes([number]))
                await page.hear("frame")
                await page.say("acknowledgement")
            assert (await page.ask("take"))["well"], (
                f"it is open, {time.monotonic() - begun:.2f} s later"
            )
            for _ in range(25):
                await page.say("acknowledgement")
            while (
                message := await asyncio.wait_for(page.socket.receive(), 10)
            ).type is aiohttp.WSMsgType.TEXT:
                pass
            assert message.data == 1008

    run(steps, server)


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff", "no json", '{"kind": "motion"}', "x" * 5000, "[" * 1000, "flood"]
)
def test_garbage_ends_its_own_connection_and_nothing_else(server, garbage):
    async def steps():
        async with opened(server) as good, opened(server) as bad:
            await bad.ask("take")
            words = (
                [json.dumps({"kind": "acknowledgement"})] * (MAX_MESSAGES_PER_S + 5)
                if garbage == "flood"
                else [garbage]
            )
            with contextlib.suppress(ConnectionError):
                for word in words:
                    await (
                        bad.socket.send_bytes(word)
                        if isinstance(word, bytes)
                        else bad.socket.send_str(word)
                    )
            while (
                message := await asyncio.wait_for(bad.socket.receive(), 10)
            ).type is aiohttp.WSMsgType.TEXT:
                pass
            assert message.type is aiohttp.WSMsgType.CLOSE and message.data in (1008, 1009)
            await until(lambda: server.controls.holder == 0)
            assert (await good.ask("take"))["well"]
        assert not server.station_double.hands

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
            await page.say("acknowledgement")
            assert got[1] < 40 and (await page.hear("frame"))[1] == 49

    run(steps, server)


def test_too_many_pages_and_a_missing_file_are_said(server):
    async def steps():
        async with contextlib.AsyncExitStack() as pages:
            for _ in range(MAX_PAGES):
                await pages.enter_async_context(opened(server))
            code, text, _ = await status("GET", f"{server.url}/live", Origin=server.url)
            assert code == 503 and f"{MAX_PAGES} pages are open" in text
        for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/nothing"):
            assert (await status("GET", server.url + path))[0] in (403, 404)

    run(steps, server)


def test_a_taken_port_is_said_and_tried_again(server):
    async def steps():
        station = Station()
        other = Server(station, NONE, Access("b", ""), *server.address, lines.append)
        await until(lambda: lines)
        await asyncio.sleep(0.3)
        assert not station.beats, "a stop that nobody can press says nothing"
        other.close()

    lines = []
    run(steps, server)
    assert f"expected port {server.address[1]} of 127.0.0.1 free, got" in lines[0]


def test_s14_a_stop_is_pressed_still_when_another_process_serves_the_page_until_it_is_released(
    tmp_path,
):
    async def presses():
        await until(lambda: len(first.station_double.beats) > 2)
        assert (await status("POST", f"{first.url}/stop", Origin=first.url))[0] == 200
        assert (tmp_path / "stopped").exists()

    async def releases():
        await until(lambda: len(second.station_double.beats) > 2)
        assert all(second.station_double.stopped)
        async with opened(second) as page:
            await page.ask("take")
            assert (await page.ask("release"))["well"]
        await until(lambda: second.station_double.stopped[-1] is False)
        assert not (tmp_path / "stopped").exists()

    for steps in (presses, releases):
        first = second = serve(stop=tmp_path / "stopped")
        run(steps, first)


def test_a_stop_that_the_disk_does_not_take_is_a_stop_and_said(tmp_path):
    lines = []
    stop = Stop(tmp_path / "no folder" / "stopped", lines.append)
    stop.press()
    assert stop.pressed and "this state is lost with this process" in lines[0]
