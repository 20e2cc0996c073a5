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
class CheckpointInfo:
    """The contents of a checkpoint's folder, except for its weights.

    Attributes:
        config: config of the network, the argument of ``NetworkFactory.build``.
        tokenizer: tokenizer of the folder.
        horizon: number of actions in a chunk; 0 if the folder does not store it.
        state_statistics, action_statistics: kinds of statistics that normalise both; None if the
            folder does not store them.
        settings: a policy's keys, with the folder's key and its value.
        required_settings: a policy's keys that a recipe must name because the folder lacks them,
            with the reason.
    """

    config: Mapping[str, Any]
    tokenizer: Tokenizer
    horizon: int = 0
    state_statistics: Kind | None = None
    action_statistics: Kind | None = None
    settings: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    required_settings: Mapping[str, str] = field(default_factory=dict)

    def check_settings(self, config: PretrainedSettings | VisuomotorSettings) -> None:
        """Raise PolicyFileError if a key that the recipe leaves out differs from the folder's.

        A key in the recipe keeps its value.
        """
        for key, reason in self.required_settings.items():
            if key not in config.model_fields_set:
                raise PolicyFileError(
                    f"policy.{key}: expected a value for the checkpoint {config.checkpoint}, got "
                    f"none. {reason}"
                )
        for key, (folder_key, value) in self.settings.items():
            actual = config.executed if key == "n_action_steps" else getattr(config, key)
            if key not in config.model_fields_set and actual != value:
                raise PolicyFileError(
                    f"policy.{key}: expected {value}, as the checkpoint {config.checkpoint} has it "
                    f"in config.json ({folder_key}), got the default {actual}. Set policy.{key}: "
                    f"{value}, or set another number on purpose"
                )


class NetworkFactory(ABC):
    """Factory of one family's networks. A subclass names the family's keys and files.

    Attributes:
        kind: ``policy.kind``.
        config_name: the document with a network's keys, for messages.
        horizon_key: the config's key for the actions of a chunk; empty if networks have none.
        free_keys: keys of the config with arbitrary content.
        metadata: metadata of its safetensors file.
    """

    kind: ClassVar[str]
    config_name: ClassVar[str]
    horizon_key: ClassVar[str] = ""
    free_keys: ClassVar[Collection[str]] = ()
    metadata: ClassVar[Mapping[str, str] | None] = {"format": "pt"}

    @abstractmethod
    def make(self, config: Mapping[str, Any]) -> Any:
        """Return a network with random weights; any exception means a bad config."""

    @abstractmethod
    def smallest_config(self) -> dict[str, Any]:
        """Return the config of the smallest network, with every key that a recipe may change."""

    @abstractmethod
    def read(self, folder: Path) -> CheckpointInfo:
        """Read a folder's config and tokenizer; a PolicyFileError names the faulty file."""

    @abstractmethod
    def folder_files(
        self, network: Any, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return weights by their published names, and the text of each other file by its path."""

    def rename_weights(
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

    def add_derived_values(self, config: dict[str, Any]) -> dict[str, Any]:
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
                f"policy.network: expected keys and values of {self.config_name}, got: "
                f"{type(error).__name__}: {error}"
            ) from error

    def from_scratch(self, changes: Mapping[str, Any], horizon: int = 0) -> Any:
        """Return a small network with random weights.

        Raises:
            PolicyFileError: the config lacks a key of ``changes``.
        """
        require("vla", f"policy.kind: {self.kind}")
        if self.horizon_key:
            changes = {**changes, self.horizon_key: horizon}
        config = merge_settings(
            self.smallest_config(), changes, "policy.network", self.config_name, self.free_keys
        )
        return self.build(self.add_derived_values(config))

    def from_checkpoint(self, folder: Path, horizon: int = 0) -> tuple[Any, CheckpointInfo]:
        """Return the network of a folder, and the folder's other contents.

        Args:
            folder: a folder in the family's published format.
            horizon: number of actions in the policy's chunks.

        Raises:
            PolicyFileError: a file or a tensor of the folder is not as expected.
        """
        require("vla", f"policy.kind: {self.kind}")
        info = self.read(folder)
        if info.horizon:
            check_horizon(folder, info.horizon, horizon)
        network = self.build(info.config)
        weights = self.rename_weights(load_weights(folder), network.state_dict())
        return load_into(network, weights, folder), info

    def initial_network(
        self, config: PretrainedSettings, horizon: int = 0
    ) -> tuple[Any, CheckpointInfo]:
        """Return the network of a recipe: from scratch, or of a checkpoint with its adapters."""
        if not config.checkpoint:
            network = self.from_scratch(config.network, horizon)
            return network, CheckpointInfo({}, make_tokenizer(""))
        network, info = self.from_checkpoint(Path(config.checkpoint), horizon)
        info.check_settings(config)
        if config.adapters:
            adapter_files.merge(Path(config.adapters), network, self)
        return network, info

    def save_folder(self, network: Any, tokenizer: Tokenizer, folder: Path) -> None:
        """Write a network in the family's published format."""
        from safetensors.torch import save_file

        weights, texts = self.folder_files(network, tokenizer)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in weights.items()},
            folder / "model.safetensors",
            dict(self.metadata) if self.metadata else None,
        )
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
