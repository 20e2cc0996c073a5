"""pi0-FAST: the policy answers images, instruction and state with a sentence of FAST tokens.

Pertsch et al. 2025, arXiv 2501.09747, by LeRobot's class (0.4.4 to 0.6.1). While the policy acts,
the prompt and the first token of the answer attend to each other, and later tokens attend to all
before them. In the imitation loss that first token belongs to the answer, as in LeRobot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.base import ActionChunk, Batch, Observation
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.pretrained.action_tokens import ActionTokens, Prompt, choose_tokens
from rlinf_core.policies.pretrained.dataset_statistics import (
    ActionUnits,
    FixedNormalisation,
    Kind,
    load_statistics,
)
from rlinf_core.policies.pretrained.image_preprocessing import letterbox
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.pi0_fast import Config
from rlinf_core.policies.pretrained.pi0_fast.network import FACTORY
from rlinf_core.policies.pretrained.tokenization import Tokenizer, decode_instruction, pad_tokens
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

BINS = 256
PROMPT, BEFORE, END, STOP = "Task: {}, State: {};\n", "Action: ", "|", "<eos>"


class Prefix(NamedTuple):
    """The tokens before an answer.

    Attributes:
        embeds: (B, L, D) vectors.
        mask: (B, L) True for tokens, False for padding.
    """

    embeds: Tensor
    mask: Tensor


class Pi0Fast(ActionTokens):
    """pi(tokens | images, sentence, state), the tokens of a chunk up to ``|``.

    ``drawn`` holds token ids (B, 1, N).
    """

    config: Config
    name = "a pi0-FAST"
    factory: ClassVar[NetworkFactory] = FACTORY

    def __init__(
        self,
        spec: StationSpec,
        config: Config,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config, network, tokenizer)
        has_statistics = bool(config.statistics)
        self.normalisation = (FixedNormalisation if has_statistics else Normalisation)(spec)
        self.units = ActionUnits(spec.action, has_statistics)
        self.action_tokenizer = self.network.action_tokenizer
        if network is None and has_statistics:
            kinds: tuple[Kind, Kind] = (
                self.checkpoint_info.state_statistics or "deviations",
                self.checkpoint_info.action_statistics or "deviations",
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
    def vocabulary_size(self) -> int:
        """Number of tokens. The last ones are FAST's, before ``fast_skip_tokens`` unused ones."""
        size: int = self.tokenizer.size or self.decoder.config.vocab_size
        return size

    def head(self, hidden: Tensor) -> Tensor:
        """See ``ActionTokens``."""
        logits: Tensor = self.network.lm_head(hidden)
        return logits

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: its normalisation."""
        return self.normalisation.state_dict()

    def inputs(self, batch: Batch) -> Batch:
        """Return images, tokens and the mask of the tokens."""
        size = self.network.image_size
        pixels = torch.stack(
            [letterbox(batch[image.name], size, False) for image in self.spec.images], dim=1
        )
        ids, mask = pad_tokens(
            self.tokenize_with_state(batch), pixels.device, multiple=self.token_multiple
        )
        return {"pixels": pixels, "ids": ids, "mask": mask}

    def tokenize_with_state(self, batch: Batch) -> list[list[int]]:
        """Return the tokens of each instruction with its state.

        The state is in 256 bins of [-1, 1]; -1 stands for numbers below.
        """
        edges = torch.linspace(-1.0, 1.0, BINS + 1, device=self.device)[:-1]
        bins = (
            torch.bucketize(self.normalisation.normalize(batch["vectors"]), edges, right=True) - 1
        ).tolist()
        rows = [
            decode_instruction(bytes(row), self.name)
            for row in batch[arrays.INSTRUCTION].numpy(force=True)
        ]
        return [
            self.prompt_tokens(
                PROMPT.format(
                    row.strip().replace("_", " ").replace("\n", " "), " ".join(map(str, numbers))
                )
            )
            for row, numbers in zip(rows, bins, strict=True)
        ]

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``ActionTokens``."""
        return [self._begin, *self.tokenizer.encode(sentence)][: self.config.tokens]

    def embed_prompt(self, inputs: Batch) -> Prompt:
        """Raise NotImplementedError, because an answer has no fixed length."""
        raise NotImplementedError

    # Tokens of an answer
    @property
    def _begin(self) -> int:
        begin: int = self.decoder.config.bos_token_id
        return begin

    @property
    def _end(self) -> int:
        """Id of the token that ends an answer."""
        (end,) = self.tokenizer.encode(END)
        return end

    def answer_tokens(self, actions: Tensor) -> list[list[int]]:
        """Return the answers to normalised actions (B, H A).

        An answer is ``Action: ``, FAST's tokens, ``|`` and the end-of-sequence token.
        """
        numbers = self.units.to_network(actions.unflatten(-1, (-1, self.spec.action.dim)))
        before, stop = self.tokenizer.encode(BEFORE), self.tokenizer.token_id(STOP)
        last = self.vocabulary_size - 1 - self.network.config["fast_skip_tokens"]
        rows = [
            [
                *before,
                *(last - number for number in self.action_tokenizer.encode(row)),
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

    def to_chunk(self, ids: list[int]) -> Tensor:
        """Return the normalised actions (H, A) of an answer's tokens up to ``|``.

        Tokens that are none of FAST's give the mean action.
        """
        before = self.tokenizer.encode(BEFORE)
        last = self.vocabulary_size - 1 - self.network.config["fast_skip_tokens"]
        ids = ids[: ids.index(self._end)] if self._end in ids else ids
        is_answer = (
            not self.network.config["validate_action_token_prefix"] or ids[: len(before)] == before
        )
        at = 0
        while at <= len(ids) - len(before):
            if ids[at : at + len(before)] == before:
                ids = ids[:at] + ids[at + len(before) :]
            else:
                at += 1
        numbers = self.action_tokenizer.decode(
            [last - token for token in ids] if is_answer else [],
            self.config.horizon,
            self.spec.action.dim,
        )
        return self.units.to_actions(torch.from_numpy(numbers).float().to(self.device))

    def prefix(self, inputs: Batch, begin: bool = True) -> Prefix:
        """Return the prompt. With ``begin`` the token that begins an answer is the last one."""
        ids, mask = inputs["ids"], inputs["mask"]
        if begin:
            ids, mask = F.pad(ids, (0, 1), value=self._begin), F.pad(mask, (0, 1), value=True)
        embeds = self.network.embed(inputs["pixels"], ids)
        return Prefix(embeds, F.pad(mask, (embeds.shape[1] - mask.shape[1], 0), value=True))

    def hidden_states(self, prefix: Prefix, ids: Tensor, valid: Tensor) -> Tensor:
        """Return the hidden states (B, L + N, D) of a prefix and an answer's tokens (B, N)."""
        embeds = torch.cat([prefix.embeds, self.decoder.get_input_embeddings()(ids)], dim=1)
        visible = torch.cat([prefix.mask, valid], dim=1)
        length, before = visible.shape[1], prefix.mask.shape[1]
        attends = torch.ones(length, length, dtype=torch.bool, device=visible.device).tril()
        attends[:before, :before] = True
        mask = (attends & visible[:, None] & visible[:, :, None])[:, None]
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
        """Return the cross-entropy of the answers to demonstrated actions (B, H A).

        It is over the whole vocabulary, and the mean over the tokens.
        """
        ids, valid = pad_tokens(self.answer_tokens(actions), self.device, before=(self._begin,))
        hidden = self.hidden_states(self.prefix(self.inputs(batch), begin=False), ids, valid)[
            :, -ids.shape[1] : -1
        ]
        losses = F.cross_entropy(
            self.head(hidden).flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        weights = valid[:, 1:].flatten().float()
        return (losses * weights).sum() / weights.sum()

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies (B, E) of drawn answers (B, 1, N).

        An answer has one log-probability. It is stored at the chunk's first action, which is always
        executed; the other actions have 0. The PPO family sums them over a chunk
        (``algorithm.level: chunk``).
        """
        ids = actions.flatten(1).long()
        valid = self._answer_mask(ids)
        length = max(int(valid.sum(dim=1).max()), 1)
        ids, valid = ids[:, :length], valid[:, :length]
        hidden = self.hidden_states(self.prefix(self.inputs(batch)), ids, valid)[
            :, -length - 1 : -1
        ]
        all_log_probs = F.log_softmax(self.head(hidden).float() / self.config.temperature, dim=-1)
        log_probs = all_log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        entropy = -(all_log_probs.exp() * all_log_probs).sum(dim=-1)
        return (
            self._at_first_action((log_probs * valid).sum(dim=1)),
            self._at_first_action((entropy * valid).sum(dim=1)),
        )

    def _answer_mask(self, ids: Tensor) -> Tensor:
        """Return the mask of the tokens (B, N) up to and including ``|``."""
        ends = (ids == self._end).long().cumsum(dim=1)
        return (ends - (ids == self._end).long()) == 0

    def _at_first_action(self, numbers: Tensor) -> Tensor:
        """Return (B, E) with numbers (B,) at the first action and zeros elsewhere."""
        return F.pad(numbers[:, None], (0, self.config.executed - 1))

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None, stochastic: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return answers (B, N) with zeros after ``|``, and their log-probabilities (B,).

        Each token is drawn if ``stochastic``, else the likeliest one.
        """
        prefix, limit = self.prefix(self.inputs(batch)), self.config.max_decoding_steps
        visible, embeds, cache = prefix.mask, prefix.embeds, None
        mask = (visible[:, None] & visible[:, :, None])[:, None]
        position_ids = visible.long().cumsum(-1) - 1
        rows, total = [], torch.zeros(len(visible), device=self.device)
        open_rows = torch.ones(len(visible), dtype=torch.bool, device=self.device)
        for _ in range(limit):
            answer = self.decoder(
                inputs_embeds=embeds,
                attention_mask=_additive(mask, embeds),
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            log_probs = F.log_softmax(
                self.head(answer.last_hidden_state[:, -1]).float() / self.config.temperature, dim=-1
            )
            token = choose_tokens(log_probs, generator, stochastic)
            total = total + log_probs.gather(-1, token[:, None]).squeeze(-1) * open_rows
            rows.append(token * open_rows)
            open_rows = open_rows & (token != self._end)
            if not open_rows.any():
                break
            cache = answer.past_key_values
            embeds = self.decoder.get_input_embeddings()(token[:, None])
            visible = F.pad(visible, (0, 1), value=True)
            mask = visible[:, None, None]
            position_ids = visible.long().sum(dim=1, keepdim=True) - 1
        return F.pad(torch.stack(rows, dim=1), (0, limit - len(rows))), total

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """See ``Policy``. ``drawn`` holds the tokens of answers (B, 1, N)."""
        stochastic = self.is_stochastic(explore)
        ids, log_probs = self.sample(self.to_batch(observation), generator, stochastic)
        actions = torch.stack([self.to_chunk(row) for row in ids.tolist()])
        chunk_log_probs = self._at_first_action(log_probs) if stochastic else None
        return self.chunk(actions, ids[:, None].float(), chunk_log_probs)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return 0 where ``mask`` (B, 1, Q, K) is True, and the smallest number elsewhere."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, torch.finfo(like.dtype).min)


Policy = Pi0Fast
