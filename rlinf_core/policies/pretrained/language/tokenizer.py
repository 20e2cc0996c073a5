"""Messages to tokens and back, by a checkpoint's tokenizer and chat template, or by bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained.huggingface import read_json, read_text

ROLES = ("system", "user", "assistant", "tool")
PROMPTS = 4096  # size of the cache of prompts
END, CALL = "<|end|>", "<|call|>"  # tokens of networks from scratch
OF_BYTES = (
    "{% if tools %}<|system|>{% if tools | selectattr('function.description') | list %}{{ tools | "
    "tojson }}{% else %}{{ tools | map(attribute='function.name') | join(',') }}{% endif "
    "%}<|end|>{% endif %}{% for message in messages %}<|{{ message.role }}|>{{ message.content or "
    "'' }}{% for call in message.tool_calls or [] %}<|call|>{{ call.function.name }}{{ "
    "call.function.arguments }}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt "
    "%}<|assistant|>{% endif %}"
)
COMPACT = re.compile(re.escape(CALL) + r"(\w+)(.*?)(?=" + re.escape(CALL) + r"|\Z)", re.S)
HERMES = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.S)  # Qwen, SmolLM, Hermes


class ChatTokenizer:
    """A tokenizer of the library tokenizers with a chat template in Jinja.

    Args:
        text: a tokenizer.json.
        template: the chat template.
        stop: the tokens, as text, that end a message of the model.
    """

    def __init__(self, text: str, template: str, stop: Sequence[str]) -> None:
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        self.text = text
        self.template = template
        self.stop = tuple(stop)
        self._tokenizer = Tokenizer.from_str(text)
        self._chat = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(text), chat_template=template
        )
        self.size: int = self._tokenizer.get_vocab_size()
        token_ids = (self._tokenizer.token_to_id(token) for token in stop)
        ids = [token_id for token_id in token_ids if token_id is not None]
        if not ids or len(ids) < len(stop):
            raise PolicyFileError(
                "tokenizer: expected stop tokens of its vocabulary, got "
                f"{', '.join(stop) or 'none'}"
            )
        self.stop_ids: tuple[int, ...] = tuple(ids)
        self._prompts: dict[str, list[int]] = {}
        self._special = [
            added.content for added in self._tokenizer.get_added_tokens_decoder().values()
        ]

    @classmethod
    def of_bytes(cls) -> ChatTokenizer:
        """Return the tokenizer of networks from scratch: a token for each byte and each role."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(
            models.BPE({letter: index for index, letter in enumerate(alphabet)}, [])
        )
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(
            [
                AddedToken(token, normalized=False)
                for token in (END, CALL, *(f"<|{role}|>" for role in ROLES))
            ]
        )
        return cls(tokenizer.to_str(), OF_BYTES, (END,))

    @classmethod
    def of_folder(cls, folder: Path) -> ChatTokenizer:
        """Return the tokenizer of a Hugging Face folder.

        Raises:
            PolicyFileError: the folder has no chat template or no stop token.
        """
        described = read_json(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        template = (
            read_text(template_file) if template_file.is_file() else described.get("chat_template")
        )
        if not isinstance(template, str):
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected a chat template (chat_template.jinja, or "
                "chat_template in tokenizer_config.json), found none. Take an instruct model"
            )
        eos = described.get("eos_token")
        stop = [eos["content"] if isinstance(eos, dict) else eos] if eos else []
        return cls(read_text(folder / "tokenizer.json"), template, stop)

    def describe(self) -> dict[str, Any]:
        """Return the argument of ``of``."""
        return {"text": self.text, "template": self.template, "stop": list(self.stop)}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> ChatTokenizer:
        """Rebuild the tokenizer from the result of ``describe``."""
        return cls(described["text"], described["template"], described["stop"])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a rendered text; special tokens keep their meaning."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return text with special tokens; ids beyond the vocabulary are dropped.

        A network may draw such ids.
        """
        valid = [token for token in tokens if token < self.size]
        return str(self._tokenizer.decode(valid, skip_special_tokens=False))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        generate: bool = True,
    ) -> str:
        """Return the text of messages; ``generate`` adds the header of the model's next message."""
        schemas: list[Any] = list(tools)
        return str(
            self._chat.apply_chat_template(
                [self._plain(message) for message in messages],
                tools=schemas or None,
                tokenize=False,
                add_generation_prompt=generate,
            )
        )

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids of a conversation's beginning, cached for the conversations of a group."""
        key = json.dumps([list(messages), list(tools)])
        if key not in self._prompts:
            if len(self._prompts) >= PROMPTS:
                self._prompts.clear()
            self._prompts[key] = self.encode(self.render(messages, tools))
        return list(self._prompts[key])

    def continuation(
        self,
        before: Sequence[Mapping[str, Any]],
        new: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int] | None:
        """Return the ids of ``new`` messages, to follow the model's last message.

        A stop token ended that message.

        Returns:
            None if the template rewrites ``before`` once ``new`` follows it. The row's ids so far
            are then no prefix of the whole, and a new row begins.
        """
        first = self.render(before, tools, generate=False)
        text = self.render([*before, *new], tools)
        if not text.startswith(first):
            return None
        ends = [first.rfind(token) + len(token) for token in self.stop if token in first]
        tail = first[max(ends) :] if ends else ""
        return self.encode(("" if tail.strip() else tail) + text[len(first) :])

    def message(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the message that the model wrote, with its tool calls in OpenAI's form."""
        text = self.decode(tokens)
        for token in self.stop:
            text = text.removesuffix(token)
        pattern = COMPACT if CALL in text else HERMES
        calls = [call for match in pattern.finditer(text) if (call := _call(match.groups()))]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": pattern.sub("", text) if calls else text,
        }
        if calls:
            message["tool_calls"] = [
                {"id": f"call_{index}", "type": "function", "function": call}
                for index, call in enumerate(calls)
            ]
        return message

    def _plain(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Remove special tokens from a message's content.

        A tool's result must not pose as a message.
        """
        content = message.get("content") or ""
        if message.get("role") != "assistant":
            for token in self._special:
                if token in content:
                    content = content.replace(token, f"{token[:1]} {token[1:]}")
        return {**message, "content": content}


def _call(parts: tuple[str, ...]) -> dict[str, str] | None:
    """Return name and arguments of a call; None if a Hermes call is no JSON object with a name."""
    if len(parts) == 2:
        return {"name": parts[0], "arguments": parts[1].strip()}
    try:
        document = json.loads(parts[0])
        name, arguments = document["name"], document.get("arguments", {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return {
        "name": str(name),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
    }
