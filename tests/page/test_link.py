"""The page's connection (link.js) in a real browser, at a server without a station."""

import asyncio
import time

import pytest

from rlinf_core.core.errors import RlinfError
from tests.page.pages import serve
from tests.ros.page_browser import chromium, needs_browser

pytestmark = [needs_browser, pytest.mark.timed, pytest.mark.timeout(120)]
OPEN = """async () => {
  const {Link} = await import("/static/link.js");
  window.heard = {you: [], state: [], note: [], closed: [], frames: []};
  window.link = new Link({
    you: said => heard.you.push(said.page), state: said => heard.state.push(said.t),
    note: said => heard.note.push(said.what), frame: data => heard.frames.push(data.byteLength),
    closed: (reason, unanswered) => heard.closed.push([reason, unanswered])});
}"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def server():
    server = serve()
    server.answers = server.talks = True

    async def talk():
        while True:
            if server.talks:
                server._send_to_pages("state", {}, False)
            await asyncio.sleep(0.05)

    async def ask(ask):
        server.station_double.requests.append(ask.what)
        while not server.answers:
            await asyncio.sleep(0.01)
        return "done"

    server.station_double.handle = ask
    talking = asyncio.run_coroutine_threadsafe(talk(), server.loop)
    yield server
    server.answers = True
    talking.cancel()
    server.close()


class Linked:
    """A blank document of the server's, with a link and nothing else."""

    def __init__(self, browser, server):
        self.server, self.context = server, browser.new_context()
        self.page = self.context.new_page()
        self.until(lambda: server.connections.listening, "the server listens")
        self.page.goto(f"{server.url}/static/favicon.svg")
        self.page.evaluate(OPEN)
        self.until(lambda: self.received("state"), "connected")

    def received(self, what):
        return self.page.evaluate(f"heard.{what}")

    def ask(self, what):
        self.page.evaluate(f"link.ask('{what}')")

    def until(self, holds, what):
        end = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < end, what
            self.page.wait_for_timeout(20)

    def cut(self):
        """The server hangs up on it."""
        before = len(self.received("closed"))
        for page in list(self.server.pages.values()):
            asyncio.run_coroutine_threadsafe(page.socket.close(), self.server.loop)
        self.until(lambda: len(self.received("closed")) > before, "the browser sees the end")


@pytest.fixture
def linked(browser, server):
    linked = Linked(browser, server)
    yield linked
    linked.context.close()


def test_a_lost_connection_is_opened_again_as_another_page_that_only_watches(linked, server):
    linked.ask("take")
    linked.until(lambda: server.controls.holder == linked.received("you")[0], "the controls")
    linked.cut()
    linked.until(lambda: len(linked.received("you")) == 2, "connected anew")
    first, second = linked.received("you")
    assert second != first and server.controls.holder == 0
    states = len(linked.received("state"))
    linked.until(lambda: len(linked.received("state")) > states, "a state of it")
    linked.ask("arm")
    linked.until(lambda: "arm" in linked.received("note"), "an answer")
    assert server.station_double.requests == [], "the controls are not taken anew"


def test_what_was_not_answered_is_reported_once_and_asked_for_no_more(linked, server):
    linked.ask("take")
    linked.until(lambda: "take" in linked.received("note"), "the controls")
    server.answers = False
    linked.ask("arm")
    linked.until(lambda: server.station_double.requests == ["arm"], "arm is asked")
    linked.cut()
    assert linked.received("closed") == [["", ["arm"]]]
    server.answers = True
    linked.until(lambda: len(linked.received("you")) == 2, "connected anew")
    linked.page.wait_for_timeout(500)
    assert server.station_double.requests == ["arm"]
    linked.cut()
    assert linked.received("closed")[1] == ["", []]


def test_a_disarm_is_asked_for_until_it_is_answered(linked, server):
    server.answers = False
    linked.ask("disarm")
    linked.until(lambda: server.station_double.requests == ["disarm"], "disarm is asked")
    linked.cut()
    linked.until(lambda: server.station_double.requests == ["disarm"] * 2, "and asked again")
    assert linked.received("closed")[0] == ["", []], "it is no lost answer"
    server.answers = True
    linked.until(lambda: "disarm" in linked.received("note"), "an answer")
    linked.cut()
    linked.until(lambda: len(linked.received("you")) == 3, "connected anew")
    linked.page.wait_for_timeout(300)
    assert server.station_double.requests == ["disarm"] * 2


def test_words_arrive_in_order_with_the_time_of_the_newest_state(linked, server):
    linked.ask("take")
    linked.until(lambda: "take" in linked.received("note"), "the controls")
    before = len(linked.received("state"))
    linked.page.evaluate("""for (let seq = 1; seq < 40; seq++)
        link.say({kind: "motion", seq, shown_at: link.shownAt, held: true, active: true, axes: {}})""")
    linked.page.evaluate("link.ask('success'); link.ask('failure'); link.ask('discard')")
    hands, requests = server.station_double.hands, server.station_double.requests
    linked.until(lambda: len(requests) == 3, "the labels")
    assert requests == ["success", "failure", "discard"]
    assert [hand.seq for hand in hands] == sorted(hand.seq for hand in hands)
    assert {hand.shown_at for hand in hands} <= set(linked.received("state")[before - 1 :])


def test_a_server_that_is_silent_is_given_up_and_another_connection_opened(linked, server):
    linked.ask("take")
    linked.until(lambda: "take" in linked.received("note"), "the controls")
    server.talks = False
    linked.until(lambda: linked.received("closed"), "nothing was heard for a second")
    linked.until(lambda: len(linked.received("you")) >= 2, "connected anew")


def test_a_server_that_is_heard_is_not(linked, server):
    linked.page.wait_for_timeout(3000)
    assert linked.received("closed") == [] and linked.page.evaluate("link.here")


def test_stop_arrives_over_the_socket_or_by_its_request_and_says_which_failed(linked, server):
    assert linked.page.evaluate("link.stop()") is True
    linked.until(lambda: server.station_double.stopped[-1], "pressed")
    server.stop.release()
    linked.page.route("**/stop", lambda route: route.abort())
    assert linked.page.evaluate("link.stop()") is True, "over the socket"
    linked.until(lambda: server.stop.pressed, "pressed")
    server.stop.release()
    linked.page.unroute("**/stop")
    linked.page.evaluate("link.say = () => {}")
    assert linked.page.evaluate("link.stop()") is True, "by its request"
    linked.until(lambda: server.stop.pressed, "pressed")
    tries = []
    linked.page.route("**/stop", lambda route: (tries.append(1), route.abort()))
    assert linked.page.evaluate("link.stop()") is False and len(tries) == 3


def test_an_answer_that_the_station_refuses_is_an_answer(linked, server):
    async def refuse(ask):
        raise RlinfError("no")

    server.station_double.handle = refuse
    linked.ask("disarm")
    linked.until(lambda: "disarm" in linked.received("note"), "an answer")
    assert linked.page.evaluate("link.disarming") is False
