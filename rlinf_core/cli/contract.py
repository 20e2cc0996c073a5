"""``rlinf import-contract``: convert a contract of Rosetta to a robot and a task."""

from __future__ import annotations

from pathlib import Path

import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.robots.config import load_robot
from rlinf_core.robots.contract import read_contract
from rlinf_core.tasks.task import load_task

HEAD = (
    "# Of a contract of Rosetta (iblnkn/rosetta), by rlinf import-contract. "
    "docs/robots/interface.md\n"
)


def import_contract(file: Path, out: Path | None) -> int:
    """Write robot.yaml, limits.yaml and task.yaml, and print the remaining steps."""
    contract = read_contract(file.read_text())
    folder = out or Path(contract.name)
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError(f"--out: expected a new or an empty folder, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("robot.yaml", contract.robot), ("task.yaml", contract.task)):
        (folder / name).write_text(HEAD + yaml.safe_dump(content, sort_keys=False))
    (folder / "limits.yaml").write_text(contract.limits)
    load_robot(str(folder.resolve()))
    load_task(folder / "task.yaml")
    print(f"{folder}: robot.yaml, limits.yaml, task.yaml")
    for note in contract.notes:
        print(f"  {note}")
    return 0
