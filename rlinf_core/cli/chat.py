"""``rlinf chat``: a conversation with a trained language policy, in a scene or with a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.core.errors import PolicyFileError, RlinfError, escape_control
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.conversations import describe_conversation

if TYPE_CHECKING:
    from rlinf_core.agentic.environment import Message, Scene, TextStep, Tool


class HumanReplies:
    """An environment in which a person writes messages until an empty line or the end of input.

    Args:
        read: returns the person's next line; None at the end.
        write: receives the policy's answers.
        tools: tools that the policy may call.
    """

    def __init__(
        self,
        read: Callable[[], str | None],
        write: Callable[[str], None],
        tools: tuple[Tool, ...] = (),
    ) -> None:
        self.read = read
        self.write = write
        self.tools = tools

    def reset(self, seed: int) -> Scene:
        """Return the first message."""
        from rlinf_core.agentic.environment import Scene

        return Scene([{"role": "user", "content": self.read() or ""}], self.tools)

    def step(self, message: Message) -> TextStep:
        """Run the called tools, or show the answer and read the next message."""
        from rlinf_core.agentic.environment import TextStep, run_tool_calls

        if results := run_tool_calls(message, self.tools):
            return TextStep(results)
        self.write(message.get("content") or "")
        if line := self.read():
            return TextStep([{"role": "user", "content": line}])
        return TextStep(done=True)


def chat_command(folder: Path, scene: int | None, temperature: float) -> int:
    """Play a scene of the run's task, or talk with its newest policy.

    Print the conversation with tokens and reward.
    """
    from rlinf_core.agentic.conversation import Conversation, ConversationLimits
    from rlinf_core.agentic.engines.in_process import InProcessEngine
    from rlinf_core.agentic.tasks import text_task
    from rlinf_core.policies.policy_folder import newest_policy
    from rlinf_core.policies.serialization import load_policy

    if not (folder / "recipe.yaml").is_file():
        raise RlinfError(
            f"{folder}: expected the folder of a run of rlinf train, found no recipe.yaml in it"
        )
    recipe = load_recipe(folder / "recipe.yaml")
    if not recipe.text_task:
        raise RlinfError(
            f"{folder}: expected a run with env text:TASK, got "
            f"'{recipe.env or recipe.station.task}' (a robot). For that policy use rlinf eval"
        )
    policy: Any = load_policy(newest_policy(folder))
    if not hasattr(policy, "tokenizer"):
        raise PolicyFileError(f"{folder}: expected a language policy, got {policy.config.kind}")
    task = text_task(recipe.text_task, recipe.text.options)()
    limits = ConversationLimits(recipe.text.max_new_tokens, recipe.text.max_tokens, 0, temperature)
    if scene is None:
        print("write a message; an empty line ends the conversation", flush=True)
        task = HumanReplies(
            _line, lambda text: print(escape_control(text), flush=True), tuple(task.reset(0).tools)
        )
    conversation = Conversation(task, policy.tokenizer, limits, scene or 0, scene or 0)
    engine = InProcessEngine(policy)
    while not conversation.finished:
        conversation.take(engine.generate([conversation.request()])[0])
    for line in describe_conversation(conversation.record()):
        print(escape_control(line))
    return 0


def _line() -> str | None:
    try:
        return input("> ")
    except EOFError:
        return None
