"""Policies: networks that answer an observation with a chunk of actions, and the one file each is kept in.

One folder a kind: its ``Config`` without torch, its ``Policy`` with it. A kind of one's own is a module with both
(``rlinf_core.plugins``).
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rlinf_core import plugins

if TYPE_CHECKING:
    from rlinf_core.policies.settings import PolicySettings
    from rlinf_core.specs import StationSpec


def kinds() -> list[str]:
    """Names of all kinds of policy."""
    return plugins.names("policies", _ours())


def policy_kind(kind: str) -> ModuleType:
    """The package of a kind, whose ``Policy`` is imported when it is asked for; RecipeError names the nearest known one."""
    return plugins.find("policies", kind, _ours(), "policy.kind")


def make_policy(spec: StationSpec, config: PolicySettings) -> Any:
    """A fresh policy of the config's kind, sized for a station."""
    return policy_kind(config.kind).Policy(spec, config)


def _ours() -> dict[str, str]:
    return {path.parent.name: f"{__name__}.{path.parent.name}" for path in Path(__file__).parent.glob("*/policy.py")}
