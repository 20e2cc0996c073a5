"""The processes of a run and their resources on Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from rlinf_core.config.base import Settings
from rlinf_core.core.errors import RecipeError

PER_CPU = 8  # processes that may share one CPU
FULL_GPU = 10_000  # parts of a GPU that Ray distinguishes


CHOSEN = ("workers", "learners", "mode")  # keys that a run may choose


class Placement(Settings):
    """Learning and playing processes, and their devices. Ray is asked for these numbers of GPUs.

    ``placement: auto`` is short for ``placement: {auto: true}``.
    """

    auto: bool | None = Field(
        None,
        description="`true` chooses workers, learners and mode from measurements and changes them "
        "during the run; values that the recipe sets stay. `false` keeps the layout. Empty keeps "
        "it too, but a run in simulators without any key of placement moves to workers if that "
        "saves 30 % of a turn and a minute of the run",
    )
    fixed: tuple[Literal["workers", "learners", "mode"], ...] = Field(
        (),
        description="keys that placement.auto does not change. Empty means all keys that the "
        "recipe sets",
    )

    ray: str = Field(
        "",
        pattern=r"^([^\s:/]+:\d{1,5})?$",
        description="host:port of a Ray cluster. Empty starts one on this machine, on loopback "
        "alone",
    )
    learners: int = Field(
        0,
        ge=0,
        le=1024,
        description="learner processes. Each takes a shard of every batch. 0 "
        "learns in the trainer's process",
    )
    strategy: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="`ddp` copies everything to each learner (DistributedDataParallel). "
        "`fsdp` divides weights, gradients and moments among them (FSDP2)",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="learners that divide each layer of a transformer (tensor parallelism). They "
        "learn from the same rows, so `learners` is a multiple of this number. For language "
        "models and VLA models, with strategy ddp",
    )
    restarts: int = Field(
        3,
        ge=0,
        description="largest number of restarts of dead learners in a run. Restarted "
        "learners repeat the lost work",
    )
    workers: int = Field(
        0,
        ge=0,
        le=1024,
        description="rollout workers. Each has a share of the environments. 0 "
        "plays in the trainer's process",
    )
    simulators: int = Field(
        0,
        ge=0,
        le=1024,
        description="processes that only step environments. One policy acts on "
        "all of them in one batch. 0 steps them in the policy's "
        "process",
    )
    ingest: int = Field(
        0,
        ge=0,
        le=256,
        description="processes on any machine that read and check episodes of "
        "stations. 0 reads them in the trainer's process",
    )
    replay_shards: int = Field(
        0,
        ge=0,
        le=256,
        description="processes on any machine that each hold a part of the "
        "replay. 0 holds it in the trainer's process",
    )
    mode: Literal["collocated", "disaggregated", "pipelined"] = Field(
        "collocated",
        description="`collocated` shares devices in turns. `disaggregated` has "
        "separate devices. `pipelined` also plays during updates, with "
        "a policy that is one update old",
    )
    offload: bool = Field(
        False,
        description="move the learners' weights off their device during rollouts, and the "
        "workers' policies during updates. Not for pipelined",
    )
    learner_gpus: float = Field(0.0, ge=0, description="GPUs of each learner. 0 learns on CPUs")
    worker_gpus: float = Field(
        0.0, ge=0, description="GPUs of each worker, for policy and simulators. 0 takes none"
    )

    @model_validator(mode="before")
    @classmethod
    def _reads_auto(cls, data: Any) -> Any:
        if isinstance(data, str) and data == "auto":
            data = {"auto": True}
        if isinstance(data, dict) and data.get("auto") is True and "fixed" not in data:
            data = data | {"fixed": tuple(key for key in CHOSEN if key in data)}
        if isinstance(data, dict) and isinstance(data.get("fixed"), list):
            data = data | {"fixed": tuple(data["fixed"])}  # JSON has no tuples
        return data

    @model_validator(mode="after")
    def _divides_layers(self) -> Placement:
        if self.tensor_parallel == 1:
            return self
        if not self.learners or self.learners % self.tensor_parallel:
            raise ValueError(
                f"learners: expected a multiple of tensor_parallel = {self.tensor_parallel}, got "
                f"{self.learners}"
            )
        if self.strategy == "fsdp" or self.offload:
            key, value = ("strategy", "ddp") if self.strategy == "fsdp" else ("offload", "false")
            raise ValueError(
                f"{key}: expected {value} with tensor_parallel = {self.tensor_parallel}, got "
                f"{'fsdp' if key == 'strategy' else 'true'}"
            )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Placement:
        if self.fixed and not self.auto:
            raise ValueError(f"fixed: expected none without auto, got {', '.join(self.fixed)}")
        if self.simulators % max(self.workers, 1):
            raise ValueError(
                f"simulators: expected a multiple of workers = {self.workers}, got "
                f"{self.simulators}"
            )
        if self.offload and (self.mode == "pipelined" or (self.auto and "mode" not in self.fixed)):
            raise ValueError(
                "offload: expected false if workers play during updates (mode pipelined, or auto, "
                "which may choose it), since both then need their device, got true. Set mode to "
                "collocated"
            )
        if self.offload and self.strategy == "fsdp":
            raise ValueError(
                "offload: expected false with strategy fsdp, whose weights are sharded, got true. "
                "Set strategy to ddp"
            )
        if (
            self.auto
            and self.mode != "collocated"
            and not self.workers
            and "workers" not in self.fixed
        ):
            return self  # the run chooses the number
        if self.mode != "collocated" and not self.workers:
            raise ValueError(f"workers: expected at least 1 for mode {self.mode}, got 0")
        for processes, count, gpus in (
            ("learner", self.learners, self.learner_gpus),
            ("worker", self.workers, self.worker_gpus),
        ):
            if gpus and not count:
                raise ValueError(
                    f"{processes}_gpus: expected 0 without {processes}s on Ray, got {gpus:g}; the "
                    "trainer's own process takes the recipe's device"
                )
            if gpus % 1 and (self.mode != "collocated" or gpus > 1):
                raise ValueError(
                    f"{processes}_gpus: expected a whole number of GPUs in mode {self.mode}"
                    f"{' (or a fraction of one)' if self.mode == 'collocated' else ''}, got "
                    f"{gpus:g}"
                )
        if self.learners > 1 and 0 < self.learner_gpus <= 0.5:
            raise ValueError(
                "learner_gpus: expected more than 0.5, since two learners cannot share a GPU "
                f"(NCCL), got {self.learner_gpus:g}"
            )
        return self

    @property
    def data_parallel(self) -> int:
        """Number of learners, or groups of learners, that divide the rows of a batch."""
        return self.learners // self.tensor_parallel

    @property
    def processes(self) -> int:
        """Number of processes on Ray that compute all the time."""
        return self.learners + self.workers + self.simulators

    @property
    def on_ray(self) -> dict[str, int]:
        """All processes on Ray, by their purpose, without zero counts."""
        every = {
            "learners": self.learners,
            "workers": self.workers,
            "simulators": self.simulators,
            "processes of ingest": self.ingest,
            "replay shards": self.replay_shards,
        }
        return {process_name: count for process_name, count in every.items() if count}

    @property
    def gpus(self) -> float:
        """The GPUs of all processes on Ray."""
        return self.learners * self.learner_gpus + self.workers * self.worker_gpus


def check_placement(
    placement: Placement, resources: dict[str, float], machines: Sequence[float] = ()
) -> None:
    """Check before the start that a cluster has a placement's resources.

    Args:
        placement: the request.
        resources: the available resources, by Ray's names (``ray_cluster.resources``).
        machines: GPUs of each machine; by default one machine has them all.

    Raises:
        RecipeError: the resources are too small; the message has both sides and the remedy.
    """
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    where = f"the cluster at {placement.ray}" if placement.ray else "this machine"
    if (process_count := sum(placement.on_ray.values())) > PER_CPU * cpus:
        processes = " + ".join(
            f"{count} {process_name}" for process_name, count in placement.on_ray.items()
        )
        raise RecipeError(
            f"placement: {processes} are {process_count} processes; {where} has {cpus:g} CPUs, "
            f"which are enough for {PER_CPU * cpus:.0f}. Ask for fewer, or name a larger cluster "
            "in placement.ray"
        )
    if placement.gpus > gpus:
        raise RecipeError(
            f"placement: {placement.learners} learners and {placement.workers} workers ask for "
            f"{placement.learners} x {placement.learner_gpus:g} + {placement.workers} x "
            f"{placement.worker_gpus:g} = {placement.gpus:g} GPUs; {where} has {gpus:g}. Lower "
            "placement.learner_gpus or placement.worker_gpus (0 for CPUs), or name a larger "
            "cluster in placement.ray"
        )
    if not _packed(placement, machines or [gpus]):
        raise RecipeError(
            f"placement: {placement.learners} learners of {placement.learner_gpus:g} GPUs each and "
            f"{placement.workers} workers of {placement.worker_gpus:g} do not fit into the GPUs of "
            f"{where}, which has {' + '.join(f'{count:g}' for count in machines or [gpus])}. A "
            "share below 1 must fit on one GPU, and each process on one machine. Request fewer or "
            "other shares in placement.learner_gpus and placement.worker_gpus, or for fewer "
            "processes"
        )


def _packed(placement: Placement, machines: Sequence[float]) -> bool:
    """Return True if every process finds its GPUs, the largest first, with the least left over."""
    free = [[FULL_GPU] * int(gpus) for gpus in machines]
    demands = [placement.learner_gpus] * placement.learners + [
        placement.worker_gpus
    ] * placement.workers
    for gpus in sorted(demands, reverse=True):
        if gpus >= 1:
            able = [machine for machine in free if machine.count(FULL_GPU) >= gpus]
            if not able:
                return False
            machine = min(able, key=lambda candidate: candidate.count(FULL_GPU))
            for _ in range(int(gpus)):
                machine[machine.index(FULL_GPU)] = 0
        elif part := round(FULL_GPU * gpus):
            fits = [(left, machine) for machine in free for left in machine if left >= part]
            if not fits:
                return False
            left, machine = min(fits, key=lambda candidate: candidate[0])
            machine[machine.index(left)] -= part
    return True


def check_shards(name: str, rows: int, learners: int, halves: bool) -> None:
    """Check that several learners get equal numbers of a batch's rows.

    Args:
        name: name of the batch, for the message.
        rows: number of its rows.
        learners: number of processes.
        halves: True if the batch has two halves, demonstrations and play, each divided.

    Raises:
        RecipeError: the rows cannot be divided.
    """
    multiple = learners * (2 if halves else 1)
    if rows % multiple:
        raise RecipeError(
            f"{name}: expected a multiple of {multiple}, since {learners} processes "
            "(placement.learners) learn from as many rows "
            f"each{' in each of two halves' if halves else ''}; got {rows}"
        )
