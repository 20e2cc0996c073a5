"""Adapters for foreign environments: verifiers, TRL's ``environment_factory``, Gymnasium with text.

Each class takes the foreign environment itself, or a reference ``package.module:name``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from types import SimpleNamespace
from typing import Any

from rlinf_core.agentic.environment import (
    LEAD,
    Message,
    Scene,
    TextStep,
    Tool,
    run_tool_calls,
)
from rlinf_core.core import plugins
from rlinf_core.core.errors import RlinfError, escape_ascii


def _resolve(part: Any, where: str) -> Any:
    return plugins.find("text_environments", part, {}, where) if isinstance(part, str) else part


async def _await(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _result(value: Any) -> Any:
    """Return a value, or the result of a coroutine."""
    return asyncio.run(_await(value)) if inspect.isawaitable(value) else value


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop in its own thread, shared by all episodes of the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class Verifiers:
    """An environment of verifiers (tested with 0.1.10). It runs its own loop, with us as its model.

    The environment calls the model through OpenAI's client. The adapter gives it a client whose
    answers come from ``step``. Its tools, stop conditions and rubrics run unchanged. A prompt that
    does not continue an earlier one opens another agent's conversation in the episode.
    """

    def __init__(
        self,
        *,
        environment: Any,
        options: Mapping[str, Any] | None = None,
        held_out: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        """Set up the environment.

        Args:
            environment: a verifiers Environment, or a function that makes one
            options: arguments of that function
            held_out: use the rows of its evaluation set
            timeout_s: time in which it must ask for the next message or end
        """
        part = _resolve(environment, "env.environment")
        self.environment = part(**(options or {})) if not hasattr(part, "rollout") else part
        if not (hasattr(self.environment, "rollout") and hasattr(self.environment, "rubric")):
            raise RlinfError(
                "env.environment: expected an Environment of verifiers, got "
                f"{type(self.environment).__name__}"
            )
        self.rows = (
            self.environment.get_eval_dataset() if held_out else self.environment.get_dataset()
        )
        self.timeout_s = timeout_s
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._episode: Future[Any] | None = None
        self._loop = _event_loop()

    def reset(self, seed: int) -> Scene:
        """Begin the episode of row ``seed`` of its data set."""
        if self._episode is not None and not self._episode.done():
            self._episode.cancel()
        self._events = queue.SimpleQueue()
        self._histories: dict[str, list[Any]] = {}
        self._agent = LEAD
        row = dict(self.rows[seed % len(self.rows)])
        self._episode = asyncio.run_coroutine_threadsafe(self._play(row, self._events), self._loop)
        step = self._next()
        if step.done:
            raise RlinfError(
                f"verifiers: row {seed % len(self.rows)}: expected a prompt, got the episode's end"
            )
        return Scene(step.messages, step.tools, step.agent)

    def step(self, message: Message) -> TextStep:
        """Give the message to the environment's loop; wait for its next prompt, or its end."""
        answer = self._answer
        self._histories[self._agent].append(_plain(message))
        self._loop.call_soon_threadsafe(lambda: answer.done() or answer.set_result(message))
        return self._next()

    def close(self) -> None:
        """End the episode."""
        if self._episode is not None:
            self._episode.cancel()

    async def _play(self, row: dict[str, Any], events: queue.SimpleQueue[tuple[Any, ...]]) -> None:
        async def create(**request: Any) -> Any:
            answer = asyncio.get_running_loop().create_future()
            events.put(("request", request, answer))
            return _completion(await answer, len(self._histories))

        client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
        try:
            state = await self.environment.rollout(row, client, "policy", {})
            if state.get("error") is not None:
                raise state["error"]
            await self.environment.rubric.score_rollout(state)
            events.put(("end", state))
        except Exception as error:
            events.put(("error", error))

    def _next(self) -> TextStep:
        try:
            kind, value, *rest = self._events.get(timeout=self.timeout_s)
        except queue.Empty:
            raise RlinfError(
                f"verifiers: expected a prompt or an end within {self.timeout_s:g} s, got none"
            ) from None
        if kind == "error":
            raise RlinfError(
                f"verifiers: expected an episode, got {type(value).__name__}: "
                f"{escape_ascii(value.__cause__ or value)}"
            ) from value
        if kind == "end":
            metrics = {name: float(figure) for name, figure in (value.get("metrics") or {}).items()}
            return TextStep(
                reward=float(value["reward"]),
                done=True,
                agent=self._agent,
                metrics=metrics,
                truncated=bool(value.get("is_truncated")),
            )
        self._answer = rest[0]
        messages = [_plain(message) for message in value["messages"]]
        matching = [
            agent
            for agent, history in self._histories.items()
            if messages[: len(history)] == history
        ]
        agent = max(matching, key=lambda name: len(self._histories[name]), default="")
        tools: list[Tool] = []
        if not agent:
            agent = LEAD if not self._histories else f"{LEAD}_{len(self._histories) + 1}"
            self._histories[agent] = []
            tools = [_foreign_tool(schema) for schema in value.get("tools") or []]
        new = messages[len(self._histories[agent]) :]
        self._histories[agent] = messages
        self._agent = agent
        return TextStep(new, agent=agent, tools=tools)


def _plain(message: Any) -> Any:
    """Return a message as JSON, without empty keys."""
    document = message if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    cleaned = {key: value for key, value in document.items() if value or key in ("role", "content")}
    cleaned["content"] = cleaned.get("content") or ""
    if isinstance(cleaned["content"], list):
        cleaned["content"] = "".join(part.get("text", "") for part in cleaned["content"])
    return json.loads(json.dumps(cleaned))


def _completion(message: Message, number: int) -> Any:
    """Return a message as OpenAI's client returns it."""
    content: Message = {"role": "assistant", "content": "", **message}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    document = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [{"index": 0, "message": content, "finish_reason": reason}],
    }
    try:
        from openai.types.chat import ChatCompletion
    except ImportError:  # an environment without the package gets the same attributes
        return json.loads(json.dumps(document), object_hook=lambda keys: SimpleNamespace(**keys))
    return ChatCompletion.model_validate(document)


def _foreign_tool(schema: Mapping[str, Any]) -> Tool:
    def call(**_: Any) -> str:
        raise RlinfError("a tool of a verifiers environment is run by that environment")

    function = schema.get("function", schema)
    return Tool(
        function["name"], function.get("description") or "", function.get("parameters") or {}, call
    )


class TRL:
    """An environment of TRL's ``environment_factory`` (tested with the interface of TRL 1.16).

    Its public methods are the agent's tools. ``reset`` gets a row's columns. The adapter appends
    the text that it returns to the last user message. The reward is ``get_reward`` plus those of
    the reward functions.
    """

    def __init__(
        self,
        *,
        environment: Any,
        rows: Sequence[Mapping[str, Any]] = (),
        reward_functions: Sequence[Any] = (),
        max_turns: int = 8,
    ) -> None:
        """Set up the environment.

        Args:
            environment: the factory
            rows: a data set's rows, with ``prompt`` (messages) and other columns; if empty, reset
                draws the episode
            reward_functions: TRL's, each called with one episode
            max_turns: largest number of the agent's messages
        """
        self.instance = _resolve(environment, "env.environment")()
        self.rows = list(rows) or [{"prompt": [{"role": "user", "content": ""}]}]
        self.reward_functions = [
            _resolve(function, "env.reward_functions") for function in reward_functions
        ]
        self.max_turns = max_turns
        members = dict(inspect.getmembers(type(self.instance), predicate=inspect.isfunction))
        if "reset" not in members or not ("get_reward" in members or reward_functions):
            raise RlinfError(
                f"env.environment: expected reset, and get_reward or reward_functions, got "
                f"{type(self.instance).__name__} with {', '.join(members) or 'no method'}"
            )
        names = [
            name
            for name in members
            if not name.startswith("_") and name not in ("reset", "get_reward")
        ]
        self.tools = [_method_tool(getattr(self.instance, name)) for name in names]

    def reset(self, seed: int) -> Scene:
        """Begin the episode of row ``seed``."""
        self.row = dict(self.rows[seed % len(self.rows)])
        text = _result(self.instance.reset(**self.row))
        messages: list[Any] = [dict(message) for message in self.row["prompt"]]
        if text:
            messages[-1]["content"] = f"{messages[-1]['content']}{text}"
        self.completion: list[Message] = []
        self.turns = 0
        return Scene(messages, self.tools)

    def step(self, message: Message) -> TextStep:
        """Run the message's tool calls; a message without a call ends the episode."""
        self.turns += 1
        results = run_tool_calls(message, self.tools)
        self.completion += [message, *results]
        if results and self.turns < self.max_turns:
            return TextStep(results)
        return TextStep(results, self._reward(), True, truncated=bool(results))

    def _reward(self) -> float:
        reward = (
            float(_result(self.instance.get_reward()))
            if hasattr(self.instance, "get_reward")
            else 0.0
        )
        columns = {key: [value] for key, value in self.row.items() if key != "prompt"}
        for function in self.reward_functions:
            values = _result(
                function(
                    prompts=[self.row["prompt"]],
                    completions=[self.completion],
                    environments=[self.instance],
                    **columns,
                )
            )
            reward += float(values[0] or 0.0)
        return reward


def _method_tool(method: Callable[..., Any]) -> Tool:
    tool = Tool.of(method)

    def call(**arguments: Any) -> Any:
        try:
            return _result(method(**arguments))
        except Exception as error:  # TRL returns the error to the model, too
            return json.dumps({"error": str(error)})

    return Tool(tool.name, tool.description, tool.parameters, call, tool.arguments)


class GymnasiumText:
    """A Gymnasium environment whose observations and actions are text."""

    def __init__(
        self,
        *,
        environment: Any,
        options: Mapping[str, Any] | None = None,
        instruction: str = "",
        max_turns: int = 64,
    ) -> None:
        """Set up the environment.

        Args:
            environment: an id of gymnasium, an environment, or a function that makes one
            options: arguments of that function, or of gymnasium.make
            instruction: a system message before the first observation
            max_turns: largest number of the agent's messages
        """
        if isinstance(environment, str) and ":" not in environment:
            import gymnasium

            self.environment: Any = gymnasium.make(environment, **(options or {}))
        else:
            part = _resolve(environment, "env.environment")
            self.environment = (
                part
                if hasattr(part, "observation_space") and not isinstance(part, type)
                else part(**(options or {}))
            )
        self.instruction = instruction
        self.max_turns = max_turns
        self.turns = 0

    def reset(self, seed: int) -> Scene:
        """Begin the episode of a seed."""
        observation, _ = self.environment.reset(seed=seed)
        self.turns = 0
        first: list[Message] = (
            [{"role": "system", "content": self.instruction}] if self.instruction else []
        )
        return Scene([*first, {"role": "user", "content": _text(observation)}])

    def step(self, message: Message) -> TextStep:
        """Play the message's text as the action."""
        self.turns += 1
        action = message.get("content") or ""
        observation, reward, terminated, truncated, info = self.environment.step(action)
        truncated = bool(truncated) or (self.turns >= self.max_turns and not terminated)
        done = bool(terminated) or truncated
        metrics = (
            {name: float(value) for name, value in info.items() if isinstance(value, int | float)}
            if done
            else {}
        )
        return TextStep(
            [{"role": "user", "content": _text(observation)}],
            float(reward),
            done,
            truncated=truncated,
            metrics=metrics,
        )

    def close(self) -> None:
        """Close the environment."""
        with contextlib.suppress(AttributeError):
            self.environment.close()


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise RlinfError(f"env: expected text as the observation, got {type(observation).__name__}")
    return observation
