"""Rollout workers: Ray actors that play in their own environments."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.core.errors import RecipeError, RestartLimitError, RlinfError
from rlinf_core.core.usage import Usage, resident_bytes
from rlinf_core.policies import encoder, make_policy
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.policies.torch_device import device_of
from rlinf_core.recipes import Recipe
from rlinf_core.rollouts.collect import Rollouts, RolloutUsage
from rlinf_core.rollouts.types import Experience, Trajectory
from rlinf_core.trainer.distributed.ray_cluster import (
    START_S,
    check_room,
    check_started,
    connect,
    cpus_for,
    lost_errors,
    no_room_error,
)
from rlinf_core.trainer.distributed.remote_envs import MakeEnvs, make_rollouts, rollout_envs
from rlinf_core.trainer.distributed.weights import WeightSender, WeightUpdate, put, receive

SCENE_STRIDE = 10_000_000  # distance of the scenes of two workers
RESTARTS = 3  # maximum restarts of workers in a run


@dataclass
class RolloutRequest:
    """A request to workers.

    Attributes:
        version: version of the policy.
        length: length of the rollout.
        environments: environments of each worker.
    """

    version: int
    length: RolloutLength
    environments: int


NO_USAGE = RolloutUsage(Usage(), 0.0, (0.0, 0.0), (0.0, 0.0))


class Worker:
    """Ray actor of one worker. Its first request creates the environments."""

    def __init__(
        self, recipe: Recipe, make: MakeEnvs, kind: type[Rollouts], seed: int, first_scene: int
    ) -> None:
        self.recipe = recipe
        self.make = make
        self.kind = kind
        self.first = (seed, first_scene)
        self.rollouts: Rollouts | None = None
        self.unfinished: list[Trajectory] = []  # truncated by a change of its environments

    def _make_rollouts(self, environments: int) -> Rollouts:
        """Return the rollouts; create them first, or again for another number of environments."""
        former = self.rollouts
        if former is not None and former.env.size == environments:
            return former
        torch.set_num_threads(1)
        recipe = self.recipe
        self.unfinished += self.cut()
        env = rollout_envs(recipe, self.make, environments)
        if former is None:
            self.device = device_of("cuda" if recipe.placement.worker_gpus else "cpu")
            with encoder.without_image_weights():  # the first request brings its weights
                self.policy = make_policy(env.spec, recipe.policy).to(self.device)
        group = recipe.algorithm.rollout.get("group", 1)
        self.rollouts = make_rollouts(self.kind, env, self.policy, *self.first, group)
        if former is not None:
            self.rollouts.continue_noise(former)
            former.env.close()
        return self.rollouts

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def cut(self) -> list[Trajectory]:
        """Return the unfinished episodes, truncated here. The next request starts new ones."""
        return self.rollouts.cut() if self.rollouts is not None else []

    def play(
        self, request: RolloutRequest, update: WeightUpdate
    ) -> tuple[Experience, RolloutUsage]:
        """Apply a weight update and play a request. Returns the experience and its usage."""
        rollouts = self._make_rollouts(request.environments)
        offload = self.recipe.placement.offload and self.device.type == "cuda"
        receive(self.policy.to(self.device), update)
        rollouts.version = request.version
        experience, usage = rollouts.play_measured(request.length)
        usage.total.resident_bytes = resident_bytes()
        if offload:
            self.policy.cpu()
            torch.cuda.empty_cache()
        experience.trajectories += self.unfinished
        self.unfinished = []
        experience.rollouts = [_convert(rollout, tensors=False) for rollout in experience.rollouts]
        return experience, usage


class RolloutWorkers:
    """Rollout workers on Ray. A dead worker is replaced, and its request is repeated in new scenes.

    Attributes:
        resumes: number of resumes of the run.
        spawned: number of workers started so far; each has its own seed and scenes.
        sent_bytes: bytes of the last weight update.
        usages: usage of each worker in the last rollout.
        call_s: seconds of the last ``take`` beyond the slowest worker's rollout.
    """

    def __init__(
        self,
        recipe: Recipe,
        make: MakeEnvs,
        kind: type[Rollouts],
        policy: NetworkPolicy,
        spawned: int = 0,
    ) -> None:
        placement = recipe.placement
        self.ray = connect(placement.ray)
        self.recipe = recipe
        self.policy = policy
        self.died = 0
        self.resumes = 0
        self.spawned = spawned
        self.sent_bytes = 0
        self.usages: list[RolloutUsage] = []
        self.call_s = 0.0
        self.resources = {"num_cpus": cpus_for(placement), "num_gpus": placement.worker_gpus}
        self.worker_arguments = (recipe, make, kind)
        self.sender = WeightSender(policy.is_frozen)
        self.workers = [self._worker() for _ in range(placement.workers)]
        self.editions = [0] * placement.workers  # edition of each worker's weights
        self.pending: list[Any] = []
        self.early_answers: list[tuple[Experience, RolloutUsage]] = []
        self.placed = False

    def _worker(self) -> Any:
        number = self.spawned
        self.spawned += 1
        return self.ray.remote(**self.resources)(Worker).remote(
            *self.worker_arguments,
            self.recipe.seed + number,
            self.recipe.scene(number * SCENE_STRIDE),
        )

    def restart_workers(self, resumes: int, spawned: int = 0) -> None:
        """Restart all workers with new seeds and scenes, after a resume.

        Args:
            resumes: number of resumes.
            spawned: number of workers started before; 0 if an older checkpoint lacks it.
        """
        self.resumes = resumes
        self.spawned = max(spawned or resumes * (RESTARTS + 1) * len(self.workers), self.spawned)
        for index, worker in enumerate(self.workers):
            self.ray.kill(worker)
            self.workers[index], self.editions[index] = self._worker(), 0

    def resize(self, count: int) -> None:
        """Change the number of workers from the next request on. No experience is lost.

        Removed workers return their unfinished episodes. The others get a new share of the
        environments with the next request.

        Raises:
            RecipeError: the number of environments is no multiple of ``count``.
            NoRoomError: the cluster has no room; the workers stay.
        """
        total = self.recipe.simulation.environments
        if count < 1 or total % count:
            raise RecipeError(
                f"placement.workers: expected a divisor of the {total} environments, got {count}"
            )
        check_room("rollout workers", count - len(self.workers), self.resources)
        added = [self._worker() for _ in range(count - len(self.workers))]
        try:
            self._wait_for_room(added)
        except RestartLimitError:
            for worker in added:
                self.ray.kill(worker)
            raise
        if self.pending:
            self.early_answers += self._answers()
        self.early_answers += [(cut, NO_USAGE) for cut in self._cut(self.workers[count:])]
        for worker in self.workers[count:]:
            self.ray.kill(worker)
        self.workers = self.workers[:count] + added
        self.editions = self.editions[:count] + [0] * len(added)

    def cut(self) -> list[Experience]:
        """Return the experience that was not taken yet, and all unfinished episodes."""
        early = [experience for experience, _ in self.early_answers]
        return early + self._cut(self.workers)

    def _cut(self, workers: list[Any]) -> list[Experience]:
        parts = []
        for worker in workers:
            try:
                parts.append(Experience(self.ray.get(worker.cut.remote())))
            except lost_errors():
                print(
                    "a rollout worker died before its end; its unfinished episodes are lost",
                    flush=True,
                )
        return parts

    def start(self, version: int, length: RolloutLength) -> None:
        """Send a request and the changed weights to all workers.

        Raises:
            RestartLimitError: the first request finds no room in the cluster.
        """
        if not self.placed:
            self._wait_for_room(self.workers)
            self.placed = True
        update = self.sender.changes(self.policy.state_dict())
        self.sent_bytes = update.nbytes
        self.base = update.base
        self.update = put(self.ray, update)
        self.full_update: Any = self.update if update.base == 0 else None
        share = self.recipe.simulation.environments // len(self.workers)
        self.request = put(self.ray, RolloutRequest(version, length, share))
        self.pending = [self._begin(index) for index in range(len(self.workers))]

    def _wait_for_room(self, workers: list[Any]) -> None:
        ready = [worker.__ray_ready__.remote() for worker in workers]
        if not ready:
            return
        _, waiting = self.ray.wait(ready, num_returns=len(ready), timeout=START_S)
        if waiting:
            raise no_room_error("rollout workers", len(ready), self.resources, START_S)

    def _begin(self, index: int) -> Any:
        """Send the request to a worker; one with older weights gets all of them."""
        update = self.update
        if self.editions[index] != self.base:
            if self.full_update is None:
                self.full_update = put(self.ray, self.sender.full_update())
            update = self.full_update
        self.editions[index] = self.sender.edition
        return self.workers[index].play.remote(self.request, update)

    def _answers(self) -> list[tuple[Experience, RolloutUsage]]:
        answers = [self._answer(index) for index in range(len(self.pending))]
        self.pending = []
        return answers

    def take(self) -> tuple[list[Experience], dict[str, float]]:
        """Return the experience of every worker, and mean seconds by part."""
        started = time.perf_counter()
        answers = self._answers()
        self.usages = [usage for _, usage in answers]
        answers = self.early_answers + answers
        self.early_answers = []
        waited = time.perf_counter() - started
        slowest = max((usage.total.wall_s for usage in self.usages), default=0.0)
        self.call_s = max(0.0, waited - slowest)
        for experience, _ in answers:
            experience.rollouts = [
                _convert(rollout, tensors=True) for rollout in experience.rollouts
            ]
        simulated = float(np.mean([usage.simulate for usage in self.usages] or [0.0]))
        total = float(np.mean([usage.total.wall_s for usage in self.usages] or [0.0]))
        return [answer[0] for answer in answers], {
            "wait": waited,
            "workers_simulate": simulated,
            "workers_infer": total - simulated,
        }

    def _answer(self, index: int) -> tuple[Experience, RolloutUsage]:
        while True:
            try:
                return self.ray.get(self.pending[index])
            except self.ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, RlinfError):  # raised by an environment
                    raise error.cause from None
                raise RlinfError(f"a rollout worker stopped: {error}") from error
            except lost_errors() as error:
                check_started("rollout workers", error)
                self.died += 1
                if self.died > RESTARTS:
                    raise RestartLimitError(
                        f"rollout workers died {self.died} times, the last by: {error}. The last "
                        "checkpoint is valid. Fewer environments need less memory"
                    ) from error
                print(
                    f"a rollout worker died and is replaced ({self.died} of {RESTARTS}): {error}",
                    flush=True,
                )
                self.workers[index], self.editions[index] = self._worker(), 0
                self.pending[index] = self._begin(index)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            self.ray.kill(worker)


def _convert(rollout: Rollout, tensors: bool) -> Rollout:
    """Convert a rollout's arrays to tensors, or its tensors to arrays."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: convert(part) for key, part in value.items()}
        return None if value is None else torch.tensor(value) if tensors else value.numpy()

    return Rollout(**{item.name: convert(getattr(rollout, item.name)) for item in fields(Rollout)})
