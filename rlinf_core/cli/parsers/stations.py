"""Parsers of the commands for stations, arms and fleets."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlinf_core.cli.arguments import (
    JSON,
    SET,
    SEVERAL,
    STATIONS_RECIPE,
    Commands,
    add_number,
    add_web_option,
    command,
    output_file,
    recipe_command,
    run_folder,
)
from rlinf_core.core.ros import MAX_DOMAIN


def collect(commands: Commands) -> None:
    """Add ``rlinf collect``."""
    collect = recipe_command(
        commands,
        "collect",
        "cli.collect:collect",
        "record demonstrations until enough of them have succeeded",
        None,
        "A person demonstrates, or the task's script in simulation. Recordings that are already "
        "in --out count.",
    )
    add_number(
        collect,
        "--episodes",
        "successful ones, with those in --out (default: the recipe's collect.episodes)",
        low=1,
    )
    collect.add_argument(
        "--quiet", action="store_true", help="print lines instead of the live display"
    )
    add_web_option(collect)


def up(commands: Commands) -> None:
    """Add ``rlinf up``."""
    up = recipe_command(
        commands,
        "up",
        "cli.demo:up",
        "start a recipe's station: robot or simulator, cameras, interlock, operator and recorder",
        None,
        "It runs until Ctrl-C or until --episodes are recorded. It needs no launch package of ROS.",
    )
    add_web_option(up)
    add_number(
        up,
        "--episodes",
        "number of demonstrations before the stop (default: 0, until Ctrl-C)",
        low=0,
        default=0,
    )
    up.add_argument(
        "--json",
        **JSON,
        help="with --episodes: write the numbers of recorded and successful episodes and of "
        "interlock faults as one flat object",
    )


def run_phases(commands: Commands) -> None:
    """Add ``rlinf run``."""
    run_phases = recipe_command(
        commands,
        "run",
        "cli.demo:run_phases",
        "run a recipe's phases at a running station: collect, wait for the trainer, evaluate, "
        "improve, evaluate",
    )
    run_phases.add_argument(
        "--quiet", action="store_true", help="print lines instead of the live display"
    )


def teleop(commands: Commands) -> None:
    """Add ``rlinf teleop``."""
    teleop = command(
        commands,
        "teleop",
        "cli.demo:teleop",
        "move the arm of a running station by hand",
        (
            "Reads the recipe's device, and this terminal's keyboard. A person arms "
            "the robot by the key `e`."
        ),
    )
    teleop.add_argument("name", **STATIONS_RECIPE)
    teleop.add_argument("--set", **SET, help="the overrides of the station")


def fake_device(commands: Commands) -> None:
    """Add ``rlinf fake-device``."""
    fake_device = command(
        commands,
        "fake-device",
        "cli.station:fake_device",
        "imitate an operator's device, without hardware",
        (
            "It speaks the protocol of the device. Words on standard input move it: `ty -0.5` "
            "deflects, `press 1`, `release 1`, `rest`, `silent`, `garbage`, `unplug`."
        ),
    )
    fake_device.add_argument(
        "kind", choices=["spacemouse", "gamepad", "pedal", "leader", "feetech", "robotiq"]
    )
    fake_device.add_argument(
        "--path",
        type=Path,
        help="path of its device file, which must not exist (default: in a new folder)",
    )


def replay(commands: Commands) -> None:
    """Add ``rlinf replay``."""
    replay = command(
        commands,
        "replay",
        "cli.replay:replay",
        "play the recorded actions of an episode again on a station",
        (
            "Starts the station of the recording's recipe, or of --recipe, and plays the actions "
            "through its interlock. In simulation in lockstep the motion is the same to the last "
            "bit. On a real arm a person arms at this terminal (e), and any key that moves the "
            "arm ends the replay."
        ),
    )
    replay.add_argument("recording", type=Path, help="the folder of an episode")
    replay.add_argument(
        "--recipe", help="recipe of the station (default: that of the run that holds the recording)"
    )
    replay.add_argument("--set", **SET, help="override of that recipe, e.g. station.domain_id=7")
    replay.add_argument(
        "--out",
        dest="run_dir",
        metavar="OUT",
        type=run_folder,
        help="a new folder of the run (default: runs/<time>); not with --in-sim",
    )
    replay.add_argument(
        "--in-sim",
        action="store_true",
        help="play it in the recipe's simulator without a station, and print the error by time "
        "step (docs/howto/real_to_sim.md)",
    )
    replay.add_argument("--json", **JSON, help="write same and difference, or the errors")


def view(commands: Commands) -> None:
    """Add ``rlinf view``."""
    view = recipe_command(
        commands,
        "view",
        "cli.view:view",
        "write layouts with which RViz and Foxglove show a station",
        None,
        "The layouts also show the folder of an episode.",
    )
    view.add_argument(
        "--rviz",
        dest="show",
        action="store_true",
        help="also open RViz with the layout; it replaces this command",
    )


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
        add_number(
            parser,
            "--timeout",
            "how long to look for the station (default: 5)",
            low=0,
            kind=float,
            default=5.0,
            metavar="SECONDS",
            dest="timeout_s",
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


def drill(commands: Commands) -> None:
    """Add ``rlinf drill``."""
    drill = command(
        commands,
        "drill",
        "cli.station:drill",
        "test the safety functions: inject faults into a simulated station, and measure the "
        "reaction",
    )
    drill.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="only scenarios of configs/drill.yaml with these words in their name",
    )
    drill.add_argument("--json", **JSON, help="write requirements_held, traps_held and each row")
    drill.add_argument(
        "--two-arms",
        action="store_true",
        help="drill a station with two arms (configs/drill_two_arms.yaml)",
    )
    drill.add_argument(
        "--scenarios",
        type=Path,
        metavar="FILE",
        help="another list of scenarios; keys: docs/reference/scenarios.md",
    )
    drill.add_argument("--out", type=Path, help="run folder (default: runs/drill-<time>)")
    add_number(
        drill,
        "--domain",
        "ROS_DOMAIN_ID of the station",
        low=0,
        high=MAX_DOMAIN,
        default=42,
        metavar="ID",
    )


def _add_arm_arguments(parser: argparse.ArgumentParser) -> None:
    """Add recipe, overrides and arm of a command for one arm of a running station."""
    parser.add_argument("name", **STATIONS_RECIPE)
    parser.add_argument(
        "--set", **SET, help="as given to the station, e.g. station.robot=robots/mine"
    )
    parser.add_argument(
        "--arm", default="", metavar="NAME", help="name of the arm, if there are several"
    )


def calibrate(commands: Commands) -> None:
    """Add ``rlinf calibrate``."""
    calibrate = command(
        commands,
        "calibrate",
        "cli.station:calibrate",
        "find the workspace box and home of a real arm while you guide it by hand",
        (
            "Reads the arm's pose and commands nothing. Prints the lines for its limits and its "
            "robot.yaml, and draws the recorded path."
        ),
    )
    _add_arm_arguments(calibrate)
    calibrate.add_argument(
        "--margin",
        type=float,
        default=0.01,
        metavar="METRES",
        help="distance between the guided range and the box (default: 0.01)",
    )
    calibrate.add_argument(
        "--out",
        type=output_file(".png", ".jpg"),
        metavar="PNG",
        default=Path("calibration.png"),
        help="the picture (default: calibration.png); an earlier one is replaced",
    )
    calibrate.add_argument(
        "--write", action="store_true", help="write the lines into the robot's own files"
    )


def first_motion(commands: Commands) -> None:
    """Add ``rlinf first-motion``."""
    first = command(
        commands,
        "first-motion",
        "cli.station:first_motion",
        "guide a real arm's first motion, at a tenth of its speeds",
        (
            "Lowers the interlock's speeds to a tenth. Asks a person to move, let go, disarm and "
            "press each stop, one after the other. Measures the reaction of interlock and arm. It "
            "commands and arms nothing."
        ),
    )
    _add_arm_arguments(first)
    first.add_argument("--json", **JSON, help="write each row")


def camera(commands: Commands) -> None:
    """Add ``rlinf camera``."""
    camera = command(
        commands,
        "camera",
        "cli.station:camera",
        "find the pose of a camera, or check whether it has moved",
        (
            "Uses a camera of a running station and commands nothing. locate: computes the pose "
            "from views of a chessboard with different tilts of the arm, for the robot's hand-eye "
            "file. align: compares with a picture taken with --write."
        ),
    )
    camera.add_argument("request", choices=["locate", "align"])
    _add_arm_arguments(camera)
    camera.add_argument("camera", help="its name in robot.yaml")
    camera.add_argument(
        "--on",
        default="tool",
        choices=["tool", "base"],
        help="mount of the camera (default: tool, with a "
        "fixed board; base: the tool holds the board)",
    )
    camera.add_argument(
        "--board",
        default="8x5",
        metavar="COLUMNSxROWS",
        help="inner corners of the board (default: 8x5)",
    )
    camera.add_argument(
        "--square",
        type=float,
        default=0.03,
        metavar="METRES",
        help="edge of its squares (default: 0.03)",
    )
    camera.add_argument(
        "--reference",
        type=Path,
        metavar="PNG",
        help="align: the earlier picture (default: views/<camera>.png of the robot)",
    )
    camera.add_argument(
        "--out",
        type=output_file(".png", ".jpg"),
        metavar="PNG",
        default=Path("alignment.png"),
        help="align: the picture (default: alignment.png); an earlier one is replaced",
    )
    camera.add_argument("--write", action="store_true", help="write the file, or the reference")


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
    add_number(
        promote, "--version", "another version, which may be untried, rolled back or older", low=1
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
    add_number(target, "--version", "policies/policy-<N>.safetensors of the run", low=1)
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
