"""Compare rollout workers that play while the learner learns with workers that take turns.

    python benchmarks/pipelined.py --json results.json

The same recipe (asynchronous PPO on ManiSkill's cube, 8 environments) runs in five ways: in one
process, with one rollout worker on Ray in turns and pipelined, and with two workers in turns and
pipelined. The figure is time steps per second from the first rollout to the last update, without
evaluations: the median of three rounds, in which the ways take turns. A run in turns comes first.
It gives the number of epochs with which learning costs as much as playing. A complete overlap would
then be 2 times as fast. That limit is computed for each run in turns (``ideal_ratio``).

RLinf-VLA reports 1.61 to 1.88 times for its pipelining on GPUs (arXiv 2510.06710). There rendering
and a large model share the work, here physics and a small network share two cores. The benchmark
does not cover how well a policy learns from data that is one update older; tests and recipes do.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

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
PROBE_EPOCHS = 16


class Speed(NamedTuple):
    """The speed of a run from its first rollout to its last update.

    Attributes:
        steps_per_s: time steps per second.
        learn_share: share of the time in which the learner computed.
    """

    steps_per_s: float
    learn_share: float

    @property
    def ideal_ratio(self) -> float:
        """Speed-up over turns if playing and learning overlapped completely, at no cost."""
        return 1.0 / max(self.learn_share, 1.0 - self.learn_share)


def measure(workers: int, pipelined: bool, steps: int, epochs: int) -> Speed:
    """Run once, without evaluations."""
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
    points: list[tuple[int, float, float]] = []  # time steps, seconds, seconds of learning
    with TemporaryDirectory() as folder:
        train(
            recipe,
            Path(folder),
            on_progress=lambda run, entry: points.append(
                (run.steps, time.perf_counter(), run.clock.seconds["learn"])
            ),
        )
    if not points or points[-1][0] < steps:
        raise SystemExit(
            f"expected a run of {steps} time steps, got one that stopped early after "
            f"{points[-1][0] if points else 0}"
        )
    points = [point for point in points if point[0] > 0]
    first, last = points[0], points[-2]  # the last one is the evaluation
    seconds = last[1] - first[1]
    return Speed((last[0] - first[0]) / seconds, (last[2] - first[2]) / seconds)


def balanced_epochs(steps: int) -> int:
    """Return the epochs with which learning takes as long as playing, from a run in turns."""
    share = measure(1, False, steps, PROBE_EPOCHS).learn_share
    return max(1, round(PROBE_EPOCHS * (1.0 - share) / share))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8192, help="time steps of each run")
    parser.add_argument(
        "--epochs",
        type=int,
        default=0,
        help="epochs of the learner over each rollout (default: as many as make learning with one "
        "worker cost the same as playing)",
    )
    parser.add_argument("--ways", choices=list(WAYS), nargs="+", default=list(WAYS))
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    epochs = options.epochs or balanced_epochs(options.steps)
    print(f"{epochs} epochs over each rollout", flush=True)
    speeds: dict[str, list[Speed]] = {name: [] for name in options.ways}
    for _ in range(options.rounds):
        for name in speeds:
            workers, pipelined = WAYS[name]
            speed = measure(workers, pipelined, options.steps, epochs)
            speeds[name].append(speed)
            print(
                f"  {name:24}{speed.steps_per_s:8.0f} steps/s, "
                f"{100 * speed.learn_share:.0f} % of the time learning",
                flush=True,
            )
    result = {
        f"{name}_steps_per_s": statistics.median(speed.steps_per_s for speed in measured)
        for name, measured in speeds.items()
    }
    result["epochs"] = epochs
    for workers in ("one_worker", "two_workers"):
        if not {workers, f"{workers}_pipelined"} <= speeds.keys():
            continue
        result[f"{workers}_ideal_ratio"] = statistics.median(
            speed.ideal_ratio for speed in speeds[workers]
        )
        result[f"{workers}_ratio"] = (
            result[f"{workers}_pipelined_steps_per_s"] / result[f"{workers}_steps_per_s"]
        )
        print(
            f"{workers.replace('_', ' ')}: pipelined is {result[f'{workers}_ratio']:.2f} times in "
            f"turns; {result[f'{workers}_ideal_ratio']:.2f} times if they overlapped completely"
        )
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
