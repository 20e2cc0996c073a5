"""The folder of a run: its recipe, which a resumed run must match, and the lock of its trainer."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.renames import with_current_keys
from rlinf_core.recipes import Recipe, recipe_yaml
from rlinf_core.recipes.loader import is_written_by_run
from rlinf_core.trainer.checkpoint import checkpoints

FIXED_KEYS = (
    "seed",
    "algorithm.name",
    "algorithm.group",
    "policy",
    "env",
    "embodiments",
    "station.robot",
    "station.task",
    "replay.capacity",
    "placement.replay_shards",
    "simulation.initial_policy",
    "world.run",
)
FILE, LOCK = "recipe.yaml", ".trainer.lock"


def write_recipe(recipe: Recipe, run_dir: Path, is_locked: bool = False) -> None:
    """Write the recipe into the folder.

    Raises:
        RecipeError: the folder holds a run of another recipe, or a recipe that a person wrote.
    """
    check_same_recipe(recipe, run_dir, is_locked)
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(run_dir / FILE, lambda temporary: temporary.write_text(recipe_yaml(recipe)))


def check_same_recipe(recipe: Recipe, run_dir: Path, is_locked: bool = False) -> None:
    """Check that a recipe fits the run in a folder, in all keys that its results depend on.

    Args:
        recipe: recipe to check.
        run_dir: folder of the run.
        is_locked: whether this process holds the folder's lock; opening the lock file would
            release it.

    Raises:
        RecipeError: the run in the folder has another recipe, or there is no run and the folder's
            recipe was written by a person.
    """
    path = run_dir / FILE
    if not path.exists():
        return
    if not (checkpoints(run_dir / "checkpoints") or (not is_locked and _has_trainer(run_dir))):
        if not is_written_by_run(path):
            raise RecipeError(
                f"{path}: expected no file or one of a run, got another file, which the run would "
                "overwrite. Choose another --out, or rename the file"
            )
        return
    now = load_plain(recipe_yaml(recipe))
    try:
        before = with_current_keys(load_plain(path.read_text()))
        pairs = [(key, _setting(before, key), _setting(now, key)) for key in FIXED_KEYS]
    except (yaml.YAMLError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"{path}: expected the recipe of this run, got a damaged file: {error}. Correct it, or "
            "remove it to continue with the given recipe"
        ) from error
    for key, old, new in pairs:
        if (old or None) != (new or None):  # older recipes lack some keys
            expected, actual = (
                "none" if setting in ("", {}, None) else setting for setting in (old, new)
            )
            raise RecipeError(
                f"{key}: expected {expected}, the value of the run in {run_dir}, got {actual}. "
                "Choose another --out, or keep the value"
            )


def _setting(document: dict[str, Any], key: str) -> Any:
    """Return the value of a dotted key; an empty dict if the document lacks it."""
    value: Any = document
    for part in key.split("."):
        value = value.get(part, {})
    return value


@contextlib.contextmanager
def lock_folder(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run folder, since two trainers would overwrite each other's files.

    Child processes do not inherit the lock. A folder that was created here is removed again if the
    run is refused.

    Raises:
        RlinfError: another trainer uses the folder.
    """
    is_new = not run_dir.exists()
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as ending, open(run_dir / LOCK, "a") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RlinfError(
                f"{run_dir}: another trainer is using this folder. Stop it, or choose another --out"
            ) from error
        except OSError:  # a file system without locks
            pass
        if is_new:
            ending.callback(_remove_unused, run_dir)
        yield


def _remove_unused(run_dir: Path) -> None:
    """Remove a folder that holds only the lock file."""
    if [path.name for path in run_dir.iterdir()] == [LOCK]:
        (run_dir / LOCK).unlink()
        run_dir.rmdir()


def _has_trainer(run_dir: Path) -> bool:
    """Return whether another process holds the lock of a run folder."""
    try:
        with open(run_dir / LOCK, "r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or a file system without locks
        pass
    return False
