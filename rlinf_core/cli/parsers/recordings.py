"""Parsers of the commands for recordings: show, data, reward, find-dynamics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rlinf_core.cli.arguments import (
    JSON,
    RECORDINGS,
    SET,
    SEVERAL,
    Commands,
    add_new_folder,
    add_number,
    add_pull_options,
    add_push_options,
    command,
    fraction,
    output_file,
    show_command,
)

STATION_RECIPE: dict[str, Any] = {
    "help": "recipe of the station, for the names (default: that of the run that holds them)"
}


def data_commands(commands: Commands) -> None:
    """Add the commands for recordings."""
    data_parser = commands.add_parser(
        "data", help="list, check, repair, copy, convert, push and pull recordings"
    )
    data = data_parser.add_subparsers(required=True, metavar="COMMAND")

    def recordings_command(
        name: str, text: str, run: str = "", out: bool = False, parent: Commands = data
    ) -> argparse.ArgumentParser:
        parser = command(parent, name, run or f"cli.data:{name}", text)
        parser.add_argument("paths", **RECORDINGS)
        if out:
            add_new_folder(parser)
        return parser

    recordings_command("list", "print one line for each episode", "cli.data:show").set_defaults(
        only_list=True
    )
    show_command(data)
    check = recordings_command(
        "check",
        "check seal, messages, steps and values of each recording; exit code 1 for a damaged one",
    )
    check.add_argument("--recipe", help="also compare them with the specs of this recipe's station")
    check.add_argument("--json", **JSON, help="write the counts of recordings, intact and damaged")
    recordings_command(
        "repair",
        "copy the intact part of damaged recordings, and seal the episodes again",
        out=True,
    )
    recordings_command(
        "merge", "copy all intact episodes into one folder; all must have the same specs", out=True
    )
    split = recordings_command(
        "split", "copy intact episodes into several folders, by outcome or by fractions", out=True
    )
    split.add_argument(
        "--fractions",
        nargs="+",
        **SEVERAL,
        metavar="NAME=FRACTION",
        help="e.g. train=0.9 val=0.1, drawn at random (default: a folder for each outcome)",
    )
    add_number(split, "--seed", "seed of the random split", low=0, default=0, metavar="SEED")
    stats = recordings_command(
        "stats", "print mean, deviation, extremes and quantiles of every key, and the success rate"
    )
    stats.add_argument("--json", **JSON, help="write them as one flat object")
    throughput = recordings_command(
        "throughput",
        "print successes an hour, seconds to a success, takeovers an hour and successes in a row",
    )
    throughput.add_argument("--json", **JSON, help="write them as one flat object")
    formats = data.add_parser("export", help="write recordings in another format").add_subparsers(
        required=True, metavar="FORMAT"
    )
    lerobot = recordings_command(
        "lerobot",
        "write recordings as a LeRobot data set (v3.0)",
        "cli.data:export_lerobot",
        True,
        formats,
    )
    lerobot.add_argument("--recipe", **STATION_RECIPE)
    lerobot.add_argument(
        "--executed",
        action="store_true",
        help="write the actions that the interlock applied (default: the requested ones)",
    )
    rerun = recordings_command(
        "rerun",
        "write an .rrd for Rerun's viewer, one for each episode",
        "cli.data:export_rerun",
        True,
        formats,
    )
    rerun.add_argument("--recipe", **STATION_RECIPE)
    _imports(data)
    push = recordings_command(
        "push",
        "send intact episodes, or a LeRobot data set, to the Hugging Face Hub",
        "cli.hub:push_data",
    )
    add_push_options(push)
    add_pull_options(
        command(
            data,
            "pull",
            "cli.hub:pull_data",
            "download a data set from the Hugging Face Hub",
            "Checks the seal of each recording. The folder appears complete or not at all.",
        )
    )


def _imports(data: Commands) -> None:
    """Add the imports of other formats."""
    formats = data.add_parser("import", help="read recordings of another format").add_subparsers(
        required=True, metavar="FORMAT"
    )
    lerobot = command(
        formats,
        "lerobot",
        "cli.data:import_lerobot",
        "make recordings from a LeRobot data set (v3.0)",
        (
            "The recordings have the format of a station's, for training (collect.recordings) and "
            "all other commands. Every feature is compared with the station's specs first, and "
            "nothing is written if one does not fit."
        ),
    )
    lerobot.add_argument("dataset", type=Path, help="folder of the data set, with meta/ and data/")
    add_new_folder(lerobot)
    lerobot.add_argument(
        "--recipe",
        help="recipe of the station whose specs it has (default: the one that "
        "rlinf's export names)",
    )
    lerobot.add_argument(
        "--set", **SET, help="override of that recipe, e.g. station.image_size=[480,640]"
    )
    lerobot.add_argument(
        "--camera",
        dest="cameras",
        nargs="+",
        **SEVERAL,
        metavar="NAME=THEIRS",
        help="name of a camera of the station and its name in the data set, e.g. front=laptop",
    )
    lerobot.add_argument(
        "--instruction",
        default="",
        metavar="SENTENCE",
        help="instruction of every episode, instead of that of the data set; at most 128 bytes",
    )


def reward_commands(commands: Commands) -> None:
    """Add the commands for learned rewards."""
    subparsers = commands.add_parser(
        "reward", help="train a reward that recognizes success in images"
    ).add_subparsers(required=True, metavar="COMMAND")
    train = command(
        subparsers,
        "train",
        "cli.reward:train",
        "train a classifier of success on the frames of recordings",
        (
            "The last frame of a successful episode counts as success. The frames just before it "
            "are left out (--late). All others count as no success. Prints the errors on held-out "
            "episodes, and draws them. A task file takes the model: `reward: {kind: classifier, "
            "model: FILE}`."
        ),
    )
    train.add_argument("paths", **RECORDINGS)
    train.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="a new file; a picture is written to the same folder",
    )
    train.add_argument(
        "--cameras",
        nargs="+",
        **SEVERAL,
        metavar="NAME",
        help="cameras to use (default: all recorded)",
    )
    train.add_argument(
        "--failed",
        nargs="+",
        **SEVERAL,
        metavar="EPISODE",
        help="ids of episodes that were wrongly labelled as success, for example by a classifier",
    )
    add_number(
        train,
        "--late",
        "time before the end of a success that may already show it, at least three frames. "
        "It is the delay of a person's label or of the task's success_steps",
        low=0,
        kind=float,
        default=0.3,
        metavar="SECONDS",
    )
    train.add_argument(
        "--progress",
        dest="learns_progress",
        action="store_true",
        help="train a dense reward (the elapsed fraction of an episode) instead of a classifier "
        "of success",
    )
    add_number(train, "--steps", "gradient steps", low=1, default=1500)
    train.add_argument(
        "--held-out",
        type=fraction,
        default=0.2,
        metavar="FRACTION",
        help="fraction of the episodes for the test (default: 0.2)",
    )
    add_number(train, "--seed", "seed of split and training", low=0, default=0, metavar="SEED")
    train.add_argument("--json", **JSON, help="write the scores as one flat object")


def find_dynamics(commands: Commands) -> None:
    """Add ``rlinf find-dynamics``."""
    find_dynamics = command(
        commands,
        "find-dynamics",
        "cli.real_to_sim:find_dynamics",
        "estimate an arm's delay, lag and gain from recorded episodes",
    )
    find_dynamics.add_argument(
        "recordings", nargs="+", type=Path, help="episodes, a spool, or a run folder"
    )
    find_dynamics.add_argument(
        "--velocity", default="tcp_velocity", help="observation with the tool's velocity [m/s]"
    )
    add_number(find_dynamics, "--episodes", "largest number of episodes", low=1, default=200)
    find_dynamics.add_argument(
        "--out",
        type=output_file(".yaml"),
        help="fit the recipe's simulator to the recordings too (response, friction, camera "
        "poses), and write a recipe with the fitted values to this new file",
    )
    find_dynamics.add_argument(
        "--recipe",
        help="with --out: recipe with the simulator (default: that of the run that holds the "
        "recordings)",
    )
    find_dynamics.add_argument("--set", **SET, help="with --out: override of that recipe")
    find_dynamics.add_argument("--json", **JSON, help="write the result as one flat object")
