"""Load a Recipe from YAML and command-line overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlinf_core.config.checking import validate
from rlinf_core.config.overrides import apply_override
from rlinf_core.config.yaml_source import (
    Document,
    load_plain,
    read_document,
    resolve_file_reference,
)
from rlinf_core.core.errors import RecipeError, nearest
from rlinf_core.core.paths import data_folder
from rlinf_core.core.renames import current_key, with_current_keys
from rlinf_core.recipes.schema import ALGORITHM, Recipe

ALWAYS_WRITTEN = {
    "name",
    "seed",
    "station",
    "collect",
    "policy",
    "algorithm",
    "online",
    "evaluate",
    "bridge",
}


def load_recipe(name: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """Load a recipe by name (``configs/<name>.yaml``) or path.

    Args:
        name: the recipe.
        overrides: in Hydra's grammar (``rlinf_core.config.overrides``): ``key.sub=value``. An
            override with another algorithm drops the recipe's hyper-parameters, like a recipe based
            on another does.

    Raises:
        RecipeError: any fault: its place, the expected and the actual value, and the nearest known
            name.

    Example:
        >>> load_recipe("sim_sac", ["seed=3", "algorithm.discount=0.9"]).algorithm.discount
        0.9
    """
    document = _document_of(_path(name))
    # first the algorithm, because another one has other hyper-parameters
    algorithms = [text for text in overrides if text.lstrip("+").startswith("algorithm.name=")]
    for text in algorithms:
        before = _algorithm(document)
        apply_override(document, text)
        if _algorithm(document) != before:
            document.data["algorithm"] = {"name": document.data["algorithm"]["name"]}
    for text in overrides:
        if text not in algorithms:
            apply_override(document, text)
            _expand_placement(document)
    # absolute, because a run's own recipe.yaml must mean the same
    _resolve_paths(document, Path.cwd())
    return validate(Recipe, document)


def recipe_yaml(recipe: Recipe) -> str:
    """Return the complete recipe, defaults included, as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def is_written_by_run(path: Path) -> bool:
    """Return True if a run wrote this recipe (``recipe_yaml``) and no person has changed it."""
    try:
        document = load_plain(text := path.read_text())
        return (
            isinstance(document, dict)
            and document.keys() >= ALWAYS_WRITTEN
            and yaml.safe_dump(document, sort_keys=False) == text
        )
    except (yaml.YAMLError, ValueError, RecursionError):
        return False


def recipe_names() -> list[str]:
    """Return the names of all recipes that come with rlinf."""
    folder = data_folder() / "configs"
    paths = [
        path.relative_to(folder)
        for part in ("*.yaml", "simulators/*.yaml")
        for path in folder.glob(part)
    ]
    # such files list scenarios
    return sorted(str(path.with_suffix("")) for path in paths if not path.stem.startswith("drill"))


def _path(name: str | Path) -> Path:
    for path in (Path(name), data_folder() / "configs" / f"{name}.yaml"):
        if path.is_file():
            return path
    names = recipe_names()
    raise RecipeError(
        f"recipe '{name}': expected a file or one of {', '.join(names)}{nearest(str(name), names)}"
    )


def _document_of(path: Path, below: tuple[Path, ...] = ()) -> Document:
    """Return a file's values over those of the recipe that its ``defaults`` names."""
    if path.resolve() in below:
        raise RecipeError(f"recipe {path}: expected 'defaults' without a circle, got a circle")
    document = read_document(path, "recipe")
    _expand_placement(document)
    if document.data.keys() & {"collect", "policy"} and is_written_by_run(path):
        document.data = with_current_keys(document.data)
        document.places = {current_key(key): place for key, place in document.places.items()}
    _resolve_paths(document, path.parent)
    base = document.data.pop("defaults", None)
    if base is None:
        return document
    under = _document_of(_base_path(document, base, path.parent), (*below, path.resolve()))
    algorithm, base_algorithm = document.data.get("algorithm"), under.data.get("algorithm")
    if (
        isinstance(algorithm, dict)
        and isinstance(base_algorithm, dict)
        and _name(algorithm, base_algorithm) != _name(base_algorithm, {})
    ):
        under.forget(("algorithm",))  # another algorithm has other hyper-parameters
        del under.data["algorithm"]
    return document.over(under)


def _expand_placement(document: Document) -> None:
    """Expand ``placement: auto`` to a mapping, so that other keys can be added."""
    if document.data.get("placement") == "auto":
        document.data["placement"] = {"auto": True}


def _base_path(document: Document, base: Any, folder: Path) -> Path:
    """Return the recipe in ``defaults``: one beside the file, or a usual name."""
    where = document.place(("defaults",))
    if not isinstance(base, str):
        raise RecipeError(f"{where}: 'defaults': expected the name of one recipe, got {base!r}")
    sibling = folder / f"{base}.yaml"
    try:
        return sibling if sibling.is_file() else _path(base)
    except RecipeError as error:
        raise RecipeError(f"{where}: 'defaults': {error}") from error


def _resolve_paths(document: Document, folder: Path) -> None:
    """Resolve paths like ./ur5e relative to ``folder``.

    The folder is that of the file, or the working folder for an override.
    """
    robots: Any = document.data.get("embodiments")
    for section in (
        document.data.get("station"),
        *(robots.values() if isinstance(robots, dict) else ()),
    ):
        for part in ("robot", "task"):
            name = section.get(part) if isinstance(section, dict) else None
            if isinstance(name, str) and name.startswith(("./", "../")):
                section[part] = str((folder / name).resolve())
    for part in ("operator", "second_operator"):
        resolve_file_reference(document, ("station", part, "kind"), folder)
    resolve_file_reference(document, ("env",), folder, prefix="text:")
    resolve_file_reference(document, ("algorithm", "name"), folder)
    policy: Any = document.data.get("policy")
    resolve_file_reference(document, ("policy", "kind"), folder)
    for part in policy if isinstance(policy, dict) else ():
        resolve_file_reference(document, ("policy", part, "kind"), folder)


def _algorithm(document: Document) -> str:
    algorithm = document.data.get("algorithm")
    return _name(algorithm, {}) if isinstance(algorithm, dict) else ""


def _name(algorithm: dict[str, Any], under: dict[str, Any]) -> str:
    return str(algorithm.get("name", under.get("name", ALGORITHM.default)))
