"""The learner: waits for demonstrations, fine-tunes on them, then improves online, publishing policies as it goes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms import rlpd, sft
from rlinf_core.errors import RlinfError
from rlinf_core.policies import tanh_gaussian
from rlinf_core.policies.files import policy_name, policy_version, save_policy
from rlinf_core.policies.tanh_gaussian.policy import Actor
from rlinf_core.specs import StationSpec

Batch = dict[str, np.ndarray]


class Learner:
    """Phases ``sft`` and ``online`` over one actor; no data of its own.

    Args:
        spec: sizes of the networks.
        policy, warm_start, algorithm: their configs.
        policies: folder where versions are published.
        seed: of weights and noise.
    """

    def __init__(self, spec: StationSpec, policy: tanh_gaussian.Config, warm_start: sft.Config, algorithm: rlpd.Config,
                 policies: Path, seed: int = 0) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.policies, self.seed, self.version = policies, seed, 0
        self.warm_start, self.algorithm_config = warm_start, algorithm
        self.actor = Actor(spec, policy)
        self.cloner: sft.Learner | None = sft.Learner(self.actor, warm_start, seed)
        self.sft_steps = 0
        self.algorithm: rlpd.Learner | None = None
        self.metrics: dict[str, float] = {}

    @property
    def updates(self) -> int:
        """Gradient updates of the online phase so far."""
        return self.algorithm.updates if self.algorithm else 0

    @property
    def sft_left(self) -> int:
        """Steps of supervised fine-tuning still to do."""
        return 0 if self.cloner is None else self.warm_start.steps - self.sft_steps

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """From the demonstrations, once, before the first step."""
        self.actor.encoder.fit_normalisation(vectors)

    def fine_tune(self, batches: list[Batch]) -> None:
        """Supervised steps; after the last one, version 1 is published and the online phase begins."""
        for batch in batches:
            self._note(self.cloner.update(batch))
            self.sft_steps += 1
        if self.sft_left <= 0:
            self.begin_online()
            self.publish()

    def begin_online(self) -> None:
        """Build the online learner around the fine-tuned actor."""
        self.cloner = None
        self.algorithm = rlpd.Learner(self.actor, self.algorithm_config, self.seed)

    def improve(self, batches: list[Batch]) -> None:
        """Online updates, half online and half demonstrations."""
        for batch in batches:
            self._note(self.algorithm.update(batch))

    def publish(self) -> Path:
        """Write the actor as the next version."""
        self.version += 1
        return save_policy(self.actor, self.policies / policy_name(self.version), version=self.version,
                           updates=self.updates)

    def _note(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RlinfError(f"training diverged: {name} is {value} after {self.updates} updates. The last "
                                 "checkpoint is good; lower the learning rate and resume from it")
            self.metrics[name] = 0.98 * self.metrics.get(name, value) + 0.02 * value

    def state_dict(self) -> dict[str, Any]:
        """Everything but the data."""
        state: dict[str, Any] = {"version": self.version, "metrics": [self.metrics], "sft_steps": self.sft_steps}
        if self.algorithm is not None:
            state["algorithm"] = self.algorithm.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if nothing had happened."""
        newest = max(self.policies.glob("policy-*.safetensors"), default=None)
        self.version = max(state["version"], policy_version(newest) if newest else 0)  # stations only take newer ones
        self.metrics = dict(state["metrics"][0])
        self.sft_steps = state["sft_steps"]
        if "algorithm" in state:
            self.begin_online()
            self.algorithm.load_state_dict(state["algorithm"])
