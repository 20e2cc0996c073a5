"""Find a part by name: ours, an entry point, ``package.module:name`` or ``file.py:name``.

Entry points stand in the groups ``rlinf.robots``, ``rlinf.tasks``, ``rlinf.rewards``,
``rlinf.scripts``, ``rlinf.simulators``, ``rlinf.algorithms``, ``rlinf.policies``,
``rlinf.operators``, ``rlinf.drivers``, ``rlinf.cameras`` and ``rlinf.grippers``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rlinf_core.core.errors import RecipeError, RlinfError, harmless_lines, nearest
from rlinf_core.core.paths import expand_user

Part = TypeVar("Part")


def installed_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages in ``rlinf.<group>``, by name."""
    return {point.name: point for point in entry_points(group=f"rlinf.{group}")}


def valid_names(group: str, builtin: Iterable[str]) -> list[str]:
    """Return every name that ``find`` knows."""
    return sorted({*builtin, *installed_entry_points(group)})


def find(group: str, name: str, builtin: Mapping[str, str], where: str) -> Any:
    """Return the part called ``name``.

    Args:
        group: group of entry points, without ``rlinf.``.
        name: the name in the config.
        builtin: names of the parts that come with rlinf, and their places: ``module`` or
            ``module:attribute``.
        where: place of the name, for errors.

    Raises:
        RecipeError: there is none (the message suggests the nearest name), or it cannot be
            imported, with the reason.
    """
    reference = builtin.get(name, "")
    if not reference and name in installed_entry_points(group):
        reference = installed_entry_points(group)[name].value
    if not reference and (":" in name or "." in name or name.endswith(".py")):
        reference = name
    if not reference:
        allowed = valid_names(group, builtin)
        raise RecipeError(
            f"{where}: expected one of {', '.join(allowed)}, or package.module:name, or "
            f"file.py:name; got '{name}'{nearest(name, allowed)}"
        )
    place, _, attribute = reference.partition(":")
    if not place or (place.startswith(".") and not place.endswith(".py")):
        raise RecipeError(
            f"{where}: expected a name, package.module:name, or file.py:name, got '{name}'"
        )
    module = _module(place, f"{where}: '{name}'")
    if not attribute:
        return module
    with _importing(f"{where}: '{name}'"):
        part = getattr(module, attribute, None)  # a module may import it only now
    if part is None:
        allowed = [key for key in vars(module) if not key.startswith("_")]
        raise RecipeError(
            f"{where}: '{name}': {place} has no '{attribute}'{nearest(attribute, allowed)}"
        )
    return part


def with_absolute_path(name: str) -> str:
    """Return ``name`` with an absolute path in ``file.py:name``, for other processes."""
    place, colon, attribute = name.partition(":")
    if not place.endswith(".py"):
        return name
    return f"{Path(place).expanduser().resolve()}{colon}{attribute}"


def module_places(package: str, file: str) -> dict[str, str]:
    """Return the names and places of a package's parts, one per file beside ``file``."""
    return {path.stem: f"{package}.{path.stem}" for path in Path(file).parent.glob("[a-z]*.py")}


def find_class(
    group: str, name: str, builtin: Mapping[str, str], attribute: str, base: type[Part], where: str
) -> type[Part]:
    """Return the class called ``name``, or its module's ``attribute``.

    Raises:
        RecipeError: the class does not extend ``base``, or ``find`` fails.
    """
    part = find(group, name, builtin, where)
    with _importing(f"{where}: '{name}'"):
        kind = getattr(part, attribute, None) if isinstance(part, ModuleType) else part
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise RecipeError(
            f"{where}: '{name}': expected a class that extends {base.__module__}.{base.__name__}, "
            f"got {kind}"
        )
    return kind


def find_path(group: str, name: str, builtin: Mapping[str, Path], where: str) -> Path:
    """Return the file or folder called ``name``.

    A name is a path, one of ``builtin``, an entry point, or ``package.module:PATH``. A reference to
    a module alone means its folder. The arguments are those of ``find``.
    """
    path = expand_user(name, where) if "/" in name or name in (".", "..") else builtin.get(name)
    if path is not None and path.exists():
        return path.resolve()
    if name in installed_entry_points(group) or ("/" not in name and ("." in name or ":" in name)):
        return _place_of(group, name, where)
    allowed = valid_names(group, builtin)
    hint = nearest(name, allowed) if path is None else f", and nothing is at {path.absolute()}"
    raise RecipeError(
        f"{where}: expected one of {', '.join(allowed)}, or a path; got '{name}'{hint}"
    )


def _place_of(group: str, name: str, where: str) -> Path:
    """Return the path in a reference, or the folder of its module."""
    try:
        part = find(group, name, {}, where)
    except RecipeError as error:
        # a file here is not a valid reference
        here = os.path.exists(name) and name not in installed_entry_points(group)
        raise RecipeError(
            f"{where}: expected a name or a path, got '{name}', which is a file here: write "
            f"./{name}"
            if here
            else str(error)
        ) from error
    path = getattr(part, "__file__", None) if isinstance(part, ModuleType) else part
    if not isinstance(path, str | os.PathLike):
        raise RecipeError(
            f"{where}: '{name}': expected a path (package.module:PATH) or a package with a folder, "
            f"got {part}"
        )
    return Path(path).resolve().parent if isinstance(part, ModuleType) else Path(path).resolve()


@contextmanager
def _importing(where: str) -> Iterator[None]:
    """Turn any error of a plugin's import into a RecipeError that names it.

    This includes SystemExit: a program that ends itself is not a plugin.
    """
    try:
        yield
    except (KeyboardInterrupt, RlinfError):
        raise
    except BaseException as error:
        raise RecipeError(
            f"{where}: expected an importable module, got {type(error).__name__}: "
            f"{harmless_lines(str(error))}{_line(error)}"
        ) from error


def _line(error: BaseException) -> str:
    """Return the innermost line of a traceback outside the import system."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _module(place: str, where: str) -> ModuleType:
    with _importing(where):
        if place.endswith(".py"):
            return _of_file(expand_user(place, where).resolve())
        return importlib.import_module(place)


def _of_file(path: Path) -> ModuleType:
    """Return the module of a file, imported once under a unique name."""
    name = f"rlinf_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def lazy_attributes(package: str, module: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that imports missing names from a module on access."""

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(f"{package}.{module}"), name)

    return attribute
