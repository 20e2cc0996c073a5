"""Contents of recordings, without ROS and torch: rows, topics, a picture, events of a session."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.atomic_io import REASON
from rlinf_core.core.errors import EpisodeError, RecipeError, RlinfError, escape_ascii
from rlinf_core.episodes.checksums import SUMS, verify
from rlinf_core.episodes.messages import NS, PACKAGE, store_for
from rlinf_core.episodes.raw_messages import RawMessage, read_messages
from rlinf_core.episodes.read import read_episode
from rlinf_core.episodes.record import MISSED
from rlinf_core.episodes.storage import kind_of
from rlinf_core.episodes.types import Episode
from rlinf_core.specs.topics import EPISODE

SEALED = "sealed"
UNSEALED = "no seal"
DAMAGED = "DAMAGED"
ENDINGS = ("*.mcap", "*.db3")


@dataclass(frozen=True)
class RecordingRow:
    """A row about one recording: name, seal, content of the episode, and a note if it has none."""

    recording: str
    station: str = ""
    mode: str = ""
    outcome: str = "no episode"
    steps: str = ""
    seconds: str = ""
    commanded_by: str = ""
    policy: str = ""
    limits: str = ""
    MB: str = ""
    seal: str = ""
    note: str = ""


def recordings(paths: list[Path]) -> list[Path]:
    """Return the folders of all recordings in and below ``paths``.

    Raises EpisodeError without any.
    """
    folders: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise EpisodeError(
                f"{path}: expected a recording, or a folder with some (spool, inbox, run), got "
                f"nothing"
            )
        root = path.parent if path.is_file() else path
        below = {
            file.parent
            for pattern in ("metadata.yaml", *ENDINGS)
            for file in root.glob(f"**/{pattern}")
        }
        if not below or (
            path.is_file() and not (path.name == "metadata.yaml" or any(map(path.match, ENDINGS)))
        ):
            raise EpisodeError(
                f"{path}: expected a recording (a folder with a metadata.yaml and an MCAP file), "
                f"or a folder with some, got {'another file' if path.is_file() else 'none'}"
            )
        folders |= {
            folder if folder.name not in ("", "..") else Path(os.path.abspath(folder))
            for folder in below
        }
    return sorted(folders)


def episodes_in(paths: list[Path]) -> list[Path]:
    """Return the folders of all episodes in and below ``paths``, without sessions and faults."""
    return [folder for folder in recordings(paths) if kind_of(folder) == EPISODE]


def read_row(folder: Path, root: Path | None = None) -> RecordingRow:
    """Read one recording; an error becomes its note."""
    name = escape_ascii(
        folder.relative_to(root)
        if root and folder != root and folder.is_relative_to(root)
        else folder
    )
    seal = UNSEALED
    reason = folder.with_name(folder.name[:200] + REASON)
    kind = kind_of(folder)
    try:
        if (folder / SUMS).exists():
            seal = DAMAGED
            verify(folder)
            seal = SEALED
        if not (folder / "metadata.yaml").exists():
            raise EpisodeError("no metadata.yaml: the recording is in progress or was interrupted")
        note = f"set aside: {escape_ascii(reason.read_text())[:-2]}" if reason.is_file() else ""
        if kind != EPISODE:
            return _session_row(
                RecordingRow(
                    name, mode=kind, outcome="", MB=megabytes(folder), seal=seal, note=note
                ),
                folder,
            )
        episode = read_episode(folder, sealed=seal == SEALED)
    except (EpisodeError, OSError) as error:
        note = escape_ascii(error).removeprefix(f"episode {escape_ascii(folder)}: ")
        return RecordingRow(
            name, mode="" if kind == EPISODE else kind, MB=megabytes(folder), seal=seal, note=note
        )
    seconds = (episode.stamps_ns[-1] - episode.stamps_ns[0]) / NS
    version = str(episode.policy_version) if episode.policy_version >= 0 else "-"
    return RecordingRow(
        name,
        episode.station,
        episode.mode,
        outcome(episode),
        str(len(episode)),
        f"{seconds:.1f}",
        commanders(episode),
        version,
        episode.limits_hash,
        megabytes(folder),
        seal,
        note,
    )


def _session_row(line: RecordingRow, folder: Path) -> RecordingRow:
    """Add station and duration of a session or a fault.

    Raises EpisodeError if it cannot be read.
    """
    messages = list(read_messages(folder))
    stamps = [message.at_ns for message in messages]
    stations = [
        message.topic.split("/")[1] for message in messages if message.kind.startswith(PACKAGE)
    ]
    return replace(
        line,
        station=Counter(stations).most_common(1)[0][0] if stations else "",
        seconds=f"{(max(stamps) - min(stamps)) / NS:.1f}" if stamps else "",
    )


def megabytes(folder: Path) -> str:
    """Return the size of a folder's files [MB]."""
    return f"{sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 1e6:.2f}"


def outcome(episode: Episode) -> str:
    """Return how an episode ended: success, failure or time limit."""
    if episode.success:
        return "success"
    return "failure" if episode.failure else "time limit"


def commanders(episode: Episode) -> str:
    """Return the commanders of an episode, with their shares if there were several."""
    steps = Counter(source or "nobody" for source in episode.sources)
    if len(steps) == 1:
        return next(iter(steps))
    return ", ".join(
        f"{source} {count / len(episode):.0%}" for source, count in steps.most_common()
    )


def topics(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Return type and message times [ns] of every topic in a recording."""
    from rosbags.rosbag2 import Reader

    with Reader(folder) as reader:
        stamps_by_topic: dict[str, tuple[str, list[int]]] = {
            source.topic: (source.msgtype, []) for source in reader.connections
        }
        for connection, stamp_ns, _ in reader.messages():
            stamps_by_topic[connection.topic][1].append(stamp_ns)
    return stamps_by_topic


def missed_images(folder: Path) -> dict[str, str]:
    """Return the recorder's count of time steps without a new image, by topic of the camera."""
    information = load_plain((folder / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    custom_data = information.get("custom_data") or {}
    return {
        name.removeprefix(MISSED): value
        for name, value in sorted(custom_data.items())
        if name.startswith(MISSED)
    }


def draw(episode: Episode, file: Path) -> None:
    """Draw rewards and actions (requested and executed) over time.

    The operator's steps are shaded.
    """
    from matplotlib.figure import Figure

    times = (episode.stamps_ns - episode.stamps_ns[0]) / NS
    count = episode.requested.shape[1]
    figure = Figure(figsize=(8, 1.5 * (1 + count)), layout="tight")
    axes = figure.subplots(1 + count, 1, sharex=True, squeeze=False)[:, 0]
    series = {"reward": {"reward": episode.rewards}} | {
        f"action {k}": {"requested": episode.requested[:, k], "executed": episode.executed[:, k]}
        for k in range(count)
    }
    for axis, (name, values) in zip(axes, series.items(), strict=True):
        for label, value in values.items():
            axis.step(times, np.append(value, value[-1]), where="post", label=label)
        for step in np.flatnonzero([source == "operator" for source in episode.sources]):
            axis.axvspan(times[step], times[step + 1], alpha=0.15, color="tab:orange", lw=0)
        axis.set_ylabel(name)
    axes[-1].legend(loc="best", fontsize="small")
    axes[-1].set_xlabel("time [s]")
    axes[0].set_title(
        f"{episode.id}: {outcome(episode)}, by {commanders(episode)}", fontsize="medium"
    )
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise RlinfError(
            f"--plot {file}: expected a picture's name, such as episode.png, in a writable folder: "
            f"{error}"
        ) from error


STATES = ("DISARMED", "ARMED", "ACTIVE", "HOLD", "FAULT")  # SafetyState.state
EVENTS = ("began", "ended", "closed", "aborted")  # EpisodeEvent.kind
LEVELS = ("OK", "WARN", "ERROR", "STALE")  # DiagnosticStatus.level
# fields of ParameterValue by type
VALUES = (
    "",
    "bool_value",
    "integer_value",
    "double_value",
    "string_value",
    "byte_array_value",
    "bool_array_value",
    "integer_array_value",
    "double_array_value",
    "string_array_value",
)
LONGEST = 300  # maximum length of a parameter's value


def event_lines(folder: Path) -> Iterator[str]:
    """Yield the messages of a recording in words, without repetitions.

    Raises EpisodeError if it is damaged.
    """
    before: dict[tuple[str, str], str] = {}
    for raw in read_messages(folder):
        for source, words in _words(raw):
            if before.get((raw.topic, source)) != words:
                before[raw.topic, source] = words
                at = datetime.fromtimestamp(raw.at_ns / NS).isoformat(" ", "milliseconds")
                yield f"{at}  {source or raw.topic}: {words}"


def _words(raw: RawMessage) -> list[tuple[str, str]]:
    """Return the content of a message, and its publisher where the topic does not imply it."""
    kind = raw.kind.rpartition("/")[2]
    try:
        return _DESCRIBERS[kind](
            store_for(((raw.kind, raw.definition),)).deserialize_cdr(raw.data, raw.kind)
        )
    except Exception as error:  # an unknown type, or an unreadable message
        return [
            (
                "",
                f"{kind}, {len(raw.data)} "
                f"bytes{'' if kind not in _DESCRIBERS else f', unreadable: {error}'}",
            )
        ]


def _plain(*fields: str) -> Callable[[Any], list[tuple[str, str]]]:
    def describe(message: Any) -> list[tuple[str, str]]:
        values = {name: getattr(message, name) for name in fields}
        return [("", ", ".join(f"{name} {value}" for name, value in values.items() if value != ""))]

    return describe


def _safety(message: Any) -> list[tuple[str, str]]:
    by = f", {message.source} commands" if message.source else ""
    return [("", f"{STATES[message.state]}{f' {message.cause}' if message.cause else ''}{by}")]


def _episode(message: Any) -> list[tuple[str, str]]:
    text = f"{message.episode_id} {EVENTS[message.kind]}"
    if message.success:
        text += ", success"
    elif message.failure:
        text += ", failure"
    return [("", f"{text}: {message.detail}" if message.detail else text)]


def _parameters(message: Any) -> list[tuple[str, str]]:
    every = [*message.new_parameters, *message.changed_parameters, *message.deleted_parameters]
    return [
        (
            f"{message.node} {parameter.name}",
            str(getattr(parameter.value, VALUES[parameter.value.type], "not set"))[:LONGEST],
        )
        for parameter in every
    ]


_DESCRIBERS: dict[str, Callable[[Any], list[tuple[str, str]]]] = {
    "SafetyState": _safety,
    "SafetyEvent": _plain("kind", "cause", "source"),
    "EpisodeEvent": _episode,
    "Bool": lambda message: [("", str(bool(message.data)).lower())],
    "String": lambda message: [("", f'"{message.data}"')],
    "PolicyUpdate": _plain("version", "path"),
    "PolicyStatus": _plain("version", "error"),
    "TrainerStatus": _plain("connected", "phase", "policy_version", "message"),
    "ParameterEvent": _parameters,
    "DiagnosticArray": lambda message: [
        (status.name, f"{LEVELS[status.level]} {status.message}") for status in message.status
    ],
}


def run_recipe(recording: Path) -> Path:
    """Return the recipe of the run that a recording lies in, or of a run folder.

    Raises:
        RecipeError: no folder above the recording has a recipe.yaml.
    """
    folders = (recording.resolve(), *recording.resolve().parents)
    recipe = next(filter(Path.is_file, (folder / "recipe.yaml" for folder in folders)), None)
    if recipe is None:
        raise RecipeError(
            f"a replay: expected a recording in the folder of its run, with recipe.yaml, got "
            f"{recording}. Name the recipe: --recipe RECIPE"
        )
    return recipe
