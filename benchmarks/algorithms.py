"""Run every algorithm on a small test task with three seeds, next to a random policy.

    python benchmarks/algorithms.py --json results.json --curves curves.png

The figures are success, steps and seconds. The task moves a point into a hole; its reward is sparse
with a shaping term (tests/algorithms/point.py). Success shows that an algorithm learns. The
benchmark does not cover robots. Tests check the numbers of the losses (tests/algorithms).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from tests.algorithms.learning import RUNS, Run  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", default="", help="algorithms whose name contains this")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--curves", type=Path, help="draw success over steps there")
    options = parser.parse_args()
    names = [name for name in RUNS if options.only.lower() in name.lower()]
    if not names:
        parser.error(f"--only: expected a part of one of {', '.join(RUNS)}, got '{options.only}'")
    result: dict[str, float] = {"algorithms": len(names), "learned": 0, "seeds": len(options.seeds)}
    curves: dict[str, list[Run]] = {}
    print(f"{'':38}before   after, by seed          steps   seconds")
    for name in names:
        started = time.perf_counter()
        runs = [RUNS[name](seed=seed, to_its_end=True) for seed in options.seeds]
        seconds = (time.perf_counter() - started) / len(runs)
        curves[name] = runs
        key = name.lower().replace(", ", "_").replace(" ", "_").replace("-", "_").replace("+", "p")
        result["learned"] += all(run.learned for run in runs)
        result |= {
            f"{key}_before": float(np.mean([run.before for run in runs])),
            f"{key}_after_worst": min(run.after for run in runs),
            f"{key}_steps": float(np.mean([run.steps for run in runs])),
            f"{key}_seconds": seconds,
        }
        after = " ".join(f"{100 * run.after:4.0f} %" for run in runs)
        verdict = "" if all(run.learned for run in runs) else "   NOT LEARNED"
        before, steps = 100 * result[f"{key}_before"], result[f"{key}_steps"]
        print(
            f"  {name:<36}{before:5.0f} %   {after:<22}{steps:8.0f}{seconds:10.1f}{verdict}",
            flush=True,
        )
    print(f"{result['learned']} of {len(names)} learned with every seed")
    if options.curves:
        draw(curves, options.seeds, options.curves)
    if options.json:
        write(options.json, result)


def draw(curves: dict[str, list[Run]], seeds: list[int], path: Path) -> None:
    """Draw one small picture per algorithm, with a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 5
    rows = -(-len(curves) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(3.2 * columns, 2.3 * rows),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(curves) :]:
        axis.axis("off")
    for axis, (name, runs) in zip(axes.flat, curves.items(), strict=False):
        for seed, run in zip(seeds, runs, strict=True):
            axis.plot(*zip(*run.curve, strict=True), label=f"seed {seed}")
        axis.set_title(name, fontsize=8)
        axis.set_ylim(-0.05, 1.05)
        axis.tick_params(labelsize=7)
        axis.ticklabel_format(axis="x", style="plain", useOffset=False)
        axis.locator_params(axis="x", nbins=3)
    figure.supylabel("success over 64 held-out scenes", fontsize=8)
    figure.supxlabel("environment steps (gradient steps for SFT and IQL)", fontsize=8)
    figure.legend(
        *axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=8
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
