"""Measure the value of a person in the loop: demo_hil with and without takeovers.

Both runs have the same three demonstrations.

    python benchmarks/interventions.py --seeds 0 1 2 --json results.json --figure interventions.png
    python benchmarks/interventions.py --runs runs/alone_0 runs/helped_0 runs/alone_1 runs/helped_1

Everything goes through the station. "to 90 %" is after how many time steps 50 training episodes in
a row had succeeded so often without help, within the time after which a person would have taken
over: of both alike. "helped" are takeovers per training episode, in the first and in the last 50.
Where demonstrations are as many as the task needs, takeovers add little: --set collect.episodes=20
is the demo's number. It does not cover people: the person is a script that ends an episode which
the policy did not end in time, and never errs or tires and always watches.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.demo_seeds import NEVER, WINDOW, run_demo, trained  # noqa: E402
from benchmarks.figures import write  # noqa: E402

ALONE = ("station.operator.takes_over=0",)


def helped(run: Path) -> np.ndarray:
    """Whether a person took over, of each training episode."""
    return np.array([bool(event["intervened"]) for event in trained(run)], float)


def patience(run: Path) -> int:
    """Time steps after which the person takes over."""
    return yaml.safe_load((run / "recipe.yaml").read_text())["station"]["operator"]["takes_over"]


def curve(run: Path, within: int) -> tuple[list[int], list[float]]:
    """Time steps, and success of the last WINDOW training episodes, without help and before
    somebody would have helped.
    """
    episodes = trained(run)
    good = np.array(
        [
            event["success"] and not event.get("intervened") and event["steps"] <= within
            for event in episodes
        ]
    )
    ends = range(WINDOW, len(episodes) + 1)
    return [episodes[end - 1]["env_steps"] for end in ends], [
        float(good[end - WINDOW : end].mean()) for end in ends
    ]


def figures(alone: Path, run: Path) -> dict[str, float]:
    """Of one seed."""
    within = patience(run)
    result: dict[str, float] = {}
    for name, folder in (("alone", alone), ("helped", run)):
        steps, success = curve(folder, within)
        good = [step for step, rate in zip(steps, success, strict=True) if rate >= 0.9]
        result |= {
            f"steps_to_90_{name}": good[0] if good else NEVER,
            f"success_after_{name}": json.loads((folder / "report.json").read_text())[
                "success_after"
            ],
        }
    first, last = (float(part.mean()) for part in (helped(run)[:WINDOW], helped(run)[-WINDOW:]))
    return result | {
        "interventions_first": first,
        "interventions_last": last,
        "intervention_ratio": last / max(first, 1e-9),
    }


def figure(runs: dict[int, tuple[Path, Path]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shape, (above, below) = plt.subplots(
        2, 1, figsize=(6.4, 6.0), sharex=True, constrained_layout=True
    )
    for place, (seed, (alone, run)) in enumerate(runs.items()):
        above.plot(
            *curve(alone, patience(run)), "--", color=f"C{place}", label=f"seed {seed}, alone"
        )
        above.plot(
            *curve(run, patience(run)), color=f"C{place}", label=f"seed {seed}, with takeovers"
        )
        taken, steps = helped(run), [event["env_steps"] for event in trained(run)]
        rate = np.convolve(taken, np.ones(WINDOW) / WINDOW, "valid")
        below.plot(steps[WINDOW - 1 :], rate, color=f"C{place}")
    above.set(
        ylabel=f"success without help (last {WINDOW})",
        ylim=(-0.02, 1.03),
        title="Peg insertion, learned online",
    )
    below.set(
        ylabel=f"takeovers per episode (last {WINDOW})",
        xlabel="environment steps (10 a second on a robot)",
        ylim=(-0.02, 1),
    )
    # where takeovers have fallen, nothing is drawn
    below.legend(*above.get_legend_handles_labels(), loc="upper right")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    shape.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        help="run folders that are there: without and with, by turns",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="overrides of both runs of each seed",
    )
    parser.add_argument("--figure", type=Path, help="write the curves as PNG")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    if options.runs and len(options.runs) % 2:
        parser.error(
            f"--runs: expected pairs, one without takeovers and one with, got {len(options.runs)} "
            f"folders"
        )
    with tempfile.TemporaryDirectory(prefix="rlinf-interventions-") as folder:
        run_folders = options.runs or [
            run_demo("demo_hil", seed, Path(folder) / name, *options.set, *changes)
            for seed in options.seeds
            for name, changes in (("alone", ALONE), ("helped", ()))
        ]
        pairs = list(zip(run_folders[::2], run_folders[1::2], strict=True))
        runs = {
            json.loads((run / "report.json").read_text())["seed"]: (alone, run)
            for alone, run in pairs
        }
        print(
            f"{'seed':>4}{'to 90 % alone':>15}{'with takeovers':>16}{'helped, first':>15}{'last':>7}"
            f"{'after, alone':>14}{'with':>7}"
        )
        flat: dict[str, float] = {}
        for seed, pair in runs.items():
            one = figures(*pair)
            print(
                f"{seed:>4}{one['steps_to_90_alone']:>15}{one['steps_to_90_helped']:>16}{one['interventions_first']:>15.2f}"
                f"{one['interventions_last']:>7.2f}{one['success_after_alone']:>14.0%}{one['success_after_helped']:>7.0%}"
            )
            flat |= {f"{key}_seed_{seed}": value for key, value in one.items()}
        flat |= {
            "seeds": len(runs),
            "seeds_better": sum(
                flat[f"steps_to_90_helped_seed_{seed}"] < flat[f"steps_to_90_alone_seed_{seed}"]
                for seed in runs
            ),
            "last_intervention_ratio": max(
                flat[f"intervention_ratio_seed_{seed}"] for seed in runs
            ),
        }
        if options.figure:
            figure(runs, options.figure)
        if options.json:
            write(options.json, flat)


if __name__ == "__main__":
    main()
