"""Simulators as a source: environments in this process, or in rollout workers on Ray.

In the pipelined mode workers play the next rollout while the learner trains on the last one.
"""

from __future__ import annotations

import time
from typing import Any, TypeAlias, cast

from rlinf_core.algorithms.common.settings import EXPERT, REPLAY, ROLLOUTS, RolloutLength
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.recipes import Recipe
from rlinf_core.rollouts.array_env import ArrayEnv, TensorRollouts
from rlinf_core.rollouts.collect import (
    ChunkRollouts,
    EpisodeRollouts,
    ExpertRollouts,
    Rollouts,
    RolloutUsage,
    demonstrate,
)
from rlinf_core.rollouts.envs import VectorEnv
from rlinf_core.rollouts.types import Experience, Source
from rlinf_core.trainer.distributed.remote_envs import MakeEnvs, make_rollouts
from rlinf_core.trainer.distributed.rollout_workers import SCENE_STRIDE, RolloutWorkers
from rlinf_core.trainer.progress import Clock
from rlinf_core.worlds.imagined import ImaginedEnv

STEPS_PER_REQUEST = 25  # of each environment between two updates of a worker's policy
KINDS: dict[str, type[Rollouts]] = {
    ROLLOUTS: ChunkRollouts,
    REPLAY: EpisodeRollouts,
    EXPERT: ExpertRollouts,
}
Players: TypeAlias = "InProcessRollouts | RolloutWorkers"


class Simulators(Source):
    """Plays rollouts of the current policy.

    Args:
        recipe: recipe of the run; it sets the numbers of environments and workers.
        env: environments of this process, which also play the demonstrations.
        policy: policy that plays.
        make: builds the environments of workers.
        clock: clock of the run.
    """

    asynchronous = False

    def __init__(
        self, recipe: Recipe, env: VectorEnv, policy: NetworkPolicy, make: MakeEnvs, clock: Clock
    ) -> None:
        self.recipe, self.env, self.clock = recipe, env, clock
        self.make, self.policy = make, policy
        self.kind = KINDS.get(recipe.algorithm.learns_from)
        self.report: dict[str, Any] = {}  # unused
        self.players: Players | None = None
        # whether a rollout was requested and not taken yet
        self.is_pending = False
        # number of players so far, as each has its own noise and scenes
        self.spawned = 0
        self.send_s = 0.0
        # experience from before a change of the layout
        self.early: list[Experience] = []
        if self.kind:
            self.players = self._players(self.kind, recipe, 0)

    def _players(self, kind: type[Rollouts], recipe: Recipe, spawned: int) -> Players:
        """Return workers, or rollouts in this process; ``spawned`` players came before them."""
        env = self.env
        if recipe.placement.workers:
            return RolloutWorkers(recipe, self.make, kind, self.policy, spawned)
        if isinstance(env, ArrayEnv) and kind is ChunkRollouts:
            kind = TensorRollouts
        group = recipe.algorithm.rollout.get("group", 1)
        player = acting_policy(recipe, self.policy)
        scene = recipe.scene(spawned * SCENE_STRIDE)
        return InProcessRollouts(
            make_rollouts(kind, env, player, recipe.seed + spawned, scene, group)
        )

    def _request_length(self, length: RolloutLength) -> RolloutLength:
        """Return the length of a rollout, with its steps for a learner with a replay buffer."""
        if self.kind is ChunkRollouts:
            return length
        placement = self.recipe.placement
        steps = STEPS_PER_REQUEST if placement.workers or placement.auto else 1
        return length | {"steps": steps}

    @property
    def usages(self) -> list[RolloutUsage]:
        """Usage of each worker in the last rollout."""
        return self.players.usages if self.players else []

    @property
    def sent_bytes(self) -> int:
        """Bytes of weights in the last request."""
        return self.players.sent_bytes if self.players else 0

    def change_layout(self, recipe: Recipe) -> None:
        """Use the layout of another recipe from the next request on. No experience is lost.

        Raises:
            RecipeError: the number of environments is no multiple of the workers.
            NoRoomError: the cluster has no room; the layout stays.
        """
        before, workers = self.recipe, recipe.placement.workers
        players = self.players
        if players is None or workers == before.placement.workers:
            self.recipe = recipe
            return
        if isinstance(players, RolloutWorkers) and workers:
            players.resize(workers)
            self.recipe = recipe
            return
        assert self.kind is not None
        # the trainer's process counts as one, each time it plays: noise and scenes are new
        spawned = players.spawned if isinstance(players, RolloutWorkers) else max(self.spawned, 1)
        replacing = self._players(self.kind, recipe, spawned)  # raises before anything changed
        self.recipe = recipe
        self.spawned = spawned if workers else spawned + 1
        if self.is_pending:
            experience, _ = players.take()
            self.early += experience
            self.is_pending = False
        if isinstance(players, RolloutWorkers):
            self.early += players.cut()
            self.spawned = max(self.spawned, players.spawned)  # one may have died meanwhile
        else:
            self.early.append(Experience(players.rollouts.cut()))
        players.close()
        self.players = replacing

    def demonstrate(self) -> Experience:
        """Play the recipe's number of demonstrations by the task's script."""
        collect = self.recipe.collect
        if isinstance(self.env, ImaginedEnv):
            return Experience(self.env.demonstrations()[: collect.episodes])
        with self.clock("demonstrate"):
            return Experience(
                demonstrate(self.env, collect.episodes, self.recipe.scene(collect.first_seed))
            )

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return the experience of all workers.

        In the pipelined mode the next rollout is started here.
        """
        if not self.players:  # the algorithm uses demonstrations alone
            return Experience()
        length = self._request_length(length)
        if not self.is_pending:
            self._request_rollouts(self.players, updates, length)
        experiences, seconds = self.players.take()
        for part, value in seconds.items():
            self.clock.seconds[part] += value
        for index, usage in enumerate(self.players.usages):
            self.clock.span("rollout", f"worker {index}", usage.total.began, usage.total.wall_s)
        experiences = self.early + experiences
        self.early = []
        self.is_pending = False
        if self.recipe.placement.mode == "pipelined":
            self._request_rollouts(self.players, updates, length)
        else:  # the rollout has begun before the wait for it
            self.send_s += self.players.call_s
        return Experience(
            [trajectory for experience in experiences for trajectory in experience.trajectories],
            [rollout for experience in experiences for rollout in experience.rollouts],
            sum(experience.steps for experience in experiences),
        )

    def _request_rollouts(self, players: Players, updates: int, length: RolloutLength) -> None:
        started = time.perf_counter()
        with self.clock("transfer"):
            players.start(updates, length)
        self.is_pending = True
        self.send_s = time.perf_counter() - started

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process's environments.

        Workers on Ray start new episodes instead.
        """
        if isinstance(self.players, RolloutWorkers):
            return {"begun": self.players.resumes, "spawned": self.players.spawned}
        if self.players is None:
            return {}
        spawned = {"spawned": self.spawned} if self.spawned else {}
        return self.players.rollouts.state_dict() | spawned

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self.spawned = max(self.spawned, state.get("spawned", 0))
        if isinstance(self.players, RolloutWorkers):
            self.players.restart_workers(state.get("begun", 0) + 1, state.get("spawned", 0))
        elif self.players and ("generator" in state or "stages" in state):
            # without these keys it is the state of workers
            self.players.rollouts.load_state_dict(state)

    def close(self) -> None:
        """Close the workers."""
        if self.players:
            self.players.close()


class InProcessRollouts:
    """Plays rollouts in this process."""

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts
        self.sent_bytes = 0
        self.call_s = 0.0
        self.usages: list[RolloutUsage] = []

    def start(self, version: int, length: RolloutLength) -> None:
        """Request a rollout of length ``length`` by policy ``version``, also from an engine."""
        self.rollouts.version, self.length = version, length
        synchronise = getattr(self.rollouts.policy, "synchronise", None)
        if synchronise is not None:
            synchronise(version)

    def take(self) -> tuple[list[Experience], dict[str, float]]:
        """Return the experience, and seconds by part of the clock."""
        experience, usage = self.rollouts.play_measured(self.length)
        self.usages = [usage]
        return [experience], {
            "simulate": usage.simulate,
            "infer": usage.total.wall_s - usage.simulate,
        }

    def close(self) -> None:
        """Do nothing."""


def acting_policy(recipe: Recipe, policy: NetworkPolicy) -> Any:
    """Return the policy, or an actor whose tokens an engine draws."""
    address = getattr(recipe.policy, "engine", "")
    if not address:
        return policy
    from rlinf_core.agentic.engines.actions import EngineActor

    folder = getattr(recipe.policy, "engine_folder", "")
    return EngineActor(cast(Any, policy), address, folder=folder)
