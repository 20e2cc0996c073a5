"""The online coder: completions over OpenAI's protocol, and feedback that trains on them.

The server stores each completion with its token ids, log-probabilities and version before it sends
it. Feedback names a completion's id. The store writes it before the answer, also while the trainer
learns, so a killed process loses none. Feedback must come from the completion's client, once and in
time. Other feedback is refused with a reason, and counted.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_core.agentic.engines.base import Engine, Generation, GenerationRequest
from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.core.errors import RlinfError, escape_ascii
from rlinf_core.core.extras import require
from rlinf_core.deploy.bridge.credentials import make_token, same_token
from rlinf_core.rollouts.evaluate import EpisodeResult
from rlinf_core.rollouts.types import Experience, Source

if TYPE_CHECKING:
    from rlinf_core.algorithms.common.rollout import Rollout

REFUSALS = ("unauthenticated", "malformed", "unknown", "foreign", "doubled", "late")
BODY_BYTES, MAX_BATCH, WAITING = 1 << 20, 32, 256
TABLES = """
CREATE TABLE IF NOT EXISTS completions(
    id TEXT PRIMARY KEY, client TEXT NOT NULL, served REAL NOT NULL,
    prompt TEXT NOT NULL, tokens TEXT NOT NULL, log_probs TEXT NOT NULL, version INTEGER NOT NULL,
    reward REAL, arrival INTEGER);
CREATE UNIQUE INDEX IF NOT EXISTS arrivals ON completions(arrival);
CREATE TABLE IF NOT EXISTS counts(name TEXT PRIMARY KEY, number INTEGER NOT NULL);
"""


class FeedbackError(RlinfError):
    """Refused feedback.

    Attributes:
        reason: one of REFUSALS.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class TextCodec(Protocol):
    """Converts text to token ids and back, as the policy's tokenizer does."""

    @property
    def stop_ids(self) -> Sequence[int]:
        """Ids that end a completion."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ids."""


@dataclass(frozen=True)
class ServedCompletion:
    """A completion with its feedback, as the engine drew it.

    Attributes:
        id: id of the request.
        client: name of the client that got it.
        prompt: token ids.
        tokens: drawn ids.
        log_probs: log-probability of each drawn id.
        version: version of the weights that drew the ids.
        reward: from the feedback, 0 to 1.
        arrival: number of the feedback, from 1 on.
    """

    id: str
    client: str
    prompt: list[int]
    tokens: list[int]
    log_probs: list[float]
    version: int
    reward: float
    arrival: int


class FeedbackStore:
    """Completions and their feedback in one SQLite file; each call is durable when it returns.

    Args:
        path: the file; created on first use, readable only by its owner.
        max_age_s: largest age of a completion whose feedback counts.
    """

    def __init__(self, path: Path, max_age_s: float = 86400.0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        self.max_age_s = max_age_s
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.executescript(TABLES)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def record(self, client: str, prompt: Sequence[int], generation: Generation) -> str:
        """Store a completion before it is sent; return its id."""
        name = f"cmpl-{secrets.token_urlsafe(24)}"
        row = (
            name,
            client,
            time.time(),
            json.dumps(list(prompt)),
            json.dumps(generation.tokens),
            json.dumps(generation.log_probs),
            generation.version,
        )
        with self._lock:
            self._database.execute(
                "INSERT INTO completions(id, client, served, prompt, tokens, log_probs, version) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            self._count("served")
        return name

    def accept(self, client: str, name: str, reward: float) -> None:
        """Store feedback.

        Raises:
            FeedbackError: it is refused; the refusal is counted.
        """
        try:
            with self._lock:
                self._accept(client, name, reward)
        except FeedbackError as error:
            self.refuse(error.reason)
            raise

    def _accept(self, client: str, name: str, reward: float) -> None:
        if not (math.isfinite(reward) and 0.0 <= reward <= 1.0):
            raise FeedbackError("malformed", f"expected a reward from 0 to 1, got {reward}")
        self._database.execute("BEGIN IMMEDIATE")  # other processes wait, so nothing counts twice
        try:
            self._check(client, name)
            self._database.execute(
                "UPDATE completions SET reward = ?, arrival = (SELECT COALESCE(MAX(arrival), 0) + "
                "1 FROM completions) WHERE id = ?",
                (reward, name),
            )
            self._count("accepted")
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def _check(self, client: str, name: str) -> None:
        """Refuse feedback unless it is the first, in time, and from the completion's client."""
        row = self._database.execute(
            "SELECT client, served, reward FROM completions WHERE id = ?", (name,)
        ).fetchone()
        if row is None:
            raise FeedbackError("unknown", "no completion with this id was served")
        owner, served, earlier = row
        if owner != client:
            raise FeedbackError("foreign", "this completion was served to another client")
        if earlier is not None:
            raise FeedbackError("doubled", "this completion has its feedback")
        if time.time() - served > self.max_age_s:
            raise FeedbackError("late", f"expected feedback within {self.max_age_s:g} s")

    def refuse(self, reason: str) -> None:
        """Count a refusal."""
        with self._lock:
            self._count(reason)

    def _count(self, name: str) -> None:
        self._database.execute(
            "INSERT INTO counts VALUES (?, 1) ON CONFLICT(name) DO UPDATE SET number = number + 1",
            (name,),
        )

    def counts(self) -> Counter[str]:
        """Return the numbers of completions served, feedback accepted, and refusals by reason."""
        with self._lock:
            return Counter(
                dict(self._database.execute("SELECT name, number FROM counts").fetchall())
            )

    def waiting(self, limit: int, after: int = 0) -> list[ServedCompletion]:
        """Return completions with feedback, in the feedback's order.

        Args:
            limit: largest number of completions.
            after: the ``arrival`` of the last completion that was learned from.
        """
        with self._lock:
            rows = self._database.execute(
                "SELECT id, client, prompt, tokens, log_probs, version, reward, arrival "
                "FROM completions WHERE arrival > ? ORDER BY arrival LIMIT ?",
                (after, limit),
            ).fetchall()
        return [
            ServedCompletion(
                id=name,
                client=client,
                prompt=json.loads(prompt),
                tokens=json.loads(tokens),
                log_probs=json.loads(log_probs),
                version=version,
                reward=reward,
                arrival=arrival,
            )
            for name, client, prompt, tokens, log_probs, version, reward, arrival in rows
        ]

    def prune(self) -> None:
        """Delete completions without feedback a day after feedback for them became late."""
        with self._lock:
            self._database.execute(
                "DELETE FROM completions WHERE arrival IS NULL AND served < ?",
                (time.time() - self.max_age_s - 86400.0,),
            )


class Feedback(Source):
    """Served completions with their feedback as a source of the trainer.

    Each completion is given out once, in the feedback's order. A checkpoint holds the number of the
    last one, so a resumed run learns from all later ones, and from none twice.

    Args:
        store: holds the completions.
        size: completions of a rollout; a smaller number waits.
        publish: gives the server's engine the newest weights; takes the version.
    """

    asynchronous = True

    def __init__(self, store: FeedbackStore, size: int, publish: Callable[[int], None]) -> None:
        self.store, self.size, self.publish = store, size, publish
        self.report: dict[str, Any] = {}
        self.after = 0
        self.rewards: deque[float] = deque(maxlen=size)  # rewards of the last rollout

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return a rollout of the oldest unused feedback; empty if there is too little."""
        self.publish(updates)
        served = self.store.waiting(self.size, self.after)
        if len(served) < self.size:
            return Experience()
        self.after = served[-1].arrival
        self.rewards.extend(completion.reward for completion in served)
        return Experience(rollouts=[feedback_rollout(served)], steps=len(served))

    def evaluate(self) -> list[EpisodeResult]:
        """Return the newest feedback as an evaluation.

        An accepted completion (reward 1) is a success.
        """
        first = self.after - len(self.rewards) + 1
        return [
            EpisodeResult(first + index, reward >= 1.0, reward < 1.0, reward, 1)
            for index, reward in enumerate(self.rewards)
        ]

    def counts(self) -> dict[str, float]:
        """Return the counts of completions and feedback, and the mean of the newest rewards."""
        counted = {
            f"feedback_{name}": float(number) for name, number in self.store.counts().items()
        }
        if self.rewards:
            counted["feedback_reward"] = sum(self.rewards) / len(self.rewards)
        return counted

    def close(self) -> None:
        """Do nothing: the store stays open for its server (``OnlineCoder.close``)."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the last feedback that the checkpoint learned from."""
        return {"after": self.after, "rewards": list(self.rewards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after that feedback."""
        self.after = state["after"]
        self.rewards.extend(state.get("rewards", []))


def feedback_rollout(served: Sequence[ServedCompletion]) -> Rollout:
    """Return a rollout of completions, one per row, with their drawn ids and log-probabilities."""
    from rlinf_core.agentic.conversation import PROMPT, Row, make_rollout

    conversations: list[Any] = []
    for completion in served:
        row = Row(completion.client)
        row.read(completion.prompt, PROMPT)
        row.write(Generation(completion.tokens, completion.log_probs, "stop", completion.version))
        conversations.append(SimpleNamespace(rows=[row], truncated=False, reward=completion.reward))
    return make_rollout(conversations)


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
