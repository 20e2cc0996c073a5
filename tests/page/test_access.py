"""Who is let in by the page's server, over real sockets."""

import aiohttp
import pytest

from tests.page.pages import TOKEN, opened, run, serve, status

pytestmark = pytest.mark.timed


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
