"""Write docs/reference/ from the code: commands, recipes, limits, tasks, messages.

Run it after a change of any of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import rlinf_core  # noqa: E402
from rlinf_core.algorithms import algorithm, algorithms  # noqa: E402
from rlinf_core.cli.parsers import make_parser  # noqa: E402
from rlinf_core.config import checking  # noqa: E402
from rlinf_core.config.base import Settings  # noqa: E402
from rlinf_core.core.error_codes import OTHER, error_kinds  # noqa: E402
from rlinf_core.interlock.limits import Limits  # noqa: E402
from rlinf_core.interlock.limits_file import schema as limits_schema  # noqa: E402
from rlinf_core.interlock.scenarios import FAULTS, Fault, Scenario, Scenarios  # noqa: E402
from rlinf_core.policies import kinds, policy_kind  # noqa: E402
from rlinf_core.recipes.loader import recipe_names  # noqa: E402
from rlinf_core.recipes.schema import Recipe  # noqa: E402
from rlinf_core.robots.calibration.hand_eye import HandEye  # noqa: E402
from rlinf_core.robots.cameras import camera, cameras  # noqa: E402
from rlinf_core.robots.config import Robot, robots  # noqa: E402
from rlinf_core.robots.drivers import driver, drivers  # noqa: E402
from rlinf_core.robots.grippers import gripper, grippers  # noqa: E402
from rlinf_core.robots.operators import OPERATOR, operators  # noqa: E402
from rlinf_core.specs.topics import SESSION, TOPICS, Topic  # noqa: E402
from rlinf_core.tasks.rewards import REWARD  # noqa: E402
from rlinf_core.tasks.scripts import SCRIPT  # noqa: E402
from rlinf_core.tasks.task import TaskFile  # noqa: E402
from sim_bridges.core.interface import options_of, simulators  # noqa: E402


def main() -> None:
    """Write the pages and the schemas."""
    for name, text in pages().items():
        (ROOT / f"docs/reference/{name}.md").write_text(text)
    for name, schema in schemas().items():
        (ROOT / f"docs/{name}.schema.json").write_text(json.dumps(schema, indent=1) + "\n")


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schemas for editors, by name."""
    recipe = checking.json_schema(Recipe, "Recipe")
    recipe["properties"] |= {
        "defaults": {
            "type": "string",
            "description": "the recipe that everything else is taken from",
        }
    }
    del recipe["required"]  # it may stand in that one
    robot = checking.json_schema(Robot, "Robot")
    robot["allOf"] = [
        {
            "if": {"properties": {"simulator": {"const": name}}, "required": ["simulator"]},
            "then": {"properties": {"options": options_of(name).model_json_schema()}},
        }
        for name in simulators()
    ]
    task = checking.json_schema(TaskFile, "Task")
    task["properties"] |= {
        "defaults": {
            "type": "string",
            "description": "the task beside it that all else is taken from",
        }
    }
    del task["required"]  # likewise
    drill = checking.json_schema(Scenarios)
    # the file holds the list of scenarios itself
    listed = {key: drill[key] for key in ("$schema", "$defs")} | drill["properties"]["scenarios"]
    schemas = {
        "limits": limits_schema(),
        "recipe": recipe,
        "robot": robot,
        "task": task,
        "scenarios": listed,
        "hand_eye": checking.json_schema(HandEye, "Hand-eye"),
    }
    return {name: _one_line(schema) for name, schema in schemas.items()}


def _one_line(schema: Any) -> Any:
    """Join the lines of each description: editors show line breaks."""
    if isinstance(schema, list):
        return [_one_line(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: re.sub(r"(?<!\n)\n(?!\n)", " ", value)
        if key == "description" and isinstance(value, str)
        else _one_line(value)
        for key, value in schema.items()
    }


def pages() -> dict[str, str]:
    """Return the Markdown of each page by name."""
    os.environ["COLUMNS"] = "100"  # argparse wraps to it
    contents = {
        "cli": _commands(),
        "recipe": _recipes(),
        "algorithms": _algorithms(),
        "policies": _policies(),
        "operators": _operators(),
        "robot": _robots(),
        "limits": _limits(),
        "task": _tasks(),
        "scenarios": _scenarios(),
        "topics": _topics(),
        "messages": _messages(),
        "errors": _errors(),
        "api": _python(),
    }
    note = ["", "`python scripts/reference.py` writes this page from the code; do not edit it."]
    listed = [f"* [{lines[0].removeprefix('# ')}]({name}.md)" for name, lines in contents.items()]
    contents["index"] = [
        "# Reference",
        "",
        *listed,
        "* [Evidence of the safety requirements](safety_evidence.md)",
        "",
    ]
    return {name: "\n".join([lines[0], *note, *lines[1:]]) for name, lines in contents.items()}


def _commands() -> list[str]:
    lines, parser = ["# Commands", ""], make_parser()
    actions = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    below = {f"rlinf {key}": value for key, value in actions.choices.items()}
    for name, command in {"rlinf": parser, **dict(_below(below))}.items():
        command.prog = name
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            command.print_help()
        lines += [f"## `{name}`", "", "```", text.getvalue().rstrip(), "```", ""]
    return lines


AREAS = {
    "0": "Errors of extensions",
    "1": "Settings and command lines",
    "2": "This machine",
    "3": "Policies and checkpoints",
    "4": "Recordings and data sets",
    "5": "Station and interlock",
    "6": "Fleet, bridge and policy server",
    "7": "Training",
    "8": "Language models and agents",
}


def _errors() -> list[str]:
    """Return every error code, below a heading of its area."""
    lines = [
        "# Errors",
        "",
        "Each error message ends with a code, as `[RL-E101]`. `rlinf explain RL-E101` prints the",
        "text of this page. A code never changes its meaning. `rlinf` ends with exit code 2 for "
        "wrong",
        "settings or usage, and with 1 for other errors.",
        "",
    ]
    area = ""
    for kind in error_kinds().values():
        if (digit := "0" if kind.code == OTHER else kind.code.removeprefix("RL-E")[0]) != area:
            area = digit
            lines += [f"## {AREAS[area]}", ""]
        lines += [
            f"### {kind.code}",
            "",
            f"{kind.title}.",
            "",
            f"* **Cause**: {kind.cause}",
            f"* **Remedy**: {kind.remedy}",
            *["* **Exit code**: 2"] * kind.usage,
            "",
            "```text",
            f"rlinf: {kind.example} [{kind.code}]",
            "```",
            "",
        ]
    return lines


def _below(
    commands: dict[str, argparse.ArgumentParser],
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield commands by name; a command with subcommands is replaced by these."""
    for name, command in commands.items():
        subparsers = next(
            (a for a in command._actions if isinstance(a, argparse._SubParsersAction)), None
        )
        yield from (
            _below({f"{name} {key}": value for key, value in subparsers.choices.items()})
            if subparsers
            else [(name, command)]
        )


def _recipes() -> list[str]:
    return [
        "# Recipe",
        "",
        "A recipe is a YAML file. `defaults: <name>` takes all other keys from another recipe. "
        "`--set key=value` overrides a key, in Hydra's grammar "
        "(`rlinf_core/config/overrides.py`). Editors read `docs/recipe.schema.json`.",
        "",
        f"Shipped recipes: {', '.join(f'`{name}`' for name in recipe_names())}.",
        "",
        *HEAD,
        *_rows(Recipe),
        "",
    ]


HEAD = ["| key | type | range | default | meaning |", "|---|---|---|---|---|"]


def _rows(kind: type[Settings], prefix: str = "") -> list[str]:
    return [
        f"| `{key}` | {type_} | {span} | "
        f"{f'`{default}`' if default not in ('', 'required') else default} | {meaning} |"
        for key, type_, span, default, meaning in checking.reference_rows(kind, prefix)
    ]


def _algorithms() -> list[str]:
    lines = ["# Algorithms", ""]
    for name in algorithms():
        config = algorithm(name).Config
        lines += [f"## `{name}`", "", *HEAD, *_rows(config, "algorithm."), ""]
    return lines


def _policies() -> list[str]:
    lines = ["# Policies", ""]
    for name in kinds():
        config = policy_kind(name).Config
        lines += [
            f"## `{name}`",
            "",
            inspect.getdoc(config) or "",
            "",
            *HEAD,
            *_rows(config, "policy."),
            "",
        ]
    return lines


def _limits() -> list[str]:
    rows = []
    for item in dataclasses.fields(Limits):
        low, high = item.metadata["range"]
        default = "required" if item.default is dataclasses.MISSING else f"`{item.default}`"
        between = f"{low} to {high}" if low != "" else ""
        rows.append(
            f"| `{item.name}` | {item.metadata['unit'] or '1'} | {between} | {default} | "
            f"{item.metadata['meaning']} |"
        )
    return [
        "# Limits",
        "",
        "The interlock reads `limits.yaml` beside `robot.yaml` at its start. Editors read "
        "`docs/limits.schema.json`.",
        "`extends: ../other/limits.yaml` takes the missing values from another file, which may not "
        "extend a third one.",
        "The `maximum.yaml` beside each of the two files bounds them. The hash covers all values "
        "in force.",
        "Each limit is a parameter `limits.<key>` of the interlock. It can be tightened at any "
        "time and loosened only",
        "while DISARMED.",
        "",
        "| key | unit | range | default | meaning |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]


def _operators() -> list[str]:
    lines = [
        "# Operators",
        "",
        "`station.operator` chooses the operator's device, `station.second_operator` a second one "
        "(docs/howto/teleop.md). Your own device is a class. `kind` names it as `file.py:Class`, "
        "`package.module:Class` or an entry point of the group `rlinf.operators`.",
        "",
    ]
    for name in operators():
        if rows := _rows(OPERATOR.model(name), "station.operator."):
            lines += [f"## `{name}`", "", *HEAD, *rows, ""]
    return lines


def _robots() -> list[str]:
    lines = [
        "# Robot",
        "",
        "A robot is a folder with `robot.yaml`, in `robots/`, in "
        "`sim_bridges/simulators/<simulator>/` or anywhere. Editors read `docs/robot.schema.json`.",
        "",
        f"Shipped robots: {', '.join(f'`{name}`' for name in robots())}.",
        "",
        *HEAD,
        *_rows(Robot),
        "",
        "## Options of the simulators",
        "",
        "Simulators without a table have no options.",
        "",
    ]
    for name in simulators():
        if rows := _rows(options_of(name), "options."):
            lines += [f"### `{name}`", "", *HEAD, *rows, ""]
    lines += ["## Options of the drivers' nodes", ""]
    for name in drivers():
        lines += [f"### `{name}`", "", *HEAD, *_rows(driver(name), "options."), ""]
    lines += [
        "## Cameras",
        "",
        "`cameras.<name>` is a mapping with `kind` (docs/robots/interface.md). `[height, width]` "
        "alone is a `topic`.",
        "",
    ]
    for name in cameras():
        lines += [f"### `{name}`", "", *HEAD, *_rows(camera(name), "cameras.<name>.")[1:], ""]
    lines += [
        "## Hand-eye file",
        "",
        "`hand_eye` in robot.yaml names the file. Editors read `docs/hand_eye.schema.json`.",
        "",
        *HEAD,
        *_rows(HandEye),
        "",
    ]
    lines += [
        "## Grippers",
        "",
        "`gripper` is a mapping with `kind` (docs/robots/interface.md). A robot with several arms "
        "has `arms.<name>.gripper`.",
        "",
    ]
    for name in grippers():
        lines += [f"### `{name}`", "", *HEAD, *_rows(gripper(name), "gripper.")[1:], ""]
    return lines


def _tasks() -> list[str]:
    page = (
        "A task is a YAML file, in `configs/tasks/` or anywhere. `defaults: <name>` takes all "
        "other keys from a task beside it or in `configs/tasks/`. Editors read "
        "`docs/task.schema.json`."
    )
    lines = ["# Task", "", page, "", *HEAD, *_rows(TaskFile), ""]
    for title, key, chosen in (("Rewards", "reward", REWARD), ("Scripts", "script", SCRIPT)):
        text = (
            f"Your own one is a class. `{key}.kind` names it as `file.py:Class`, "
            f"`package.module:Class` or an entry point of the group `rlinf.{key}s`. Its "
            "parameters are the arguments of its constructor."
        )
        lines += [f"## {title}", "", text, ""]
        for name in chosen.names():
            lines += [f"### `{name}`", "", *HEAD, *_rows(chosen.model(name), f"{key}."), ""]
    return lines


def _scenarios() -> list[str]:
    lines = [
        "# Scenarios",
        "",
        "A list of the faults of the safety drill, `configs/drill.yaml` or your own file "
        "(`rlinf drill --scenarios FILE`). Editors read `docs/scenarios.schema.json`.",
        "",
        *HEAD,
        *_rows(Scenario),
        "",
        "## Faults",
        "",
        "The key `inject` of a scenario, and the commands of the fault injector on the topic "
        "`inject`.",
        "",
        *HEAD,
        *_rows(Fault, "inject."),
        "",
    ]
    for name, kind in FAULTS.items():
        if rows := _rows(kind, "inject.")[2:]:
            lines += [f"### `{name}`", "", inspect.getdoc(kind) or "", "", *HEAD, *rows, ""]
    return lines


def _topics() -> list[str]:
    rows = [
        f"| `{row.name}` | {row.type.replace('/msg/', '/')} | {row.sender} → {row.listeners} | "
        f"{row.rate} | {_quality(row)} | {'yes' if row.per_arm else ''} | {_recorded(row)} | "
        f"{row.meaning} |"
        for row in TOPICS
    ]
    return [
        "# Topics",
        "",
        "Names are relative to the station's namespace. A station with several arms has the "
        "topics of an arm below the arm's name. Topics with `qos_overrides` follow ROS's "
        "parameters of that name (docs/robots/interface.md).",
        "",
        "| topic | type | from → to | rate | QoS | per arm | recorded | meaning |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _recorded(row: Topic) -> str:
    columns = (
        row.recorded,
        "time steps" if row.sampled else "",
        SESSION if row.session is not None else "",
    )
    return ", ".join(filter(None, columns))


def _quality(row: Topic) -> str:
    received = ". Subscribers have depth 1 and are best effort in real time" if row.newest else ""
    suffix = f". Fixed, since {row.fixed}" if row.fixed else ". `qos_overrides`"
    return (
        f"reliable{', transient local,' if row.latched else ''} with depth "
        f"{row.depth}{received}{suffix}"
    )


def _messages() -> list[str]:
    lines = ["# Messages", ""]
    for path in sorted((ROOT / "ros_ws/src/rlinf_msgs").glob("*/*.*")):
        if path.suffix in (".msg", ".srv", ".action"):
            lines += [
                f"# `rlinf_msgs/{path.parent.name}/{path.stem}`",
                "",
                "```",
                path.read_text().rstrip(),
                "```",
                "",
            ]
    return lines


PYTHON = """```python
import rlinf_core
from numpy import zeros

recipe = rlinf_core.load_recipe("sim_sac", ["seed=1"])
spec = rlinf_core.station_task(recipe).spec
policy = rlinf_core.make_policy(spec, recipe.policy)
path = rlinf_core.save_policy(policy, "policy.safetensors")

policy = rlinf_core.load_policy(path, spec)
observation = rlinf_core.Observation.from_arrays(spec, {"vectors": zeros((1, spec.vector_size))})
chunk = policy.act(observation, explore=False)  # actions (1, horizon, dimensions) in [-1, 1]
```"""


SETUP = """>>> from pathlib import Path
>>> import numpy as np
>>> from rlinf_core import *
>>> folder = Path("runs/examples")
>>> recipe = load_recipe("sim_sac")
>>> spec = station_task(recipe).spec
>>> policy = make_policy(spec, recipe.policy)
>>> observation = Observation.from_arrays(spec, {"vectors": np.zeros((2, spec.vector_size))})"""


def _example(name: str) -> list[str]:
    """Return the example in the docstring of a public name."""
    _, _, example = (inspect.getdoc(getattr(rlinf_core, name)) or "").partition("Example:\n")
    return [
        f"## `{name}`",
        "",
        "```pycon",
        *textwrap.dedent(example).strip().splitlines(),
        "```",
        "",
    ]


def _python() -> list[str]:
    summaries = {
        name: (inspect.getdoc(getattr(rlinf_core, name)) or "").splitlines()[0]
        for name in rlinf_core.PUBLIC
    }
    rows = [
        f"| `{name}` | `rlinf_core.{rlinf_core.PUBLIC[name]}` | {text} |"
        for name, text in summaries.items()
    ]
    return [
        "# Python",
        "",
        "`rlinf_core` exports these names and imports each at its first use. A station's PC then "
        "needs no torch for a recipe or an episode. All packages are typed (`py.typed`). Other "
        "names may change.",
        "",
        "| name | from | purpose |",
        "|---|---|---|",
        *rows,
        "",
        *PYTHON.splitlines(),
        "",
        "Each name has an example. Run them in the root of the repository, after these lines:",
        "",
        "```pycon",
        *SETUP.splitlines(),
        "```",
        "",
        *(line for name in rlinf_core.PUBLIC for line in _example(name)),
    ]


if __name__ == "__main__":
    main()
