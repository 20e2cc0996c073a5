"""Shared parts of policies with a language model's tokens as actions.

Each number of an action is one of the last 256 tokens of the vocabulary (OpenVLA, Kim et al. 2024,
arXiv 2406.09246). All tokens of a chunk at once: Kim et al. 2025, arXiv 2502.19645. Training by the
PPO family: SimpleVLA-RL, arXiv 2509.09674, and RLinf-VLA, arXiv 2510.06710. Token
``vocabulary_size - 1 - i`` stands for bin i of 256 over [-1, 1]; the action is the bin's centre.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies import sharding
from rlinf_core.policies.base import ActionChunk, Batch, Observation
from rlinf_core.policies.lora import inject_adapters
from rlinf_core.policies.pretrained.base import VisionLanguagePolicy
from rlinf_core.policies.pretrained.tokenization import Tokenizer
from rlinf_core.policies.settings import TokenSettings
from rlinf_core.specs.arrays import StationSpec

BINS = 256


@dataclass(frozen=True)
class Prompt:
    """The sequence before the action tokens; shorter prompts are padded at the left.

    Attributes:
        embeds: (B, L, D).
        mask: 1 for content and 0 for padding, (B, L).
        position_ids: positions for the language model, (..., B, L); the last is the furthest.
    """

    embeds: Tensor
    mask: Tensor
    position_ids: Tensor

    def append(self, embeds: Tensor) -> Prompt:
        """Return the prompt with ``embeds`` (B, N, D) appended."""
        more = embeds.shape[1]
        after = self.position_ids[..., -1:] + torch.arange(1, more + 1, device=embeds.device)
        return Prompt(
            torch.cat([self.embeds, embeds], dim=1),
            F.pad(self.mask, (0, more), value=1),
            torch.cat([self.position_ids, after], dim=-1),
        )


class ActionTokens(VisionLanguagePolicy):
    """pi(tokens | images, sentence): one token for each of the H A numbers of a chunk.

    A subclass defines the network.
    """

    config: TokenSettings

    def __init__(
        self,
        spec: StationSpec,
        config: TokenSettings,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config, network, tokenizer)
        inject_adapters(self.network, config.lora)

    @property
    @abstractmethod
    def decoder(self) -> Any:
        """The language model's layers, of transformers, without the layer that computes logits."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Number of the vocabulary's tokens; the last 256 are actions."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of hidden states (..., D)."""

    @abstractmethod
    def embed_prompt(self, inputs: Batch) -> Prompt:
        """Return the prompt for the network's inputs."""

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: empty."""
        return {}

    def _embed_bins(self, bins: Tensor) -> Tensor:
        """Return the vectors (B, N, D) of the tokens of bins (B, N)."""
        embeds: Tensor = self.decoder.get_input_embeddings()(self.vocabulary_size - 1 - bins)
        return embeds

    def logits(self, batch: Batch, bins: Tensor) -> Tensor:
        """Return logits (B, N, vocabulary) of bins (B, N), N <= H A, each given earlier bins."""
        prompt, count = self.embed_prompt(self.inputs(batch)), bins.shape[1]
        if self.config.decoding != "autoregressive":
            return self.head(self._parallel_states(prompt)[:, :count])
        sequence = prompt.append(self._embed_bins(bins[:, :-1]))
        hidden = self.decoder(
            inputs_embeds=sequence.embeds,
            attention_mask=sequence.mask,
            position_ids=sequence.position_ids,
            use_cache=False,
        ).last_hidden_state
        return self.head(hidden[:, -count:])

    def _parallel_states(self, prompt: Prompt) -> Tensor:
        """Return hidden states (B, H A, D) at the positions of all action tokens at once.

        Their inputs are empty (zeros), with an end token behind. Attention is bidirectional.
        """
        embeds, size = prompt.embeds, self.action_size
        ends = self.decoder.config.eos_token_id
        end = torch.full(
            (len(embeds), 1), ends[0] if isinstance(ends, list) else ends, device=embeds.device
        )
        sequence = prompt.append(
            torch.cat(
                [
                    embeds.new_zeros(len(embeds), size, embeds.shape[-1]),
                    self.decoder.get_input_embeddings()(end),
                ],
                dim=1,
            )
        )
        least = torch.finfo(embeds.dtype).min
        hidden = torch.zeros_like(sequence.mask, dtype=embeds.dtype).masked_fill(
            sequence.mask == 0, least
        )
        bidirectional = hidden[:, None, None, :].expand(-1, 1, hidden.shape[1], -1)
        states: Tensor = self.decoder(
            inputs_embeds=sequence.embeds,
            attention_mask=bidirectional,
            position_ids=sequence.position_ids,
            use_cache=False,
        ).last_hidden_state
        return states[:, -size - 2 : -2]

    def _bin_log_probs(self, logits: Tensor) -> Tensor:
        """Return log-probabilities (..., 256) among the tokens that stand for bins."""
        bins = logits[..., self.vocabulary_size - BINS : self.vocabulary_size].flip(-1)
        return F.log_softmax(bins.float() / self.config.temperature, dim=-1)

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None, stochastic: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return bins (B, H, A), as numbers, and their log-probabilities (B, H, A).

        The bins are drawn if ``stochastic``, else the likeliest ones.
        """
        inputs = self.inputs(batch)
        if not stochastic:
            return self.likeliest_bins(inputs)
        return self._choose_bins(inputs, generator, stochastic=True)

    def likeliest_bins(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        """Return the likeliest bins and their log-probabilities."""
        return self._choose_bins(inputs, None, stochastic=False)

    def _choose_bins(
        self, inputs: Batch, generator: torch.Generator | None, stochastic: bool
    ) -> tuple[Tensor, Tensor]:
        prompt = self.embed_prompt(inputs)
        if self.config.decoding == "parallel":
            logits = self.head(self._parallel_states(prompt))
            bins, log_probs = self._choose(logits, generator, stochastic)
        else:
            bins, log_probs = self._decode_autoregressively(prompt, generator, stochastic)
        shape = (len(prompt.mask), self.config.horizon, self.spec.action.dim)
        return bins.view(shape).float(), log_probs.view(shape)

    def _decode_autoregressively(
        self, prompt: Prompt, generator: torch.Generator | None, stochastic: bool
    ) -> tuple[Tensor, Tensor]:
        """Return bins (B, H A) and their log-probabilities, each given the earlier ones."""
        bins: list[Tensor] = []
        log_probs: list[Tensor] = []
        cache, new = None, prompt.embeds.shape[1]
        for _ in range(self.action_size):
            answer = self.decoder(
                inputs_embeds=prompt.embeds[:, -new:],
                attention_mask=prompt.mask,
                position_ids=prompt.position_ids[..., -new:],
                past_key_values=cache,
                use_cache=True,
            )
            logits = self.head(answer.last_hidden_state[:, -1:])
            chosen_bins, chosen_log_probs = self._choose(logits, generator, stochastic)
            bins.append(chosen_bins)
            log_probs.append(chosen_log_probs)
            cache = answer.past_key_values
            new = 1
            prompt = prompt.append(self._embed_bins(chosen_bins))
        return torch.cat(bins, dim=1), torch.cat(log_probs, dim=1)

    def _choose(
        self, logits: Tensor, generator: torch.Generator | None, stochastic: bool
    ) -> tuple[Tensor, Tensor]:
        """Return bins (B, N) and their log-probabilities."""
        log_probs = self._bin_log_probs(logits)
        bins = choose_tokens(log_probs, generator, stochastic)
        return bins, log_probs.gather(-1, bins.unsqueeze(-1)).squeeze(-1)

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy of drawn bins (B, E, A).

        Both are (B, E), or (B, E A) with ``token_log_probs``.
        """
        bins = actions.flatten(1).long()
        all_log_probs = self._bin_log_probs(self.logits(batch, bins))
        log_probs = all_log_probs.gather(-1, bins.unsqueeze(-1)).squeeze(-1)
        entropy = -(all_log_probs.exp() * all_log_probs).sum(dim=-1)
        if self.config.token_log_probs:
            return log_probs, entropy
        return log_probs.view(actions.shape).sum(dim=-1), entropy.view(actions.shape).sum(dim=-1)

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the cross-entropy of the demonstrated actions' tokens (B, H A)."""
        bins = self.to_bins(actions.unflatten(-1, (-1, self.spec.action.dim))).flatten(1)
        return F.cross_entropy(
            self.logits(batch, bins).flatten(0, 1).float(),
            (self.vocabulary_size - 1 - bins).flatten(),
        )

    def normalize(self, actions: Tensor) -> Tensor:
        """Convert normalised actions (..., A) to the network's numbers, in [-1, 1]."""
        return actions.clamp(-1.0, 1.0)

    def unnormalize(self, numbers: Tensor) -> Tensor:
        """Convert the network's numbers (..., A) to normalised actions."""
        return numbers.clamp(-1.0, 1.0)

    def to_bins(self, actions: Tensor) -> Tensor:
        """Return the bins (..., A) of normalised actions."""
        edges = torch.linspace(-1.0, 1.0, BINS, device=actions.device)
        return torch.bucketize(self.normalize(actions), edges, right=True) - 1

    def to_actions(self, bins: Tensor) -> Tensor:
        """Return normalised actions (..., A) in [-1, 1], at the centres of bins.

        256 edges have 255 centres; the last two bins therefore share one.
        """
        return self.unnormalize(-1.0 + (bins.clamp(max=BINS - 2) + 0.5) * 2.0 / (BINS - 1))

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of actions; ``drawn`` are their bins (B, H, A)."""
        stochastic = self.is_stochastic(explore)
        bins, log_probs = self.sample(self.to_batch(observation), generator, stochastic)
        return self.chunk_of_bins(bins, log_probs if stochastic else None)

    def chunk_of_bins(self, bins: Tensor, log_probs: Tensor | None = None) -> ActionChunk:
        """Return the chunk of bins and their log-probabilities, both (B, H, A)."""
        if log_probs is not None and not self.config.token_log_probs:
            log_probs = log_probs.sum(dim=-1)
        return self.chunk(self.to_actions(bins), bins, log_probs)


def choose_tokens(log_probs: Tensor, generator: torch.Generator | None, stochastic: bool) -> Tensor:
    """Return the index (...) of a token by its log-probabilities (..., vocabulary).

    The token is drawn if ``stochastic``, else the likeliest one. Draws use the Gumbel-max trick:
    the largest sum of log-probability and Gumbel noise.
    """
    if not stochastic:
        return log_probs.argmax(dim=-1)
    uniform = sharding.noise(torch.rand, log_probs.shape, generator, log_probs.device)
    return (log_probs - (-uniform.log()).log()).argmax(dim=-1)
