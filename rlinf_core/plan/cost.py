"""The cost of one turn in a layout: cores, GPUs, memory, pipelining, transfer and switching.

All processes of a machine share the work on its cores. Waiting (a sleeping or remote simulator) is
not shared: the number of processes divides it. So two numbers per node say how it scales. A third
one, ``fixed_s``, does not divide at all: a policy takes nearly as long for four observations as for
eight. Pipelined processes share the cores in equal parts, as Linux schedules them: a process that
sleeps a part of the time leaves the rest of its part to the others. A process that never sleeps
stays on its core until another core has none (``pinned_seconds``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlinf_core.plan.graph import DATA, ENVIRONMENT, LEARNER, POLICY, WEIGHTS

GPU, CPU = "gpu", "cpu"
CONTENDED = 0.02  # relative loss to shared cores above which they bound a turn
SLEEPLESS = 0.05  # fraction of waiting below which a process counts as one that never sleeps
MAX_PINNED = 64  # processes beyond which their cores are not simulated


@dataclass(frozen=True)
class Machine:
    """Resources of a machine or cluster.

    Attributes:
        cpus: cores.
        gpus: devices.
        gpu_bytes: memory of each device [bytes]; 0 if unknown.
        free_bytes: host memory for new processes [bytes]; 0 if unknown.
    """

    cpus: float
    gpus: int = 0
    gpu_bytes: float = 0.0
    free_bytes: float = 0.0


@dataclass(frozen=True)
class Layout:
    """Processes of a run and their order.

    Attributes:
        workers: rollout workers; 0 plays in the trainer's process.
        learners: learner processes; 0 learns in the trainer's process.
        pipelined: workers play while the learners learn.
        simulators: processes that step environments for a policy elsewhere; 0 steps them beside the
            policy.
        worker_gpus, learner_gpus: GPUs of each.
        tensor_parallel: learners that divide each layer; 1 if each has whole layers.
    """

    workers: int = 0
    learners: int = 0
    pipelined: bool = False
    simulators: int = 0
    worker_gpus: float = 0.0
    learner_gpus: float = 0.0
    tensor_parallel: int = 1

    def __str__(self) -> str:
        def describe(count: int, noun: str, work: str, gpus: float) -> str:
            if not count:
                return f"{work} in the trainer's process"
            devices = f" on {gpus:g} GPU{'' if gpus == 1 else 's'} each" if gpus else ""
            return f"{count} {noun}{'' if count == 1 else 's'}{devices}"

        stepping = f", {self.simulators} simulator processes" if self.simulators else ""
        order = "pipelined" if self.pipelined else "in turns"
        groups = (
            f" (layers divided among {self.tensor_parallel})" if self.tensor_parallel > 1 else ""
        )
        rollouts = describe(self.workers, "worker", "rollouts", self.worker_gpus)
        updates = describe(self.learners, "learner", "updates", self.learner_gpus)
        return f"{rollouts}, {updates}{groups}{stepping}, {order}"


@dataclass(frozen=True)
class NodeCost:
    """Seconds of a node in one turn.

    Attributes:
        busy_s: seconds of a core (or of a GPU), all processes together; the number of processes
            divides it.
        wait_s: seconds without a core; the number of processes divides it, too.
        fixed_s: core seconds that every process spends, whatever its share.
        join_s: extra seconds if several processes must agree, as on learners' gradients.
        call_s: extra seconds if the work is in another process than the trainer's.
        peak_bytes: largest memory of a process [bytes].
        gpu_speed: speed-up of busy and fixed seconds on a GPU; 0 if the node cannot use one.
    """

    busy_s: float = 0.0
    wait_s: float = 0.0
    fixed_s: float = 0.0
    join_s: float = 0.0
    call_s: float = 0.0
    peak_bytes: float = 0.0
    gpu_speed: float = 0.0

    def seconds(self, size: int, on_gpu: bool = False) -> float:
        """Return wall-clock seconds of ``size`` processes on as many free cores."""
        speed = self.gpu_speed if on_gpu and self.gpu_speed else 1.0
        return (
            self.fixed_s / speed
            + (self.busy_s / speed + self.wait_s) / size
            + self.join_s * (size > 1)
        )

    def load_s(self, size: int, on_gpu: bool = False) -> float:
        """Return core seconds of ``size`` processes together; none if a GPU does the work."""
        return 0.0 if on_gpu and self.gpu_speed else self.busy_s + size * self.fixed_s


@dataclass(frozen=True)
class Costs:
    """The costs of one turn of a run.

    Attributes:
        nodes: by name; a missing node costs nothing.
        steps: time steps of a turn, over all environments.
        measured: names of measured nodes; the others are guesses.
        switch_s: seconds for one GPU to change hands between rollout and learner, there and back.
        resident_bytes: host memory of the largest process [bytes]; 0 if unknown.
        stages: groups of environments that alternate, if simulators are separate processes.
    """

    nodes: Mapping[str, NodeCost]
    steps: float = 1.0
    measured: frozenset[str] = frozenset()
    switch_s: float = 0.0
    resident_bytes: float = 0.0
    stages: int = 2

    def node(self, name: str) -> NodeCost:
        """Return the cost of a node."""
        return self.nodes.get(name, NodeCost())


@dataclass(frozen=True)
class Expectation:
    """The expected seconds of one turn.

    Attributes:
        seconds: duration of the turn.
        parts: seconds of rollout, learner, data, weights and switching, by name.
        limit: the bottleneck of the turn, in words.
        rate: time steps per second.
    """

    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""
    rate: float = 0.0


def overlapped_seconds(
    players: int, play: tuple[float, float], learners: int, learn: tuple[float, float], cores: float
) -> float:
    """Return the seconds until rollout and updates, which begin together, have both ended.

    Cores are shared in equal parts. What a process does not need of its part goes to the others
    (max-min fairness). When one side has ended, the other one continues alone.

    Args:
        players, learners: processes of each side.
        play, learn: (busy, idle) seconds of each of their processes.
        cores: of the machine.
    """
    sides = ((players, *play), (learners, *learn))
    separate = [max(busy + idle, count * busy / cores) for count, busy, idle in sides]
    needs = [busy / max(busy + idle, 1e-12) for _, busy, idle in sides]
    small = needs.index(min(needs))
    share = (cores - sides[small][0] * needs[small]) / sides[1 - small][0]
    if share < needs[small]:
        share = cores / (players + learners)
    together = [
        busy / share if share < need else busy + idle
        for (_, busy, idle), need in zip(sides, needs, strict=True)
    ]
    first = min(together)
    rests = [
        (1.0 - first / max(seconds, 1e-12)) * after
        for seconds, after in zip(together, separate, strict=True)
    ]
    return first + max(rests)


def call_queue(workers: int, machine: Machine) -> float:
    """Return the factor on the seconds of calls to workers that share cores.

    Each worker unpacks weights and packs experience on a core.
    """
    return max(1.0, workers / machine.cpus)


def pinned_seconds(work: Sequence[float], cores: int) -> float:
    """Return the seconds until processes that never sleep have ended.

    Each stays on its core and shares it in equal parts. A core without a process takes one of the
    core with most of them, as Linux does.

    Args:
        work: core seconds of each process, in the order of their start.
        cores: of the machine.
    """
    queues = [list(work[core::cores]) for core in range(cores)]
    seconds = 0.0
    while any(queues):
        step = min(min(queue) * len(queue) for queue in queues if queue)
        seconds += step
        queues = [
            [left - step / len(queue) for left in queue if left > step / len(queue) * (1 + 1e-9)]
            for queue in queues
        ]
        for queue in queues:
            longest = max(queues, key=len)
            if not queue and len(longest) > 1:
                queue.append(max(longest))
                longest.remove(queue[0])
    return seconds


def expected_turn(costs: Costs, layout: Layout, machine: Machine) -> Expectation:
    """Return the expected seconds of one turn in a layout."""
    workers, learners = max(layout.workers, 1), max(layout.learners, 1)
    environment, policy = costs.node(ENVIRONMENT), costs.node(POLICY)
    learner, weights = costs.node(LEARNER), costs.node(WEIGHTS)
    acts_on_gpu, learns_on_gpu = layout.worker_gpus > 0, layout.learner_gpus > 0
    acting = policy.seconds(workers, acts_on_gpu)
    players = max(workers, layout.simulators)
    rollout_load = environment.load_s(players) + policy.load_s(workers, acts_on_gpu)
    if layout.simulators:
        stepping = environment.seconds(layout.simulators)
        longest = max(stepping, acting)
        # the first stage fills the pipeline
        rollout = longest + (stepping + acting - longest) / costs.stages
    else:
        rollout = environment.seconds(workers) + acting
    busy = rollout_load / players
    play = busy, max(0.0, rollout - busy)
    straggler_s = environment.join_s * (players > 1)
    rollout = max(rollout, rollout_load / machine.cpus + straggler_s)
    load = learner.load_s(learners, learns_on_gpu)
    learn = max(learner.seconds(learners, learns_on_gpu), load / machine.cpus)
    learn += learner.call_s if layout.learners else 0.0
    data = costs.node(DATA).seconds(1)
    send = weights.fixed_s + weights.busy_s * workers if layout.workers else 0.0
    send *= call_queue(workers, machine)
    gpus = layout.worker_gpus * layout.workers + layout.learner_gpus * layout.learners
    share_gpus = gpus > machine.gpus > 0
    switch = costs.switch_s if share_gpus else 0.0
    parts = {
        "rollout": rollout,
        "learner": learn,
        "data": data,
        "weights": send,
        "switch": switch,
    }
    if layout.pipelined:
        update = load / learners + costs.node(DATA).load_s(1)
        rest = max(0.0, learner.seconds(learners, learns_on_gpu) - load / learners)
        rest += data - costs.node(DATA).load_s(1) + (learner.call_s if layout.learners else 0.0)
        both = overlapped_seconds(players, play, learners, (update, rest), machine.cpus)
        never_sleep = all(idle < SLEEPLESS * busy for busy, idle in (play, (update, rest)))
        if never_sleep and machine.cpus < players + learners <= MAX_PINNED:
            work = [play[0]] * players + [update] * learners
            both = max(both, pinned_seconds(work, int(machine.cpus)))
        separate = max(rollout, learn + data)
        if both > separate * (1 + CONTENDED):
            limit = "the cores"
        elif rollout >= learn + data:
            limit = "the rollout"
        else:
            limit = "the learner"
        total = both + send
    else:
        total, limit = rollout + learn + data + send + switch, "the sum of rollout and learner"
    return Expectation(total, parts, limit, costs.steps / total if total > 0 else 0.0)
