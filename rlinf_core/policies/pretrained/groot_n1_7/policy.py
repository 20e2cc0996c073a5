"""GR00T N1.7: Qwen3-VL, and a diffusion transformer that makes actions from noise.

NVIDIA 2026, huggingface.co/nvidia/GR00T-N1.7-3B. Pictures, sentence and state are prepared here
like in LeRobot 0.6.1, in training and on stations. Pictures are resized, cropped in the middle and
resized again, as the checkpoint's processor_config.json has it. The sentence is in small letters
without punctuation, after the pictures in a chat's question. With a checkpoint's statistics, state
and actions stay within the range of the data set.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies.action_expert import Prefix
from rlinf_core.policies.base import Batch
from rlinf_core.policies.huggingface import Tokenizer, padded
from rlinf_core.policies.networks import NetworkFactory
from rlinf_core.policies.pretrained.groot.policy import Groot
from rlinf_core.policies.pretrained.groot_n1_7 import Config
from rlinf_core.policies.pretrained.groot_n1_7.network import COSMOS, FACTORY, PROCESSOR
from rlinf_core.policies.pretrained.qwen_vl.patches import to_patches
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

BEFORE, AFTER = "<|im_start|>user\n", "<|im_end|>\n"
COLOURS = (0.5, 0.5, 0.5)  # mean and deviation of pictures


class GrootN17(Groot):
    """Pictures and sentence go to Qwen3-VL, state and actions to the transformer."""

    config: Config
    name = "groot_n1_7"
    factory: ClassVar[NetworkFactory] = FACTORY
    recorded = ()  # Qwen3-VL reads the grids of pictures on the host

    def __init__(
        self,
        spec: StationSpec,
        config: Config | None = None,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config or Config(), network, tokenizer)

    def measure(self) -> None:
        """See ``FlowMatching``."""
        super().measure()
        head = self.network.head_config
        self.times = head["noise_beta_alpha"], head["noise_s"], 1.0 - head["noise_s"]

    def inputs(self, batch: Batch) -> Batch:
        """Return patches of pictures, their grids (B cameras, 3), tokens and state."""
        vision = self.network.vlm.config.vision_config
        pictures = [
            to_patches(self._picture(batch[image.name]) / 255.0, vision, COLOURS, COLOURS)
            for image in self.spec.images
        ]
        pixels, grids = torch.cat([patches for patches, _ in pictures], 1), [g for _, g in pictures]
        grid = torch.tensor([[1, *grid] for grid in grids] * len(pixels), device=pixels.device)
        after = self.tokenizer.ids(AFTER) if self._chats else []
        token_ids = [[*tokens, *after] for tokens in self.tokenize(batch[arrays.NAME])]
        ids, mask = padded(token_ids, pixels.device, self._beginning(grids), self.multiple)
        state = self.padded_state(batch)
        return {"pixels": pixels, "grid": grid, "ids": ids, "mask": mask, "state": state}

    def _beginning(self, grids: list[tuple[int, int]]) -> list[int]:
        """Return the tokens of a chat's beginning, and of pictures with these grids of patches."""
        config = self.network.config[COSMOS]
        merged = config["vision_config"]["spatial_merge_size"] ** 2
        tokens = self.tokenizer.ids(BEFORE) if self._chats else []
        for down, right in grids:
            places = [config["image_token_id"]] * (down * right // merged)
            tokens += [config["vision_start_token_id"], *places, config["vision_end_token_id"]]
        return tokens

    def prompt(self, sentence: str) -> list[int]:
        """See ``FlowMatching``."""
        if self.network.config[PROCESSOR]["formalize_language"]:
            letters = sentence.lower()
            sentence = "".join(x for x in letters if x.isalnum() or x.isspace() or x == "_")
        return self.tokenizer.ids(sentence, plain=True)

    def padded_state(self, batch: Batch) -> Tensor:
        """See ``FlowMatching``: with a checkpoint's statistics, from -1 to 1."""
        state = super().padded_state(batch)
        return state.clamp(-1.0, 1.0) if self._clips else state

    def played(self, point: Tensor) -> Tensor:
        """See ``FlowMatching``: with a checkpoint's statistics, within the data set's range."""
        return super().played(point.clamp(-1.0, 1.0) if self.config.statistics else point)

    def to_point(self, actions: Tensor) -> Tensor:
        """See ``FlowMatching``."""
        point = super().to_point(actions)
        return point.clamp(-1.0, 1.0) if self._clips else point

    @property
    def _clips(self) -> bool:
        return bool(self.config.statistics and self.network.config[PROCESSOR]["clip_outliers"])

    def _picture(self, images: Tensor) -> Tensor:
        """Return pictures (B, 3, H, W) in grey levels, of (B, H, W, 3) uint8."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        keys = self.network.config[PROCESSOR]
        edge, fraction = keys["image_target_size"][0], keys["crop_fraction"]
        if fraction is None and keys["image_crop_size"] is not None:
            fraction = keys["image_crop_size"][0] / edge
        pixels = images.permute(0, 3, 1, 2).float()
        if keys["letter_box_transform"]:
            pixels = _letter_boxed(pixels)
        first, area = keys["shortest_image_edge"] or edge, keys["use_albumentations"]
        pixels = _by_area(pixels, first) if area else _bicubic(pixels, (first, first))
        if fraction is not None and 0.0 < fraction < 1.0:
            sides = (side * fraction for side in pixels.shape[2:])
            height, width = (max(1, int(side) if area else round(side)) for side in sides)
            top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
            pixels = pixels[:, :, top : top + height, left : left + width]
        target = tuple(keys["image_target_size"])
        pixels = _by_area(pixels, first) if area else _bicubic(pixels, target)
        vision = self.network.vlm.config.vision_config
        square = vision.patch_size * vision.spatial_merge_size
        height, width = pixels.shape[2:]
        least, most = keys["pixels"]
        return _bicubic(pixels, smart_resize(height, width, square, least, most))

    def _prefix(self, inputs: Batch) -> Prefix:
        prefix: Prefix = self.network.prefix(
            inputs["pixels"], inputs["grid"], inputs["ids"], inputs["mask"]
        )
        return prefix


def _bicubic(pixels: Tensor, shape: tuple[int, int]) -> Tensor:
    """Resize pictures (B, 3, H, W) of whole grey levels.

    On a CPU torch resizes bytes as torchvision does, to the last level.
    """
    if tuple(pixels.shape[2:]) == tuple(shape):
        return pixels
    source = pixels.to(torch.uint8) if pixels.device.type == "cpu" else pixels
    resized = F.interpolate(
        source, list(shape), mode="bicubic", align_corners=False, antialias=True
    )
    return resized.float().round().clamp(0.0, 255.0)


def _letter_boxed(pixels: Tensor) -> Tensor:
    """Pad pictures (B, 3, H, W) with black to squares."""
    height, width = pixels.shape[2:]
    down, right = max(width - height, 0), max(height - width, 0)
    return F.pad(pixels, (right // 2, right - right // 2, down // 2, down - down // 2))


def _by_area(pixels: Tensor, edge: int) -> Tensor:
    """Resize the shorter side of pictures (B, 3, H, W), as OpenCV's INTER_AREA does with bytes."""
    height, width = pixels.shape[2:]
    if min(height, width) == edge:
        return pixels
    scale = edge / min(height, width)
    down, right = (max(1, round(size * scale)) for size in (height, width))
    if height < down or width < right:
        rows = _interpolated(pixels.int(), right) >> 4
        first, second, weight = _neighbours(height, down, pixels.device)
        upper = rows[:, :, first] * (2048 - weight)[:, None] >> 16
        lower = rows[:, :, second] * weight[:, None] >> 16
        return ((upper + lower + 2) >> 2).float().clamp(0.0, 255.0)
    weights = [
        _shares(size, result, pixels.device) for size, result in ((height, down), (width, right))
    ]
    means = weights[0] @ pixels @ weights[1].T
    halves = height == 2 * down and width == 2 * right  # there OpenCV rounds a half up
    return ((means + 0.5).floor() if halves else means.round()).clamp(0.0, 255.0)


def _shares(size: int, result: int, device: torch.device) -> Tensor:
    """Return the share (result, size) of each pixel of a side in a larger pixel."""
    step = size / result
    place = torch.arange(result, device=device, dtype=torch.float64)[:, None]
    pixel = torch.arange(size, device=device, dtype=torch.float64)
    low, high = place * step, (place + 1.0) * step
    shares = (torch.minimum(high, pixel + 1.0) - torch.maximum(low, pixel)).clamp(min=0.0)
    return (shares / step).float()


def _interpolated(pixels: Tensor, result: int) -> Tensor:
    """Return rows of more pixels, in parts of 1 / 2048."""
    first, second, weight = _neighbours(pixels.shape[-1], result, pixels.device)
    return pixels[..., first] * (2048 - weight) + pixels[..., second] * weight


def _neighbours(size: int, result: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return two pixels for each of a longer side, and the second's weight [1 / 2048].

    The order of the operations is OpenCV's, which decides at whole pixels.
    """
    ratio = result / size
    place = torch.arange(result, device=device, dtype=torch.float64)
    first = (place * (1.0 / ratio)).floor()
    part = ((place + 1.0) - (first + 1.0) * ratio).float()
    part = torch.where((part <= 0.0) | (first >= size - 1), 0.0, part - part.floor())
    before = first.long().clamp(max=size - 1)
    return before, (before + 1).clamp(max=size - 1), (part * 2048.0).round().int()


Policy = GrootN17
