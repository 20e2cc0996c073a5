"""Learners in several processes on Ray that learn as one, and go on when one of them dies.

Every process is given every call: the same batches, in the same order. What the group does is then a function of its state
and of the calls since. It keeps the newest state here, and the calls since in Ray's store. When a process dies, all start
anew from that state and the calls are repeated, so that the run's result is that of an undisturbed one. What no update
changes (the weights under adapters, a frozen model) is taken once.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common.computing import compute
from rlinf_core.algorithms.common.data_parallel import Strategy, full_weights, parallelise
from rlinf_core.algorithms.common.learner import AVERAGED
from rlinf_core.algorithms.common.offload import Offload
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.settings import PLAIN, AlgorithmSettings, Computing
from rlinf_core.core import plugins
from rlinf_core.core.errors import RestartLimitError, RlinfError
from rlinf_core.core.usage import Usage, measured
from rlinf_core.policies import encoder, policy_config, policy_kind
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.recipes.placement import check_shards
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.trainer.distributed.ray_cluster import (
    START_S,
    NoRoomError,
    check_begun,
    check_room,
    connect,
    cpus_per_process,
    lost,
    no_room,
)


@dataclass(frozen=True)
class LearnerSpec:
    """The parts of a learner by name, without classes, which a user's own file may define.

    Attributes:
        kind: of the algorithm.
        config: of the algorithm, as JSON.
        policy: its specs and config, as JSON.
        weights: of the policy.
        seed: of everything else.
        strategy: of the group.
        on_gpu: whether it learns on the GPU that Ray has assigned.
        computing: precision and compilation, as JSON.
    """

    kind: str
    config: str
    policy: str
    weights: dict[str, np.ndarray]
    seed: int
    strategy: Strategy
    on_gpu: bool
    computing: str


class LearnerProcess:
    """Ray actor; every method but ``open`` is called in all processes at the same time."""

    def __init__(self, rank: int, size: int) -> None:
        import ray

        self.rank, self.size, self.address = rank, size, ray.util.get_node_ip_address()
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))  # by the CPUs that Ray has assigned
        if self.address == "127.0.0.1":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def place(self, rank: int, size: int) -> None:
        """Be another one of a group of another size; ``join`` follows."""
        self.rank, self.size = rank, size

    def open(self) -> tuple[str, int]:
        """Return the address of the first process for the others; it listens on that address only.
        """
        self.listening = socket.create_server((self.address, 0))
        return self.address, self.listening.getsockname()[1]

    def join(self, meeting: tuple[str, int], learner_spec: LearnerSpec) -> str:
        """Find the others and make the learner; returns the policy's name among its modules. A second time begins anew."""
        if dist.is_initialized():
            dist.destroy_process_group()
        device = torch.device("cuda:0" if learner_spec.on_gpu else "cpu")  # Ray shows each process its own GPUs alone
        if learner_spec.on_gpu:
            torch.cuda.set_device(device)
        fd = self.listening.detach() if self.rank == 0 else None
        store = dist.TCPStore(*meeting, self.size, is_master=self.rank == 0, master_listen_fd=fd)
        dist.init_process_group("nccl" if learner_spec.on_gpu else "gloo", store=store, rank=self.rank,
                                world_size=self.size)
        described = json.loads(learner_spec.policy)
        config = policy_config(described["config"]["kind"]).model_validate_json(json.dumps(described["config"]))
        spec = StationSpec.from_dict(described["spec"])
        module = algorithm(learner_spec.kind)
        settings = module.Config.model_validate_json(learner_spec.config)
        with encoder.rebuilt():  # nor may what it was made from be here
            policy = policy_kind(config.kind).Policy.rebuilt(spec, config, described)
            policy.load_state_dict({name: torch.tensor(values) for name, values in learner_spec.weights.items()})
            self.learner = module.Learner(policy.to(device).train(), settings, learner_spec.seed)
        parallelise(self.learner, learner_spec.strategy)
        compute(self.learner, Computing.model_validate_json(learner_spec.computing))
        self.offload = Offload(self.learner)
        return next(name for name, module in self.learner.modules.items() if module is policy)

    def pid(self) -> int:
        """The process id."""
        return os.getpid()

    def update(self, batch: Any) -> tuple[dict[str, float], int, Usage]:
        """Metrics of this process's shard, updates so far, and seconds."""
        with measured() as usage, full_weights(self.learner):
            metrics = self.learner.update(batch)
        return metrics, self.learner.updates, usage

    def off(self) -> int:
        """Leave the device; returns the bytes."""
        return self.offload.off()

    def on(self) -> int:
        """Come back to the device; returns the bytes."""
        return self.offload.on()

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        self.learner.fit_normalisation(vectors)

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        self.learner.normalise(mean, std)

    def state_dict(self, full: bool = True) -> dict[str, Any] | None:
        """The state, from the first process; without what no update changes unless it is to be whole."""
        state = self.learner.state_dict({} if full else self.learner.constant())
        return _on_cpu(state) if self.rank == 0 else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)


def _on_cpu(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _on_cpu(value) for name, value in state.items()}
    return state.cpu() if isinstance(state, torch.Tensor) else state


KEEP = 16  # batches after which the state is taken; a rollout, which is large and rare, is repeated alone
NOTICE_S = 10.0  # in which Ray notices that a process has died

State = dict[str, Any]


class LostProcess(Exception):
    """A process of the group has died."""


def _lost(error: Exception) -> LostProcess:
    check_begun("learner group", error)
    return LostProcess(str(error).partition("\n")[0])


class LearnerGroup:
    """N processes that learn as one; to a trainer it is a learner.

    Args:
        kind: name of the algorithm.
        policy: what the learners begin with. It follows them when ``sync`` is called.
        config: of the algorithm.
        seed: of weights and noise.
        size: processes.
        strategy: ``ddp`` (every process keeps everything) or ``fsdp`` (each keeps a part).
        restarts: how often processes that died are replaced.
        gpus: of each process; 0 learns on CPUs.
        cpus: of each process, as asked of Ray; 0 for one, or less where there are more processes than CPUs.
        computing: precision and compilation.

    Raises:
        RecipeError: the batch does not divide by the processes, or the algorithm cannot be split.
        RestartLimitError: the cluster has no room for them.
    """

    def __init__(self, kind: str, policy: NetworkPolicy, config: AlgorithmSettings, seed: int, *, size: int,
                 strategy: Strategy, restarts: int = 3, gpus: float = 0.0, cpus: float = 0.0,
                 computing: Computing = PLAIN) -> None:
        self.ray = connect()
        self.policy, self.config, self.size, self.restarts = policy, config, size, restarts
        self.learner = algorithm(kind).Learner
        self.divides = self._shards(size)
        weights = {name: tensor.numpy(force=True) for name, tensor in policy.state_dict().items()}
        described = json.dumps(policy.describe())
        self.spec_ref = self.ray.put(
            LearnerSpec(plugins.absolute(kind), config.model_dump_json(), described, weights, seed, strategy, gpus > 0,
                 computing.model_dump_json()))
        self.resources = {"num_cpus": cpus or cpus_per_process(size), "num_gpus": gpus}
        self.checkpoint: State | None = None
        self.taken = False  # whether what no update changes is among that
        self.since: list[tuple[str, tuple[Any, ...]]] = []
        self.failures, self.updates = 0, 0
        self.processes: list[Any] = []  # Ray actors
        self.usages: list[Usage] = []  # of each in the last update
        try:
            self._start()
        except LostProcess as error:
            self._recover(error)

    def _shards(self, size: int) -> partial[None]:
        """The check of batches for so many processes; RecipeError where the recipe's do not divide."""
        divides = partial(check_shards, learners=size, halves=self.config.half_demonstrations)
        if self.config.transitions_per_batch is not None:
            divides("algorithm.batch_size", self.config.transitions_per_batch)
        return divides

    def resize(self, size: int) -> None:
        """Go on with so many processes, from the state as it is: results stay those of an undisturbed run.

        Processes that stay do not start anew. One that dies in the change is replaced, as at any other time.

        Raises:
            RecipeError: batches do not divide by so many.
            NoRoomError: the cluster has no room; the group is that of before.
            RestartLimitError: processes died once too often; the group has ended.
        """
        divides = self._shards(size)
        if size == self.size:
            return
        check_room("learner group", size - self.size, self.resources)
        self._keep()
        self.divides, before = divides, self.size
        added: list[Any] = []
        try:
            added = [self._spawn(rank) for rank in range(before, size)]
            self.ray.get([process.__ray_ready__.remote() for process in added], timeout=START_S)
        except self.ray.exceptions.GetTimeoutError as error:
            for process in added:
                self.ray.kill(process)
            self.divides = self._shards(before)
            raise no_room("learner group", size, self.resources, START_S) from error
        except lost():  # all are started anew
            pass
        for process in self.processes[size:]:
            self.ray.kill(process)
        self.processes, self.size = self.processes[:size] + added, size
        try:
            try:
                self.ray.get([process.place.remote(rank, size) for rank, process in enumerate(self.processes)])
                self._join()
                self._restore()
            except lost() as error:
                raise _lost(error) from error
        except LostProcess as error:
            try:
                self._recover(error)
            except NoRoomError as ended:  # not a refused change: the group is gone
                raise RestartLimitError(str(ended)) from ended

    def update(self, batch: dict[str, np.ndarray] | Rollout) -> dict[str, float]:
        """One update on a batch, each process on its shard; returns metrics of the whole batch."""
        if not isinstance(batch, Rollout):
            self.divides("batch", len(next(iter(batch.values()))))
        answers = self._call("update", self.ray.put(batch))
        self.updates, self.usages = answers[0][1], [usage for _, _, usage in answers]
        if isinstance(batch, Rollout) or len(self.since) >= KEEP:
            self._keep()
        return {name: float(np.mean([metrics[name] for metrics, _, _ in answers])) for name in answers[0][0]}

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Centre and scale observations (N, V) alike in every encoder."""
        self._call("fit_normalisation", self.ray.put(vectors))

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,) of observations in every encoder."""
        self._call("normalise", np.asarray(mean), np.asarray(std))

    def wants_more(self, rollout: Rollout, rollouts: int) -> bool:
        """Whether to play on before learning, as the learner says by its settings."""
        probe = object.__new__(self.learner)  # which has no networks here, and is asked about settings alone
        probe.config = self.config
        return probe.wants_more(rollout, rollouts)

    def sync(self) -> NetworkPolicy:
        """Bring the weights as they are now into the policy of this process; returns the policy."""
        self.policy.load_state_dict(self.state_dict()["modules"][self.name])
        return self.policy

    def ship(self, policy: NetworkPolicy) -> None:
        """Bring the averaged weights into ``policy``, if there are any."""
        modules = self.state_dict()["modules"]
        if AVERAGED in modules:
            policy.load_state_dict(modules[AVERAGED])

    def state_dict(self) -> State:
        """Everything but the data, whole: that of a learner in one process."""
        return self._keep() if self.since or self.checkpoint is None else self.checkpoint

    def load_state_dict(self, state: State) -> None:
        """Go on from a state, of a group of any size or of a learner in one process."""
        self.checkpoint, self.since, self.updates, self.taken = state, [], state["updates"], False
        try:
            self._restore()
        except LostProcess as error:
            self._recover(error)
        self._keep()  # the caller may go on with what it gave

    def off(self) -> int:
        """Have all processes leave their devices; returns the bytes of one. ``on`` brings them back."""
        return self._moved("off")

    def on(self) -> int:
        """Have all processes come back to their devices; returns the bytes of one."""
        return self._moved("on")

    def _moved(self, direction: str) -> int:
        try:
            size: int = self._ask(direction)[0]
            return size
        except LostProcess as error:  # those that start anew are on their devices
            self._recover(error)
            return 0

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            self.ray.kill(process)
        self.processes = []

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        """The answers of all processes; the call is remembered until the state that it leads to is kept."""
        self.since.append((name, arguments))
        try:
            return self._ask(name, *arguments)
        except LostProcess as error:
            return self._recover(error)

    def _keep(self) -> State:
        """Take the state, and forget the calls that led to it."""
        while True:
            try:
                state: State = self._ask("state_dict", not self.taken)[0]
                if self.taken and self.checkpoint:
                    before = self.checkpoint["modules"]
                    state["modules"] = {name: before[name] | weights for name, weights in state["modules"].items()}
                self.checkpoint, self.since, self.taken = state, [], True
                return state
            except LostProcess as error:
                self._recover(error)

    def _recover(self, lost: LostProcess) -> list[Any]:
        """Start all processes anew and repeat the calls since the kept state; the answers to the last of them."""
        while True:
            self.close()
            self.failures += 1
            if self.failures > self.restarts:
                raise RestartLimitError(f"learner group: a process died ({lost}), and placement.restarts = {self.restarts} "
                                   f"times all {self.size} have started again. Memory may have run out: look at the "
                                   "system's log (dmesg), then resume from the last checkpoint") from lost
            print(f"learner group: a process died; all {self.size} start again and repeat {len(self.since)} calls",
                  flush=True)
            try:
                self._start()
                return self._restore()
            except LostProcess as error:
                lost = error

    def _start(self) -> None:
        """Start the processes and let them find each other."""
        ray = self.ray
        self.processes = [self._spawn(rank) for rank in range(self.size)]
        try:
            ray.get([process.__ray_ready__.remote() for process in self.processes], timeout=START_S)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise no_room("learner group", self.size, self.resources, START_S) from error
        except lost() as error:
            raise _lost(error) from error
        self._join()

    def _join(self) -> None:
        """Let the processes find each other and make their learners."""
        try:
            meeting = self.ray.get(self.processes[0].open.remote())
        except lost() as error:
            raise _lost(error) from error
        self.name = self._ask("join", meeting, self.spec_ref)[0]

    def _spawn(self, rank: int) -> Any:
        quiet = {"env_vars": {"TORCH_CPP_LOG_LEVEL": "ERROR"}}  # torch warns where an optimiser has no unused parameters
        return self.ray.remote(runtime_env=quiet, **self.resources)(LearnerProcess).remote(rank, self.size)

    def _restore(self) -> list[Any]:
        """Bring the kept state and the calls since into the processes; the answers to the last of them."""
        answers: list[Any] = []
        if self.checkpoint is not None:
            answers = self._ask("load_state_dict", self.ray.put(self.checkpoint))
        for name, arguments in self.since:
            answers = self._ask(name, *arguments)
        return answers

    def _ask(self, name: str, *arguments: Any) -> list[Any]:
        """The answers of all processes, which act at the same time."""
        ray = self.ray
        try:
            return ray.get([getattr(process, name).remote(*arguments) for process in self.processes])
        except lost() as error:
            raise _lost(error) from error
        except ray.exceptions.RayTaskError as error:  # the others of one that died fail too, and may be heard first
            if self._one_is_lost():
                raise _lost(error) from error
            cause = error.cause if isinstance(error.cause, RlinfError) else None
            raise cause or RlinfError(f"learner group: {name} failed: {error}") from error

    def _one_is_lost(self) -> bool:
        alive = [process.__ray_ready__.remote() for process in self.processes]
        ready, _ = self.ray.wait(alive, num_returns=self.size, timeout=NOTICE_S)
        try:
            self.ray.get(ready)
        except lost():
            return True
        return False
