"""The interface of learners, and their state in a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.algorithms.common.data_parallel import gather_full, match_sharding
from rlinf_core.algorithms.common.optimizer import skipped_steps
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.torch_device import restore

if TYPE_CHECKING:
    from rlinf_core.algorithms.common.rollout import Rollout

AVERAGED = "averaged"  # the module of the actor's moving average


class Learner(Protocol):
    """The interface of a learner to a run: ``BaseLearner``, or a ``LearnerGroup`` of processes."""

    updates: int

    @abstractmethod
    def update(self, batch: Any, /) -> dict[str, float]:
        """Learn from a batch or from a rollout, by its settings; return metrics."""

    def needs_more_rollouts(self, rollout: Rollout, rollouts: int) -> bool:
        """Return True to play on before learning from this many rollouts, by ``config`` alone."""
        ...

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Centre and scale observations (N, V) equally in every encoder."""
        ...

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,) of observations in every encoder."""
        ...

    def sync(self) -> object:
        """Bring the weights into the policy of this process."""
        ...

    def ship(self, policy: NetworkPolicy) -> None:
        """Copy the averaged weights, if any, into ``policy``, for evaluation and stations."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the full state without the data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        ...

    def close(self) -> None:
        """End the processes that were started."""
        ...


class BaseLearner(Learner, ABC):
    """Base class of learners: saves ``modules``, ``optimisers``, ``updates`` and the random state.

    A subclass creates modules and optimisers.
    """

    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]
    device: torch.device
    generator: torch.Generator
    updates: int

    def __init_subclass__(cls, **named: Any) -> None:
        """Make every learner's ``update`` report the skipped steps."""
        super().__init_subclass__(**named)
        if "update" in vars(cls):
            cls.update = _report_skipped_steps(cls.update)  # type: ignore[method-assign]

    def to_device_and_seed(self, device: torch.device, seed: int) -> None:
        """Move every module and a generator to the policy's device, before the optimisers exist."""
        for module in self.modules.values():
            module.to(device)
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def needs_more_rollouts(self, rollout: Rollout, rollouts: int) -> bool:
        return False

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Centre and scale observations (N, V) equally in every encoder."""
        for encoder in self._encoders():
            encoder.fit_normalisation(vectors)

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,) of observations in every encoder."""
        for encoder in self._encoders():
            encoder.set_statistics(mean, std)

    def _encoders(self) -> Iterator[Normalisation]:
        for module in self.modules.values():
            yield from (
                part
                for name, part in module.named_modules()
                if isinstance(part, Normalisation)
                and not (isinstance(module, NetworkPolicy) and module.is_frozen(f"{name}.mean"))
            )

    def sync(self) -> None:  # noqa: B027 (nothing to do in one process)
        """Do nothing: the policy of this process already has the weights.

        A learner group must copy them.
        """

    def ship(self, policy: NetworkPolicy) -> None:
        """Copy the averaged weights into ``policy``, if there are any."""
        if AVERAGED in self.modules:
            policy.load_state_dict(self.modules[AVERAGED].state_dict())

    def close(self) -> None:  # noqa: B027
        """Do nothing, because nothing was started."""

    def constant_weights(self) -> dict[str, set[str]]:
        """Return by module the weights that no update changes: frozen and not optimised."""
        trained = {
            id(parameter)
            for optimiser in self.optimisers.values()
            for group in optimiser.param_groups
            for parameter in group["params"]
        }
        return {
            name: {
                key
                for key, parameter in module.named_parameters()
                if module.is_frozen(key) and id(parameter) not in trained
            }
            for name, module in self.modules.items()
            if isinstance(module, NetworkPolicy)
        }

    def state_dict(self, without: Mapping[str, set[str]] = MappingProxyType({})) -> dict[str, Any]:
        """Return the full state without the data, as nested dicts of tensors and numbers.

        Tensors are full, even if processes keep parts of them.

        Args:
            without: weights to leave out, by module.
        """
        return {
            "modules": {
                name: {
                    key: gather_full(value)
                    for key, value in module.state_dict().items()
                    if key not in without.get(name, ())
                }
                for name, module in self.modules.items()
            },
            "optimisers": {
                name: _optimiser_moments(optimiser) for name, optimiser in self.optimisers.items()
            },
            "updates": self.updates,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly; the noise is reseeded after a change of the device's kind.

        Raises:
            RecipeError: this learner has other parts.
        """
        if state["modules"].keys() != self.modules.keys():
            raise RecipeError(
                f"algorithm: expected a learner of {', '.join(state['modules'])}, as in the run's "
                f"checkpoint, got one of {', '.join(self.modules)}. Keep the settings that add or "
                "remove a part (ema_rate, reference_kl), or choose another --out"
            )
        for name, module in self.modules.items():
            current = module.state_dict()
            if other := sorted(set(current) ^ set(state["modules"][name])):
                raise RecipeError(
                    f"algorithm: expected a learner whose {name} has the checkpoint's parts, got "
                    f"one that differs in {len(other)}, as {other[0]}. Another release wrote it. "
                    "Use only its policy (simulation.initial_policy: a file of its policies/) in "
                    "another --out"
                )
            module.load_state_dict(
                {
                    key: match_sharding(value, current.get(key))
                    for key, value in state["modules"][name].items()
                }
            )
        for name, optimiser in self.optimisers.items():
            trained = [p for group in optimiser.param_groups for p in group["params"]]
            moments = {
                int(index): {
                    key: match_sharding(value, trained[int(index)]) for key, value in entry.items()
                }
                for index, entry in state["optimisers"][name].items()
            }
            optimiser.load_state_dict(
                {"state": moments, "param_groups": optimiser.state_dict()["param_groups"]}
            )
        self.updates = state["updates"]
        restore(self.generator, state["generator"], self.updates)


class Scalar(nn.Module):
    """A learned positive number, stored as its logarithm (SAC's temperature)."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(np.log(value))))

    def forward(self) -> Tensor:
        return self.log.exp()


def _report_skipped_steps(
    update: Callable[..., dict[str, float]],
) -> Callable[..., dict[str, float]]:
    """Wrap ``update`` to report the gradient steps skipped since the start, if any."""

    @wraps(update)
    def update_and_report(self: BaseLearner, *arguments: Any, **named: Any) -> dict[str, float]:
        metrics = update(self, *arguments, **named)
        count = sum(skipped_steps.get(optimiser, 0) for optimiser in self.optimisers.values())
        return metrics | {"skipped_steps": float(count)} if count else metrics

    return update_and_report


def _optimiser_moments(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Return moments by the number of their parameter; the config holds the settings."""
    return {
        str(index): {key: gather_full(value) for key, value in moments.items()}
        for index, moments in optimiser.state_dict()["state"].items()
    }
