"""Weight updates for rollout workers: only the changed values are sent.

torch counts the changes of each tensor, so an unchanged one is not read. A write that torch does
not see (``tensor.data``, a CUDA graph) is found by a comparison of all bytes: in the first requests
and then in every twentieth. From the first such write on, all bytes are always compared. With LoRA
only the adapters change, so only they are sent. Stations get changed tensors of a file instead
(``deploy/bridge/policy_parts.py``), since they verify its hash. A worker trusts its trainer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DENSE = 0.3  # fraction of changed words beyond which a tensor is sent in full
WORD = 8  # bytes per comparison
CHUNK = 1 << 14  # words per memcmp
# first requests, and interval of further ones, that compare all bytes
TRUSTED_AFTER, AUDIT_EVERY = 3, 20

Weights = dict[str, np.ndarray]
memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass
class WeightUpdate:
    """A change of weights.

    Attributes:
        base: edition that the receiver must have; 0 for any.
        edition: edition of the receiver afterwards.
        full: tensors to replace, by name.
        parts: indices and values (N,) of changed words of the other tensors, by name.
    """

    base: int
    edition: int
    full: Weights = field(default_factory=dict)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the update in bytes."""
        pairs = [array for pair in self.parts.values() for array in pair]
        return sum(array.nbytes for array in (*self.full.values(), *pairs))


class WeightSender:
    """Keeps a copy of the weights that were sent last.

    Args:
        is_frozen: returns whether updates leave a weight unchanged, by name. Such a weight is
            compared only if torch has counted a change.

    Attributes:
        trusts_counters: whether torch has counted every change so far.
    """

    def __init__(self, is_frozen: Callable[[str], bool]) -> None:
        self.is_frozen = is_frozen
        self.edition = 0
        self.trusts_counters = True
        self.sent: Weights = {}
        self._stamps: dict[str, tuple[int, int]] = {}

    def changes(self, weights: Mapping[str, Tensor]) -> WeightUpdate:
        """Return the update since the last call; the first one holds all weights."""
        update = WeightUpdate(self.edition, self.edition + 1)
        audits = self.edition < TRUSTED_AFTER or self.edition % AUDIT_EVERY == 0
        skips = self.trusts_counters and not audits
        for name, tensor in weights.items():
            stamp = tensor.data_ptr(), tensor._version
            uncounted = name in self.sent and self._stamps.get(name) == stamp
            if uncounted and (skips or self.is_frozen(name)):
                continue
            self._stamps[name] = stamp
            changed = self._compare(name, tensor.numpy(force=True), update)
            if uncounted and changed:
                self.trusts_counters = False
        self.edition += 1
        return update

    def full_update(self) -> WeightUpdate:
        """Return all weights of the last update, for a new worker."""
        return WeightUpdate(0, self.edition, dict(self.sent))

    def _compare(self, name: str, array: np.ndarray, update: WeightUpdate) -> bool:
        """Add a tensor's changed words to an update; return whether there are any."""
        before = self.sent.get(name)
        if before is None or before.shape != array.shape or before.dtype != array.dtype:
            self.sent[name] = update.full[name] = array.copy()
            return True
        new, old = _words(array), _words(before)
        places = _changed(new, old)
        if places is None:
            self.sent[name] = update.full[name] = array.copy()
        elif len(places):
            values = new[places]
            old[places] = values
            update.parts[name] = places, values
        return places is None or len(places) > 0


def receive(module: nn.Module, update: WeightUpdate) -> None:
    """Change a module's weights in place.

    Raises:
        KeyError: the module lacks a weight of the update.
    """
    state = module.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, array in update.full.items():
            state[name].copy_(
                torch.from_numpy(np.array(array) if not array.flags.writeable else array)
            )
        for name, (places, values) in update.parts.items():
            tensor = state[name].detach()
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                _words(tensor.numpy())[places] = values
            else:
                array = tensor.numpy(force=True).copy()
                _words(array)[places] = values
                tensor.copy_(torch.from_numpy(array))


def _changed(new: np.ndarray, old: np.ndarray) -> np.ndarray | None:
    """Return the indices (N,) of the words that differ; None if they exceed the fraction ``DENSE``.

    Equal pieces are skipped by the C library's ``memcmp``, which needs no temporary array.
    """
    differs = np.empty(CHUNK, bool)
    kind = np.dtype(np.int32 if len(new) < 2**31 else np.int64)
    places: list[np.ndarray] = []
    count = 0
    here, former = new.ctypes.data, old.ctypes.data
    for begin in range(0, len(new), CHUNK):
        piece = new[begin : begin + CHUNK]
        skip = begin * new.itemsize
        if memcmp(here + skip, former + skip, piece.nbytes) == 0:
            continue
        flags = np.not_equal(piece, old[begin : begin + CHUNK], out=differs[: len(piece)])
        if flags.any():
            places.append((np.flatnonzero(flags) + begin).astype(kind))
            count += len(places[-1])
            if count > DENSE * len(new):
                return None
    return np.concatenate(places) if places else np.zeros(0, kind)


def _words(array: np.ndarray) -> np.ndarray:
    """Return the memory of an array as unsigned integers (N,), so that a NaN equals itself."""
    flat = np.ascontiguousarray(array).reshape(-1)
    size = WORD if flat.nbytes % WORD == 0 else flat.itemsize
    return flat.view(f"u{size}")


def put(ray: Any, payload: Any) -> Any:
    """Put a payload into Ray's object store and return its reference.

    Readers on one machine map the same memory. Ray copies it once to each other machine.
    """
    return ray.put(payload)
