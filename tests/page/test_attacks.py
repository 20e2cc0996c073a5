"""Floods of the page's server over loopback sockets: STOP arrives, the heartbeat is honest, the log
stays short.
"""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import time

import aiohttp
import pytest

from rlinf_core.core import connections
from rlinf_core.core.connections import MAX_CONNECTIONS, MAX_PER_PEER, Connections, LimitedLog
from tests.page.pages import TOKEN, opened, run, serve, status, until

pytestmark = pytest.mark.timed
FLOOD, STOP_S = 1100, 0.5


@pytest.fixture
def flooded():
    server = serve(TOKEN)
    yield server
    server.close()


@contextlib.contextmanager
def idle(server, number, data=b""):
    """Connections that send no complete request.

    The server is in this process, so both ends count.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * number)), hard))
    sockets = []
    try:
        for _ in range(number):
            sockets.append(socket.create_connection(server.address, 10))
            if data:
                sockets[-1].sendall(data)
        yield sockets
    finally:
        for connection in sockets:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def cookie(server):
    _, _, headers = await status("GET", f"{server.url}/?token={TOKEN}")
    return {"Cookie": headers["Set-Cookie"].partition(";")[0]}


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
@pytest.mark.parametrize("over_socket", [True, False])
def test_stop_arrives_through_a_flood_of_idle_connections(flooded, data, over_socket):
    async def steps():
        station, sent = flooded.station_double, await cookie(flooded)
        async with opened(flooded, **sent) as page:
            with idle(flooded, FLOOD, data):
                await until(lambda: station.stopped)
                assert not station.stopped[-1]
                begun = time.monotonic()
                if over_socket:
                    await page.say("stop")
                    assert (await page.hear("note"))["what"] == "stop"
                else:
                    assert (
                        await status("POST", f"{flooded.url}/stop", Origin=flooded.url, **sent)
                    )[0] == 200
                assert time.monotonic() - begun < STOP_S
                assert station.stopped[-1]
                assert len(flooded.connections.open) <= MAX_PER_PEER
        assert len(flooded.lines) < 30

    run(steps, flooded)


def test_a_connection_without_a_complete_header_is_closed(flooded, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)

    async def steps():
        reading, writing = await asyncio.open_connection(*flooded.address)
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - begun < 10:  # a slow loris: it always sends something
                writing.write(b"GET / HTTP/1.1\r\n" if not reading.at_eof() else b"X")
                await writing.drain()
                with contextlib.suppress(asyncio.TimeoutError):
                    if not await asyncio.wait_for(reading.read(1), 0.1):
                        break
        assert time.monotonic() - begun < 5

    run(steps, flooded)


def test_an_open_page_outlives_the_limit_of_requests(server, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)

    async def steps():
        async with opened(server) as page:
            await asyncio.sleep(1.2)
            assert (await page.ask("take"))["well"]

    run(steps, server)


def test_a_page_that_only_watches_stops_over_its_socket(server):
    async def steps():
        async with opened(server) as one, opened(server) as two:
            await one.ask("take")
            await two.say("stop")
            assert (await two.hear("note"))["well"]
            await until(lambda: server.station_double.stopped[-5:] == [True] * 5)
        assert sum("stop: pressed" in line for line in server.lines) == 1

    run(steps, server)


def test_the_heartbeat_is_silent_while_the_system_gives_no_file_for_a_connection(server):
    async def steps():
        station = server.station_double
        await until(lambda: len(station.beats) > 3)
        error = OSError(errno.EMFILE, "Too many open files")
        for _ in range(1000):
            server.loop.call_soon_threadsafe(
                server.loop.call_exception_handler,
                {"message": "socket.accept() out of system resource", "exception": error},
            )
        await until(lambda: not server.connections.accepting)
        before = len(station.beats)
        await asyncio.sleep(1.0)
        assert len(station.beats) <= before + 1
        await until(lambda: len(station.beats) > before + 5)
        assert len(server.lines) <= 30 and "its stop is silent" in server.lines[0]

    run(steps, server)


def test_a_pressed_stop_is_said_also_while_nothing_is_accepted(server):
    async def steps():
        server.loop.call_soon_threadsafe(server.connections.fail, "a test")
        await until(lambda: not server.connections.accepting)
        server.loop.call_soon_threadsafe(server._press, "a test")
        await until(lambda: server.station_double.stopped[-5:] == [True] * 5)
        assert not server.connections.accepting

    run(steps, server)


def test_huge_frames_and_headers_end_their_own_connection(server):
    async def steps():
        async with opened(server) as good:
            for path, data in (("live", "x" * 10_000_000), ("stop", None)):
                with contextlib.suppress(aiohttp.ClientError, ConnectionError, AssertionError):
                    if data:
                        async with opened(server) as bad:
                            await bad.socket.send_str(data)
                            await bad.hear("note")
                    else:
                        await status("POST", f"{server.url}/{path}", **{"X-Long": "y" * 60_000})
            assert (await good.ask("take"))["well"] and not any(server.station_double.stopped)

    run(steps, server)


class Transport:
    """Stands for a socket that is open until it is aborted."""

    def __init__(self, peer):
        self.peer, self.aborted, self.protocol = peer, False, None

    def get_extra_info(self, name):
        return (self.peer, 1) if name == "peername" else self

    def fileno(self):
        return -1 if self.aborted else 3

    def abort(self):
        self.aborted = True

    def set_protocol(self, protocol):
        self.protocol = protocol


def connect(held, peer):
    transport = Transport(peer)
    held().connection_made(transport)
    return transport


@pytest.fixture
def held():
    class Http(asyncio.Protocol):
        pass

    held = Connections(Http, [].append, "a server")
    held.listening = True
    return held


def test_the_oldest_idle_connection_of_a_peer_gives_way_to_its_newest(held):
    other = connect(held, "other")
    ours = [connect(held, "a") for _ in range(MAX_PER_PEER)]
    assert not any(connection.aborted for connection in (other, *ours))
    with held.answering(ours[0]):
        newest = connect(held, "a")
        assert [connection.aborted for connection in ours[:3]] == [False, True, False]
    assert not newest.aborted and not other.aborted and held.accepting
    assert len(held.open) == MAX_PER_PEER + 1


def test_the_peer_with_most_connections_gives_way_if_all_are_full(held):
    first = connect(held, "quiet")
    crowd = [connect(held, "loud") for _ in range(MAX_PER_PEER)]
    for number in range(MAX_CONNECTIONS - MAX_PER_PEER - 1):
        connect(held, f"peer {number}")
    assert len(held.open) == MAX_CONNECTIONS and not crowd[0].aborted
    connect(held, "one more")
    assert crowd[0].aborted and not first.aborted and len(held.open) == MAX_CONNECTIONS


def test_a_connection_is_refused_and_the_stop_silent_if_all_others_are_in_use(held, monkeypatch):
    ours = [connect(held, "a") for _ in range(MAX_PER_PEER)]
    with contextlib.ExitStack() as requests:
        for connection in ours:
            requests.enter_context(held.answering(connection))
        newest = connect(held, "a")
        assert newest.aborted and newest.protocol is None and not held.accepting
        assert not connect(held, "b").aborted, "another peer has room"
    monkeypatch.setattr(connections, "SILENT_S", -1.0)
    assert held.accepting


def test_the_sweep_closes_late_connections_and_forgets_closed_ones(held, monkeypatch):
    late, busy, closed = (connect(held, "a") for _ in range(3))
    closed.aborted = True
    monkeypatch.setattr(connections, "REQUEST_S", 0.0)
    with held.answering(busy, 60.0):
        held.open[late].limit_s = 0.0
        time.sleep(0.01)
        held.sweep()
        assert late.aborted and not busy.aborted and list(held.open) == [busy]
    time.sleep(0.01)
    held.sweep()
    assert busy.aborted and not held.open


def test_an_answer_that_nobody_reads_is_given_up(held):
    slow = connect(held, "a")
    with held.answering(slow, 0.0):
        time.sleep(0.01)
        held.sweep()
        assert slow.aborted
    with held.answering(slow):
        assert not held.open


def test_every_line_of_the_log_is_one_line_also_a_librarys():
    lines = []
    log = LimitedLog(lines.append, "a server")
    log("a\nb\x1b[31m")
    message, warning = "bad request: x\r\ny", logging.WARNING
    log.emit(logging.LogRecord("peer", warning, "", 0, message, (), None))
    assert lines == [r"a\nb\x1b[31m", r"a server: bad request: x\r\ny"]


def test_the_log_is_limited_and_counts_what_it_leaves_out(monkeypatch):
    lines = []
    log = LimitedLog(lines.append, "the operator's page")
    for _ in range(1000):
        log("refused")
    assert len(lines) == connections.MAX_LINES
    log.window_at -= connections.LINES_S + 1
    log("later")
    assert lines[-2:] == ["the operator's page: 980 lines were left out", "later"]
