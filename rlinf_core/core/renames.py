"""Names that changed before the first release, each with its new name.

An old name is refused with an error that contains the new one. Files of earlier runs are read with
either. The first release deletes this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RECIPE_KEYS = {
    "collect.only": "collect.no_training",
    "online.in_turns": "online.synchronous",
    "online.slice_episodes": "online.request_episodes",
    "online.drain_s": "online.drain_timeout_s",
    "replay.fair": "replay.balance_stations",
    "station.beside": "station.second_operator",
    "station.policy.execute": "station.policy.n_action_steps",
    "station.options.apart_m": "station.options.separation_m",
    "evaluate.filmed": "evaluate.filmed_episodes",
    "learner.recompute": "learner.gradient_checkpointing",
    "sft.noise_floor": "sft.min_std",
    "algorithm.noise_floor": "algorithm.min_std",
    "algorithm.averaging": "algorithm.ema_rate",
    "policy.fine": "policy.fine_scale",
    "policy.sampled": "policy.stochastic_eval",
    "policy.execute": "policy.n_action_steps",
    "policy.flow.fine": "policy.flow.fine_scale",
    "policy.flow.sampled": "policy.flow.stochastic_eval",
    "policy.flow.execute": "policy.flow.n_action_steps",
}
SCENARIO_KEYS = {"scenarios.say": "scenarios.inputs"}  # of the safety drill
COMMANDS = {
    "direct": "run",
    "identify": "find-dynamics",
    "instruct": "set-instruction",
    "twin": "fake-device",
    "vla tiny": "make-tiny-vla",
}


def current_key(key: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return today's path of a value in a recipe or in a list of scenarios.

    Args:
        key: the path in the file, such as ``("station", "beside", "kind")``. Indices of lists have
            no effect on names.
    """
    path = list(key)
    for end in range(1, len(key) + 1):
        old = ".".join(part for part in key[:end] if isinstance(part, str))
        new = (RECIPE_KEYS | SCENARIO_KEYS).get(old)
        if new is not None:
            path[end - 1] = new.rpartition(".")[2]
    return tuple(path)


def with_current_keys(data: Mapping[str, Any], section: Sequence[str] = ()) -> dict[str, Any]:
    """Return a run's recipe, or a section of it, with today's names of its keys.

    Args:
        data: the values by key, nested.
        section: place of the values in a recipe, e.g. ``("policy",)``.
    """
    renamed = {}
    for name, value in data.items():
        key = (*section, str(name))
        renamed[str(current_key(key)[-1])] = (
            with_current_keys(value, key) if isinstance(value, Mapping) else value
        )
    return renamed
