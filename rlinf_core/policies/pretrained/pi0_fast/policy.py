"""pi0-FAST: a chunk is a sentence of FAST's tokens behind pictures, instruction and state.

Pertsch et al. 2025, arXiv 2501.09747, by LeRobot's class (0.4.4 to 0.6.1). Where it acts, prompt
and the answer's first token attend to each other, and the answer to all before it. In LeRobot's
loss that token is a part of the answer, and here too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies import sharding
from rlinf_core.policies.action_tokens import ActionTokens, Prompt
from rlinf_core.policies.action_units import ActionUnits
from rlinf_core.policies.base import ActionChunk, Batch, Observation
from rlinf_core.policies.dataset_statistics import FixedNormalisation, load_statistics
from rlinf_core.policies.encoder import letterboxed
from rlinf_core.policies.huggingface import Tokenizer, padded, sentence_of
from rlinf_core.policies.networks import NetworkFactory
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.pretrained.pi0_fast import Config
from rlinf_core.policies.pretrained.pi0_fast.network import FACTORY
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

BINS = 256
PROMPT, BEFORE, END, STOP = "Task: {}, State: {};\n", "Action: ", "|", "<eos>"


class Prefix(NamedTuple):
    """What stands before an answer: vectors (B, L, D), and where there is something (B, L)."""

    embeds: Tensor
    mask: Tensor


class Pi0Fast(ActionTokens):
    """pi(tokens | pictures, sentence, state), the tokens of a chunk up to ``|``. ``drawn`` are
    token ids (B, 1, N)."""

    config: Config
    name = "a pi0-FAST"
    factory: ClassVar[NetworkFactory] = FACTORY

    def __init__(
        self,
        spec: StationSpec,
        config: Config | None = None,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        config = config or Config()
        super().__init__(spec, config, network, tokenizer)
        given = bool(config.statistics)
        self.normalisation = (FixedNormalisation if given else Normalisation)(spec)
        self.units = ActionUnits(spec.action, given)
        self.actions = self.network.action_tokenizer
        if network is not None:
            return
        if given:
            published = self.factory.read(Path(config.checkpoint)) if config.checkpoint else None
            kinds = (
                (published.state if published else None) or "deviations",
                (published.action if published else None) or "deviations",
            )
            load_statistics(
                Path(config.statistics),
                kinds,
                spec,
                (spec.vector_size, spec.action.dim),
                self.normalisation,
                self.units,
            )

    @property
    def decoder(self) -> Any:
        """See ``ActionTokens``."""
        return self.network.decoder

    @property
    def words(self) -> int:
        """Tokens of the tokenizer, whose last ones, but for ``fast_skip_tokens``, are FAST's."""
        words: int = self.tokenizer.size or self.decoder.config.vocab_size
        return words

    def head(self, hidden: Tensor) -> Tensor:
        """See ``ActionTokens``."""
        logits: Tensor = self.network.lm_head(hidden)
        return logits

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: its normalisation."""
        return self.normalisation.state_dict()

    def inputs(self, batch: Batch) -> Batch:
        """Pictures, tokens, and where there are some."""
        size = self.network.image_size
        pixels = torch.stack(
            [letterboxed(batch[image.name], size, False) for image in self.spec.images], dim=1
        )
        ids, mask = padded(self.sentences(batch), pixels.device, multiple=self.multiple)
        return {"pixels": pixels, "ids": ids, "mask": mask}

    def sentences(self, batch: Batch) -> list[list[int]]:
        """The tokens of each instruction and its state, in 256 bins of [-1, 1]; -1 below."""
        edges = torch.linspace(-1.0, 1.0, BINS + 1, device=self.device)[:-1]
        bins = (
            torch.bucketize(self.normalisation.normalised(batch["vectors"]), edges, right=True) - 1
        ).tolist()
        rows = [sentence_of(bytes(row), self.name) for row in batch[arrays.NAME].numpy(force=True)]
        return [
            self.prompt(
                PROMPT.format(
                    row.strip().replace("_", " ").replace("\n", " "), " ".join(map(str, numbers))
                )
            )
            for row, numbers in zip(rows, bins, strict=True)
        ]

    def prompt(self, sentence: str) -> list[int]:
        """See ``ActionTokens``."""
        return [self._begin, *self.tokenizer.ids(sentence)][: self.config.tokens]

    def read(self, inputs: Batch) -> Prompt:
        """Not of use here: the answer has no fixed place."""
        raise NotImplementedError

    # Tokens of an answer
    @property
    def _begin(self) -> int:
        begin: int = self.decoder.config.bos_token_id
        return begin

    @property
    def _end(self) -> int:
        """The token that ends an answer."""
        (end,) = self.tokenizer.ids(END)
        return end

    def written(self, actions: Tensor) -> list[list[int]]:
        """Answers to normalised actions (B, H A): ``Action: ``, FAST's tokens, ``|`` and the
        end."""
        numbers = self.units.to_network(actions.unflatten(-1, (-1, self.spec.action.dim)))
        before, stop = self.tokenizer.ids(BEFORE), self.tokenizer.id(STOP)
        last = self.words - 1 - self.network.config["fast_skip_tokens"]
        rows = [
            [
                *before,
                *(last - number for number in self.actions.encode(row)),
                self._end,
                *([] if stop is None else [stop]),
            ]
            for row in numbers.numpy(force=True)
        ]
        if (longest := max(map(len, rows))) > self.config.max_decoding_steps:
            raise SpecError(
                f"policy.max_decoding_steps: expected {longest} or more, as demonstrated chunks "
                f"have tokens, got {self.config.max_decoding_steps}"
            )
        return rows

    def read_answer(self, ids: list[int]) -> Tensor:
        """Normalised actions (H, A) of an answer's tokens up to ``|``; the mean where they are
        none of FAST's."""
        before = self.tokenizer.ids(BEFORE)
        last = self.words - 1 - self.network.config["fast_skip_tokens"]
        ids = ids[: ids.index(self._end)] if self._end in ids else ids
        begins = (
            not self.network.config["validate_action_token_prefix"] or ids[: len(before)] == before
        )
        at = 0
        while at <= len(ids) - len(before):
            if ids[at : at + len(before)] == before:
                ids = ids[:at] + ids[at + len(before) :]
            else:
                at += 1
        numbers = self.actions.decode(
            [last - token for token in ids] if begins else [],
            self.config.horizon,
            self.spec.action.dim,
        )
        return self.units.played(torch.from_numpy(numbers).float().to(self.device))

    def prefix(self, inputs: Batch, begin: bool = True) -> Prefix:
        """The prompt; ``begin``: with the token that begins an answer."""
        ids, mask = inputs["ids"], inputs["mask"]
        if begin:
            ids, mask = F.pad(ids, (0, 1), value=self._begin), F.pad(mask, (0, 1), value=True)
        embeds = self.network.embedded(inputs["pixels"], ids)
        return Prefix(embeds, F.pad(mask, (embeds.shape[1] - mask.shape[1], 0), value=True))

    def hidden(self, prefix: Prefix, ids: Tensor, valid: Tensor) -> Tensor:
        """Hidden states (B, L + N, D) of a prefix and an answer's tokens (B, N)."""
        embeds = torch.cat([prefix.embeds, self.decoder.get_input_embeddings()(ids)], dim=1)
        visible = torch.cat([prefix.mask, valid], dim=1)
        length, before = visible.shape[1], prefix.mask.shape[1]
        sees = torch.ones(length, length, dtype=torch.bool, device=visible.device).tril()
        sees[:before, :before] = True
        mask = (sees & visible[:, None] & visible[:, :, None])[:, None]
        states: Tensor = self.decoder(
            inputs_embeds=embeds,
            attention_mask=_additive(mask, embeds),
            position_ids=visible.long().cumsum(-1) - 1,
            use_cache=False,
        ).last_hidden_state
        return states

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Cross-entropy of the answers to demonstrated actions (B, H A), among all tokens, on
        average over tokens."""
        ids, valid = padded(self.written(actions), self.device, before=(self._begin,))
        hidden = self.hidden(self.prefix(self.inputs(batch), begin=False), ids, valid)[
            :, -ids.shape[1] : -1
        ]
        losses = F.cross_entropy(
            self.head(hidden).flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        weights = valid[:, 1:].flatten().float()
        return (losses * weights).sum() / weights.sum()

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Of answers (B, 1, N) as they were drawn, and their entropy, both (B, E).

        An answer has one log-probability. It stands at the chunk's first action, which is played
        in any case; the others
        have 0. The PPO family sums them over a chunk (``algorithm.level: chunk``).
        """
        ids = actions.flatten(1).long()
        valid = self._counted(ids)
        length = max(int(valid.sum(dim=1).max()), 1)
        ids, valid = ids[:, :length], valid[:, :length]
        hidden = self.hidden(self.prefix(self.inputs(batch)), ids, valid)[:, -length - 1 : -1]
        every = F.log_softmax(self.head(hidden).float() / self.config.temperature, dim=-1)
        log_probs = every.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        entropy = -(every.exp() * every).sum(dim=-1)
        return self._first((log_probs * valid).sum(dim=1)), self._first(
            (entropy * valid).sum(dim=1)
        )

    def _counted(self, ids: Tensor) -> Tensor:
        """Tokens (B, N) up to ``|``, with it."""
        ends = (ids == self._end).long().cumsum(dim=1)
        return (ends - (ids == self._end).long()) == 0

    def _first(self, numbers: Tensor) -> Tensor:
        """(B, E) with numbers (B,) at the first action."""
        return F.pad(numbers[:, None], (0, self.config.executed - 1))

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None, draws: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Answers (B, N), zeros behind ``|``, and their log-probabilities (B,); the likeliest
        tokens unless it draws."""
        prefix, limit = self.prefix(self.inputs(batch)), self.config.max_decoding_steps
        visible, embeds, cache = prefix.mask, prefix.embeds, None
        mask = (visible[:, None] & visible[:, :, None])[:, None]
        places = visible.long().cumsum(-1) - 1
        rows, total = [], torch.zeros(len(visible), device=self.device)
        open_rows = torch.ones(len(visible), dtype=torch.bool, device=self.device)
        for _ in range(limit):
            answer = self.decoder(
                inputs_embeds=embeds,
                attention_mask=_additive(mask, embeds),
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
            log_probs = F.log_softmax(
                self.head(answer.last_hidden_state[:, -1]).float() / self.config.temperature, dim=-1
            )
            scores = log_probs
            if draws:
                uniform = sharding.noise(torch.rand, log_probs.shape, generator, log_probs.device)
                scores = log_probs - (-uniform.log()).log()
            token = scores.argmax(dim=-1)
            total = total + log_probs.gather(-1, token[:, None]).squeeze(-1) * open_rows
            rows.append(token * open_rows)
            open_rows = open_rows & (token != self._end)
            if not open_rows.any():
                break
            cache = answer.past_key_values
            embeds = self.decoder.get_input_embeddings()(token[:, None])
            visible = F.pad(visible, (0, 1), value=True)
            mask, places = visible[:, None, None], visible.long().sum(dim=1, keepdim=True) - 1
        return F.pad(torch.stack(rows, dim=1), (0, limit - len(rows))), total

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """See ``Policy``; ``drawn`` are the tokens of answers (B, 1, N)."""
        draws = self.draws(explore)
        ids, log_probs = self.sample(self.to_batch(observation), generator, draws)
        actions = torch.stack([self.read_answer(row) for row in ids.tolist()])
        return self.chunk(actions, ids[:, None].float(), self._first(log_probs) if draws else None)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """0 where ``mask`` (B, 1, Q, K) is, else the least number."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, torch.finfo(like.dtype).min)


Policy = Pi0Fast
