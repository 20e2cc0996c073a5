"""The picture of before, and how the live one lies to it, as the page asks for them."""

import asyncio

import aiohttp
import cv2
import numpy as np
import pytest

from rlinf_core.page.views import Views
from tests.page.pages import TOKEN, run, serve

DRAWN = np.random.default_rng(0).integers(0, 255, (120, 160, 3), dtype=np.uint8)
PICTURE = cv2.normalize(cv2.GaussianBlur(DRAWN, (0, 0), 3.0), None, 0, 255, cv2.NORM_MINMAX)


@pytest.fixture
def views(tmp_path):
    """Return three views: moved by six pixels, with a damaged reference, and without one."""
    cv2.imwrite(str(tmp_path / "front.png"), PICTURE[..., ::-1])
    (tmp_path / "wrist.png").write_text("no picture")
    views = Views(
        [tmp_path / f"{name}.png" for name in ("front", "wrist", "side")], lambda camera: views.now
    )
    views.now = np.roll(PICTURE, 6, axis=1)
    return views


def answers(views, *paths, token="", cookie=True):
    """Return the server's answer to each request: status, content type, body."""

    async def steps():
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            if token and cookie:
                await session.get(f"{server.url}/?token={token}")
            for path in paths:
                async with session.get(server.url + path) as answer:
                    answers_of_views.append(
                        (answer.status, answer.content_type, await answer.read())
                    )

    server, answers_of_views = serve(token, views), []
    try:
        run(steps, server)
    finally:
        server.close()
    return answers_of_views


def test_the_picture_of_before_is_its_file_and_only_that_of_a_camera(views, tmp_path):
    one, none, beyond, outside = answers(
        views, "/reference/0", "/reference/2", "/reference/3", "/reference/..%2Ffront.png"
    )
    assert one == (200, "image/png", (tmp_path / "front.png").read_bytes())
    assert (
        none[0] == 404
        and b"no reference" in none[2]
        and beyond[0] == 404
        and b"expected one of 3 cameras" in beyond[2]
    )
    assert outside[0] == 404


def test_how_far_it_has_moved_in_pixels_or_why_that_cannot_be_said(views):
    moved, garbage, none = (asyncio.run(views.alignment(camera)) for camera in range(3))
    assert moved["right"] == pytest.approx(6.0, abs=0.3) and moved["down"] == pytest.approx(
        0.0, abs=0.3
    )
    assert not moved["aligned"] and "pixels to the right" in moved["words"]
    views.now, views.alignments = np.ascontiguousarray(PICTURE[::-1, ::-1]), {}
    other = asyncio.run(views.alignment(0))
    assert "are too different" in other["words"] and other["alike"] < 0.6 and "right" not in other
    assert "expected a picture, got another file" in garbage["words"] and "alike" not in garbage
    assert (
        "no reference: expected" in none["words"]
        and "rlinf camera align, with --write" in none["words"]
    )
    views.now, views.alignments = None, {}
    assert asyncio.run(views.alignment(0))["words"] == "no picture has arrived yet"
    views.now, views.alignments = PICTURE[:100], {}
    assert "expected a picture of (120, 160)" in asyncio.run(views.alignment(0))["words"]


def test_many_who_ask_at_once_are_answered_by_one_look(views):
    looks = []
    views.newest = lambda camera: looks.append(camera) or PICTURE

    async def ask():
        return await asyncio.gather(*(views.alignment(0) for _ in range(50)))

    assert all(alignment["aligned"] for alignment in asyncio.run(ask())) and looks == [0]


def test_who_may_not_see_the_page_sees_no_picture(views):
    for cookie, status in ((False, 403), (True, 200)):
        answers_of_views = answers(
            views, "/reference/0", "/alignment/0", token=TOKEN, cookie=cookie
        )
        assert [answer[0] for answer in answers_of_views] == [status, status]
