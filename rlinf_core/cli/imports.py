"""``rlinf import rlinf``: a recipe from a YAML of RLinf.

``rlinf import-contract``: a robot and a task from a contract of Rosetta.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from rlinf_core.core.atomic_io import replace_text
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.outputs import empty_folder, new_file
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.recipes.from_rlinf import convert, text
from rlinf_core.robots.config import load_robot
from rlinf_core.robots.rosetta_contract import read_contract
from rlinf_core.tasks.task import load_task


def import_rlinf(config: Path, out: Path | None, robot: str, task: str) -> int:
    """Write the recipe, check it, and print the keys that have no counterpart."""
    if bool(robot) != bool(task):
        raise RecipeError("expected --robot and --task together, got one of them")
    recipe, unmapped = convert(config, {"robot": robot, "task": task} if robot else None)
    file = new_file(out or Path(f"{config.stem}.yaml"))
    content = text(recipe, unmapped, config)
    replace_text(file, content)
    try:
        check_recipe(load_recipe(str(file.resolve())))
    except RecipeError:
        file.rename(file.with_suffix(".yaml.refused"))
        raise
    print(content.rstrip("\n"))
    print(f"\n{file}: {len(unmapped)} keys have no counterpart (comments in the file)")
    print(f"next: rlinf config {file}, then rlinf train {file}")
    return 0


CONTRACT_HEAD = (
    "# Of a contract of Rosetta (iblnkn/rosetta), by rlinf import-contract. "
    "docs/robots/interface.md\n"
)


def import_contract(file: Path, out: Path | None) -> int:
    """Write robot.yaml, limits.yaml and task.yaml, and print the remaining steps."""
    contract = read_contract(file.read_text())
    folder = out or Path(contract.name)
    empty_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("robot.yaml", contract.robot), ("task.yaml", contract.task)):
        (folder / name).write_text(CONTRACT_HEAD + yaml.safe_dump(content, sort_keys=False))
    (folder / "limits.yaml").write_text(contract.limits)
    load_robot(str(folder.resolve()))
    load_task(folder / "task.yaml")
    print(f"{folder}: robot.yaml, limits.yaml, task.yaml")
    for note in contract.notes:
        print(f"  {note}")
    return 0
