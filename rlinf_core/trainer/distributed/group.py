"""A group of learner processes on Ray that act as one learner and survive the death of a process.

Every process gets every call with the same batches in the same order. Each T neighbouring
processes may divide the layers of a transformer; they learn from the same rows. So the group's
result is a function of its state and of the calls since then. This process keeps the last state,
and Ray's object store keeps the calls. When a process dies, all processes restart from that state
and repeat the calls. The result equals that of an undisturbed run. Constant weights (a frozen base
model) are fetched once.
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
from rlinf_core.algorithms.common.data_parallel import Strategy, parallelise, update_weights
from rlinf_core.algorithms.common.learner import AVERAGED
from rlinf_core.algorithms.common.mixed_precision import apply_computing
from rlinf_core.algorithms.common.offload import Offload
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.settings import PLAIN, AlgorithmSettings, Computing
from rlinf_core.algorithms.common.tensor_parallel import check_divisible
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError, RestartLimitError, RlinfError
from rlinf_core.core.usage import Usage, measure_usage
from rlinf_core.policies import encoder, policy_config, policy_kind
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.recipes.placement import check_shards
from rlinf_core.specs.embodiment import spec_of
from rlinf_core.trainer.distributed.ray_cluster import (
    START_S,
    NoRoomError,
    check_room,
    check_started,
    connect,
    cpus_per_process,
    lost_errors,
    no_room_error,
)


@dataclass(frozen=True)
class LearnerSpec:
    """The description of a learner without classes, because a user's own file may define them.

    Attributes:
        kind: name of the algorithm.
        config: settings of the algorithm, as JSON.
        policy: specs and settings of the policy, as JSON.
        weights: weights of the policy by name.
        seed: seed of weights and noise.
        strategy: ddp or fsdp.
        on_gpu: whether it uses the GPU that Ray assigned.
        computing: precision and compilation, as JSON.
        tensor_parallel: number of processes that divide each layer.
    """

    kind: str
    config: str
    policy: str
    weights: dict[str, np.ndarray]
    seed: int
    strategy: Strategy
    on_gpu: bool
    computing: str
    tensor_parallel: int


class LearnerProcess:
    """Ray actor of one learner.

    All methods but ``open`` are called in all processes at the same time.
    """

    def __init__(self, rank: int, size: int) -> None:
        import ray

        self.rank = rank
        self.size = size
        self.address = ray.util.get_node_ip_address()
        # Ray has assigned these CPUs
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        if self.address == "127.0.0.1":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def place(self, rank: int, size: int) -> None:
        """Set rank and size of a resized group; ``join`` follows."""
        self.rank, self.size = rank, size

    def open(self) -> tuple[str, int]:
        """Listen as the first process, and return host and port for the others."""
        self.listening = socket.create_server((self.address, 0))
        return self.address, self.listening.getsockname()[1]

    def join(self, rendezvous: tuple[str, int], learner_spec: LearnerSpec) -> str:
        """Join the process group and create the learner; a repeated call starts anew.

        Returns:
            The name of the policy among the learner's modules.
        """
        if dist.is_initialized():
            dist.destroy_process_group()
        # Ray shows each process only its own GPUs
        device = torch.device("cuda:0" if learner_spec.on_gpu else "cpu")
        if learner_spec.on_gpu:
            torch.cuda.set_device(device)
        fd = self.listening.detach() if self.rank == 0 else None
        store = dist.TCPStore(*rendezvous, self.size, is_master=self.rank == 0, master_listen_fd=fd)
        dist.init_process_group(
            "nccl" if learner_spec.on_gpu else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.size,
        )
        description = json.loads(learner_spec.policy)
        config = policy_config(description["config"]["kind"]).model_validate_json(
            json.dumps(description["config"])
        )
        spec = spec_of(description["spec"])
        module = algorithm(learner_spec.kind)
        settings = module.Config.model_validate_json(learner_spec.config)
        with encoder.without_image_weights():  # the files that it was made from may be missing here
            policy = policy_kind(config.kind).Policy.rebuild(spec, config, description)
            policy.load_state_dict(
                {name: torch.tensor(values) for name, values in learner_spec.weights.items()}
            )
            self.learner = module.Learner(policy.to(device).train(), settings, learner_spec.seed)
        parallelise(
            self.learner,
            learner_spec.strategy,
            tensor_parallel=learner_spec.tensor_parallel,
        )
        apply_computing(self.learner, Computing.model_validate_json(learner_spec.computing))
        self.offload = Offload(self.learner)
        return next(name for name, module in self.learner.modules.items() if module is policy)

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def update(self, batch: Any) -> tuple[dict[str, float], int, Usage]:
        """Update on this process's shard. Returns metrics, number of updates, and usage."""
        with measure_usage() as usage, update_weights(self.learner):
            metrics = self.learner.update(batch)
        return metrics, self.learner.updates, usage

    def off(self) -> int:
        """Move the learner off its device. Returns the bytes."""
        return self.offload.off()

    def on(self) -> int:
        """Move the learner back to its device. Returns the bytes."""
        return self.offload.on()

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        self.learner.fit_normalisation(vectors)

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        self.learner.normalise(mean, std)

    def state_dict(self, full: bool = True) -> dict[str, Any] | None:
        """Return the state in the first process, else None.

        Constant weights are included only if ``full``.
        """
        state = self.learner.state_dict({} if full else self.learner.constant_weights())
        return _on_cpu(state) if self.rank == 0 else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)


def _on_cpu(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _on_cpu(value) for name, value in state.items()}
    return state.cpu() if isinstance(state, torch.Tensor) else state


# updates after which the state is fetched; with rollouts it is fetched after each update
FETCH_EVERY = 16
# time for Ray to notice a dead process [s]
NOTICE_S = 10.0

State = dict[str, Any]


class LostProcessError(Exception):
    """A process of the group has died."""


def _lost_process(error: Exception) -> LostProcessError:
    check_started("learner group", error)
    return LostProcessError(str(error).partition("\n")[0])


class LearnerGroup:
    """A learner in N processes, with the interface of a ``Learner``.

    Args:
        kind: name of the algorithm.
        policy: initial policy; ``sync`` copies the trained weights into it.
        config: settings of the algorithm.
        seed: seed of weights and noise.
        size: number of processes.
        strategy: ``ddp`` (each process holds everything) or ``fsdp`` (each holds a part).
        restarts: maximum number of restarts after deaths.
        gpus: GPUs of each process; 0 uses CPUs.
        cpus: CPUs of each process; 0 for one, or less if there are more processes than CPUs.
        computing: precision and compilation.
        tensor_parallel: number of processes that divide each layer of a transformer. ``size`` is a
            multiple of it.

    Raises:
        RecipeError: the batch is no multiple of the processes, or the algorithm or the policy
            cannot be split.
        RestartLimitError: the cluster has no room.
    """

    def __init__(
        self,
        kind: str,
        policy: NetworkPolicy,
        config: AlgorithmSettings,
        seed: int,
        *,
        size: int,
        strategy: Strategy,
        restarts: int = 3,
        gpus: float = 0.0,
        cpus: float = 0.0,
        computing: Computing = PLAIN,
        tensor_parallel: int = 1,
    ) -> None:
        check_divisible(policy, tensor_parallel)
        if tensor_parallel > 1 and getattr(config, "lora_rank", None):
            raise RecipeError(
                "placement.tensor_parallel: expected 1 with algorithm.lora_rank, whose adapters "
                f"are merged into the policy, got {tensor_parallel}. Use policy.lora instead"
            )
        self.ray = connect()
        self.tensor_parallel = tensor_parallel
        self.policy, self.config, self.size, self.restarts = policy, config, size, restarts
        self.learner = algorithm(kind).Learner
        self.divides = self._shards(size)
        weights = {name: tensor.numpy(force=True) for name, tensor in policy.state_dict().items()}
        description = json.dumps(policy.describe())
        self.spec_ref = self.ray.put(
            LearnerSpec(
                plugins.with_absolute_path(kind),
                config.model_dump_json(),
                description,
                weights,
                seed,
                strategy,
                gpus > 0,
                computing.model_dump_json(),
                tensor_parallel,
            )
        )
        self.resources = {"num_cpus": cpus or cpus_per_process(size), "num_gpus": gpus}
        self.checkpoint: State | None = None
        self.has_constants = False  # whether the checkpoint includes the constant weights
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failures, self.updates = 0, 0
        self.processes: list[Any] = []  # Ray actors
        self.usages: list[Usage] = []  # usage of each in the last update
        try:
            self._start()
        except LostProcessError as error:
            self._recover(error)

    def _shards(self, size: int) -> partial[None]:
        """Return the check of batches for ``size`` processes.

        Raises RecipeError if the recipe's batches, or the processes themselves, do not divide.
        """
        if size % self.tensor_parallel:
            raise RecipeError(
                f"placement.learners: expected a multiple of placement.tensor_parallel = "
                f"{self.tensor_parallel}, got {size}"
            )
        divides = partial(
            check_shards,
            learners=size // self.tensor_parallel,
            halves=self.config.half_demonstrations,
        )
        if self.config.transitions_per_batch is not None:
            divides("algorithm.batch_size", self.config.transitions_per_batch)
        return divides

    def resize(self, size: int) -> None:
        """Change the number of processes without a change of state or results.

        Remaining processes do not restart. A process that dies meanwhile is replaced.

        Raises:
            RecipeError: the batch is no multiple of ``size``.
            NoRoomError: the cluster has no room; the size stays.
            RestartLimitError: processes died too often; the group has ended.
        """
        divides = self._shards(size)
        if size == self.size:
            return
        check_room("learner group", size - self.size, self.resources)
        self._fetch_state()
        self.divides = divides
        before = self.size
        added: list[Any] = []
        try:
            added = [self._spawn(rank) for rank in range(before, size)]
            self.ray.get([process.__ray_ready__.remote() for process in added], timeout=START_S)
        except self.ray.exceptions.GetTimeoutError as error:
            for process in added:
                self.ray.kill(process)
            self.divides = self._shards(before)
            raise no_room_error("learner group", size, self.resources, START_S) from error
        except lost_errors():  # all restart below
            pass
        for process in self.processes[size:]:
            self.ray.kill(process)
        self.processes = self.processes[:size] + added
        self.size = size
        try:
            try:
                self.ray.get(
                    [
                        process.place.remote(rank, size)
                        for rank, process in enumerate(self.processes)
                    ]
                )
                self._join()
                self._restore()
            except lost_errors() as error:
                raise _lost_process(error) from error
        except LostProcessError as error:
            try:
                self._recover(error)
            except NoRoomError as ended:  # the group has ended
                raise RestartLimitError(str(ended)) from ended

    def update(self, batch: dict[str, np.ndarray] | Rollout) -> dict[str, float]:
        """Update on a batch, each process on its shard. Returns the metrics of the whole batch."""
        if not isinstance(batch, Rollout):
            self.divides("batch", len(next(iter(batch.values()))))
        answers = self._call("update", self.ray.put(batch))
        self.updates = answers[0][1]
        self.usages = [usage for _, _, usage in answers]
        if isinstance(batch, Rollout) or len(self.calls) >= FETCH_EVERY:
            self._fetch_state()
        return {
            name: float(np.mean([metrics[name] for metrics, _, _ in answers]))
            for name in answers[0][0]
        }

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Fit the normalisation of all encoders to observations (N, V)."""
        self._call("fit_normalisation", self.ray.put(vectors))

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and standard deviation (V,) of observations in all encoders."""
        self._call("normalise", np.asarray(mean), np.asarray(std))

    def needs_more_rollouts(self, rollout: Rollout, rollouts: int) -> bool:
        """Return whether the learner needs more experience before it updates."""
        # without networks: the answer depends on settings only
        probe = object.__new__(self.learner)
        probe.config = self.config
        return probe.needs_more_rollouts(rollout, rollouts)

    def sync(self) -> NetworkPolicy:
        """Copy the current weights into this process's policy and return it."""
        self.policy.load_state_dict(self.state_dict()["modules"][self.name])
        return self.policy

    def ship(self, policy: NetworkPolicy) -> None:
        """Copy the averaged weights into ``policy``, if the algorithm averages."""
        modules = self.state_dict()["modules"]
        if AVERAGED in modules:
            policy.load_state_dict(modules[AVERAGED])

    def state_dict(self) -> State:
        """Return the full state; it equals that of a learner in one process."""
        return self._fetch_state() if self.calls or self.checkpoint is None else self.checkpoint

    def load_state_dict(self, state: State) -> None:
        """Restore a state of a group of any size, or of a learner in one process."""
        self.checkpoint = state
        self.calls = []
        self.updates = state["updates"]
        self.has_constants = False
        try:
            self._restore()
        except LostProcessError as error:
            self._recover(error)
        self._fetch_state()  # the caller may change its state afterwards

    def off(self) -> int:
        """Move all learners off their devices. Returns the bytes of one."""
        return self._move("off")

    def on(self) -> int:
        """Move all learners back to their devices. Returns the bytes of one."""
        return self._move("on")

    def _move(self, direction: str) -> int:
        try:
            size: int = self._call_all(direction)[0]
            return size
        except LostProcessError as error:  # restarted processes are on their devices
            self._recover(error)
            return 0

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            self.ray.kill(process)
        self.processes = []

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method in all processes and store the call for a later repeat.

        Returns all answers.
        """
        self.calls.append((name, arguments))
        try:
            return self._call_all(name, *arguments)
        except LostProcessError as error:
            return self._recover(error)

    def _fetch_state(self) -> State:
        """Fetch the state and drop the stored calls."""
        while True:
            try:
                state: State = self._call_all("state_dict", not self.has_constants)[0]
                if self.has_constants and self.checkpoint:
                    before = self.checkpoint["modules"]
                    state["modules"] = {
                        name: before[name] | weights for name, weights in state["modules"].items()
                    }
                self.checkpoint = state
                self.calls = []
                self.has_constants = True
                return state
            except LostProcessError as error:
                self._recover(error)

    def _recover(self, cause: LostProcessError) -> list[Any]:
        """Restart all processes and repeat the stored calls.

        Returns the answers to the last one.
        """
        while True:
            self.close()
            self.failures += 1
            if self.failures > self.restarts:
                raise RestartLimitError(
                    f"learner group: a process died ({cause}), and placement.restarts = "
                    f"{self.restarts} times all {self.size} were restarted. Memory may have run "
                    "out: see the system's log (dmesg), then resume from the last checkpoint"
                ) from cause
            print(
                f"learner group: a process died; all {self.size} restart and repeat "
                f"{len(self.calls)} calls",
                flush=True,
            )
            try:
                self._start()
                return self._restore()
            except LostProcessError as error:
                cause = error

    def _start(self) -> None:
        """Start the processes and join them."""
        ray = self.ray
        self.processes = [self._spawn(rank) for rank in range(self.size)]
        try:
            ray.get([process.__ray_ready__.remote() for process in self.processes], timeout=START_S)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise no_room_error("learner group", self.size, self.resources, START_S) from error
        except lost_errors() as error:
            raise _lost_process(error) from error
        self._join()

    def _join(self) -> None:
        """Form the process group and create the learners."""
        try:
            rendezvous = self.ray.get(self.processes[0].open.remote())
        except lost_errors() as error:
            raise _lost_process(error) from error
        self.name = self._call_all("join", rendezvous, self.spec_ref)[0]

    def _spawn(self, rank: int) -> Any:
        # DDP warns without unused parameters
        quiet = {"env_vars": {"TORCH_CPP_LOG_LEVEL": "ERROR"}}
        return self.ray.remote(runtime_env=quiet, **self.resources)(LearnerProcess).remote(
            rank, self.size
        )

    def _restore(self) -> list[Any]:
        """Load the last state and repeat the stored calls. Returns the answers to the last one."""
        answers: list[Any] = []
        if self.checkpoint is not None:
            answers = self._call_all("load_state_dict", self.ray.put(self.checkpoint))
        for name, arguments in self.calls:
            answers = self._call_all(name, *arguments)
        return answers

    def _call_all(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method in all processes at the same time and return the answers."""
        ray = self.ray
        try:
            return ray.get(
                [getattr(process, name).remote(*arguments) for process in self.processes]
            )
        except lost_errors() as error:
            raise _lost_process(error) from error
        except ray.exceptions.RayTaskError as error:  # peers of a dead process fail, too
            if self._has_lost_process():
                raise _lost_process(error) from error
            cause = error.cause if isinstance(error.cause, RlinfError) else None
            raise cause or RlinfError(f"learner group: {name} failed: {error}") from error

    def _has_lost_process(self) -> bool:
        alive = [process.__ray_ready__.remote() for process in self.processes]
        ready, _ = self.ray.wait(alive, num_returns=self.size, timeout=NOTICE_S)
        try:
            self.ray.get(ready)
        except lost_errors():
            return True
        return False
