"""The engine in this process: the trainer's own network, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.agentic.engines.base import Engine, Generation, GenerationRequest, ScoringPolicy

if TYPE_CHECKING:
    from torch import Tensor

MAX_BATCH = 512  # requests of one batch


class InProcessEngine(Engine):
    """Draws with the policy's network itself, so that an update copies nothing.

    Args:
        policy: policy whose network draws.
        max_batch: largest number of requests in a batch.
    """

    copies = False

    def __init__(self, policy: ScoringPolicy, max_batch: int = MAX_BATCH) -> None:
        self.policy, self.max_batch = policy, max_batch

    def update(self, policy: ScoringPolicy, version: int) -> None:
        """Take the policy; keys and values live for one call only (see ``Engine``)."""
        self.policy, self.version = policy, version

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Return the completions (see ``Engine``); a batch holds requests of similar length."""
        order = sorted(range(len(requests)), key=lambda index: len(requests[index].tokens))
        results: dict[int, Generation] = {}
        for start in range(0, len(order), self.max_batch):
            part = order[start : start + self.max_batch]
            drawn = self._generate_batch([requests[index] for index in part])
            results.update(zip(part, drawn, strict=True))
        return [results[index] for index in range(len(requests))]

    def _generate_batch(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Return the completions of one batch. Equal prompts are computed once."""
        import torch
        from transformers import DynamicCache

        network = self.policy.network
        device = next(network.parameters()).device
        rows: dict[tuple[int, ...], int] = {}
        row_of = [rows.setdefault(tuple(request.tokens), len(rows)) for request in requests]
        longest = max(map(len, rows))
        padding = [longest - len(row) for row in rows]
        ids = torch.tensor(
            [[*[0] * more, *row] for more, row in zip(padding, rows, strict=True)], device=device
        )
        starts = torch.tensor(padding, device=device)[:, None]
        mask = (torch.arange(longest, device=device) >= starts).long()
        is_padded = any(padding)
        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        stopped = [False] * len(requests)
        active = list(range(len(requests)))
        cache, new = DynamicCache(config=network.config), ids
        with torch.no_grad():
            while active:
                length = mask.shape[1]
                span = torch.arange(length - new.shape[1], length, device=device)
                places = (span - starts).clamp(min=0)
                answer = network(
                    input_ids=new,
                    attention_mask=mask if is_padded else None,
                    position_ids=places,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                logits = answer.logits[:, -1]
                if len(logits) < len(active):  # each request continues from its prompt's state
                    index = torch.tensor(row_of, device=device)
                    logits, starts, mask = logits[index], starts[index], mask[index]
                    cache.batch_select_indices(index)
                drawn, values = _draw(
                    logits,
                    [requests[row] for row in active],
                    [len(requests[row].tokens) + len(tokens[row]) for row in active],
                )
                keep = []
                for position, row in enumerate(active):
                    tokens[row].append(int(drawn[position]))
                    log_probs[row].append(float(values[position]))
                    stopped[row] = drawn[position] in requests[row].stop_ids
                    if not stopped[row] and len(tokens[row]) < requests[row].max_new_tokens:
                        keep.append(position)
                if len(keep) < len(active):
                    active = [active[position] for position in keep]
                    index = torch.tensor(keep, dtype=torch.long, device=device)
                    starts, mask = starts[index], mask[index]
                    if keep:
                        cache.batch_select_indices(index)
                new = torch.tensor(drawn[keep], device=device)[:, None]
                mask = torch.cat([mask, mask.new_ones(len(keep), 1)], dim=1)
        return [
            Generation(
                tokens[row], log_probs[row], "stop" if stopped[row] else "length", self.version
            )
            for row in range(len(requests))
        ]


def _draw(
    logits: Tensor, requests: Sequence[GenerationRequest], positions: Sequence[int]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Draw tokens (B,) and return them with their log-probabilities (B,), from logits (B, V).

    The draw inverts the distribution function.
    """
    import torch

    temperatures = torch.tensor([request.temperature for request in requests], device=logits.device)
    scale = torch.where(temperatures > 0, temperatures, 1.0)
    all_log_probs = (logits.float() / scale[:, None]).log_softmax(dim=-1)
    uniform = torch.tensor(
        uniforms([request.seed for request in requests], positions), device=logits.device
    )
    total = all_log_probs.double().exp().cumsum(dim=-1)
    drawn = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True).squeeze(-1)
    drawn = torch.where(
        temperatures > 0, drawn.clamp(max=logits.shape[-1] - 1), logits.argmax(dim=-1)
    )
    values = all_log_probs.gather(-1, drawn[:, None]).squeeze(-1)
    return drawn.numpy(force=True), values.numpy(force=True)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return numbers in [0, 1) that depend only on a seed and a position.

    SplitMix64 (Steele et al. 2014) of both.
    """
    with np.errstate(over="ignore"):
        mixed = np.array([seed % (1 << 64) for seed in seeds], np.uint64)
        mixed = _mix(mixed) + np.asarray(positions, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (_mix(mixed) >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _mix(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
