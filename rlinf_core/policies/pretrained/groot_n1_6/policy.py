"""GR00T N1.6: Eagle 3, and a diffusion transformer that makes actions from noise.

NVIDIA 2025, huggingface.co/nvidia/GR00T-N1.6-3B. Images, sentence and state are prepared here
like in NVIDIA/Isaac-GR00T, commit ead5283, in training and on stations. Beside N1.7:

* Images keep their shape. After the crop their sides become multiples of 28 pixels, by Eagle's
  processor (``processing_eagle3_vl.py``). N1.5 makes squares of them.
* The chat begins with the system's sentence, as in N1.5. The instruction comes before the images,
  each with its number. In N1.5 and N1.7 the images come first.
* Bars beside images (``letter_box_transform``) are off without the key, as in commit 9b37aa1.
* Without ``use_albumentations`` images are resized to ``image_target_size``, cropped to
  ``image_crop_size`` and resized again, bilinearly.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.groot.network import EAGLE
from rlinf_core.policies.pretrained.groot_n1_6 import Config
from rlinf_core.policies.pretrained.groot_n1_6.network import FACTORY, MERGED, PATCH, PROCESSOR
from rlinf_core.policies.pretrained.groot_n1_7.policy import GrootN17
from rlinf_core.policies.pretrained.image_preprocessing import (
    pad_to_square,
    resize,
    resize_by_area,
    resize_like_pillow,
)
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.tokenization import pad_tokens
from rlinf_core.specs import arrays

BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>"
AFTER = "<|im_end|>\n"
SIDE = PATCH * MERGED  # pixels along a side of a token
PIXELS = (4 * SIDE**2, 4096 * SIDE**2)  # smallest and largest image of Eagle's processor
LONGEST = 500 * PATCH  # longest side [pixels]


class GrootN16(GrootN17):
    """Images and sentence go to Eagle 3, state and actions to the transformer."""

    config: Config
    name = "a GR00T N1.6"
    factory: ClassVar[NetworkFactory] = FACTORY

    def inputs(self, batch: Batch) -> Batch:
        """Return patches of images, their grids (B, cameras, 2), tokens and state."""
        images = [self._prepare_image(batch[image.name]) for image in self.spec.images]
        grids = [(x.shape[2] // PATCH, x.shape[3] // PATCH) for x in images]
        pixels = torch.cat([_patches(x / 127.5 - 1.0) for x in images], dim=1)
        grid = torch.tensor([grids] * len(pixels), device=pixels.device)
        before = self.tokenizer.encode(BEFORE) if self._has_chat_tokens else []
        after = self._image_tokens(grids)
        token_ids = [[*tokens, *after] for tokens in self.tokenize(batch[arrays.INSTRUCTION])]
        ids, mask = pad_tokens(token_ids, pixels.device, before, self.token_multiple)
        state = self.padded_state(batch)
        return {"pixels": pixels, "grid": grid, "ids": ids, "mask": mask, "state": state}

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``FlowMatching``: with the words around it, which its last letters may join."""
        sentence = self.formalize(sentence)
        if self._has_chat_tokens:
            sentence = f"user\n{sentence}<image 1>"
        return self.tokenizer.encode(sentence, plain=True)

    def _image_tokens(self, grids: list[tuple[int, int]]) -> list[int]:
        """Return the tokens after the first image's number, for these grids of patches."""
        begin, end = self.tokenizer.token_id("<img>"), self.tokenizer.token_id("</img>")
        tokens: list[int] = []
        for number, (down, right) in enumerate(grids, start=1):
            if number > 1 and self._has_chat_tokens:
                tokens += self.tokenizer.encode(f"<image {number}>")
            count = down * right // MERGED**2
            patches = [self.network.config[EAGLE]["image_token_index"]] * count
            tokens += [token for token in (begin, *patches, end) if token is not None]
        return tokens + (self.tokenizer.encode(AFTER) if self._has_chat_tokens else [])

    def _prepare_image(self, images: Tensor) -> Tensor:
        """Return images (B, 3, H, W) in grey levels, of (B, H, W, 3) uint8."""
        keys = self.network.config[PROCESSOR]
        target, crop = keys["image_target_size"], keys["image_crop_size"]
        pixels = images.permute(0, 3, 1, 2).float()
        if keys["letter_box_transform"]:
            pixels = pad_to_square(pixels)
        if keys["use_albumentations"]:
            edge = keys["shortest_image_edge"] or target[0]
            fraction = keys["crop_fraction"]
            if fraction is None:
                fraction = crop[0] / target[0]
            pixels = resize_by_area(pixels, edge)
            height, width = (max(1, int(side * fraction)) for side in pixels.shape[2:])
            top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
            pixels = resize_by_area(pixels[:, :, top : top + height, left : left + width], edge)
        else:
            pixels = resize(pixels, tuple(target), "bilinear")
            top, left = (round((side - cut) / 2.0) for side, cut in zip(target, crop, strict=True))
            pixels = pixels[:, :, top : top + crop[0], left : left + crop[1]]
            pixels = resize(pixels, tuple(target), "bilinear")
        return resize_like_pillow(pixels, fitting(*pixels.shape[2:]))


def fitting(height: int, width: int) -> tuple[int, int]:
    """Return the sides in whole tokens that Eagle's processor resizes an image to [pixels]."""
    down, right = (min(max(SIDE, round(side / SIDE) * SIDE), LONGEST) for side in (height, width))
    least, most = PIXELS
    if down * right > most:
        scale = math.sqrt(down * right / most)
        return math.floor(down / scale / SIDE) * SIDE, math.floor(right / scale / SIDE) * SIDE
    if down * right < least:
        scale = math.sqrt(least / (height * width))
        return math.ceil(height * scale / SIDE) * SIDE, math.ceil(width * scale / SIDE) * SIDE
    return down, right


def _patches(pixels: Tensor) -> Tensor:
    """Return the patches (B, P, numbers) of images (B, 3, H, W), row by row."""
    parts = pixels.unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH))
    return parts.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


Policy = GrootN16
