"""A small actor that adds a bounded correction to the actions of a frozen base policy.

ResFiT (arXiv 2509.19301) and PLD (arXiv 2511.00091). The base is a black box: its chunk comes with
the observation, and no gradient passes through it. A base from a file is part of the policy file,
as weights that stay as they are. A served base stays where it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from rlinf_core.core import plugins
from rlinf_core.core.errors import PolicyFileError, RecipeError, SpecError
from rlinf_core.core.paths import expand_user
from rlinf_core.policies import policy_config, policy_kind
from rlinf_core.policies.base import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.encoder import Encoder
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.policies.small.residual import Config
from rlinf_core.policies.small.tanh_gaussian.policy import Actor, cloning_loss, sample_squashed
from rlinf_core.specs.arrays import Arrays, ArraySpec, StationSpec

BASE = "base_action"
# protocols of base policies in another process
PROTOCOLS = {"openpi": "rlinf_core.deploy.serving.served_base:ServedBase"}
MAX_BATCH = 256  # largest number of observations that the base answers together


class RemoteBase(Protocol):
    """A base policy in another process."""

    def chunks(self, observation: Observation) -> np.ndarray:
        """Return the base's normalised chunks (B, H, A) for each observation."""
        ...


class ResidualActor(NetworkPolicy):
    """a = clip(base(s) + g b tanh(N(mean(s, base(s)), std))), with bound b and share g in [0, 1].

    Args:
        spec: of the station.
        config: of the policy.
        base: the base policy; None to load that of ``config.base``.

    Attributes:
        share: g, which the learner raises from 0 as long as episodes succeed as often as the
            base's.
    """

    share: Tensor
    config: Config

    def __init__(
        self,
        spec: StationSpec,
        config: Config | None = None,
        base: NetworkPolicy | RemoteBase | None = None,
    ) -> None:
        super().__init__(spec, config or Config())
        self.base = base or load_base(spec, self.config)
        if isinstance(self.base, NetworkPolicy):
            self.base.requires_grad_(False).eval()
            self.reads_instructions = self.base.reads_instructions
            self.needs_instruction = self.base.needs_instruction
        self.actor = Actor(self.input_spec, self.config)
        self.register_buffer("share", torch.zeros(()))

    @classmethod
    def rebuild(cls, spec: StationSpec, config: Any, described: Mapping[str, Any]) -> ResidualActor:
        """See ``NetworkPolicy``; the weights of a base from a file are in the policy file."""
        if "base_policy" not in described:
            return cls(spec, config)
        document = described["base_policy"]
        base_config = policy_config(document["config"]["kind"]).model_validate_json(
            json.dumps(document["config"])
        )
        return cls(
            spec, config, policy_kind(base_config.kind).Policy.rebuild(spec, base_config, document)
        )

    def describe(self) -> dict[str, Any]:
        """Describe the policy, and a base from a file."""
        base = {"base_policy": self.base.describe()} if isinstance(self.base, NetworkPolicy) else {}
        return super().describe() | base

    def is_frozen(self, name: str) -> bool:
        """See ``NetworkPolicy``: all of the base."""
        return name.startswith("base.")

    def train(self, mode: bool = True) -> ResidualActor:
        """Set the mode of the correction. The base always stays in evaluation mode."""
        super().train(mode)
        if isinstance(self.base, NetworkPolicy):
            self.base.eval()
        return self

    @property
    def device(self) -> torch.device:
        """See ``NetworkPolicy``."""
        return self.share.device

    @property
    def input_spec(self) -> StationSpec:
        """See ``NetworkPolicy``: the base's chunk stands behind the other vectors."""
        return _with_base(self.spec, self.action_size)

    @property
    def policy_spec(self) -> StationSpec:
        """See ``NetworkPolicy``."""
        return _with_base(super().policy_spec, self.action_size)

    @property
    def encoder(self) -> Encoder:
        """Encoder of the observation and the base's chunk."""
        return self.actor.encoder

    # The base
    @torch.no_grad()
    def base_actions(self, observation: Observation) -> Tensor:
        """Return the base's chunks (B, H A) in [-1, 1].

        Raises:
            SpecError: the base's chunks are shorter than this policy's.
            ServingError: a served base does not answer.
        """
        if isinstance(self.base, NetworkPolicy):
            chunks = self.base.act(observation, explore=False).actions
        else:
            chunks = torch.as_tensor(
                self.base.chunks(observation), dtype=torch.float32, device=self.device
            )
        if chunks.shape[1] < self.config.horizon:
            raise SpecError(
                f"policy.horizon: expected at most the base's {chunks.shape[1]} actions of a "
                f"chunk, got {self.config.horizon}. Set a shorter one"
            )
        return chunks[:, : self.config.horizon].flatten(1).clamp(-1.0, 1.0)

    def to_batch(self, observation: Observation) -> Batch:
        """See ``Policy``. The base computes its chunk here."""
        batch = super().to_batch(observation)
        return batch | {
            "vectors": torch.cat([batch["vectors"], self.base_actions(observation)], dim=1)
        }

    def annotate(self, observations: Arrays) -> Arrays:
        """See ``NetworkPolicy``: with the base's chunk at each time step (T + 1)."""
        length, parts = len(observations["vectors"]), []
        for start in range(0, length, MAX_BATCH):
            rows = {
                name: values[start : start + MAX_BATCH] for name, values in observations.items()
            }
            parts.append(
                self.base_actions(Observation.from_arrays(self.spec, rows, self.device)).numpy(
                    force=True
                )
            )
        vectors = np.concatenate([observations["vectors"], np.concatenate(parts)], axis=1).astype(
            np.float32
        )
        return observations | {"vectors": vectors}

    def recorded_base_actions(self, batch: Batch) -> Tensor:
        """Return the base's chunks (B, H A) in a batch of ``to_batch`` or ``annotate``."""
        return batch["vectors"][:, -self.action_size :]

    # The correction
    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation (B, H A) of the correction before the tanh."""
        mean_and_log_std: tuple[Tensor, Tensor] = self.actor(batch)
        return mean_and_log_std

    def apply_correction(
        self, batch: Batch, correction: Tensor, share: Tensor | float = 1.0
    ) -> Tensor:
        """Return the base's actions (B, H A) with ``share`` of corrections in [-1, 1]."""
        return (
            self.recorded_base_actions(batch) + share * self.config.residual_bound * correction
        ).clamp(-1.0, 1.0)

    def correction_to(self, batch: Batch, actions: Tensor) -> Tensor:
        """Return the corrections (B, H A) in [-1, 1] that lead nearest to these actions."""
        return ((actions - self.recorded_base_actions(batch)) / self.config.residual_bound).clamp(
            -1.0, 1.0
        )

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return reparameterised, fully corrected actions (B, H A) and log-probabilities (B,)."""
        mean, log_std = self(batch)
        correction, log_probs = sample_squashed(mean, log_std, generator, self.executed_size)
        return self.apply_correction(batch, correction), log_probs

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of the base's actions with ``share`` of the correction."""
        batch = self.to_batch(observation)
        mean, log_std = self(batch)
        if not self.is_stochastic(explore):
            return self.chunk(self.apply_correction(batch, torch.tanh(mean), self.share))
        correction, log_probs = sample_squashed(mean, log_std, generator, self.executed_size)
        return self.chunk(self.apply_correction(batch, correction, self.share), log_probs=log_probs)

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return -E log pi of the corrections that lead to demonstrated actions (B, H A)."""
        return cloning_loss(self.correction_to(batch, actions), *self(batch))


def load_base(spec: StationSpec, config: Config) -> NetworkPolicy | RemoteBase:
    """Return the base policy of a recipe.

    Raises:
        RecipeError: it names none.
        PolicyFileError, SpecError: there is no such policy, or it does not fit the station.
    """
    if not config.base:
        raise RecipeError(
            "policy.base: expected a policy file, a run's folder, or ws://host:port of a policy "
            "server, got nothing. Set policy.base=runs/x"
        )
    if config.base.startswith(("ws://", "wss://")):
        kind = plugins.find("bases", "openpi", PROTOCOLS, "policy.base")
        return cast(RemoteBase, kind(spec, config.base, config.base_timeout_s, config.base_keys))
    path = expand_user(config.base, "policy.base")
    if not path.exists():
        raise PolicyFileError(
            f"policy.base: {path}: no such file or folder. Train one first, such as rlinf train "
            f"sim_sft"
        )
    return load_policy(newest_policy(path), spec)


def _with_base(spec: StationSpec, size: int) -> StationSpec:
    return replace(
        spec, observation=(*spec.observation, ArraySpec(BASE, (size,), low=(-1.0,), high=(1.0,)))
    )


Policy = ResidualActor
