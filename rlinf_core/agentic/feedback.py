"""Feedback on served completions: a store in one file, and the trainer's source of experience.

The store writes a completion with its token ids, log-probabilities and version before the server
sends it. Feedback names a completion's id. It must come from the completion's client, once and in
time. Other feedback is refused with a reason, and counted. A killed process loses nothing that was
answered.
"""

from __future__ import annotations

import json
import math
import secrets
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlinf_core.agentic.engines.base import Generation
from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.core.errors import RlinfError
from rlinf_core.rollouts.evaluate import EpisodeResult
from rlinf_core.rollouts.types import Experience, Source

if TYPE_CHECKING:
    from rlinf_core.algorithms.common.rollout import Rollout

REFUSALS = ("unauthenticated", "malformed", "unknown", "foreign", "doubled", "late")
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
