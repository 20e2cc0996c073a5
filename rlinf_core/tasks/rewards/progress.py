"""A dense reward that is learned: progress from images, with success judged by a classifier.

The kind of SARM (arXiv 2509.25358) and VLAC (arXiv 2509.15937): a network regresses how much of a
demonstration is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import Field

from rlinf_core.tasks.rewards.classifier import Network


@dataclass(frozen=True, kw_only=True)
class Progress:
    """True when the classifier reports success. Progress is the output of another network.

    Args:
        model: file of the progress network, from the folder of the task.
        classifier: file of the network that judges success, likewise.
        threshold: smallest probability of success.
    """

    model: str
    classifier: str
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        self.networks  # noqa: B018 (an unusable file is an error at once)

    @cached_property
    def networks(self) -> tuple[Network, Network]:
        """Load the networks of progress and of success."""
        return Network.load(self.model), Network.load(self.classifier)

    @property
    def channels(self) -> tuple[str, ...]:
        """The observed channels of both."""
        names = [name for network in self.networks for name in network.inputs + network.cameras]
        return tuple(dict.fromkeys(names))

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        return self.networks[1](channels) > self.threshold

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Return the share of a demonstration that is over, between 0 and 1."""
        return self.networks[0](channels)
