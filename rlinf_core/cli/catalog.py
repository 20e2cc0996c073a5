"""``rlinf recipes``, ``robots``, ``tasks``, ``simulators``, ``config`` and ``explain``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from rlinf_core.cli.output import print_table
from rlinf_core.core.error_codes import error_kinds
from rlinf_core.core.errors import RlinfError, nearest
from rlinf_core.core.paths import data_folder
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.recipes.loader import is_written_by_run, recipe_names, recipe_yaml
from rlinf_core.recipes.station import check_real_arm, embodiment_recipes
from rlinf_core.robots.config import load_robot, robot_folder, robots

SENTENCE = re.compile(r"(.+?\.)(\s|$)", re.S)


def list_command(kind: str) -> None:
    """Print all parts of a kind, one per line."""
    heads, rows, use = LISTS[kind]()
    print_table(heads, rows)
    print(f"\n{use}")


def config_command(name: str, overrides: list[str], check: bool) -> None:
    """Print a recipe as YAML, with all inherited keys and defaults."""
    recipe = load_recipe(name, overrides)
    if check:
        check_recipe(recipe)
        if not recipe.env:
            # which writes every default
            by_a_run = Path(name).is_file() and is_written_by_run(Path(name))
            in_lockstep = (
                recipe.station.lockstep
                and "lockstep" in recipe.station.model_fields_set
                and not by_a_run
            )
            for one in embodiment_recipes(recipe).values() or [recipe]:
                check_real_arm(one, in_lockstep)
    print(recipe_yaml(recipe).rstrip("\n"), flush=True)
    if check:
        print(f"ok: robot, task and recipe of {name} fit together", file=sys.stderr)


def first_comment(path: Path) -> str:
    """Return the first sentence of a YAML file's top comment, without its schema line."""
    comment: list[str] = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if "yaml-language-server" not in line:
            comment.append(line.lstrip("# "))
    return first_sentence(" ".join(comment))


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop."""
    match = SENTENCE.match(" ".join(text.split()))
    return match[1].rstrip(".") if match else text


def _recipes() -> tuple[list[str], list[list[str]], str]:
    folder = data_folder() / "configs"
    rows = [
        [name, load_recipe(name).algorithm.name, first_comment(folder / f"{name}.yaml")]
        for name in recipe_names()
    ]
    return (
        ["recipe", "algorithm", "what it does"],
        rows,
        (
            "rlinf demo RECIPE runs one through a whole station, rlinf train RECIPE in "
            "simulators\n"
            "or as the trainer of stations; rlinf config RECIPE prints it in full"
        ),
    )


def _robots() -> tuple[list[str], list[list[str]], str]:
    rows = []
    for name in robots():
        robot = load_robot(name)
        rows.append(
            [
                name,
                robot.simulator or robot.driver,
                first_comment(robot_folder(name) / "robot.yaml"),
            ]
        )
    return (
        ["robot", "simulator or driver", "what it is"],
        rows,
        (
            "station.robot=NAME in a recipe, or the path of a folder of your own "
            "(docs/tutorials/your_robot.md)"
        ),
    )


def _tasks() -> tuple[list[str], list[list[str]], str]:
    paths = sorted((data_folder() / "configs/tasks").glob("*.yaml"))
    return (
        ["task", "what is to be done"],
        [[path.stem, first_comment(path)] for path in paths],
        (
            "station.task=NAME in a recipe, or the path of a file of your own "
            "(docs/tutorials/your_task.md)"
        ),
    )


def _simulators() -> tuple[list[str], list[list[str]], str]:
    from sim_bridges.core.interface import simulator_class, simulators

    rows = []
    for name in simulators():
        module = sys.modules[simulator_class(name).__module__]
        rows.append([name, getattr(module, "INSTALL", ""), first_sentence(module.__doc__ or "")])
    return (
        ["simulator", "how to install it", "what it is"],
        rows,
        "rlinf check sim NAME tests whether one works here; rlinf robots lists their robots",
    )


LISTS: dict[str, Callable[[], tuple[list[str], list[list[str]], str]]] = {
    "recipes": _recipes,
    "robots": _robots,
    "tasks": _tasks,
    "simulators": _simulators,
}


def explain(code: str) -> None:
    """Print a kind of error, or the list of all without a code.

    Raises:
        RlinfError: there is no such code.
    """
    kinds = error_kinds()
    if not code:
        print_table(["code", "error"], [[kind.code, kind.title] for kind in kinds.values()])
        return
    name = f"RL-E{code.strip(' []').upper().removeprefix('RL-').removeprefix('E')}"
    if name not in kinds:
        raise RlinfError(
            f"explain: expected a code such as RL-E101, got '{code}'{nearest(name, kinds)}. rlinf "
            "explain lists all codes",
            code="RL-E110",
        )
    kind = kinds[name]
    print(
        f"{kind.code}: {kind.title}\n\nCause    {kind.cause}\nRemedy   {kind.remedy}\nExample  "
        f"{kind.example}"
    )
    if kind.usage:
        print("\nA command that ends with it has exit code 2.")
