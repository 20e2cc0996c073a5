"""Compare rollout workers that play while the learner learns with taking turns: PPO on ManiSkill's cube.

    python benchmarks/pipelined.py --json results.json

The same recipe (asynchronous PPO, 8 environments) runs in five ways: in one process, with one
rollout worker on Ray in turns and pipelined, and with two workers in turns and pipelined. The figure
is time steps per second from the first rollout to the last update, without evaluations: the median
of three rounds, in which the ways take turns. RLinf-VLA reports 1.61 to 1.88 times for its pipelining
on GPUs (arXiv 2510.06710). There rendering and a large model share the work, here physics and a
small network share two cores. The benchmark does not cover how well a policy learns from data that
is one update older; tests and recipes do.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402
from rlinf_core.trainer.train import train  # noqa: E402

WAYS = {
    "one_process": (0, False),
    "one_worker": (1, False),
    "one_worker_pipelined": (1, True),
    "two_workers": (2, False),
    "two_workers_pipelined": (2, True),
}


def steps_per_second(workers: int, pipelined: bool, steps: int, epochs: int) -> float:
    """Run once; return the time steps per second from the first rollout on."""
    recipe = load_recipe(
        "sim_pick_ppo",
        [
            f"placement={{workers: {workers}, mode: {'pipelined' if pipelined else 'collocated'}}}",
            f"simulation.env_steps={steps}",
            "simulation.evaluate_every=1000000000",
            "simulation.evaluate_episodes=1",
            "algorithm.name=async_ppo",
            f"algorithm.epochs={epochs}",
        ],
    )
    times: list[tuple[int, float]] = []
    with TemporaryDirectory() as folder:
        train(
            recipe,
            Path(folder),
            on_progress=lambda run, entry: times.append((run.steps, time.perf_counter())),
        )
    if not times or times[-1][0] < steps:
        raise SystemExit(
            f"expected a run of {steps} time steps, got one that stopped early after "
            f"{times[-1][0] if times else 0}"
        )
    times = [item for item in times if item[0] > 0]
    first, last = times[0], times[-2]  # the last one is the evaluation
    return (last[0] - first[0]) / (last[1] - first[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8192, help="time steps of each run")
    parser.add_argument(
        "--epochs", type=int, default=16, help="epochs of the learner over each rollout"
    )
    parser.add_argument("--ways", choices=list(WAYS), nargs="+", default=list(WAYS))
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in options.ways}
    for _ in range(options.rounds):
        for name in rates:
            workers, pipelined = WAYS[name]
            rates[name].append(steps_per_second(workers, pipelined, options.steps, options.epochs))
            print(f"  {name:24}{rates[name][-1]:8.0f} steps/s", flush=True)
    result = {f"{name}_steps_per_s": float(np.median(values)) for name, values in rates.items()}
    for workers in ("one_worker", "two_workers"):
        if not {workers, f"{workers}_pipelined"} <= rates.keys():
            continue
        result[f"{workers}_ratio"] = (
            result[f"{workers}_pipelined_steps_per_s"] / result[f"{workers}_steps_per_s"]
        )
        print(
            f"{workers.replace('_', ' ')}: pipelined is {result[f'{workers}_ratio']:.2f} times in "
            f"turns"
        )
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
