"""Qwen2.5-VL: the last 256 tokens of its vocabulary, unused in text, are action numbers.

Bai et al. 2025, arXiv 2502.13923. This module prepares images and sentence like Qwen's own
processor, in training and on stations. Each image keeps its shape, with sides of whole patches.
The sentence is the question of a chat.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.action_tokens import ActionTokens, Prompt
from rlinf_core.policies.pretrained.image_preprocessing import cut_patches
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.qwen_vl import Config
from rlinf_core.policies.pretrained.qwen_vl.network import (
    FACTORY,
    MAX_TOKENS,
    MEAN,
    MIN_TOKENS,
    STD,
    TURN,
)
from rlinf_core.specs import arrays

PROMPT = "What action should the robot take to {}?"
BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
AFTER = "<|im_end|>\n<|im_start|>assistant\n"


class QwenVL(ActionTokens):
    """The prompt: a chat's beginning, each camera's image, the question, the answer's turn."""

    config: Config
    name = "a Qwen2.5-VL"
    factory: ClassVar[NetworkFactory] = FACTORY

    @property
    def decoder(self) -> Any:
        """See ``ActionTokens``."""
        return self.network.decoder

    @property
    def vocabulary_size(self) -> int:
        """See ``ActionTokens``."""
        size: int = self.decoder.config.vocab_size
        return size

    def head(self, hidden: Tensor) -> Tensor:
        """See ``ActionTokens``."""
        logits: Tensor = self.network.head(hidden)
        return logits

    def inputs(self, batch: Batch) -> Batch:
        """Return patches of images, their grids (B cameras, 3), and tokens with their mask."""
        images = [self.patches(batch[image.name]) for image in self.spec.images]
        pixels, size = torch.cat([patches for patches, _ in images], dim=1), len(batch["vectors"])
        grid = torch.tensor([[1, *grid] for _, grid in images] * size, device=pixels.device)
        before = self._before([grid for _, grid in images])
        token_ids = self.tokenize(batch[arrays.INSTRUCTION])
        longest = max(map(len, token_ids))
        ids = torch.tensor(
            [[0] * (longest - len(tokens)) + before + tokens for tokens in token_ids],
            device=pixels.device,
        )
        lengths = torch.tensor(
            [len(before) + len(tokens) for tokens in token_ids], device=pixels.device
        )
        mask = (
            torch.arange(ids.shape[1], device=pixels.device) >= ids.shape[1] - lengths[:, None]
        ).long()
        return {"pixels": pixels, "grid": grid, "ids": ids, "mask": mask}

    def embed_prompt(self, inputs: Batch) -> Prompt:
        """See ``ActionTokens``."""
        embeds, position_ids = self.network.embed(
            inputs["ids"], inputs["mask"], inputs["pixels"].flatten(0, 1), inputs["grid"]
        )
        return Prompt(embeds, inputs["mask"], position_ids)

    def _before(self, grids: list[tuple[int, int]]) -> list[int]:
        """Return the tokens of a chat's beginning and of images with these grids of patches."""
        config = self.network.model.config
        merged = config.vision_config.spatial_merge_size**2
        tokens = [] if self.tokenizer.token_id(TURN) is None else self.tokenizer.encode(BEFORE)
        for down, right in grids:
            patches = [config.image_token_id] * (down * right // merged)
            tokens += [config.vision_start_token_id, *patches, config.vision_end_token_id]
        return tokens

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``ActionTokens``."""
        token_ids = self.tokenizer.encode(PROMPT.format(sentence), plain=True)
        return (
            token_ids
            if self.tokenizer.token_id(TURN) is None
            else token_ids + self.tokenizer.encode(AFTER)
        )

    def patches(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return the patches (B, P, numbers) of (B, H, W, 3) uint8, and their grid.

        The patches of a merged square are adjacent.
        """
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        vision = self.network.model.config.vision_config
        token = vision.patch_size * vision.spatial_merge_size
        height, width = images.shape[1:3]
        shape = smart_resize(height, width, token, MIN_TOKENS * token**2, MAX_TOKENS * token**2)
        pixels = images.permute(0, 3, 1, 2).float() / 255.0
        if shape != pixels.shape[2:]:
            pixels = F.interpolate(pixels, shape, mode="bicubic", antialias=True).clamp(0.0, 1.0)
        return cut_patches(pixels, vision, MEAN, STD)


Policy = QwenVL
