"""Settings shared by several algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypedDict, TypeGuard

import numpy as np
from pydantic import Field, field_validator, model_validator

from rlinf_core.config.base import Settings, Widths

ROLLOUTS = "rollouts"
REPLAY = "replay"
DEMONSTRATIONS = "demonstrations"
EXPERT = "an expert"


class Computing(Settings):
    """A learner's computing, for every algorithm.

    Inference and saved policies stay eager and in float32.
    """

    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="number format of the layers during training. The last layers, "
        "weights, optimizer moments, log-probabilities, targets and "
        "losses stay float32",
    )
    compile: bool = Field(
        False, description="compile networks by torch.compile. The first updates then take long"
    )
    gradient_checkpointing: bool = Field(
        False,
        description="recompute layers in the backward pass. This saves memory and takes more time",
    )
    prefetch: Literal["auto", "always", "never"] = Field(
        "auto",
        description="draw and copy the next batches while the learner uses the current "
        "ones. `auto` does so unless the device is the CPU",
    )

    @model_validator(mode="after")
    def _check_compile_and_checkpointing(self) -> Computing:
        if self.gradient_checkpointing and self.compile:
            raise ValueError(
                "gradient_checkpointing: expected false with compile, which plans the memory "
                "itself, got true. Set one of the two to false"
            )
        return self


PLAIN = Computing()


class RolloutLength(TypedDict, total=False):
    """The length and kind of a rollout; one of ``chunks``, ``group`` and ``steps``.

    Attributes:
        chunks: chunks of every environment.
        group: episodes of one scene, side by side.
        steps: time steps of every environment.
        random_warmup: True for random actions instead of the policy's.
        expert_fraction: fraction of the time steps driven by the expert.
    """

    chunks: int
    group: int
    steps: int
    random_warmup: bool
    expert_fraction: float


class AlgorithmSettings(Settings):
    """Common settings of algorithms, and a ``Learner``'s properties, known without torch.

    Attributes:
        learns_from: ROLLOUTS of its own policy, a REPLAY, fixed DEMONSTRATIONS, or an EXPERT that
            labels actions during the run.
        policies: kinds of policy that it trains (``rlinf_core.policies``).
        half_demonstrations: True if half of each of its batches are demonstrations.
        include_failures: True if it also learns from failed demonstrations.
        accepts_stale: True if its rollouts may come from somewhat older policies.
        several_robots: True if it can train one policy for robots with different specs
            (``rlinf_core.specs.embodiment``).
    """

    learns_from: ClassVar[str]
    policies: ClassVar[tuple[str, ...]]
    half_demonstrations: ClassVar[bool] = False
    include_failures: ClassVar[bool] = False
    accepts_stale: ClassVar[bool] = False
    several_robots: ClassVar[bool] = False

    name: str = Field(description="name of the algorithm")
    learning_rate: float = Field(3e-4, gt=0, le=1, description="learning rate of Adam")

    @property
    def warm_start(self) -> bool:
        """Whether it continues a policy cloned from demonstrations."""
        return False

    @property
    def needs_demonstrations(self) -> bool:
        """Whether it needs demonstrations before it can start."""
        return (
            self.learns_from in (DEMONSTRATIONS, EXPERT)
            or self.warm_start
            or self.half_demonstrations
        )

    @property
    def rollout(self) -> RolloutLength:
        """The length of a rollout: ``chunks`` of every environment, or a ``group`` of episodes.

        The episodes of a group have one scene.
        """
        return {}

    @property
    def staleness(self) -> float:
        """Updates by which the policy of a rollout's chunk may be older.

        Older chunks are left out.
        """
        return float("inf")

    @property
    def gamma(self) -> float:
        """Discount per time step; 1 without discounting."""
        return 1.0

    @property
    def averages(self) -> bool:
        """Whether the policy for evaluation and stations is a moving average."""
        return False

    @property
    def imitates_itself(self) -> bool:
        """Whether its own successful episodes count as demonstrations."""
        return False

    @property
    def share(self) -> Any:
        """The played share of the policy's correction (``CorrectionShare``); None without one."""
        return None

    @property
    def n_return_steps(self) -> int:
        """Time steps whose rewards a return sums before a value; chunks always sum theirs."""
        return 1

    @property
    def utd_ratio(self) -> float | None:
        """Gradient steps per new time step, if the algorithm and not the phase sets them."""
        return None

    @property
    def transitions_per_batch(self) -> int | None:
        """Transitions in each of its batches; None if it learns from full rollouts."""
        return None


class DemonstrationSettings(AlgorithmSettings):
    """Hyper-parameters of algorithms with a fixed number of gradient steps on demonstrations."""

    learns_from = DEMONSTRATIONS

    steps: int = Field(1000, ge=0, description="number of gradient steps")
    batch_size: int = Field(256, gt=0, description="transitions of each gradient step")

    @property
    def transitions_per_batch(self) -> int:
        return self.batch_size


class ExpertSettings(DemonstrationSettings):
    """Hyper-parameters of algorithms with an expert that labels actions during the run."""

    learns_from = EXPERT

    def expert_fraction(self, episode: int) -> float:
        """Return the fraction of time steps that the expert drives in an episode."""
        raise NotImplementedError

    def learning_mask(self, sources: Sequence[str]) -> np.ndarray:
        """Return a mask (T,) of the time steps to learn from, by their commanders."""
        raise NotImplementedError


class OnPolicySettings(AlgorithmSettings):
    """Hyper-parameters of every on-policy algorithm."""

    learns_from = ROLLOUTS
    policies = (
        "gaussian",
        "pi0",
        "pi05",
        "groot",
        "groot_n1_6",
        "groot_n1_7",
        "openvla",
        "qwen_vl",
        "pi0_fast",
        "smolvla",
        "xvla",
        "language",
    )

    epochs: int = Field(4, gt=0, le=1000, description="passes over each rollout")
    minibatches: int = Field(4, gt=0, description="minibatches of each epoch")
    anneal_updates: int = Field(
        0,
        ge=0,
        description="rollouts over which the learning rate falls linearly to 0. 0 keeps "
        "it constant",
    )
    clip_low: float = Field(0.2, ge=0, le=1, description="largest decrease of the ratio below 1")
    clip_high: float = Field(0.2, ge=0, le=10, description="largest increase of the ratio above 1")
    dual_clip: float = Field(
        0.0,
        ge=0,
        le=100,
        description="bound above 1 of the objective for negative advantages. 0 has none",
    )
    entropy: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    level: Literal["action", "chunk", "mean"] = Field(
        "action",
        description="unit of the ratios. It is an action or token, the whole chunk or "
        "conversation, or its geometric mean (GSPO)",
    )
    clip_gradient: float = Field(1.0, gt=0, description="largest gradient norm")

    @field_validator("dual_clip")
    @classmethod
    def _check_dual_clip(cls, value: float) -> float:
        if 0.0 < value <= 1.0:
            raise ValueError("expected 0 or a number above 1")
        return value


class ActorCriticSettings(AlgorithmSettings):
    """Hyper-parameters of every actor-critic."""

    learns_from, policies = REPLAY, ("tanh_gaussian",)

    batch_size: int = Field(256, gt=0, description="transitions of each gradient step")
    critics: int = Field(2, gt=0, le=100, description="networks of the ensemble")
    target_critics: int = Field(
        2, gt=0, description="critics in the target's minimum, drawn at each step"
    )
    critic_hidden: Widths = Field(
        (256, 256), description="widths of the hidden layers of critics and value"
    )
    discount: float = Field(0.99, ge=0, le=1, description="discount factor of a time step")
    n_step: int = Field(
        1,
        gt=0,
        le=1000,
        description="time steps with summed rewards before the critics' value. "
        "A chunk always sums its own rewards",
    )
    learning_rate: float = Field(
        3e-4, gt=0, le=1, description="learning rate of Adam for actor, critics and temperature"
    )
    critic_learning_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        description="learning rate of critics and temperature. Empty takes that of the actor",
    )
    adam_beta: float = Field(0.9, ge=0, lt=1, description="decay of Adam's first moment")
    initial_temperature: float = Field(
        0.2, gt=0, description="first value of the entropy temperature alpha"
    )
    target_entropy: float = Field(-1.0, description="target entropy of each action dimension")
    entropy_backup: bool = Field(
        True, description="include the entropy bonus in the target's value"
    )
    actor_every: int = Field(1, gt=0, description="critic steps for each actor step")
    ema_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the newest weights in the exported policy, at "
        "each actor step. 1 exports the newest weights. A moving "
        "average varies less",
    )
    critic_warmup: int = Field(0, ge=0, description="critic steps before the first actor step")
    clip_gradient: float = Field(10.0, gt=0, description="largest gradient norm")
    image_shift: int = Field(0, ge=0, description="largest random shift of images [pixels] (DrQ)")
    takeover_fails: bool = Field(
        False,
        description="a person's takeover ends the policy's part as a failed episode for "
        "the critics. false gives it the value of the person's continuation "
        "(RLIF, arXiv 2311.12996)",
    )

    @property
    def critic_lr(self) -> float:
        """The learning rate of critics and temperature."""
        return self.critic_learning_rate or self.learning_rate

    @property
    def transitions_per_batch(self) -> int:
        return self.batch_size

    @property
    def gamma(self) -> float:
        return self.discount

    @property
    def averages(self) -> bool:
        return self.ema_rate < 1.0

    @property
    def n_return_steps(self) -> int:
        return self.n_step


class TargetNetworkSettings(ActorCriticSettings):
    """Hyper-parameters of an actor-critic with slow targets."""

    target_rate: float = Field(
        0.005, gt=0, le=1, description="rate tau of the target critics' moving average"
    )


def is_offline(settings: AlgorithmSettings) -> TypeGuard[DemonstrationSettings]:
    """Return True if its learner only takes a fixed number of steps on demonstrations."""
    return settings.learns_from == DEMONSTRATIONS
