"""Parsers of the commands with subcommands, and of the commands for a running station."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rlinf_core.cli.parsing import (
    JSON,
    PICTURES,
    RECORDINGS,
    SET,
    SEVERAL,
    STATIONS_RECIPE,
    Commands,
    at_least,
    command,
    fraction,
    output_file,
    recipe_command,
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
            parser.add_argument(
                "--out", type=Path, required=True, help="a new folder; nothing is overwritten"
            )
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
    split.add_argument(
        "--seed",
        type=at_least(0, int),
        default=0,
        metavar="SEED",
        help="seed of the random split (default: 0)",
    )
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
    _push(push)
    _pull(
        command(
            data,
            "pull",
            "cli.hub:pull_data",
            "download a data set from the Hugging Face Hub",
            "Checks the seal of each recording. The folder appears complete or not at all.",
        )
    )


def policy_commands(commands: Commands) -> None:
    """Add the commands for policies at the Hub."""
    policies = commands.add_parser(
        "policy", help="push policies to the Hugging Face Hub, and pull them"
    ).add_subparsers(required=True, metavar="COMMAND")
    push = command(
        policies,
        "push",
        "cli.hub:push_policy",
        "send a policy with its recipe and report to the Hugging Face Hub",
    )
    push.add_argument(
        "path",
        type=Path,
        help="a policy file, a run for its newest policy, or a folder of `rlinf vla lerobot`",
    )
    _push(push)
    _pull(
        command(
            policies,
            "pull",
            "cli.hub:pull_policy",
            "download a policy from the Hugging Face Hub",
            "`rlinf eval FOLDER` and `rlinf serve FOLDER` take the folder.",
        )
    )


def _push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        dest="repository",
        required=True,
        metavar="OWNER/NAME",
        help="the repository, which is created if it does not exist",
    )
    parser.add_argument(
        "--public", action="store_true", help="a new repository is public (default: private)"
    )
    parser.add_argument("--message", default="", metavar="SENTENCE", help="message of the commit")


def _pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repository", metavar="OWNER/NAME", help="the repository")
    parser.add_argument(
        "--out", type=Path, required=True, help="a new folder; nothing is overwritten"
    )
    parser.add_argument("--revision", default="", help="a branch, tag or commit (default: main)")


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
    lerobot.add_argument(
        "--out", type=Path, required=True, help="a new folder; nothing is overwritten"
    )
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
        "cli.data:train",
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
    train.add_argument(
        "--late",
        type=at_least(0, float),
        default=0.3,
        metavar="SECONDS",
        help="time before the end of a success that may already show it, at least three frames. It "
        "is "
        "the delay of a person's label or of the task's success_steps (default: 0.3)",
    )
    train.add_argument(
        "--progress",
        dest="learns_progress",
        action="store_true",
        help="train a dense reward (the elapsed fraction of an episode) instead of a classifier "
        "of success",
    )
    train.add_argument(
        "--steps",
        type=at_least(1, int),
        default=1500,
        metavar="N",
        help="gradient steps (default: 1500)",
    )
    train.add_argument(
        "--held-out",
        type=fraction,
        default=0.2,
        metavar="FRACTION",
        help="fraction of the episodes for the test (default: 0.2)",
    )
    train.add_argument(
        "--seed",
        type=at_least(0, int),
        default=0,
        metavar="SEED",
        help="seed of split and training (default: 0)",
    )
    train.add_argument("--json", **JSON, help="write the scores as one flat object")


def monitor_commands(commands: Commands) -> None:
    """Add the commands for a failure monitor."""
    subparsers = commands.add_parser(
        "monitor",
        help="fit a monitor that finds failing episodes while they are played, "
        "with a bound on false alarms",
    ).add_subparsers(required=True, metavar="COMMAND")
    fit = command(
        subparsers,
        "fit",
        "cli.monitor:fit",
        "fit a failure monitor to episodes of a run's policy",
        (
            "Uses recordings that the policy played alone, or plays --episodes in simulation. "
            "Prints the false alarms and the failures found on episodes held out. A station takes "
            "the file as station.policy.monitor."
        ),
    )
    fit.add_argument("run_dir", metavar="run", type=Path, help="a run folder")
    fit.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="a new file (default: monitor.safetensors in the run)",
    )
    fit.add_argument(
        "--alpha",
        type=fraction,
        default=0.05,
        metavar="FRACTION",
        help="largest share of successful episodes that raise an alarm (default: 0.05)",
    )
    fit.add_argument(
        "--episodes",
        type=at_least(0, int),
        default=0,
        metavar="N",
        help="number of episodes to play in simulation; 0 takes the recordings (default)",
    )
    fit.add_argument(
        "--seed",
        type=at_least(0, int),
        default=0,
        metavar="SEED",
        help="seed of the split and of the episodes in simulation (default: 0)",
    )
    fit.add_argument("--json", **JSON, help="write the figures as one flat object")


def fleet_commands(commands: Commands) -> None:
    """Add the commands for a fleet."""
    fleet = commands.add_parser(
        "fleet", help="run and watch the stations of a trainer (docs/howto/fleet.md)"
    )
    subparsers = fleet.add_subparsers(required=True, metavar="COMMAND")
    _up(subparsers)
    _enrollment(subparsers)
    _stations(subparsers)
    _policies(subparsers)


def _up(commands: Commands) -> None:
    up = recipe_command(
        commands,
        "up",
        "cli.fleet_up:up",
        "start a trainer and simulated stations on this machine",
        "demo",
        "They go through the phases of a recipe. A run that is already in --out is resumed.",
    )
    up.add_argument(
        "--stations",
        nargs="+",
        **SEVERAL,
        metavar="N|NAME",
        help="their number (station_1, station_2, ...) or their names (default: 2)",
    )
    up.add_argument("--respawn", action="store_true", help="restart a station that ends")
    up.add_argument("--quiet", action="store_true", help="print lines instead of the live display")


def _enrollment(commands: Commands) -> None:
    enroll = command(
        commands,
        "enroll",
        "cli.fleet:enroll",
        "make a station's key and certificate, on the trainer's machine",
        (
            "The first use also makes the fleet's authority. Prints the files to copy to the "
            "station."
        ),
    )
    revoke = command(
        commands,
        "revoke",
        "cli.fleet:revoke",
        "withdraw a station's certificate, at once",
        "A running trainer refuses the next call of the station, also on an open connection.",
    )
    for parser in (enroll, revoke):
        parser.add_argument("station", help="station.name of the station")
    enroll.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="folder for the station's files"
    )
    enroll.add_argument(
        "--renew",
        action="store_true",
        help="make new files for an enrolled station before its "
        "certificate ends; the old ones stay valid until then",
    )
    enroll.add_argument(
        "--days",
        type=_days,
        default=365.0,
        metavar="DAYS",
        help="how long the certificate is valid (default: 365)",
    )
    listing = command(
        commands,
        "list",
        "cli.fleet:stations",
        "list enrolled stations with the end of their certificates, and revoked ones",
    )
    for parser in (enroll, revoke, listing):
        parser.add_argument(
            "--fleet",
            type=Path,
            default=Path("fleet"),
            metavar="FOLDER",
            help="the fleet's folder, bridge.fleet of the trainer's recipe (default: fleet)",
        )


def _stations(commands: Commands) -> None:
    status = _of_run(
        command(
            commands,
            "status",
            "cli.fleet:status",
            "show a table of the stations, live until Ctrl-C",
            (
                "Each row has the policy in use and the wanted one, waiting episodes, the success "
                "of the last 50 training episodes and the fill level of the spool. Below is the "
                "state of the release. Prints once if the output is no terminal. Exit code 1 if "
                "the trainer is not running."
            ),
        )
    )
    status.add_argument("--once", action="store_true", help="print it once")
    drain = _of_run(
        command(
            commands,
            "drain",
            "cli.fleet:drain",
            "end the work of stations: each finishes its episode and begins no other",
            "They send all recordings. A station without waiting episodes can be switched off.",
        )
    )
    drain.add_argument("stations", nargs="+", metavar="station", help="station.name of the station")
    drain.add_argument("--off", action="store_true", help="let them play again")


def _policies(commands: Commands) -> None:
    promote = _of_run(
        command(
            commands,
            "promote",
            "cli.fleet:promote",
            "send the policy on trial to all stations now",
            "For a trainer that releases in stages (release.staged).",
        )
    )
    promote.add_argument(
        "--version",
        type=at_least(1, int),
        metavar="N",
        help="another version, which may be untried, rolled back or older",
    )
    _of_run(
        command(
            commands,
            "rollback",
            "cli.fleet:rollback",
            "withdraw the policy on trial, or the current policy if none is on trial",
            (
                "All stations then play the version before it, until a trial of a newer one. The "
                "withdrawn version is not tried again. For a trainer that releases in stages "
                "(release.staged)."
            ),
        )
    )
    pin = _of_run(
        command(
            commands,
            "pin",
            "cli.fleet:pin",
            "keep stations at one version, also when newer ones are published",
        )
    )
    target = pin.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--version",
        type=at_least(1, int),
        metavar="N",
        help="policies/policy-<N>.safetensors of the run",
    )
    target.add_argument("--off", action="store_true", help="release them again")
    pin.add_argument(
        "--stations", nargs="+", **SEVERAL, metavar="STATION", help="only these (default: all)"
    )


def _of_run(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "run_dir", type=Path, metavar="run", help="the folder of a running trainer, its --out"
    )
    return parser


def _days(text: str) -> float:
    days = float(text)
    if not 0 < days <= 3650:
        raise argparse.ArgumentTypeError(f"expected more than 0 and at most 3650, got {text}")
    return days


def station_commands(commands: Commands) -> None:
    """Add the commands for a running station."""

    def station_command(
        parent: Commands, name: str, text: str, more: str, run: str = "send_request", **words: str
    ) -> argparse.ArgumentParser:
        parser = command(parent, name, f"cli.station:{run}", text, more or None)
        for word, meaning in words.items():
            parser.add_argument(word, help=meaning)
        parser.add_argument("name", **STATIONS_RECIPE)
        parser.add_argument(
            "--set",
            **SET,
            help="as given to the station, e.g. station.name=station_b station.domain_id=43",
        )
        parser.add_argument(
            "--timeout",
            dest="timeout_s",
            type=at_least(0, float),
            default=5.0,
            metavar="SECONDS",
            help="how long to look for the station (default: 5)",
        )
        parser.set_defaults(request=name)
        return parser

    station_command(
        commands,
        "status",
        "print the state of a running station",
        "State and cause of its interlock, what it waits for, the current episode and policy, the "
        "connection to the trainer, and the live nodes. It only listens. Exit code 1 if there is "
        "no such station.",
    )
    station_command(
        commands,
        "arm",
        "arm a running station's interlock",
        "For a real arm, a person must run this at a terminal.",
    )
    station_command(
        commands,
        "disarm",
        "disarm a running station's interlock: the arm brakes and stops until the next arming",
        "",
    )
    fault = commands.add_parser("fault", help="clear a fault of a running station's interlock")
    reset = station_command(
        fault.add_subparsers(required=True, metavar="COMMAND"),
        "reset",
        "clear a fault of a running station's interlock, by its name",
        (
            "Find its cause first. Without --cause the command prints the name of the current "
            "fault. A reset is refused while its cause remains or the enable is not held. A reset "
            "causes no motion. Arm afterwards."
        ),
    )
    reset.add_argument("--cause", default="", help="the fault's name, as `rlinf status` shows it")
    station_command(
        commands,
        "set-instruction",
        "set the instruction of a running station's policy",
        (
            "It applies from the next time step, also within an episode. The rest of the current "
            "chunk is dropped. It stays until the next one; '' restores the instruction of the "
            "scene or task. Each recorded time step has it."
        ),
        words="the instruction, e.g. 'go to the red mark'; '' for that of the scene or task",
    )
    gripper = commands.add_parser("gripper", help="command the gripper of a running station")
    station_command(
        gripper.add_subparsers(required=True, metavar="COMMAND"),
        "activate",
        "activate the gripper of a running station",
        (
            "A Robotiq needs this after power-up and to clear its faults. Its fingers open and "
            "close once. Keep clear of them."
        ),
    )
    node = {
        "run": "send_node_request",
        "node": "its name in `rlinf status`, e.g. environment, left/interlock, camera/wrist/camera",
    }
    parameter_help = {"parameter": "its name in `rlinf param list`"}
    parameters = commands.add_parser(
        "param", help="list, print and set parameters of a running station's nodes"
    ).add_subparsers(required=True, metavar="COMMAND")
    station_command(
        parameters,
        "list",
        "list the parameters of a running node",
        "Prints value, range, meaning, and whether it may change while the node runs.",
        **node,
    )
    station_command(
        parameters, "get", "print a parameter of a running node", "", **node, **parameter_help
    )
    station_command(
        parameters,
        "set",
        "set a parameter of a running node",
        (
            "Most are fixed at the start of the node. An interlock's limits, a twin's injected "
            "faults and the policy's instruction may change. E.g. `rlinf param set twin inject "
            "user_stop`, `rlinf param set interlock limits.speed 0.1`."
        ),
        **node,
        **parameter_help,
        value="a value of the same type; '' for an empty string, [1, 2] for a list",
    )
    station_command(
        commands,
        "lifecycle",
        "shut down, deactivate or activate a running node",
        (
            "Interlock: shutdown brakes, disarms, and then ends; deactivate and activate only "
            "while DISARMED and at rest. docs/howto/ros.md describes the other nodes while "
            "inactive."
        ),
        **node,
        value="deactivate, activate, shutdown, cleanup, configure",
    )


def world_commands(commands: Commands) -> None:
    """Add the commands for world models."""
    worlds = commands.add_parser(
        "world", help="fit, check and use a learned world of a run's task (docs/howto/worlds.md)"
    ).add_subparsers(required=True, metavar="COMMAND")
    fit = command(
        worlds,
        "fit",
        "cli.world:fit",
        "fit a world to the recordings of a run",
        (
            "Takes the episodes of its stations, or the replay in the newest checkpoint of a run "
            "in simulators; every tenth episode is held out. Writes world.safetensors into the "
            "run's folder."
        ),
    )
    fit.add_argument("run_dir", type=Path, metavar="RUN", help="folder of a run")
    fit.add_argument("--set", **SET, help="override of its recipe, e.g. world.history=5")
    fit.add_argument(
        "--seconds",
        metavar="SECONDS",
        type=at_least(1, float),
        help="duration of the fit (default: world.first_updates steps)",
    )
    fit.add_argument("--json", **JSON, help="write the errors as one flat object")
    fit_video = command(
        worlds,
        "fit-video",
        "cli.world:fit_video",
        "fit a tiny video model to the camera of a run's recordings",
        (
            "The recipe observes one camera. Writes video.safetensors into the run's folder, for "
            "world.video.model=tiny. Every fifth episode is held out for the printed errors."
        ),
    )
    fit_video.add_argument("run_dir", type=Path, metavar="RUN", help="folder of a run")
    fit_video.add_argument("--set", **SET, help="override of its recipe")
    fit_video.add_argument(
        "--updates",
        type=at_least(1, int),
        default=1500,
        metavar="N",
        help="gradient steps (default: 1500)",
    )
    fit_video.add_argument(
        "--film",
        type=output_file(".mp4", ".mkv", ".mov"),
        help="film of the last episode, recorded beside imagined",
    )
    fit_video.add_argument("--json", **JSON, help="write the errors as one flat object")
    check = command(
        worlds,
        "check",
        "cli.world:check",
        "print error by step, calibration and horizon of a run's world",
    )
    check.add_argument("run_dir", type=Path, metavar="RUN", help="folder of a run with a world")
    check.add_argument("--set", **SET, help="override of its recipe")
    check.add_argument(
        "--steps",
        type=at_least(1, int),
        default=20,
        metavar="N",
        help="time steps ahead (default: 20)",
    )
    check.add_argument(
        "--out",
        dest="picture",
        type=output_file(*PICTURES),
        help="the picture (default: world.png beside the world); an earlier one is replaced",
    )
    check.add_argument("--json", **JSON, help="write the errors as one flat object")
    rank = command(
        worlds,
        "rank",
        "cli.world:rank",
        "order policies by the success that a learned world predicts",
        (
            "Imagines episodes from the first steps of recorded ones. Trust the order more than "
            "the figures: errors add up over an episode, and the interval covers only chance."
        ),
    )
    rank.add_argument("world", type=Path, metavar="RUN", help="folder of a run with a world")
    rank.add_argument(
        "policies",
        nargs="*",
        **SEVERAL,
        type=Path,
        metavar="POLICY",
        help="policy files, or folders of runs (default: every policy of the run)",
    )
    rank.add_argument("--set", **SET, help="override of its recipe")
    rank.add_argument(
        "--episodes",
        type=at_least(1, int),
        default=50,
        metavar="N",
        help="imagined episodes of each policy (default: 50)",
    )
    rank.add_argument("--json", **JSON, help="write the success of each as one flat object")
    splats = command(
        worlds,
        "splats",
        "cli.world:fit_splats",
        "fit Gaussian splats to pictures, as the background of a simulator",
        (
            "Reads transforms.json of nerfstudio (pictures with camera poses, in the robot's base "
            "frame) and writes a PLY file of 3DGS for station.options.background. It is small and "
            "slow: for a real scene use a trainer on a GPU, which writes the same file."
        ),
    )
    splats.add_argument("transforms", type=Path, help="transforms.json with the pictures' poses")
    splats.add_argument(
        "--out", type=output_file(".ply"), required=True, help="a new file for the splats"
    )
    splats.add_argument(
        "--gaussians",
        type=at_least(1, int, 200_000),
        default=2000,
        metavar="N",
        help="their number",
    )
    splats.add_argument(
        "--updates", type=at_least(1, int), default=300, metavar="N", help="gradient steps"
    )
    splats.add_argument(
        "--size",
        type=at_least(16, int, 1024),
        default=128,
        metavar="PIXELS",
        help="height of the pictures in the fit (default: 128)",
    )
    splats.add_argument(
        "--box",
        nargs=6,
        type=float,
        default=[-1.5, -1.5, -1.0, 2.5, 1.5, 1.5],
        metavar="METRES",
        help="box with the first Gaussians: low x y z, then high x y z",
    )
    splats.add_argument("--json", **JSON, help="write the error of the pictures")
