"""Parsers of the commands that train and compare: demo, train, plan, sweep, compare and others."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.cli.arguments import (
    JSON,
    PICTURES,
    SET,
    Commands,
    add_number,
    add_web_option,
    command,
    output_file,
    recipe_command,
)


def demo(commands: Commands) -> None:
    """Add ``rlinf demo``."""
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
    add_web_option(demo)


def train(commands: Commands) -> None:
    """Add ``rlinf train``."""
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


def plan(commands: Commands) -> None:
    """Add ``rlinf plan``."""
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
    add_number(plan, "--cpus", "of another machine (default: those of this one)", low=0, default=0)
    add_number(
        plan, "--gpus", "of another machine (default: those of this one)", low=-1, default=-1
    )


def trace(commands: Commands) -> None:
    """Add ``rlinf trace``."""
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


def sweep(commands: Commands) -> None:
    """Add ``rlinf sweep``."""
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
    add_number(sweep, "--jobs", "runs at a time", low=1, default=1)


def compare(commands: Commands) -> None:
    """Add ``rlinf compare``."""
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


def diagnose(commands: Commands) -> None:
    """Add ``rlinf why``."""
    reason = command(
        commands,
        "why",
        "cli.compare:why",
        "find the faults that keep a run from learning",
        (
            "Reads a run's curves, replay, demonstrations and recordings. Prints each fault with "
            "its figures and its remedy. Exit code 1 if there is one."
        ),
    )
    reason.add_argument("run_dir", metavar="run", type=Path, help="a run folder")
    reason.add_argument("--json", **JSON, help="write the faults as one flat object")
