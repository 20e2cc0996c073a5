"""Encoders of small policies, for vectors, images and instructions.

Vectors are normalised. An image is (B, 3, H, W) in [0, 1], its features (B, F). With its small
encoder of sentences, a small policy is a vision-language-action model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.base import Batch
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

LETTERS = 32  # features of a byte
WINDOW = 5  # bytes in a window of the convolution


class SentenceEncoder(nn.Module):
    """Map rows (B, W) of bytes, padded with 0 (``specs.arrays``), to features (B, F).

    The features depend on the pieces of five letters in a sentence, not on their position: an
    embedding of bytes, a convolution, the maximum.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, LETTERS)
        self.pieces = nn.Conv1d(LETTERS, size, WINDOW, padding=WINDOW // 2)
        self.out = nn.Sequential(nn.Linear(size, size), nn.LayerNorm(size), nn.Tanh())

    def forward(self, rows: Tensor) -> Tensor:
        # each distinct sentence is computed once
        distinct, inverse = torch.unique(
            rows.to(self.letters.weight.device), dim=0, return_inverse=True
        )
        letters = self.letters(distinct.long())
        mask = (distinct != 0).unsqueeze(1)
        pieces = F.relu(self.pieces(letters.transpose(1, 2) * mask)) * mask
        features: Tensor = self.out(pieces.max(dim=2).values)
        return features[inverse]


class Modulation(nn.Module):
    """Scale and shift each channel of maps (B, C, H, W) by a sentence's features (B, F).

    This is FiLM (Perez et al. 2017, arXiv 1709.07871). The initial effect is none.
    """

    def __init__(self, sentence: int, channels: int) -> None:
        super().__init__()
        self.by = nn.Linear(sentence, 2 * channels)
        nn.init.zeros_(self.by.weight)
        nn.init.zeros_(self.by.bias)

    def forward(self, maps: Tensor, sentence: Tensor) -> Tensor:
        scale, offset = self.by(sentence)[:, :, None, None].chunk(2, dim=1)
        return maps * (1.0 + scale) + offset


# of the colours in ImageNet, the data of pretrained weights
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WIDTHS = (64, 128, 256, 512)  # channels of the ResNet's stages
EMBEDDINGS = 8  # spatial learned embeddings of each channel
GROUPS = 4  # of the ResNet's group normalisation
_WITHOUT_IMAGE_WEIGHTS = ContextVar("without_image_weights", default=False)


@contextmanager
def without_image_weights() -> Iterator[None]:
    """Build networks without ``image_weights`` within this block.

    A policy file contains the weights, and the original file may be elsewhere.
    """
    token = _WITHOUT_IMAGE_WEIGHTS.set(True)
    try:
        yield
    finally:
        _WITHOUT_IMAGE_WEIGHTS.reset(token)


def image_encoder(shape: tuple[int, ...], config: PolicySettings) -> nn.Module:
    """Return the config's kind of encoder, for images of this shape (H, W, 3)."""
    return {"cnn": SmallCNN, "keypoints": Keypoints, "resnet": ResNet10}[config.image_encoder](
        shape, config
    )


class SmallCNN(nn.Sequential):
    """Convolutions of stride 2, for small images."""

    def __init__(self, shape: tuple[int, ...], config: PolicySettings) -> None:
        layers: list[nn.Module] = []
        inputs = 3
        for channels in config.channels:
            modulation = (
                [Modulation(config.sentence_features, channels)] if config.sentence_features else []
            )
            layers += [nn.Conv2d(inputs, channels, 3, stride=2, padding=1), *modulation, nn.ReLU()]
            inputs = channels
        shrink = 2 ** len(config.channels)
        flat = inputs * -(-shape[0] // shrink) * -(-shape[1] // shrink)
        super().__init__(*layers, nn.Flatten(), *_features(flat, config.image_features))

    def forward(self, pixels: Tensor, sentence: Tensor | None = None) -> Tensor:
        x = pixels - 0.5
        for layer in self:
            x = layer(x, sentence) if isinstance(layer, Modulation) else layer(x)
        return x


class Keypoints(nn.Module):
    """The soft position of each channel's maximum (Finn et al. 2015, arXiv 1509.06113).

    The first convolution has stride 2, the others 1. A sentence modulates the channels.
    """

    columns: Tensor
    rows: Tensor

    def __init__(self, shape: tuple[int, ...], config: PolicySettings) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, 1 if index else 2, 1)
            for index, (before, after) in enumerate(pairwise((3, *config.channels)))
        )
        self.modulation = (
            Modulation(config.sentence_features, config.channels[-1])
            if config.sentence_features
            else None
        )
        self.sharpness = nn.Parameter(torch.ones(()))
        height, width = (-(-side // 2) for side in shape[:2])
        self.register_buffer("rows", torch.linspace(-1.0, 1.0, height), persistent=False)
        self.register_buffer("columns", torch.linspace(-1.0, 1.0, width), persistent=False)
        self.out = nn.Sequential(*_features(2 * config.channels[-1], config.image_features))

    def forward(self, pixels: Tensor, sentence: Tensor | None = None) -> Tensor:
        maps = pixels - 0.5
        for convolution in self.convolutions[:-1]:
            maps = F.relu(convolution(maps))
        maps = self.convolutions[-1](maps)
        if self.modulation is not None and sentence is not None:
            maps = self.modulation(maps, sentence)
        attention = (self.sharpness * maps).flatten(2).softmax(dim=-1).unflatten(-1, maps.shape[2:])
        places = torch.cat(
            [attention.sum(dim=2) @ self.columns, attention.sum(dim=3) @ self.rows], dim=-1
        )
        return self.out(places)


class ResNet10(nn.Module):
    """ResNet with one basic block per stage, group normalisation and spatial learned embeddings.

    The blocks follow He et al. 2015 (arXiv 1512.03385), the rest HIL-SERL (arXiv 2410.21845). With
    ``image_weights``, a safetensors file of ``stem`` and ``stages``, both are frozen and only later
    layers are trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...], config: PolicySettings) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTHS[0], 7, 2, 3, bias=False),
            nn.GroupNorm(GROUPS, WIDTHS[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.stages = nn.Sequential(
            *(
                ResidualBlock(inputs, width, 1 if inputs == width else 2)
                for inputs, width in zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False)
            )
        )
        self.frozen = bool(config.image_weights)
        if self.frozen and not _WITHOUT_IMAGE_WEIGHTS.get():
            self._load(config.image_weights)
        for part in (self.stem, self.stages):
            part.requires_grad_(not self.frozen)
        with torch.no_grad():
            height, width = self.stages(self.stem(torch.zeros(1, 3, *shape[:2]))).shape[2:]
        self.embeddings = nn.Parameter(
            torch.randn(EMBEDDINGS, WIDTHS[-1], height, width) / (height * width) ** 0.5
        )
        self.out = nn.Sequential(*_features(EMBEDDINGS * WIDTHS[-1], config.image_features))
        if config.sentence_features:
            self.modulation = Modulation(config.sentence_features, WIDTHS[-1])
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor, sentence: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            maps = self.stages(self.stem((pixels - self.mean) / self.std))
        if sentence is not None:
            maps = self.modulation(maps, sentence)
        return self.out(torch.einsum("bchw,kchw->bkc", maps, self.embeddings).flatten(1))

    def _load(self, file: str) -> None:
        from safetensors.torch import load_file

        expected = {name for name in self.state_dict() if name.startswith(("stem.", "stages."))}
        try:
            weights = load_file(file)
            if weights.keys() != expected:
                odd = sorted(weights.keys() ^ expected)
                raise ValueError(f"{len(odd)} names differ, among them {', '.join(odd[:3])}")
            self.load_state_dict(weights)
        except Exception as error:  # the library raises many kinds
            raise PolicyFileError(
                f"policy.image_weights {file}: expected a safetensors file with the weights of "
                f"stem and stages of rlinf_core/policies/encoder.py, got: {error}"
            ) from error


class ResidualBlock(nn.Module):
    """Two convolutions and a skip connection."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, width)
        self.around = (
            nn.Identity()
            if inputs == width
            else nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.GroupNorm(GROUPS, width)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        return F.relu(y + self.around(x))


def _features(inputs: int, size: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, size), nn.LayerNorm(size), nn.Tanh()


class Encoder(Normalisation):
    """Map vectors (B, V) and images {name: (B, H, W, 3) uint8} to features (B, F).

    Vectors are normalised and clipped. With ``fine_scale`` they are added a second time, as
    asinh(fine_scale x / deviation), scaled to 1 at one deviation. This is linear about zero and
    logarithmic beyond, like the symlog of DreamerV3 (Hafner et al. 2023, arXiv 2301.04104). With
    ``sentence_features`` the instruction's features are added too, and modulate the image encoders.
    """

    def __init__(self, spec: StationSpec, config: PolicySettings) -> None:
        super().__init__(spec)
        self.fine_scale = config.fine_scale
        images = spec.images if config.image_features else ()
        self.image_names = [image.name for image in images]
        self.cnns = nn.ModuleDict(
            {image.name: image_encoder(image.shape, config) for image in images}
        )
        self.sentence = (
            SentenceEncoder(config.sentence_features) if config.sentence_features else None
        )
        self.size = (
            spec.vector_size * (2 if self.fine_scale else 1)
            + len(self.image_names) * config.image_features
            + config.sentence_features
        )

    def forward(self, batch: Batch) -> Tensor:
        vectors = [self.normalize(batch["vectors"])]
        if self.fine_scale:
            vectors.append(
                torch.asinh(self.fine_scale * batch["vectors"] / self.std)
                / math.asinh(self.fine_scale)
            )
        sentence = None if self.sentence is None else self.sentence(batch[arrays.INSTRUCTION])
        images = [
            self.cnns[name](batch[name].permute(0, 3, 1, 2).float() / 255.0, sentence)
            for name in self.image_names
        ]
        features = vectors + images + ([] if sentence is None else [sentence])
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1)


class Head(nn.Linear):
    """A last layer (B, inputs) to (B, outputs) in the precision of its weights.

    Layers before it may be in bfloat16. Its output is a value or a density's mean; bfloat16 would
    round these to eight bits.
    """

    def forward(self, x: Tensor) -> Tensor:
        with full_precision(x):
            return super().forward(x.to(self.weight.dtype))


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Disable bfloat16 on the tensor's device within this block.

    Inputs from outside must be cast.
    """
    kind = x.device.type
    reduced = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if reduced else nullcontext()


def mlp(inputs: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Return Linear, LayerNorm, ReLU for every hidden width."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*layers)
