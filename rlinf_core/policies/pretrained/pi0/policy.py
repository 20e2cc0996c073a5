"""pi0: a vision-language model and an action expert that carries noise to a chunk of actions.

Black et al. 2024, arXiv 2410.24164; the network is transformers' own. Images, sentence and state
are prepared here, in training and on stations alike. Each image is scaled into a square with its
shape kept and its values in [-1, 1]. Tokens are images, beginning, sentence, newline. Vectors are
normalised and padded with zeros.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.flow_matching import FlowMatching, TimeSampling
from rlinf_core.policies.pretrained.image_preprocessing import letterbox
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.openpi import MAKER
from rlinf_core.policies.pretrained.pi0 import Config
from rlinf_core.policies.pretrained.pi0.network import FACTORY
from rlinf_core.policies.pretrained.tokenization import pad_tokens
from rlinf_core.specs import arrays


class Pi0(FlowMatching):
    """State and actions go to the expert; images and sentence to the vision-language model."""

    config: Config
    name = "a pi0"
    factory: ClassVar[NetworkFactory] = FACTORY

    def read_sizes(self) -> None:
        """See ``FlowMatching``."""
        sizes = self.network.config
        if sizes.time_sampling_beta_beta != 1.0:
            raise SpecError(
                f"policy.network: expected time_sampling_beta_beta of 1, got "
                f"{sizes.time_sampling_beta_beta}"
            )
        self.max_state_dim, self.max_action_dim = sizes.max_state_dim, sizes.max_action_dim
        self.time_sampling = TimeSampling(
            sizes.time_sampling_beta_alpha,
            sizes.time_sampling_scale,
            sizes.time_sampling_offset,
        )

    @property
    def vlm(self) -> torch.nn.Module:
        """See ``FlowMatching``."""
        vlm: torch.nn.Module = self.network.model.vlm
        return vlm

    @property
    def _like_lerobot(self) -> bool:
        """True for LeRobot's checkpoints; openpi prepares images and sentences differently."""
        return getattr(self.network.config, MAKER, "") == "lerobot"

    def inputs(self, batch: Batch) -> Batch:
        """Return state, images and tokens."""
        size = self.network.config.vlm_config.vision_config.image_size
        pixels = torch.stack(
            [
                letterbox(batch[image.name], size, not self._like_lerobot)
                for image in self.spec.images
            ],
            dim=1,
        )
        ids, mask = self._sentences(batch[arrays.INSTRUCTION], pixels)
        return {
            "state": self.padded_state(batch),
            "pixel_values": pixels,
            "pixel_attention_mask": torch.ones(
                pixels.shape[:2], dtype=torch.bool, device=pixels.device
            ),
            "input_ids": ids,
            "attention_mask": mask,
        }

    def _sentences(self, rows: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (B, L) of images (B, cameras, ...) and sentences, and their mask."""
        config = self.network.config.vlm_config
        patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
        before = [config.image_token_id] * (pixels.shape[1] * patches)
        ids, mask = pad_tokens(self.tokenize(rows), pixels.device, before, self.token_multiple)
        return ids, mask.long()

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``FlowMatching``.

        Outer blanks and underscores are removed, like in openpi; LeRobot's folders keep the
        sentence.
        """
        if not self._like_lerobot:
            sentence = sentence.strip().replace("_", " ").replace("\n", " ")
        return [
            self.network.config.vlm_config.text_config.bos_token_id,
            *self.tokenizer.encode(f"{sentence}\n"),
        ]

    def _prefix(self, inputs: Batch) -> Prefix:
        model, mask = self.network.model, inputs["attention_mask"]
        embeds = model.embed_prefix(
            inputs["input_ids"], inputs["pixel_values"], inputs["pixel_attention_mask"]
        )
        cache = model.vlm(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=mask.cumsum(-1) - 1,
            token_type_ids=torch.zeros_like(embeds)[:, :, 0],
            use_cache=True,
        ).past_key_values
        return Prefix.from_cache(cache, mask)

    def _velocity(self, inputs: Batch, prefix: Prefix, point: Tensor, time: Tensor) -> Tensor:
        from transformers import DynamicCache

        # the network appends its own keys and values
        cache = DynamicCache(zip(prefix.keys, prefix.values, strict=True))
        velocity: Tensor = self.network(
            state=inputs["state"],
            noise=point,
            timestep=time,
            attention_mask=inputs["attention_mask"],
            pixel_attention_mask=inputs["pixel_attention_mask"],
            past_key_values=cache,
        ).logits
        return velocity


Policy = Pi0
