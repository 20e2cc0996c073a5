"""From simulator A, randomised, to simulator B, which stands in for the real arm: as it is, fine-tuned, and from scratch.

    python benchmarks/transfer.py --json results.json --curves curves.png

Learned in ManiSkill (a Panda, PhysX) with another delay, lag and perception in every scene
(`configs/transfer_source.yaml`); taken unchanged to Gymnasium-Robotics' Fetch (another arm, MuJoCo); fine-tuned there by
RLPD with 20 demonstrations, beside RLPD from scratch with the same demonstrations (`configs/transfer_target.yaml`). Success
over 50 held-out scenes; steps are those in B after which an evaluation first reached 90 %. B is a simulator: what a real
arm would say is not covered.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from rlinf_core.cli.simulate import read_evaluations, train_in_simulation  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402

GOAL = 0.9


def run(name: str, folder: Path, overrides: list[str]) -> list[dict[str, float]]:
    """The evaluations of a run, which goes on if it was begun before."""
    recipe = load_recipe(name, overrides)
    done = read_evaluations(folder) if (folder / "progress.jsonl").exists() else []
    if not done or done[-1]["env_steps"] < recipe.simulation.env_steps:
        folder.mkdir(parents=True, exist_ok=True)
        train_in_simulation(recipe, folder)
    return read_evaluations(folder)


def steps_to(entries: list[dict[str, float]], goal: float = GOAL) -> float:
    """Time steps until an evaluation first reached the goal; infinite if none did."""
    return next((entry["env_steps"] for entry in entries if entry["success"] >= goal), float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "runs/transfer", help="run folders; what is done there is kept")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--curves", type=Path, help="draw success in B over steps there")
    options = parser.parse_args()
    result: dict[str, float] = {"seeds": len(options.seeds)}
    curves: dict[str, list] = {"fine-tuned": [], "from scratch": []}
    for seed in options.seeds:
        source = run("transfer_source", options.out / f"source_{seed}", [f"seed={seed}"])
        begin = f"simulation.initial_policy={options.out / f'source_{seed}'}"
        tuned = run("transfer_target", options.out / f"tuned_{seed}", [f"seed={seed}", begin])
        scratch = run("transfer_target", options.out / f"scratch_{seed}", [f"seed={seed}"])
        curves["fine-tuned"].append(tuned)
        curves["from scratch"].append(scratch)
        result |= {f"source_{seed}": source[-1]["success"], f"zero_shot_{seed}": tuned[0]["success"],
                   f"cloned_{seed}": scratch[0]["success"], f"fine_tuned_{seed}": tuned[-1]["success"],
                   f"scratch_{seed}": scratch[-1]["success"], f"fine_tuned_steps_{seed}": steps_to(tuned),
                   f"scratch_steps_{seed}": steps_to(scratch)}
        print(f"seed {seed}: in A {source[-1]['success']:.0%}; in B at once {tuned[0]['success']:.0%}, fine-tuned "
              f"{tuned[-1]['success']:.0%} (90 % after {steps_to(tuned):.0f} steps), from scratch "
              f"{scratch[-1]['success']:.0%} (90 % after {steps_to(scratch):.0f} steps)", flush=True)
    for name in ("zero_shot", "fine_tuned", "scratch", "fine_tuned_steps", "scratch_steps"):
        result[name] = float(np.mean([result[f"{name}_{seed}"] for seed in options.seeds]))
    if options.json:
        options.json.write_text(json.dumps({key: value if np.isfinite(value) else "never" for key, value in result.items()},
                                           indent=1))
    if options.curves:
        draw(curves, options.curves)


def draw(curves: dict[str, list], file: Path) -> None:
    """One line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    for (name, runs), colour in zip(curves.items(), ("tab:blue", "tab:gray"), strict=True):
        for number, entries in enumerate(runs):
            axis.plot([entry["env_steps"] for entry in entries], [entry["success"] for entry in entries], color=colour,
                      marker=".", label=name if number == 0 else None)
    axis.set(xlabel="time steps in simulator B", ylabel="success, held-out scenes", ylim=(-0.03, 1.03))
    axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
