"""``rlinf``: the demo, a station, a trainer, an evaluation, and a doctor."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rlinf_core import extras
from rlinf_core.errors import RlinfError

os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices are small: threads that wait for each other cost more than they do
EXAMPLES = """examples:
  rlinf doctor                              what this machine has and lacks, and how to get it
  rlinf demo                                a robot learns: demonstrations, SFT, RL, before and after
  rlinf demo demo_vision --set seed=3       another recipe, another seed
  rlinf train demo                          the trainer alone, waiting for stations
  rlinf train sim_sac --out runs/sac        SAC in simulation alone, without ROS; sim_ppo for PPO
  rlinf check sim maniskill                 does a simulator work here, through both front ends?
  rlinf compare runs/sac runs/ppo           their curves in one picture
  rlinf sweep sim_sac --set seed=0,1,2 algorithm.learning_rate=3e-4,1e-3 --jobs 2
  rlinf up demo --out runs/a                the station alone, for such a trainer
  rlinf direct demo --out runs/a            collect, wait for the trainer, evaluate, improve, evaluate: there
  rlinf up demo --set station.operator.kind=keyboard station.lockstep=false     with `rlinf teleop demo` elsewhere
  rlinf eval runs/x/checkpoint/policy.safetensors --episodes 50 --video out.mp4
  rlinf show runs/x                         its recordings, an episode a line; of one alone its topics too
  rlinf status                              how a running station is; rlinf fault reset, rlinf arm: what a person asks of it
  rlinf identify runs/x                     how late and how slowly its arm follows, from what it recorded
  rlinf eval runs/x --vary station.robot=panda_maniskill,panda_gym_hil,fetch      the same policy elsewhere, a table
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point; errors a user can act on end with exit code 1 and no traceback."""
    arguments = _parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return arguments.run(arguments) or 0
    except RlinfError as error:
        print(f"rlinf: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if told := _which_extra(error):
            print(f"rlinf: {told}", file=sys.stderr)
            return 1
        raise
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _which_extra(error: ModuleNotFoundError) -> str:
    """What to install, where the missing module is one that an extra brings."""
    extra = extras.extra_of(error.name or "")
    if extra is None:
        return ""
    return (f"expected the package '{error.name}', which is not installed. It comes with the extra '{extra}': "
            f"{extras.how_to_get(extra)}")


def _interrupt(*_: object) -> None:
    """Asked to end is Ctrl-C: everything stops in order."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("rlinf", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = _recipe_command(commands, "demo", _demo, "run a recipe from demonstrations to a report", default="demo")
    demo.add_argument("--quiet", action="store_true", help="print lines instead of the live display")
    train = _recipe_command(commands, "train", _train, "train a recipe: in simulators, on recordings, or on what stations "
                            "send until Ctrl-C; resumes what is in --out")
    train.add_argument("--no-report", action="store_true", help="leave out report.md, its picture and its video")
    sweep = _recipe_command(commands, "sweep", _sweep, "train every combination of overrides (Hydra's grammar: seed=0,1 "
                            "lr=choice(1e-3,3e-4) n=range(1,4)), then a table and a picture; goes on with what is in --out")
    sweep.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    compare = commands.add_parser("compare", help="success over time steps of several runs, in one picture")
    compare.add_argument("runs", nargs="+", type=Path, help="run folders of `rlinf train`")
    compare.add_argument("--out", type=Path, default=Path("compare.png"), help="the picture (default: compare.png)")
    compare.set_defaults(run=_compare)
    _recipe_command(commands, "up", _up, "start the station of a recipe without ROS's launch package, until Ctrl-C")
    direct = _recipe_command(commands, "direct", _direct, "take a running station through its recipe's phases")
    direct.add_argument("--quiet", action="store_true", help="print lines instead of the live display")
    teleop = commands.add_parser("teleop", help="be the operator of a running station, at this terminal's keyboard")
    teleop.add_argument("recipe", nargs="?", default="demo", help="the station's recipe (default: demo)")
    teleop.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="as given to the station")
    teleop.set_defaults(run=_teleop)
    _station_commands(commands)
    show = commands.add_parser("show", help="what recordings hold: an episode a line, or topics", description=(
        "A line for each recording below: how its episode ended, how long it was, who commanded, which policy under "
        "which limits, and whether it is what was closed (its seal). Of one recording alone, its topics too, "
        "with counts and times. Exit code 1 where a seal does not fit."))
    show.add_argument("recordings", nargs="+", type=Path, help="episodes, a spool, an inbox, or a run folder")
    show.add_argument("--plot", type=Path, metavar="FILE", help="draw one episode's rewards and actions, e.g. episode.png")
    show.set_defaults(run=_show)
    evaluate = commands.add_parser("eval", help="success of a policy file on held-out scenes, in simulation")
    evaluate.add_argument("checkpoint", type=Path, help="a policy-*.safetensors, or a run folder (its newest policy)")
    evaluate.add_argument("--recipe", help="whose station and task (default: the run's own, or demo)")
    evaluate.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE",
                          help="override, e.g. station.robot=panda_gym_hil: the same policy in another simulator")
    evaluate.add_argument("--vary", nargs="*", default=[], metavar="KEY=A,B,...",
                          help="one line for each value, or each combination, e.g. simulation.randomise.delay_s=0,0.1,0.2")
    evaluate.add_argument("--episodes", type=int, default=50)
    evaluate.add_argument("--first-seed", type=int, default=1_000_000)
    evaluate.add_argument("--video", type=Path, help="write the first episodes as MP4")
    evaluate.add_argument("--json", type=Path, help="write the result as one flat object")
    evaluate.set_defaults(run=_eval)
    identify = commands.add_parser("identify", help="delay, lag and gain with which an arm follows, from recorded episodes")
    identify.add_argument("recordings", nargs="+", type=Path, help="episodes, a spool, or a run folder")
    identify.add_argument("--velocity", default="tcp_velocity", help="observation with the tool's velocity [m/s]")
    identify.add_argument("--episodes", type=int, default=200, help="at most so many (default: 200)")
    identify.add_argument("--json", type=Path, help="write the result as one flat object")
    identify.set_defaults(run=_identify)
    drill = commands.add_parser("drill", help="the safety drill: what can go wrong goes wrong, and is measured")
    drill.add_argument("--only", default="", metavar="WORDS", help="scenarios of configs/drill.yaml by their name")
    drill.add_argument("--json", type=Path, help="write requirements_held, traps_held and each row there")
    drill.add_argument("--out", type=Path, help="run folder (default: runs/drill-<time>)")
    drill.add_argument("--domain", type=int, default=42, help="ROS_DOMAIN_ID")
    drill.set_defaults(run=_drill)
    check = commands.add_parser("check", help="whether a simulator conforms to the robot interface")
    check.add_argument("what", choices=["sim"], help="a simulator, of sim_bridges/")
    check.add_argument("name", help="its name, e.g. maniskill")
    check.add_argument("--robot", help="a robot that lives in it, by name or path (default: the first that does)")
    check.add_argument("--task", help="a task, by name or path (default: the robot's own)")
    check.add_argument("--episodes", type=int, default=10, help="scenes that the task's script plays (default: 10)")
    check.add_argument("--no-station", action="store_true", help="leave out the station over ROS")
    check.add_argument("--json", type=Path, help="write what was measured as one flat object")
    check.set_defaults(run=_check)
    messages = commands.add_parser("messages", help="build rlinf_msgs against the ROS there is; once for an installation")
    messages.set_defaults(run=_messages)
    doctor = commands.add_parser("doctor", help="say what this machine has and lacks, and how to get it")
    doctor.set_defaults(run=_doctor)
    return parser


def _recipe_command(commands: argparse._SubParsersAction, name: str, run: object, text: str,
                    default: str | None = None) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text)
    parser.add_argument("recipe", nargs="?" if default else None, default=default,
                        help="a name in configs/ or a YAML file" + (f" (default: {default})" if default else ""))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="override, e.g. online.max_minutes=5")
    parser.add_argument("--out", type=Path, help="run folder (default: runs/<time>)")
    parser.set_defaults(run=run)
    return parser


def _station_commands(commands: argparse._SubParsersAction) -> None:
    """What a person asks of a running station."""
    def command(parent: argparse._SubParsersAction, name: str, text: str, more: str) -> argparse.ArgumentParser:
        parser = parent.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}")
        parser.add_argument("recipe", nargs="?", default="demo", help="the station's recipe (default: demo)")
        parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE",
                            help="as given to the station, e.g. station.name=station_b station.domain_id=43")
        parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS",
                            help="how long to look for the station (default: 5)")
        parser.set_defaults(run=_visit, what=name, cause="")
        return parser

    command(commands, "status", "say how a running station is", "What its interlock does and why, what it waits for, which "
            "episode is played, which policy plays, whether the trainer is connected, and which nodes are alive. It only "
            "listens. Exit code 1 where there is no such station.")
    command(commands, "arm", "arm a running station's interlock", "A real arm is armed by a person, at a terminal.")
    command(commands, "disarm", "disarm it: the arm brakes, and stands until it is armed again", "")
    fault = commands.add_parser("fault", help="reset a fault of a running station's interlock, by its name")
    reset = command(fault.add_subparsers(required=True, metavar="COMMAND"), "reset", "reset a fault by its name", (
        "Find out why it came first; without --cause, the one that stands is named. A reset is refused, with the reason, "
        "while its cause has not gone or the enable is not held. It moves nothing: arm afterwards."))
    reset.add_argument("--cause", default="", help="the fault's name, as `rlinf status` shows it")


def _run_dir(arguments: argparse.Namespace) -> Path:
    """Where the run goes; made by whoever has checked the recipe."""
    return (arguments.out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()


def _demo(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.demo import demo

    return demo(arguments.recipe, arguments.set, _run_dir(arguments), quiet=arguments.quiet)


def _train(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.train import train_command
    from rlinf_core.recipes import load_recipe

    return train_command(load_recipe(arguments.recipe, arguments.set), _run_dir(arguments), not arguments.no_report)


def _sweep(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.sweep import sweep_command

    return sweep_command(arguments, _run_dir(arguments))


def _compare(arguments: argparse.Namespace) -> None:
    from rlinf_core.cli.compare import compare

    compare(arguments.runs, arguments.out)


def _up(arguments: argparse.Namespace) -> None:
    from rlinf_core.cli.demo import up

    up(arguments.recipe, arguments.set, _run_dir(arguments))


def _direct(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.demo import direct

    return direct(arguments.recipe, arguments.set, _run_dir(arguments), quiet=arguments.quiet)


def _teleop(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.demo import teleop

    return teleop(arguments.recipe, arguments.set)


def _visit(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.station import visit

    return visit(arguments.what, arguments.recipe, arguments.set, arguments.timeout, arguments.cause)


def _show(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.show import show

    return show(arguments.recordings, arguments.plot)


def _eval(arguments: argparse.Namespace) -> None:
    from rlinf_core.cli.evaluate import evaluate_command

    evaluate_command(arguments)


def _identify(arguments: argparse.Namespace) -> None:
    from rlinf_core.cli.identify import identify_command

    identify_command(arguments)


def _drill(arguments: argparse.Namespace) -> int:
    from rlinf_core.ros import ros_environment

    options = [f"--{name}={value}" for name in ("only", "json", "out") if (value := getattr(arguments, name))]
    return subprocess.call([sys.executable, "-m", "rlinf.drill", *options], env=ros_environment(arguments.domain))


def _check(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.check import check_command

    return check_command(arguments.name, arguments.robot, arguments.task, arguments.episodes,
                         not arguments.no_station, arguments.json)


def _messages(arguments: argparse.Namespace) -> None:
    from rlinf_core.building import build_messages

    build_messages()


def _doctor(arguments: argparse.Namespace) -> int:
    from rlinf_core.cli.doctor import doctor

    return doctor()


if __name__ == "__main__":
    sys.exit(main())
