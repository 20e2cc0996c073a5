"""Run a sample of one-line mutants against the fast tests, to measure what the tests notice.

    python scripts/mutants.py [--seed 0] [--rooms interlock replay]
        [--json benchmarks/results/mutants.json]

mutmut (https://mutmut.readthedocs.io) makes the mutants and runs them. It collects the tests of a
room once and forks for each mutant. In the fork the tests that call the mutated function run,
quickest first, until one fails. This script draws the sample and prints the outcome. It works on a
copy of the files in the working tree that git does not ignore. Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from rlinf_core.core.errors import RlinfError  # noqa: E402
from rlinf_core.core.ros import ros_environment  # noqa: E402

EXPLAINED = ROOT / "tests/mutants_explained.toml"
CAUGHT, MISSED = {"killed", "timeout", "segfault"}, {"survived", "no tests"}
MUTMUT_ERROR_CODE = 255  # mutmut reports its own errors as timeouts


@dataclass(frozen=True)
class Room:
    """Sources that are mutated, and the fast tests that should notice.

    Attributes:
        sources: folders and modules.
        tests: arguments of pytest.
        deselected: arguments of pytest that leave out tests with many seconds of learning.
        warm: modules that tests import at run time. They are imported once, before the forks.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    deselected: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()


SLOW_LEARNING = (
    "--ignore=tests/algorithms/test_learning.py",
    *(
        f"--deselect=tests/algorithms/test_mixed_precision.py::test_{name}"
        for name in (
            "it_learns_in_bfloat16",
            "traced_losses_are_those_of_eager_ones",
            "a_machine_that_cannot_compile_is_refused_in_words",
        )
    ),
    "--ignore=tests/algorithms/test_learning_under_interlock.py",
    "--deselect=tests/algorithms/test_rlpd.py::test_random_fails_cloning_helps_and_rlpd_succeeds",
    "--deselect=tests/policies/test_images.py::test_it_learns_where_the_square_is_and_stays_so_in_its_file",
    "--deselect=tests/algorithms/test_off_policy.py"
    "::test_flow_matching_carries_noise_to_both_of_two_demonstrated_actions",
    *(
        f"--deselect=tests/policies/test_{name}"
        for name in (
            "latent_noise.py::test_dsrl_raises_what_pays_and_the_model_stays_as_it_is",
            "groot_n1_7.py::test_by_cloning_it_follows_sentences_and_a_frozen_model_stays",
            "pi0.py::test_by_cloning_it_learns_to_do_as_it_is_told",
            "pi0_fast.py::test_grpo_learns_a_bandit",
        )
    ),
)
# In mutmut's first run each process reads mutmut's settings in its working folder. The server of
# this test works in a folder without settings.
NEEDS_NO_SETTINGS = (
    "--deselect=tests/policies/test_policy_kinds.py"
    "::test_rlinf_serve_serves_an_own_kind_with_its_recipe",
)
OPTIMISER, ADAPTERS = "torch._dynamo", "peft"
# mutmut needs a package in the folder that it is imported from: src/<package>
NODES = re.compile(r"ros_ws/src/(rlinf_\w+)/\1\b")
NODE_TESTS = (
    "arm_requests",
    "arming",
    "conversions",
    "device",
    "director",
    "first_motion_checks",
    "override_of",
    "page_requests",
    "human_operator",
    "timer_phase",
    "timers_at_a_clock_change",
    "phase_timers",
    "policy_tracker",
    "station_state",
)
# Nodes that consist mostly of publishers, subscriptions and timers (camera, environment, franka,
# recorder, uplink, ...), the drill and the doctor are left out: their tests start processes and
# wait for DDS, seconds for each mutant. The interlock's nodes are left out because they fork and
# end processes within mutmut's.
NODE_MODULES = {
    "rlinf_ros": ("conversions", "station_state", "timer_phase"),
    "rlinf_drivers": ("device",),
    "rlinf_station": ("director", "director_status", "episodes"),
    "rlinf_operator": ("page_requests", "human_operator"),
    "rlinf_tools": ("arming", "first_motion"),
}
ROOMS = {
    "interlock": Room(
        ("rlinf_core/interlock",),
        ("tests/interlock",),
        (
            "--deselect=tests/interlock/test_fuzz.py::test_the_model_catches_a_changed_line",
            "--deselect=tests/interlock/test_fuzz.py"
            "::test_a_violation_names_the_seed_that_replays_it",
        ),
    ),  # these tests change lines themselves
    "episodes": Room(
        ("rlinf_core/episodes", "rlinf_core/core/atomic_io.py"),
        (
            "tests/episodes",
            "tests/deploy/bridge",
            "tests/core/test_atomic_io.py",
            "tests/data/test_bags_odd.py",
        ),
    ),
    "bridge": Room(("rlinf_core/deploy/bridge",), ("tests/deploy/bridge",)),
    "replay": Room(
        ("rlinf_core/data/replay.py",),
        ("tests/data/test_buffer.py", "tests/algorithms/test_off_policy.py"),
        SLOW_LEARNING,
        (OPTIMISER,),
    ),
    "trainer": Room(
        ("rlinf_core/trainer", "rlinf_core/rollouts"),
        (
            "tests/trainer",
            "tests/rollouts",
            "tests/worlds/test_worlds.py",
            "tests/policies/test_residual.py",
            "tests/agentic/test_text_run.py",
            "tests/agentic/test_action_engine.py",
            "tests/agentic/test_coder.py",
        ),
        (
            "--ignore=tests/trainer/distributed",
            "--ignore=tests/trainer/test_placed.py",
            *(
                f"--deselect=tests/agentic/test_text_run.py::test_{name}"
                for name in (
                    "every_algorithm_trains_on_conversations",
                    "a_run_that_goes_on_is_the_run_that_was_not_interrupted",
                    "a_killed_run_goes_on",
                )
            ),
            *(
                f"--deselect=tests/agentic/test_action_engine.py::test_{name}"
                for name in (
                    "log_probabilities_are_the_trainers_after_each_of_5_updates",
                    "grpo_learns_two_marks_from_what_the_engine_draws",
                    "what_a_server_cannot_draw_is_refused_first",
                )
            ),
            "--deselect=tests/agentic/test_coder.py"
            "::test_a_run_learns_from_an_editor_and_goes_on_behind_its_feedback",
            "-k=not workers",
        ),
        (OPTIMISER,),
    ),  # these tests start Ray, for half a minute
    "algorithms": Room(
        ("rlinf_core/algorithms",),
        (
            "tests/algorithms",
            "tests/policies/test_residual.py",
            "tests/policies/test_gradient_checkpointing.py",
            "tests/specs/test_embodiments.py",
            "tests/agentic/test_losses.py",
        ),
        SLOW_LEARNING,
        (OPTIMISER, ADAPTERS),
    ),
    "policies": Room(
        ("rlinf_core/policies",),
        (
            "tests/policies",
            "tests/algorithms/test_lora.py",
            "tests/specs/test_embodiments.py",
            "tests/agentic/test_language.py",
            "tests/agentic/test_tokenizer.py",
        ),
        (*SLOW_LEARNING, *NEEDS_NO_SETTINGS),
        (OPTIMISER,),
    ),
    "data": Room(("rlinf_core/data",), ("tests/data",)),
    "settings": Room(
        ("rlinf_core/config", "rlinf_core/recipes"),
        (
            "tests/config",
            "tests/recipes",
            "tests/specs/test_embodiments.py",
            "tests/robots/test_several_arms.py",
            "tests/launch/test_station_parameters.py",
        ),
    ),
    "rewards": Room(
        ("rlinf_core/tasks/rewards",),
        ("tests/tasks", "tests/sim_bridges/test_tasks.py"),
        (
            "--deselect=tests/sim_bridges/test_tasks.py"
            "::test_the_script_does_what_the_simulator_calls_done",
        ),
    ),
    "serving": Room(
        ("rlinf_core/deploy/serving",),
        ("tests/deploy/serving",),
        ("--ignore=tests/deploy/serving/test_floods.py",),
    ),  # this test measures for a minute
    "page": Room(("rlinf_core/page",), ("tests/page",)),
    "launching": Room(
        ("rlinf_core/launch",),
        (
            "tests/launch",
            "tests/cli/test_fleet_up.py",
            "tests/cli/test_launch_arguments.py",
            "tests/data/test_demonstrations.py",
            "tests/machine/test_shared_memory.py",
            "tests/page/test_controls.py",
            "tests/robots/operators/test_home.py",
            "tests/robots/test_several_arms.py",
            "tests/test_views.py",
        ),
        ("-m=not slow and not ros",),
    ),
    "nodes": Room(
        tuple(
            f"ros_ws/src/{package}/{package}/{name}.py"
            for package, names in NODE_MODULES.items()
            for name in names
        ),
        (
            *(f"tests/ros/test_{name}.py" for name in NODE_TESTS),
            "tests/interlock/test_wire.py",
            "tests/specs/test_interface.py",
        ),
        ("-m=not slow and not ros",),
    ),
}


@dataclass
class Mutant:
    """One changed line.

    Attributes:
        name: mutmut's name.
        room, file: place of the line.
        status: outcome: killed, timeout, segfault, survived, no tests, explained.
        function, line, diff: place and change; only for mutants that no test caught.
        why: reason why no test can notice the change.
    """

    name: str
    room: str
    file: str
    status: str = ""
    function: str = ""
    line: int = 0
    diff: str = ""
    why: str = ""


def count_status(mutants: list[Mutant], *statuses: str) -> int:
    """Return the number of mutants with one of these statuses."""
    return sum(mutant.status in statuses for mutant in mutants)


def score(mutants: list[Mutant]) -> float:
    """Return the share [%] of caught mutants, without explained ones."""
    return 100.0 * count_status(mutants, *CAUGHT) / max(count_status(mutants, *CAUGHT, *MISSED), 1)


def main() -> int:
    """Draw and run the mutants and print the result.

    Returns 1 if a bar is missed, and 2 if there is nothing to run.
    """
    if sys.version_info < (3, 11):
        sys.exit(
            f"mutants: expected Python 3.11 or newer, got {sys.version.split()[0]}. Make .venv "
            f"with one that is"
        )
    args = _parser().parse_args()
    started = time.monotonic()
    earlier = json.loads(args.beside.read_text()) if args.beside else None
    mutants: list[Mutant] = []
    sample = draw_sample(args)
    if not sample:
        where = (
            f"{args.again}, of modules that are still there"
            if args.again
            else f"modules with '{args.only}' in their path"
        )
        print(
            f"mutants: expected some in {where}, in the rooms {', '.join(args.rooms)}; there are "
            f"none",
            file=sys.stderr,
        )
        return 2
    with contextlib.ExitStack() as stack:
        work = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants")))
        for room, chosen in sample.items():
            mutants += run_mutants(work / room, room, chosen, args.workers)
            mark_explained(mutants)
            result = summary(mutants, args.seed, time.monotonic() - started)
            result = merge_results(earlier, result) if earlier else result
            if args.json:  # written after every room, so that a later error does not lose it
                args.json.write_text(json.dumps(result, indent=1) + "\n")
    print_report(mutants, result)
    return int(
        result["score"] < args.bar
        or "interlock_mutants" in result
        and result["interlock_score"] < args.interlock_bar
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument(
        "--again", type=Path, help="file with the survivors of an earlier run on the same sources"
    )
    parser.add_argument("--interlock", type=int, default=220, help="mutants of the interlock")
    parser.add_argument(
        "--elsewhere", type=int, default=330, help="mutants of all other rooms together"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--interlock-bar",
        type=float,
        default=99.0,
        help="least score of the interlock, in per cent",
    )
    parser.add_argument("--bar", type=float, default=95.0, help="least score of all, in per cent")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--beside",
        type=Path,
        help="result file of an earlier run with the same seed, for rooms that are not run now",
    )
    parser.add_argument("--keep", type=Path, help="folder in which to leave mutmut's work")
    return parser


def draw_sample(args: argparse.Namespace) -> dict[str, list[Mutant]]:
    """Return the sample by room, in proportion to the possible mutants of each module."""
    if args.again:
        listed = [
            entry
            for entry in json.loads(args.again.read_text())["listed"]
            if (ROOT / entry["file"]).exists()
        ]
        still = [
            mutant
            for entry in listed
            for mutant in mutants_of(entry["room"], entry["file"])
            if mutant.name == entry["name"]
        ]
        again = {room: [mutant for mutant in still if mutant.room == room] for room in args.rooms}
        return {room: mutants for room, mutants in again.items() if mutants}
    groups = [
        (args.interlock, [room for room in args.rooms if room == "interlock"]),
        (args.elsewhere, [room for room in args.rooms if room != "interlock"]),
    ]
    sample: dict[str, list[Mutant]] = {}
    for count, rooms in groups:
        modules = {
            (room, path): mutants_of(room, path)
            for room in rooms
            for path in modules_of(room)
            if args.only in path
        }
        for (room, path), number in proportional(
            {key: len(all_) for key, all_ in modules.items()}, count
        ).items():
            chosen = random.Random(f"{args.seed} {path}").sample(modules[room, path], number)
            sample.setdefault(room, []).extend(chosen)
    return {room: mutants for room, mutants in sample.items() if mutants}


def modules_of(room: str) -> list[str]:
    """Return the paths of a room's modules.

    Generated modules are left out, and those on Ray, whose tests take half a minute each.
    """
    folders = [ROOT / source for source in ROOMS[room].sources]
    paths = [
        path
        for folder in folders
        for path in ([folder] if folder.is_file() else sorted(folder.rglob("*.py")))
    ]
    return [
        str(path.relative_to(ROOT))
        for path in paths
        if "_pb2" not in path.name and "distributed" not in path.parts
    ]


def mutants_of(room: str, path: str) -> list[Mutant]:
    """Return all mutants that mutmut makes of a module, without equivalent ones."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    with contextlib.chdir(ROOT):
        mutated = mutate_file_contents(path, Path(path).read_text())
    bodies = functions_by_name(mutated.code)
    return [
        Mutant(get_mutant_name(Path(mutmut_path(path)), name), room, path)
        for name in mutated.mutant_names
        if not is_rewording(
            original := bodies[name.partition("__mutmut_")[0] + "__mutmut_orig"], bodies[name]
        )
        and not differs_in_strict_only(original, bodies[name])
    ]


def functions_by_name(code: str) -> dict[str, ast.AST]:
    """Return functions and methods by name; the names that mutmut gives are unique in a module."""
    return {
        node.name: node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name
    }


def is_rewording(original: ast.AST, mutant: ast.AST) -> bool:
    """Return whether only the letters of a sentence differ.

    A sentence is a string with a blank in it. Tests must not compare it.
    """
    pairs = zip(ast.walk(original), ast.walk(mutant), strict=False)
    for old, new in pairs:
        if type(old) is not type(new):
            return False
        if isinstance(old, ast.Constant) and old.value != new.value:
            return (
                isinstance(old.value, str)
                and isinstance(new.value, str)
                and " " in old.value.strip()
                # mutmut changes only one of adjacent strings
                and old.value.lower() in (new.value.lower(), new.value.lower().replace("xx", ""))
            )
    return False


def differs_in_strict_only(original: ast.AST, mutant: ast.AST) -> bool:
    """Return whether only zip's ``strict`` differs. No input makes those lengths unequal."""
    return _without_strict(original) == _without_strict(mutant)


def _without_strict(function: ast.AST) -> str:
    function = copy.deepcopy(function)
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.name = ""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "strict"]
    return ast.dump(function)


def mutmut_path(path: str) -> str:
    """Return the path of a source in mutmut's folder."""
    return NODES.sub(r"src/\1", path)


def proportional(sizes: dict, number: int) -> dict:
    """Divide ``number`` in proportion to the sizes (largest remainders).

    No part exceeds its size.
    """
    number = min(number, sum(sizes.values()))
    exact = {key: number * size / sum(sizes.values()) for key, size in sizes.items() if size}
    floors = {key: int(fraction) for key, fraction in exact.items()}
    for key in sorted(exact, key=lambda key: floors[key] - exact[key])[
        : number - sum(floors.values())
    ]:
        floors[key] += 1
    return floors


def run_mutants(work: Path, room: str, mutants: list[Mutant], workers: int) -> list[Mutant]:
    """Run a room's mutants in ``work`` and set the status of each."""
    prepare_folder(work, ROOMS[room])
    print(f"{room}: {len(mutants)} mutants", file=sys.stderr, flush=True)
    mutmut = Path(sys.executable).with_name("mutmut")
    command = [mutmut, "run", "--max-children", str(workers), *(mutant.name for mutant in mutants)]
    done = subprocess.run(
        command,
        cwd=work,
        env=test_environment(work),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RlinfError(
            f"mutmut: expected it to run the mutants of {room}, it ended with {done.returncode}. "
            "The tests must pass on the unchanged code; it said:\n"
            f"{_without_spinner(done.stdout)[-4000:]}"
        )
    with contextlib.chdir(work):
        for mutant in mutants:
            _set_status(mutant)
    return mutants


def _without_spinner(printed: str) -> str:
    return "\n".join(
        line for line in re.split(r"[\r\n]+", printed) if not re.match("[\u2800-\u28ff] ", line)
    )


def _set_status(mutant: Mutant) -> None:
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    data = SourceFileMutationData(path=mutmut_path(mutant.file))
    data.load()
    code = data.exit_code_by_key[mutant.name]
    mutant.status = status_by_exit_code[code]
    if mutant.status not in CAUGHT | MISSED or code == MUTMUT_ERROR_CODE:
        raise RlinfError(
            f"{mutant.name}: expected it caught or missed, got '{mutant.status}' (exit code "
            f"{code}). Run it by itself: mutmut run in {Path.cwd()} (see --keep)"
        )
    if mutant.status in MISSED:
        diff = get_diff_for_mutant(mutant.name, path=mutmut_path(mutant.file))
        mutant.function, mutant.line, mutant.diff = _locate(mutant, diff)


def _locate(mutant: Mutant, diff: str) -> tuple[str, int, str]:
    """Return function, line and the changed lines of a diff.

    The diff counts lines from the first line of the function.
    """
    *classes, function = re.split(
        "ǁ", mutant.name.rpartition(".")[2].partition("__mutmut_")[0].removeprefix("x_")
    )
    start = next(
        line
        for name, line in functions((ROOT / mutant.file).read_text())
        if name == [*classes[1:], function]
    )
    lines = diff.splitlines()[2:]
    first = int(re.match(r"@@ -(\d+)", lines[0]).group(1))
    before = next(index for index, line in enumerate(lines[1:]) if line.startswith(("-", "+")))
    changed = [line[0] + " " + line[1:].strip() for line in lines if line.startswith(("-", "+"))]
    return ".".join([*classes[1:], function]), start + first - 1 + before, "\n".join(changed)


def functions(source: str) -> Iterator[tuple[list[str], int]]:
    """Yield name (class first) and first line of every function and method."""
    for node in ast.parse(source).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield [*([node.name] if inner is not node else []), inner.name], inner.lineno


def prepare_folder(work: Path, room: Room) -> None:
    """Copy the files that the tests need, and write mutmut's settings."""
    names = (
        subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        .stdout.strip("\0")
        .split("\0")
    )
    for name in names:
        if (ROOT / name).is_file():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, work / name)
    # created first, because a Python with it in its path caches its absence
    (work / "mutants").mkdir(exist_ok=True)
    messages = ROOT / "ros_ws/install"
    if messages.exists():  # built and not in git; processes of tests search it here
        (work / "ros_ws/install").symlink_to(messages.resolve())
    package = mutmut_path(room.sources[0]).split("/")[0]
    if package == "src":
        for name in NODE_MODULES:
            shutil.copytree(work / f"ros_ws/src/{name}/{name}", work / f"src/{name}")
    top = sorted({name.split("/")[0] for name in names} - {package, "pyproject.toml", "tests"})
    patterns = [
        f"{source}/*" if not source.endswith(".py") else source
        for source in map(mutmut_path, room.sources)
    ]
    settings = {
        "only_mutate": patterns,
        "also_copy": top,
        "pytest_add_cli_args_test_selection": list(room.tests),
        "pytest_add_cli_args": [
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *room.deselected,
            *(word for plugin in ("scripts.quickest_first", *room.warm) for word in ("-p", plugin)),
        ],
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    text = re.sub(
        r"(?m)^(\[tool\.mutmut\].*\n)source_paths.*\n",
        rf'\1source_paths = ["{package}"]\n{lines}',
        (ROOT / "pyproject.toml").read_text(),
    )
    # the second one is for processes that tests start: mutmut reads it there, too
    for folder in (work, work / "mutants"):
        (folder / "pyproject.toml").write_text(text)


def test_environment(work: Path) -> dict[str, str]:
    """Return the environment of a station's processes, with the code in mutmut's folder."""
    env = ros_environment(77)
    paths = [
        path.replace(str(ROOT), str(work / "mutants"), 1) if "/install/" not in path else path
        for path in env.get("PYTHONPATH", "").split(":")
    ]
    return env | {
        "PYTHONPATH": ":".join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


def mark_explained(mutants: Iterable[Mutant]) -> None:
    """Mark the mutants that tests/mutants_explained.toml lists as equivalent to the original."""
    import tomllib

    entries = tomllib.loads(EXPLAINED.read_text()).get("mutant", []) if EXPLAINED.exists() else []
    reasons = {
        (entry["file"], entry["function"], entry["diff"].strip()): entry["why"] for entry in entries
    }
    for mutant in mutants:
        why = reasons.get((mutant.file, mutant.function, mutant.diff))
        if mutant.status in MISSED and why:
            mutant.status, mutant.why = "explained", why


def summary(mutants: list[Mutant], seed: int, seconds: float) -> dict:
    """Return flat figures, in total and for each room, and the survivors."""
    figures: dict = {"seed": seed, "seconds": round(seconds)}
    for room in dict.fromkeys(mutant.room for mutant in mutants):
        some = [mutant for mutant in mutants if mutant.room == room]
        figures |= {
            f"{room}_mutants": len(some),
            f"{room}_caught": count_status(some, *CAUGHT),
            f"{room}_missed": count_status(some, *MISSED),
            f"{room}_explained": count_status(some, "explained"),
        }
    figures["listed"] = [
        asdict(mutant) for mutant in mutants if mutant.status in MISSED | {"explained"}
    ]
    return add_scores(figures)


def merge_results(before: dict, now: dict) -> dict:
    """Return the figures of two runs with one seed; rooms of the second run replace the first's.

    Raises:
        RlinfError: the seeds differ.
    """
    if before["seed"] != now["seed"]:
        raise RlinfError(
            f"--beside: expected a run of seed {now['seed']}, got one of seed {before['seed']}"
        )
    rooms = [room for room in ROOMS if f"{room}_mutants" in now]
    other_rooms = {
        key: value
        for key, value in before.items()
        if key.partition("_")[0] in set(ROOMS) - set(rooms) and key != "interlock_score"
    }
    listed = [entry for entry in before["listed"] if entry["room"] not in rooms] + now["listed"]
    return add_scores(
        other_rooms | now | {"listed": listed, "seconds": before["seconds"] + now["seconds"]}
    )


def add_scores(figures: dict) -> dict:
    """Return the figures with scores that are computed from the rooms, the scores first."""

    def of(what: str, rooms: Iterable[str] = ROOMS) -> int:
        return sum(figures.get(f"{room}_{what}", 0) for room in rooms)

    def fraction(rooms: Iterable[str]) -> float:
        return round(
            100.0 * of("caught", rooms) / max(of("caught", rooms) + of("missed", rooms), 1), 2
        )

    scores = {
        "score": fraction(ROOMS),
        "interlock_score": fraction(["interlock"]),
        "mutants": of("mutants"),
        "survivors": of("missed"),
        "explained": of("explained"),
    }
    rest = {key: value for key, value in figures.items() if key not in scores and key != "listed"}
    return scores | rest | {"listed": figures["listed"]}


def print_report(mutants: list[Mutant], result: dict) -> None:
    """Print the table, and the mutants that no test caught."""
    print(
        f"{'room':12} {'mutants':>8} {'caught':>7} {'(time)':>7} {'missed':>7} {'explained':>10} "
        f"{'score':>7}"
    )
    for room in [*dict.fromkeys(mutant.room for mutant in mutants), "all"]:
        some = [mutant for mutant in mutants if room in (mutant.room, "all")]
        caught, timeouts = count_status(some, *CAUGHT), count_status(some, "timeout")
        missed, explained = count_status(some, *MISSED), count_status(some, "explained")
        print(
            f"{room:12} {len(some):8} {caught:7} {timeouts:7} {missed:7} {explained:10} "
            f"{score(some):6.1f} %"
        )
    for status in ("explained", *sorted(MISSED)):
        for mutant in (mutant for mutant in mutants if mutant.status == status):
            print(
                "\n"
                f"{mutant.file}:{mutant.line} {mutant.function} "
                f"({status}{': ' + mutant.why if mutant.why else ''})\n"
                f"{mutant.diff}"
            )
    print(
        f"\n{len(mutants)} mutants (seed {result['seed']}) in {result['seconds']} s, "
        f"{result['explained']} explained"
    )


if __name__ == "__main__":
    sys.exit(main())
