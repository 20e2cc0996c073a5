"""The server of the online coder: completions over OpenAI's protocol, and feedback on them.

The server stores each completion before it sends the answer, and each feedback before it confirms
it, also while the trainer learns (``feedback``).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from rlinf_core.agentic.engines.base import Engine, Generation, GenerationRequest
from rlinf_core.agentic.feedback import FeedbackError, FeedbackStore
from rlinf_core.core.errors import RlinfError, escape_ascii
from rlinf_core.core.extras import require
from rlinf_core.deploy.bridge.credentials import make_token, same_token

BODY_BYTES, MAX_BATCH, WAITING = 1 << 20, 32, 256


class TextCodec(Protocol):
    """Converts text to token ids and back, as the policy's tokenizer does."""

    @property
    def stop_ids(self) -> Sequence[int]:
        """Ids that end a completion."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ids."""


class CompletionServer:
    """Serves ``/v1/completions`` and ``/v1/feedback`` to clients that hold a token.

    Args:
        engine: draws the completions, several requests at once.
        codec: converts text to ids.
        store: keeps completions and feedback.
        tokens: each client's token, by the client's name.
        max_tokens: bound of a completion; a prompt may have four times as many.
        temperature: temperature of all draws. Clients cannot change it, because the policy
            learns at this temperature.
    """

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        store: FeedbackStore,
        tokens: Mapping[str, str],
        max_tokens: int = 256,
        temperature: float = 1.0,
    ) -> None:
        require("agentic", "the online coder")
        self.engine = engine
        self.codec = codec
        self.store = store
        self.tokens = dict(tokens)
        self.max_tokens, self.temperature = max_tokens, temperature
        self.engine_lock = threading.Lock()  # held while weights change
        self._requests: asyncio.Queue[tuple[GenerationRequest, asyncio.Future[Generation]]]

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
        """Serve while the block runs; yields the port."""
        from aiohttp import web

        self._requests = asyncio.Queue(WAITING)
        application = web.Application(client_max_size=BODY_BYTES)
        application.add_routes(
            [
                web.post("/v1/completions", self._complete),
                web.post("/v1/feedback", self._feedback),
                web.get("/v1/models", self._models),
                web.get("/v1/counts", self._counts),
            ]
        )
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        worker = asyncio.create_task(self._work())
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            worker.cancel()
            await runner.cleanup()

    async def _work(self) -> None:
        """Draw completions, in one batch for all waiting requests."""
        while True:
            batch = [await self._requests.get()]
            while len(batch) < MAX_BATCH and not self._requests.empty():
                batch.append(self._requests.get_nowait())
            try:
                drawn = await asyncio.to_thread(self._generate, [request for request, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(RlinfError(f"engine: {error}"))
                continue
            for (_, future), generation in zip(batch, drawn, strict=True):
                if not future.done():
                    future.set_result(generation)

    def _generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        with self.engine_lock:
            return self.engine.generate(requests)

    def _client(self, request: Any) -> str:
        """Return the client whose token a request carries."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        names = [name for name, expected in self.tokens.items() if same_token(expected, token)]
        if scheme.lower() != "bearer" or not names:
            raise FeedbackError(
                "unauthenticated", "expected Authorization: Bearer with a client's token"
            )
        return names[0]

    async def _body(self, request: Any) -> dict[str, Any]:
        try:
            body = await request.json()
        except (ValueError, RecursionError) as error:
            raise FeedbackError("malformed", "expected a JSON object") from error
        if not isinstance(body, dict):
            raise FeedbackError("malformed", "expected a JSON object")
        return body

    async def _feedback(self, request: Any) -> Any:
        try:
            client = self._client(request)
            body = await self._body(request)
            name, value = body.get("id"), body.get("reward", body.get("accepted"))
            if not isinstance(name, str) or not name.isascii() or len(name) > 100:
                raise FeedbackError("malformed", "expected the id of a completion")
            if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
                raise FeedbackError(
                    "malformed", "expected reward (0 to 1) or accepted (true, false)"
                )
        except FeedbackError as error:
            await asyncio.to_thread(self.store.refuse, error.reason)
            return _refused(error)
        try:
            await asyncio.to_thread(self.store.accept, client, name, float(value))
        except FeedbackError as error:
            return _refused(error)
        return _json({"status": "stored", "id": name})

    async def _complete(self, request: Any) -> Any:
        try:
            client = self._client(request)
            body = await self._body(request)
            generation_request, stop = self._read_request(body)
        except FeedbackError as error:
            await asyncio.to_thread(self.store.refuse, error.reason)
            return _refused(error)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        try:
            self._requests.put_nowait((generation_request, future))
        except asyncio.QueueFull:
            return _json(
                {"error": {"type": "busy", "message": f"{WAITING} requests wait; try again"}}, 429
            )
        try:
            generation, text = self._cut(await future, stop)
        except RlinfError as error:
            return _json({"error": {"type": "engine", "message": escape_ascii(error)}}, 503)
        name = await asyncio.to_thread(
            self.store.record, client, generation_request.tokens, generation
        )
        answer = {
            "id": name,
            "object": "text_completion",
            "created": int(time.time()),
            "model": "policy",
            "choices": [
                {
                    "index": 0,
                    "text": text,
                    "finish_reason": generation.finish_reason,
                    "token_ids": generation.tokens,
                    "logprobs": {"token_logprobs": generation.log_probs},
                }
            ],
            "usage": {
                "prompt_tokens": len(generation_request.tokens),
                "completion_tokens": len(generation.tokens),
                "total_tokens": len(generation_request.tokens) + len(generation.tokens),
            },
        }
        if body.get("stream"):
            from aiohttp import web

            text = f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n"
            return web.Response(text=text, content_type="text/event-stream")
        return _json(answer)

    def _read_request(self, body: Mapping[str, Any]) -> tuple[GenerationRequest, list[str]]:
        """Return the engine's request and the stop texts of a client's request, both bounded."""
        prompt = body.get("prompt")
        limit = body.get("max_tokens", self.max_tokens)
        stop = body.get("stop")
        seed = body.get("seed", secrets.randbits(48))
        stops = [stop] if isinstance(stop, str) else stop or []
        if (
            not isinstance(limit, int)
            or isinstance(limit, bool)
            or limit < 1
            or body.get("n", 1) != 1
        ):
            raise FeedbackError("malformed", "expected max_tokens of at least 1, and n of 1")
        if (
            not isinstance(stops, list)
            or len(stops) > 16
            or not all(isinstance(s, str) and s for s in stops)
        ):
            raise FeedbackError("malformed", "expected stop as at most 16 texts")
        if not isinstance(seed, int):
            raise FeedbackError("malformed", "expected seed as a whole number")
        if isinstance(prompt, str) and prompt and _is_text(prompt) and all(map(_is_text, stops)):
            tokens = self.codec.encode(prompt)
        else:
            raise FeedbackError("malformed", "expected prompt and stop as text")
        if not 1 <= len(tokens) <= 4 * self.max_tokens:
            raise FeedbackError(
                "malformed",
                f"expected a prompt of at most {4 * self.max_tokens} tokens, got {len(tokens)}",
            )
        return GenerationRequest(
            tokens, min(limit, self.max_tokens), self.temperature, tuple(self.codec.stop_ids), seed
        ), stops

    def _cut(self, generation: Generation, stop: Sequence[str]) -> tuple[Generation, str]:
        """Return the drawn ids up to the first stop text, and their text without it.

        A prefix of drawn ids keeps its log-probabilities, so the policy can learn from it.
        """
        tokens = generation.tokens
        for length in range(1, len(tokens) + 1) if stop else ():
            text = self.codec.decode(tokens[:length])
            ends = [text.find(mark) for mark in stop if mark in text]
            if ends:
                return Generation(
                    tokens[:length], generation.log_probs[:length], "stop", generation.version
                ), text[: min(ends)]
        shown = tokens[:-1] if tokens and tokens[-1] in self.codec.stop_ids else tokens
        return generation, self.codec.decode(shown)

    async def _models(self, request: Any) -> Any:
        try:
            self._client(request)
        except FeedbackError as error:
            await asyncio.to_thread(self.store.refuse, error.reason)
            return _refused(error)
        return _json(
            {
                "object": "list",
                "data": [{"id": "policy", "object": "model", "version": self.engine.version}],
            }
        )

    async def _counts(self, request: Any) -> Any:
        try:
            self._client(request)
        except FeedbackError as error:
            return _refused(error)
        return _json(dict(await asyncio.to_thread(self.store.counts)))


def _is_text(text: str) -> bool:
    """Return whether a text can be encoded; JSON can hold half a character."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def client_tokens(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return a token for each client from ``folder/NAME.token`` (mode 0600), made on first use."""
    return {name: make_token(folder / f"{name}.token") for name in names}


def _json(document: Any, status: int = 200) -> Any:
    from aiohttp import web

    return web.json_response(document, status=status)


def _refused(error: FeedbackError) -> Any:
    status = {
        "unauthenticated": 401,
        "malformed": 400,
        "unknown": 404,
        "foreign": 403,
        "doubled": 409,
        "late": 410,
    }
    return _json(
        {"error": {"type": error.reason, "message": escape_ascii(error)}}, status[error.reason]
    )
