"""OpenVLA and OpenVLA-OFT: each number of an action is one of the language model's last 256 tokens, or an L1 head's.

Kim et al. 2024, arXiv 2406.09246; all tokens of a chunk at once, and L1: Kim et al. 2025, arXiv 2502.19645; by the PPO
family: SimpleVLA-RL, arXiv 2509.09674, RLinf-VLA, arXiv 2510.06710. Pictures and sentence are prepared here, in training
and on stations alike: each picture is resized to the towers' square, whatever its shape; tokens are beginning, patches of
every camera, the state if it is read, prompt. Token ``words - 1 - i`` stands for bin i of 256 over [-1, 1], whose centre is
played.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core import sharding
from rlinf_core.errors import SpecError
from rlinf_core.policies import instructions
from rlinf_core.policies.adapters import inject
from rlinf_core.policies.normalisation import Normalisation
from rlinf_core.policies.openvla import heads
from rlinf_core.policies.openvla.config import Config
from rlinf_core.policies.openvla.network import BINS, OpenVLANetwork, built, first
from rlinf_core.policies.openvla.units import bounds
from rlinf_core.policies.policy import ActionChunk, Batch, Observation, OnPolicyActor
from rlinf_core.policies.pretrained import Tokenizer, sentence_of, tokenizer_of
from rlinf_core.specs import StationSpec

PROMPT = "In: What action should the robot take to {}?\nOut:"
EMPTY = "▁"  # what Llama's tokenizer was trained with before the first action


class OpenVLA(OnPolicyActor):
    """pi(tokens | pictures, sentence), a token for each of the H A numbers of a chunk, or the numbers themselves."""

    config: Config
    reads_instructions = needs_instruction = True
    offset: Tensor
    gain: Tensor
    state_offset: Tensor
    state_gain: Tensor

    def __init__(self, spec: StationSpec, config: Config | None = None, network: OpenVLANetwork | None = None,
                 tokenizer: Tokenizer | None = None) -> None:
        super().__init__(spec, config or Config())
        if not spec.images:
            raise SpecError("policy.kind: expected at least one camera for an OpenVLA, got none. Name some in "
                            "station.observe_cameras")
        if self.config.state and not spec.vectors:
            raise SpecError("policy.state: expected a task that observes numbers, got pictures alone. Leave it false")
        begins = network is None
        if network is None:
            network, tokenizer = first(self.config.checkpoint, self.config.network)
        self.network, self.tokenizer = network, tokenizer or tokenizer_of("")
        inject(self.network, self.config.lora)
        self._add_parts(network.language_model.config.hidden_size)
        if begins and self.config.checkpoint:
            heads.fill(Path(self.config.checkpoint), self.config, self.parts)
        self._tokens: dict[bytes, list[int]] = {}

    def _add_parts(self, width: int) -> None:
        """What is not of the network: OpenVLA-OFT's own, and units."""
        spec, said = self.spec, self.config.statistics
        known = self.network.config["norm_stats"]
        offset, gain = bounds(known, said, "action", spec.action.names, np.array(spec.action.scale, np.float32))
        self.register_buffer("offset", offset)
        self.register_buffer("gain", gain)
        self.action_head = heads.ActionHead(width, spec.action.dim) if self.config.decoding == "regression" else None
        self.proprio_projector = heads.ProprioProjector(spec.vector_size, width) if self.config.state else None
        self.normalisation = Normalisation(spec.vector_size) if self.config.state and not said else None
        if self.config.state and said:
            names = tuple(name for item in spec.vectors for name in [item.name] * item.size)
            offset, gain = bounds(known, said, "proprio", names, np.ones(spec.vector_size, np.float32))
            self.register_buffer("state_offset", offset)
            self.register_buffer("state_gain", gain)

    @property
    def parts(self) -> dict[str, torch.nn.Module | None]:
        """OpenVLA-OFT's own, by the names of their files."""
        return {heads.HEAD: self.action_head, heads.PROJECTOR: self.proprio_projector}

    @classmethod
    def rebuilt(cls, spec: StationSpec, config: Any, described: Mapping[str, Any]) -> OpenVLA:
        """From what ``describe`` said: without its checkpoint, which is elsewhere."""
        return cls(spec, config, built(described["network"]), tokenizer_of(described["tokenizer"]))

    def describe(self) -> dict[str, Any]:
        """With network and tokenizer, so that the file is all that a station needs."""
        return super().describe() | {"network": self.network.config, "tokenizer": self.tokenizer.text}

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: it has none."""
        return {}

    # What it sees
    def prompts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Vectors (B, L, D) of beginning, patches, state and prompt, 1 where there is one; shorter prompts begin later."""
        seen = [self._patches(batch[image.name]) for image in self.spec.images]
        if self.proprio_projector is not None:
            seen.append(self.proprio_projector(self._state(batch["vectors"])).unsqueeze(1))
        patches = torch.cat(seen, dim=1)
        said = self.said(batch[instructions.NAME])
        longest = max(map(len, said))
        ids = torch.tensor([[tokens[0]] + [0] * (longest - len(tokens)) + tokens[1:] for tokens in said],
                           device=patches.device)
        lengths = torch.tensor([len(tokens) for tokens in said], device=patches.device)
        place = torch.arange(longest, device=patches.device)
        mask = (place == 0) | (place > longest - lengths[:, None])
        words = self.network.embedded(ids)
        return torch.cat([words[:, :1], patches, words[:, 1:]], dim=1), torch.cat(
            [mask[:, :1], mask.new_ones(patches.shape[:2]), mask[:, 1:]], dim=1).long()

    def _state(self, vectors: Tensor) -> Tensor:
        """By the checkpoint's statistics, in [-1, 1]; by those of what was learned from, where it has none."""
        if self.normalisation is not None:
            return self.normalisation.normalised(vectors)
        return ((vectors - self.state_offset) / self.state_gain).clamp(-1.0, 1.0)

    def _patches(self, images: Tensor) -> Tensor:
        """Of (B, H, W, 3) uint8."""
        pixels = images.permute(0, 3, 1, 2).float() / 255.0
        return self.network.patches([self._square(pixels, size) for size in self.network.image_sizes])

    def _square(self, pixels: Tensor, size: int) -> Tensor:
        if pixels.shape[2:] == (size, size):
            return pixels
        return F.interpolate(pixels, (size, size), mode="bicubic", align_corners=False, antialias=True).clamp(0.0, 1.0)

    def said(self, sentences: Tensor) -> list[list[int]]:
        """The tokens of each of (B, WIDTH) bytes, which are said many times."""
        rows = [bytes(row) for row in sentences.numpy(force=True)]
        begin, empty = self.network.language_model.config.bos_token_id, self.tokenizer.id(EMPTY)
        for row in set(rows) - self._tokens.keys():
            tokens = [begin, *self.tokenizer.ids(PROMPT.format(sentence_of(row, "an OpenVLA").lower()))]
            self._tokens[row] = tokens if empty in (None, tokens[-1]) else [*tokens, empty]
        return [self._tokens[row] for row in rows]

    # What it says
    def logits(self, batch: Batch, bins: Tensor) -> Tensor:
        """Of the tokens (B, N, vocabulary) of bins (B, N), N of H A at most, given those before them."""
        embeds, mask = self.prompts(batch)
        if self.config.decoding != "autoregressive":
            return self.network.language_model.lm_head(self._at_once(embeds, mask)[:, :bins.shape[1]])
        embeds = torch.cat([embeds, self.network.embedded(self.network.words - 1 - bins[:, :-1])], dim=1)
        mask = F.pad(mask, (0, bins.shape[1] - 1), value=1)
        return self.network.language_model(inputs_embeds=embeds, attention_mask=mask, position_ids=_positions(mask),
                                           use_cache=False, logits_to_keep=bins.shape[1]).logits

    def _at_once(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """Hidden states (B, H A, D) where tokens are said, whose places are empty: all attends to all, an end behind."""
        model, size = self.network.language_model, self.action_size
        end = torch.full((len(embeds), 1), model.config.eos_token_id, device=embeds.device)
        embeds = torch.cat([F.pad(embeds, (0, 0, 0, size)), self.network.embedded(end)], dim=1)
        mask = F.pad(mask, (0, size + 1), value=1)
        hidden = torch.zeros_like(mask, dtype=embeds.dtype).masked_fill(mask == 0, torch.finfo(embeds.dtype).min)
        both_ways = hidden[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
        return model.model(inputs_embeds=embeds, attention_mask=both_ways, position_ids=_positions(mask),
                           use_cache=False).last_hidden_state[:, -size - 2:-2]

    def _of_bins(self, logits: Tensor) -> Tensor:
        """Log-probabilities (..., 256) among the tokens that stand for bins."""
        bins = logits[..., self.network.words - BINS:self.network.words].flip(-1)
        return F.log_softmax(bins.float() / self.config.temperature, dim=-1)

    def sample(self, batch: Batch, generator: torch.Generator | None = None, draws: bool = True) -> tuple[Tensor, Tensor]:
        """Bins (B, H, A), as numbers, and their log-probabilities (B, H, A); the likeliest unless it draws."""
        embeds, mask = self.prompts(batch)
        said: list[tuple[Tensor, Tensor]] = []
        if self.config.decoding == "parallel":
            said = [self._choose(self.network.language_model.lm_head(self._at_once(embeds, mask)), generator, draws)]
        else:
            cache: Any = None
            for _ in range(self.action_size):
                answer = self.network.language_model(
                    inputs_embeds=embeds, attention_mask=mask, position_ids=_positions(mask)[:, -embeds.shape[1]:],
                    past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = answer.past_key_values
                said.append(self._choose(answer.logits, generator, draws))
                embeds, mask = self.network.embedded(self.network.words - 1 - said[-1][0]), F.pad(mask, (0, 1), value=1)
        shape = (len(mask), self.config.horizon, self.spec.action.dim)
        bins, log_probs = (torch.cat(parts, dim=1).view(shape) for parts in zip(*said, strict=True))
        return bins.float(), log_probs

    def _choose(self, logits: Tensor, generator: torch.Generator | None, draws: bool) -> tuple[Tensor, Tensor]:
        """Bins (B, N) and their log-probabilities; drawn by the largest of log-probabilities and Gumbel noise."""
        log_probs = scores = self._of_bins(logits)
        if draws:
            uniform = sharding.noise(torch.rand, log_probs.shape, generator, log_probs.device)
            scores = log_probs - (-uniform.log()).log()
        bins = scores.argmax(dim=-1)
        return bins, log_probs.gather(-1, bins.unsqueeze(-1)).squeeze(-1)

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Of bins (B, E, A) as they were drawn, and entropy, both (B, E), or (B, E A) with ``token_log_probs``."""
        bins = actions.flatten(1).long()
        every = self._of_bins(self.logits(batch, bins))
        log_probs = every.gather(-1, bins.unsqueeze(-1)).squeeze(-1)
        entropy = -(every.exp() * every).sum(dim=-1)
        if self.config.token_log_probs:
            return log_probs, entropy
        return log_probs.view(actions.shape).sum(dim=-1), entropy.view(actions.shape).sum(dim=-1)

    def imitation_loss(self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Cross-entropy of the demonstrated actions' tokens (B, H A), among all tokens; distance to them, by regression."""
        actions = actions.unflatten(-1, (-1, self.spec.action.dim))
        if self.action_head is not None:
            return F.l1_loss(self.regressed(batch), self._inside(actions))
        bins = self.bins(actions).flatten(1)
        return F.cross_entropy(self.logits(batch, bins).flatten(0, 1).float(), (self.network.words - 1 - bins).flatten())

    # Numbers
    def regressed(self, batch: Batch) -> Tensor:
        """Numbers (B, H, A) as the network says them, by the L1 head."""
        assert self.action_head is not None
        return self.action_head(self._at_once(*self.prompts(batch))).unflatten(-1, (-1, self.spec.action.dim))

    def _inside(self, actions: Tensor) -> Tensor:
        """Normalised actions (..., A) as the network says them, in [-1, 1]."""
        return ((actions - self.offset) / self.gain).clamp(-1.0, 1.0)

    def bins(self, actions: Tensor) -> Tensor:
        """Bins (..., A) of normalised actions."""
        edges = torch.linspace(-1.0, 1.0, BINS, device=actions.device)
        return torch.bucketize(self._inside(actions), edges, right=True) - 1

    def centres(self, bins: Tensor) -> Tensor:
        """Normalised actions (..., A) in [-1, 1]; 256 edges have 255 centres, so the last two bins are one."""
        inside = -1.0 + (bins.clamp(max=BINS - 2) + 0.5) * 2.0 / (BINS - 1)
        return (self.offset + self.gain * inside).clamp(-1.0, 1.0)

    @torch.no_grad()
    def act(self, observation: Observation, explore: bool, generator: torch.Generator | None = None) -> ActionChunk:
        """Chunks of actions; ``drawn`` are their bins (B, H, A), or they themselves by regression."""
        if self.action_head is not None:
            return self.chunk((self.offset + self.gain * self.regressed(self.seen(observation))).clamp(-1.0, 1.0))
        draws = self.draws(explore)
        bins, log_probs = self.sample(self.seen(observation), generator, draws)
        return self.played(bins, log_probs if draws else None)

    def played(self, bins: Tensor, log_probs: Tensor | None = None) -> ActionChunk:
        """The chunk of bins and their log-probabilities, both (B, H, A)."""
        if log_probs is not None and not self.config.token_log_probs:
            log_probs = log_probs.sum(dim=-1)
        return self.chunk(self.centres(bins), bins, log_probs)


def _positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


Policy = OpenVLA
