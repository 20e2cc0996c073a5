"""The web server of the operator's page: static files, a WebSocket for each page, and STOP.

All decisions are made here. The browser only reports its input. The event loop that handles STOP
also sends the heartbeat of the e-stop source. If the loop hangs, the source falls silent, and the
interlock treats silence as a press. STOP stays pressed until a person releases it, also across a
restart (S14).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from aiohttp import ClientError, WSMsgType, web

from rlinf_core.core.connections import (
    ACCEPTED_AT_ONCE,
    ANSWER_S,
    Connections,
    LimitedLog,
    deepen_backlog,
)
from rlinf_core.core.errors import RlinfError, escape_ascii
from rlinf_core.page.access import Access
from rlinf_core.page.controls import (
    MAX_PRESS_AGE_S,
    OPEN_REQUESTS,
    START_REQUESTS,
    Acknowledgement,
    Controls,
    MotionInput,
    Press,
    Request,
    parse_message,
)
from rlinf_core.page.views import Views


class Stop:
    """The state of STOP.

    Args:
        file: file that exists while STOP is pressed, for a restarted process; None keeps no file.
        log: receives lines of text for a person.
    """

    def __init__(self, file: Path | None, log: Callable[[str], object]) -> None:
        self.file, self.log = file, log
        self.pressed = file is not None and file.exists()

    def press(self) -> None:
        """Press STOP; it stays pressed until ``release``."""
        self.pressed = True
        self._remember()

    def release(self) -> None:
        """Release STOP; only a person's action may call this."""
        self.pressed = False
        self._remember()

    def _remember(self) -> None:
        try:
            if self.file is not None:
                self.file.touch() if self.pressed else self.file.unlink(missing_ok=True)
        except OSError as error:
            self.log(
                f"the page's stop is {'pressed' if self.pressed else 'released'}, but this state "
                f"is lost with this process: {error}. Free disk space"
            )


STATIC = Path(__file__).with_name("static")
NAME = "the operator's page"
HEARTBEAT_S = 0.05
RETRY_S = 2.0
SWEEP_S = 0.5
PING_S, VIEWER_PING_S = 20.0, 1.0  # a browser that answers no ping for half as long has gone
MAX_UNACKNOWLEDGED = 2  # frames that a page has not drawn yet
MAX_PAGES = 16
MAX_MESSAGE_BYTES = 2048  # per message
# per page, without acknowledgements; a page sends 20 motions and some buttons
MAX_MESSAGES_PER_S = 200
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "'self' blob:; connect-src "
    "'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Station(Protocol):
    """The server's interface to the station. All methods are called in the server's thread."""

    def move(self, motion: MotionInput) -> None:
        """Move the arm as the page with the controls asks."""

    def beat(self, stopped: bool) -> None:
        """Send the heartbeat of the e-stop source with the state of STOP."""

    def handle(self, request: Request) -> Awaitable[str]:
        """Carry out a request and return its result in words.

        Raises RlinfError if it is refused.
        """


class Page:
    """An open page. Only the newest message of each kind is sent, so no backlog builds up."""

    def __init__(self, number: int, socket: web.WebSocketResponse) -> None:
        self.number = number
        self.socket = socket
        self.news = asyncio.Event()
        self.texts: dict[str, str] = {}
        self.frames: dict[int, bytes] = {}
        self.unacknowledged = 0

    def queue(self, kind: str, text: str) -> None:
        """Queue a text; it replaces an unsent text of the same kind."""
        self.texts[kind] = text
        self.news.set()

    def show(self, camera: int, jpeg: bytes) -> None:
        """Queue a frame; it replaces an unsent frame of the same camera."""
        self.frames[camera] = bytes([camera]) + jpeg
        self.news.set()

    async def send(self) -> None:
        """Send queued texts and frames until cancelled."""
        with contextlib.suppress(ConnectionError, ClientError):
            while await self.news.wait():
                self.news.clear()
                while self.texts:
                    await self.socket.send_str(self.texts.pop(next(iter(self.texts))))
                while self.frames and self.unacknowledged < MAX_UNACKNOWLEDGED:
                    self.unacknowledged += 1
                    await self.socket.send_bytes(self.frames.pop(next(iter(self.frames))))


def without_nan(content: Any) -> Any:
    """Replace NaN and infinity by None, as JSON has neither."""
    if isinstance(content, dict):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class Server:
    """The web server, in a thread with an event loop of its own.

    Args:
        station: station that it controls.
        views: reference pictures of the cameras.
        access: access checks.
        host: address to bind.
        port: TCP port.
        log: receives lines of text for a person.
        stop: file that exists while STOP is pressed; None keeps no file.
        needs_viewer: True if the e-stop must be silent while no browser has the page open. It is
            True where the page is the only e-stop source of a robot with hardware, because a
            button that no person sees stops nothing.
    """

    def __init__(
        self,
        station: Station,
        views: Views,
        access: Access,
        host: str,
        port: int,
        log: Any,
        stop: Path | None = None,
        needs_viewer: bool = False,
    ) -> None:
        self.needs_viewer = needs_viewer
        self.station = station
        self.views = views
        self.access = access
        self.address = (host, port)
        self.always_log = log
        self.log = LimitedLog(log, NAME)
        self.controls = Controls()
        self.pages = dict[int, Page]()
        self.numbers = count(1)
        self.stop, self.last_texts = Stop(stop, self.log), dict[str, str]()
        self.loop = asyncio.new_event_loop()
        self.application = web.Application(
            middlewares=[self._guard], client_max_size=MAX_MESSAGE_BYTES
        )
        self.application.add_routes(
            [
                web.get("/", self._index),
                web.get("/live", self._live),
                web.post("/stop", self._stop),
                web.get(r"/reference/{camera:\d{1,3}}", self._reference),
                web.get(r"/alignment/{camera:\d{1,3}}", self._alignment),
                web.static("/static", STATIC),
            ]
        )
        self.connections = Connections(
            self._make_protocol, self.log, NAME, ", so its stop is silent"
        )
        threading.Thread(target=self._serve, name="page", daemon=True).start()

    # Calls of the station, from any thread
    @property
    def watched(self) -> bool:
        """Whether any page is ready for another frame."""
        return any(page.unacknowledged < MAX_UNACKNOWLEDGED for page in list(self.pages.values()))

    def broadcast(self, kind: str, fields: dict[str, Any], keep: bool = False) -> None:
        """Send fields to every page; ``keep`` stores them for pages that open later."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._send_to_pages, kind, fields, keep)

    def close(self) -> None:
        """Stop the server. The pages notice that the station is gone."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)

    def show(self, camera: int, jpeg: bytes) -> None:
        """Send a frame to every page that is ready for one."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._show, camera, jpeg)

    # Calls in the server's thread
    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self.connections.on_loop_error)
        self.loop.create_task(self._beat())
        self.loop.create_task(self._listen())
        self.loop.run_forever()

    async def _beat(self) -> None:
        """Send the heartbeat while STOP can be pressed, and always while it is pressed."""
        sweep_at = 0.0
        while True:
            if self.stop.pressed or (
                self.connections.accepting and (self.pages or not self.needs_viewer)
            ):
                self.station.beat(self.stop.pressed)
            if time.monotonic() > sweep_at:
                self.connections.sweep()
                sweep_at = time.monotonic() + SWEEP_S
            await asyncio.sleep(HEARTBEAT_S)

    def _make_protocol(self) -> asyncio.BaseProtocol:
        server = self.runner.server
        assert server is not None  # set before the first connection
        return server()

    async def _listen(self) -> None:
        logger = logging.Logger("rlinf_operator.page", logging.WARNING)
        logger.addHandler(self.log)
        self.runner = web.AppRunner(self.application, access_log=None, logger=logger)
        await self.runner.setup()
        while True:
            try:
                server = await self.loop.create_server(
                    self.connections, *self.address, backlog=ACCEPTED_AT_ONCE
                )
                deepen_backlog(server)
                self.connections.listening = True
                return
            except OSError as error:
                self.log(
                    f"the operator's page: expected port {self.address[1]} of {self.address[0]} "
                    f"free, got: {error}. End the program on that port, or take another port: "
                    "--web PORT. The page retries; until then its stop is silent"
                )
                await asyncio.sleep(RETRY_S)

    def _send_to_pages(self, kind: str, fields: dict[str, Any], keep: bool) -> None:
        if not (self.pages or keep):
            return
        now = {
            "t": time.monotonic(),
            "holder": self.controls.holder,
            "late": self.controls.late_s,
            "stopped": self.stop.pressed,
        }
        text = json.dumps(without_nan({"kind": kind} | fields | ({} if keep else now)))
        if keep:
            self.last_texts[kind] = text
        for page in self.pages.values():
            page.queue(kind, text)

    def _show(self, camera: int, jpeg: bytes) -> None:
        for page in self.pages.values():
            page.show(camera, jpeg)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        token = request.query.get("token")
        if token is not None and request.path == "/" and self.access.is_valid_token(token):
            answer: web.StreamResponse = web.HTTPSeeOther("/", headers=HEADERS)
            answer.set_cookie(
                self.access.cookie, self.access.proof, httponly=True, samesite="Strict", path="/"
            )
            return answer
        if refused := self.access.refusal_reason(request):
            return web.Response(
                status=403, text=f"rlinf: {escape_ascii(refused)}\n", headers=HEADERS
            )
        try:
            with self.connections.answering(
                request.transport, math.inf if request.path == "/live" else ANSWER_S
            ):
                answer = await handler(request)
        except web.HTTPException as error:
            answer = web.Response(status=error.status, text=f"rlinf: {error.reason}\n")
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        """Handle STOP. Any page may press it, in any state."""
        self._press(request.remote or "")
        return web.json_response({"stopped": True})

    def _press(self, remote: str) -> None:
        log = self.log if self.stop.pressed else self.always_log
        self.stop.pressed = True  # before the slow write to disk
        self.station.beat(True)
        self.stop.press()
        log(f"stop: pressed on the page, from {remote}")

    async def _reference(self, request: web.Request) -> web.StreamResponse:
        try:
            return web.Response(
                body=self.views.reference(int(request.match_info["camera"])),
                content_type="image/png",
            )
        except RlinfError as error:
            return web.Response(status=404, text=f"rlinf: {error}\n")

    async def _alignment(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(
            without_nan(await self.views.alignment(int(request.match_info["camera"])))
        )

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if len(self.pages) >= MAX_PAGES:
            return web.Response(status=503, text=f"rlinf: {MAX_PAGES} pages are open. Close some\n")
        socket = web.WebSocketResponse(
            max_msg_size=MAX_MESSAGE_BYTES,
            compress=False,
            heartbeat=VIEWER_PING_S if self.needs_viewer else PING_S,
        )
        await socket.prepare(request)
        page = Page(next(self.numbers), socket)
        self.pages[page.number] = page
        page.queue("you", json.dumps({"kind": "you", "page": page.number}))
        for kind, text in self.last_texts.items():
            page.queue(kind, text)
        sending = asyncio.create_task(page.send())
        try:
            await self._read_messages(page, request.remote or "")
        finally:
            del self.pages[page.number]
            self.controls.leave(page.number)
            sending.cancel()
        return socket

    async def _read_messages(self, page: Page, remote: str) -> None:
        """Handle a page's messages. An invalid one closes the connection, which ends a motion."""
        tasks: set[asyncio.Task[None]] = set()
        received_at: deque[float] = deque(maxlen=MAX_MESSAGES_PER_S)
        async for message in page.socket:
            try:
                request = parse_message(message.data if message.type is WSMsgType.TEXT else "")
            except ValueError:
                self.log(
                    f"the page from {remote} sent an unknown message: "
                    f"{escape_ascii(message.data)[:80]}. It is closed"
                )
                await page.socket.close(
                    code=1008, message=b"expected a message of this page's protocol"
                )
                return
            if isinstance(request, Press):  # before any bound
                self._press(remote)
                page.queue(
                    "stop",
                    json.dumps(
                        {"kind": "note", "what": "stop", "well": True, "text": "STOP is pressed"}
                    ),
                )
            if isinstance(request, Acknowledgement) and page.unacknowledged:
                page.unacknowledged -= 1
                page.news.set()
                continue
            received_at.append(time.monotonic())
            if len(received_at) == MAX_MESSAGES_PER_S and received_at[-1] - received_at[0] < 1.0:
                self.log(
                    f"the page from {remote} sent more than {MAX_MESSAGES_PER_S} messages in a "
                    "second. It is closed"
                )
                await page.socket.close(code=1008, message=b"expected fewer messages a second")
                return
            if isinstance(request, MotionInput):
                if self.controls.accepts(page.number, request, time.monotonic()):
                    self.station.move(request)
            elif isinstance(request, Request):
                tasks.add(task := asyncio.create_task(self._handle_request(page, request)))
                task.add_done_callback(tasks.discard)

    async def _handle_request(self, page: Page, request: Request) -> None:
        try:
            answer, accepted = await self._answer(page, request), True
        except RlinfError as error:
            answer, accepted = str(error), False
        self.log(
            f"page {page.number} asked: {request.what} {escape_ascii(request.cause)}: {answer}"
        )
        page.queue(
            "note",
            json.dumps({"kind": "note", "what": request.what, "well": accepted, "text": answer}),
        )

    async def _answer(self, page: Page, request: Request) -> str:
        if request.what in START_REQUESTS and (late_s := request.late_s(time.monotonic())):
            raise RlinfError(
                f"{request.what}: expected within {MAX_PRESS_AGE_S:g} s of the displayed state, "
                f"came {late_s:.1f} s after it and was ignored. Check the arm, then press again"
            )
        if request.what == "take":
            self.controls.take(page.number, time.monotonic())
            return "this page has the controls"
        if page.number != self.controls.holder and request.what not in OPEN_REQUESTS:
            raise RlinfError(f"{request.what}: this page only watches. Take the controls first")
        if request.what == "leave":
            self.controls.leave(page.number)
            return "this page only watches"
        if request.what == "release":
            self.stop.release()
            return "the stop is released; its fault stays active until you reset it"
        return await self.station.handle(request)
