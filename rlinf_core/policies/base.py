"""The interface of policies: a batch of observations in, a batch of action chunks out.

Both are on the policy's device. ``Policy`` is the protocol, ``NetworkPolicy`` the base class of
this project's policies. ``SingleRobotPolicy`` adapts a policy of several robots to the station of
one robot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.specs.arrays import (
    INSTRUCTION,
    Arrays,
    StationSpec,
    decode_instructions,
    encode_instructions,
)
from rlinf_core.specs.embodiment import JointSpec

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Observation:
    """Raw observations of B stations at one time step; each policy does its own preprocessing.

    Attributes:
        vectors: (B, V) float32, in the order and units of the specs.
        images: camera's name to (B, H, W, 3) uint8.
        instruction: B sentences.

    Example:
        >>> vectors = np.zeros((2, spec.vector_size), np.float32)
        >>> observation = Observation.from_arrays(spec, {"vectors": vectors})
        >>> len(observation), observation.instruction[0]
        (2, 'reach the socket')
    """

    vectors: Tensor
    images: Batch = field(default_factory=dict)
    instruction: tuple[str, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        spec: StationSpec,
        arrays: Mapping[str, np.ndarray],
        device: torch.device | str = "cpu",
        instruction: str | None = None,
    ) -> Observation:
        """Build the observation of a batch of environments.

        Args:
            spec: specs of the environments.
            arrays: ``vectors`` and images, each (B, ...), and optionally ``instruction``.
            device: device of the tensors.
            instruction: sentence for all; by default that of ``arrays``, else that of the spec.

        Raises:
            SpecError: an image is missing, or a shape is not the spec's.
        """
        size = len(arrays["vectors"])
        shapes = {"vectors": (spec.vector_size,)} | {
            image.name: image.shape for image in spec.images
        }
        for name, shape in shapes.items():
            actual = arrays[name].shape if name in arrays else "nothing"
            if actual != (size, *shape):
                raise SpecError(
                    f"observation '{name}': expected shape {(size, *shape)}, got {actual}"
                )
        tensors = {
            name: torch.as_tensor(np.ascontiguousarray(arrays[name]), device=device)
            for name in shapes
        }
        if instruction is None and INSTRUCTION in arrays:
            sentences = decode_instructions(arrays[INSTRUCTION])
        else:
            sentences = (spec.instruction if instruction is None else instruction,) * size
        return cls(tensors.pop("vectors").float(), tensors, sentences)

    @classmethod
    def from_single(
        cls,
        spec: StationSpec,
        named: Mapping[str, np.ndarray],
        device: torch.device | str = "cpu",
        instruction: str | None = None,
    ) -> Observation:
        """Build the observation of one station.

        Args:
            spec: specs of the station.
            named: arrays by their spec's name, already checked (``ArraySpec.check``).
            device: device of the tensors.
            instruction: the sentence; by default that of the spec.
        """
        images = {
            image.name: torch.as_tensor(np.ascontiguousarray(named[image.name]), device=device)[
                None
            ]
            for image in spec.images
        }
        return cls(
            torch.as_tensor(spec.flatten(named), device=device)[None],
            images,
            (spec.instruction if instruction is None else instruction,),
        )

    def __len__(self) -> int:
        return len(self.vectors)

    def to(self, device: torch.device | str) -> Observation:
        """Return the same observation on another device."""
        return Observation(
            self.vectors.to(device),
            {name: image.to(device) for name, image in self.images.items()},
            self.instruction,
        )

    @property
    def batch(self) -> Batch:
        """``vectors`` and images by their cameras, under the names of networks and learners."""
        return {"vectors": self.vectors, **self.images}


@dataclass(frozen=True)
class ActionChunk:
    """B plans of H normalised actions.

    Attributes:
        actions: (B, H, A) in [-1, 1].
        execute: number of the H actions that are played before the next chunk
            (``chunking.ChunkSchedule``).
        drawn: (B, ...) the random draw that learners learn from. It is the actions, unless these
            are computed from it, e.g. a Gaussian's actions before clipping, or the latent noise of
            a noise policy.
        log_probs: (B, H) or (B,) of the draw, if the policy has a density.
        values: (B,) of the observations, if the policy estimates them.

    Example:
        >>> chunk = policy.act(observation, explore=False)  # of 2 stations, see Observation
        >>> isinstance(chunk, ActionChunk), tuple(chunk.actions.shape)
        (True, (2, 1, 3))
    """

    actions: Tensor
    execute: int
    drawn: Tensor
    log_probs: Tensor | None = None
    values: Tensor | None = None

    @property
    def horizon(self) -> int:
        return self.actions.shape[1]


@runtime_checkable
class Policy(Protocol):
    """The protocol of every kind of policy (``rlinf_core.policies.policy_kind``).

    Each policy owns its weights and its normalisation.

    Attributes:
        spec: specs of the stations that it fits.
        config: its sizes.
        latent_size: 0 if learners learn actions; else the size of the latent noise that they learn
            instead.
        max_prefix: largest number of a chunk's first actions that cloning fixes, to teach the
            policy to continue a chunk; 0 if it cannot.
        reads_instructions: True if its inputs include the instruction.
        needs_instruction: True if it cannot act without a sentence. A server then refuses an
            observation without one.

    Example:
        >>> policy = make_policy(spec, load_recipe("sim_sac").policy)
        >>> isinstance(policy, Policy), policy.spec == spec
        (True, True)
    """

    spec: StationSpec
    config: PolicySettings
    latent_size: int
    max_prefix: int
    reads_instructions: bool
    needs_instruction: bool

    @property
    def device(self) -> torch.device:
        """Device of its weights; observations and generators must be there too."""
        ...

    def to_batch(self, observation: Observation) -> Batch:
        """Return the inputs of its networks and learners for an observation, by name."""
        ...

    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return a chunk for each observation, without gradients.

        The result is deterministic unless ``explore`` or ``config.stochastic_eval`` is set.
        """
        ...

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the loss that cloning the demonstrated actions (B, H A) minimises."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the values with which a policy file rebuilds this policy."""
        ...


@runtime_checkable
class ContinuesChunks(Protocol):
    """A policy that can continue the last chunk with the next one: policies with a flow."""

    def continue_chunk(
        self,
        observation: Observation,
        continuation: Continuation,
        generator: torch.Generator | None = None,
    ) -> ActionChunk:
        """Return a chunk for each observation that follows the actions in play, unexplored."""
        ...


class NetworkPolicy(nn.Module):
    """Base class of policies with one network.

    Attributes:
        graph_methods: methods that a CUDA graph may record: functions of tensors (B, ...) without
            synchronisation with the host. Inference without exploration uses them.
        compiled_methods: methods that torch.compile accepts; not used with gradients.
        uses_images: True if it reads all images, regardless of ``config.image_features``.
        token_multiple: a batch's sentences are padded to a multiple of this many tokens.
    """

    latent_size = max_prefix = 0
    reads_instructions = needs_instruction = False
    graph_methods: ClassVar[tuple[str, ...]] = ()
    compiled_methods: ClassVar[tuple[str, ...]] = ()
    uses_images: ClassVar[bool] = False
    token_multiple = 1
    config: PolicySettings

    def __init__(self, spec: StationSpec, config: PolicySettings) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        if config.sentence_features:
            self.reads_instructions = self.needs_instruction = True

    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """See ``Policy``."""
        raise NotImplementedError

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """See ``Policy``."""
        raise NotImplementedError

    def to_batch(self, observation: Observation) -> Batch:
        """See ``Policy``."""
        if not self.reads_instructions:
            return observation.batch
        # on the CPU, because a tokenizer reads it
        sentences = torch.from_numpy(encode_instructions(observation.instruction))
        return observation.batch | {INSTRUCTION: sentences}

    @property
    def policy_spec(self) -> StationSpec:
        """Specs that its learners must provide, without images that the policy does not read."""
        if self.uses_images or self.config.image_features:
            return self.spec
        return replace(self.spec, observation=self.spec.vectors)

    @property
    def input_spec(self) -> StationSpec:
        """Specs of the inputs of its networks; they may have more than the station observes."""
        return self.spec

    def annotate(self, observations: Arrays) -> Arrays:
        """Return an episode's observations (T + 1) with further inputs of its learners."""
        return observations

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return next(self.parameters()).device

    @property
    def action_size(self) -> int:
        """Numbers in a chunk, H A."""
        return self.spec.action.dim * self.config.horizon

    @property
    def executed_size(self) -> int:
        """Leading numbers of the draw that are played before the next chunk: the critics' input."""
        return self.latent_size or self.spec.action.dim * self.config.executed

    def robot_mask(self, batch: Batch) -> Tensor | None:
        """Return the mask (B, H A) of a robot's own numbers in a chunk; None for a single robot."""
        if not isinstance(self.spec, JointSpec):
            return None
        action_masks = torch.as_tensor(self.spec.dimension_masks[1], device=self.device)
        robots = batch["vectors"][:, : len(action_masks)]
        return (robots @ action_masks).repeat(1, self.config.horizon)

    def is_stochastic(self, explore: bool) -> bool:
        """Return True if the policy draws its actions, False if it takes the likeliest ones."""
        return explore or self.config.stochastic_eval

    def chunk(
        self, actions: Tensor, drawn: Tensor | None = None, log_probs: Tensor | None = None
    ) -> ActionChunk:
        """Return the chunk of actions (B, H A) or (B, H, A)."""
        actions = actions.reshape(len(actions), self.config.horizon, -1)
        return ActionChunk(
            actions, self.config.executed, actions if drawn is None else drawn, log_probs
        )

    def is_frozen(self, name: str) -> bool:
        """Return True if RL freezes the weight of this name.

        Frozen weights are stored and sent once, in a separate file.
        """
        return False

    @classmethod
    def rebuild(cls, spec: StationSpec, config: Any, described: Mapping[str, Any]) -> NetworkPolicy:
        """Rebuild the policy, still without weights, from the values of ``describe``."""
        return cls(spec, config)

    def describe(self) -> dict[str, Any]:
        """Return the values with which a policy file rebuilds this module."""
        return {"spec": self.spec.to_dict(), "config": self.config.model_dump()}


class OnPolicyActor(NetworkPolicy):
    """A policy with a density over its draws, trained by on-policy learners.

    Attributes:
        differentiates_entropy: True if a learner needs the gradient of the entropy from
            ``log_probs``.
    """

    differentiates_entropy = True

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (B, E) of the played actions of draws (B, ...)."""
        raise NotImplementedError

    def value_network(self) -> nn.Module | None:
        """Return a network for the value before each token, (B, E); None for other policies."""
        return None

    def encoder_state(self) -> dict[str, Tensor]:
        """Return initial weights for a value function's encoder, or its normalisation alone."""
        raise NotImplementedError


class SingleRobotPolicy(NetworkPolicy):
    """A policy of several robots with one robot's observations and actions.

    Args:
        joint_policy: the policy of several robots; its spec is a ``JointSpec``.
        spec: specs of the robot.

    Raises:
        SpecError: the policy has no such robot.
    """

    def __init__(self, joint_policy: NetworkPolicy, spec: StationSpec) -> None:
        super().__init__(spec, joint_policy.config)
        assert isinstance(joint_policy.spec, JointSpec)
        self.joint_policy = joint_policy
        self.latent_size = joint_policy.latent_size
        # number of the robot, and the places of its numbers among those of all robots
        self.robot, self.vector_slice, self.action_slice = joint_policy.spec.slices_of(spec)

    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """See ``Policy``."""
        robot_vectors = observation.vectors
        vectors = robot_vectors.new_zeros(len(robot_vectors), self.joint_policy.spec.vector_size)
        vectors[:, self.robot] = 1.0
        vectors[:, self.vector_slice] = robot_vectors
        chunk = self.joint_policy.act(
            Observation(vectors, observation.images, observation.instruction), explore, generator
        )
        return ActionChunk(
            self._select_robot(chunk.actions),
            chunk.execute,
            self._select_robot(chunk.drawn),
            chunk.log_probs,
            chunk.values,
        )

    def _select_robot(self, numbers: Tensor) -> Tensor:
        """Select the robot's numbers from those of all robots, (B, H A) or (B, H, A)."""
        return numbers.reshape(len(numbers), self.config.horizon, -1)[..., self.action_slice]
