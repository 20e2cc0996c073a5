"""Access to the page's server, over real sockets."""

import asyncio

import aiohttp
import pytest

from tests.page.pages import TOKEN, opened, run, serve, status

pytestmark = pytest.mark.timed


@pytest.mark.parametrize(
    "headers, wanted",
    [
        (
            {"Origin": "http://evil.example"},
            "expected a page of this server, got one of 'http://evil.example'",
        ),
        (
            {"Sec-Fetch-Site": "cross-site"},
            "expected a page of this server, got a page of another server ('cross-site')",
        ),
        (
            {
                "Sec-Fetch-Site": "same-site",
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "iframe",
            },
            "got a page of another",
        ),
        (
            {"Host": "evil.example:8080"},
            "expected Host localhost or 127.0.0.1, got 'evil.example:8080'",
        ),
        (
            {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"},
            "expected Host localhost",
        ),
    ],
)
def test_other_sites_are_refused_on_every_path(server, headers, wanted):
    async def steps():
        for method, path in (
            ("GET", "/"),
            ("POST", "/stop"),
            ("GET", "/live"),
            ("GET", "/static/page.js"),
        ):
            code, text, _ = await status(method, server.url + path, **headers)
            assert code == 403 and wanted in text
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with opened(server, **{"Origin": "http://evil.example"} | headers):
                pass
        assert not any(server.station_double.stopped)

    run(steps, server)


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_an_upgrade_needs_an_origin(server, upgrade):
    async def steps():
        code, text, _ = await status(
            "GET", f"{server.url}/live", Connection="Upgrade", Upgrade=upgrade
        )
        assert code == 403 and "expected the header Origin, got none" in text
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with aiohttp.ClientSession() as session, session.ws_connect(f"{server.url}/live"):
                pass
        assert refused.value.status == 403 and not server.pages
        assert (await status("POST", f"{server.url}/stop"))[0] == 200, "a program's stop needs none"
        assert (await status("GET", server.url, Upgrade=upgrade))[0] == 200

    run(steps, server)


def test_a_link_of_another_site_opens_the_page_which_lets_no_other_site_use_it(server):
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }

    async def steps():
        code, _, headers = await status("GET", server.url, **link)
        assert code == 200 and headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert (await status("GET", f"{server.url}/static/page.js", **link))[0] == 403
        same_origin = await status(
            "GET", f"{server.url}/static/page.js", **{"Sec-Fetch-Site": "same-origin"}
        )
        assert (
            same_origin[0] == 200
            and same_origin[2]["Cross-Origin-Resource-Policy"] == "same-origin"
        )

    run(steps, server)


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET / HTTP/1.1\r\nCookie: rlinf_station_a=\xc3\xa9",
        b"GET / HTTP/1.1\r\nCookie: rlinf_station_a=\xff",
        b"GET /?token=%C3%A9 HTTP/1.1",
        b"GET /?token=%FF HTTP/1.1",
    ],
)
def test_a_token_or_cookie_of_any_bytes_is_refused_in_words(request_head):
    server = serve(TOKEN)

    async def steps():
        reading, writing = await asyncio.open_connection(*server.address)
        writing.write(request_head + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert (await reading.read()).startswith(b"HTTP/1.1 403")
        writing.close()

    try:
        run(steps, server)
    finally:
        server.close()


def test_with_a_token_everything_needs_it_once_and_the_address_does_not_keep_it():
    server = serve(TOKEN)

    async def steps():
        for path in ("/", "/static/page.js", "/?token=wrong", "/?token=", "/live"):
            assert (await status("GET", server.url + path))[0] == 403
        assert (await status("POST", f"{server.url}/stop"))[0] == 403 and not any(
            server.station_double.stopped
        )
        code, _, headers = await status("GET", f"{server.url}/?token={TOKEN}")
        cookie = headers["Set-Cookie"]
        assert code == 303 and headers["Location"] == "/" and TOKEN not in cookie
        assert (
            "HttpOnly" in cookie
            and "SameSite=Strict" in cookie
            and cookie.startswith("rlinf_station_a=")
        )
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
