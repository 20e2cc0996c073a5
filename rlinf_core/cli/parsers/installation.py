"""Parsers of the commands for an installation: catalogue, new, import, check, doctor and others."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.cli.arguments import (
    JSON,
    SET,
    SEVERAL,
    STATIONS_RECIPE,
    Commands,
    add_number,
    command,
)

CATALOG = {
    "recipes": "list the recipes that come with rlinf",
    "robots": "list the robots: hardware, twins and simulated ones",
    "tasks": "list the tasks",
    "simulators": "list the simulators, and how to install each",
}


def catalog(commands: Commands) -> None:
    """Add ``recipes``, ``robots``, ``tasks``, ``simulators`` and ``config``."""
    for kind, text in CATALOG.items():
        command(commands, kind, "cli.catalog:list_command", text).set_defaults(kind=kind)
    config = command(
        commands,
        "config",
        "cli.catalog:config_command",
        "print a recipe with all its values, as YAML",
        "Prints all inherited values, all defaults and your overrides, as a run would use them.",
    )
    config.add_argument("name", metavar="recipe", help="a name in configs/ or a YAML file")
    config.add_argument("--set", **SET, help="override, e.g. online.max_minutes=5")
    config.add_argument(
        "--check", action="store_true", help="also check that robot, task and recipe fit together"
    )


def new(commands: Commands) -> None:
    """Add ``rlinf new``."""
    kinds = commands.add_parser(
        "new", help="make the files for a robot of your own"
    ).add_subparsers(required=True, metavar="WHAT")
    robot = command(
        kinds,
        "robot",
        "cli.new:new_robot",
        "make a simulated robot, its limits, a task and a recipe from an arm's MJCF or URDF",
        (
            "Finds the arm's joints, tool and gripper in the model, chooses a workspace, and "
            "writes robot.yaml, limits.yaml, reach.yaml and recipe.yaml. The model's files stay "
            "where they are."
        ),
    )
    robot.add_argument(
        "model", type=Path, help="an MJCF (.xml, with its assets beside it) or a URDF with one arm"
    )
    robot.add_argument("--name", default="", help="name of the robot (default: that of the file)")
    robot.add_argument("--out", type=Path, help="new folder for the files (default: ./NAME)")
    robot.add_argument(
        "--joints",
        nargs="+",
        **SEVERAL,
        metavar="JOINT",
        help="joints of the arm, from base to tool (default: found in the model)",
    )
    robot.add_argument(
        "--tool",
        default="",
        metavar="SITE_OR_BODY",
        help="body or site with the tool's frame; it selects the arm if the model has several "
        "(default: found)",
    )
    robot.add_argument(
        "--home",
        nargs="+",
        type=float,
        **SEVERAL,
        metavar="ANGLE",
        help="position of each joint at the start of an episode [rad or m] (default: the "
        "model's keyframe, or a search)",
    )
    robot.add_argument(
        "--no-gripper", dest="gripper", action="store_false", help="leave the gripper as it is"
    )


def completion(commands: Commands) -> None:
    """Add ``rlinf completion``."""
    shell = command(
        commands,
        "completion",
        "cli.completion:completion",
        "print the script by which a shell completes commands and options",
        (
            'Put eval "$(rlinf completion bash)" into ~/.bashrc, or eval "$(rlinf completion zsh)" '
            "into ~/.zshrc."
        ),
    )
    shell.add_argument("shell", choices=["bash", "zsh"])


def import_contract(commands: Commands) -> None:
    """Add ``rlinf import-contract``."""
    contract = command(
        commands,
        "import-contract",
        "cli.imports:import_contract",
        "make a robot and a task from a contract of Rosetta",
        "Reads a YAML from ROS topics to features (iblnkn/rosetta). It has no "
        "limits: a person fills them in, and the interlock does not start before.",
    )
    contract.add_argument("file", type=Path, help="the contract")
    contract.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the robot's folder (default: its robot_type)"
    )


def import_rlinf(commands: Commands) -> None:
    """Add ``rlinf import rlinf``."""
    imports = commands.add_parser(
        "import", help="make a recipe from another project's configuration"
    ).add_subparsers(required=True, metavar="PROJECT")
    rlinf = command(
        imports,
        "rlinf",
        "cli.imports:import_rlinf",
        "make a recipe from a YAML of RLinf",
        "Converts algorithm, policy, environment, placement and amounts. The recipe names the keys "
        "without a counterpart. docs/coming_from/rlinf.md has the table.",
    )
    rlinf.add_argument("config", type=Path, help="the YAML, e.g. maniskill_ppo_mlp.yaml")
    rlinf.add_argument("--out", type=Path, metavar="FILE", help="the recipe (default: ./<name>)")
    rlinf.add_argument(
        "--robot", default="", help="robot of an environment without a counterpart (rlinf robots)"
    )
    rlinf.add_argument("--task", default="", help="and its task (rlinf tasks)")


def check(commands: Commands) -> None:
    """Add ``rlinf check``."""
    check = command(
        commands,
        "check",
        "cli.check:check_command",
        "test a simulator, the jail, or the fit of a policy to a data set and a station",
    )
    check.add_argument(
        "kind",
        choices=["sim", "jail", "model"],
        help="sim: a simulator of sim_bridges/; jail: the jail for programs of agents; model: a "
        "checkpoint's folder or a policy file",
    )
    check.add_argument(
        "simulator",
        nargs="?",
        default="",
        metavar="name",
        help="sim: its name, e.g. maniskill; model: its path",
    )
    check.add_argument(
        "--data", type=Path, metavar="FOLDER", help="model: recordings for its training"
    )
    check.add_argument(
        "--recipe",
        dest="recipe_name",
        metavar="RECIPE",
        help="model: recipe with station and policy",
    )
    check.add_argument(
        "--set",
        **SET,
        help="model: override a key of the recipe, e.g. policy.statistics=norm_stats.json",
    )
    check.add_argument("--robot", help="a robot in it, by name or path (default: the first one)")
    check.add_argument("--task", help="a task, by name or path (default: the robot's own)")
    add_number(check, "--episodes", "number of scenes for the task's script", low=1, default=10)
    check.add_argument(
        "--video",
        type=Path,
        metavar="FILE",
        help="film the script, in the first scene that it fails",
    )
    check.add_argument(
        "--no-station", dest="station", action="store_false", help="skip the station over ROS"
    )
    check.add_argument("--json", **JSON, help="write the measured values as one flat object")


def messages(commands: Commands) -> None:
    """Add ``rlinf messages``."""
    command(
        commands,
        "messages",
        "launch.build_messages:build_messages",
        "build the messages of rlinf for the ROS in use, once",
    )


def explain(commands: Commands) -> None:
    """Add ``rlinf explain``."""
    explain = command(
        commands,
        "explain",
        "cli.catalog:explain",
        "print cause and remedy of an error by its code",
        (
            "Each error message ends with a code, as [RL-E101]. Without a code the command lists "
            "all of them."
        ),
    )
    explain.add_argument("code", nargs="?", default="", metavar="CODE", help="for example RL-E101")


def doctor(commands: Commands) -> None:
    """Add ``rlinf doctor``."""
    doctor = command(
        commands,
        "doctor",
        "cli.doctor:doctor",
        "list installed and missing parts of this machine, and how to install them",
    )
    doctor.add_argument(
        "station", nargs="?", choices=["station"], help="check the robot side of a recipe's station"
    )
    doctor.add_argument("name", **STATIONS_RECIPE)
    doctor.add_argument("--set", **SET, help="the overrides of the station")
