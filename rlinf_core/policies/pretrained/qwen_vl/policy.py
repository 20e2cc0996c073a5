"""Qwen2.5-VL: the last 256 tokens of its vocabulary, unused in text, are action numbers.

Bai et al. 2025, arXiv 2502.13923. This module prepares pictures and sentence like Qwen's own
processor, in training and on stations. Each picture keeps its shape, with sides of whole patches.
The sentence is the question of a chat.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.action_tokens import ActionTokens, Prompt
from rlinf_core.policies.pretrained.image_preprocessing import to_patches
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.qwen_vl import Config
from rlinf_core.policies.pretrained.qwen_vl.network import (
    FACTORY,
    FEWEST,
    MEAN,
    MOST,
    STD,
    TURN,
    QwenVLNetwork,
)
from rlinf_core.policies.pretrained.tokenization import Tokenizer
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

PROMPT = "What action should the robot take to {}?"
BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
AFTER = "<|im_end|>\n<|im_start|>assistant\n"


class QwenVL(ActionTokens):
    """The prompt: a chat's beginning, each camera's picture, the question, the answer's turn."""

    config: Config
    name = "a Qwen2.5-VL"
    factory: ClassVar[NetworkFactory] = FACTORY

    def __init__(
        self,
        spec: StationSpec,
        config: Config | None = None,
        network: QwenVLNetwork | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config or Config(), network, tokenizer)

    @property
    def decoder(self) -> Any:
        """See ``ActionTokens``."""
        return self.network.decoder

    @property
    def words(self) -> int:
        """See ``ActionTokens``."""
        words: int = self.decoder.config.vocab_size
        return words

    def head(self, hidden: Tensor) -> Tensor:
        """See ``ActionTokens``."""
        logits: Tensor = self.network.head(hidden)
        return logits

    def inputs(self, batch: Batch) -> Batch:
        """Return patches of pictures, their grids (B cameras, 3), and tokens with their mask."""
        pictures = [self.patches(batch[image.name]) for image in self.spec.images]
        pixels, size = torch.cat([patches for patches, _ in pictures], dim=1), len(batch["vectors"])
        grid = torch.tensor([[1, *grid] for _, grid in pictures] * size, device=pixels.device)
        before = self._before([grid for _, grid in pictures])
        token_ids = self.tokenize(batch[arrays.NAME])
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

    def read(self, inputs: Batch) -> Prompt:
        """See ``ActionTokens``."""
        embeds, places = self.network.embedded(
            inputs["ids"], inputs["mask"], inputs["pixels"].flatten(0, 1), inputs["grid"]
        )
        return Prompt(embeds, inputs["mask"], places)

    def _before(self, grids: list[tuple[int, int]]) -> list[int]:
        """Return the tokens of a chat's beginning and of pictures with these grids of patches."""
        config = self.network.model.config
        merged = config.vision_config.spatial_merge_size**2
        tokens = [] if self.tokenizer.id(TURN) is None else self.tokenizer.ids(BEFORE)
        for down, right in grids:
            places = [config.image_token_id] * (down * right // merged)
            tokens += [config.vision_start_token_id, *places, config.vision_end_token_id]
        return tokens

    def prompt(self, sentence: str) -> list[int]:
        """See ``ActionTokens``."""
        token_ids = self.tokenizer.ids(PROMPT.format(sentence), plain=True)
        return (
            token_ids if self.tokenizer.id(TURN) is None else token_ids + self.tokenizer.ids(AFTER)
        )

    def patches(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return the patches (B, P, numbers) of (B, H, W, 3) uint8, and their grid.

        The patches of a merged square are adjacent.
        """
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        vision = self.network.model.config.vision_config
        token = vision.patch_size * vision.spatial_merge_size
        height, width = images.shape[1:3]
        shape = smart_resize(height, width, token, FEWEST * token**2, MOST * token**2)
        pixels = images.permute(0, 3, 1, 2).float() / 255.0
        if shape != pixels.shape[2:]:
            pixels = F.interpolate(pixels, shape, mode="bicubic", antialias=True).clamp(0.0, 1.0)
        return to_patches(pixels, vision, MEAN, STD)


Policy = QwenVL
