"""Train robot policies by reinforcement learning on robots and in simulators, over ROS 2."""

from __future__ import annotations

import argparse
import atexit
import errno
import os
import pkgutil
import signal
import sys
from pathlib import Path

from rlinf_core.cli.parsers import (
    data_commands,
    fleet_commands,
    monitor_commands,
    policy_commands,
    reward_commands,
    station_commands,
    world_commands,
)
from rlinf_core.cli.parsing import (
    JSON,
    PICTURES,
    SET,
    SEVERAL,
    STATIONS_RECIPE,
    Commands,
    Parser,
    at_least,
    command,
    complete_help,
    open_streams,
    output_file,
    reader_is_gone,
    recipe_command,
    run_folder,
    show_command,
)
from rlinf_core.core import extras
from rlinf_core.core.errors import FAILED, RestartLimitError, RlinfError
from rlinf_core.core.paths import VERSION, replacement_folders
from rlinf_core.core.ros import MAX_DOMAIN
from rlinf_core.core.signals import defer_signals
from rlinf_core.deploy.serving import PORT
from rlinf_core.page import PORT as PAGE_PORT

MAX_PORT = 65535
REMEDIES = dict.fromkeys(
    (errno.ENOSPC, errno.EDQUOT), ". Free disk space and run the command again"
) | {
    errno.EROFS: ". Choose a writable folder",
    errno.ENAMETOOLONG: ". Choose a shorter name: file systems take 255 bytes",
}
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads cost more than they gain on small matrices
EXAMPLES = """examples:
  rlinf doctor                              # installed and missing parts of this machine, and how to get them
  rlinf demo                                # demonstrations, SFT, RL, and an evaluation before and after
  rlinf demo demo_vision --set seed=3       # another recipe, another seed
  rlinf collect demo --episodes 5 --set station.operator.kind=keyboard # demonstrations by hand; --out resumes
  rlinf train demo                          # the trainer alone, waiting for stations
  rlinf train sim_sac --out runs/sac        # SAC in simulation alone, without ROS; sim_ppo for PPO
  rlinf plan sim_sac --set placement=auto   # where its parts would run here, how fast, and why
  rlinf new robot arm.xml                   # your own arm, from its MJCF or URDF: simulator, limits, task and recipe
  rlinf check sim maniskill                 # test a simulator through both front ends
  rlinf train text_arithmetic               # a language model learns to add; rlinf chat RUN talks with it
  rlinf compare runs/sac runs/ppo           # their curves in one picture
  rlinf sweep sim_sac --set seed=0,1,2 algorithm.learning_rate=3e-4,1e-3 --jobs 2
  rlinf up demo --out runs/a                # the station alone, for a separate trainer
  rlinf run demo --out runs/a               # its phases: collect, wait for the trainer, evaluate, improve, evaluate
  rlinf up demo --set station.operator.kind=keyboard station.lockstep=false # and rlinf teleop demo in another terminal
  rlinf up franka_twin --episodes 3 --json FILE # three episodes of a Franka's twin: docs/robots/index.md
  rlinf up demo --web                       # with the operator's page, http://127.0.0.1:8080
  rlinf eval runs/x/policy/policy.safetensors --episodes 50 --video out.mp4
  rlinf duel runs/a runs/b                  # compare two policies on the same scenes until a test decides
  rlinf why runs/x                          # find the fault that keeps a run from learning
  rlinf explain RL-E101                     # cause and remedy of an error, by the code at its end
  rlinf show runs/x                         # list its recordings; for a single one also its topics
  rlinf data check runs/x                   # check all recordings; also rlinf data repair, merge, split, stats, export
  rlinf status                              # state of a running station; also rlinf fault reset, rlinf arm
  rlinf param set twin inject user_stop     # set a parameter of a running node; rlinf param list twin lists them
  rlinf fleet enroll station_b --out carry/station_b # credentials of a station for a network (docs/howto/fleet.md)
  rlinf fleet up demo --stations 4 --out runs/x # a trainer and simulated stations, all on this machine
  rlinf fleet status runs/x                 # its stations: policies, backlog, success; also promote, rollback, pin, drain
  rlinf serve runs/x                        # serve its newest policy to stations and openpi-client
  rlinf find-dynamics runs/x                # delay and lag of its arm, from its recordings
  rlinf eval runs/x --vary station.robot=panda_maniskill,panda_gym_hil,fetch # the same policy in other simulators
"""


FIRST_STEPS = """rlinf trains robot policies by reinforcement learning on robots and simulators, over ROS 2.

first steps:
  rlinf doctor           installed and missing parts of this machine, and how to get them
  rlinf demo             a simulated robot learns to insert a peg, in minutes, without a GPU
  rlinf recipes          other recipes; also: rlinf robots, rlinf tasks, rlinf simulators
  rlinf --help           every command, with examples
"""
CATALOG = {
    "recipes": "list the recipes that come with rlinf",
    "robots": "list the robots: hardware, twins and simulated ones",
    "tasks": "list the tasks",
    "simulators": "list the simulators, and how to install each",
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: call ``run``.

    Errors of the system are one line, too; a closed pipe ends it silently.
    """
    open_streams()
    try:
        code = run(argv)
        print(end="", flush=True)  # so that a closed pipe is noticed here
        return code
    except OSError as error:
        if reader_is_gone() and isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        place = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"rlinf: {place}{REMEDIES.get(error.errno or 0, '')}", file=sys.stderr)
        return 1


def run(argv: list[str] | None = None, refused: int = 0) -> int:
    """Run one command. An error that a user can act on is a line on stderr, not a traceback.

    Args:
        argv: command line without the program; by default that of this process.
        refused: exit code of permanent errors, which a restart would meet again; 0 for the usual
            codes.

    Returns:
        The exit code: 0, 1 for a failure, 2 for wrong settings or usage, 130 after Ctrl-C;
            ``refused`` instead of 1 and 2.
    """
    if not (sys.argv[1:] if argv is None else argv):
        print(FIRST_STEPS, end="")
        return 0
    arguments = vars(_parser().parse_args(argv))
    os.environ.update(replacement_folders())
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with defer_signals():
            command = pkgutil.resolve_name(f"rlinf_core.{arguments.pop('run')}")
        code = command(**arguments)
        return code if isinstance(code, int) else 0
    except RlinfError as error:
        print(f"rlinf: {error.with_code()}", file=sys.stderr)
        return FAILED if isinstance(error, RestartLimitError) else refused or error.exit_status()
    except ModuleNotFoundError as error:
        if extra := _which_extra(error):
            print(f"rlinf: {extra} [RL-E201]", file=sys.stderr)
            return refused or FAILED
        raise
    except KeyboardInterrupt:
        # ros2 launch may signal twice
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _catalog(commands: Commands) -> None:
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


def _new(commands: Commands) -> None:
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


def _duel(commands: Commands) -> None:
    duel = command(
        commands,
        "duel",
        "cli.duel:duel",
        "find the better of two policies, in simulation",
        (
            "Plays both policies on one held-out scene after the other, in random order. Stops as "
            "soon as a sequential test decides. The output does not name the policies before the "
            "end."
        ),
    )
    for name in ("a", "b"):
        duel.add_argument(
            name, metavar=name.upper(), type=Path, help="a policy-*.safetensors, or a run folder"
        )
    duel.add_argument(
        "--recipe", help="recipe with station and task (default: that of A's run, or demo)"
    )
    duel.add_argument("--set", **SET, help="override of that recipe")
    duel.add_argument(
        "--pairs",
        dest="max_pairs",
        type=at_least(1, int),
        default=200,
        metavar="N",
        help="largest number of pairs (default: 200)",
    )
    duel.add_argument(
        "--first-seed",
        type=at_least(0, int),
        default=2_000_000,
        metavar="SEED",
        help="seed of the first scene (default: 2000000)",
    )
    duel.add_argument(
        "--by",
        dest="measures",
        nargs="+",
        default=["success"],
        metavar="MEASURE",
        help="measures by priority; the first one that differs counts: success, time of two "
        "successes, return (default: success)",
    )
    duel.add_argument(
        "--odds",
        type=at_least(1.1, float),
        default=3.0,
        metavar="RATIO",
        help="smallest odds ratio that must be detected; 3 detects 90 against 70 %% (default: 3)",
    )
    duel.add_argument("--json", **JSON, help="write the result as one flat object")


def _plan(commands: Commands) -> None:
    plan = command(
        commands,
        "plan",
        "cli.plan:plan_command",
        "show where the parts of a run execute, and why",
        (
            "Prints the graph of a recipe's run, the layout on this machine with its expected "
            "rate, the runner-up, and the impossible layouts. With placement.auto=true the run "
            "itself chooses in this way. Nothing is started."
        ),
    )
    plan.add_argument("name", metavar="recipe", help="a name in configs/ or a YAML file")
    plan.add_argument("--set", **SET, help="override, e.g. placement=auto")
    plan.add_argument(
        "--run",
        dest="run_dir",
        type=Path,
        metavar="RUN",
        help="use the measurements of this run's folder",
    )
    plan.add_argument(
        "--picture",
        type=output_file(*PICTURES),
        metavar="FILE",
        help="draw the graph, e.g. plan.svg",
    )
    plan.add_argument(
        "--cpus",
        type=at_least(0, int),
        default=0,
        metavar="N",
        help="of another machine (default: those of this one)",
    )
    plan.add_argument(
        "--gpus",
        type=at_least(-1, int),
        default=-1,
        metavar="N",
        help="of another machine (default: those of this one)",
    )


def _trace(commands: Commands) -> None:
    trace = command(
        commands,
        "trace",
        "cli.plan:trace_command",
        "write the timeline of a run, for Chrome or Perfetto",
        (
            "Writes the activity of trainer, workers and learners over time, as rlinf train "
            "recorded it in the run folder."
        ),
    )
    trace.add_argument("run_dir", metavar="run", type=Path, help="a run folder")
    trace.add_argument(
        "--out",
        type=output_file(".json"),
        metavar="FILE",
        default=Path("trace.json"),
        help="the trace (default: trace.json); an earlier one is replaced",
    )


def _which_extra(error: ModuleNotFoundError) -> str:
    """Return how to install the extra that brings a missing module."""
    extra = extras.extra_of(error.name or "")
    if extra is None:
        return ""
    return (
        f"expected the package '{error.name}', which is not installed. It comes with the extra "
        f"'{extra}': {extras.how_to_get(extra)}"
    )


def _interrupt(*_: object) -> None:
    """Handle SIGTERM like Ctrl-C, so that everything stops in order."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    """Return the parser. Its options have the names of the arguments of each command's function."""
    parser = Parser(
        "rlinf",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rlinf {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _catalog(commands)
    _new(commands)
    demo = recipe_command(
        commands,
        "demo",
        "cli.demo:demo",
        "run a whole recipe: demonstrations, training, evaluation and a report",
        "demo",
        "A run that is already in --out is resumed.",
    )
    demo.add_argument(
        "--quiet", action="store_true", help="print lines instead of the live display"
    )
    train = recipe_command(
        commands,
        "train",
        "cli.train:train_command",
        "train a policy with a recipe: in simulators, on recordings or with stations",
        None,
        "Training with stations continues until Ctrl-C. A run that is already in --out is resumed.",
    )
    train.add_argument(
        "--no-report",
        dest="report",
        action="store_false",
        help="leave out report.md, its picture and its video",
    )
    _plan(commands)
    _trace(commands)
    sweep = recipe_command(
        commands,
        "sweep",
        "cli.sweep:sweep_command",
        "train every combination of some settings, and compare the results",
        None,
        "The values follow Hydra's grammar: seed=0,1 algorithm.learning_rate=choice(1e-3,3e-4) "
        "policy.horizon=range(1,4). At the end it prints a table and draws a picture. A sweep "
        "that is already in --out continues.",
    )
    sweep.add_argument(
        "--jobs", type=at_least(1, int), default=1, metavar="N", help="runs at a time (default: 1)"
    )
    compare = command(
        commands,
        "compare",
        "cli.compare:compare",
        "draw the learning curves of several runs in one picture",
        "A curve is the success rate over time steps, or the return if no run ever succeeds. Runs "
        "that differ only by their seed share one curve: their mean with its 95 % interval "
        "(Student's t over the runs).",
    )
    compare.add_argument(
        "runs", nargs="+", type=Path, help="run folders of `rlinf train` or `rlinf demo`"
    )
    compare.add_argument(
        "--csv",
        dest="csv_file",
        type=output_file(".csv"),
        metavar="FILE",
        help="also write each evaluation, and each point of each mean, as a row of a table",
    )
    compare.add_argument(
        "--out",
        type=output_file(*PICTURES),
        default=Path("compare.png"),
        help="the picture (default: compare.png); an earlier one is replaced",
    )
    collect = recipe_command(
        commands,
        "collect",
        "cli.collect:collect",
        "record demonstrations until enough of them have succeeded",
        None,
        "A person demonstrates, or the task's script in simulation. Recordings that are already "
        "in --out count.",
    )
    collect.add_argument(
        "--episodes",
        type=at_least(1, int),
        metavar="N",
        help="successful ones, with those in --out (default: the recipe's collect.episodes)",
    )
    collect.add_argument(
        "--quiet", action="store_true", help="print lines instead of the live display"
    )
    up = recipe_command(
        commands,
        "up",
        "cli.demo:up",
        "start a recipe's station: robot or simulator, cameras, interlock, operator and recorder",
        None,
        "It runs until Ctrl-C or until --episodes are recorded. It needs no launch package of ROS.",
    )
    for watched in (demo, collect, up):
        watched.add_argument(
            "--web",
            type=at_least(1, int, MAX_PORT),
            nargs="?",
            const=PAGE_PORT,
            metavar="PORT",
            help=f"serve the operator's page (docs/howto/operator_page.md) there (default: "
            f"{PAGE_PORT})",
        )
    up.add_argument(
        "--episodes",
        type=at_least(0, int),
        default=0,
        metavar="N",
        help="number of demonstrations before the stop (default: 0, until Ctrl-C)",
    )
    up.add_argument(
        "--json",
        **JSON,
        help="with --episodes: write the numbers of recorded and successful episodes and of "
        "interlock faults as one flat object",
    )
    run_phases = recipe_command(
        commands,
        "run",
        "cli.demo:direct",
        "run a recipe's phases at a running station: collect, wait for the trainer, evaluate, "
        "improve, evaluate",
    )
    run_phases.add_argument(
        "--quiet", action="store_true", help="print lines instead of the live display"
    )
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
    fake_device = command(
        commands,
        "fake-device",
        "cli.station:twin",
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
    station_commands(commands)
    fleet_commands(commands)
    show_command(commands)
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
    chat = command(
        commands,
        "chat",
        "cli.chat:chat_command",
        "talk with a trained language model, or let it play a scene",
        "Prints calls of tools, tokens and reward.",
    )
    chat.add_argument(
        "folder",
        metavar="run",
        type=Path,
        help="folder of a run of rlinf train with env text:TASK (its newest policy)",
    )
    chat.add_argument(
        "--scene",
        type=at_least(0, int),
        metavar="SEED",
        help="play this scene of its task; evaluation scenes begin at 1000000 (default: you "
        "write the messages)",
    )
    chat.add_argument(
        "--temperature",
        type=at_least(0, float),
        default=0.0,
        metavar="T",
        help="sampling temperature of tokens; 0 takes the likeliest one (default)",
    )
    data_commands(commands)
    policy_commands(commands)
    reward_commands(commands)
    monitor_commands(commands)
    world_commands(commands)
    evaluate = command(
        commands,
        "eval",
        "cli.evaluate:evaluate_command",
        "measure the success rate of a policy on held-out scenes, in simulation",
    )
    evaluate.add_argument(
        "checkpoint", type=Path, help="a policy-*.safetensors, or a run folder (its newest policy)"
    )
    evaluate.add_argument(
        "--recipe", help="recipe with station and task (default: the run's own, or demo)"
    )
    evaluate.add_argument(
        "--set",
        **SET,
        help="override, e.g. station.robot=panda_gym_hil: the same policy in another simulator",
    )
    evaluate.add_argument(
        "--vary",
        nargs="*",
        **SEVERAL,
        metavar="KEY=A,B,...",
        help="one line for each value, or each combination, e.g. "
        "simulation.randomise.delay_s=0,0.1,0.2",
    )
    evaluate.add_argument(
        "--episodes",
        type=at_least(1, int),
        default=50,
        metavar="N",
        help="number of scenes, one episode each (default: 50)",
    )
    evaluate.add_argument(
        "--first-seed",
        type=at_least(0, int),
        default=1_000_000,
        metavar="SEED",
        help="seed of the first scene; training uses smaller ones (default: 1000000)",
    )
    evaluate.add_argument(
        "--video", type=output_file(".mp4", ".mkv", ".mov"), help="write the first episodes as MP4"
    )
    evaluate.add_argument("--json", **JSON, help="write the result as one flat object")
    _duel(commands)
    reason = command(
        commands,
        "why",
        "cli.why:why",
        "find the faults that keep a run from learning",
        (
            "Reads a run's curves, replay, demonstrations and recordings. Prints each fault with "
            "its figures and its remedy. Exit code 1 if there is one."
        ),
    )
    reason.add_argument("run_dir", metavar="run", type=Path, help="a run folder")
    reason.add_argument("--json", **JSON, help="write the faults as one flat object")
    serve = command(
        commands,
        "serve",
        "cli.serve:serve",
        "serve a policy over the network: observations in, actions out",
        (
            "It speaks openpi's websocket protocol. Its clients are stations with "
            "station.policy.backend=remote, and programs with openpi-client. Loads the newest "
            "policy, computes once to warm up, and listens. /healthz then answers, and /metrics "
            "has counters. New files in the folder are served at once. A running episode ends "
            "with its version."
        ),
    )
    serve.add_argument(
        "policy", type=Path, help="a policy-*.safetensors, or a folder with some (a run)"
    )
    serve.add_argument(
        "--recipe",
        metavar="RECIPE",
        help="recipe of a policy of your own kind. Its policy.kind names the Python file or "
        "package "
        "that may be imported. Built-in and installed kinds need none",
    )
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to bind (default: 127.0.0.1, this machine alone)",
    )
    serve.add_argument(
        "--port",
        type=at_least(0, int, MAX_PORT),
        default=PORT,
        metavar="PORT",
        help=f"TCP port; 0 takes a free one (default: {PORT})",
    )
    serve.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key of the clients: openpi-client "
        "(api_key) and stations (station.policy.api_key_file)",
    )
    serve.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="certificate of this server, PEM: wss:// instead of ws://",
    )
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    serve.add_argument(
        "--plaintext",
        action="store_true",
        help="listen beyond this machine without encryption or without a key",
    )
    serve.add_argument(
        "--lerobot-port",
        type=at_least(0, int, MAX_PORT),
        metavar="PORT",
        help="also answer LeRobot's robot client (asynchronous inference, gRPC) at this port of "
        "127.0.0.1; "
        "0 takes a free one (default: not)",
    )
    serve.add_argument(
        "--max-batch",
        type=at_least(1, int),
        default=16,
        metavar="N",
        help="largest number of requests in one batch (default: 16)",
    )
    serve.add_argument(
        "--max-wait-ms",
        type=at_least(0, float),
        default=5.0,
        metavar="MS",
        help="longest wait of a request for others of its batch (default: 5)",
    )
    serve.add_argument(
        "--device", default="auto", help="auto, the best available one (default), or cpu, cuda, ..."
    )
    serve.add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="float32",
        help="number format of a large model's layers (default: float32)",
    )
    serve.add_argument(
        "--execution",
        choices=["eager", "graphs", "compiled"],
        default="eager",
        help="graphs: a large model is recorded as CUDA graphs; compiled: torch.compile, then "
        "recorded. "
        "Both start more slowly (default: eager)",
    )
    tiny = command(
        commands,
        "make-tiny-vla",
        "cli.serve:tiny",
        "make a tiny checkpoint of a published family, with random weights",
        (
            "It has the family's architecture, key names, files and kind of tokenizer, in a few "
            "megabytes. It replaces a published checkpoint in a test of a recipe or a station "
            "(docs/howto/vla.md)."
        ),
    )
    tiny.add_argument(
        "family",
        help="pi0, dexbotic_pi0, pi05, smolvla, groot, groot_n1_6, groot_n1_7, openvla, "
        "openvla_oft, pi0_fast, xvla or qwen_vl",
    )
    tiny.add_argument(
        "--out",
        dest="folder",
        type=Path,
        required=True,
        help="a new folder; nothing is overwritten",
    )
    tiny.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="a tokenizer.json, for example a published one "
        "(default: a small byte-level one of the same kind)",
    )
    tiny.add_argument(
        "--horizon",
        type=at_least(0, int),
        default=0,
        metavar="N",
        help="actions of a chunk, for families that store it (default: that of policy.horizon)",
    )
    tiny.add_argument(
        "--actions",
        type=at_least(1, int),
        default=7,
        metavar="N",
        help="openvla_oft: size of an action (default: 7)",
    )
    tiny.add_argument(
        "--state",
        type=at_least(1, int),
        default=8,
        metavar="N",
        help="openvla_oft: size of a state (default: 8)",
    )
    tiny.add_argument(
        "--seed",
        type=at_least(0, int),
        default=0,
        metavar="SEED",
        help="seed of the weights (default: 0)",
    )
    written_formats = (
        "write a policy in the format of another library, or a published one as a file"
    )
    vla = commands.add_parser("vla", help=written_formats).add_subparsers(
        required=True, metavar="COMMAND"
    )
    adapters = command(
        vla,
        "adapters",
        "cli.serve:adapters",
        "write a policy's LoRA adapters in the format of the library peft",
        (
            "Writes adapter_config.json and adapter_model.safetensors, for "
            "PeftModel.from_pretrained with the published model (docs/howto/vla.md)."
        ),
    )
    adapters.add_argument(
        "policy", type=Path, help="a policy-*.safetensors trained with policy.lora, or a run folder"
    )
    adapters.add_argument(
        "--out",
        dest="folder",
        type=Path,
        required=True,
        help="a new folder; nothing is overwritten",
    )
    lerobot = command(
        vla,
        "lerobot",
        "cli.serve:lerobot",
        "write a policy of kind act or diffusion as a folder of LeRobot",
        (
            "Writes config.json, model.safetensors and both processors, which LeRobot's own class "
            "loads (docs/howto/vla.md)."
        ),
    )
    lerobot.add_argument("policy", type=Path, help="a policy-*.safetensors, or a run's folder")
    lerobot.add_argument(
        "--out",
        dest="folder",
        type=Path,
        required=True,
        help="a new folder; nothing is overwritten",
    )
    wrap = command(
        vla,
        "policy",
        "cli.serve:policy_file",
        "write a policy file of a published folder, as it is",
        (
            "The recipe's policy, untrained, for rlinf eval, rlinf serve and stations. With "
            "policy.kind=lerobot it is any policy of LeRobot, played by LeRobot's class in its own "
            "Python (docs/howto/vla.md)."
        ),
    )
    wrap.add_argument("recipe", help="a recipe or file with the task")
    wrap.add_argument("--set", **SET, help="override, e.g. policy.checkpoint=/models/act")
    wrap.add_argument("--out", dest="folder", type=Path, required=True, help="folder to write to")
    find_dynamics = command(
        commands,
        "find-dynamics",
        "cli.data:identify_command",
        "estimate an arm's delay, lag and gain from recorded episodes",
    )
    find_dynamics.add_argument(
        "recordings", nargs="+", type=Path, help="episodes, a spool, or a run folder"
    )
    find_dynamics.add_argument(
        "--velocity", default="tcp_velocity", help="observation with the tool's velocity [m/s]"
    )
    find_dynamics.add_argument(
        "--episodes",
        type=at_least(1, int),
        default=200,
        metavar="N",
        help="largest number of episodes (default: 200)",
    )
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
    drill.add_argument(
        "--domain",
        type=at_least(0, int, MAX_DOMAIN),
        default=42,
        metavar="ID",
        help="ROS_DOMAIN_ID of the station (default: 42)",
    )
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
    calibrate.add_argument("name", **STATIONS_RECIPE)
    calibrate.add_argument(
        "--set", **SET, help="as given to the station, e.g. station.robot=robots/mine"
    )
    calibrate.add_argument(
        "--arm", default="", metavar="NAME", help="name of the arm, if there are several"
    )
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
    first.add_argument("name", **STATIONS_RECIPE)
    first.add_argument(
        "--set", **SET, help="as given to the station, e.g. station.robot=robots/mine"
    )
    first.add_argument(
        "--arm", default="", metavar="NAME", help="name of the arm, if there are several"
    )
    first.add_argument("--json", **JSON, help="write each row")
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
    camera.add_argument("name", **STATIONS_RECIPE)
    camera.add_argument("camera", help="its name in robot.yaml")
    camera.add_argument(
        "--set", **SET, help="as given to the station, e.g. station.robot=robots/mine"
    )
    camera.add_argument(
        "--arm", default="", metavar="NAME", help="name of the arm, if there are several"
    )
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
    check = command(
        commands,
        "check",
        "cli.check:check_command",
        "test a simulator, the jail, or the fit of a policy to a data set and a station",
    )
    check.add_argument(
        "kind",
        choices=["sim", "jail", "model"],
        help="sim: a simulator of sim_bridges/; "
        "jail: the jail for "
        "programs of agents; model: a checkpoint's folder or a policy file",
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
    check.add_argument(
        "--episodes",
        type=at_least(1, int),
        default=10,
        metavar="N",
        help="number of scenes for the task's script (default: 10)",
    )
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
    command(
        commands,
        "messages",
        "launch.build_messages:build_messages",
        "build the messages of rlinf for the ROS in use, once",
    )
    explain = command(
        commands,
        "explain",
        "cli.explain:explain",
        "print cause and remedy of an error by its code",
        (
            "Each error message ends with a code, as [RL-E101]. Without a code the command lists "
            "all of them."
        ),
    )
    explain.add_argument("code", nargs="?", default="", metavar="CODE", help="for example RL-E101")
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
    complete_help(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
