"""Measure updates per second of one device in several ways to compute, and whether runs learn.

    python benchmarks/devices.py --json results.json           # the best device; --device cuda:1, cpu, ...
    python benchmarks/devices.py --quick                       # seconds: whether all of it runs

The ways are float32, bfloat16, compiled, and with prefetched batches. The cases are SAC from state
and RLPD from two cameras, each from a replay filled at random. The figures are medians of three
rounds. An update is a draw, its copy to the device, and a step of every optimiser. The first
updates, in which torch.compile works, are a figure of their own. Four learning runs follow that
bring a point into a hole (as in tests/trainer/test_simulators.py), each with thresholds for success
before and after over 64 held-out scenes.

The benchmark does not cover several GPUs (docs/howto/scale.md), rendering or simulating on the GPU,
the rate of a whole station, memory, large models, or whether a robot's task is learned as well in
bfloat16. Figures of a CPU say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from rlinf_core.algorithms import algorithm  # noqa: E402
from rlinf_core.algorithms.common.learner import BaseLearner  # noqa: E402
from rlinf_core.algorithms.common.mixed_precision import apply_computing  # noqa: E402
from rlinf_core.algorithms.common.settings import Computing, is_offline  # noqa: E402
from rlinf_core.core.errors import RlinfError  # noqa: E402
from rlinf_core.data.replay import ReplayBuffer, mix  # noqa: E402
from rlinf_core.policies import make_policy, policy_kind  # noqa: E402
from rlinf_core.policies.torch_device import AUTO, device_of  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402
from rlinf_core.reports.curves import read_evaluations  # noqa: E402
from rlinf_core.tasks.task import load_task  # noqa: E402
from rlinf_core.trainer.prefetch import PREFETCHED_BATCHES, Prefetch  # noqa: E402
from rlinf_core.trainer.train import train  # noqa: E402
from tests.algorithms.point import Points  # noqa: E402

WAYS = {
    "float32": Computing(),
    "bfloat16": Computing(precision="bfloat16"),
    "compile": Computing(compile=True),
    "bfloat16_compile": Computing(precision="bfloat16", compile=True),
    "prefetch": Computing(prefetch="always"),
    "all": Computing(precision="bfloat16", compile=True, prefetch="always"),
}
GROUP = 16  # updates that a run makes at a time
EPISODE = 50  # transitions
POINTS = ("policy.hidden=[64, 64]", "simulation.evaluate_episodes=64")
DEMONSTRATED = (
    "sft.steps=200",
    "sft.learning_rate=0.003",
    "simulation.env_steps=1200",
    "simulation.evaluate_every=600",
    "collect.episodes=60",
)
SAC = (
    "algorithm.critic_hidden=[64, 64]",
    "algorithm.learning_rate=0.001",
    "simulation.env_steps=3000",
    "simulation.start_steps=300",
    "simulation.environments=2",
)
LEARNING = {  # recipe, overrides, largest success before learning
    "sac": ("sim_sac", SAC, 0.2),
    "ppo": (
        "sim_ppo",
        (
            "algorithm.chunks=32",
            "simulation.env_steps=90000",
            "simulation.environments=64",
            "simulation.evaluate_every=30000",
        ),
        0.2,
    ),
    "rlpd": (
        "sim_sac",
        (*SAC[2:], *DEMONSTRATED, "algorithm={name: rlpd, learning_rate: 0.001}"),
        1.0,
    ),
    "sft_flow": (
        "sim_sac",
        (
            *SAC[2:],
            *DEMONSTRATED,
            "algorithm={name: sft, learning_rate: 0.001, steps: 1000}",
            "policy.kind=flow",
        ),
        0.2,
    ),
}


class Case:
    """A learner with its replay: from state, or from two cameras.

    Args:
        name: the algorithm's name.
        size: side length of the pictures [px]; 0 for none.
        batch: transitions of an update.
        episodes: episodes in the replay, of 50 transitions each.
    """

    def __init__(
        self, name: str, size: int, batch: int, episodes: int, device: torch.device
    ) -> None:
        task = load_task(ROOT / "configs/tasks/peg_insertion.yaml")
        self.spec = (
            task.with_images(dict.fromkeys(("front", "wrist"), (size, size))).spec
            if size
            else task.spec
        )
        self.name, self.batch, self.device = name, batch, device
        self.random = np.random.default_rng(0)
        self.replay = ReplayBuffer(self.spec, episodes * (EPISODE + 1))
        for _ in range(episodes):
            observations = {
                "vectors": self.random.normal(size=(EPISODE + 1, self.spec.vector_size)).astype(
                    np.float32
                )
            }
            observations |= {
                image.name: self.random.integers(0, 256, (EPISODE + 1, *image.shape), np.uint8)
                for image in self.spec.images
            }
            actions = self.random.uniform(-1, 1, (EPISODE, self.spec.action.dim))
            self.replay.insert_episode(
                observations, actions, self.random.normal(size=EPISODE), np.ones(EPISODE)
            )

    def draw(self) -> dict[str, np.ndarray]:
        """Return a batch; half of it counts as demonstrations if the algorithm needs them."""
        if not algorithm(self.name).Config().half_demonstrations:
            return self.replay.sample(self.batch, self.random)
        return mix(*(self.replay.sample(self.batch // 2, self.random) for _ in range(2)))

    def learner(self, computing: Computing) -> BaseLearner:
        torch.manual_seed(0)
        # Without a warm-up of the critic the actor learns from the first update on.
        config = algorithm(self.name).Config(batch_size=self.batch, critic_warmup=0)
        policy = make_policy(self.spec, policy_kind("tanh_gaussian").Config()).to(self.device)
        learner = algorithm(self.name).Learner(policy, config, 0)
        apply_computing(learner, computing)
        return learner


class CaseRun:
    """A case computed in one way, after its first updates, in which torch.compile works."""

    def __init__(self, case: Case, computing: Computing) -> None:
        self.case, self.learner = case, case.learner(computing)
        self.prefetch = Prefetch(
            PREFETCHED_BATCHES if computing.prefetch == "always" else 0, case.device
        )
        self.first_s = self.time_updates(2 * GROUP)

    def time_updates(self, updates: int) -> float:
        """Return the seconds of some updates, in groups as a run makes them."""
        started = time.perf_counter()
        for _ in range(updates // GROUP):
            for batch in self.prefetch.batches(self.case.draw, GROUP):
                self.learner.update(batch)
        if self.case.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter() - started


def measure_rates(
    case: Case, prefix: str, updates: int, rounds: int
) -> Iterator[tuple[str, float]]:
    """Yield updates per second of every way to compute; print the reason if one cannot run."""
    for name, computing in WAYS.items():
        torch.compiler.reset()
        try:
            case_run = CaseRun(case, computing)
        except RlinfError as error:
            print(f"  {prefix} {name}: not run: {error}", flush=True)
            continue
        rate = updates / float(np.median([case_run.time_updates(updates) for _ in range(rounds)]))
        print(
            f"  {prefix:12}{name:18}{rate:9.1f} updates/s   the first {2 * GROUP} took "
            f"{case_run.first_s:6.1f} s",
            flush=True,
        )
        yield f"{prefix}_{name}_updates_per_s", rate
        if computing.compile:
            yield f"{prefix}_{name}_first_s", case_run.first_s


def measure_learning(
    name: str, device: str, variant: str, make: Callable[..., Points]
) -> tuple[float, float, bool]:
    """Return success before and after a run, and whether both meet the thresholds."""
    recipe, overrides, max_before = LEARNING[name]
    computing = WAYS[variant]
    settings = [
        f"learner={{precision: {computing.precision}, compile: {str(computing.compile).lower()}, "
        f"prefetch: {computing.prefetch}}}",
        f"device={device}",
    ]
    with TemporaryDirectory() as folder:
        resolved = load_recipe(recipe, [*POINTS, *overrides, *settings])
        last = train(resolved, Path(folder), make)
        steps = (
            resolved.algorithm.steps
            if is_offline(resolved.algorithm)
            else resolved.simulation.env_steps
        )
        if last.get("env_steps", 0) < steps:
            raise SystemExit(
                f"expected a run of {steps} steps, got one that stopped early after "
                f"{last.get('env_steps', 0)}"
            )
        before = read_evaluations(Path(folder))[0]["success"]
    return before, last["success"], before <= max_before and last["success"] >= 0.9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default=AUTO, help="auto, cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--updates", type=int, default=480, help="updates of a round, a multiple of 16"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--image", type=int, default=64, help="pixels of a picture's side")
    parser.add_argument(
        "--quick", action="store_true", help="few updates, small pictures, no learning runs"
    )
    parser.add_argument(
        "--learn", nargs="*", choices=LEARNING, default=[*LEARNING], help="learning runs"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    if options.updates < GROUP or options.updates % GROUP:
        parser.error(f"--updates: expected a multiple of {GROUP}, got {options.updates}")
    torch.set_num_threads(1)  # as rlinf train does
    device = device_of(options.device)
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    result: dict[str, float | str] = {
        "device": str(device),
        "device_name": name,
        "torch": torch.__version__,
    }
    print(f"{device} ({name}), torch {torch.__version__}")
    count, rounds, image, learn = options.updates, options.rounds, options.image, options.learn
    if options.quick:
        count, rounds, image, learn = GROUP, 1, 16, []
    cases = {
        "state_sac": Case("sac", 0, 256, 200, device),
        "image_rlpd": Case("rlpd", image, 128, 40, device),
    }
    for prefix, case in cases.items():
        result |= dict(measure_rates(case, prefix, count, rounds))
    for task in learn:
        for variant in ("float32", "bfloat16", "all"):
            torch.compiler.reset()
            try:
                before, after, passed = measure_learning(
                    task, options.device, variant, lambda recipe, size: Points(size)
                )
            except RlinfError as error:
                print(f"  {task} {variant}: not run: {error}", flush=True)
                continue
            print(
                f"  {task:10}{variant:18}{100 * before:4.0f} % to {100 * after:4.0f} "
                f"%{'' if passed else '   NOT LEARNED'}",
                flush=True,
            )
            result |= {
                f"{task}_{variant}_before": before,
                f"{task}_{variant}_after": after,
                f"{task}_{variant}_learned": float(passed),
            }
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
