"""Settings of a run in conversations: the recipe's section ``text``."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rlinf_core.config.base import Settings
from rlinf_core.core.machine import is_loopback

FEEDBACK = "feedback"  # env: text:feedback, a run that learns from editors' feedback


class WarmStart(Settings):
    """Supervised fine-tuning on the task's own examples, before reinforcement learning."""

    steps: int = Field(0, ge=0, description="gradient steps at most; 0 for no warm start")
    batch_size: int = Field(256, gt=0, description="examples a step")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="of Adam")
    until: float = Field(1.0, gt=0, le=1, description="success on scenes of training, measured every "
                         "five steps, at which it ends")


class FeedbackServer(Settings):
    """Completions for editors: with ``env: text:feedback`` the policy learns from what they accept."""

    host: str = Field("127.0.0.1", min_length=1, description="address of the server; it speaks HTTP, so "
                      "on a network a proxy with TLS stands in front")
    port: int = Field(8010, ge=0, le=65535, description="of the server; 0 takes a free one")
    clients: tuple[str, ...] = Field(("editor",), min_length=1, description="names; each has its token in the "
                               "run folder's clients/NAME.token")
    max_age_hours: float = Field(24.0, gt=0, description="in which feedback of a completion counts")
    examples: str = Field("", description="JSON lines with prompt and completion, which text.warm_start "
                          "clones")

    @field_validator("host")
    @classmethod
    def _is_of_this_machine(cls, host: str) -> str:
        if not is_loopback(host):
            raise ValueError(f"expected an address of this machine alone, such as 127.0.0.1, got {host!r}: tokens would "
                             "cross the network in the clear. Put a proxy with TLS in front")
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
        "in_process", description="in_process: the trainer's own network draws tokens; openai: a server "
        "with OpenAI's completions, token ids and log-probabilities (vLLM, SGLang)")
    address: str = Field("", pattern=r"^(https?://[^\s]+)?$", description="of such a server")
    engine_options: dict[str, bool | int | float | str] = Field(
        {}, description="of the server's client, by name: {model: NAME, folder: PATH, kind: vllm, "
        "concurrency: 64, timeout_s: 600, key_variable: NAME of the environment variable with the key}")
    options: dict[str, Any] = Field({}, description="of the task: {max_turns: 4}")
    max_new_tokens: int = Field(256, gt=0, description="of one message; a longer one is truncated, "
                                "which ends its conversation without a reward")
    max_tokens: int = Field(2048, gt=1, description="of one row, prompt and tools' results included")
    concurrency: int = Field(0, ge=0, description="conversations at a time; 0 for as many as a rollout "
                             "and, with max_staleness, those behind it need")
    slice_tokens: int = Field(0, ge=0, description="tokens that a message grows by between two looks "
                              "at the newest policy; 0 for whole messages")
    max_staleness: int = Field(0, ge=0, description="updates by which the weights that drew a token "
                               "may be older than those that learn from it; older conversations "
                               "begin anew. 0: each rollout is of the newest weights alone")
    recorded: int = Field(16, ge=0, description="conversations of each rollout and of each evaluation "
                          "that are written to the run's conversations folder")
    warm_start: WarmStart = WarmStart()
    feedback: FeedbackServer = FeedbackServer()

    @model_validator(mode="after")
    def _has_an_address(self) -> Text:
        if (self.engine == "openai") != bool(self.address):
            raise ValueError("address: expected http://host:port/v1 with engine openai, and nothing "
                             f"elsewhere; got engine {self.engine}, address '{self.address}'")
        if self.engine_options and self.engine != "openai":
            raise ValueError(f"engine_options: expected none with engine {self.engine}, got "
                             f"{', '.join(self.engine_options)}")
        return self
