"""Gradient checkpointing: the backward pass recomputes layers instead of storing their activations.

Chen et al. 2016, arXiv 1604.06174, by torch's ``checkpoint``. A layer that fills a cache of keys
and values, such as the prefix of an action expert, fills it only the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CACHE = "past_key_values"  # transformers' name
Forward = Callable[..., Any]


def with_recomputation(forward: Forward) -> Forward:
    """Wrap ``forward`` to keep only its inputs for the backward pass."""

    def forward_with_checkpoint(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        if named.get(CACHE) is not None:
            named[CACHE] = WriteOnceCache(named[CACHE])
            return checkpoint(
                _recompute, forward, named.pop(CACHE), *inputs, use_reentrant=False, **named
            )
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return forward_with_checkpoint


def _recompute(forward: Forward, cache: WriteOnceCache, *inputs: Any, **named: Any) -> Any:
    cache.begin()
    return forward(*inputs, **named, **{CACHE: cache})


class WriteOnceCache:
    """A cache for one layer that keeps only the first addition.

    Later additions are joined to the earlier content without being stored.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._times = 0
        self._before: dict[int, tuple[Tensor, Tensor] | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def begin(self) -> None:
        """Begin the layer's computation, or its recomputation."""
        self._times += 1

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *more: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values of a layer, the new ones last, as transformers' ``Cache``."""
        if self._times == 1:
            self._before[layer] = self._cached_layer(layer)
            joined: tuple[Tensor, Tensor] = self._cache.update(keys, values, layer, *more, **named)
            return joined
        before = self._before[layer]
        if before is None:
            return keys, values
        return torch.cat([before[0], keys], dim=-2), torch.cat([before[1], values], dim=-2)

    def _cached_layer(self, layer: int) -> tuple[Tensor, Tensor] | None:
        if layer >= len(self._cache.layers) or not self._cache.get_seq_length(layer):
            return None
        layer_cache = self._cache.layers[layer]
        return layer_cache.keys, layer_cache.values
