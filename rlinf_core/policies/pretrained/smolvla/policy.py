"""SmolVLA: a small vision-language model and an action expert that carries noise to actions.

Shukor et al. 2025, arXiv 2506.01844. Images, sentence and state are prepared here like in
LeRobot, in training and on stations. Each image is scaled into a square with its shape kept,
black left of it and above, its values in [-1, 1]. A sentence ends with a newline. Vectors are
normalised and padded with zeros.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.flow_matching import ExpertFlowMatching
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.smolvla import Config
from rlinf_core.policies.pretrained.smolvla.network import FACTORY
from rlinf_core.policies.pretrained.tokenization import pad_tokens
from rlinf_core.specs import arrays


class SmolVLA(ExpertFlowMatching):
    """Images, sentence and state go to the vision-language model; actions to the expert."""

    config: Config
    name = "a SmolVLA"
    factory: ClassVar[NetworkFactory] = FACTORY

    def inputs(self, batch: Batch) -> Batch:
        """Return images, tokens with their mask, and state."""
        pixels = torch.stack([self._square(batch[image.name]) for image in self.spec.images], dim=1)
        ids, mask = pad_tokens(
            self.tokenize(batch[arrays.INSTRUCTION]), pixels.device, multiple=self.token_multiple
        )
        return {"pixels": pixels, "ids": ids, "mask": mask, "state": self.padded_state(batch)}

    def _square(self, images: Tensor) -> Tensor:
        """Resize images (B, H, W, 3) uint8 and pad them at the left and top to (B, 3, S, S).

        The values are in [-1, 1].
        """
        width, height = self.network.config["resize_imgs_with_padding"]
        pixels = images.permute(0, 3, 1, 2).float() / 255.0
        ratio = max(pixels.shape[3] / width, pixels.shape[2] / height)
        shape = (int(pixels.shape[2] / ratio), int(pixels.shape[3] / ratio))
        if shape != pixels.shape[2:]:
            pixels = F.interpolate(pixels, shape, mode="bilinear")
        return 2.0 * F.pad(pixels, (width - shape[1], 0, height - shape[0], 0)) - 1.0

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``FlowMatching``."""
        return self.tokenizer.encode(f"{sentence}\n")


Policy = SmolVLA
