"""A causal language model of transformers, with log-probabilities of its tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlinf_core.core.errors import PolicyFileError, RecipeError, SpecError
from rlinf_core.core.extras import require
from rlinf_core.policies.base import ActionChunk, Batch, Observation, OnPolicyActor
from rlinf_core.policies.lora import inject_adapters, is_base_weight
from rlinf_core.policies.pretrained.language import Config
from rlinf_core.policies.pretrained.language.tokenizer import ChatTokenizer
from rlinf_core.specs.arrays import StationSpec

SMALLEST: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
}
# keys of config.json that change a network's logits after its last layer
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")
MAX_LOGITS = 1 << 24  # largest number of logits that are computed together


class LanguagePolicy(OnPolicyActor):
    """Rows of tokens, each with its log-probability given the tokens before it.

    Args:
        spec: a ``TextSpec``.
        config: settings of the policy.
        network: transformers' causal language model; None to read or make that of ``config``.
        tokenizer: None for that of ``config``.
    """

    config: Config

    def __init__(
        self,
        spec: StationSpec,
        config: Config | None = None,
        network: Any = None,
        tokenizer: ChatTokenizer | None = None,
    ) -> None:
        super().__init__(spec, config or Config())
        require("agentic", "policy.kind: language")
        if spec.observation:
            raise SpecError(
                "policy.kind: language writes text and acts on no station; expected env: "
                f"text:TASK, such as text:arithmetic, got a station with {len(spec.observation)} "
                "observations"
            )
        if network is None or tokenizer is None:
            network, tokenizer = _initial_network(self.config)
        self.network, self.tokenizer = network, tokenizer
        inject_adapters(self.network, self.config.lora)
        self._head: nn.Module = self.network.get_output_embeddings()
        self._scaled = any(
            getattr(self.network.config, name, None) not in (None, 1, 1.0) for name in SCALED
        )

    @classmethod
    def rebuild(
        cls, spec: StationSpec, config: Any, described: Mapping[str, Any]
    ) -> LanguagePolicy:
        """Rebuild the policy from the values of ``describe``, without access to its checkpoint."""
        return cls(
            spec,
            config,
            _from_config(described["network"]),
            ChatTokenizer.of(described["tokenizer"]),
        )

    def describe(self) -> dict[str, Any]:
        """Return the description with network and tokenizer, so that the file is complete."""
        return super().describe() | {
            "network": self.network.config.to_dict(),
            "tokenizer": self.tokenizer.describe(),
        }

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return weights by name; a head that shares the embedding's weights is left out."""
        state = super().state_dict(*arguments, **named)
        for name in self._tied():
            state.pop(name, None)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """See ``torch.nn.Module``: accepts the result of ``state_dict``."""
        tied = {
            name: state_dict[first] for name, first in self._tied().items() if first in state_dict
        }
        return super().load_state_dict({**state_dict, **tied}, strict, assign)

    def _tied(self) -> dict[str, str]:
        """Return the names of shared parameters, each with its first name."""
        names: dict[int, str] = {}
        return {
            name: first
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if (first := names.setdefault(id(parameter), name)) != name
        }

    def is_frozen(self, name: str) -> bool:
        """See ``NetworkPolicy``: the weights under adapters."""
        return bool(self.config.lora.rank) and is_base_weight(name)

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: empty."""
        return {}

    def train(self, mode: bool = True) -> LanguagePolicy:
        """Keep dropout off, because an engine's log-probabilities must equal those of learning."""
        super().train(mode)
        self.network.eval()
        return self

    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """See ``Policy``: always raises, because the model has no actions."""
        raise SpecError(
            "policy.kind: language writes text and acts on no station. rlinf chat RUN talks with it"
        )

    @property
    def vocabulary_size(self) -> int:
        """Number of the network's tokens."""
        return int(self.network.config.vocab_size)

    @property
    def temperature(self) -> float:
        """Divisor of the logits."""
        return self.config.temperature

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of the tokens that count, both (B, L); 0 elsewhere.

        Args:
            batch: ``executed`` (B, L) is 1 for those tokens.
            actions: ids (B, L, 1); the first of a row follows nothing and has no log-probability.
        """
        return self._log_probs(batch, actions, self.config.temperature)

    def _log_probs(
        self, batch: Batch, actions: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """See ``log_probs``; ``temperature`` divides the logits."""
        tokens, counted = actions[..., 0].long(), batch["executed"] > 0
        counted = counted.clone()
        counted[:, 0] = False
        order = torch.arange(tokens.shape[1], device=tokens.device)
        lengths = torch.where(counted, order + 1, 1).amax(dim=1).tolist()
        groups = list(_groups(lengths, self.config.token_budget, self.config.packed))
        log_probs = torch.zeros(tokens.shape, device=tokens.device)
        entropy = torch.zeros_like(log_probs)
        places, values, entropies = [], [], []
        for rows in groups:
            longest = max(lengths[row] for row in rows)
            index = torch.tensor(rows, device=tokens.device)
            part = counted[index, 1:longest]
            counted_places = part.nonzero()
            sizes = tuple(lengths[row] for row in rows)
            inputs = (tokens[index, :longest], part, sizes, temperature)
            value, value_entropy = _call_checkpointed(
                self._group_log_probs, len(groups) > 1, *inputs
            )
            places.append((index[counted_places[:, 0]], counted_places[:, 1] + 1))
            values.append(value)
            entropies.append(value_entropy)
        where = tuple(torch.cat(parts) for parts in zip(*places, strict=True))
        return log_probs.index_put(where, torch.cat(values)), entropy.index_put(
            where, torch.cat(entropies)
        )

    def _group_log_probs(
        self, tokens: Tensor, counted: Tensor, lengths: tuple[int, ...], temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies (M,) of the M tokens that count in rows (R, L).

        The rows are computed together.

        Args:
            tokens: ids (R, L), padded behind each row's length.
            counted: mask of the tokens after the first of each row, (R, L - 1).
            lengths: lengths of the R rows.
            temperature: divisor of the logits.
        """
        targets = tokens[:, 1:][counted]
        if self.config.packed and len(lengths) > 1:
            device = tokens.device
            valid = (
                torch.arange(tokens.shape[1], device=device)
                < torch.tensor(lengths, device=device)[:, None]
            )
            positions = torch.arange(tokens.shape[1], device=device).expand(tokens.shape)[valid]
            inputs = {"input_ids": tokens[valid][None], "position_ids": positions[None]}
            # a token's logits stand one place before it
            before = nn.functional.pad(counted, [0, 1])[valid]
        else:  # padding stands behind a row; none of the row's tokens attends to it
            inputs, before = {"input_ids": tokens}, nn.functional.pad(counted, [0, 1]).flatten()
        if self._scaled:
            logits = self.network(**inputs, use_cache=False).logits.flatten(0, 1)[before]
            return self._logits_log_probs(logits, targets, temperature)
        hidden = self.network.base_model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)[
            before
        ]
        pieces = max(1, -(-len(hidden) * self.vocabulary_size // MAX_LOGITS))
        parts = [
            _call_checkpointed(self._hidden_log_probs, pieces > 1, piece, ids, temperature)
            for piece, ids in zip(hidden.chunk(pieces), targets.chunk(pieces), strict=True)
        ]
        log_probs, entropies = zip(*parts, strict=True)
        return torch.cat(log_probs), torch.cat(entropies)

    def _hidden_log_probs(
        self, hidden: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        return self._logits_log_probs(self._head(hidden), targets, temperature)

    def _logits_log_probs(
        self, logits: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies (M,) of ids (M,) under logits (M, V)."""
        logits = logits.float() / temperature
        log_total = logits.logsumexp(dim=-1)
        log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - log_total
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.differentiates_entropy):
            entropy = log_total - (logits.softmax(dim=-1) * logits).sum(dim=-1)
        return log_probs, entropy

    def value_network(self) -> TokenValue:
        """See ``OnPolicyActor``: a copy of the network with an initial value of 0."""
        return TokenValue(self)

    @torch.no_grad()
    def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return each token's log-probability in each row; 0 for the first one of a row."""
        longest = max(map(len, rows))
        tokens = torch.tensor(
            [[*row, *[0] * (longest - len(row))] for row in rows], device=self.device
        )
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        executed = (torch.arange(longest, device=self.device) < lengths[:, None]).float()
        log_probs, _ = self.log_probs({"executed": executed}, tokens.unsqueeze(-1))
        return [values[: len(row)] for values, row in zip(log_probs.tolist(), rows, strict=True)]

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean cross-entropy of the tokens (B, L, 1) that count (``executed``).

        Its temperature is 1, as in supervised fine-tuning elsewhere. Draws at a lower temperature
        are then closer to the likeliest tokens.
        """
        log_probs, _ = self._log_probs(batch, actions, 1.0)
        return -(log_probs * batch["executed"]).sum() / batch["executed"].sum().clamp(min=1.0)


class TokenValue(nn.Module):
    """The value of the state before each token, (B, L), for rows of ``actions`` (B, L, 1)."""

    def __init__(self, policy: LanguagePolicy) -> None:
        super().__init__()
        self.trunk: nn.Module = copy.deepcopy(policy.network.base_model)
        self.head = nn.Linear(policy.network.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        tokens = batch["actions"][..., 0].long()
        hidden = self.trunk(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        return nn.functional.pad(self.head(hidden).squeeze(-1), [1, 0])


def _groups(lengths: Sequence[int], budget: int, packed: bool) -> Iterator[list[int]]:
    """Yield rows to compute together: of similar length, at most ``budget`` tokens with padding."""
    rows: list[int] = []
    total = 0
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        size = total + lengths[row] if packed else (len(rows) + 1) * lengths[row]
        if rows and size > budget:
            yield rows
            rows, total = [], 0
        rows.append(row)
        total += lengths[row]
    yield rows


def _call_checkpointed(
    compute: Callable[..., tuple[Tensor, Tensor]], recompute: bool, *inputs: Any
) -> tuple[Tensor, Tensor]:
    """Return ``compute(*inputs)``; with ``recompute``, again in the backward pass.

    Recomputing saves memory.
    """
    if recompute and torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = checkpoint(compute, *inputs, use_reentrant=False)
        return result
    return compute(*inputs)


def _initial_network(config: Config) -> tuple[Any, ChatTokenizer]:
    """Return network and tokenizer, of a checkpoint's folder or from scratch."""
    if not config.checkpoint:
        tokenizer = ChatTokenizer.of_bytes()
        try:
            return _from_config(
                SMALLEST | {"vocab_size": tokenizer.size} | config.network
            ), tokenizer
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecipeError(
                f"policy.network: expected keys of a config.json of transformers, got: {error}"
            ) from error
    from transformers import AutoModelForCausalLM

    folder = Path(config.checkpoint)
    if not (folder / "config.json").is_file():
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected a folder with config.json, tokenizer.json and "
            "*.safetensors, found no config.json"
        )
    try:
        network = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except (ValueError, OSError) as error:
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected a causal language model, got: {error}"
        ) from error
    return network, ChatTokenizer.of_folder(folder)


def _from_config(described: Mapping[str, Any]) -> Any:
    """Return transformers' network of a config.json, with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = {
        key: value for key, value in described.items() if key not in ("model_type", "architectures")
    }
    config = AutoConfig.for_model(described["model_type"], **keys)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


Policy = LanguagePolicy
