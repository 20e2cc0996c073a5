"""Costs from a run's measured turns, by node, size and device; guesses for the rest."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from rlinf_core.algorithms.common.settings import ROLLOUTS
from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.plan.cost import CPU, GPU, Costs, NodeCost
from rlinf_core.plan.graph import DATA, ENVIRONMENT, LEARNER, POLICY, WEIGHTS
from rlinf_core.recipes import Recipe

FILE = "measured.json"
# newest turns of each size that count
MAX_TURNS = 15
# time steps per environment in a turn, of learners with a replay
SLICE = 25
# fraction of a turn that does not divide, used while only one size has been measured
FIXED = {ENVIRONMENT: 0.0, POLICY: 0.6, LEARNER: 0.0, DATA: 0.0}
# extra seconds per gradient step of several learners, until measured
UPDATE_S = 6e-3
# seconds of a call to another process, for an update or a turn's weights, until measured
CALL_S = 2e-3
# seconds per time step with a small network and simulator
GUESS_S = {ENVIRONMENT: 1.0e-3, POLICY: 0.3e-3, LEARNER: 0.7e-3, DATA: 0.05e-3}
# factor on the guesses for policy and learner if the network is large
LARGE_NETWORK_FACTOR = 30.0
# speed-up of policy and learner over one core, until measured
GPU_SPEED = 8.0


@dataclass(frozen=True)
class Sample:
    """One node in one turn.

    Attributes:
        busy_s: core seconds per time step, all processes together.
        idle_s: mean waiting seconds of a process per time step.
        call_s: seconds per turn of calls into other processes; negative without any.
        sent_bytes: bytes that left the node in the turn.
        peak_bytes: largest GPU memory of a process.
        resident_bytes: largest host memory of a process.
        slowest_s: seconds per time step of the slowest process beyond the mean of all.
    """

    busy_s: float
    idle_s: float = 0.0
    call_s: float = 0.0
    sent_bytes: float = 0.0
    peak_bytes: float = 0.0
    resident_bytes: float = 0.0
    slowest_s: float = 0.0


Key = tuple[str, int, str]


def fingerprint(recipe: Recipe) -> str:
    """Return a hash of all recipe keys that affect the costs."""
    keys = {"policy", "algorithm", "env", "env_options", "simulation", "learner", "station"}
    document = recipe.model_dump(mode="json", include=keys)
    for volatile in ("env_steps", "evaluate_every", "evaluate_episodes", "initial_policy"):
        document["simulation"].pop(volatile, None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


class Measurements:
    """Samples of a run, and seconds of each change of its layout.

    Args:
        recipe: of the run.
        machine: description of the machine; samples of another one are not reused.
    """

    def __init__(self, recipe: Recipe, machine: str) -> None:
        self.recipe, self.machine = recipe, machine
        self.samples: dict[Key, deque[Sample]] = {}
        self.switches: dict[str, list[float]] = {}
        self.steps = float(turn_steps(recipe))

    def add(self, node: str, size: int, device: str, sample: Sample) -> None:
        """Record a turn of a node."""
        self.samples.setdefault((node, size, device), deque(maxlen=MAX_TURNS)).append(sample)

    def add_switch(self, change: str, seconds: float) -> None:
        """Record the duration of a change of the layout, by its name."""
        self.switches.setdefault(change, []).append(seconds)

    def switch_s(self, default: float = 10.0) -> float:
        """Return the expected seconds of a change: the longest median of any kind."""
        return max((median(values) for values in self.switches.values()), default=default)

    def forget(self, sizes: Mapping[str, int]) -> None:
        """Forget all samples but the newest of each node at its present size.

        Call it after the load has changed.
        """
        self.samples = {
            key: deque([samples[-1]], MAX_TURNS)
            for key, samples in self.samples.items()
            if sizes.get(key[0]) == key[1]
        }

    def costs(self) -> Costs:
        """Return the costs of a turn."""
        nodes = {name: self._node_cost(name) for name in (ENVIRONMENT, POLICY, LEARNER, DATA)}
        nodes[WEIGHTS] = self._weights_cost()
        names = {name for name, _, _ in self.samples}
        resident = max(
            (sample.resident_bytes for samples in self.samples.values() for sample in samples),
            default=0.0,
        )
        return Costs(
            nodes, self.steps, frozenset(names | {WEIGHTS}), resident_bytes=float(resident)
        )

    def _weights_cost(self) -> NodeCost:
        """Return the cost of calls to rollout workers: a part for all, and one for each."""
        by_size = {
            size: median(sample.call_s for sample in samples)
            for (name, size, _), samples in self.samples.items()
            if name == WEIGHTS
        }
        if not by_size:
            return NodeCost(fixed_s=CALL_S)
        sizes = np.array(sorted(by_size), float)
        seconds = np.array([by_size[int(size)] for size in sizes])
        if len(sizes) > 1:
            slope, fixed = np.polyfit(sizes, seconds, 1)
            if slope >= 0 and fixed >= 0:
                return NodeCost(busy_s=float(slope), fixed_s=float(fixed))
        return NodeCost(fixed_s=float(seconds.mean()))

    def _node_cost(self, name: str) -> NodeCost:
        """Return the cost of a node, from its samples on the CPU, else on a GPU, else a guess."""
        on_cpu, on_gpu = self._samples_by_size(name, CPU), self._samples_by_size(name, GPU)
        by_size = on_cpu or on_gpu
        if not by_size:
            return self._guessed_cost(name)
        sizes = np.array(sorted(by_size), float)
        samples = [by_size[int(size)] for size in sizes]
        busy = np.array([median(sample.busy_s for sample in row) for row in samples])
        idle = np.array([median(sample.idle_s for sample in row) for row in samples])
        calls = [sample.call_s for row in samples for sample in row if sample.call_s >= 0]
        call = median(calls) if calls else self._learner_calls() * CALL_S
        peak = max(sample.peak_bytes for row in samples for sample in row)
        if len(sizes) == 1:
            fixed = FIXED[name] * busy[0] / sizes[0]
            total = busy[0] - fixed * sizes[0]
        else:  # busy = total + size * fixed
            fixed, total = np.polyfit(sizes, busy, 1)
            if fixed < 0:
                fixed, total = 0.0, busy.mean()
            elif total < 0:
                fixed, total = float((busy / sizes).mean()), 0.0
        wait, join = float(np.mean(idle * sizes)), 0.0
        # learners wait for each other's gradients, which no number of processes divides
        if name == LEARNER:
            single = idle[sizes == 1]
            wait = float(single[0]) if len(single) else 0.0
            if (sizes > 1).any():
                join = float(np.mean(idle[sizes > 1]))
            else:
                join = self._gradient_steps() * UPDATE_S / self.steps
        if name == ENVIRONMENT and (sizes > 1).any():  # a turn waits for the slowest process
            row = samples[int(np.argmax(sizes > 1))]
            join = median(sample.slowest_s for sample in row)
        speed = GPU_SPEED if name in (POLICY, LEARNER) else 0.0
        if not on_cpu:
            total, fixed, wait = wait * speed, 0.0, 0.0  # the process waits for its device
        return NodeCost(
            busy_s=float(total) * self.steps,
            wait_s=wait * self.steps,
            fixed_s=float(fixed) * self.steps,
            join_s=join * self.steps,
            call_s=call,
            peak_bytes=peak,
            gpu_speed=speed,
        )

    def _samples_by_size(self, name: str, device: str) -> dict[int, deque[Sample]]:
        """Return the samples of a node on a device, by the number of its processes."""
        return {
            size: samples
            for (node, size, sample_device), samples in self.samples.items()
            if node == name and sample_device == device
        }

    @property
    def _is_small_network(self) -> bool:
        """Whether the policy has only a few layers."""
        return "hidden" in type(self.recipe.policy).model_fields

    def _gradient_steps(self) -> float:
        """Return the gradient steps of a turn."""
        algorithm = self.recipe.algorithm
        if algorithm.learns_from == ROLLOUTS:
            return float(getattr(algorithm, "epochs", 1) * getattr(algorithm, "minibatches", 1))
        ratio = algorithm.utd_ratio
        return self.steps * (self.recipe.simulation.updates_per_step if ratio is None else ratio)

    def _learner_calls(self) -> float:
        """Return the updates of a turn, which are calls into learners elsewhere."""
        return 1.0 if self.recipe.algorithm.learns_from == ROLLOUTS else self._gradient_steps()

    def _guessed_cost(self, name: str) -> NodeCost:
        """Return the cost of a node that was not measured."""
        is_large = not self._is_small_network and name in (POLICY, LEARNER)
        seconds = self.steps * GUESS_S[name] * (LARGE_NETWORK_FACTOR if is_large else 1.0)
        speed = GPU_SPEED if name in (POLICY, LEARNER) else 0.0
        fixed = FIXED[name] * seconds
        is_learner = name == LEARNER
        return NodeCost(
            busy_s=seconds - fixed,
            fixed_s=fixed,
            join_s=self._gradient_steps() * UPDATE_S if is_learner else 0.0,
            call_s=self._learner_calls() * CALL_S if is_learner else 0.0,
            gpu_speed=speed,
        )

    def save(self, folder: Path) -> None:
        """Write the samples into a run's folder."""
        rows = [
            {
                "node": node,
                "size": size,
                "device": device,
                "turns": [asdict(sample) for sample in samples],
            }
            for (node, size, device), samples in self.samples.items()
        ]
        document = {
            "machine": self.machine,
            "recipe": fingerprint(self.recipe),
            "steps": self.steps,
            "samples": rows,
            "switches": self.switches,
        }
        write_atomically(
            folder / FILE, lambda path: path.write_text(json.dumps(document, indent=1) + "\n")
        )

    def load(self, folder: Path) -> bool:
        """Load the samples of a folder; return whether they fit this machine and recipe."""
        try:
            document = json.loads((folder / FILE).read_text())
            if (document["machine"], document["recipe"]) != (
                self.machine,
                fingerprint(self.recipe),
            ):
                return False
            samples = {
                (row["node"], int(row["size"]), row["device"]): deque(
                    (Sample(**turn) for turn in row["turns"]), MAX_TURNS
                )
                for row in document["samples"]
                if row["turns"]
            }
            switches = {
                name: [float(value) for value in values]
                for name, values in document["switches"].items()
            }
            steps = float(document["steps"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        self.samples, self.switches, self.steps = samples, switches, steps
        return bool(samples)


def turn_steps(recipe: Recipe) -> float:
    """Return the time steps of a turn, as far as a recipe tells: an episode counts as 50."""
    size = max(recipe.simulation.environments, 1)
    if recipe.algorithm.learns_from == ROLLOUTS:
        chunks = recipe.algorithm.rollout.get("chunks", 0)
        return size * (chunks * recipe.policy.executed if chunks else 50)
    return size * SLICE
