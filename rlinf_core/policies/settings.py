"""Settings shared by all kinds of policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rlinf_core.config.base import (
    Count,
    FreeOptions,
    Place,
    Positive,
    Settings,
    Widths,
    with_default,
)


class Lora(Settings):
    """Low-rank adapters on a network's linear layers (Hu et al. 2021, arXiv 2106.09685): W + (alpha
    / rank) B A.
    """

    rank: int = Field(
        0, ge=0, le=1024, description="rank of the LoRA matrices. 0 trains all weights"
    )
    alpha: float = Field(16.0, gt=0, le=4096, description="the adapters' weight is alpha / rank")


class PolicySettings(Settings):
    """Sizes common to all policies: an encoder, a trunk and a chunk of actions."""

    kind: str = Field(description="kind of the policy")
    hidden: Widths = Field((256, 256), description="widths of the trunk's layers")
    fine_scale: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="add asinh(fine_scale x / deviation) of each number x to the input. It "
        "resolves small values near zero, such as the last millimetres of an offset. "
        "0 adds nothing",
    )
    image_features: int = Field(
        64,
        ge=0,
        description="features of each camera image. 0 ignores the images, which are still recorded",
    )
    image_encoder: Literal["cnn", "keypoints", "resnet"] = Field(
        "cnn", description="image encoder. It is a small CNN, one with keypoints, or a ResNet-10"
    )
    channels: Annotated[tuple[Count, ...], Field(max_length=8)] = Field(
        (16, 32, 32),
        description="output channels of the convolutions. Each has stride 2 in "
        "`cnn`, the first one in `keypoints`",
    )
    image_weights: Place = Field(
        "", description="weights of the ResNet, which are then frozen. Empty trains it from scratch"
    )
    sentence_features: int = Field(
        0,
        ge=0,
        description="features of the instruction, which also modulate the image encoder "
        "(FiLM). 0 ignores the instruction. Large models read it in any "
        "case",
    )
    stochastic_eval: bool = Field(
        False,
        description="draw actions in evaluations too. A deterministic policy can stay "
        "stuck if observations are incomplete",
    )
    horizon: int = Field(1, gt=0, le=1000, description="actions of a chunk")
    n_action_steps: int = Field(
        0,
        ge=0,
        le=1000,
        description="actions of a chunk that are played before the next one. 0 plays all",
    )

    @field_validator("n_action_steps")
    @classmethod
    def _check_n_action_steps(cls, n_action_steps: int, info: ValidationInfo) -> int:
        horizon = info.data.get("horizon", n_action_steps)
        if n_action_steps > horizon:
            raise PydanticCustomError(
                "n_action_steps",
                "expected at most policy.horizon = {horizon}",
                {"horizon": horizon},
            )
        return n_action_steps

    @property
    def no_density_reason(self) -> str:
        """Reason why the policy's draws have no log-probabilities; empty if they have them."""
        return ""

    @property
    def executed(self) -> int:
        """Number of a chunk's actions that are played, 1 to ``horizon``."""
        return self.n_action_steps or self.horizon


class CheckpointSettings(PolicySettings):
    """Settings of policies with a published network: a checkpoint's, or a small new one.

    The keys about encoders and trunks have no effect.
    """

    checkpoint: Place = Field(
        "",
        description="folder with config.json, *.safetensors and the "
        "tokenizer, as Hugging Face or LeRobot writes it. "
        "Empty starts with random weights",
    )
    network: FreeOptions = Field(
        {}, description="keys of the network's config.json for a network without a checkpoint"
    )

    @model_validator(mode="after")
    def _check_one_origin(self) -> CheckpointSettings:
        if self.checkpoint and self.network:
            raise ValueError(
                "network: expected none with policy.checkpoint, which defines the network. Leave "
                "one of them out"
            )
        return self


class PretrainedSettings(CheckpointSettings):
    """Settings of policies made of published language models.

    The keys about encoders and trunks have no effect.
    """

    adapters: Place = Field(
        "",
        description="folder of the library peft with LoRA adapters, "
        "added to the checkpoint's weights at the start",
    )
    network: FreeOptions = Field(
        {},
        description="keys of the model's config.json for a network without a checkpoint. "
        "Example: {text_config: {num_hidden_layers: 4}}. The others are those of "
        "the smallest network. Its tokenizer reads bytes",
    )
    lora: Lora = Field(
        Lora(), description="LoRA adapters. Only they are trained and sent to stations"
    )

    @model_validator(mode="after")
    def _check_adapters(self) -> PretrainedSettings:
        if self.adapters and not self.checkpoint:
            raise ValueError(
                "adapters: expected their checkpoint too, got none. Set policy.checkpoint"
            )
        return self


class VisuomotorSettings(CheckpointSettings):
    """Settings of small networks from images and state to a chunk, without a language model.

    They are networks in LeRobot's published format. The keys about encoders and trunks have no
    effect.
    """

    network: FreeOptions = Field(
        {},
        description="keys of LeRobot's config.json for a network without a checkpoint. The "
        "others are those of a small network",
    )
    statistics: Place = Field(
        "",
        description="statistics that normalise state, images and actions. The file is the "
        "folder's ...normalizer_processor.safetensors or a data set's "
        "stats.json. Empty trains state and actions anew, with ImageNet's "
        "statistics of images",
    )


class TokenSettings(PretrainedSettings):
    """Settings of language models whose last 256 tokens stand for the numbers of an action."""

    decoding: str = Field("autoregressive", description="decoding of the action tokens")
    temperature: float = Field(
        1.0,
        gt=0,
        le=100,
        description="temperature of sampled tokens, in exploration and training. Evaluations take "
        "the likeliest token",
    )
    token_log_probs: bool = Field(
        False,
        description="weigh each token instead of each action in the PPO family "
        "(algorithm.level: action), in simulators",
    )


class FlowSettings(PretrainedSettings):
    """Settings of vision-language models with an action expert that carries noise to actions."""

    horizon: int = with_default(PretrainedSettings, "horizon", 50)
    flow_steps: int = Field(10, gt=0, le=1000, description="steps from noise to action")
    sde_noise: float = Field(
        0.0,
        ge=0,
        le=2,
        description="noise of each step from noise to action during "
        "exploration. The marginals stay the same, and samples have "
        "a density for the PPO family. 0 has none",
    )
    sde_schedule: Literal["sqrt", "pi_rl"] = Field(
        "sqrt",
        description="noise at flow time t, which is 1 at noise and 0 at an action. "
        "`sqrt` is sde_noise sqrt(t). `pi_rl` is sde_noise sqrt(t / (1 - "
        "t)), with the second step's 1 - t in the first step. At t = 0.5 "
        "pi_rl has 1.4 times the noise",
    )
    learned_noise: tuple[Positive, ...] = Field(
        (),
        description="smallest and largest standard deviation of a learned exploration noise, "
        "instead of sde_noise. A small network chooses it for each number and "
        "step. () has none",
    )
    tokens: int = Field(
        48, gt=0, le=1024, description="largest length of the instruction [tokens]. The rest is cut"
    )
    frozen: bool = Field(
        False, description="train the action expert alone, and freeze the vision-language model"
    )
    statistics: Place = Field(
        "",
        description="file with the statistics of the checkpoint's data set. They normalise "
        "the state and give the actions' units. Formats are norm_stats.json "
        "(openpi, Dexbotic), ...normalizer_processor.safetensors and stats.json "
        "(LeRobot), and statistics.json/EMBODIMENT (NVIDIA). Empty trains both anew",
    )

    @model_validator(mode="after")
    def _draw_like_makers(self) -> FlowSettings:
        """Draw the noise of every chunk of a checkpoint, unless the recipe decides.

        openpi, LeRobot and GR00T do the same.
        """
        if self.checkpoint and "stochastic_eval" not in self.model_fields_set:
            vars(self)["stochastic_eval"] = True
        return self

    @model_validator(mode="after")
    def _check_one_noise(self) -> FlowSettings:
        low, high = self.learned_noise or (1.0, 1.0)
        if self.learned_noise and (self.sde_noise or not low < high):
            raise ValueError(
                "learned_noise: expected a smaller and a larger deviation, and sde_noise of 0; "
                f"got {self.learned_noise} and {self.sde_noise:g}. Choose one of both"
            )
        return self

    @field_validator("learned_noise")
    @classmethod
    def _check_learned_noise(cls, bounds: tuple[float, ...]) -> tuple[float, ...]:
        if len(bounds) not in (0, 2):
            raise ValueError(f"expected two deviations, or none, got {len(bounds)}")
        return bounds

    @property
    def has_density(self) -> bool:
        """Whether exploration's draws have a density."""
        return bool(self.sde_noise or self.learned_noise)

    @property
    def no_density_reason(self) -> str:
        if self.has_density:
            return ""
        return (
            "policy.sde_noise: expected more than 0, which gives its actions a density, or "
            "policy.learned_noise, got neither"
        )
