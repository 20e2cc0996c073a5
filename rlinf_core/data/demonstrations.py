"""The demonstrations of ``rlinf collect`` in a run folder, and whether a recipe may add more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import EpisodeError, RlinfError
from rlinf_core.episodes.checksums import SUMS
from rlinf_core.episodes.messages import ENDED, store_for
from rlinf_core.recipes import Recipe, load_recipe, station_task
from rlinf_core.recipes.station import task_file
from rlinf_core.specs.arrays import StationSpec

RECORDING_FOLDERS = ("closed", "sent")
REMEDY = "Nothing was changed. Choose another --out, or start with the earlier settings"


@dataclass(frozen=True)
class DemonstrationStats:
    """The intact demonstrations of a folder, and their size.

    Attributes:
        succeeded, failed: number of each, by the task's reward or a person's label.
        size: bytes of all.
        next_seed: seed of a scene without a demonstration; None without any demonstration.
    """

    succeeded: int = 0
    failed: int = 0
    size: int = 0
    next_seed: int | None = None

    def __len__(self) -> int:
        return self.succeeded + self.failed


def demonstration_stats(
    run_dir: Path, recipe: Recipe, refused: Collection[str] = ()
) -> DemonstrationStats:
    """Count the demonstrations in a folder, without those that the trainer refused.

    Raises:
        EpisodeError: the demonstrations are of another robot, task or specs.
    """
    folders = [
        path
        for subfolder in RECORDING_FOLDERS
        for path in sorted((run_dir / "spool" / subfolder).glob("*"))
        if (path / SUMS).exists() and path.name not in refused
    ]
    if not folders:
        return DemonstrationStats()
    _check_same_task(run_dir, recipe)
    events, spec = [read_last_event(folder) for folder in folders], station_task(recipe).spec
    for folder, event in zip(folders, events, strict=True):
        if event.spec_hash != spec.hash:
            raise EpisodeError(
                f"--out {run_dir}: expected demonstrations with the specs {spec.hash} of recipe "
                f"'{recipe.name}', got {event.spec_hash} in "
                f"{folder.name}{_difference(run_dir, spec)}. {REMEDY}"
            )
    demonstrations = [event for event in events if event.mode == "demonstration"]
    succeeded = sum(event.success for event in demonstrations)
    return DemonstrationStats(
        succeeded,
        len(demonstrations) - succeeded,
        sum(file.stat().st_size for folder in folders for file in folder.iterdir()),
        max(event.seed for event in demonstrations) + 1 if demonstrations else None,
    )


def read_last_event(folder: Path) -> Any:
    """Return the last event of a recording's episode, without reading the rest.

    Raises:
        EpisodeError: the recording is damaged, or has no end.
    """
    from mcap.reader import make_reader

    result = None
    try:
        with next(folder.glob("*.mcap")).open("rb") as stream:
            reader: Any = make_reader(stream)
            channels = reader.get_summary().channels.values()
            topics = [channel.topic for channel in channels if channel.topic.endswith("/episode")]
            for schema, _, message in reader.iter_messages(topics):
                event = store_for(((schema.name, schema.data.decode()),)).deserialize_cdr(
                    message.data, schema.name
                )
                result = event if event.kind == ENDED else result
    except Exception as error:  # the readers raise many kinds for damaged files
        raise EpisodeError(
            f"{folder}: expected an intact demonstration, got: {type(error).__name__}: {error}. "
            "`rlinf data check` lists all damaged ones. Move it elsewhere to continue"
        ) from error
    if result is None:
        raise EpisodeError(
            f"{folder}: expected an intact demonstration, got one without an end. Move it "
            "elsewhere to continue"
        )
    return result


def _check_same_task(run_dir: Path, recipe: Recipe) -> None:
    """Compare with the stored recipe, because two tasks may have the same specs."""
    before = _stored_recipe(run_dir)
    if before is None:
        return
    for key in ("robot", "task"):
        was, now = getattr(before.station, key), getattr(recipe.station, key)
        if was != now and not (key == "task" and task_file(before) == task_file(recipe)):
            raise EpisodeError(
                f"--out {run_dir}: expected demonstrations with station.{key} '{now}', got some "
                f"with '{was}'. {REMEDY}"
            )


def _stored_recipe(run_dir: Path) -> Recipe | None:
    try:
        before = load_recipe(run_dir / "recipe.yaml")
        task_file(before)
        return before
    # another version, or removed; the recordings themselves store their specs
    except (RlinfError, OSError):
        return None


def _difference(run_dir: Path, spec: StationSpec) -> str:
    before = _stored_recipe(run_dir)
    try:
        difference = station_task(before).spec.difference(spec) if before else ""
    except RlinfError:
        difference = ""
    return f" ({difference})" if difference else ""
