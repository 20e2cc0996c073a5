"""Run the demo with several seeds; report success before and after RL, time, and the learning curves.

    python benchmarks/demo_seeds.py --seeds 0 1 2 --json results.json --figure curves.png
    python benchmarks/demo_seeds.py --runs runs/a runs/b      # the same table from finished runs

Every run uses the whole station: simulator, interlock, nodes, bridge and trainer. Success before
and after is that of 50 held-out episodes. "worst" is the success of the worst 50 consecutive
training episodes, exploration included, divided by the success before RL: at 1 the policy was never
worse than at its start. "to 90 %" is the number of time steps until 50 consecutive episodes reached
90 %. The benchmark does not cover a real arm, nor scenes outside the task's own distribution.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.figures import write  # noqa: E402

WINDOW = 50
NEVER = 1_000_000_000  # time steps


def run_demo(recipe: str, seed: int, folder: Path, *overrides: str) -> Path:
    out = folder / f"seed_{seed}"
    subprocess.run(
        [
            ROOT / ".venv/bin/rlinf",
            "demo",
            recipe,
            "--quiet",
            "--out",
            out,
            "--set",
            f"seed={seed}",
            *overrides,
        ],
        check=True,
    )
    return out


def training_episodes(run: Path) -> list[dict]:
    """Return the training episodes of a run in order."""
    events = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "episode" and event["mode"] == "train"]


def curve(run: Path) -> tuple[list[int], list[float]]:
    """Return time steps and success rates of all windows of WINDOW training episodes.

    A step is that of the window's last episode. Episodes with an intervention count as failures.
    """
    episodes = training_episodes(run)
    success = np.array(
        [event["success"] and not event.get("intervened") for event in episodes], float
    )
    ends = range(WINDOW, len(episodes) + 1)
    return [episodes[end - 1]["env_steps"] for end in ends], [
        success[end - WINDOW : end].mean() for end in ends
    ]


def training_rates(run: Path, before: float) -> dict[str, float]:
    """Return the worst window of training episodes, and the time steps to a good one."""
    steps, success = curve(run)
    good = [step for step, rate in zip(steps, success, strict=True) if rate >= 0.9]
    worst = min(success, default=math.nan)
    return {
        "worst_window": worst,
        "worst_window_ratio": worst / max(before, 0.02),
        "steps_to_90": good[0] if good else NEVER,
    }


def draw_curves(runs: dict[int, Path], results: dict[int, dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shape, axes = plt.subplots(figsize=(6.4, 4.0), constrained_layout=True)
    for seed, run in runs.items():
        steps, success = curve(run)
        (line,) = axes.plot(
            steps,
            success,
            label=f"seed {seed}: {results[seed]['success_before']:.0%} before RL, "
            f"{results[seed]['success_after']:.0%} after",
        )
        axes.plot(
            [0, results[seed]["env_steps"]],
            [results[seed]["success_before"], results[seed]["success_after"]],
            "o",
            color=line.get_color(),
        )
    axes.set(
        xlabel="environment steps (10 a second on a robot)",
        ylabel=f"success (lines: last {WINDOW} episodes)",
        ylim=(-0.02, 1.03),
        title="Peg insertion, learned online; dots: 50 held-out episodes",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    shape.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, nargs="+", help="finished run folders")
    parser.add_argument("--figure", type=Path, help="write the learning curves as PNG")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    from rlinf_core.reports.throughput import wilson

    seeds = [
        json.loads((run / "report.json").read_text())["seed"] for run in options.runs or []
    ] or options.seeds
    if len(set(seeds)) < len(seeds):
        parser.error(f"expected runs with different seeds, got {', '.join(map(str, seeds))}")

    with tempfile.TemporaryDirectory(prefix="rlinf-demo-seeds-") as folder:
        run_folders = options.runs or [
            run_demo(options.recipe, seed, Path(folder)) for seed in options.seeds
        ]
        results = {
            (report := json.loads((run / "report.json").read_text()))["seed"]: report
            for run in run_folders
        }
        runs = dict(zip(results, run_folders, strict=True))
        print(
            f"{'seed':>4}{'before':>9}{'95 %':>15}{'after':>9}{'95 %':>15}{'worst':>8}{'to 90 %':>9}"
            f"{'env steps':>11}{'updates':>9}{'minutes':>9}   ended because"
        )
        flat: dict[str, float] = {}
        for seed, report in results.items():
            report |= training_rates(runs[seed], report["success_before"])
            cells = ""
            for when in ("before", "after"):
                rate, episodes = report[f"success_{when}"], report["eval_episodes"]
                low, high = wilson(round(rate * episodes), episodes)
                cells += f"{rate:9.0%}{low:9.0%} to{high:4.0%}"
            print(
                f"{seed:>4}{cells}{report['worst_window_ratio']:>8.2f}{report['steps_to_90']:>9}{report['env_steps']:>11}"
                f"{report['updates']:>9}{report['minutes']:>9.1f}   "
                f"{report.get('ended', 'unknown')}"
            )
            flat |= {
                f"{key}_seed_{seed}": value
                for key, value in report.items()
                if key not in ("seed", "ended")
            }
        reports = results.values()
        flat |= {
            "min_success_after": min(report["success_after"] for report in reports),
            "max_success_before": max(report["success_before"] for report in reports),
            "worst_window_ratio": min(report["worst_window_ratio"] for report in reports),
            "max_steps_to_90": max(report["steps_to_90"] for report in reports),
        }
        if options.figure:
            draw_curves(runs, results, options.figure)
        if options.json:
            write(options.json, flat)


if __name__ == "__main__":
    main()
