"""``rlinf import rlinf``: a recipe from a YAML of RLinf."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.core.atomic_io import replace_text
from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.recipes.from_rlinf import convert, text


def import_rlinf(config: Path, out: Path | None, robot: str, task: str) -> int:
    """Write the recipe, check it, and print the keys that have no counterpart."""
    if bool(robot) != bool(task):
        raise RecipeError("expected --robot and --task together, got one of them")
    recipe, unmapped = convert(config, {"robot": robot, "task": task} if robot else None)
    file = out or Path(f"{config.stem}.yaml")
    if file.exists():
        raise RecipeError(f"--out: expected a new file, got {file}. Name another one: --out FILE")
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
