"""A source of real experience with a learned world model that adds short imagined branches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.station import station_task
from rlinf_core.rollouts.collect import EpisodeRollouts
from rlinf_core.rollouts.types import IMAGINED, Experience, Source, Trajectory
from rlinf_core.trainer.base_data import Data
from rlinf_core.trainer.progress import Clock
from rlinf_core.worlds.episodes import Episodes
from rlinf_core.worlds.imagined import ImaginedEnv
from rlinf_core.worlds.model import WorldModel

MIN_EPISODES = 10  # episodes before the first fit


class RealAndImagined:
    """Returns the experience of a real source, and imagined branches of the current policy.

    Imagined transitions do not count as environment steps: they earn no updates and use no budget.

    Args:
        recipe: recipe of the run; ``world`` sets the size of the model and the interval of its
            fits.
        real: source of real experience.
        data: training data; the model is fitted to its real episodes.
        policy: policy that plays the branches.
        clock: clock of the run.
    """

    def __init__(
        self, recipe: Recipe, real: Source, data: Data, policy: NetworkPolicy, clock: Clock
    ) -> None:
        self.recipe = recipe
        self.real = real
        self.data = data
        self.policy = policy
        self.clock = clock
        self.asynchronous = real.asynchronous
        self.world = WorldModel(station_task(recipe), recipe.world, recipe.seed)
        self.fitted_at = -recipe.world.refit_every
        self.episodes = Episodes()
        self.rounds = self.branches = self.flagged = 0

    @property
    def report(self) -> dict[str, Any]:
        """Report of the real source."""
        return self.real.report

    @report.setter
    def report(self, report: dict[str, Any]) -> None:
        self.real.report = report

    def demonstrate(self) -> Experience:
        """Return the demonstrations of the real source."""
        return self.real.demonstrate()

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return the real source's experience.

        After each fit, branches from recorded states are added.
        """
        experience = self.real.take(updates, length)
        if self.data.steps - self.fitted_at < self.recipe.world.refit_every or length.get(
            "random_warmup"
        ):
            return experience
        with self.clock("imagine"):
            episodes = Episodes(self.data.real_episodes())
            if len(episodes) < MIN_EPISODES:
                return experience
            self.fitted_at = self.data.steps
            self.episodes = episodes
            self.world.fit(episodes)
            imagined = self._imagine() if self.world.usable else []
        return replace(experience, trajectories=[*experience.trajectories, *imagined])

    def _imagine(self) -> list[Trajectory]:
        """Play branches: as many as real steps until the next fit, each up to the horizon long."""
        settings = self.recipe.world
        self.rounds += 1
        env = ImaginedEnv(self.world, self.episodes, settings.branches)
        rollouts = EpisodeRollouts(
            env, self.policy, self.recipe.seed + self.rounds, self.rounds * settings.branches
        )
        steps = max(1, settings.refit_every * env.length // settings.branches)
        trajectories = rollouts.play(steps).trajectories
        self.branches, self.flagged = env.branch_count, env.flagged
        return [replace(trajectory, mode=IMAGINED) for trajectory in trajectories]

    def counts(self) -> dict[str, float]:
        """Return the real source's counters, and the model's error, horizon and flagged share."""
        check = self.world.check
        if not self.world.fits:
            return self.real.counts()
        return self.real.counts() | {
            "world/error_1": check.errors[0],
            "world/persistence_1": check.persistence[0],
            "world/horizon": float(check.horizon),
            "world/correlation": check.correlation,
            "world/flagged": self.flagged / max(1, self.branches),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the real source and of the model."""
        return {
            "real": self.real.state_dict(),
            "world": self.world.state_dict(),
            "fitted_at": self.fitted_at,
            "rounds": self.rounds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, also one of a run without a world model."""
        if "world" not in state:
            self.real.load_state_dict(state)
            return
        self.real.load_state_dict(state.get("real", {}))
        self.world.load_state_dict(state["world"])
        self.fitted_at, self.rounds = state["fitted_at"], state["rounds"]

    def close(self) -> None:
        """Close the real source."""
        self.real.close()


def with_world(
    recipe: Recipe, real: Source, data: Data, policy: NetworkPolicy, clock: Clock
) -> Source:
    """Return the real source, with a learned world model beside it if the recipe has one."""
    return RealAndImagined(recipe, real, data, policy, clock) if recipe.world.share else real
