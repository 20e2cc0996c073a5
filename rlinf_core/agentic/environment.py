"""The interface of a text environment: messages in OpenAI's chat form, tools, scenes and steps.

An environment runs the tool calls of a message itself and returns their results as messages. The
agents of one episode speak one after another: each step names the next speaker. The episode's
reward is the sum of its steps' rewards and belongs to all of its agents.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, TypedDict, get_type_hints, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rlinf_core.core.errors import RlinfError, nearest

LEAD = "agent"  # the only agent of an environment, or the first of several
MAX_RESULT = 8192  # largest size of a tool's result [characters]; a cut is marked


class ToolError(RlinfError):
    """An impossible tool call; its text is the tool's answer to the agent."""


class FunctionCall(TypedDict):
    """A tool's name and its arguments, a JSON object as text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One call of an assistant's message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One message in OpenAI's chat form; ``role`` and ``content`` are always present."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str


@dataclass(frozen=True)
class Tool:
    """A function that an agent may call.

    Attributes:
        name: the tool's name, as the agent writes it.
        description: the function's purpose, for the agent.
        parameters: JSON schema of its arguments.
        function: called with checked arguments; its result reaches the agent as text.
        arguments: the model that checks the arguments; None if the tool's owner checks them.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    arguments: type[BaseModel] | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], name: str = "") -> Tool:
        """Return a tool from a typed function.

        Its schema comes from the signature, its texts from the docstring.

        Args:
            function: each argument has a type; its ``Args`` section gives their meanings.
            name: the tool's name, as the agent writes it; the function's name by default.

        Raises:
            TypeError: an argument has no type, or is variadic.
        """
        name = name or function.__name__
        underlying = getattr(function, "__func__", function)
        text, schema, model = _described(underlying, name, underlying is not function)
        return cls(name, text, schema, function, model)

    def brief(self) -> Tool:
        """Return the tool without its description in the prompt, for small networks."""
        return replace(self, description="", parameters={})

    def schema(self) -> dict[str, Any]:
        """Return the tool's schema for chat templates and OpenAI's protocol."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }

    def __call__(self, arguments: str) -> str:
        """Call the tool and return its result as text of at most ``MAX_RESULT`` characters.

        Args:
            arguments: a JSON object, as the agent wrote it.

        Raises:
            ToolError: the arguments do not fit the schema, or the function raised one.
        """
        try:
            if self.arguments is None:
                values = json.loads(arguments or "{}")
                if not isinstance(values, dict):
                    raise ValueError("expected a JSON object")
            else:
                model = self.arguments.model_validate_json(arguments or "{}")
                values = {key: getattr(model, key) for key in type(model).model_fields}
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
                for problem in error.errors(include_url=False)
            )
            raise ToolError(f"{self.name}: {problems}") from error
        except (ValueError, RecursionError) as error:
            raise ToolError(
                f"{self.name}: expected a JSON object, got {arguments[:200]!r}"
            ) from error
        result = self.function(**values)
        text = result if isinstance(result, str) else json.dumps(result, default=str)
        if len(text) > MAX_RESULT:
            return f"{text[:MAX_RESULT]}... ({len(text) - MAX_RESULT} characters cut off)"
        return text


@lru_cache(maxsize=256)
def _described(
    function: Callable[..., Any], name: str, is_method: bool
) -> tuple[str, dict[str, Any], type[BaseModel]]:
    """Return description, schema and model of a function's arguments, without ``self``."""
    text = inspect.cleandoc(function.__doc__ or "")
    meanings = argument_meanings(text)
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for argument in list(inspect.signature(function).parameters.values())[is_method:]:
        if (
            argument.kind
            in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY)
            or argument.name not in hints
        ):
            raise TypeError(
                f"tool '{name}': expected arguments with a name and a type, got '{argument}'"
            )
        default = ... if argument.default is argument.empty else argument.default
        fields[argument.name] = (
            hints[argument.name],
            Field(default, description=meanings.get(argument.name)),
        )
    model = create_model(name, __config__=ConfigDict(strict=True, extra="forbid"), **fields)
    schema = {key: value for key, value in model.model_json_schema().items() if key != "title"}
    for described in schema.get("properties", {}).values():
        described.pop("title", None)
    return re.split(r"\n\n(?:Args|Returns|Raises):", text)[0], schema, model


def argument_meanings(text: str) -> dict[str, str]:
    """Return the meaning of each argument in a Google-style docstring."""
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", text, re.M)
    lines = re.findall(
        r"^ {4}(\w+)(?: \([^)]*\))?: (.*(?:\n {8,}.*)*)", section.group(1) if section else "", re.M
    )
    return {name: re.sub(r"\s+", " ", meaning).strip() for name, meaning in lines}


@dataclass(frozen=True)
class Scene:
    """The start of an episode.

    Attributes:
        messages: the first agent's prompt.
        tools: tools that this agent may call.
        agent: the name of the agent that speaks first.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    agent: str = LEAD


@dataclass(frozen=True)
class TextStep:
    """The answer of an environment to one message.

    Attributes:
        messages: appended to the conversation of ``agent``; at the first step that names an agent
            they are its prompt. They may be empty.
        reward: reward of this step; an episode's reward is the sum.
        done: the episode is over, and ``agent`` speaks no more.
        agent: the name of the agent that speaks next.
        tools: tools of ``agent``, at the first step that names it.
        truncated: a limit on turns ended the episode.
        metrics: figures of the episode, at its end.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = False
    agent: str = LEAD
    tools: Sequence[Tool] = ()
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class TextEnvironment(Protocol):
    """A task of a language model. One instance plays one episode at a time, in any thread."""

    def reset(self, seed: int) -> Scene:
        """Begin an episode; the same seed gives the same episode."""

    def step(self, message: Message) -> TextStep:
        """Answer the current agent's message."""


def run_tool_calls(message: Message, tools: Sequence[Tool]) -> list[Message]:
    """Return the results of a message's tool calls, in their order.

    A failed call returns its error's text.
    """
    by_name = {tool.name: tool for tool in tools}
    results: list[Message] = []
    for call in message.get("tool_calls") or []:
        name = call["function"]["name"]
        try:
            if name not in by_name:
                raise ToolError(
                    f"expected one of {', '.join(by_name) or 'no tools'}, "
                    f"got '{name[:100]}'{nearest(name, by_name)}"
                )
            text = by_name[name](call["function"]["arguments"])
        except ToolError as error:
            text = f"error: {error}"
        results.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": text})
    return results


class ToolEnvironment:
    """An environment of one agent that calls tools and ends with an answer in text.

    A subclass implements ``begin`` and ``score``.

    Args:
        max_turns: largest number of the agent's messages in an episode; the last one truncates it.
    """

    def __init__(self, max_turns: int = 8) -> None:
        self.max_turns = max_turns
        self.turns = 0
        self.scene = Scene(())

    def begin(self, seed: int) -> Scene:
        """Return the start of a seed's episode."""
        raise NotImplementedError

    def score(self, answer: str) -> float:
        """Return the reward of an answer, between 0 and 1."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return figures of the episode, at its end."""
        return {}

    def reset(self, seed: int) -> Scene:
        """Begin an episode."""
        self.turns, self.scene = 0, self.begin(seed)
        return self.scene

    def step(self, message: Message) -> TextStep:
        """Run the message's tool calls, or take its text as the answer."""
        self.turns += 1
        results = run_tool_calls(message, self.scene.tools)
        if not results:
            reward = self.score(message.get("content") or "")
            return TextStep(reward=reward, done=True, metrics=self.metrics())
        if self.turns >= self.max_turns:
            return TextStep(results, done=True, truncated=True, metrics=self.metrics())
        return TextStep(results)
