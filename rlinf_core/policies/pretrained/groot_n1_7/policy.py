"""GR00T N1.7: Qwen3-VL, and a diffusion transformer that makes actions from noise.

NVIDIA 2026, huggingface.co/nvidia/GR00T-N1.7-3B. Images, sentence and state are prepared here
like in LeRobot 0.6.1, in training and on stations. Images are resized, cropped in the middle and
resized again, as the checkpoint's processor_config.json has it. The sentence is in small letters
without punctuation, after the images in a chat's question. With a checkpoint's statistics, state
and actions stay within the range of the data set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.dataset_statistics import trained_steps
from rlinf_core.policies.pretrained.flow_matching import TimeSampling
from rlinf_core.policies.pretrained.groot.policy import Groot
from rlinf_core.policies.pretrained.groot_n1_7 import Config
from rlinf_core.policies.pretrained.groot_n1_7.network import COSMOS, FACTORY, PROCESSOR
from rlinf_core.policies.pretrained.image_preprocessing import (
    cut_patches,
    pad_to_square,
    resize,
    resize_by_area,
)
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.tokenization import Tokenizer, pad_tokens
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

BEFORE, AFTER = "<|im_start|>user\n", "<|im_end|>\n"
COLOURS = (0.5, 0.5, 0.5)  # mean and deviation of images


class GrootN17(Groot):
    """Images and sentence go to Qwen3-VL, state and actions to the transformer."""

    config: Config
    name = "a GR00T N1.7"
    factory: ClassVar[NetworkFactory] = FACTORY
    graph_methods = ()  # Qwen3-VL reads the grids of images on the host

    def __init__(
        self,
        spec: StationSpec,
        config: Config,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config, network, tokenizer)
        if network is None and config.statistics:
            self._check_steps(Path(config.statistics))

    def _check_steps(self, statistics: Path) -> None:
        """Raise SpecError if more actions are played than the embodiment trained."""
        steps, keys = trained_steps(statistics), self.config.model_fields_set
        if steps and self.config.executed > steps and "n_action_steps" not in keys:
            raise SpecError(
                f"policy.n_action_steps: expected {steps}, the actions that the embodiment "
                f"{statistics.name} trained (delta_indices in processor_config.json), got none. "
                f"The network answers {self.config.horizon}. Set policy.n_action_steps: {steps}, "
                "or set another number on purpose"
            )

    def read_sizes(self) -> None:
        """See ``FlowMatching``."""
        super().read_sizes()
        head = self.network.head_config
        scale = head["noise_s"]
        self.time_sampling = TimeSampling(head["noise_beta_alpha"], scale, 1.0 - scale)

    def inputs(self, batch: Batch) -> Batch:
        """Return patches of images, their grids (B cameras, 3), tokens and state."""
        vision = self.network.vlm.config.vision_config
        images = [
            cut_patches(self._prepare_image(batch[image.name]) / 255.0, vision, COLOURS, COLOURS)
            for image in self.spec.images
        ]
        pixels = torch.cat([patches for patches, _ in images], 1)
        grids = [grid for _, grid in images]
        grid = torch.tensor([[1, *grid] for grid in grids] * len(pixels), device=pixels.device)
        after = self.tokenizer.encode(AFTER) if self._has_chat_tokens else []
        token_ids = [[*tokens, *after] for tokens in self.tokenize(batch[arrays.INSTRUCTION])]
        ids, mask = pad_tokens(
            token_ids, pixels.device, self._beginning(grids), self.token_multiple
        )
        state = self.padded_state(batch)
        return {"pixels": pixels, "grid": grid, "ids": ids, "mask": mask, "state": state}

    def _beginning(self, grids: list[tuple[int, int]]) -> list[int]:
        """Return the tokens of a chat's beginning, and of images with these grids of patches."""
        config = self.network.config[COSMOS]
        merged = config["vision_config"]["spatial_merge_size"] ** 2
        tokens = self.tokenizer.encode(BEFORE) if self._has_chat_tokens else []
        for down, right in grids:
            patches = [config["image_token_id"]] * (down * right // merged)
            tokens += [config["vision_start_token_id"], *patches, config["vision_end_token_id"]]
        return tokens

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``FlowMatching``."""
        return self.tokenizer.encode(self.formalize(sentence), plain=True)

    def formalize(self, sentence: str) -> str:
        """Return a sentence in small letters without punctuation, if the processor asks for it."""
        if not self.network.config[PROCESSOR]["formalize_language"]:
            return sentence
        return "".join(
            letter
            for letter in sentence.lower()
            if letter.isalnum() or letter.isspace() or letter == "_"
        )

    def padded_state(self, batch: Batch) -> Tensor:
        """See ``FlowMatching``: with a checkpoint's statistics, from -1 to 1."""
        state = super().padded_state(batch)
        return state.clamp(-1.0, 1.0) if self._clips_outliers else state

    def to_actions(self, point: Tensor) -> Tensor:
        """See ``FlowMatching``: with a checkpoint's statistics, within the data set's range."""
        return super().to_actions(point.clamp(-1.0, 1.0) if self.config.statistics else point)

    def to_point(self, actions: Tensor) -> Tensor:
        """See ``FlowMatching``."""
        point = super().to_point(actions)
        return point.clamp(-1.0, 1.0) if self._clips_outliers else point

    @property
    def _clips_outliers(self) -> bool:
        return bool(self.config.statistics and self.network.config[PROCESSOR]["clip_outliers"])

    def _prepare_image(self, images: Tensor) -> Tensor:
        """Return images (B, 3, H, W) in grey levels, of (B, H, W, 3) uint8."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        keys = self.network.config[PROCESSOR]
        edge, fraction = keys["image_target_size"][0], keys["crop_fraction"]
        if fraction is None and keys["image_crop_size"] is not None:
            fraction = keys["image_crop_size"][0] / edge
        pixels = images.permute(0, 3, 1, 2).float()
        if keys["letter_box_transform"]:
            pixels = pad_to_square(pixels)
        first, area = keys["shortest_image_edge"] or edge, keys["use_albumentations"]
        pixels = resize_by_area(pixels, first) if area else resize(pixels, (first, first))
        if fraction is not None and 0.0 < fraction < 1.0:
            sides = (side * fraction for side in pixels.shape[2:])
            height, width = (max(1, int(side) if area else round(side)) for side in sides)
            top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
            pixels = pixels[:, :, top : top + height, left : left + width]
        target = tuple(keys["image_target_size"])
        pixels = resize_by_area(pixels, first) if area else resize(pixels, target)
        vision = self.network.vlm.config.vision_config
        square = vision.patch_size * vision.spatial_merge_size
        height, width = pixels.shape[2:]
        least, most = keys["pixels"]
        return resize(pixels, smart_resize(height, width, square, least, most))

    def _prefix(self, inputs: Batch) -> Prefix:
        prefix: Prefix = self.network.prefix(
            inputs["pixels"], inputs["grid"], inputs["ids"], inputs["mask"]
        )
        return prefix


Policy = GrootN17
