"""Parts of the page's server: its end, its first heartbeat, its headers and its log."""

import asyncio
import json
import math

import aiohttp
import pytest

from rlinf_core.page.server import HEADERS, Stop, without_nan
from rlinf_core.page.views import MAX_EPISODES, WINDOW_EPISODES, History
from tests.page.pages import TOKEN, opened, run, serve, status, until

pytestmark = pytest.mark.timed


def test_the_stop_is_alive_while_it_can_be_pressed_whether_or_not_a_page_is_open(server):
    """docs/howto/operator_page.md: the server is the source.

    A page that nobody has opened yet can be.
    """

    async def steps():
        station = server.station_double
        await until(lambda: len(station.beats) > 3)
        assert not server.pages and not any(station.stopped)
        async with opened(server) as page:
            await page.hear("you")
        await until(lambda: not server.pages)
        before = len(station.beats)
        await until(lambda: len(station.beats) > before + 3)
        server.connections.listening = False
        await asyncio.sleep(0.2)
        silent = len(station.beats)
        await asyncio.sleep(0.4)
        assert len(station.beats) == silent, "it can be pressed no more, and says nothing"

    run(steps, server)


def test_after_its_end_it_says_nothing_and_takes_nothing_more(server):
    async def steps():
        await until(lambda: server.station_double.beats)
        server.close()
        await until(lambda: not server.loop.is_running())
        before = len(server.station_double.beats)
        server.broadcast("state", {})
        server.show(0, b"x")
        await asyncio.sleep(0.3)
        assert len(server.station_double.beats) == before

    run(steps, server)


def test_a_failed_accept_silences_the_stop_and_any_other_error_is_a_line(server):
    async def steps():
        await until(lambda: server.station_double.beats)
        limits, lines = server.connections, server.lines
        limits.on_loop_error(server.loop, {"message": "a task ended", "exception": KeyError("key")})
        assert limits.accepting and "a task ended" in lines[-1] and "KeyError" in lines[-1]
        limits.on_loop_error(
            server.loop,
            {
                "message": "socket.accept() out of system resource",
                "exception": OSError(24, "Too many open files"),
            },
        )
        assert not limits.accepting
        assert "Too many open files" in lines[-1] and "ulimit -n" in lines[-1]
        limits.on_loop_error(server.loop, {})
        assert len(lines[-1]) < 500

    run(steps, server)


def test_a_page_gets_what_is_kept_and_states_with_the_servers_time_and_holder(server):
    async def steps():
        server.broadcast("spec", {"arms": ["left"], "limit": math.inf}, keep=True)
        server.broadcast("gone", {"a": 1})
        async with opened(server) as page:
            number = (await page.hear("you"))["page"]
            assert await page.hear("spec") == {"kind": "spec", "arms": ["left"], "limit": None}
            await page.ask("take")
            server.broadcast("state", {"word": "HOLD"})
            state = await page.hear("state")
            assert state | {"t": 0} == {
                "kind": "state",
                "word": "HOLD",
                "t": 0,
                "holder": number,
                "late": 0.0,
                "stopped": False,
            }
            await page.say("stop")
            assert await page.hear("note") == {
                "kind": "note",
                "what": "stop",
                "well": True,
                "text": "STOP is pressed",
            }
            server.broadcast("state", {})
            state = await page.hear("state")
            assert state["stopped"] and state["t"] > 0.0
            await page.hand(shown_at=state["t"] - 5.0)
            while (await page.ask("leave"))["what"] != "leave":
                pass
            server.broadcast("state", {})
            assert (await page.hear("state"))["holder"] == 0
        async with opened(server) as page:
            assert (await page.hear("you"))["page"] == number + 1
            assert (await page.hear("spec"))["arms"] == ["left"]

    run(steps, server)


def test_how_late_a_held_word_was_is_told_to_the_page(server):
    async def steps():
        async with opened(server) as page:
            await page.ask("take")
            server.broadcast("state", {})
            shown = (await page.hear("state"))["t"]
            await page.hand(shown_at=shown - 3.0)
            await until(lambda: server.controls.late_s)
            server.broadcast("state", {})
            assert (await page.hear("state"))["late"] == pytest.approx(3.0, abs=1.0)
        assert server.station_double.hands == []

    run(steps, server)


def test_every_answer_forbids_what_a_page_of_this_server_does_not_need(server):
    async def steps():
        for path in ("/", "/static/page.js", "/nothing", "/reference/0", "/alignment/0"):
            _, _, headers = await status("GET", server.url + path)
            assert {key: headers[key] for key in HEADERS} == HEADERS, path
        code, text, headers = await status("GET", f"{server.url}/", Host="evil.example")
        assert (
            code == 403
            and "evil.example" in text
            and headers["X-Content-Type-Options"] == "nosniff"
        )
        code, text, _ = await status("POST", f"{server.url}/stop", Origin=server.url)
        assert code == 200 and json.loads(text) == {"stopped": True}

    run(steps, server)


def test_the_tokens_cookie_is_for_this_server_alone_and_no_script_reads_it():
    async def steps():
        code, _, headers = await status("GET", f"{server.url}/?token={TOKEN}")
        cookie = headers["Set-Cookie"]
        assert code == 303 and headers["Location"] == "/"
        assert cookie.startswith("rlinf_station_a=") and TOKEN not in cookie
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        for query in (
            f"{server.url}/static/page.js?token={TOKEN}",
            f"{server.url}/?token={TOKEN}0",
            f"{server.url}/?token=",
        ):
            code, text, _ = await status("GET", query)
            assert code == 403 and "station.web.token_file" in text

    server = serve(TOKEN)
    try:
        run(steps, server)
    finally:
        server.close()


def test_a_stop_and_a_button_are_lines_that_name_who_and_what(server):
    async def steps():
        async with opened(server) as page:
            number = (await page.hear("you"))["page"]
            await page.ask("take")
            await page.ask("reset", cause="estop:page")
            await page.say("stop")
            await page.hear("note")
        assert any("from 127.0.0.1" in line and "stop" in line for line in server.lines)
        assert any(
            f"page {number} " in line and "reset estop:page" in line for line in server.lines
        )

    run(steps, server)


@pytest.mark.parametrize("what", ["arm", "reset"])
def test_an_answer_with_control_characters_is_one_harmless_line_of_the_log(server, what):
    answer = "no\x1b[2J\r\n[INFO] stop: released\x9b\u202e\u2028\ud800 für"

    async def steps():
        server.station_double.answer = answer
        async with opened(server) as page:
            number = (await page.hear("you"))["page"]
            await page.ask("take")
            assert (await page.ask(what, cause="estop:page"))["text"] == answer, (
                "the page shows text"
            )
        line = next(line for line in server.lines if f"page {number} asked: {what}" in line)
        assert line.isprintable() and r"no\x1b[2J\r\n[INFO] stop: released\x9b" in line
        assert line.endswith("für")

    run(steps, server)


@pytest.mark.parametrize(
    "camera, code", [("0", 404), ("999", 404), ("1000", 404), ("-1", 404), ("a", 404)]
)
def test_a_camera_is_a_short_number(server, camera, code):
    async def steps():
        assert (await status("GET", f"{server.url}/reference/{camera}"))[0] == code

    run(steps, server)


def test_a_page_too_many_does_not_end_another(server, monkeypatch):
    monkeypatch.setattr("rlinf_core.page.server.MAX_PAGES", 1)

    async def steps():
        async with opened(server) as page:
            await page.hear("you")
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with opened(server):
                    pass
            assert refused.value.status == 503
            assert (await page.ask("take"))["well"]

    run(steps, server)


def test_frames_carry_their_camera_and_only_the_newest_of_each(server):
    async def steps():
        async with opened(server) as page:
            await page.hear("you")
            server.loop.call_soon_threadsafe(
                lambda: (
                    server._show(1, b"old"),
                    server._show(1, b"new"),
                    server._show(0, b"other"),
                )
            )
            assert {await page.hear("frame"), await page.hear("frame")} == {
                b"\x01new",
                b"\x00other",
            }

    run(steps, server)


def test_a_stop_is_remembered_by_its_file_until_it_is_released(tmp_path):
    lines, file = [], tmp_path / "stopped"
    assert not Stop(None, lines.append).pressed and not Stop(file, lines.append).pressed
    stop = Stop(file, lines.append)
    stop.press()
    assert stop.pressed and Stop(file, lines.append).pressed
    stop.press()
    stop.release()
    assert not stop.pressed and not Stop(file, lines.append).pressed
    stop.release()
    assert lines == []
    forgotten = Stop(None, lines.append)
    forgotten.press()
    assert forgotten.pressed and lines == []


def test_curves_are_means_of_the_last_episodes_without_demonstrations(tmp_path):
    history = History(tmp_path / "page.jsonl")
    assert history.curves() == {
        "window": WINDOW_EPISODES,
        "demonstrations": 0,
        "success": [],
        "intervened": [],
    }
    history.add(mode="demonstration", success=True, intervened=1.0)
    for number in range(WINDOW_EPISODES + 5):
        history.add(mode="train", success=number >= WINDOW_EPISODES, intervened=0.5)
    curves = History(tmp_path / "page.jsonl").curves()
    assert curves == history.curves() and curves["demonstrations"] == 1
    assert curves["success"] == [0.0] * WINDOW_EPISODES + [0.05, 0.1, 0.15, 0.2, 0.25]
    assert curves["intervened"] == [0.5] * (WINDOW_EPISODES + 5)
    for _ in range(MAX_EPISODES):
        history.add(mode="evaluate", success=True, intervened=0.0)
    assert (
        len(history.curves()["success"]) == MAX_EPISODES and history.curves()["demonstrations"] == 0
    )


def test_numbers_that_json_has_not_are_null_at_any_depth():
    assert without_nan(
        {"a": [1.0, math.nan, (math.inf, "x")], "b": {"c": -math.inf}, "d": 3, "e": None}
    ) == {"a": [1.0, None, [None, "x"]], "b": {"c": None}, "d": 3, "e": None}
