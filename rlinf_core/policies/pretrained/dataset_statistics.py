"""Statistics of data sets that normalise published checkpoints, in the files of their makers.

openpi and Dexbotic write norm_stats.json (``{"norm_stats": {"state": {"mean": [...], ...},
"actions": ...}}``). LeRobot writes ``policy_preprocessor_step_*_normalizer_processor.safetensors``
in a policy's folder and meta/stats.json in a data set's. NVIDIA writes statistics.json and
processor_config.json in a policy's folder; ``statistics.json/TAG`` names one embodiment in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.specs.arrays import ActionSpec, StationSpec, other_units

# how a network's numbers stand for the data set's: by its mean and deviation, two quantiles, ...
Kind = Literal["deviations", "quantiles", "deciles", "bounds", "extremes", "identity"]
NAMES = {
    "deviations": ("mean", "std"),
    "quantiles": ("q01", "q99"),
    "deciles": ("q10", "q90"),
    "bounds": ("min", "max"),
    "extremes": ("min", "max"),
}
# a state that never changes is -1 with these kinds, and 0 with the others
CONSTANT_IS_MINIMUM = ("quantiles", "deciles", "bounds")
FEATURES = {"state": ("state", "observation.state"), "action": ("actions", "action")}
# smaller variations count as constant
SMALLEST = 1e-6
# nearly all of a data set lies within this many deviations of the mean
DEVIATIONS = 2.0


class FixedNormalisation(Normalisation):
    """The normalisation of a checkpoint's data set.

    Fine-tuning does not change it. Numbers are not clipped, like at its makers.
    """

    bound = math.inf

    def set_statistics(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Do nothing: the normalisation is fixed."""


class ActionUnits(nn.Module):
    """The conversion of a network's numbers to normalised actions, offset + gain x, and back.

    A number that never changes in the data set keeps its value, whatever the network's output; its
    learning target is 0.

    Args:
        action: the task's action spec.
        from_statistics: True if a checkpoint's statistics set offset and gain. Else the network's
            numbers are normalised actions.
    """

    offset: Tensor
    gain: Tensor

    def __init__(self, action: ActionSpec, from_statistics: bool) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(action.dim), persistent=from_statistics)
        self.register_buffer("gain", torch.ones(action.dim), persistent=from_statistics)

    def to_actions(self, numbers: Tensor) -> Tensor:
        """Convert a network's numbers (..., A) to normalised actions, clipped to their range."""
        return (self.offset + self.gain * numbers).clamp(-1.0, 1.0)

    def to_network(self, actions: Tensor) -> Tensor:
        """Convert normalised actions (..., A) to a network's numbers."""
        constant = self.gain == 0.0
        return ((actions - self.offset) / (self.gain + constant)).masked_fill(constant, 0.0)


def load_statistics(
    path: Path,
    kinds: tuple[Kind, Kind],
    spec: StationSpec,
    max_sizes: tuple[int, int],
    normalisation: Normalisation,
    units: ActionUnits,
    state_divisor: float = 1.0,
) -> None:
    """Set a normalisation and units from a file.

    Args:
        path: one of the files above.
        kinds: statistics of the network's training, of state and of action. A network's x stands
            for mean + std x by ``deviations`` and for x by ``identity``; by the others -1 and 1
            stand for their two numbers.
        spec: the station's specs; its numbers are the first of the file's.
        max_sizes: the network's numbers of state and of an action. Files may be padded to these.
        normalisation: the state's normalisation, changed in place.
        units: the action's units, changed in place.
        state_divisor: divisor of a normalised state.

    Raises:
        PolicyFileError: the file is unreadable, or lacks the statistics.
        SpecError: the statistics do not match the station's numbers.
    """
    features = _read_statistics(path)
    state = tuple(name for item in spec.vectors for name in [item.name] * item.size)
    centre, spread = _feature_ranges(path, features, "state", kinds[0], state, max_sizes[0])
    if kinds[0] in CONSTANT_IS_MINIMUM:
        centre = np.where(spread == 0.0, centre + 1.0, centre)
    normalisation.mean.copy_(torch.from_numpy(centre))
    normalisation.std.copy_(torch.from_numpy(np.where(spread == 0.0, 1.0, spread) / state_divisor))
    measured: Kind = "extremes" if kinds[1] == "identity" else kinds[1]
    centre, spread = _feature_ranges(
        path, features, "action", measured, spec.action.names, max_sizes[1]
    )
    check_units(spec.action, f"policy.statistics {path}", centre, spread, measured)
    if kinds[1] == "identity":
        centre, spread = np.zeros_like(centre), np.ones_like(spread)
    scale = np.array(spec.action.scale, np.float32)
    units.offset.copy_(torch.from_numpy(centre / scale))
    units.gain.copy_(torch.from_numpy(spread / scale))


def image_centre_and_spread(path: Path, camera: str, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and spread (3,) of a camera's images in [0, 1], by colour.

    The network's x stands for centre + spread x.

    Args:
        path: one of the files above.
        camera: the part behind ``observation.images.``.
        kind: kind of the statistics.

    Raises:
        PolicyFileError: the file lacks that camera, or has other numbers than three.
    """
    if kind == "identity":
        return np.zeros(3, np.float32), np.ones(3, np.float32)
    features = _read_statistics(path)
    names = [name for name in features if name.startswith("observation.image")]
    name = next(
        (name for name in names if name.rpartition(".")[2] == camera),
        names[0] if len(names) == 1 else None,
    )
    if name is None:
        raise PolicyFileError(
            f"policy.statistics {path}: expected observation.images.{camera}, got "
            f"{', '.join(features) or 'nothing'}"
        )
    centre, spread = centre_and_spread(features[name], kind, f"policy.statistics {path}", name)
    if len(centre) != 3 or not (spread > 0.0).all():
        raise PolicyFileError(
            f"policy.statistics {path}: expected three colours of {name} that vary, got "
            f"{len(centre)}"
        )
    return centre, spread


def centre_and_spread(
    feature: Any, kind: Kind, where: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and spread (N,) of a feature; all are finite, and no spread is negative.

    The network's x stands for centre + spread x.

    Args:
        feature: statistics by name.
        kind: kind of the statistics.
        where: their source, for messages.
        name: name of the feature, for messages.

    Raises:
        PolicyFileError: the statistics are missing or invalid.
    """
    first, second = NAMES[kind]
    try:
        low, high = (np.asarray(feature[key], np.float32).ravel() for key in NAMES[kind])
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyFileError(
            f"{where}: expected numbers {first} and {second} of {name}, by "
            f"which this network was trained, got: {error}"
        ) from error
    if low.shape != high.shape or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise PolicyFileError(
            f"{where}: {name}: expected as many finite numbers {first} as "
            f"{second}, got {len(low)} and {len(high)}"
        )
    centre, spread = (low, high) if kind == "deviations" else ((low + high) / 2, (high - low) / 2)
    if (spread < 0.0).any():
        raise PolicyFileError(
            f"{where}: {name}: expected deviations of 0 or more, and no least number above the "
            f"greatest ({first}, {second}), got {spread.min():g} for one of them"
        )
    return centre, spread


def check_units(
    action: ActionSpec, where: str, centre: np.ndarray, spread: np.ndarray, kind: Kind
) -> None:
    """Raise SpecError if actions with these statistics (A,) [task's units] exceed its steps far."""
    reach = DEVIATIONS * spread if kind == "deviations" else spread
    if wrong := other_units(action, centre - reach, centre + reach):
        raise SpecError(f"{where}: {wrong} Take the statistics of a data set in the task's units")


def _read_statistics(path: Path) -> Mapping[str, Any]:
    """Read a file's statistics, by feature, then by statistic."""
    if path.parent.is_file():
        return _read_embodiment(path.parent, path.name)
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            by_feature: dict[str, dict[str, Any]] = {}
            for name, values in load_file(path).items():
                feature, _, statistic = name.rpartition(".")
                by_feature.setdefault(feature, {})[statistic] = values
            return by_feature
        document = json.loads(path.read_text())
        features = document.get("norm_stats", document)
        if not isinstance(features, Mapping):
            raise ValueError(f"a {type(features).__name__} where features were expected")
    except Exception as error:  # safetensors raises one of its own
        raise PolicyFileError(
            f"policy.statistics {path}: expected a norm_stats.json, as openpi and Dexbotic write "
            f"it, or LeRobot's ...normalizer_processor.safetensors or stats.json, got: {error}"
        ) from error
    return features


def _read_embodiment(path: Path, tag: str) -> Mapping[str, Any]:
    """Read the statistics of one embodiment in NVIDIA's statistics.json."""
    where = f"policy.statistics {path / tag}"
    try:
        document = json.loads(path.read_text())
        processor = json.loads(path.with_name("processor_config.json").read_text())
        kwargs = processor["processor_kwargs"]
        if tag not in document or tag not in kwargs["modality_configs"]:
            tags = ", ".join(sorted(document.keys() & kwargs["modality_configs"].keys()))
            raise PolicyFileError(f"{where}: expected one of the embodiments {tags}, got {tag}")
        names = ("q01", "q99") if kwargs.get("use_percentiles") else ("min", "max")
        features: dict[str, dict[str, Any]] = {}
        modality = kwargs["modality_configs"][tag]
        _check_history(where, modality)
        for part, feature in (("state", "state"), ("action", "actions")):
            config = modality[part]
            groups = config["modality_keys"]
            _check_encoding(f"{where}: {part}", config, kwargs)
            relative = kwargs.get("use_relative_action") and part == "action"
            for group, keys in zip(groups, config.get("action_configs") or [], strict=False):
                if relative and str(keys.get("rep")).lower() == "relative":
                    raise PolicyFileError(
                        f"{where}: expected absolute actions, got {group} relative to the state, "
                        "which a station would play as steps"
                    )
            features[feature] = {
                bound: np.concatenate([document[tag][part][group][name] for group in groups])
                for bound, name in zip(("min", "max"), names, strict=True)
            }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyFileError(
            f"{where}: expected NVIDIA's statistics.json with a processor_config.json of the same "
            f"embodiments, got: {type(error).__name__}: {error}"
        ) from error
    return features


def _check_history(where: str, modality: Mapping[str, Any]) -> None:
    """Raise PolicyFileError if an embodiment reads more than one time step."""
    for part in ("video", "state"):
        steps = modality.get(part, {}).get("delta_indices") or [0]
        if len(steps) > 1:
            raise PolicyFileError(
                f"{where}: {part}: expected one time step in delta_indices of "
                f"processor_config.json, got {steps}. A history is not supported"
            )


def _check_encoding(where: str, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
    """Raise PolicyFileError if numbers are not scaled by their least and greatest."""
    for key, reason in (("sin_cos", "as sine and cosine"), ("mean_std", "by mean and deviation")):
        used = key != "sin_cos" or kwargs.get("apply_sincos_state_encoding")
        if used and (groups := config.get(f"{key}_embedding_keys")):
            raise PolicyFileError(
                f"{where}: expected no {key}_embedding_keys in processor_config.json, got "
                f"{', '.join(map(str, groups))}, which the network reads {reason}. Take another "
                "embodiment, or leave policy.statistics out and train"
            )


def trained_steps(path: Path) -> int:
    """Return the trained actions of a chunk, by NVIDIA's processor_config.json; 0 if unknown."""
    if not path.parent.is_file():
        return 0
    processor = json.loads(path.parent.with_name("processor_config.json").read_text())
    action = processor["processor_kwargs"]["modality_configs"][path.name]["action"]
    return len(action.get("delta_indices") or ())


def _feature_ranges(
    path: Path,
    features: Mapping[str, Any],
    feature_name: str,
    kind: Kind,
    names: Sequence[str],
    max_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and spread (N,) of the station's numbers; the spread of constants is 0."""
    feature = next((name for name in FEATURES[feature_name] if name in features), None)
    if kind == "identity":
        return np.zeros(len(names), np.float32), np.ones(len(names), np.float32)
    if feature is None:
        raise PolicyFileError(
            f"policy.statistics {path}: expected {' or '.join(FEATURES[feature_name])}, got "
            f"{', '.join(features) or 'nothing'}"
        )
    centre, spread = centre_and_spread(
        features[feature], kind, f"policy.statistics {path}", feature
    )
    count, varies = len(names), spread > SMALLEST
    if len(centre) not in (count, max_size) or varies[count:].any():
        raise SpecError(
            f"policy.statistics {path}: expected {count} numbers of {feature} "
            f"({', '.join(names)}), got {len(centre)}, of which {varies.sum()} vary. Take a task "
            "whose numbers are those of the data set, in its order"
        )
    return centre[:count], np.where(varies, spread, 0.0)[:count].astype(np.float32)
