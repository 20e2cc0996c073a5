"""Shared parts of policies with a language model's tokens as actions.

Each number of an action is one of the last 256 tokens of the vocabulary (OpenVLA, Kim et al. 2024,
arXiv 2406.09246). All tokens of a chunk at once: Kim et al. 2025, arXiv 2502.19645. Training by the
PPO family: SimpleVLA-RL, arXiv 2509.09674, and RLinf-VLA, arXiv 2510.06710. Token ``words - 1 - i``
stands for bin i of 256 over [-1, 1]; the action is the bin's centre.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies import sharding
from rlinf_core.policies.base import ActionChunk, Batch, Observation, OnPolicyActor
from rlinf_core.policies.lora import inject, is_base_weight
from rlinf_core.policies.pretrained.network_factory import NetworkFactory, Published
from rlinf_core.policies.pretrained.tokenization import (
    Tokenizer,
    decode_instruction,
    make_tokenizer,
)
from rlinf_core.policies.settings import TokenSettings
from rlinf_core.specs.arrays import StationSpec

BINS = 256


@dataclass(frozen=True)
class Prompt:
    """The sequence before the action tokens; shorter prompts are padded at the left.

    Attributes:
        embeds: (B, L, D).
        mask: 1 for content and 0 for padding, (B, L).
        places: positions in the language model's count, (..., B, L); the last is the furthest.
    """

    embeds: Tensor
    mask: Tensor
    places: Tensor

    def append(self, embeds: Tensor) -> Prompt:
        """Return the prompt with ``embeds`` (B, N, D) appended."""
        more = embeds.shape[1]
        after = self.places[..., -1:] + torch.arange(1, more + 1, device=embeds.device)
        return Prompt(
            torch.cat([self.embeds, embeds], dim=1),
            F.pad(self.mask, (0, more), value=1),
            torch.cat([self.places, after], dim=-1),
        )


class ActionTokens(OnPolicyActor):
    """pi(tokens | pictures, sentence): one token for each of the H A numbers of a chunk.

    A subclass defines the network.

    Attributes:
        name: in messages for people, with its article.
        factory: factory of its networks.
    """

    config: TokenSettings
    reads_instructions = needs_instruction = uses_images = True
    name: ClassVar[str]
    factory: ClassVar[NetworkFactory]

    def __init__(
        self,
        spec: StationSpec,
        config: TokenSettings,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config)
        if not spec.images:
            raise SpecError(
                f"policy.kind: expected at least one camera for {self.name}, got none. Name some "
                "in station.observe_cameras"
            )
        published = Published({}, tokenizer or make_tokenizer(""))
        if network is None:
            network, published = self.factory.begin(config, config.horizon)
        self.network: Any = network
        self.tokenizer = published.tokenizer
        inject(self.network, config.lora)
        self._tokens: dict[bytes, list[int]] = {}

    @classmethod
    def rebuild(cls, spec: StationSpec, config: Any, described: Mapping[str, Any]) -> ActionTokens:
        """Rebuild the policy from the values of ``describe``, without access to its checkpoint."""
        return cls(
            spec,
            config,
            cls.factory.build(described["network"]),
            make_tokenizer(described["tokenizer"]),
        )

    def describe(self) -> dict[str, Any]:
        """Return the description with network and tokenizer; a station needs only this file."""
        return super().describe() | {
            "network": self.factory.describe(self.network),
            "tokenizer": self.tokenizer.text,
        }

    def is_frozen(self, name: str) -> bool:
        """See ``NetworkPolicy``: the weights under adapters."""
        return bool(self.config.lora.rank) and is_base_weight(name)

    @property
    @abstractmethod
    def decoder(self) -> Any:
        """The language model's layers, of transformers, without the layer that computes logits."""

    @property
    @abstractmethod
    def words(self) -> int:
        """End of the vocabulary's tokens, the last 256 of them actions."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of hidden states (..., D)."""

    @abstractmethod
    def inputs(self, batch: Batch) -> Batch:
        """Return the network's inputs for pictures and sentences."""

    @abstractmethod
    def read(self, inputs: Batch) -> Prompt:
        """Return the prompt for the network's inputs."""

    def prompts(self, batch: Batch) -> Prompt:
        """Return the prompt for a batch's pictures and sentences."""
        return self.read(self.inputs(batch))

    @abstractmethod
    def prompt(self, sentence: str) -> list[int]:
        """Return the tokens of a sentence, independent of others."""

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: empty."""
        return {}

    def tokenize(self, sentences: Tensor) -> list[list[int]]:
        """Return the tokens of each of (B, WIDTH) bytes, from a cache, because sentences repeat."""
        rows = [bytes(row) for row in sentences.numpy(force=True)]
        for row in set(rows) - self._tokens.keys():
            self._tokens[row] = self.prompt(decode_instruction(row, self.name))
        return [self._tokens[row] for row in rows]

    def _embedded(self, bins: Tensor) -> Tensor:
        embedded: Tensor = self.decoder.get_input_embeddings()(self.words - 1 - bins)
        return embedded

    def logits(self, batch: Batch, bins: Tensor) -> Tensor:
        """Return logits (B, N, vocabulary) of bins (B, N), N <= H A, each given earlier bins."""
        prompt, count = self.prompts(batch), bins.shape[1]
        if self.config.decoding != "autoregressive":
            return self.head(self._parallel_states(prompt)[:, :count])
        sequence = prompt.append(self._embedded(bins[:, :-1]))
        hidden = self.decoder(
            inputs_embeds=sequence.embeds,
            attention_mask=sequence.mask,
            position_ids=sequence.places,
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
        both_ways = hidden[:, None, None, :].expand(-1, 1, hidden.shape[1], -1)
        states: Tensor = self.decoder(
            inputs_embeds=sequence.embeds,
            attention_mask=both_ways,
            position_ids=sequence.places,
            use_cache=False,
        ).last_hidden_state
        return states[:, -size - 2 : -2]

    def _bin_log_probs(self, logits: Tensor) -> Tensor:
        """Return log-probabilities (..., 256) among the tokens that stand for bins."""
        bins = logits[..., self.words - BINS : self.words].flip(-1)
        return F.log_softmax(bins.float() / self.config.temperature, dim=-1)

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None, draws: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return bins (B, H, A), as numbers, and their log-probabilities (B, H, A).

        Without ``draws`` the bins are the likeliest ones.
        """
        inputs = self.inputs(batch)
        return self._choose_bins(inputs, generator, True) if draws else self.likeliest(inputs)

    def likeliest(self, inputs: Batch) -> tuple[Tensor, Tensor]:
        """Return the likeliest bins and their log-probabilities."""
        return self._choose_bins(inputs, None, False)

    def _choose_bins(
        self, inputs: Batch, generator: torch.Generator | None, draws: bool
    ) -> tuple[Tensor, Tensor]:
        prompt = self.read(inputs)
        if self.config.decoding == "parallel":
            token_ids = [self._choose(self.head(self._parallel_states(prompt)), generator, draws)]
        else:
            token_ids = self._decode_autoregressively(prompt, generator, draws)
        shape = (len(prompt.mask), self.config.horizon, self.spec.action.dim)
        bins, log_probs = (
            torch.cat(parts, dim=1).view(shape) for parts in zip(*token_ids, strict=True)
        )
        return bins.float(), log_probs

    def _decode_autoregressively(
        self, prompt: Prompt, generator: torch.Generator | None, draws: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """Return bins (B, 1) and their log-probabilities, each given the earlier ones."""
        token_ids: list[tuple[Tensor, Tensor]] = []
        cache, new = None, prompt.embeds.shape[1]
        for _ in range(self.action_size):
            answer = self.decoder(
                inputs_embeds=prompt.embeds[:, -new:],
                attention_mask=prompt.mask,
                position_ids=prompt.places[..., -new:],
                past_key_values=cache,
                use_cache=True,
            )
            token_ids.append(
                self._choose(self.head(answer.last_hidden_state[:, -1:]), generator, draws)
            )
            cache = answer.past_key_values
            new = 1
            prompt = prompt.append(self._embedded(token_ids[-1][0]))
        return token_ids

    def _choose(
        self, logits: Tensor, generator: torch.Generator | None, draws: bool
    ) -> tuple[Tensor, Tensor]:
        """Return bins (B, N) and their log-probabilities.

        Draws use the Gumbel-max trick: the largest sum of log-probability and Gumbel noise.
        """
        log_probs = scores = self._bin_log_probs(logits)
        if draws:
            uniform = sharding.noise(torch.rand, log_probs.shape, generator, log_probs.device)
            scores = log_probs - (-uniform.log()).log()
        bins = scores.argmax(dim=-1)
        return bins, log_probs.gather(-1, bins.unsqueeze(-1)).squeeze(-1)

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy of drawn bins (B, E, A).

        Both are (B, E), or (B, E A) with ``token_log_probs``.
        """
        bins = actions.flatten(1).long()
        every = self._bin_log_probs(self.logits(batch, bins))
        log_probs = every.gather(-1, bins.unsqueeze(-1)).squeeze(-1)
        entropy = -(every.exp() * every).sum(dim=-1)
        if self.config.token_log_probs:
            return log_probs, entropy
        return log_probs.view(actions.shape).sum(dim=-1), entropy.view(actions.shape).sum(dim=-1)

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the cross-entropy of the demonstrated actions' tokens (B, H A)."""
        bins = self.bins(actions.unflatten(-1, (-1, self.spec.action.dim))).flatten(1)
        return F.cross_entropy(
            self.logits(batch, bins).flatten(0, 1).float(), (self.words - 1 - bins).flatten()
        )

    def normalize(self, actions: Tensor) -> Tensor:
        """Convert normalised actions (..., A) to the network's numbers, in [-1, 1]."""
        return actions.clamp(-1.0, 1.0)

    def unnormalize(self, numbers: Tensor) -> Tensor:
        """Convert the network's numbers (..., A) to normalised actions."""
        return numbers.clamp(-1.0, 1.0)

    def bins(self, actions: Tensor) -> Tensor:
        """Return the bins (..., A) of normalised actions."""
        edges = torch.linspace(-1.0, 1.0, BINS, device=actions.device)
        return torch.bucketize(self.normalize(actions), edges, right=True) - 1

    def centres(self, bins: Tensor) -> Tensor:
        """Return normalised actions (..., A) in [-1, 1] at the centres of bins.

        256 edges have 255 centres; the last two bins therefore share one.
        """
        return self.unnormalize(-1.0 + (bins.clamp(max=BINS - 2) + 0.5) * 2.0 / (BINS - 1))

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of actions; ``drawn`` are their bins (B, H, A)."""
        draws = self.draws(explore)
        bins, log_probs = self.sample(self.to_batch(observation), generator, draws)
        return self.played(bins, log_probs if draws else None)

    def played(self, bins: Tensor, log_probs: Tensor | None = None) -> ActionChunk:
        """Return the chunk of bins and their log-probabilities, both (B, H, A)."""
        if log_probs is not None and not self.config.token_log_probs:
            log_probs = log_probs.sum(dim=-1)
        return self.chunk(self.centres(bins), bins, log_probs)
