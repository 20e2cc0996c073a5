"""Conversations as data: rows of tokens with their authors, and rollouts made from them.

An engine receives and returns tokens. The policy's own text is never encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_core.agentic.engines.base import Generation, GenerationRequest
from rlinf_core.agentic.environment import Message, TextEnvironment

if TYPE_CHECKING:
    from rlinf_core.algorithms.common.rollout import Rollout
    from rlinf_core.policies.pretrained.language.tokenizer import ChatTokenizer

FOLDER = "conversations"  # in the run's folder
# author of a token: the scene, the policy, or the environment's answer
PROMPT, POLICY, TOOL = 0, 1, 2


@dataclass
class Row:
    """One sequence of tokens, as the policy read and wrote it.

    Attributes:
        agent: name of the row's agent.
        tokens: token ids.
        kinds: kind of each token: PROMPT, POLICY or TOOL.
        log_probs: the engine's log-probabilities of POLICY tokens; 0 elsewhere.
        versions: version of the weights that drew each POLICY token; -1 elsewhere.
    """

    agent: str
    tokens: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def read(self, tokens: Sequence[int], kind: int) -> None:
        """Append tokens that the policy did not write."""
        self.tokens += tokens
        self.kinds += [kind] * len(tokens)
        self.log_probs += [0.0] * len(tokens)
        self.versions += [-1] * len(tokens)

    def write(self, generation: Generation) -> None:
        """Append tokens that the policy drew."""
        self.tokens += generation.tokens
        self.kinds += [POLICY] * len(generation.tokens)
        self.log_probs += generation.log_probs
        self.versions += [generation.version] * len(generation.tokens)

    @property
    def length(self) -> int:
        """Number of tokens up to the policy's last one; later tokens teach nothing."""
        return max(
            (index + 1 for index, kind in enumerate(self.kinds) if kind == POLICY), default=0
        )


@dataclass
class AgentState:
    """An agent of the conversation: its messages, its tools, and its newest row."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    row: Row


@dataclass(frozen=True)
class ConversationLimits:
    """Limits of one conversation.

    Attributes:
        max_new_tokens: largest number of tokens of one message.
        max_tokens: largest number of tokens of one row.
        slice_tokens: largest number of tokens of one request; 0 for a whole message.
        temperature: temperature of the draws; 0 takes the likeliest tokens.
    """

    max_new_tokens: int
    max_tokens: int
    slice_tokens: int = 0
    temperature: float = 1.0


class Conversation:
    """One episode: ``request`` asks for tokens and ``take`` continues with them, to its end.

    Args:
        environment: plays only this episode.
        tokenizer: the policy's.
        limits: the conversation is truncated beyond them.
        scene: seed of the episode.
        draw: seed of its tokens.
    """

    def __init__(
        self,
        environment: TextEnvironment,
        tokenizer: ChatTokenizer,
        limits: ConversationLimits,
        scene: int,
        draw: int,
    ) -> None:
        self.environment, self.tokenizer, self.limits = environment, tokenizer, limits
        self.scene, self.draw = scene, draw
        self.rows: list[Row] = []
        self.transcript: list[tuple[str, Message]] = []  # every message, with its agent
        self.pending: list[int] = []  # tokens of the unfinished message
        self.agents: dict[str, AgentState] = {}
        self.finished = self.truncated = False
        self.reward = 0.0
        self.metrics = dict[str, float]()
        start = environment.reset(scene)
        self.agent = start.agent
        self._open_row(start.agent, list(start.messages), [tool.schema() for tool in start.tools])

    def request(self) -> GenerationRequest:
        """Return the request for the next tokens."""
        limits, row = self.limits, self.agents[self.agent].row
        room = min(limits.max_new_tokens - len(self.pending), limits.max_tokens - len(row.tokens))
        seed = self.draw * 1_000_003 + self.rows.index(row)
        return GenerationRequest(
            row.tokens,
            min(room, limits.slice_tokens or room),
            limits.temperature,
            self.tokenizer.stop_ids,
            seed,
        )

    def take(self, generation: Generation) -> None:
        """Continue with the engine's answer to ``request``."""
        row = self.agents[self.agent].row
        row.write(generation)
        self.pending += generation.tokens
        if generation.finish_reason == "stop":
            message = self.tokenizer.message(self.pending)
            self.pending = []
            self._append_message(message)  # type: ignore[arg-type]
        elif (
            len(self.pending) >= self.limits.max_new_tokens
            or len(row.tokens) >= self.limits.max_tokens
        ):
            self.finished = self.truncated = True

    def _append_message(self, message: Message) -> None:
        """Give a complete message to the environment."""
        state = self.agents[self.agent]
        state.messages.append(message)
        self.transcript.append((self.agent, message))
        step = self.environment.step(message)
        self.reward += step.reward
        if step.done:
            self.finished = True
            self.truncated = step.truncated
            self.metrics = dict(step.metrics)
            self.transcript += [(step.agent, answer) for answer in step.messages]
            return
        self.agent = step.agent
        self._open_row(step.agent, list(step.messages), [tool.schema() for tool in step.tools])

    def _open_row(self, agent: str, messages: list[Message], tools: list[dict[str, Any]]) -> None:
        """Give messages to an agent.

        They extend the agent's row. If the chat template rewrote earlier messages, they start a new
        row.
        """
        self.transcript += [(agent, message) for message in messages]
        state = self.agents.get(agent)
        if state is None:
            row = Row(agent)
            row.read(self.tokenizer.prompt(messages, tools), PROMPT)
            self.rows.append(row)
            self.agents[agent] = AgentState(messages, tools, row)
        else:
            new = self.tokenizer.continuation(state.messages, messages, state.tools)
            state.messages += messages
            if new is None:
                state.row = Row(agent)
                state.row.read(self.tokenizer.prompt(state.messages, state.tools), PROMPT)
                self.rows.append(state.row)
            else:
                state.row.read(new, TOOL)
        if len(self.agents[agent].row.tokens) >= self.limits.max_tokens:
            self.finished = self.truncated = True

    @property
    def oldest(self) -> int | None:
        """Version of the oldest weights behind one of its tokens; None before the first."""
        versions = [version for row in self.rows for version in row.versions if version >= 0]
        return min(versions, default=None)

    def record(self) -> dict[str, Any]:
        """Return the conversation as JSON, for readers and for ``resumed``."""
        return {
            "scene": self.scene,
            "draw": self.draw,
            "reward": self.reward,
            "finished": self.finished,
            "truncated": self.truncated,
            "metrics": self.metrics,
            "messages": [{"agent": agent, **message} for agent, message in self.transcript],
            "pending": self.pending,
            "rows": [vars(row) for row in self.rows],
        }

    @classmethod
    def resumed(
        cls,
        record: Mapping[str, Any],
        environment: TextEnvironment,
        tokenizer: ChatTokenizer,
        limits: ConversationLimits,
    ) -> Conversation:
        """Restore a conversation from a record.

        The environment is deterministic, so it repeats its episode.
        """
        conversation = cls(environment, tokenizer, limits, record["scene"], record["draw"])
        for message in record["messages"]:
            if message["role"] == "assistant" and not conversation.finished:
                conversation._append_message(
                    {
                        key: value
                        for key, value in message.items()  # type: ignore
                        if key != "agent"
                    }
                )
        for row, saved in zip(conversation.rows, record["rows"], strict=True):
            vars(row).update(saved)
        conversation.pending = list(record["pending"])
        conversation.finished, conversation.truncated = record["finished"], record["truncated"]
        return conversation


def make_rollout(conversations: Sequence[Conversation]) -> Rollout:
    """Return one rollout of finished conversations, those of a group side by side.

    A row is one chunk: T = 1, N rows, E tokens of the longest row. Only the policy's own tokens
    count. The episode's reward is at the last own token of its last row.
    """
    import torch

    from rlinf_core.algorithms.common.rollout import Rollout

    rows = [
        (number, row)
        for number, conversation in enumerate(conversations)
        for row in conversation.rows
        if row.length
    ]
    longest = max(row.length for _, row in rows)
    shape = (1, len(rows), longest)
    tokens = torch.zeros(shape, dtype=torch.int64)
    log_probs, counted, rewards = (torch.zeros(shape) for _ in range(3))
    episode = torch.tensor([number for number, _ in rows])
    versions = torch.zeros(1, len(rows))
    ended = torch.tensor([[float(not conversations[number].truncated) for number, _ in rows]])
    for index, (_, row) in enumerate(rows):
        size = row.length
        tokens[0, index, :size] = torch.tensor(row.tokens[:size])
        log_probs[0, index, :size] = torch.tensor(row.log_probs[:size])
        counted[0, index, :size] = torch.tensor(
            [float(kind == POLICY) for kind in row.kinds[:size]]
        )
        versions[0, index] = min(version for version in row.versions if version >= 0)
    last = {number: index for index, (number, _) in enumerate(rows)}
    for number, index in last.items():
        rewards[0, index, rows[index][1].length - 1] = conversations[number].reward
    observations = {"vectors": torch.zeros(1, len(rows), 0)}
    return Rollout(
        observations=observations,
        next_observations=observations,
        actions=tokens.unsqueeze(-1),
        log_probs=log_probs,
        step_rewards=rewards,
        steps=counted.sum(dim=-1),
        terminated=ended,
        done=torch.ones(1, len(rows)),
        mask=torch.ones(1, len(rows)),
        versions=versions,
        counted=counted,
        episode=episode,
    )
