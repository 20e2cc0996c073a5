"""A tanh-Gaussian with an advantage label as an input (RECAP, arXiv 2511.14759).

The label stands behind the vectors: 1 for a positive advantage, -1 for a negative one, 0 for
unknown.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rlinf_core.policies.base import Batch, Observation
from rlinf_core.policies.small.conditioned import Config
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.specs.arrays import Arrays, ArraySpec, StationSpec

LABEL, GOOD = "advantage", 1.0


class ConditionedActor(Actor):
    """pi(a | s, label), which acts with the label GOOD."""

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__(spec, config or Config())

    @property
    def input_spec(self) -> StationSpec:
        """See ``NetworkPolicy``."""
        return _with_label(self.spec)

    @property
    def policy_spec(self) -> StationSpec:
        """See ``NetworkPolicy``."""
        return _with_label(super().policy_spec)

    def to_batch(self, observation: Observation) -> Batch:
        """See ``Policy``."""
        batch = super().to_batch(observation)
        return batch | {"vectors": _append_label(batch["vectors"])}

    def annotate(self, observations: Arrays) -> Arrays:
        """See ``NetworkPolicy``; learners replace the label."""
        vectors = observations["vectors"]
        return observations | {
            "vectors": np.column_stack([vectors, np.full(len(vectors), GOOD, np.float32)])
        }


def _append_label(vectors: Tensor) -> Tensor:
    return torch.cat([vectors, vectors.new_full((len(vectors), 1), GOOD)], dim=1)


def _with_label(spec: StationSpec) -> StationSpec:
    return replace(
        spec, observation=(*spec.observation, ArraySpec(LABEL, (1,), low=(-1.0,), high=(1.0,)))
    )


Policy = ConditionedActor
