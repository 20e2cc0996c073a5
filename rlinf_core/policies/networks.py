"""What the networks of published families share: how one is made, read from a folder, described and written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.core.extras import require
from rlinf_core.policies import peft_folder
from rlinf_core.policies.huggingface import Tokenizer, check_horizon, filled, load_weights, over, tokenizer_of
from rlinf_core.policies.statistics import Kind

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.policies.settings import PretrainedSettings, VisuomotorSettings


@dataclass(frozen=True)
class Published:
    """The contents of a checkpoint's folder, but for its weights.

    Attributes:
        config: of the network, as ``NetworkFactory.build`` takes it.
        tokenizer: of the folder.
        horizon: actions of a chunk; 0 where the folder does not say.
        state, action: statistics that normalise both; None where the folder does not say.
        settings: a policy's keys, with the folder's key and its value.
        undecided: a policy's keys that a recipe must name, since the folder does not tell; with the reason.
    """

    config: Mapping[str, Any]
    tokenizer: Tokenizer
    horizon: int = 0
    state: Kind | None = None
    action: Kind | None = None
    settings: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    undecided: Mapping[str, str] = field(default_factory=dict)

    def check_settings(self, config: PretrainedSettings | VisuomotorSettings) -> None:
        """PolicyFileError where a key that the recipe leaves out differs from the folder's.

        A key that the recipe names stays as it is there.
        """
        for key, reason in self.undecided.items():
            if key not in config.model_fields_set:
                raise PolicyFileError(f"policy.{key}: expected a value for the checkpoint {config.checkpoint}, got none. "
                                      f"{reason}")
        for key, (theirs, value) in self.settings.items():
            got = getattr(config, {"n_action_steps": "executed"}.get(key, key))
            if key not in config.model_fields_set and got != value:
                raise PolicyFileError(
                    f"policy.{key}: expected {value}, as the checkpoint {config.checkpoint} has it in config.json "
                    f"({theirs}), got {got}, the default. Set policy.{key}: {value}, or another number on purpose")


class NetworkFactory(ABC):
    """Makes one family's networks. A subclass names the family's keys and files.

    Attributes:
        kind: ``policy.kind``.
        keys_of: the document whose keys configure a network, for people.
        horizon_key: of the config, for the actions of a chunk; empty where networks have none.
        free: keys of the config below which anything may stand.
        metadata: of its safetensors file.
    """

    kind: ClassVar[str]
    keys_of: ClassVar[str]
    horizon_key: ClassVar[str] = ""
    free: ClassVar[Collection[str]] = ()
    metadata: ClassVar[Mapping[str, str] | None] = {"format": "pt"}

    @abstractmethod
    def make(self, config: Mapping[str, Any]) -> Any:
        """A network of this config, with random weights; any exception where there is none."""

    @abstractmethod
    def smallest(self) -> dict[str, Any]:
        """The config of the smallest network, with every key that a recipe may change."""

    @abstractmethod
    def read(self, folder: Path) -> Published:
        """A folder's config and tokenizer; PolicyFileError names the file that is wrong."""

    @abstractmethod
    def files(self, network: Any, tokenizer: Tokenizer) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Weights by their published names, and the text of each other file by its path."""

    def rename(self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A folder's weights by the network's names, without those that it does not use."""
        return weights

    def module_name(self, name: str, network: Any) -> str:
        """A module's name in the maker's own class of such a network, as adapters of the library peft name it."""
        return name

    def adapter_name(self, name: str, network: Any) -> str:
        """A module's name in a file of adapters, where that differs from the module's."""
        return self.module_name(name, network)

    def complete(self, config: dict[str, Any]) -> dict[str, Any]:
        """A recipe's config with the values that follow from others."""
        return config

    def describe(self, network: Any) -> Mapping[str, Any]:
        """The argument of ``build``."""
        config: Mapping[str, Any] = network.config
        return config

    def build(self, config: Mapping[str, Any]) -> Any:
        """A network of this config; PolicyFileError where there is none."""
        require("vla", f"policy.kind: {self.kind}")
        try:
            return self.make(config)
        except PolicyFileError:
            raise
        except Exception as error:  # the libraries raise many kinds
            raise PolicyFileError(f"policy.network: expected keys and values of {self.keys_of}, got: "
                                  f"{type(error).__name__}: {error}") from error

    def from_scratch(self, changes: Mapping[str, Any], horizon: int = 0) -> Any:
        """A small network with random weights; PolicyFileError names a key that its config lacks."""
        require("vla", f"policy.kind: {self.kind}")
        chunk = {self.horizon_key: horizon} if self.horizon_key else {}
        return self.build(self.complete(over(self.smallest(), {**changes, **chunk}, "policy.network",
                                             self.keys_of, self.free)))

    def begin(self, config: PretrainedSettings, horizon: int = 0) -> tuple[Any, Published]:
        """The network that training begins with: of a checkpoint, with adapters where there are some, or from scratch."""
        if not config.checkpoint:
            return self.from_scratch(config.network, horizon), Published({}, tokenizer_of(""))
        network, published = self.from_checkpoint(Path(config.checkpoint), horizon)
        published.check_settings(config)
        if config.adapters:
            peft_folder.merge(Path(config.adapters), network, self)
        return network, published

    def from_checkpoint(self, folder: Path, horizon: int = 0) -> tuple[Any, Published]:
        """The network of a folder.

        Args:
            folder: as the family publishes its own.
            horizon: actions of the policy's chunks.

        Raises:
            PolicyFileError: a file or a tensor of the folder is not as expected.
        """
        require("vla", f"policy.kind: {self.kind}")
        published = self.read(folder)
        if published.horizon:
            check_horizon(folder, published.horizon, horizon)
        network = self.build(published.config)
        return filled(network, self.rename(load_weights(folder), network.state_dict()), folder), published

    def save_folder(self, network: Any, tokenizer: Tokenizer, folder: Path) -> None:
        """Write a network as the family publishes its own."""
        from safetensors.torch import save_file

        weights, texts = self.files(network, tokenizer)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors",
                  dict(self.metadata) if self.metadata else None)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
