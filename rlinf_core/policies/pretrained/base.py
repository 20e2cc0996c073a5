"""The base class of policies with a published vision-language model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.base import Batch, OnPolicyActor
from rlinf_core.policies.lora import is_base_weight
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.tokenization import (
    Tokenizer,
    decode_instruction,
    make_tokenizer,
)
from rlinf_core.policies.settings import PretrainedSettings
from rlinf_core.specs.arrays import StationSpec


class VisionLanguagePolicy(OnPolicyActor):
    """A policy that reads images and a sentence; its weights come from a checkpoint's folder.

    A subclass adds its parts to the network, then the adapters (``lora.inject_adapters``).

    Args:
        spec: specs of the station.
        config: settings of the policy.
        network: the network; None to read or make that of ``config``.
        tokenizer: the tokenizer of ``network``.

    Attributes:
        name: name in messages, with its article.
        factory: factory of its networks.
        checkpoint_info: contents of the checkpoint's folder; empty without a folder.
    """

    config: PretrainedSettings
    reads_instructions = needs_instruction = uses_images = True
    name: ClassVar[str]
    factory: ClassVar[NetworkFactory]

    def __init__(
        self,
        spec: StationSpec,
        config: PretrainedSettings,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config)
        if not spec.images:
            raise SpecError(
                f"policy.kind: expected at least one camera for {self.name}, got none. Name some "
                "in station.observe_cameras"
            )
        self.checkpoint_info = CheckpointInfo({}, tokenizer or make_tokenizer(""))
        if network is None:
            network, self.checkpoint_info = self.factory.initial_network(config, config.horizon)
        self.network: Any = network
        self.tokenizer = self.checkpoint_info.tokenizer
        self._prompt_tokens: dict[bytes, list[int]] = {}

    @classmethod
    def rebuild(
        cls, spec: StationSpec, config: Any, described: Mapping[str, Any]
    ) -> VisionLanguagePolicy:
        """Rebuild the policy from the values of ``describe``, without access to its checkpoint."""
        return cls(
            spec,
            config,
            cls.factory.build(described["network"]),
            make_tokenizer(described["tokenizer"]),
        )

    def describe(self) -> dict[str, Any]:
        """Return the description with network and tokenizer; a station needs only this file."""
        return super().describe() | {
            "network": self.factory.describe(self.network),
            "tokenizer": self.tokenizer.text,
        }

    def is_frozen(self, name: str) -> bool:
        """See ``NetworkPolicy``: the weights under adapters."""
        return bool(self.config.lora.rank) and is_base_weight(name)

    @abstractmethod
    def inputs(self, batch: Batch) -> Batch:
        """Return the network's inputs for observations."""

    @abstractmethod
    def prompt_tokens(self, sentence: str) -> list[int]:
        """Return the tokens of a sentence, independent of other sentences."""

    def tokenize(self, sentences: Tensor) -> list[list[int]]:
        """Return the tokens of sentences (B, bytes), from a cache, because sentences repeat."""
        rows = [bytes(row) for row in sentences.numpy(force=True)]
        for row in set(rows) - self._prompt_tokens.keys():
            self._prompt_tokens[row] = self.prompt_tokens(decode_instruction(row, self.name))
        return [self._prompt_tokens[row] for row in rows]
