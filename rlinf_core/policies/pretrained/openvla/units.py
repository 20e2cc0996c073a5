"""Units of a checkpoint's data sets: an OpenVLA's [-1, 1] and a task's own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_core.core.errors import PolicyFileError, SpecError, escape_ascii, nearest
from rlinf_core.policies.pretrained.dataset_statistics import centre_and_spread, check_units
from rlinf_core.specs.arrays import ActionSpec

KINDS = {"action": "an action", "proprio": "of state"}


def offset_and_gain(
    statistics: Mapping[str, Any],
    name: str,
    feature: str,
    names: Sequence[str],
    scale: np.ndarray,
    action: ActionSpec | None = None,
) -> tuple[Tensor, Tensor]:
    """Return offset and gain (N,) from the network's [-1, 1] to numbers over ``scale``.

    They are 0 and 1 without a name, and for numbers outside the data set's mask, which are the
    network's own. Numbers that never changed in the data set have a gain of 0: they keep their
    value.

    Args:
        statistics: a config.json's norm_stats.
        name: name of one of its data sets.
        feature: action or proprio.
        names: names of the N numbers, for messages.
        scale: (N,) in SI units.
        action: the task's action spec, if the numbers are an action's.

    Raises:
        PolicyFileError: the numbers are not finite, not in order, or the mask has another length.
        SpecError: there is no such data set, or it has another number of numbers, or other units.
    """
    size = len(names)
    if not name:
        return torch.zeros(size), torch.ones(size)
    if name not in statistics:
        expected = ", ".join(statistics) or "none (this network has no norm_stats)"
        raise SpecError(
            f"policy.statistics: expected one of {expected}, got "
            f"'{name}'{nearest(name, statistics)}"
        )
    if feature not in statistics[name]:
        raise SpecError(
            f"policy.statistics: expected a data set with {feature} for policy.state, '{name}' "
            "has none. Leave policy.state false"
        )
    where = f"policy.statistics: norm_stats of '{name}'"
    centre, spread = centre_and_spread(statistics[name][feature], "quantiles", where, feature)
    if centre.shape != (size,):
        raise SpecError(
            f"policy.statistics: expected {size} numbers {KINDS[feature]} ({', '.join(names)}), "
            f"'{name}' has {len(centre)}. Take a task whose numbers are those of the data set"
        )
    mask = statistics[name][feature].get("mask", [True] * size)
    if (
        not isinstance(mask, list | tuple)
        or len(mask) != size
        or not all(isinstance(flag, bool) for flag in mask)
    ):
        raise PolicyFileError(
            f"{where}: {feature}: expected a mask of {size} booleans, got {escape_ascii(mask)[:80]}"
        )
    centre, spread = (np.where(mask, numbers, 0.0) for numbers in (centre, spread))
    if action is not None:
        check_units(action, where, centre, spread, "quantiles")
    return (
        torch.from_numpy((centre / scale).astype(np.float32)),
        torch.from_numpy(np.where(mask, spread / scale, 1.0).astype(np.float32)),
    )


def normalize(numbers: Tensor, offset: Tensor, gain: Tensor) -> Tensor:
    """Convert numbers (..., N) to the network's [-1, 1]; constants are 0, like in its training."""
    constant = gain == 0.0
    return ((numbers - offset) / (gain + constant)).masked_fill(constant, 0.0).clamp(-1.0, 1.0)
