"""Measure the value of a person in the loop: demo_hil with and without takeovers.

    python benchmarks/interventions.py --seeds 0 1 2 --json results.json --figure interventions.png
    python benchmarks/interventions.py --runs runs/alone_0 runs/helped_0 runs/alone_1 runs/helped_1

Both runs of a seed use the whole station and start from the same three demonstrations. "to 90 %" is
the number of time steps until 90 % of 50 consecutive training episodes succeeded without help. Only
successes within the time after which a person would take over count, in both runs. "helped" is the
number of takeovers per training episode, in the first and in the last 50. Takeovers add little if
the demonstrations suffice for the task: --set collect.episodes=20 is the demo's number. The
benchmark does not cover people. A script takes over every episode that the policy did not finish in
time; it never errs or tires, and always watches.
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
from benchmarks.demo_seeds import NEVER, WINDOW, run_demo, training_episodes  # noqa: E402
from benchmarks.figures import write  # noqa: E402

ALONE = ("station.operator.takes_over=0",)


def takeovers(run: Path) -> np.ndarray:
    """Return 1 for each training episode with a takeover, else 0."""
    return np.array([bool(event["intervened"]) for event in training_episodes(run)], float)


def takeover_steps(run: Path) -> int:
    """Return the time steps after which the person takes over."""
    return yaml.safe_load((run / "recipe.yaml").read_text())["station"]["operator"]["takes_over"]


def curve(run: Path, within: int) -> tuple[list[int], list[float]]:
    """Return time steps and success rates of all windows of WINDOW training episodes.

    Only successes without help and within ``within`` time steps count.
    """
    episodes = training_episodes(run)
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
    """Return the figures of one seed."""
    within = takeover_steps(run)
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
    first, last = (
        float(part.mean()) for part in (takeovers(run)[:WINDOW], takeovers(run)[-WINDOW:])
    )
    return result | {
        "interventions_first": first,
        "interventions_last": last,
        "intervention_ratio": last / max(first, 1e-9),
    }


def draw_curves(runs: dict[int, tuple[Path, Path]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    canvas, (above, below) = plt.subplots(
        2, 1, figsize=(6.4, 6.0), sharex=True, constrained_layout=True
    )
    for place, (seed, (alone, run)) in enumerate(runs.items()):
        above.plot(
            *curve(alone, takeover_steps(run)), "--", color=f"C{place}", label=f"seed {seed}, alone"
        )
        above.plot(
            *curve(run, takeover_steps(run)),
            color=f"C{place}",
            label=f"seed {seed}, with takeovers",
        )
        taken, steps = takeovers(run), [event["env_steps"] for event in training_episodes(run)]
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
    # The curves leave this corner empty, because takeovers become rare.
    below.legend(*above.get_legend_handles_labels(), loc="upper right")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    canvas.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        help="finished run folders in pairs: without takeovers, with takeovers",
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
            f"{'seed':>4}{'to 90 % alone':>15}{'with takeovers':>16}{'takeovers, first':>15}{'last':>7}"
            f"{'after, alone':>14}{'with':>7}"
        )
        flat: dict[str, float] = {}
        for seed, pair in runs.items():
            row = figures(*pair)
            print(
                f"{seed:>4}{row['steps_to_90_alone']:>15}{row['steps_to_90_helped']:>16}{row['interventions_first']:>15.2f}"
                f"{row['interventions_last']:>7.2f}{row['success_after_alone']:>14.0%}{row['success_after_helped']:>7.0%}"
            )
            flat |= {f"{key}_seed_{seed}": value for key, value in row.items()}
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
            draw_curves(runs, options.figure)
        if options.json:
            write(options.json, flat)


if __name__ == "__main__":
    main()
