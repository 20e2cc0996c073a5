"""Shared parts of ACT and Diffusion Policy: LeRobot's folder, its statistics, and cloning.

A network's description is LeRobot's own config.json, with the station's ``input_features`` and
``output_features``. A station without cameras gives its vector twice, as ``observation.state`` and
as ``observation.environment_state``, because LeRobot's classes need images or the latter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlinf_core.core.errors import PolicyFileError, SpecError, escape_ascii
from rlinf_core.policies.base import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.encoder import IMAGENET_MEAN, IMAGENET_STD
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.pretrained import lerobot
from rlinf_core.policies.pretrained.dataset_statistics import (
    ActionUnits,
    FixedNormalisation,
    Kind,
    image_centre_and_spread,
    load_statistics,
)
from rlinf_core.policies.pretrained.huggingface import (
    check_horizon,
    load_into,
    load_weights,
    merge_settings,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo
from rlinf_core.policies.pretrained.resnet import LAYERS
from rlinf_core.policies.pretrained.tokenization import make_tokenizer
from rlinf_core.policies.settings import VisuomotorSettings
from rlinf_core.specs.arrays import StationSpec

STATE = "observation.state"
ENVIRONMENT = "observation.environment_state"
ACTION = "action"
IMAGE_PREFIX = "observation.image"
PREFIX = {"act": "model.", "diffusion": "diffusion."}  # prefixes of LeRobot's names of weights
COMPILED = "_orig_mod."
Features = Mapping[str, Mapping[str, Any]]


def station_features(spec: StationSpec) -> dict[str, Any]:
    """Return a station's ``input_features`` and ``output_features`` in LeRobot's format."""
    state = {"type": "STATE", "shape": [spec.vector_size]}
    images = {
        f"observation.images.{image.name}": {"type": "VISUAL", "shape": [3, *image.shape[:2]]}
        for image in spec.images
    }
    environment = {} if images else {ENVIRONMENT: {"type": "ENV", "shape": [spec.vector_size]}}
    return {
        "input_features": {STATE: state, **images, **environment},
        "output_features": {ACTION: {"type": "ACTION", "shape": [spec.action.dim]}},
    }


def feature_size(document: Mapping[str, Any], name: str) -> int:
    """Return the numbers in a feature; 0 without it."""
    feature = {**document["input_features"], **document["output_features"]}.get(name)
    return feature["shape"][0] if feature else 0


def image_shapes(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return height and width of each camera's images."""
    return [
        tuple(feature["shape"][1:])
        for name, feature in document["input_features"].items()
        if name.startswith(IMAGE_PREFIX)
    ]


def check_features(folder: Path, document: Mapping[str, Any]) -> None:
    """Raise PolicyFileError if features of a config.json are unknown or not in LeRobot's format."""
    for key, sides in (("input_features", (STATE, ENVIRONMENT)), ("output_features", (ACTION,))):
        where = f"policy.checkpoint {folder}: expected {key} in config.json"
        if not isinstance(document[key], Mapping):
            raise PolicyFileError(f"{where} as a map, got {escape_ascii(document[key])[:80]}")
        for name, feature in document[key].items():
            size = 3 if name.startswith(IMAGE_PREFIX) else 1
            if name not in sides and (size == 1 or key != "input_features"):
                raise PolicyFileError(
                    f"{where} among {', '.join(sides)} and images, got '{escape_ascii(name)[:80]}'"
                )
            shape = feature.get("shape") if isinstance(feature, Mapping) else None
            if (
                not isinstance(shape, list | tuple)
                or len(shape) != size
                or not all(type(side) is int for side in shape)
            ):
                raise PolicyFileError(
                    f"{where} with a shape of {size} numbers for {name}, got "
                    f"{escape_ascii(feature)[:80]}"
                )


class ImageNormalisation(nn.Module):
    """Images {camera: (B, H, W, 3) uint8} to network inputs, normalised per camera."""

    mean: Tensor
    std: Tensor

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).repeat(len(names), 1)[:, :, None, None])

    def forward(self, batch: Batch) -> list[Tensor]:
        """Return (B, 3, H, W) for each camera."""
        return [
            (batch[name].permute(0, 3, 1, 2).float() / 255.0 - self.mean[index]) / self.std[index]
            for index, name in enumerate(self.names)
        ]


class Visuomotor(NetworkPolicy):
    """Base class of ACT and Diffusion Policy; a subclass defines the network.

    Attributes:
        horizon_key: LeRobot's key for the actions of a chunk.
        needed: further keys that a folder must have.
        smallest: LeRobot's keys of the network, with the values of a network from scratch.
        supported: keys with a single supported value.
        optional: keys of ``smallest`` that older folders lack; its values are LeRobot's defaults.
        statistics_kind: the statistics of state and action without a checkpoint's folder.
        state_divisor: divisor of a normalised state.
    """

    config: VisuomotorSettings
    uses_images = True
    horizon_key: ClassVar[str]
    needed: ClassVar[tuple[str, ...]] = ()
    smallest: ClassVar[Mapping[str, Any]]
    supported: ClassVar[Mapping[str, Any]] = {}
    optional: ClassVar[frozenset[str]] = frozenset({"pretrained_backbone_weights"})
    statistics_kind: ClassVar[Kind]
    state_divisor: ClassVar[float] = 1.0

    def __init__(self, spec: StationSpec, config: VisuomotorSettings, network: Any = None) -> None:
        super().__init__(spec, config)
        is_new, has_statistics = network is None, bool(config.statistics)
        kinds: tuple[Kind, Kind, Kind] = self.statistics_kind, self.statistics_kind, "deviations"
        cameras = tuple(image.name for image in spec.images)
        self.normalisation = (FixedNormalisation if has_statistics else Normalisation)(spec)
        self.units = ActionUnits(spec.action, has_statistics)
        if is_new and config.checkpoint:
            network, kinds, cameras = self._read_checkpoint(Path(config.checkpoint))
        elif is_new:
            network = self._build(self._new_document())
        # the names of both are part of the weights' names in policy files
        self.network, self.pictures = network.eval(), ImageNormalisation(cameras)
        if is_new and has_statistics:
            self._load_statistics(Path(config.statistics), kinds)

    def _new_document(self) -> dict[str, Any]:
        """Return the config.json of a network from scratch."""
        document = merge_settings(
            self.smallest, self.config.network, "policy.network", f"LeRobot's {self.config.kind}"
        )
        return {**document, **station_features(self.spec), **self.keys_of_settings(document)}

    def _load_statistics(self, path: Path, kinds: tuple[Kind, Kind, Kind]) -> None:
        """Set the normalisation of state, actions and images from a file of statistics."""
        sizes = self.spec.vector_size, self.spec.action.dim
        load_statistics(path, kinds[:2], self.spec, sizes, self.normalisation, self.units)
        for index, camera in enumerate(self.pictures.names):
            centre, spread = image_centre_and_spread(path, camera, kinds[2])
            self.pictures.mean[index, :, 0, 0] = torch.from_numpy(centre)
            self.pictures.std[index, :, 0, 0] = torch.from_numpy(spread)

    @classmethod
    def rebuild(cls, spec: StationSpec, config: Any, described: Mapping[str, Any]) -> Visuomotor:
        """Rebuild the policy from the values of ``describe``, without access to its checkpoint."""
        policy = cls(spec, config, cls._build(described["network"]))
        policy.pictures.names = tuple(described["cameras"])
        return policy

    def describe(self) -> dict[str, Any]:
        """Return the description with the network's config."""
        return super().describe() | {
            "network": self.network.config,
            "cameras": list(self.pictures.names),
        }

    def train(self, mode: bool = True) -> Visuomotor:
        """Keep the network in inference mode.

        Batch statistics are not learned anew, and only a loss uses dropout.
        """
        super().train(mode)
        self.network.eval()
        return self

    @abstractmethod
    def keys_of_settings(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return LeRobot's keys by the policy's settings, for a network from scratch."""

    @classmethod
    @abstractmethod
    def make(cls, document: Mapping[str, Any]) -> nn.Module:
        """Return a config.json's network with random weights; any exception means a bad config."""

    @classmethod
    @abstractmethod
    def chunk_length(cls, document: Mapping[str, Any]) -> int:
        """Return the number of actions in a chunk, from the present time step on."""

    @classmethod
    def _build(cls, document: Mapping[str, Any]) -> nn.Module:
        if (backbone := document["vision_backbone"]) not in [*LAYERS]:
            raise PolicyFileError(
                f"vision_backbone: expected {' or '.join(LAYERS)}, got {backbone!r}"
            )
        try:
            return cls.make(document)
        except Exception as error:  # torch raises many kinds
            raise PolicyFileError(
                f"policy.network: expected keys and values of LeRobot's config.json, got: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _read_checkpoint(
        self, folder: Path
    ) -> tuple[nn.Module, tuple[Kind, Kind, Kind], tuple[str, ...]]:
        """Return a folder's network, its kinds of normalisation, and its cameras in their order.

        The kinds are for state, action and images.
        """
        kind, keys = self.config.kind, [key for key in self.smallest if key not in self.optional]
        needed = ("input_features", "output_features", self.horizon_key, *self.needed, *keys)
        document, training = lerobot.read_config(
            folder,
            kind,
            needed,
            self.smallest,
            self.supported,
            {"n_action_steps": "n_action_steps"},
            [*lerobot.MODES],
        )
        check_features(folder, document)
        names = self._cameras(folder, document)
        document = {**self.smallest, **document}
        info = CheckpointInfo(document, make_tokenizer(""), settings=training.settings)
        self.check_document(folder, document)
        info.check_settings(self.config)
        check_horizon(folder, self.chunk_length(document), self.config.horizon)
        network = self._build(document)
        weights = {
            name.replace(COMPILED, "").removeprefix(PREFIX[kind]): tensor
            for name, tensor in load_weights(folder).items()
        }
        return (
            load_into(network, weights, folder),
            (training.state_statistics, training.action_statistics, training.image_statistics),
            names,
        )

    def check_document(self, folder: Path, document: Mapping[str, Any]) -> None:
        """Raise PolicyFileError if a key of a folder conflicts with the policy's settings."""

    def _cameras(self, folder: Path, document: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the station's cameras in the folder's order.

        Raises:
            SpecError: the folder's features are not the station's.
        """
        where, station = f"policy.checkpoint {folder}", station_features(self.spec)
        for name in (STATE, ENVIRONMENT, ACTION):
            got, expected = feature_size(document, name), feature_size(station, name)
            if got != expected:
                raise SpecError(
                    f"{where}: expected {expected} numbers of {name}, as this task has them, got "
                    f"{got}. Take the task that it was trained on"
                )
        images = {image.name: image for image in self.spec.images}
        trained = [
            name.rpartition(".")[2]
            for name in document["input_features"]
            if name.startswith(IMAGE_PREFIX)
        ]
        names = trained if set(trained) == set(images) else [*images]
        shapes = image_shapes(document)
        if len(shapes) != len(images) or [images[name].shape[:2] for name in names] != shapes:
            cameras = ", ".join(
                f"{name} {height}x{width}"
                for name, (height, width) in zip(trained, shapes, strict=True)
            )
            station_cameras = ", ".join(
                f"{one.name} {one.shape[0]}x{one.shape[1]}" for one in images.values()
            )
            raise SpecError(
                f"{where}: expected the cameras {cameras or 'of none'} (height x width), got "
                f"{station_cameras}. Set station.observe_cameras and station.image_size"
            )
        return tuple(names)

    def save_folder(self, folder: Path) -> None:
        """Write the policy for LeRobot's own class: the same numbers, in the task's units.

        LeRobot neither clips a state to five deviations nor an action to the task's largest step.

        Raises:
            SpecError: the policy is for several robots.
            PolicyFileError: the folder is not empty.
        """
        if self.normalisation.dimension_mask is not None:
            raise SpecError("vla lerobot: expected the policy of one robot, got one of several")
        names = [
            name for name in self.network.config["input_features"] if name.startswith(IMAGE_PREFIX)
        ]
        scale = torch.tensor(self.spec.action.scale, device=self.device)
        state = {"mean": self.normalisation.mean, "std": self.normalisation.std}
        statistics = {
            STATE: state,
            ENVIRONMENT: state,
            ACTION: {"mean": self.units.offset * scale, "std": self.units.gain * scale},
        }
        statistics |= {
            name: {"mean": self.pictures.mean[index], "std": self.pictures.std[index]}
            for index, name in enumerate(names)
        }
        mapping = dict.fromkeys(("VISUAL", "STATE", "ENV", "ACTION"), "MEAN_STD")
        document = {
            "n_obs_steps": 1,
            **self.network.config,
            "n_action_steps": self.config.executed,
            "type": self.config.kind,
            "device": "cpu",
            "push_to_hub": False,
            "normalization_mapping": mapping,
        }
        weights = {
            PREFIX[self.config.kind] + name: tensor
            for name, tensor in self.network.state_dict().items()
        }
        lerobot.save_folder(folder, document, weights, statistics)

    def inputs(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Return normalised state (B, V), and images (B, 3, H, W) of each camera."""
        return self.normalisation.normalize(batch["vectors"]), self.pictures(batch)

    def to_actions(self, numbers: Tensor) -> Tensor:
        """Convert the network's numbers (B, H, A) to a chunk's normalised actions."""
        return self.units.to_actions(numbers[:, : self.config.horizon])

    def to_network(self, actions: Tensor) -> Tensor:
        """Convert demonstrated actions (B, H A) to the network's numbers (B, H, A)."""
        return self.units.to_network(actions.unflatten(-1, (-1, self.spec.action.dim)))

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """See ``Policy``."""
        return self.chunk(
            self.decode(self.to_batch(observation), self.is_stochastic(explore), generator)
        )

    @abstractmethod
    def decode(self, batch: Batch, draws: bool, generator: torch.Generator | None) -> Tensor:
        """Return chunks (B, H, A) of normalised actions."""
