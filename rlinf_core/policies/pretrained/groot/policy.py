"""GR00T N1.5: a vision-language model, and a diffusion transformer that makes actions from noise.

NVIDIA 2025, arXiv 2503.14734. Images, sentence and state are prepared here like in LeRobot, in
training and on stations. Each image is resized to a square, whatever its shape, with values in
[-1, 1]. The sentence is a chat's question. Vectors are normalised and padded with zeros.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.flow_matching import FlowMatching, TimeSampling
from rlinf_core.policies.pretrained.groot import Config
from rlinf_core.policies.pretrained.groot.network import EAGLE, FACTORY
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.tokenization import pad_tokens
from rlinf_core.specs import arrays

TURN = "<|im_start|>"  # a token of Eagle's tokenizer; networks from scratch lack it
BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
AFTER = "<|im_end|>\n<|im_start|>assistant\n"


class Groot(FlowMatching):
    """Images and sentence go to the vision-language model, state and actions to the DiT."""

    config: Config
    name = "a GR00T N1.5"
    factory: ClassVar[NetworkFactory] = FACTORY
    statistics_kind = "extremes"

    def read_sizes(self) -> None:
        """See ``FlowMatching``."""
        head = self.network.head_config
        self.max_state_dim, self.max_action_dim = head["max_state_dim"], head["action_dim"]
        self.time_sampling = TimeSampling(head["noise_beta_alpha"], 1.0 / head["noise_s"], 0.0)
        if self.config.embodiment >= head["max_num_embodiments"]:
            raise SpecError(
                f"policy.embodiment: expected one of 0 to {head['max_num_embodiments'] - 1}, "
                f"which the network has, got {self.config.embodiment}"
            )

    @property
    def vlm(self) -> torch.nn.Module:
        """See ``FlowMatching``."""
        vlm: torch.nn.Module = self.network.backbone
        return vlm

    def inputs(self, batch: Batch) -> Batch:
        """Return images, tokens and state."""
        pixels = torch.stack([self._square(batch[image.name]) for image in self.spec.images], dim=1)
        after = self.tokenizer.encode(AFTER) if self._has_chat_tokens else []
        token_ids = [[*tokens, *after] for tokens in self.tokenize(batch[arrays.INSTRUCTION])]
        ids, mask = pad_tokens(
            token_ids, pixels.device, self._chat_beginning(), self.token_multiple
        )
        return {"pixels": pixels, "ids": ids, "mask": mask, "state": self.padded_state(batch)}

    @property
    def _has_chat_tokens(self) -> bool:
        return self.tokenizer.token_id(TURN) is not None

    def _chat_beginning(self) -> list[int]:
        """Return the tokens of a chat's beginning, and of one image per camera."""
        patches = [self.network.config[EAGLE]["image_token_index"]] * self.network.image_tokens
        begin, end = self.tokenizer.token_id("<img>"), self.tokenizer.token_id("</img>")
        tokens: list[int] = []
        for number in range(1, len(self.spec.images) + 1):
            named = (
                self.tokenizer.encode((BEFORE if number == 1 else "") + f"<image {number}>")
                if self._has_chat_tokens
                else []
            )
            tokens += [*named, *(token for token in (begin, *patches, end) if token is not None)]
        return tokens

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``FlowMatching``: the sentence is written like a Python list, as in its training."""
        return self.tokenizer.encode(
            str([sentence]) if self._has_chat_tokens else sentence, plain=True
        )

    def _square(self, images: Tensor) -> Tensor:
        """Resize (B, H, W, 3) uint8 to the network's square (B, 3, S, S), in [-1, 1]."""
        size = self.network.config[EAGLE]["vision_config"]["image_size"]
        pixels = images.permute(0, 3, 1, 2).float()
        if pixels.shape[2:] != (size, size):
            pixels = F.interpolate(pixels, (size, size), mode="bicubic", antialias=True)
        return pixels.round().clamp(0.0, 255.0) / 127.5 - 1.0

    def _prefix(self, inputs: Batch) -> Prefix:
        prefix: Prefix = self.network.prefix(inputs["pixels"], inputs["ids"], inputs["mask"])
        return prefix

    def _velocity(self, inputs: Batch, prefix: Prefix, point: Tensor, time: Tensor) -> Tensor:
        velocity: Tensor = self.network.action_head.velocity(
            prefix, inputs["state"], point, time, self.config.embodiment
        )
        return velocity


Policy = Groot
