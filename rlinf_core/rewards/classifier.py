"""Success that a small network has learned to see, in NumPy, so that a station needs no torch for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from rlinf_core.errors import RecipeError

FORMAT = "rlinf-classifier-1"


@dataclass(frozen=True)
class Network:
    """Channels to a probability: normalisation, then linear layers with ReLU between them.

    Attributes:
        inputs: channels of numbers, one after another.
        mean, std: of all their numbers (V,).
        layers: weight (out, in) and bias (out,) of each; the last one has one output.
    """

    inputs: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]

    def __call__(self, channels: dict[str, np.ndarray]) -> float:
        """The probability of success."""
        x = (np.concatenate([np.ravel(channels[name]) for name in self.inputs]) - self.mean) / self.std
        for number, (weight, bias) in enumerate(self.layers):
            x = weight @ (np.maximum(x, 0.0) if number else x) + bias
        return float(1.0 / (1.0 + np.exp(-np.clip(x[0], -50.0, 50.0))))

    def save(self, path: str | Path) -> None:
        """Write a model file (safetensors)."""
        from safetensors.numpy import save_file

        tensors = {"mean": self.mean, "std": self.std}
        for number, (weight, bias) in enumerate(self.layers):
            tensors |= {f"layers.{number}.weight": weight, f"layers.{number}.bias": bias}
        save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, path,
                  {"format": FORMAT, "inputs": json.dumps(self.inputs)})

    @classmethod
    def load(cls, path: str | Path) -> Network:
        """RecipeError says what is wrong with the file."""
        from safetensors import SafetensorError, safe_open

        path = Path(path).expanduser()
        try:
            with safe_open(path, framework="np") as file:
                about, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about.get("format") != FORMAT:
                raise ValueError(f"format {about.get('format')!r}")
            count = sum(name.endswith(".weight") for name in tensors)
            layers = tuple((tensors[f"layers.{n}.weight"], tensors[f"layers.{n}.bias"]) for n in range(count))
            sizes = [len(tensors["mean"]), *(len(bias) for _, bias in layers)]
            if not layers or sizes[-1] != 1 or [weight.shape for weight, _ in layers] != list(
                    zip(sizes[1:], sizes[:-1], strict=True)):
                raise ValueError(f"layers {[weight.shape for weight, _ in layers]} for {sizes[0]} numbers")
            return cls(tuple(json.loads(about["inputs"])), tensors["mean"], tensors["std"], layers)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise RecipeError(f"reward.model {path}: expected a classifier as rlinf_core.rewards.classifier.Network saves "
                              f"it ({FORMAT}, one output), got: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """True when a learned network says so. Progress is the probability that it says.

    Args:
        model: file of the network (``Network.save``), from the folder of the task.
        threshold: of the probability.
    """

    model: str
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        self.network  # noqa: B018 (a file that cannot be used is said at once)

    @cached_property
    def network(self) -> Network:
        """What the file holds."""
        return Network.load(self.model)

    @property
    def channels(self) -> tuple[str, ...]:
        """What it looks at."""
        return self.network.inputs

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        return self.network(channels) > self.threshold

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Between 0 and 1."""
        return self.network(channels)
