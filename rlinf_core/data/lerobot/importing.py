"""Import a LeRobot data set (v3.0) as sealed recordings with a recipe's specs, ready for training.

A foreign data set counts as demonstrations: a person commanded, and each succeeded, unless it
states otherwise. It has no observation after its last frame; that frame is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import EpisodeError, RlinfError, SpecError, escape_ascii
from rlinf_core.data.episodes import check_values
from rlinf_core.data.folders import check_unused, new_folder
from rlinf_core.data.lerobot.columns import column_order
from rlinf_core.data.lerobot.reading import FINAL, DatasetReader
from rlinf_core.episodes import Episode
from rlinf_core.episodes.checksums import is_plain
from rlinf_core.episodes.messages import NS
from rlinf_core.episodes.write import write_episode
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.specs.arrays import StationSpec, encode_instructions

STEP_TOLERANCE = 1e-3  # relative to the largest step, because actions there are rounded to float32


def import_dataset(
    root: Path,
    out: Path,
    recipe: str | None = None,
    overrides: list[str] | None = None,
    cameras: dict[str, str] | None = None,
    instruction: str = "",
) -> tuple[int, int, list[str]]:
    """Write every episode of a data set to a new folder.

    Args:
        root: the data set's folder.
        out: a new folder.
        recipe, overrides: recipe of the station with the wanted specs; our own exports contain
            them.
        cameras: the station's cameras to the data set's names (``{"front": "laptop"}``).
        instruction: instruction of every episode, instead of the data set's.

    Returns:
        The numbers of episodes and frames, and the unused features.

    Raises:
        EpisodeError: a feature does not fit the specs, or there is no such data set; nothing is
            written.
    """
    try:
        return _import(root, out, recipe, overrides or [], cameras or {}, instruction)
    except RlinfError:
        raise
    except Exception as error:  # the readers raise many kinds for damaged files; the user needs one
        raise EpisodeError(
            f"{root}: expected an intact LeRobot data set, got: {type(error).__name__}: "
            f"{escape_ascii(error)}. Nothing was written"
        ) from error


def _import(
    root: Path,
    out: Path,
    recipe: str | None,
    overrides: list[str],
    cameras: dict[str, str],
    instruction: str,
) -> tuple[int, int, list[str]]:
    check_unused(out)
    data = DatasetReader(root)
    data.instruction = instruction
    spec, station = _specs(data, recipe, overrides)
    names = {
        image.name: _feature_name(cameras.get(image.name, image.name)) for image in spec.images
    }
    if faults := [*_camera_faults(cameras, spec), *_feature_faults(data, spec, names)]:
        raise EpisodeError(f"{root}: " + "; ".join(faults) + ". Nothing was written")
    frames = 0
    orders = {
        name: order
        for name, expected in _expected_features(spec)
        if (order := _feature_order(data, name, expected)) is not None
    }
    with new_folder(out) as folder:
        for number in range(len(data)):
            episode = _episode(data, number, spec, names, station, orders, exact=recipe is None)
            _check(episode, data, spec if recipe else None)
            write_episode(folder / episode.id, episode)
            frames += len(episode)
    return len(data), frames, data.unused_features(names.values())


def _specs(
    data: DatasetReader, recipe: str | None, overrides: list[str]
) -> tuple[StationSpec, str]:
    """Return the specs and the station's name."""
    if recipe is not None:
        loaded = load_recipe(recipe, overrides)
        return station_task(loaded).spec, loaded.station.name
    if not data.metadata:
        raise EpisodeError(
            f"{data.root}: expected --recipe with the station's specs, got none. Only data sets of "
            "`rlinf data export lerobot` contain their specs"
        )
    return StationSpec.from_dict(data.metadata["spec"]), ""


def _feature_name(camera: str) -> str:
    return camera if camera.startswith("observation.") else f"observation.images.{camera}"


def _camera_faults(cameras: dict[str, str], spec: StationSpec) -> Iterator[str]:
    camera_names = [image.name for image in spec.images]
    for name in cameras:
        if name not in camera_names:
            yield (
                f"--camera {name}: expected a camera that the station observes, "
                f"{', '.join(camera_names) or 'which are none'}"
            )


def _feature_faults(data: DatasetReader, spec: StationSpec, names: dict[str, str]) -> Iterator[str]:
    """Yield each feature that does not fit, with the expected and the actual form."""
    if data.fps != spec.control_hz:
        yield (
            f"fps: expected {spec.control_hz:g} (the station's time steps per second), got "
            f"{data.fps:g}"
        )
    described = {
        "action": spec.action.names,
        "observation.state": [item.name for item in spec.vectors],
    }
    for name, expected in _expected_features(spec):
        if data.shape(name) != (len(expected),):
            yield (
                f"feature '{name}': expected {len(expected)} numbers "
                f"({', '.join(described[name])}), got {data.describe_feature(name)}"
            )
        elif _feature_order(data, name, expected) is None:
            yield (
                f"feature '{name}': expected the names {', '.join(expected)}, in any order, got "
                f"{escape_ascii(', '.join(data.names(name)))}. If they are the same quantities, "
                "write the station's names to meta/info.json (features, names)"
            )
    for image in spec.images:
        if data.is_depth(names[image.name]):
            yield (
                f"feature '{names[image.name]}': expected pictures in colour, got distances "
                f"(is_depth_map)"
            )
        if data.shape(names[image.name]) != image.shape:
            yield (
                f"feature '{names[image.name]}': expected pictures of "
                f"{image.shape[0]}x{image.shape[1]}, got "
                f"{data.describe_feature(names[image.name])} "
                f"(--set station.image_size, --camera {image.name}=NAME)"
            )


def _expected_features(spec: StationSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield each numeric feature that a station needs, with the names of its numbers."""
    yield "action", list(spec.action.names)
    if spec.vectors:
        yield (
            "observation.state",
            [f"{item.name}.{index}" for item in spec.vectors for index in range(item.size)],
        )


def _feature_order(data: DatasetReader, name: str, expected: list[str]) -> list[int] | None:
    """Return the index of each number of a feature in the data set; None if its names differ."""
    names = [
        f"{label}.0" if f"{label}.0" in expected and f"{label}.1" not in expected else label
        for label in data.names(name)
    ]
    return column_order(expected, names)


def _vectors(
    spec: StationSpec, columns: dict[str, np.ndarray], final: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return the vectors (T + 1, D) by name.

    Args:
        spec: specs of the station.
        columns: columns of the episode, with the station's numbers in its order.
        final: the observation after the last action, by name; else the last one is repeated.
    """
    vectors = {}
    start = 0
    for item in spec.vectors:
        state = columns["observation.state"][:, start : start + item.size]
        values = np.asarray(state, np.float32)
        last = np.asarray(final.get(item.name, values[-1]), np.float32)
        vectors[item.name] = np.concatenate([values, last.reshape(1, -1)])
        start += item.size
    return vectors


def _episode(
    data: DatasetReader,
    number: int,
    spec: StationSpec,
    names: dict[str, str],
    station: str,
    orders: dict[str, list[int]],
    exact: bool,
) -> Episode:
    columns, metadata = data.columns(number), data.episode_metadata(number)
    length = len(columns["action"])
    columns |= {
        name: np.ascontiguousarray(columns[name][:, order]) for name, order in orders.items()
    }
    observations = _vectors(spec, columns, metadata.get(FINAL, {}))
    observations |= {
        image.name: data.pictures(names[image.name], number, columns["timestamp"][:, 0])
        for image in spec.images
    }
    actions = columns["action"].astype(np.float64)
    success = bool(columns["next.success"].any()) if "next.success" in columns else True
    failure = metadata.get("outcome") == "failure"
    rewards = columns.get("next.reward", np.append(np.zeros(length - 1), float(success)))
    discounts = np.ones(length, np.float32)
    discounts[-1] = 0.0 if success or failure else 1.0
    stamps = metadata.get("stamps_ns", np.round(data.stamps_s(columns) * NS).astype(np.int64))
    episode_id = metadata.get(
        "id",
        f"{_plain_name(data.root.resolve().name)}-{data.index(number):06d}-{_content_suffix(columns)}",
    )
    return Episode(
        id=episode_id,
        station=station or metadata["station"],
        mode=metadata.get("mode", "demonstration"),
        seed=metadata.get("seed", data.index(number)),
        success=success,
        failure=failure,
        truncated=not (success or failure),
        policy_version=metadata.get("policy_version", -1),
        spec_hash=metadata["spec_hash"] if exact else spec.hash,
        limits_hash=metadata.get("limits_hash", ""),
        instructions=data.instructions(columns, number),
        observations=observations,
        requested=actions,
        executed=actions,
        sources=tuple(metadata.get("sources", _sources(columns, length))),
        limits=((),) * length,
        rewards=np.asarray(rewards, np.float32).ravel(),
        discounts=discounts,
        stamps_ns=np.asarray(stamps, np.int64),
    )


def _sources(columns: dict[str, np.ndarray], length: int) -> list[str]:
    taken_over = columns.get("complementary_info.is_intervention", np.ones(length, bool)).ravel()
    return ["operator" if by_operator else "policy" for by_operator in taken_over]


def _check(episode: Episode, data: DatasetReader, spec: StationSpec | None) -> None:
    """Check an episode for training, and that no action exceeds the station's largest step."""
    if not is_plain(episode.id):
        raise EpisodeError(
            f"{data.root}: meta/rlinf.json: expected a plain episode id, got "
            f"{escape_ascii(episode.id)}"
        )
    try:
        encode_instructions(sorted(set(episode.instructions)))
    except SpecError as error:
        raise EpisodeError(
            f"{data.root}: meta/tasks.parquet: {error}. --instruction sets another one for all "
            "episodes. Nothing was written"
        ) from error
    check_values(episode, spec)
    if spec is None:
        return
    for row, (name, scale, unit) in enumerate(
        zip(spec.action.names, spec.action.scale, spec.action.units, strict=True)
    ):
        frame = int(np.abs(episode.requested[:, row]).argmax())
        largest = float(np.abs(episode.requested[frame, row]))
        if largest > scale * (1 + STEP_TOLERANCE):
            raise EpisodeError(
                f"{data.root}: feature 'action': expected '{name}' within {scale:g} {unit} in both "
                f"directions (a step of the station), got {largest:g} in episode {episode.id}, "
                f"frame {frame}. Are its actions of another kind, or in other units? Nothing was "
                "written"
            )


def _content_suffix(columns: dict[str, np.ndarray]) -> str:
    """Return eight hex digits from actions and observations.

    Other data sets may have folders of the same name.
    """
    return sha256(
        b"".join(
            np.ascontiguousarray(columns[name], np.float32).tobytes()
            for name in ("action", "observation.state")
            if name in columns
        )
    ).hexdigest()[:8]


def _plain_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+=-]", "_", name).lstrip(".") or "set"
