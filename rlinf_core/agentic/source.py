"""Conversations as a source of experience: drawn by an engine, with bounded concurrency and age."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.agentic.conversation import (
    FOLDER,
    POLICY,
    Conversation,
    ConversationLimits,
    make_rollout,
)
from rlinf_core.agentic.engines.base import Engine, Generation
from rlinf_core.agentic.environment import Message, TextEnvironment
from rlinf_core.agentic.settings import Text, WarmStart
from rlinf_core.agentic.warm_start import Example, clone_examples
from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.core.errors import RecipeError
from rlinf_core.rollouts.evaluate import EpisodeResult
from rlinf_core.rollouts.types import Experience, Source

if TYPE_CHECKING:
    from rlinf_core.policies.pretrained.language.policy import LanguagePolicy

EXAMPLES = 8192  # largest number of a warm start's examples, each drawn many times


class Conversations(Source):
    """Plays the conversations of a rollout, in groups of one scene.

    With ``max_staleness``, surplus conversations wait for the next rollouts. Unfinished ones
    continue under newer weights, and each token keeps the version that drew it.

    Args:
        settings: the recipe's section ``text``.
        make: makes an environment of the task.
        policy: draws the tokens.
        size: conversations of a rollout.
        first_scene: seed of the first scene of training.
        run_dir: the run's folder; None records nothing.
    """

    asynchronous = False

    def __init__(
        self,
        settings: Text,
        make: Callable[[], TextEnvironment],
        policy: LanguagePolicy,
        size: int,
        first_scene: int,
        run_dir: Path | None = None,
    ) -> None:
        self.settings, self.make, self.policy, self.size = settings, make, policy, size
        self.first_scene, self.run_dir = first_scene, run_dir
        self.report: dict[str, Any] = {}
        self.engine = make_engine(settings, policy)
        self.limits = ConversationLimits(
            settings.max_new_tokens, settings.max_tokens, settings.slice_tokens, policy.temperature
        )
        self.scenes = 0  # started so far
        self.groups: list[list[Conversation]] = []  # under way or waiting, oldest first
        self.restarted = self.truncated = 0
        self.worst_difference = 0.0
        self.synced = False

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return a rollout of ``size`` conversations.

        Further conversations start ahead of it, as far as staleness allows.
        """
        group_size = length.get("group", 1)
        needed = self.size // group_size
        self._sync(updates)
        self._restart_stale(updates)
        while len(self.groups) < needed * (self.settings.max_staleness + 1):
            self._start_group(group_size)
        while sum(map(_is_finished, self.groups)) < needed:
            self._advance([conversation for group in self.groups for conversation in group])
        finished = [group for group in self.groups if _is_finished(group)][:needed]
        finished_ids = {id(group) for group in finished}
        self.groups = [group for group in self.groups if id(group) not in finished_ids]
        played = [conversation for group in finished for conversation in group]
        self.truncated += sum(conversation.truncated for conversation in played)
        self._record(f"updates-{updates:09d}", played)
        return Experience(rollouts=[make_rollout(played)], steps=len(played))

    def _restart_stale(self, updates: int) -> None:
        """Restart the conversations with tokens of weights that are too old."""
        for group in self.groups:
            for index, conversation in enumerate(group):
                oldest = conversation.oldest
                if oldest is not None and updates - oldest > self.settings.max_staleness:
                    group[index] = self._start_conversation(conversation.scene, conversation.draw)
                    self.restarted += 1

    def _start_group(self, size: int) -> None:
        """Start the conversations of the next scene; each has another seed of its draws."""
        scene = self.first_scene + self.scenes
        draws = range(scene * size, (scene + 1) * size)
        self.groups.append([self._start_conversation(scene, draw) for draw in draws])
        self.scenes += 1

    def evaluate(self, policy: LanguagePolicy, scenes: Sequence[int]) -> list[EpisodeResult]:
        """Play one conversation of each scene with the likeliest tokens.

        A reward of 1 or more is a success.
        """
        self.engine.update(policy, self.engine.version)
        self.synced = False
        limits = replace(self.limits, temperature=0.0, slice_tokens=0)
        played = [
            Conversation(self.make(), policy.tokenizer, limits, scene, scene) for scene in scenes
        ]
        while not _is_finished(played):
            self._advance(played)
        self._record(f"evaluation-{self.scenes:09d}", played)
        return [
            EpisodeResult(
                conversation.scene,
                conversation.reward >= 1.0,
                conversation.reward < 1.0 and not conversation.truncated,
                conversation.reward,
                1,
            )
            for conversation in played
        ]

    def warm_start(self, warm: WarmStart, seed: int) -> None:
        """Clone the task's examples into the policy, until it succeeds often enough."""
        environment: Any = self.make()
        if not hasattr(environment, "example") and not hasattr(environment, "expert"):
            raise RecipeError(
                "text.warm_start.steps: expected 0 for a task whose Environment has neither "
                f"example() nor expert(), got {warm.steps}"
            )
        first, count = self.first_scene + warm.scenes, min(warm.steps * warm.batch_size, EXAMPLES)
        examples: list[Example] = []
        for scene in range(first, first + count):
            if len(examples) >= count:
                break
            examples += (
                [self._example(environment, scene)]
                if hasattr(environment, "example")
                else self._expert_rows(scene)
            )

        def success() -> float:
            """Measure on a quarter of the scenes, and on all of them if it may be enough."""
            rate = self._success(range(self.first_scene, self.first_scene + warm.scenes // 4))
            if rate < 0.7 * warm.until:
                return rate
            return self._success(range(self.first_scene, self.first_scene + warm.scenes))

        clone_examples(self.policy, examples, warm, seed, success)

    def _success(self, scenes: range) -> float:
        """Return the success rate on scenes of training; none of them is recorded."""
        run_dir = self.run_dir
        self.run_dir = None
        results = self.evaluate(self.policy, scenes)
        self.run_dir = run_dir
        return sum(result.success for result in results) / len(scenes)

    def _example(self, environment: Any, scene: int) -> Example:
        """Return the tokens of an example, and 1 for those that the policy must write."""
        start, tokenizer = environment.reset(scene), self.policy.tokenizer
        tools = [tool.schema() for tool in start.tools]
        tokens = tokenizer.prompt(start.messages, tools)
        marks, history = [0.0] * len(tokens), list(start.messages)
        for message in environment.example():
            new = self._new_tokens(history, message, tools, len(tokens))
            tokens += new
            marks += [float(message["role"] == "assistant")] * len(new)
            history.append(message)
        return tokens, marks

    def _expert_rows(self, scene: int) -> list[Example]:
        """Return the rows of all agents in an episode that the task's expert plays."""
        environment: Any = self.make()
        limits = replace(self.limits, max_tokens=sys.maxsize, max_new_tokens=sys.maxsize)
        conversation = Conversation(environment, self.policy.tokenizer, limits, scene, 0)
        while not conversation.finished:
            state = conversation.agents[conversation.agent]
            new = self._new_tokens(
                state.messages, environment.expert(), state.tools, len(state.row.tokens)
            )
            conversation.take(Generation(new, [0.0] * len(new), "stop", 0))
        return [
            (row.tokens, [float(kind == POLICY) for kind in row.kinds]) for row in conversation.rows
        ]

    def _new_tokens(
        self, history: Sequence[Message], message: Message, tools: Any, start: int
    ) -> list[int]:
        """Return the tokens of a message, after ``start`` tokens of the messages before it."""
        tokenizer = self.policy.tokenizer
        ids = tokenizer.encode(
            tokenizer.render([*history, message], tools, message["role"] != "assistant")
        )
        end = len(ids)
        if message["role"] == "assistant":  # tokens after the stop token belong to the template
            end = max(index + 1 for index, token in enumerate(ids) if token in tokenizer.stop_ids)
        return ids[start:end]

    def counts(self) -> dict[str, float]:
        """Return counts over all conversations so far."""
        return {
            "conversations_restarted": float(self.restarted),
            "conversations_truncated": float(self.truncated),
            "engine_difference": self.worst_difference,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the conversations under way, and the position in the scenes."""
        return {
            "scenes": self.scenes,
            "restarted": self.restarted,
            "truncated": self.truncated,
            "groups": [
                [conversation.record() for conversation in conversations]
                for conversations in self.groups
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore that state: each conversation keeps its tokens."""
        self.scenes, self.restarted = state["scenes"], state["restarted"]
        self.truncated = state["truncated"]
        self.groups = [
            [
                Conversation.resumed(record, self.make(), self.policy.tokenizer, self.limits)
                for record in records
            ]
            for records in state["groups"]
        ]

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _sync(self, updates: int) -> None:
        """Give the engine the newest weights, and check its log-probabilities."""
        self.engine.update(self.policy, updates)
        if self.engine.copies or not self.synced:
            self.worst_difference = max(self.worst_difference, self.engine.check(self.policy))
            self.synced = True

    def _start_conversation(self, scene: int, draw: int) -> Conversation:
        conversation = Conversation(self.make(), self.policy.tokenizer, self.limits, scene, draw)
        if conversation.finished:
            size = len(conversation.rows[0].tokens)
            raise RecipeError(
                f"text.max_tokens: expected more than the prompt of scene {scene}, which has "
                f"{size} tokens, got {self.limits.max_tokens}"
            )
        return conversation

    def _advance(self, conversations: Sequence[Conversation]) -> None:
        """Make one request for each unfinished conversation, within the concurrency."""
        active = [conversation for conversation in conversations if not conversation.finished]
        active = active[: self.settings.concurrency or len(active)]
        requests = [conversation.request() for conversation in active]
        for conversation, generation in zip(active, self.engine.generate(requests), strict=True):
            conversation.take(generation)

    def _record(self, name: str, played: Sequence[Conversation]) -> None:
        """Write some conversations, one per line."""
        if self.run_dir is None or not self.settings.recorded:
            return
        folder = self.run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        lines = [
            json.dumps(conversation.record()) + "\n"
            for conversation in played[: self.settings.recorded]
        ]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def _is_finished(conversations: Sequence[Conversation]) -> bool:
    return all(conversation.finished for conversation in conversations)


def make_engine(settings: Text, policy: LanguagePolicy) -> Engine:
    """Return the engine that the settings name."""
    if settings.engine == "in_process":
        from rlinf_core.agentic.engines.in_process import InProcessEngine

        return InProcessEngine(policy)
    from rlinf_core.agentic.engines.openai import OpenAIEngine

    options: dict[str, Any] = settings.engine_options
    try:
        engine: Engine = OpenAIEngine(settings.address, **options)
    except TypeError as error:
        raise RecipeError(f"text.engine_options: {error}") from error
    return engine
