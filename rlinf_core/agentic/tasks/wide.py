"""Wide: a lead agent fills a table; sub-agents look up its cells in separate conversations."""

from __future__ import annotations

import json
import random
import re
from collections import deque
from typing import Annotated

from pydantic import Field

from rlinf_core.agentic.environment import (
    LEAD,
    Message,
    Scene,
    TextStep,
    Tool,
    ToolError,
    run_tool_calls,
)
from rlinf_core.agentic.tasks.search import HELD_OUT, call_message, names_of
from rlinf_core.agentic.tools import SearchIndex
from rlinf_core.core.errors import RecipeError


def item_f1(answer: dict[str, str], truth: dict[str, str]) -> float:
    """Return the harmonic mean of precision and recall over cells."""
    right = sum(truth.get(name) == value for name, value in answer.items())
    return 2 * right / (len(answer) + len(truth))


class Wide:
    """Report the code of each name, one line each: ``name: code``. The reward is the item F1.

    With sub-agents, the lead has only the tool ``delegate``: each call opens a sub-agent's
    conversation. The sub-agent has ``search``, and its last text is the call's result. Without
    sub-agents the lead has ``search``.
    """

    def __init__(
        self,
        *,
        cells: int = 4,
        sub_agents: int = 4,
        documents: int = 24,
        digits: int = 2,
        lead_turns: int = 4,
        sub_turns: int = 3,
        brief: bool = False,
    ) -> None:
        """Set up the task.

        Args:
            cells: number of names to look up
            sub_agents: largest number of sub-agents in an episode; 0: the lead searches itself
            documents: number of documents
            digits: number of a code's digits
            lead_turns: largest number of the lead's messages
            sub_turns: largest number of each sub-agent's messages
            brief: the prompt names tools and does not describe them, for small networks
        """
        if not 1 <= cells <= documents <= len(HELD_OUT) or sub_agents < 0:
            raise RecipeError(
                f"text.options: expected 1 <= cells <= documents <= {len(HELD_OUT)} and "
                f"sub_agents >= 0, got {cells}, {documents}, {sub_agents}"
            )
        self.cells = cells
        self.sub_agents = sub_agents
        self.documents = documents
        self.digits = digits
        self.brief = brief
        self.lead_turns, self.sub_turns = lead_turns, sub_turns

    def reset(self, seed: int) -> Scene:
        """Draw names and codes."""
        draw = random.Random(f"wide {seed}")
        names = draw.sample(names_of(seed), self.documents)
        codes = {name: f"{draw.randrange(10**self.digits):0{self.digits}}" for name in names}
        self.truth = {name: codes[name] for name in names[: self.cells]}
        documents = [f"The code of {name} is {code}." for name, code in codes.items()]
        draw.shuffle(documents)
        self.search = SearchIndex(documents).tool()
        self.delegate_tool = Tool.of(self._delegate, "delegate")
        if self.brief:
            self.search = self.search.brief()
            self.delegate_tool = self.delegate_tool.brief()
        self.turns = {LEAD: 0}
        self.agent = LEAD
        self.opened = 0
        self.waiting: deque[tuple[int, str]] = deque()  # index of the lead's result, question
        self.results: list[Message] = []
        text = (
            f"Find the codes of: {', '.join(self.truth)}. Answer with a line 'name: code' for each."
        )
        tools = [self.delegate_tool] if self.sub_agents else [self.search]
        return Scene([{"role": "user", "content": text}], tools, LEAD)

    def _delegate(self, question: Annotated[str, Field(min_length=1, max_length=400)]) -> str:
        """Ask a sub-agent, which can search.

        Args:
            question: for one sub-agent, which sees nothing else
        """
        if self.opened + len(self.waiting) >= self.sub_agents:
            raise ToolError(
                f"expected at most {self.sub_agents} sub-agents in an episode, got one more"
            )
        self.waiting.append((len(self.results), question))
        return ""

    def step(self, message: Message) -> TextStep:
        """Answer the current agent."""
        self.turns[self.agent] += 1
        return self._lead_step(message) if self.agent == LEAD else self._sub_step(message)

    def _lead_step(self, message: Message) -> TextStep:
        calls = message.get("tool_calls") or []
        if not calls:
            return self._end(message.get("content") or "")
        self.results = []
        for call in calls:
            single: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
            tool = self.delegate_tool if self.sub_agents else self.search
            self.results += run_tool_calls(single, [tool])
        return self._open() if self.waiting else self._resume_lead()

    def _open(self) -> TextStep:
        """Open the next sub-agent's conversation."""
        self.opened += 1
        self.agent = f"sub_{self.opened}"
        self.turns[self.agent] = 0
        return TextStep(
            [{"role": "user", "content": self.waiting[0][1]}], agent=self.agent, tools=[self.search]
        )

    def _sub_step(self, message: Message) -> TextStep:
        results = run_tool_calls(message, [self.search])
        if results and self.turns[self.agent] < self.sub_turns:
            return TextStep(results, agent=self.agent)
        index, _ = self.waiting.popleft()
        text = (
            (message.get("content") or "") if not results else "error: the sub-agent gave no answer"
        )
        self.results[index]["content"] = text[:400]
        return self._open() if self.waiting else self._resume_lead()

    def _resume_lead(self) -> TextStep:
        self.agent = LEAD
        if self.turns[LEAD] >= self.lead_turns:
            return TextStep(self.results, done=True, truncated=True, metrics=self._metrics({}))
        return TextStep(self.results, agent=LEAD)

    def _end(self, text: str) -> TextStep:
        answer = {
            name.strip(): code
            for name, code in re.findall(r"^[\s*-]*([\w ]+?)\s*[:=]\s*(\d+)\b", text, re.M)
        }
        metrics = self._metrics(answer)
        return TextStep(reward=metrics["item_f1"], done=True, metrics=metrics)

    def _metrics(self, answer: dict[str, str]) -> dict[str, float]:
        return {
            "item_f1": item_f1(answer, self.truth),
            "table": float(answer == self.truth),
            "sub_agents": float(self.opened),
            "turns": float(sum(self.turns.values())),
        }

    def expert(self) -> Message:
        """Return the next message of the current scripted agent."""
        turn = self.turns[self.agent]
        if self.agent != LEAD:
            name = next((name for name in self.truth if name in self.waiting[0][1]), "")
            return (
                call_message("search", json.dumps({"query": name}))
                if turn == 0
                else {"role": "assistant", "content": self.truth.get(name, "unknown")}
            )
        if turn == 0:
            names = list(self.truth)[: self.sub_agents or None]
            tool, key = ("delegate", "question") if self.sub_agents else ("search", "query")
            texts = [f"What is the code of {name}?" if self.sub_agents else name for name in names]
            return {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    call_message(tool, json.dumps({key: text}), number)["tool_calls"][0]
                    for number, text in enumerate(texts)
                ],
            }
        return {
            "role": "assistant",
            "content": "\n".join(f"{name}: {code}" for name, code in self.truth.items()),
        }


Environment = Wide
