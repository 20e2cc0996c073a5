"""Shared parts of published networks: make, read from a folder, describe and write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.core.extras import require
from rlinf_core.policies.pretrained import adapter_files
from rlinf_core.policies.pretrained.dataset_statistics import Kind
from rlinf_core.policies.pretrained.huggingface import (
    check_horizon,
    load_into,
    load_weights,
    merge_settings,
)
from rlinf_core.policies.pretrained.tokenization import Tokenizer, make_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.policies.settings import PretrainedSettings, VisuomotorSettings


@dataclass(frozen=True)
class Published:
    """The contents of a checkpoint's folder, except for its weights.

    Attributes:
        config: config of the network, an argument of ``NetworkFactory.build``.
        tokenizer: tokenizer of the folder.
        horizon: number of actions in a chunk; 0 if the folder has none.
        state, action: statistics that normalise both; None if the folder has none.
        settings: a policy's keys, with the folder's key and its value.
        undecided: a policy's keys that a recipe must name because the folder lacks them; with the
            reason.
    """

    config: Mapping[str, Any]
    tokenizer: Tokenizer
    horizon: int = 0
    state: Kind | None = None
    action: Kind | None = None
    settings: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    undecided: Mapping[str, str] = field(default_factory=dict)

    def check_settings(self, config: PretrainedSettings | VisuomotorSettings) -> None:
        """Raise PolicyFileError if a key that the recipe leaves out differs from the folder's.

        A key in the recipe keeps its value.
        """
        for key, reason in self.undecided.items():
            if key not in config.model_fields_set:
                raise PolicyFileError(
                    f"policy.{key}: expected a value for the checkpoint {config.checkpoint}, got "
                    f"none. {reason}"
                )
        for key, (published, value) in self.settings.items():
            actual = getattr(config, {"n_action_steps": "executed"}.get(key, key))
            if key not in config.model_fields_set and actual != value:
                raise PolicyFileError(
                    f"policy.{key}: expected {value}, as the checkpoint {config.checkpoint} has it "
                    f"in config.json ({published}), got the default {actual}. Set policy.{key}: "
                    f"{value}, or set another number on purpose"
                )


class NetworkFactory(ABC):
    """Factory of one family's networks. A subclass names the family's keys and files.

    Attributes:
        kind: ``policy.kind``.
        keys_of: the document with a network's keys, for messages.
        horizon_key: the config's key for the actions of a chunk; empty if networks have none.
        free: keys of the config with arbitrary content.
        metadata: metadata of its safetensors file.
    """

    kind: ClassVar[str]
    keys_of: ClassVar[str]
    horizon_key: ClassVar[str] = ""
    free: ClassVar[Collection[str]] = ()
    metadata: ClassVar[Mapping[str, str] | None] = {"format": "pt"}

    @abstractmethod
    def make(self, config: Mapping[str, Any]) -> Any:
        """Return a network with random weights; any exception means a bad config."""

    @abstractmethod
    def smallest(self) -> dict[str, Any]:
        """Return the config of the smallest network, with every key that a recipe may change."""

    @abstractmethod
    def read(self, folder: Path) -> Published:
        """Read a folder's config and tokenizer; a PolicyFileError names the faulty file."""

    @abstractmethod
    def files(self, network: Any, tokenizer: Tokenizer) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return weights by their published names, and the text of each other file by its path."""

    def rename(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return a folder's weights by the network's names, without those that it does not use."""
        return weights

    def module_name(self, name: str, network: Any) -> str:
        """Return a module's name in the maker's own class, the name that the library peft uses."""
        return name

    def adapter_name(self, name: str, network: Any) -> str:
        """Return a module's name in a file of adapters, if that differs from the module's."""
        return self.module_name(name, network)

    def complete(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a recipe's config with its derived values."""
        return config

    def describe(self, network: Any) -> Mapping[str, Any]:
        """Return the argument of ``build``."""
        config: Mapping[str, Any] = network.config
        return config

    def build(self, config: Mapping[str, Any]) -> Any:
        """Return a network of this config; raise PolicyFileError if the config is invalid."""
        require("vla", f"policy.kind: {self.kind}")
        try:
            return self.make(config)
        except PolicyFileError:
            raise
        except Exception as error:  # the libraries raise many kinds
            raise PolicyFileError(
                f"policy.network: expected keys and values of {self.keys_of}, got: "
                f"{type(error).__name__}: {error}"
            ) from error

    def from_scratch(self, changes: Mapping[str, Any], horizon: int = 0) -> Any:
        """Return a small network with random weights.

        Raises:
            PolicyFileError: the config lacks a key of ``changes``.
        """
        require("vla", f"policy.kind: {self.kind}")
        chunk = {self.horizon_key: horizon} if self.horizon_key else {}
        return self.build(
            self.complete(
                merge_settings(
                    self.smallest(), {**changes, **chunk}, "policy.network", self.keys_of, self.free
                )
            )
        )

    def begin(self, config: PretrainedSettings, horizon: int = 0) -> tuple[Any, Published]:
        """Return the initial network, from scratch or of a checkpoint with optional adapters."""
        if not config.checkpoint:
            return self.from_scratch(config.network, horizon), Published({}, make_tokenizer(""))
        network, published = self.from_checkpoint(Path(config.checkpoint), horizon)
        published.check_settings(config)
        if config.adapters:
            adapter_files.merge(Path(config.adapters), network, self)
        return network, published

    def from_checkpoint(self, folder: Path, horizon: int = 0) -> tuple[Any, Published]:
        """Return the network of a folder.

        Args:
            folder: a folder in the family's published format.
            horizon: number of actions in the policy's chunks.

        Raises:
            PolicyFileError: a file or a tensor of the folder is not as expected.
        """
        require("vla", f"policy.kind: {self.kind}")
        published = self.read(folder)
        if published.horizon:
            check_horizon(folder, published.horizon, horizon)
        network = self.build(published.config)
        return load_into(
            network, self.rename(load_weights(folder), network.state_dict()), folder
        ), published

    def save_folder(self, network: Any, tokenizer: Tokenizer, folder: Path) -> None:
        """Write a network in the family's published format."""
        from safetensors.torch import save_file

        weights, texts = self.files(network, tokenizer)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in weights.items()},
            folder / "model.safetensors",
            dict(self.metadata) if self.metadata else None,
        )
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
