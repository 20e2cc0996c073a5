"""Measure the transfer from a randomised simulator A to a simulator B in place of the real arm.

    python benchmarks/transfer.py --json results.json --curves curves.png

A policy learns in ManiSkill (a Panda, PhysX) with another delay, lag and perception in every scene
(`configs/transfer_source.yaml`). Simulator B is Gymnasium-Robotics' Fetch: another arm, hand,
controller and physics (MuJoCo). There the policy plays unchanged, and is fine-tuned by RLPD with 20
demonstrations, beside RLPD from scratch with the same demonstrations
(`configs/transfer_target.yaml`). Success is over 50 held-out scenes; steps are those in B until an
evaluation first reached 90 %. The benchmark does not cover a real arm: B is a simulator.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from rlinf_core.cli.train import train_command  # noqa: E402
from rlinf_core.config.overrides import quote_value  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402
from rlinf_core.reports.curves import read_evaluations  # noqa: E402

GOAL = 0.9


def run(name: str, folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Train and return the evaluations; an unfinished run continues."""
    recipe = load_recipe(name, list(overrides))
    done = read_evaluations(folder) if (folder / "progress.jsonl").exists() else []
    if not done or done[-1]["env_steps"] < recipe.simulation.env_steps:
        folder.mkdir(parents=True, exist_ok=True)
        if code := train_command(name, list(overrides), folder, report=False):
            # The run was stopped and has no figures; the same command continues.
            sys.exit(code)
    return read_evaluations(folder)


def steps_to(entries: list[dict[str, float]], goal: float = GOAL) -> float:
    """Return the time steps until an evaluation first reached the goal; infinite without one."""
    return next((entry["env_steps"] for entry in entries if entry["success"] >= goal), float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--robots", nargs="+", default=["fetch"], help="robots of simulator B")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "runs/transfer",
        help="run folders; runs there continue",
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--curves", type=Path, help="draw success in B over steps there")
    options = parser.parse_args()
    result: dict[str, float] = {"seeds": len(options.seeds)}
    curves: dict[str, dict[str, list]] = {
        robot: {"fine-tuned": [], "from scratch": []} for robot in options.robots
    }
    for robot in options.robots:
        by_name: dict[str, list[float]] = {}
        for seed in options.seeds:
            source = options.out / f"source_{seed}"
            source_run = run("transfer_source", source, f"seed={seed}")
            target = [f"seed={seed}", f"station.robot={quote_value(robot)}"]
            tuned = run(
                "transfer_target",
                options.out / f"{robot}_tuned_{seed}",
                *target,
                f"simulation.initial_policy={quote_value(source)}",
            )
            scratch = run("transfer_target", options.out / f"{robot}_scratch_{seed}", *target)
            curves[robot]["fine-tuned"].append(tuned)
            curves[robot]["from scratch"].append(scratch)
            figures = {
                "source": source_run[-1]["success"],
                "zero_shot": tuned[0]["success"],
                "fine_tuned": tuned[-1]["success"],
                "scratch": scratch[-1]["success"],
                "fine_tuned_steps": steps_to(tuned),
                "scratch_steps": steps_to(scratch),
            }
            for name, value in figures.items():
                by_name.setdefault(name, []).append(value)
                result[f"{robot}_{name}_{seed}"] = value
            print(
                f"{robot}, seed {seed}: in A {figures['source']:.0%}; in B at once "
                f"{figures['zero_shot']:.0%}, fine-tuned {figures['fine_tuned']:.0%} (90 % after "
                f"{figures['fine_tuned_steps']:.0f} steps), from scratch {figures['scratch']:.0%} "
                f"(90 % after {figures['scratch_steps']:.0f} steps)",
                flush=True,
            )
        result |= {f"{robot}_{name}": float(np.mean(values)) for name, values in by_name.items()}
    if options.json:
        options.json.write_text(
            json.dumps(
                {key: value if np.isfinite(value) else "never" for key, value in result.items()},
                indent=1,
            )
        )
    if options.curves:
        draw(curves, options.curves)


def draw(curves: dict[str, dict[str, list]], file: Path) -> None:
    """Draw a picture for every robot of B, with a line for every seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(curves), figsize=(5 * len(curves), 3.6), sharey=True, squeeze=False
    )
    for axis, (robot, kinds) in zip(axes[0], curves.items(), strict=True):
        for (name, runs), colour in zip(kinds.items(), ("tab:blue", "tab:gray"), strict=True):
            for number, entries in enumerate(runs):
                axis.plot(
                    [entry["env_steps"] for entry in entries],
                    [entry["success"] for entry in entries],
                    color=colour,
                    marker=".",
                    label=name if number == 0 else None,
                )
        axis.axhline(GOAL, color="lightgray", linewidth=0.8, zorder=0)
        axis.set(xlabel="time steps in simulator B", ylim=(-0.03, 1.03), title=robot)
    axes[0, 0].set_ylabel("success, held-out scenes")
    axes[0, 0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
