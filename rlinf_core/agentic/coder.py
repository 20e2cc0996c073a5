"""The online coder as the trainer's source: a server in a thread, with its own engine."""

from __future__ import annotations

import asyncio
import copy
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.agentic.completion_server import CompletionServer, client_tokens
from rlinf_core.agentic.engines.in_process import InProcessEngine
from rlinf_core.agentic.feedback import Feedback, FeedbackStore
from rlinf_core.agentic.settings import Text
from rlinf_core.agentic.warm_start import clone_examples, read_examples
from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.paths import expand_user
from rlinf_core.rollouts.types import Experience

if TYPE_CHECKING:
    from rlinf_core.policies.pretrained.language.policy import LanguagePolicy

STORE, CLIENTS = "feedback.sqlite3", "clients"  # in the run's folder
START_S = 30.0


class OnlineCoder(Feedback):
    """Serves completions while the trainer learns from their feedback.

    The engine draws from a copy of the policy. The copy takes the newest weights between two draws.

    Args:
        settings: the recipe's section ``text``.
        policy: the policy that learns.
        size: completions of a rollout.
        run_dir: the run's folder, with the store and the clients' tokens.
    """

    def __init__(self, settings: Text, policy: LanguagePolicy, size: int, run_dir: Path) -> None:
        served = settings.feedback
        self.settings, self.policy = settings, policy
        self.engine = InProcessEngine(copy.deepcopy(policy))
        self.served_version = -1
        super().__init__(
            FeedbackStore(run_dir / STORE, served.max_age_hours * 3600.0), size, self._publish
        )
        self.server = CompletionServer(
            self.engine,
            policy.tokenizer,
            self.store,
            client_tokens(run_dir / CLIENTS, served.clients),
            settings.max_new_tokens,
            policy.temperature,
        )
        self._loop = asyncio.new_event_loop()
        self._started, self._stop = threading.Event(), asyncio.Event()
        self._error: Exception | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._serve, name="completions", daemon=True)

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return a rollout as ``Feedback`` does.

        The first call starts the server, with the weights at the run's start or resumption.
        """
        experience = super().take(updates, length)
        if self._thread.ident is None:
            self.start()
        return experience

    def warm_start(self, seed: int) -> None:
        """Clone the examples, if the recipe names a file of them."""
        named = self.settings.feedback.examples
        if named:
            path = expand_user(named, "text.feedback.examples")
            clone_examples(
                self.policy,
                read_examples(path, self.policy.tokenizer),
                self.settings.warm_start,
                seed,
            )

    def start(self) -> None:
        """Start the server.

        Raises:
            RlinfError: the address is in use, or not this machine's.
        """
        self._thread.start()
        self._started.wait(START_S)
        if self._error or not self.port:
            served = self.settings.feedback
            raise RlinfError(
                f"text.feedback: expected a free address, got {served.host}:{served.port}: "
                f"{self._error or 'no answer'}"
            )

    def close(self) -> None:
        """End the server, then the store."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(START_S)
        self.store.close()

    def _publish(self, version: int) -> None:
        """Give the engine the newest weights, once per version."""
        if version == self.served_version:
            return
        with self.server.engine_lock:
            self.engine.policy.network.load_state_dict(self.policy.network.state_dict())
            self.engine.version = self.served_version = version

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._until_stopped())
        finally:
            self._loop.close()

    async def _until_stopped(self) -> None:
        served = self.settings.feedback
        try:
            async with self.server.listening(served.host, served.port) as self.port:
                self._started.set()
                await self._stop.wait()
        except (OSError, OverflowError) as error:
            self._error = error
            self._started.set()
