"""The stable code of each kind of error, with its cause and remedy (error_codes.yaml)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import yaml

FILE = Path(__file__).with_suffix(".yaml")
OTHER = "RL-E100"  # code of a class or a module without a row


@dataclass(frozen=True)
class ErrorKind:
    """A kind of error.

    Attributes:
        code: its stable name, for example RL-E101.
        title: the failure in a few words.
        raised_in: modules, ``module:Class`` or a class alone; their errors are of this kind.
        cause: for a person.
        remedy: for a person.
        example: a message of this kind.
        usage: True if a setting or a command line is wrong.
    """

    code: str
    title: str
    raised_in: list[str]
    cause: str
    remedy: str
    example: str
    usage: bool = False


@functools.cache
def error_kinds() -> dict[str, ErrorKind]:
    """Return every kind by its code."""
    document = yaml.load(FILE.read_text(), yaml.CSafeLoader)
    return {code: ErrorKind(code, **fields) for code, fields in document.items()}


@functools.cache
def _rows() -> list[tuple[str, str, str]]:
    """Return (module or "", class or "", code) for each entry of ``raised_in``."""
    rows = []
    for kind in error_kinds().values():
        for entry in kind.raised_in:
            module, _, class_name = entry.partition(":")
            rows.append(
                ("", module, kind.code) if module[0].isupper() else (module, class_name, kind.code)
            )
    return rows


def code_by_place(classes: list[str], module: str) -> str | None:
    """Return the code of an error by its class and the module that raises it.

    It is None if no row covers them.

    A class alone wins, then ``module:Class`` with the error's own class, then the longest module.

    Args:
        classes: name of its class and of the classes above it, nearest first.
        module: dotted name of the module that raises it.
    """
    by_class = {name: code for place, name, code in _rows() if not place}
    for name in classes:
        if name in by_class:
            return by_class[name]
    matches = [
        (name == classes[0], len(place), bool(name), code)
        for place, name, code in _rows()
        if place and f"{module}.".startswith(f"{place}.") and (not name or name in classes)
    ]
    return max(matches)[-1] if matches else None


def modules_of(traceback: TracebackType | None) -> list[str]:
    """Return the dotted module of each frame of a traceback, the outermost first."""
    modules = []
    while traceback:
        names = traceback.tb_frame.f_globals
        spec = names.get("__spec__")
        modules.append(spec.name if spec else names.get("__name__") or "")
        traceback = traceback.tb_next
    return modules
