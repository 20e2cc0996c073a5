"""OpenVLA and OpenVLA-OFT: action numbers from the language model's last 256 tokens, or an L1 head.

Kim et al. 2024, arXiv 2406.09246; L1: Kim et al. 2025, arXiv 2502.19645. Images and sentence are
prepared here, in training and on stations alike. Each image is resized to the towers' square,
whatever its shape. The sequence is: beginning, patches of every camera, the state if it is read,
prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.base import ActionChunk, Batch, Observation
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.pretrained.action_tokens import ActionTokens, Prompt
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.openvla import Config, heads
from rlinf_core.policies.pretrained.openvla.network import FACTORY, OpenVLANetwork, prompt_of
from rlinf_core.policies.pretrained.openvla.units import normalize, offset_and_gain
from rlinf_core.policies.pretrained.tokenization import Tokenizer, round_up
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

EMPTY = "▁"  # the token before the first action in the training of Llama's tokenizer


def central_crop(pixels: Tensor, area: float) -> Tensor:
    """Return the middle of images (B, 3, S, S), of this share of their area, at their old size.

    This follows tf.image.crop_and_resize in OpenVLA's evaluation on LIBERO
    (experiments/robot/openvla_utils.py).
    """
    theta = torch.eye(2, 3, device=pixels.device) * area**0.5
    grid = F.affine_grid(theta.expand(len(pixels), -1, -1), list(pixels.shape), align_corners=True)
    return F.grid_sample(pixels, grid, mode="bilinear", align_corners=True)


class OpenVLA(ActionTokens):
    """pi(tokens | images, sentence), with a token for each number; or an L1 head's numbers."""

    config: Config
    name = "an OpenVLA"
    factory: ClassVar[NetworkFactory] = FACTORY
    graph_methods = ("likeliest_bins", "regress")
    offset: Tensor
    gain: Tensor
    state_offset: Tensor
    state_gain: Tensor

    def __init__(
        self,
        spec: StationSpec,
        config: Config,
        network: OpenVLANetwork | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if config.state and not spec.vectors:
            raise SpecError(
                "policy.state: expected a task that observes numbers, got images alone. Leave it "
                "false"
            )
        super().__init__(spec, config, network, tokenizer)
        self._add_parts(self.network.language_model.config.hidden_size)
        if network is None and config.checkpoint:
            heads.load_parts(Path(self.config.checkpoint), self.config, self.parts)

    def _add_parts(self, width: int) -> None:
        """Add OpenVLA-OFT's parts and the units, which do not belong to the network."""
        spec, dataset = self.spec, self.config.statistics
        statistics = self.network.config["norm_stats"]
        offset, gain = offset_and_gain(
            statistics,
            dataset,
            "action",
            spec.action.names,
            np.array(spec.action.scale, np.float32),
            spec.action,
        )
        self.register_buffer("offset", offset)
        self.register_buffer("gain", gain)
        self.action_head = (
            heads.ActionHead(width, spec.action.dim)
            if self.config.decoding == "regression"
            else None
        )
        self.proprio_projector = (
            heads.ProprioProjector(spec.vector_size, width) if self.config.state else None
        )
        self.normalisation = Normalisation(spec) if self.config.state and not dataset else None
        if self.config.state and dataset:
            names = tuple(name for item in spec.vectors for name in [item.name] * item.size)
            offset, gain = offset_and_gain(
                statistics, dataset, "proprio", names, np.ones(spec.vector_size, np.float32)
            )
            self.register_buffer("state_offset", offset)
            self.register_buffer("state_gain", gain)

    @property
    def parts(self) -> dict[str, torch.nn.Module | None]:
        """OpenVLA-OFT's parts, by the names of their files."""
        return {heads.HEAD: self.action_head, heads.PROJECTOR: self.proprio_projector}

    @property
    def decoder(self) -> Any:
        """See ``ActionTokens``."""
        return self.network.language_model.model

    @property
    def vocabulary_size(self) -> int:
        """See ``ActionTokens``."""
        return self.network.vocabulary_size

    def head(self, hidden: Tensor) -> Tensor:
        """See ``ActionTokens``."""
        logits: Tensor = self.network.language_model.lm_head(hidden)
        return logits

    # Inputs
    def inputs(self, batch: Batch) -> Batch:
        """Return raw images and state, and tokens with their mask."""
        token_ids = self.tokenize(batch[arrays.INSTRUCTION])
        longest = round_up(max(map(len, token_ids)), self.token_multiple)
        ids = torch.tensor(
            [[tokens[0]] + [0] * (longest - len(tokens)) + tokens[1:] for tokens in token_ids],
            device=self.device,
        )
        lengths = torch.tensor([len(tokens) for tokens in token_ids], device=self.device)
        place = torch.arange(longest, device=self.device)
        mask = (place == 0) | (place > longest - lengths[:, None])
        images = {image.name: batch[image.name] for image in self.spec.images}
        return {"ids": ids, "mask": mask, "vectors": batch["vectors"], **images}

    def embed_prompt(self, inputs: Batch) -> Prompt:
        """Return the prompt: beginning, patches, state and sentence."""
        embeddings = [self._patches(inputs[image.name]) for image in self.spec.images]
        if self.proprio_projector is not None:
            embeddings.append(self.proprio_projector(self._state(inputs["vectors"])).unsqueeze(1))
        patches, mask = torch.cat(embeddings, dim=1), inputs["mask"]
        words = self.network.embed(inputs["ids"])
        full_mask = torch.cat(
            [mask[:, :1], mask.new_ones(patches.shape[:2]), mask[:, 1:]], dim=1
        ).long()
        return Prompt(
            torch.cat([words[:, :1], patches, words[:, 1:]], dim=1),
            full_mask,
            full_mask.cumsum(dim=-1) - 1,
        )

    def _state(self, vectors: Tensor) -> Tensor:
        """Normalise the state, by the checkpoint's statistics in [-1, 1] or by the learned ones."""
        if self.normalisation is not None:
            return self.normalisation.normalize(vectors)
        return normalize(vectors, self.state_offset, self.state_gain)

    def _patches(self, images: Tensor) -> Tensor:
        """Return the patches of (B, H, W, 3) uint8."""
        pixels = images.permute(0, 3, 1, 2).float() / 255.0
        return self.network.patches(
            [self._square(pixels, size) for size in self.network.image_sizes]
        )

    def _square(self, pixels: Tensor, size: int) -> Tensor:
        if pixels.shape[2:] != (size, size):
            pixels = F.interpolate(pixels, (size, size), mode="bicubic", antialias=True)
            pixels = pixels.clamp(0.0, 1.0)
        return (
            central_crop(pixels, self.config.central_crop)
            if self.config.central_crop < 1.0
            else pixels
        )

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``ActionTokens``."""
        begin, empty = (
            self.network.language_model.config.bos_token_id,
            self.tokenizer.token_id(EMPTY),
        )
        tokens = [
            begin,
            *self.tokenizer.encode(prompt_of(self.network.config).format(sentence.lower())),
        ]
        return tokens if empty in (None, tokens[-1]) else [*tokens, empty]

    # The L1 head
    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the loss of ``ActionTokens``, or the L1 distance with regression."""
        if self.action_head is None:
            return super().imitation_loss(batch, actions, generator)
        return F.l1_loss(
            self.regress(self.inputs(batch)),
            self.normalize(actions.unflatten(-1, (-1, self.spec.action.dim))),
        )

    def regress(self, inputs: Batch) -> Tensor:
        """Return the network's numbers (B, H, A), by the L1 head."""
        assert self.action_head is not None
        return self.action_head(self._parallel_states(self.embed_prompt(inputs))).unflatten(
            -1, (-1, self.spec.action.dim)
        )

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks like ``ActionTokens``.

        By regression, ``drawn`` are the actions themselves.
        """
        if self.action_head is None:
            return super().act(observation, explore, generator)
        return self.chunk(self.unnormalize(self.regress(self.inputs(self.to_batch(observation)))))

    # Numbers
    def normalize(self, actions: Tensor) -> Tensor:
        """See ``ActionTokens``: in the units of its data set."""
        return normalize(actions, self.offset, self.gain)

    def unnormalize(self, numbers: Tensor) -> Tensor:
        """See ``ActionTokens``."""
        return (self.offset + self.gain * numbers).clamp(-1.0, 1.0)


Policy = OpenVLA
