"""``rlinf data`` and ``show``: list, check, repair, copy and convert recordings; without torch."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.cli.output import print_table, write_json
from rlinf_core.config.overrides import quote_value
from rlinf_core.core.errors import (
    EpisodeError,
    RlinfError,
    escape_ascii,
    escape_control,
)
from rlinf_core.data.episodes import intact_episodes
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import NS
from rlinf_core.reports.conversations import (
    conversation_files,
    describe_conversation,
    read_conversations,
    summary,
)
from rlinf_core.reports.recordings import (
    DAMAGED,
    SEALED,
    RecordingRow,
    draw,
    event_lines,
    missed_images,
    read_row,
    recordings,
    topics,
)
from rlinf_core.specs.topics import BLACK_BOX, EPISODE, SESSION

if TYPE_CHECKING:
    from rlinf_core.episodes import Episode

COLUMNS = [field.name for field in fields(RecordingRow) if field.name != "note"]


def show(paths: list[Path], plot: Path | None = None, only_list: bool = False) -> int:
    """Print a table of recordings. Returns 1 if a recording has changed since it was closed."""
    if conversations := [file for path in paths for file in conversation_files(path)]:
        return _show_conversations(conversations, only_list)
    folders = recordings(paths)
    if plot is not None and len(folders) != 1:
        raise RlinfError(f"--plot: expected one recording, got {len(folders)}. Name one of them")
    from rich.progress import track

    root = paths[0] if len(paths) == 1 else None
    lines = [
        read_row(folder, root)
        for folder in track(folders, "reading", transient=True, disable=len(folders) < 20)
    ]
    print_table(
        [name.replace("_", " ") for name in COLUMNS],
        [[getattr(line, name) for name in COLUMNS] for line in lines],
    )
    for line in lines:
        if line.note:
            print(f"{line.recording}: {line.note}")
    if len(lines) == 1 and not only_list:
        _describe(folders[0])
        if lines[0].mode == SESSION and lines[0].seconds:
            _print_events(folders[0])
    else:
        print(_summary(lines))
    if plot is not None:
        draw(read_episode(folders[0], sealed=lines[0].seal == SEALED), plot)
        print(f"picture: {plot}")
    return int(any(line.seal == DAMAGED for line in lines))


def _show_conversations(files: list[Path], only_list: bool) -> int:
    """Print a line per file of conversations, and the newest file in words."""
    for file in files:
        records = read_conversations(file)
        print(f"{file}: {summary(records)}")
    if not only_list:
        for line in (line for record in records for line in describe_conversation(record)):
            print(escape_control(line))
    return 0


def _describe(folder: Path) -> None:
    """Print the topics of a recording, like ``ros2 bag info``."""
    try:
        message_topics = topics(folder)
    except Exception as error:  # readers raise many kinds for damaged files
        print(f"its topics cannot be read: {type(error).__name__}: {escape_ascii(error)}")
        return
    every = sorted(stamp for _, stamps in message_topics.values() for stamp in stamps)
    rows = []
    for name, (kind, stamps) in sorted(message_topics.items()):
        ends = (min(stamps), max(stamps)) if stamps else ()
        rate = ""
        if ends and ends[1] > ends[0]:
            rate = f"{(len(stamps) - 1) / (ends[1] - ends[0]) * NS:.1f}"
        times = [f"{(stamp - every[0]) / NS:.2f}" for stamp in ends]
        rows.append([name, kind, str(len(stamps)), rate, *times])
    print_table(["topic", "type", "messages", "Hz", "first [s]", "last [s]"], rows)
    for topic, count in missed_images(folder).items():
        noun = "image" if topic.endswith("/image") else "message"
        print(f"{count} time steps without a new {noun} of {topic}")
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    print(f"{len(every)} messages, {size / 1e6:.2f} MB in {folder}")


def _print_events(folder: Path) -> None:
    """Print the events of a session in words."""
    for line in event_lines(folder):
        print(escape_ascii(line))


def _summary(lines: list[RecordingRow]) -> str:
    """Summarise recordings in one line; copies of an episode (spool and inbox) count once."""
    episodes = {
        replace(line, recording=Path(line.recording).name, seal="", note="")
        for line in lines
        if line.steps
    }
    steps, seals = [int(line.steps) for line in episodes], Counter(line.seal for line in lines)
    succeeded = sum(line.outcome == "success" for line in episodes)
    others = Counter(line.mode for line in lines if line.mode in (SESSION, BLACK_BOX))
    other_kinds = "".join(f", {count} of a {kind}" for kind, count in sorted(others.items()))
    return (
        f"{len(lines)} recordings: {len(steps)} episodes, {succeeded} succeeded, {sum(steps)} "
        f"steps{other_kinds}; {', '.join(f'{count} {seal}' for seal, count in seals.most_common())}"
    )


def check(paths: list[Path], recipe: str | None, json_file: Path | None) -> int:
    """Print the defects of each recording. Returns 1 if there is one."""
    from rich.progress import track

    from rlinf_core.data.repair import find_fault
    from rlinf_core.recipes import load_recipe, station_task

    spec = station_task(load_recipe(recipe)).spec if recipe else None
    folders = recordings(paths)
    shown = track(folders, "checking", transient=True, disable=len(folders) < 20)
    faults = {folder: find_fault(folder, spec) for folder in shown}
    broken = {folder: reason for folder, reason in faults.items() if reason}
    for folder, reason in broken.items():
        print(f"{escape_ascii(folder)}: {reason}")
    print(
        f"{len(folders) - len(broken)} of {len(folders)} recordings are intact"
        + ("; `rlinf data repair` keeps the intact part of the others" if broken else "")
    )
    write_json(
        json_file,
        {"recordings": len(folders), "whole": len(folders) - len(broken), "broken": len(broken)},
    )
    return int(bool(broken))


def repair(paths: list[Path], out: Path) -> int:
    """Write the intact part of every damaged recording to a new folder.

    Returns 1 if something was lost.
    """
    from rlinf_core.data import repair as repairs
    from rlinf_core.data.folders import check_unused, new_folder

    check_unused(out)
    broken = [folder for folder in recordings(paths) if repairs.find_fault(folder)]
    if not broken:
        print("all are intact; nothing was written")
        return 0
    complete = copied = 0
    with new_folder(out) as folder:
        for source in broken:
            if (folder / source.name).exists():
                print(
                    f"{escape_ascii(source)}: left out, since {out} has a recording of that name; "
                    "repair it to another --out"
                )
                continue
            try:
                done = repairs.repair(source, folder / source.name)
            except EpisodeError as error:
                print(escape_ascii(error))
                continue
            copied += 1
            complete += done.intact
            lost = f"; lost: {'; '.join(done.lost)}" if done.lost else ""
            if done.fault:
                result = f"no {done.kind}: {done.fault}"
            else:
                kind = f"whole {done.kind}" if done.kind == EPISODE else done.kind
                part = "" if done.intact else "the intact part of "
                result = f"{part}a {kind}, sealed"
            print(f"{escape_ascii(source)}: {done.messages} messages kept{lost}; {result}")
        if not copied:
            raise EpisodeError(
                f"no intact part in {len(broken)} damaged recordings; nothing was written",
                code="RL-E401",
            )
    print(f"{complete} of {len(broken)} are repaired, in {out}")
    return int(complete < len(broken))


def merge(paths: list[Path], out: Path) -> None:
    """Copy all intact episodes into one new folder."""
    from rlinf_core.data import folders

    print(f"{folders.merge(paths, out)} episodes in {out}")


def split(paths: list[Path], out: Path, fractions: list[str], seed: int) -> None:
    """Copy all intact episodes into several folders, by fractions or by outcome."""
    from rlinf_core.data import folders

    parts = folders.parse_fractions(fractions) if fractions else None
    counts = folders.split(paths, out, parts, seed)
    print(f"{', '.join(f'{count} {name}' for name, count in counts.items())} in {out}")


def stats(paths: list[Path], json_file: Path | None) -> None:
    """Print statistics of every key, and the success rate."""
    from rlinf_core.data.stats import QUANTILES, Statistics

    statistics = Statistics()
    for _, episode in intact_episodes(paths):
        statistics.add(episode)
    names = ["mean", "std", "min", *QUANTILES, "max"]
    rows, flat = [], dict[str, float]()
    for key, numbers in statistics.keys().items():
        for index in range(len(numbers["mean"])):
            label = f"{key}[{index}]" if len(numbers["mean"]) > 1 else key
            rows.append([label, *(f"{numbers[name][index]:.4g}" for name in names)])
            flat |= {f"{label}/{name}": float(numbers[name][index]) for name in names}
    print_table(["key", *names], rows)
    summary = statistics.summary()
    print(
        f"{summary['episodes']} episodes, {summary['steps']} steps, {summary['seconds']:.1f} s; "
        f"success {summary['success']:.0%} (95 % interval {summary['low']:.0%} to "
        f"{summary['high']:.0%})"
    )
    write_json(json_file, summary | flat)


def throughput(paths: list[Path], json_file: Path | None) -> None:
    """Print the robot time of recorded episodes, a line per station and mode."""
    from dataclasses import replace

    from rlinf_core.reports import throughput as figures_in_robot_time
    from rlinf_core.reports.throughput import HOUR_S, Rate, times_of

    groups: dict[tuple[str, str], list[Episode]] = {}
    for _, episode in intact_episodes(paths):
        without_images = replace(episode, observations={})
        groups.setdefault((episode.station, episode.mode), []).append(without_images)

    def text(rate: Rate, digits: int = 0) -> str:
        if math.isnan(rate.value):
            return ""
        return f"{rate.value:.{digits}f} ({rate.low:.{digits}f} to {rate.high:.{digits}f})"

    rows, flat = [], dict[str, float]()
    for (station, mode), episodes in sorted(groups.items()):
        figures = figures_in_robot_time.throughput(times_of(episodes))
        rows.append(
            [
                station,
                mode,
                str(figures.episodes),
                f"{figures.robot_minutes:.1f}",
                text(figures.successes_per_hour),
                text(figures.time_to_success_s, 1),
                text(figures.takeovers_per_hour),
                str(figures.longest_run),
                str(figures.resets),
            ]
        )
        flat |= {f"{station}/{mode}/{name}": value for name, value in figures.flat().items()}
    print_table(
        [
            "station",
            "mode",
            "episodes",
            "robot minutes",
            "successes/h",
            "s to success",
            "takeovers/h",
            "in a row",
            "resets",
        ],
        rows,
    )
    print(
        f"95 % intervals in brackets. An hour is {HOUR_S:.0f} s of episodes and of the resets "
        f"between them"
    )
    write_json(json_file, flat)


def export_lerobot(paths: list[Path], out: Path, recipe: str | None, executed: bool) -> None:
    """Write a LeRobot data set (v3.0)."""
    from rlinf_core.core.extras import require

    require("data", "rlinf data export lerobot")
    from rlinf_core.data.lerobot.export import export

    episodes, frames = export(paths, out, recipe, executed)
    print(
        f"{episodes} episodes, {frames} frames in {out}: LeRobotDataset('local/{out.name}', "
        f"root='{out}')"
    )


def export_rerun(paths: list[Path], out: Path, recipe: str | None) -> None:
    """Write a file for Rerun's viewer for each episode."""
    from rlinf_core.core.extras import require

    require("rerun", "rlinf data export rerun")
    from rlinf_core.data.rerun import export

    print(f"{export(paths, out, recipe)} episodes in {out}; look at them: rerun {out}/*.rrd")


def import_lerobot(
    dataset: Path,
    out: Path,
    recipe: str | None,
    overrides: list[str],
    cameras: list[str],
    instruction: str,
) -> None:
    """Write recordings of a LeRobot data set (v3.0)."""
    from rlinf_core.core.extras import require

    require("data", "rlinf data import lerobot")
    from rlinf_core.data.lerobot.importing import import_dataset

    pairs = dict(pair.partition("=")[::2] for pair in cameras)
    if not all(pairs.values()):
        raise EpisodeError(
            f"--camera: expected NAME=THEIRS, such as front=laptop, got {' '.join(cameras)}"
        )
    episodes, frames, left = import_dataset(dataset, out, recipe, overrides, pairs, instruction)
    print(
        f"{episodes} episodes, {frames} frames in {out}"
        + (f"; not taken: {', '.join(left)}" if left else "")
    )
    learned = shlex.quote(f"collect.recordings=[{quote_value(out)}]")
    print(
        f"learn from them: --set {learned}; look at them: rlinf data list {shlex.quote(str(out))}"
    )
