"""Diffusion Policy: a one-dimensional U-Net, conditioned on images and state, denoises a chunk.

Chi et al. 2023, arXiv 2303.04137, with the names and numbers of LeRobot's class (0.4.4 to 0.6.1).
The noise schedules are those of the library diffusers: DDPM (Ho et al. 2020, arXiv 2006.11239) and
DDIM (Song et al. 2020, arXiv 2010.02502).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies import sharding
from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.dataset_statistics import Kind
from rlinf_core.policies.pretrained.diffusion import Config
from rlinf_core.policies.pretrained.resnet import FEATURES, Norm, ResNet, group_norm
from rlinf_core.policies.pretrained.visuomotor import (
    ACTION,
    ENVIRONMENT,
    STATE,
    Visuomotor,
    feature_size,
    image_shapes,
)
from rlinf_core.specs.arrays import StationSpec

NORMS: dict[bool, Norm] = {True: group_norm, False: nn.BatchNorm2d}
Draw = Callable[[], Tensor]


class NoiseSchedule:
    """The amount of noise at each of T steps, and the reverse steps.

    Attributes:
        signal: (T,) share of the actions' variance at each step; the rest is noise.
    """

    def __init__(self, config: Mapping[str, Any], device: torch.device) -> None:
        count, low, high = config["num_train_timesteps"], config["beta_start"], config["beta_end"]
        schedule = config["beta_schedule"]
        if schedule == "squaredcos_cap_v2":
            signal = [
                math.cos((step / count + 0.008) / 1.008 * math.pi / 2) ** 2
                for step in range(count + 1)
            ]
            betas = torch.tensor(
                [min(1 - after / before, 0.999) for before, after in pairwise(signal)],
                device=device,
            )
        elif schedule == "scaled_linear":
            betas = torch.linspace(low**0.5, high**0.5, count, device=device) ** 2
        elif schedule == "linear":
            betas = torch.linspace(low, high, count, device=device)
        else:
            raise ValueError(
                f"beta_schedule: expected squaredcos_cap_v2, scaled_linear or linear, got "
                f"{schedule!r}"
            )
        self.config = config
        self.signal = torch.cumprod(1.0 - betas, dim=0)

    def add_noise(self, actions: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        """Return actions (B, H, A) with the noise of these steps (B,)."""
        signal = self.signal[steps][:, None, None]
        return signal.sqrt() * actions + (1.0 - signal).sqrt() * noise

    def steps(self, count: int) -> list[tuple[int, int]]:
        """Return each step and its successor, from noise to action; the last successor is -1."""
        stride = self.config["num_train_timesteps"] // count
        return [(stride * index, stride * (index - 1)) for index in reversed(range(count))]

    def denoise_step(
        self, point: Tensor, predicted: Tensor, step: int, following: int, draw: Draw | None
    ) -> Tensor:
        """Return the point (B, H, A) at the following step.

        ``draw`` draws the noise of DDPM; None adds no noise.
        """
        signal = self.signal[step]
        next_signal = self.signal[following] if following >= 0 else self.signal.new_ones(())
        if self.config["prediction_type"] == "epsilon":
            noise, clean = predicted, (point - (1.0 - signal).sqrt() * predicted) / signal.sqrt()
        else:
            noise, clean = (point - signal.sqrt() * predicted) / (1.0 - signal).sqrt(), predicted
        if self.config["clip_sample"]:
            bound = self.config["clip_sample_range"]
            clean = clean.clamp(-bound, bound)
        if self.config["noise_scheduler_type"] == "DDIM":
            return next_signal.sqrt() * clean + (1.0 - next_signal).sqrt() * noise
        signal_ratio = signal / next_signal
        mean = (next_signal.sqrt() * (1.0 - signal_ratio) / (1.0 - signal)) * clean + (
            signal_ratio.sqrt() * (1.0 - next_signal) / (1.0 - signal)
        ) * point
        if step == 0 or draw is None:
            return mean
        variance = ((1.0 - next_signal) / (1.0 - signal) * (1.0 - signal_ratio)).clamp(min=1e-20)
        return mean + variance.sqrt() * draw()


class SpatialSoftmax(nn.Module):
    """The soft position of each channel's maximum: (B, K, 2)."""

    pos_grid: Tensor

    def __init__(self, height: int, width: int, count: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(FEATURES, count, 1)
        rows, columns = (
            torch.linspace(-1.0, 1.0, side, dtype=torch.float64).float() for side in (height, width)
        )
        self.register_buffer(
            "pos_grid", torch.stack([columns.repeat(height), rows.repeat_interleave(width)], dim=1)
        )

    def forward(self, maps: Tensor) -> Tensor:
        return self.nets(maps).flatten(2).softmax(dim=-1) @ self.pos_grid


class CameraEncoder(nn.Module):
    """Images (B, 3, H, W), cropped if ``crop_shape`` is set, to features (B, 2 K)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.resized = config["resize_shape"]
        self.crop = crop_size(config)
        shape = self.crop or self.resized or image_shapes(config)[0]
        resnet = ResNet(config["vision_backbone"], NORMS[config["use_group_norm"]])
        self.backbone = nn.Sequential(*resnet.children())
        count = config["spatial_softmax_num_keypoints"]
        for _ in range(5):  # convolutions and pooling of stride 2
            shape = [-(-side // 2) for side in shape]
        self.pool, self.out = (
            SpatialSoftmax(shape[0], shape[1], count),
            nn.Linear(2 * count, 2 * count),
        )

    def forward(self, pixels: Tensor, corner: Callable[[int], int] | None = None) -> Tensor:
        """Return features.

        ``corner`` maps the free pixels to a crop's start (the middle if None).
        """
        if self.resized:
            pixels = F.interpolate(pixels, tuple(self.resized), mode="bilinear", antialias=True)
        if self.crop:
            corner = corner or (lambda free: round(free / 2.0))
            top, left = (
                corner(side - size) for side, size in zip(pixels.shape[2:], self.crop, strict=True)
            )
            pixels = pixels[:, :, top : top + self.crop[0], left : left + self.crop[1]]
        return F.relu(self.out(self.pool(self.backbone(pixels)).flatten(1)))


def crop_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return height and width of the crop, derived like in LeRobot."""
    if config["resize_shape"] is None:
        return tuple(config["crop_shape"]) if config["crop_shape"] else None
    ratio = config["crop_ratio"]
    return (
        None
        if ratio >= 1.0
        else (int(config["resize_shape"][0] * ratio), int(config["resize_shape"][1] * ratio))
    )


class SinusoidalEmbedding(nn.Module):
    """Sines and cosines (B, size) of steps (B,)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.frequencies = size // 2

    def forward(self, steps: Tensor) -> Tensor:
        numbers = torch.arange(self.frequencies, device=steps.device)
        period = torch.exp(numbers * -(math.log(10_000) / (self.frequencies - 1)))
        angles = steps[:, None] * period
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Convolution(nn.Module):
    """A convolution, normalised by groups, and Mish."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int = 8) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2),
            nn.GroupNorm(groups, outputs),
            nn.Mish(),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return y


class Residual(nn.Module):
    """Two convolutions of (B, C, H) with a skip connection.

    A condition (B, D) scales and shifts the first one (FiLM).
    """

    def __init__(
        self, inputs: int, outputs: int, condition: int, config: Mapping[str, Any]
    ) -> None:
        super().__init__()
        kernel = config["kernel_size"]
        groups = config["n_groups"]
        self.scaled = config["use_film_scale_modulation"]
        self.conv1 = Convolution(inputs, outputs, kernel, groups)
        self.cond_encoder = nn.Sequential(
            nn.Mish(), nn.Linear(condition, outputs * (2 if self.scaled else 1))
        )
        self.conv2 = Convolution(outputs, outputs, kernel, groups)
        self.residual_conv = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        y = self.conv1(x)
        offset = self.cond_encoder(condition).unsqueeze(-1)
        if self.scaled:
            scale, offset = offset.chunk(2, dim=1)
            y = scale * y
        residual: Tensor = self.residual_conv(x)
        return self.conv2(y + offset) + residual


class UNet(nn.Module):
    """Noisy actions (B, H, A), steps (B,) and a condition (B, D) to noise or actions (B, H, A)."""

    def __init__(self, config: Mapping[str, Any], condition: int) -> None:
        super().__init__()
        size = config["diffusion_step_embed_dim"]
        widths = config["down_dims"]
        actions = feature_size(config, ACTION)
        self.diffusion_step_encoder = nn.Sequential(
            SinusoidalEmbedding(size),
            nn.Linear(size, 4 * size),
            nn.Mish(),
            nn.Linear(4 * size, size),
        )
        pairs, last = [*pairwise((actions, *widths))], len(widths) - 1

        def stage(inputs: int, outputs: int, between: nn.Module) -> nn.ModuleList:
            return nn.ModuleList([block(inputs, outputs), block(outputs, outputs), between])

        def block(inputs: int, outputs: int) -> Residual:
            return Residual(inputs, outputs, size + condition, config)

        self.down_modules: Any = nn.ModuleList(
            stage(
                inputs,
                outputs,
                nn.Conv1d(outputs, outputs, 3, 2, 1) if index < last else nn.Identity(),
            )
            for index, (inputs, outputs) in enumerate(pairs)
        )
        self.mid_modules = nn.ModuleList(
            [block(widths[-1], widths[-1]), block(widths[-1], widths[-1])]
        )
        self.up_modules: Any = nn.ModuleList(
            stage(2 * outputs, inputs, nn.ConvTranspose1d(inputs, inputs, 4, 2, 1))
            for inputs, outputs in reversed(pairs[1:])
        )
        self.final_conv = nn.Sequential(
            Convolution(widths[0], widths[0], config["kernel_size"]),
            nn.Conv1d(widths[0], actions, 1),
        )

    def forward(self, point: Tensor, steps: Tensor, condition: Tensor) -> Tensor:
        x = point.transpose(1, 2)
        condition = torch.cat([self.diffusion_step_encoder(steps), condition], dim=-1)
        skipped: list[Tensor] = []
        for first, second, between in self.down_modules:
            x = second(first(x, condition), condition)
            skipped.append(x)
            x = between(x)
        for block in self.mid_modules:
            x = block(x, condition)
        for first, second, between in self.up_modules:
            x = between(second(first(torch.cat([x, skipped.pop()], dim=1), condition), condition))
        predicted: Tensor = self.final_conv(x)
        return predicted.transpose(1, 2)


class DiffusionNetwork(nn.Module):
    """Cameras and U-Net.

    Args:
        config: LeRobot's config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        self.observed = config["n_obs_steps"]
        cameras, keypoints = len(image_shapes(config)), config["spatial_softmax_num_keypoints"]
        if cameras and config["use_separate_rgb_encoder_per_camera"]:
            self.rgb_encoder: nn.Module = nn.ModuleList(
                CameraEncoder(config) for _ in range(cameras)
            )
        elif cameras:
            self.rgb_encoder = CameraEncoder(config)
        features = (
            feature_size(config, STATE)
            + 2 * keypoints * cameras
            + feature_size(config, ENVIRONMENT)
        )
        self.unet = UNet(config, features * self.observed)

    def condition(
        self, state: Tensor, images: list[Tensor], corner: Callable[[int], int] | None = None
    ) -> Tensor:
        """Return features (B, D) of a state (B, V) and each camera's images (B, 3, H, W).

        They are repeated for each time step.
        """
        parts = [state]
        for index, image in enumerate(images):
            camera = (
                self.rgb_encoder[index]
                if isinstance(self.rgb_encoder, nn.ModuleList)
                else self.rgb_encoder
            )
            parts.append(camera(image, corner))
        if feature_size(self.config, ENVIRONMENT):
            parts.append(state)
        return torch.cat(parts, dim=-1).repeat(1, self.observed)


class DiffusionPolicy(Visuomotor):
    """Chunks by denoising; cloning predicts the noise that was mixed into demonstrated actions."""

    config: Config
    horizon_key, needed = "horizon", ("n_obs_steps",)
    statistics_kind: ClassVar[Kind] = "bounds"
    optional: ClassVar[frozenset[str]] = frozenset(
        {
            "pretrained_backbone_weights",
            "resize_shape",
            "crop_ratio",
            "do_mask_loss_for_padding",
            "drop_n_last_frames",
        }
    )
    smallest: ClassVar[Mapping[str, Any]] = {
        "vision_backbone": "resnet18",
        "resize_shape": None,
        "crop_ratio": 1.0,
        "crop_shape": None,
        "crop_is_random": True,
        "pretrained_backbone_weights": None,
        "use_group_norm": True,
        "spatial_softmax_num_keypoints": 32,
        "use_separate_rgb_encoder_per_camera": False,
        "down_dims": [64, 128],
        "kernel_size": 5,
        "n_groups": 8,
        "diffusion_step_embed_dim": 64,
        "use_film_scale_modulation": True,
        "noise_scheduler_type": "DDIM",
        "num_train_timesteps": 100,
        "beta_schedule": "squaredcos_cap_v2",
        "beta_start": 1e-4,
        "beta_end": 0.02,
        "prediction_type": "epsilon",
        "clip_sample": True,
        "clip_sample_range": 1.0,
        "do_mask_loss_for_padding": False,
        "drop_n_last_frames": 0,
        "num_inference_steps": 10,
    }
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "noise_scheduler_type": ("DDPM", "DDIM"),
        "prediction_type": ("epsilon", "sample"),
    }

    def __init__(self, spec: StationSpec, config: Config, network: Any = None) -> None:
        super().__init__(spec, config, network)
        if self.config.denoising_steps > (trained := self.network.config["num_train_timesteps"]):
            raise SpecError(
                f"policy.denoising_steps: expected at most {trained}, with which the network is "
                f"trained (num_train_timesteps), got {self.config.denoising_steps}"
            )

    def keys_of_settings(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Visuomotor``. LeRobot's horizon begins with the first time step that is read.

        The horizon is also a multiple of the U-Net's total stride.
        """
        least = self.config.horizon + self.config.n_obs_steps - 1
        multiple = 2 ** len(document["down_dims"])
        return {"horizon": -(-least // multiple) * multiple, "n_obs_steps": self.config.n_obs_steps}

    @classmethod
    def make(cls, document: Mapping[str, Any]) -> nn.Module:
        """See ``Visuomotor``."""
        for key, choices in cls.choices.items():
            if document[key] not in choices:
                raise ValueError(f"{key}: expected {' or '.join(choices)}, got {document[key]!r}")
        trained = document["num_train_timesteps"]
        if not 1 <= (document["num_inference_steps"] or trained) <= trained:
            raise ValueError(
                f"num_inference_steps: expected 1 to num_train_timesteps of {trained}, got "
                f"{document['num_inference_steps']}"
            )
        NoiseSchedule(document, torch.device("cpu"))
        if len({*image_shapes(document)}) > 1:
            raise ValueError("expected cameras of one size")
        return DiffusionNetwork(document)

    @classmethod
    def chunk_length(cls, document: Mapping[str, Any]) -> int:
        """See ``Visuomotor``."""
        return int(document["horizon"]) - int(document["n_obs_steps"]) + 1

    def check_document(self, folder: Path, document: Mapping[str, Any]) -> None:
        """See ``Visuomotor``."""
        if (got := document["n_obs_steps"]) != self.config.n_obs_steps:
            raise PolicyFileError(
                f"policy.n_obs_steps: expected {got}, as the checkpoint {folder} has it in "
                f"config.json, got {self.config.n_obs_steps}. Set policy.n_obs_steps: {got}; the "
                "policy then gives the present time step so many times"
            )

    def decode(self, batch: Batch, draws: bool, generator: torch.Generator | None) -> Tensor:
        """See ``Visuomotor``: from drawn noise, or from zero noise without any on the way."""
        config, inputs = self.network.config, self.inputs(batch)
        shape = len(inputs[0]), config["horizon"], self.spec.action.dim
        condition, noise = self.network.condition(*inputs), NoiseSchedule(config, self.device)

        def draw() -> Tensor:
            return sharding.noise(torch.randn, shape, generator, self.device)

        point = draw() if draws else torch.zeros(shape, device=self.device)
        count = (
            self.config.denoising_steps
            or config["num_inference_steps"]
            or config["num_train_timesteps"]
        )
        for step, following in noise.steps(count):
            at = torch.full((len(point),), step, device=self.device)
            point = noise.denoise_step(
                point,
                self.network.unet(point, at, condition),
                step,
                following,
                draw if draws else None,
            )
        return self.to_actions(point[:, config["n_obs_steps"] - 1 :])

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return E |predicted - noise|^2, or of the actions by ``prediction_type``.

        LeRobot repeats the first and the last action if a data set has none. This does the same if
        the network's horizon is longer than the demonstrated actions (B, H A).
        """
        config, goal = self.network.config, self.to_network(actions)
        before = config["n_obs_steps"] - 1
        after = config["horizon"] - before - goal.shape[1]
        goal = torch.cat(
            [goal[:, :1].expand(-1, before, -1), goal, goal[:, -1:].expand(-1, after, -1)], dim=1
        )
        noise = sharding.noise(torch.randn, goal.shape, generator, goal.device)
        uniform = sharding.noise(torch.rand, (len(goal),), generator, goal.device)
        steps = (uniform * config["num_train_timesteps"]).long()

        def corner(free: int) -> int:
            return int(torch.randint(free + 1, (), generator=generator, device=goal.device))

        condition = self.network.condition(
            *self.inputs(batch), corner if config["crop_is_random"] else None
        )
        predicted = self.network.unet(
            NoiseSchedule(config, goal.device).add_noise(goal, noise, steps), steps, condition
        )
        return F.mse_loss(predicted, noise if config["prediction_type"] == "epsilon" else goal)


Policy = DiffusionPolicy
