"""Settings shared by all kinds of policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rlinf_core.config.base import Count, Place, Positive, Settings, Widths, with_default


class Lora(Settings):
    """Low-rank adapters on a network's linear layers (Hu et al. 2021, arXiv 2106.09685): W + (alpha / rank) B A."""

    rank: int = Field(0, ge=0, le=1024, description="of A and B; 0 for none")
    alpha: float = Field(16.0, gt=0, le=4096, description="their weight is alpha / rank")


class PolicySettings(Settings):
    """Sizes common to all policies: an encoder, a trunk and a chunk of actions."""

    kind: str = Field(description="of the policy")
    hidden: Widths = Field((256, 256), description="widths of the trunk's layers")
    fine_scale: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="each number x is seen a second time, as asinh(fine_scale x / deviation): small ones "
        "about zero, such as the last millimetres of an offset, are told apart; 0 for once alone",
    )
    image_features: int = Field(
        64, ge=0, description="features kept of each camera image; 0 for a policy that does not look at images, though "
        "they are observed and recorded")
    image_encoder: Literal["cnn", "keypoints", "resnet"] = Field(
        "cnn", description="a small one; one that says where in the picture what it looks for is; or a ResNet-10")
    channels: Annotated[tuple[Count, ...], Field(max_length=8)] = Field(
        (16, 32, 32), description="output channels of a cnn's convolutions, each with stride 2, or of those of keypoints, "
        "the first with stride 2")
    image_weights: Place = Field("", description="of a resnet, which are then frozen; empty to train it from scratch")
    sentence_features: int = Field(
        0, ge=0, description="features kept of the instruction, which then also say how pictures are looked at (FiLM); 0 "
        "for a policy that is told nothing. Of a small one: vision-language-action models, and values beside them, read it "
        "in any case")
    stochastic_eval: bool = Field(
        False, description="draw actions where it does not explore, too, as in training: where an observation does not "
        "tell all, one that always does the same stays where it is stuck")
    horizon: int = Field(1, gt=0, le=1000, description="actions of a chunk that are predicted together")
    n_action_steps: int = Field(0, ge=0, le=1000, description="of them that are played before the next chunk; 0 for all")

    @field_validator("n_action_steps")
    @classmethod
    def _within_the_chunk(cls, n_action_steps: int, info: ValidationInfo) -> int:
        horizon = info.data.get("horizon", n_action_steps)
        if n_action_steps > horizon:
            raise PydanticCustomError("n_action_steps", "expected at most policy.horizon = {horizon}", {"horizon": horizon})
        return n_action_steps

    @property
    def no_density(self) -> str:
        """Reason why these settings give the draws no log-probabilities; empty if they have some.
        """
        return ""

    @property
    def executed(self) -> int:
        """Number of a chunk's actions that are played, 1 to ``horizon``."""
        return self.n_action_steps or self.horizon


class PretrainedSettings(PolicySettings):
    """Settings of policies made of published networks.

    The keys about encoders and trunks have no effect.
    """

    checkpoint: Place = Field("", description="a folder as Hugging Face has it: config.json, *.safetensors and "
                            "tokenizer.json of such a model. Empty to begin with random weights")
    adapters: Place = Field("", description="a folder of the library peft (adapter_config.json, "
                          "adapter_model.safetensors), whose LoRA is added to the checkpoint's weights to begin with")
    network: dict[str, Any] = Field(
        {}, description="without a checkpoint: what differs from the smallest network, by the keys of the model's "
        "config.json: {text_config: {num_hidden_layers: 4}}; its tokenizer reads bytes")
    lora: Lora = Field(Lora(), description="adapters, which alone are trained and travel")

    @model_validator(mode="after")
    def _one_origin(self) -> PretrainedSettings:
        if self.checkpoint and self.network:
            raise ValueError("network: expected nothing beside a checkpoint, which has its own. Leave one of them out")
        if self.adapters and not self.checkpoint:
            raise ValueError("adapters: expected the checkpoint that they were trained on beside them, got none. Set "
                             "policy.checkpoint")
        return self


class VisuomotorSettings(PolicySettings):
    """Settings of small networks from pictures and state to a chunk, without a language model.

    They are networks in LeRobot's published format. The keys about encoders and trunks have no
    effect.
    """

    checkpoint: Place = Field("", description="a folder as LeRobot has it: config.json, model.safetensors. Empty to begin "
                            "with random weights")
    network: dict[str, Any] = Field(
        {}, description="without a checkpoint: keys of LeRobot's config.json that differ from the small network here")
    statistics: Place = Field(
        "", description="the folder's ...normalizer_processor.safetensors, or stats.json of a data set: by it state and "
        "pictures are normalised, and actions have its units; empty where both are learned anew, and pictures have "
        "ImageNet's statistics")

    @model_validator(mode="after")
    def _one_origin(self) -> VisuomotorSettings:
        if self.checkpoint and self.network:
            raise ValueError("network: expected nothing beside a checkpoint, which has its own. Leave one of them out")
        return self


class TokenSettings(PretrainedSettings):
    """Settings of language models whose last 256 tokens stand for the numbers of an action."""

    decoding: str = Field("autoregressive", description="of the tokens")
    temperature: float = Field(1.0, gt=0, le=100, description="of the tokens that are drawn where it explores")
    token_log_probs: bool = Field(
        False, description="the PPO family weighs each token instead of each action (algorithm.level: action); in "
        "simulators")


class FlowSettings(PretrainedSettings):
    """Settings of vision-language models with an action expert that carries noise to actions."""

    horizon: int = with_default(PretrainedSettings, "horizon", 50)
    flow_steps: int = Field(10, gt=0, le=1000, description="from noise to action")
    sde_noise: float = Field(
        0.0, ge=0, le=2, description="where it explores, so much noise enters at every step from noise to action, the "
        "marginals staying what they are, which gives what it draws a density: the PPO family; 0 for none")
    sde_schedule: Literal["sqrt", "pi_rl"] = Field(
        "sqrt", description="how much noise enters at flow time t, which is 1 at noise and 0 at an action: sde_noise "
        "sqrt(t), or pi_RL's sde_noise sqrt(t / (1 - t)), whose first step takes the second one's 1 - t. The same "
        "sde_noise is more by pi_rl: 1.4 times at t = 0.5")
    learned_noise: tuple[Positive, ...] = Field(
        (), description="instead of sde_noise: two deviations, between which a small network says, for each number at "
        "every step from noise to action, how much noise enters where it explores; () for none")
    tokens: int = Field(48, gt=0, le=1024, description="room for the instruction; what is longer is cut off")
    frozen: bool = Field(False, description="the vision-language model stays as it is; the action expert alone is trained")
    statistics: Place = Field(
        "", description="a file with the statistics of the checkpoint's data set (openpi's or Dexbotic's norm_stats.json, "
        "LeRobot's ...normalizer_processor.safetensors or stats.json), by which its state is normalised and whose units "
        "its actions have; empty where both are learned anew")

    @model_validator(mode="after")
    def _draws_as_its_makers(self) -> FlowSettings:
        """Draw the noise of every chunk of a checkpoint, unless the recipe decides.

        openpi, LeRobot and GR00T do the same.
        """
        if self.checkpoint and "stochastic_eval" not in self.model_fields_set:
            vars(self)["stochastic_eval"] = True
        return self

    @model_validator(mode="after")
    def _one_noise(self) -> FlowSettings:
        low, high = self.learned_noise or (1.0, 1.0)
        if self.learned_noise and (self.sde_noise or not low < high):
            raise ValueError(f"learned_noise: expected a smaller and a larger deviation, and sde_noise of 0; got "
                             f"{self.learned_noise} and {self.sde_noise:g}. Choose one of both")
        return self

    @field_validator("learned_noise")
    @classmethod
    def _two(cls, bounds: tuple[float, ...]) -> tuple[float, ...]:
        if len(bounds) not in (0, 2):
            raise ValueError(f"expected two deviations, or none, got {len(bounds)}")
        return bounds

    @property
    def density(self) -> bool:
        """Whether exploration's draws have a density."""
        return bool(self.sde_noise or self.learned_noise)

    @property
    def no_density(self) -> str:
        return "" if self.density else ("policy.sde_noise: expected more than 0, which gives its actions a density, or "
                                        "policy.learned_noise, got neither")
