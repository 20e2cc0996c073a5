"""Settings of a run in conversations: the recipe's section ``text``."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlinf_core.config.base import FreeOptions, Settings
from rlinf_core.core.connections import is_loopback

FEEDBACK = "feedback"  # env: text:feedback, a run that learns from editors' feedback


class WarmStart(Settings):
    """Supervised fine-tuning on the task's own examples, before reinforcement learning."""

    steps: int = Field(0, ge=0, description="largest number of gradient steps. 0 has no warm start")
    batch_size: int = Field(256, gt=0, description="examples of each gradient step")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="learning rate of Adam")
    until: float = Field(
        1.0,
        gt=0,
        le=1,
        description="success on training scenes at which the "
        "warm start ends. It is measured every five steps, and every step from half of it on",
    )
    scenes: int = Field(
        200,
        ge=4,
        description="training scenes that measure this success. The first quarter alone is played "
        "while it is far from enough",
    )


class FeedbackServer(Settings):
    """Completions for editors: with ``env: text:feedback`` the policy learns from what they
    accept.
    """

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address of the HTTP server. On a network put a proxy with TLS in front",
    )
    port: int = Field(8010, ge=0, le=65535, description="port of the server. 0 takes a free one")
    clients: tuple[str, ...] = Field(
        ("editor",),
        min_length=1,
        description="names of the clients. Each has a token in clients/NAME.token of the run "
        "folder",
    )
    max_age_hours: float = Field(24.0, gt=0, description="largest age of feedback that counts [h]")
    examples: str = Field(
        "", description="file of JSON lines with prompt and completion for text.warm_start"
    )

    @field_validator("host")
    @classmethod
    def _is_of_this_machine(cls, host: str) -> str:
        if not is_loopback(host):
            raise ValueError(
                f"expected a loopback address such as 127.0.0.1, got {host!r}. Tokens would cross "
                "the network unencrypted. Put a proxy with TLS in front"
            )
        return host

    @field_validator("clients")
    @classmethod
    def _are_file_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name, re.ASCII):
                raise ValueError(f"expected names of letters, digits, - and _, got {name!r}")
        if len(set(names)) < len(names):
            raise ValueError("expected each name once")
        return names


class Text(Settings):
    """Conversations of a language model: how they are drawn, and how far behind the learner."""

    engine: Literal["in_process", "openai"] = Field(
        "in_process",
        description="engine that samples tokens. `in_process` is the trainer's own network. "
        "`openai` is a server of OpenAI's protocol with token ids and "
        "log-probabilities (vLLM, SGLang)",
    )
    address: str = Field(
        "", pattern=r"^(https?://[^\s]+)?$", description="address of the `openai` engine"
    )
    engine_options: dict[str, bool | int | float | str] = Field(
        {},
        description="options of the engine's client. Example: {model: NAME, folder: PATH, "
        "kind: vllm, concurrency: 64, timeout_s: 600, key_variable: NAME}. "
        "key_variable names the environment variable with the key",
    )
    options: FreeOptions = Field({}, description="options of the task. Example: {max_turns: 4}")
    max_new_tokens: int = Field(
        256,
        gt=0,
        description="largest length of one message [tokens]. A longer one is cut. Its conversation "
        "then ends without a reward",
    )
    max_tokens: int = Field(
        2048,
        gt=1,
        description="largest length of a conversation [tokens]. Prompt and tools' results count",
    )
    concurrency: int = Field(
        0,
        ge=0,
        description="conversations at a time. 0 plays as many as a rollout and max_staleness need",
    )
    slice_tokens: int = Field(
        0,
        ge=0,
        description="tokens of a message between two checks for a "
        "newer policy. 0 draws whole messages",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="largest age of the weights that drew a token [updates]. Older conversations "
        "begin anew. 0 uses the newest weights alone",
    )
    recorded: int = Field(
        16,
        ge=0,
        description="recorded conversations of each rollout and each "
        "evaluation, in the run's folder conversations",
    )
    warm_start: WarmStart = WarmStart()
    feedback: FeedbackServer = FeedbackServer()

    @model_validator(mode="after")
    def _has_an_address(self) -> Text:
        if (self.engine == "openai") != bool(self.address):
            raise ValueError(
                "address: expected http://host:port/v1 with engine openai, and nothing "
                f"elsewhere; got engine {self.engine}, address '{self.address}'"
            )
        if self.engine_options and self.engine != "openai":
            raise ValueError(
                f"engine_options: expected none with engine {self.engine}, got "
                f"{', '.join(self.engine_options)}"
            )
        return self
