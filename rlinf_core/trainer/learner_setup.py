"""Set-up of a run's policy and learner: new ones, or those of an earlier run."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common.learner import BaseLearner, Learner
from rlinf_core.algorithms.common.mixed_precision import apply_computing
from rlinf_core.algorithms.common.settings import AlgorithmSettings
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.policies.small.latent_noise import Config as LatentNoise
from rlinf_core.policies.torch_device import device_of
from rlinf_core.recipes import Recipe
from rlinf_core.specs.arrays import StationSpec, TextSpec
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.distributed.ray_cluster import cpus_for


def initial_policy(recipe: Recipe, spec: StationSpec, initial: Path | None) -> NetworkPolicy:
    """Return the initial policy: a new one, or the newest policy of another run (``initial``).

    Raises:
        RecipeError: the other run's policy differs from the recipe's.
    """
    policy = (
        load_policy(newest_policy(initial), spec) if initial else make_policy(spec, recipe.policy)
    )
    if isinstance(recipe.policy, LatentNoise) and policy.config == recipe.policy.flow_settings:
        policy = policy_kind(recipe.policy.kind).Policy.around(recipe.policy, policy)
    if policy.config != recipe.policy:
        raise RecipeError(
            f"simulation.initial_policy: expected the recipe's policy {recipe.policy}, got "
            f"{policy.config}"
        )
    return policy.to(device_of(recipe.device)).train()


def is_normalised(policy: NetworkPolicy, initial: Path | None) -> bool:
    """Return whether the initial policy needs no fit of the normalisation.

    True for text policies, for a run that is continued, and for a policy that brings its own.
    """
    if isinstance(policy.spec, TextSpec):
        return True
    return initial is not None and (
        initial.is_dir() or any(isinstance(part, Normalisation) for part in policy.modules())
    )


def make_learner(recipe: Recipe, config: AlgorithmSettings, policy: NetworkPolicy) -> Learner:
    """Return a learner in this process, or a group of learner processes on Ray."""
    placement = recipe.placement
    if not placement.learners:
        learner: BaseLearner = algorithm(config.name).Learner(policy, config, recipe.seed)
        apply_computing(learner, recipe.learner)
        return learner
    return LearnerGroup(
        config.name,
        policy,
        config,
        recipe.seed,
        size=placement.learners,
        strategy=placement.strategy,
        restarts=placement.restarts,
        gpus=placement.learner_gpus,
        cpus=cpus_for(placement),
        computing=recipe.learner,
        tensor_parallel=placement.tensor_parallel,
    )


def inherit_networks(learner: Learner, folder: Path, name: str) -> None:
    """Load the learner's networks from another run; update count and noise start anew.

    A reference policy, if the algorithm has one, becomes the loaded policy.

    Args:
        learner: learner to load into.
        folder: folder of the other run.
        name: name of the algorithm.

    Raises:
        RecipeError: the other run used another algorithm.
    """
    saved = checkpoint.load_newest(folder / "checkpoints")
    state = saved["learner"] if saved else {"modules": {}}
    current = learner.state_dict()
    current_modules = current["modules"]
    if state["modules"].keys() != current_modules.keys():
        raise RecipeError(
            f"simulation.initial_policy: expected in {folder / 'checkpoints'} a learner with "
            f"{', '.join(current_modules)}, got {', '.join(state['modules']) or 'none'}. Name a "
            f"run of {name}, or a policy file to use only the policy"
        )
    modules = state["modules"] | (
        {"reference": state["modules"]["policy"]} if "reference" in current_modules else {}
    )
    learner.load_state_dict(
        state | {"modules": modules, "updates": 0, "generator": current["generator"]}
    )
