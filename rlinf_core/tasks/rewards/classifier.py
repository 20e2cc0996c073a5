"""Success by a small learned network, in NumPy, so that a station needs no torch.

``rlinf reward train`` makes one from recordings (``rlinf_core.tasks.rewards.training``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field

from rlinf_core.core.errors import RecipeError

FORMAT = "rlinf-classifier-1"
STRIDE = 2  # stride of every convolution

Layer = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Network:
    """Channels to a probability: convolutions for cameras, then linear layers with the numbers.

    Attributes:
        inputs: numeric channels, one after another.
        mean, std: mean and standard deviation of the numbers of all inputs (V,).
        layers: weight (out, in) and bias (out,) of each; ReLU between them; the last one has one
            output.
        cameras: image channels; their colours are concatenated.
        size: height and width after resizing.
        convolutions: weight (out, in, k, k) and bias (out,) of each convolution; stride 2, ReLU
            after each.
    """

    inputs: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    layers: tuple[Layer, ...]
    cameras: tuple[str, ...] = ()
    size: tuple[int, int] = (0, 0)
    convolutions: tuple[Layer, ...] = ()

    def __call__(self, channels: dict[str, np.ndarray]) -> float:
        """Return the probability of success."""
        numbers = np.concatenate([np.zeros(0), *(np.ravel(channels[name]) for name in self.inputs)])
        x = np.concatenate([(numbers - self.mean) / self.std, self._image_features(channels)])
        for number, (weight, bias) in enumerate(self.layers):
            x = weight @ (np.maximum(x, 0.0) if number else x) + bias
        return float(1.0 / (1.0 + np.exp(-np.clip(x[0], -50.0, 50.0))))

    def _image_features(self, channels: dict[str, np.ndarray]) -> np.ndarray:
        if not self.cameras:
            return np.zeros(0)
        images = [_resized(channels[name], self.size) for name in self.cameras]
        x: np.ndarray = np.concatenate(images, axis=2).transpose(2, 0, 1) / np.float32(
            255.0
        ) - np.float32(0.5)
        for weight, bias in self.convolutions:
            windows = sliding_window_view(x, weight.shape[2:], axis=(1, 2))[:, ::STRIDE, ::STRIDE]  # type: ignore[call-overload]
            x = np.maximum(
                np.tensordot(weight, windows, ([1, 2, 3], [0, 3, 4])) + bias[:, None, None], 0.0
            )
        return np.ravel(x)

    @property
    def flaw(self) -> str:
        """Reason why the parts do not fit each other; empty if they do."""
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            return f"mean {self.mean.shape} and std {self.std.shape}"
        expected_channels = 3 * len(self.cameras)
        height, width = self.size
        for weight, bias in self.convolutions:
            if weight.ndim != 4 or (expected_channels, weight.shape[0]) != (
                weight.shape[1],
                len(bias),
            ):
                shapes = [weight.shape for weight, _ in self.convolutions]
                return f"convolutions {shapes} for {3 * len(self.cameras)} colours"
            height, width = (
                (side - k) // STRIDE + 1
                for side, k in zip((height, width), weight.shape[2:], strict=True)
            )
            expected_channels = len(bias)
        first = len(self.mean) + expected_channels * height * width
        sizes = [first, *(len(bias) for _, bias in self.layers)]
        if (
            min(height, width) < bool(self.cameras)
            or not self.layers
            or sizes[-1] != 1
            or [weight.shape for weight, _ in self.layers]
            != list(zip(sizes[1:], sizes[:-1], strict=True))
        ):
            return f"layers {[weight.shape for weight, _ in self.layers]} for {first} numbers"
        return ""

    def save(self, path: str | Path) -> None:
        """Write a model file (safetensors)."""
        from safetensors.numpy import save_file

        tensors = {"mean": self.mean, "std": self.std}
        for part in ("layers", "convolutions"):
            for number, (weight, bias) in enumerate(getattr(self, part)):
                tensors |= {f"{part}.{number}.weight": weight, f"{part}.{number}.bias": bias}
        save_file(
            {name: np.ascontiguousarray(values) for name, values in tensors.items()},
            path,
            {"format": FORMAT}
            | {name: json.dumps(getattr(self, name)) for name in ("inputs", "cameras", "size")},
        )

    @classmethod
    def load(cls, path: str | Path) -> Network:
        """Load a model file; raise RecipeError if it is invalid."""
        from safetensors import SafetensorError, safe_open

        path = Path(path).expanduser()
        try:
            with safe_open(path, framework="np") as file:
                about, names = file.metadata() or {}, list(file.keys())
                tensors = {name: file.get_tensor(name) for name in names}
            if about.get("format") != FORMAT:
                raise ValueError(f"format {about.get('format')!r}")
            inputs, cameras, size = (
                json.loads(about[name]) for name in ("inputs", "cameras", "size")
            )
            network = cls(
                tuple(inputs),
                tensors["mean"],
                tensors["std"],
                _layers(tensors, "layers"),
                tuple(cameras),
                (int(size[0]), int(size[1])),
                _layers(tensors, "convolutions"),
            )
            if network.flaw:
                raise ValueError(network.flaw)
            return network
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError) as error:
            raise RecipeError(
                f"reward.model {path}: expected a classifier as `rlinf reward train` writes it "
                f"({FORMAT}, one output), got: {error}"
            ) from error


def _layers(tensors: dict[str, np.ndarray], part: str) -> tuple[Layer, ...]:
    count = sum(name.startswith(f"{part}.") and name.endswith(".weight") for name in tensors)
    return tuple((tensors[f"{part}.{n}.weight"], tensors[f"{part}.{n}.bias"]) for n in range(count))


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if image.shape[:2] == size:
        return image
    import cv2

    return cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA)


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """True if a learned network reports success. Progress is its probability.

    Args:
        model: file of the network (``Network.save``), relative to the task's folder
        threshold: smallest probability of success
    """

    model: str
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        self.network  # noqa: B018 (an unusable file is an error at once)

    @cached_property
    def network(self) -> Network:
        """The network in the file."""
        return Network.load(self.model)

    @property
    def channels(self) -> tuple[str, ...]:
        """The observed channels."""
        return self.network.inputs + self.network.cameras

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        return self.network(channels) > self.threshold

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Return a number between 0 and 1."""
        return self.network(channels)
