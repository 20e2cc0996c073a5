"""The folders of LeRobot's policies (0.4.4 to 0.6.1).

Keys of config.json are read, have no effect or are refused. ``save_folder`` writes a folder that
LeRobot's own classes load, with its processors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.core.errors import PolicyFileError, escape_ascii
from rlinf_core.policies.pretrained.dataset_statistics import Kind
from rlinf_core.policies.pretrained.huggingface import json_text, read_json

if TYPE_CHECKING:
    from torch import Tensor

MODES: dict[str, Kind] = {
    "MEAN_STD": "deviations",
    "QUANTILES": "quantiles",
    "QUANTILE10": "deciles",
    "MIN_MAX": "bounds",
    "IDENTITY": "identity",
}
SETTINGS = {
    "num_inference_steps": "flow_steps",
    "num_steps": "flow_steps",
    "tokenizer_max_length": "tokens",
    "n_action_steps": "n_action_steps",
}
# Keys of training, of the machine and of the hub, and keys that change masked input alone. None
# changes an action.
WITHOUT_EFFECT = {
    "device",
    "dtype",
    "use_amp",
    "push_to_hub",
    "repo_id",
    "private",
    "tags",
    "license",
    "pretrained_path",
    "pretrained_revision",
    "gradient_checkpointing",
    "compile_model",
    "compile_mode",
    "freeze_vision_encoder",
    "train_expert_only",
    "train_state_proj",
    "load_vlm_weights",
    "use_cache",
    "rtc_config",
    "empty_cameras",
    "prefix_length",
    "pad_language_to",
    "relative_exclude_joints",
    "action_feature_names",
    "input_features",
    "output_features",
}
# other values are unsupported
EXPECTED = {"n_obs_steps": 1, "use_relative_actions": False, "use_peft": False}
HELP = {
    "use_relative_actions": "Its actions are joint positions relative to the state, which a "
    "station would play as steps",
    "use_peft": "It holds adapters: set policy.adapters to its folder, and policy.checkpoint to "
    "the model's",
    "n_obs_steps": "Policies here read one time step",
}


@dataclass(frozen=True)
class Training:
    """A policy's training settings.

    Attributes:
        state_statistics, action_statistics, image_statistics: kinds of statistics that normalise
            them.
        settings: a policy's keys, with LeRobot's key and its value.
        has_relative_key: True if it has LeRobot's key use_relative_actions, written since 0.5.1.
    """

    state_statistics: Kind
    action_statistics: Kind
    image_statistics: Kind
    settings: Mapping[str, tuple[str, int]]
    has_relative_key: bool


def read_config(
    folder: Path,
    kind: str,
    needed: Collection[str],
    optional: Collection[str],
    fixed: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] = SETTINGS,
    image_modes: Collection[str] = ("IDENTITY",),
) -> tuple[dict[str, Any], Training]:
    """Return the network's keys of LeRobot's config.json, and the policy's training settings.

    Args:
        folder: folder of the policy.
        kind: LeRobot's ``type``.
        needed: required keys of the network.
        optional: optional keys of the network.
        fixed: keys with a single supported value.
        settings: LeRobot's keys for settings of a policy, with the policy's key.
        image_modes: the family's normalisations of images.

    Raises:
        PolicyFileError: a key is missing or unknown, or has an unsupported value.
    """
    where = f"policy.checkpoint {folder}"
    try:
        document = read_json(folder / "config.json")
    except PolicyFileError as error:
        raise PolicyFileError(
            f"{where}: expected a folder with a map in config.json, got: {error}"
        ) from error
    if (got := document.get("type")) != kind:
        raise PolicyFileError(
            f"{where}: expected a config.json of LeRobot's type {kind}, got {got!r}"
        )
    if missing := [key for key in needed if key not in document]:
        raise PolicyFileError(
            f"{where}: expected {' and '.join(missing)} in config.json, got nothing"
        )
    expected = {
        key: value for key, value in {**EXPECTED, **(fixed or {})}.items() if key not in needed
    }
    for key, value in expected.items():
        if document.get(key, value) != value:
            raise PolicyFileError(
                f"{where}: expected {key} of {value} in config.json, got {document[key]!r}. "
                f"{HELP.get(key, 'Another value is not known here')}"
            )
    read = {
        *needed,
        *optional,
        *(fixed or {}),
        *EXPECTED,
        *settings,
        "normalization_mapping",
        "type",
    }
    for key, value in document.items():
        if (
            key not in read
            and key not in WITHOUT_EFFECT
            and not key.startswith(("optimizer_", "scheduler_"))
            and value
        ):
            raise PolicyFileError(
                f"{where}: expected keys of LeRobot 0.4 to 0.6 in config.json, got "
                f"'{escape_ascii(key)}: {escape_ascii(value)[:60]}', whose effect is not known "
                "here. Where it has none, take the line out"
            )
    network = {key: value for key, value in document.items() if key in needed or key in optional}
    return network, Training(
        *_modes(document, where, image_modes),
        _settings(document, where, settings),
        "use_relative_actions" in document,
    )


def _settings(
    document: Mapping[str, Any], where: str, names: Mapping[str, str]
) -> dict[str, tuple[str, int]]:
    settings = {
        key: (published_key, document[published_key])
        for published_key, key in names.items()
        if document.get(published_key) is not None
    }
    for published_key, value in settings.values():
        if type(value) is not int or value < 1:
            raise PolicyFileError(
                f"{where}: expected {published_key} of 1 or more in config.json, got {value!r}"
            )
    return settings


def _modes(
    document: Mapping[str, Any], where: str, image_modes: Collection[str]
) -> tuple[Kind, Kind, Kind]:
    """Return the kinds of statistics of state, action and images."""
    mapping = document.get("normalization_mapping")
    if not isinstance(mapping, Mapping) or not mapping.keys() >= {"STATE", "ACTION"}:
        raise PolicyFileError(
            f"{where}: expected a normalization_mapping with STATE and ACTION in config.json, got "
            f"{escape_ascii(mapping)[:80]}: it says what the network's numbers stand for"
        )
    if (visual := mapping.get("VISUAL", "IDENTITY")) not in image_modes:
        raise PolicyFileError(
            f"{where}: expected a normalization_mapping of VISUAL: {' or '.join(image_modes)} in "
            f"config.json, got {visual!r}"
        )
    for feature in ("STATE", "ACTION"):
        if mapping[feature] not in MODES:
            raise PolicyFileError(
                f"{where}: expected a normalization_mapping of {', '.join(MODES)} for {feature} in "
                f"config.json, got {escape_ascii(mapping[feature])[:40]!r}"
            )
    return MODES[mapping["STATE"]], MODES[mapping["ACTION"]], MODES[visual]


Statistics = Mapping[str, Mapping[str, "Tensor"]]  # by feature, then by statistic


def save_folder(
    folder: Path, document: Mapping[str, Any], weights: Mapping[str, Tensor], statistics: Statistics
) -> None:
    """Write a policy and its processors in the format of LeRobot's ``save_pretrained``.

    Args:
        folder: a new folder, or an empty one.
        document: content of config.json, with ``input_features``, ``output_features`` and
            ``normalization_mapping``.
        weights: weights by LeRobot's names.
        statistics: normalisation of the features, in the data set's units.

    Raises:
        PolicyFileError: the folder is not empty.
    """
    from safetensors.torch import save_file

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PolicyFileError(
            f"{folder}: expected a new folder, or an empty one, found something. Nothing is "
            f"overwritten"
        )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    (folder / "config.json").write_text(json_text(document))
    inputs, outputs, mapping = (
        document[key] for key in ("input_features", "output_features", "normalization_mapping")
    )
    device = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
    tensors = {
        f"{feature}.{name}": tensor.detach().cpu().clone()
        for feature, numbers in statistics.items()
        for name, tensor in numbers.items()
    }

    def scaling(
        name: str, pipeline: str, index: int, features: Mapping[str, Any]
    ) -> dict[str, Any]:
        file = f"{pipeline}_step_{index}_{name}.safetensors"
        save_file(tensors, folder / file)
        return {
            "registry_name": name,
            "config": {"eps": 1e-8, "features": features, "norm_map": mapping},
            "state_file": file,
        }

    before, after = "policy_preprocessor", "policy_postprocessor"
    steps = {
        before: [
            {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
            {"registry_name": "to_batch_processor", "config": {}},
            device,
            scaling("normalizer_processor", before, 3, {**inputs, **outputs}),
        ],
        after: [scaling("unnormalizer_processor", after, 0, outputs), device],
    }
    for name, listed in steps.items():
        (folder / f"{name}.json").write_text(json_text({"name": name, "steps": listed}))
