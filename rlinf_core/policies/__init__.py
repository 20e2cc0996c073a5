"""Policies: networks that answer an observation with a chunk of actions, and the one file each is kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_core.errors import RecipeError, nearest

if TYPE_CHECKING:
    from rlinf_core.policies.actor import PolicyConfig
    from rlinf_core.policies.policy import NetworkPolicy
    from rlinf_core.specs import StationSpec

KINDS = {"tanh_gaussian": ("actor", "Actor"), "gaussian": ("gaussian", "GaussianActor"), "flow": ("flow", "FlowActor"),
         "steered": ("steered", "SteeredActor")}


def make_policy(spec: StationSpec, config: PolicyConfig) -> NetworkPolicy:
    """A fresh policy of the config's kind, sized for a station."""
    import importlib

    if config.kind not in KINDS:
        raise RecipeError(f"policy.kind: expected one of {', '.join(KINDS)}; got '{config.kind}'"
                          f"{nearest(config.kind, KINDS)}")
    module, name = KINDS[config.kind]
    return getattr(importlib.import_module(f"rlinf_core.policies.{module}"), name)(spec, config)
