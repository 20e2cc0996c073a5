"""Policies: networks that map an observation to a chunk of actions, and their files.

``base`` holds the interface, ``settings`` the recipe's keys, ``serialization`` the policy files,
``chunking`` the timing on the robot. Each kind has one folder in ``small`` (networks of this
project), ``pretrained`` (published networks) or ``isolated`` (a process of their own), with its
``Config`` (without torch) and its ``Policy`` (with torch). A custom kind is a module with both
(``rlinf_core.core.plugins``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError, escape_ascii

if TYPE_CHECKING:
    from rlinf_core.policies.base import NetworkPolicy
    from rlinf_core.policies.settings import PolicySettings
    from rlinf_core.specs.arrays import StationSpec


_from_file = ContextVar("from_file", default=False)
_requested: set[str] = set()  # kinds requested by recipes and programs of this process


def kinds() -> list[str]:
    """Return the names of all kinds of policy."""
    return plugins.valid_names("policies", _builtin())


def policy_kind(kind: str) -> ModuleType:
    """Return the package of a kind; its ``Policy`` is imported on first access.

    Raises:
        RecipeError: there is no such kind (the message suggests the nearest name), it cannot be
            imported, or a policy file names a kind that this process may not import
            (``kinds_from_file``).
    """
    _check_allowed(kind)
    return plugins.find("policies", kind, _builtin(), "policy.kind")


def policy_config(kind: str) -> type[PolicySettings]:
    """Return the settings' class of a kind; raises RecipeError like ``policy_kind``."""
    from rlinf_core.policies.settings import PolicySettings

    _check_allowed(kind)
    return plugins.find_class("policies", kind, _builtin(), "Config", PolicySettings, "policy.kind")


def _check_allowed(kind: str) -> None:
    """Raise RecipeError if a policy file names a kind that this process may not import."""
    if not _from_file.get():
        _requested.add(plugins.with_absolute_path(kind))
    elif kind not in kinds() and plugins.with_absolute_path(kind) not in _requested:
        raise RecipeError(
            f"policy.kind: expected one of {', '.join(kinds())}, or the kind in the recipe, got "
            f"'{escape_ascii(kind)[:200]}' in a policy file. A policy file cannot choose imported "
            "Python code. If you trust this code, set policy.kind in the recipe (rlinf serve: "
            "--recipe), or install it as an entry point of rlinf.policies"
        )


@contextmanager
def kinds_from_file() -> Iterator[None]:
    """Treat kinds as coming from a policy file within this block.

    Such a kind must be built in, be an entry point of an installed package, or have been requested
    before, outside of such a block, by a recipe or the program itself.
    """
    token = _from_file.set(True)
    try:
        yield
    finally:
        _from_file.reset(token)


def custom_kinds(config: PolicySettings) -> list[str]:
    """Return the kinds in a recipe's policy that are neither built in nor installed.

    Policy files may name them.
    """
    parts = [
        config,
        *(
            value
            for name in type(config).model_fields
            if hasattr(value := getattr(config, name), "kind")
        ),
    ]
    return sorted(
        {plugins.with_absolute_path(part.kind) for part in parts if part.kind not in kinds()}
    )


def shipped_kind(config: PolicySettings) -> str:
    """Return the shipped kind whose settings these are or extend; "" if there is none."""
    shipped = {module: kind for kind, module in _builtin().items()}
    modules = (cls.__module__ for cls in type(config).__mro__)
    return next((shipped[module] for module in modules if module in shipped), "")


def make_policy(spec: StationSpec, config: PolicySettings) -> NetworkPolicy:
    """Return a fresh policy of the config's kind, sized for a station.

    Args:
        spec: specs of the station: its observations and actions.
        config: kind and sizes, e.g. ``recipe.policy``.

    Example:
        >>> recipe = load_recipe("sim_sac", ["policy.hidden=[64,64]"])
        >>> make_policy(station_task(recipe).spec, recipe.policy).config.hidden
        (64, 64)
    """
    return policy_kind(config.kind).Policy(spec, config)


def _builtin() -> dict[str, str]:
    folders = [path.parent for path in Path(__file__).parent.glob("*/*/policy.py")]
    return {folder.name: f"{__name__}.{folder.parent.name}.{folder.name}" for folder in folders}
