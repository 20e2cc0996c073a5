"""Learn each task of the simulators by its recipe in `configs/simulators`.

    python benchmarks/tasks.py [--only maniskill_push ...] [--seed 0] [--json results.json]
    [--markdown table.md]

Each run has ten demonstrations of the task's script, supervised fine-tuning, then RLPD, with one set
of hyper-parameters for all tasks. The figures are success, by the simulator's own measure, on 50
held-out scenes with uniform random actions, after fine-tuning, and at the end with Wilson's interval;
and the time steps of RL until an evaluation first reached 90 %. --out keeps finished runs. The
benchmark does not cover cameras (tasks are observed as poses), or more than one seed at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
import sim_bridges.core.mujoco  # noqa: E402, F401 (says how MuJoCo renders before any simulator imports it)
from benchmarks.figures import write  # noqa: E402
from rlinf_core.cli.train import train_command  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402
from rlinf_core.reports.curves import read_evaluations  # noqa: E402
from rlinf_core.reports.throughput import wilson  # noqa: E402
from sim_bridges.core.conformance import random_success  # noqa: E402
from sim_bridges.core.environments import make_environments  # noqa: E402

GOAL, NEVER = 0.9, 1_000_000_000


def learn(name: str, seed: int, out: Path) -> dict[str, float]:
    """Return the figures of one task; an unfinished run continues."""
    folder = out / f"{name}_{seed}"
    overrides = [f"seed={seed}"]
    recipe = load_recipe(f"simulators/{name}", overrides)
    entries = read_evaluations(folder) if (folder / "progress.jsonl").exists() else []
    if not entries or entries[-1]["env_steps"] < recipe.simulation.env_steps:
        folder.mkdir(parents=True, exist_ok=True)
        if train_command(f"simulators/{name}", overrides, folder, report=False):
            sys.exit(130)
        entries = read_evaluations(folder)
    episodes = recipe.simulation.evaluate_episodes
    after = entries[-1]["success"]
    low, high = wilson(round(after * episodes), episodes)
    random = folder / "chance.json"
    if not random.exists():
        random.write_text(json.dumps(success_by_chance(name, episodes)))
    to_90 = next((entry["env_steps"] for entry in entries if entry["success"] >= GOAL), NEVER)
    return {
        "chance": json.loads(random.read_text()),
        "before": entries[0]["success"],
        "after": after,
        "low": low,
        "high": high,
        "episodes": episodes,
        "env_steps": entries[-1]["env_steps"],
        "minutes": entries[-1]["seconds"] / 60,
        "steps_to_90": to_90,
    }


def success_by_chance(name: str, episodes: int) -> float:
    """Return the success of uniform random actions in the same scenes."""
    recipe = load_recipe(f"simulators/{name}")
    env = make_environments(recipe, 1)
    rate = random_success(
        env, range(recipe.evaluate.first_seed, recipe.evaluate.first_seed + episodes)
    )
    env.close()
    return rate


def table_row(name: str, figures: dict[str, float]) -> str:
    """Return a task's row of the Markdown table."""
    to_90 = f"{figures['steps_to_90']:,.0f}" if figures["steps_to_90"] < NEVER else "not reached"
    return (
        f"| `simulators/{name}` | {figures['chance']:.0%} | {figures['before']:.0%} | "
        f"{figures['after']:.0%} ({figures['low']:.0%} to {figures['high']:.0%}) | {to_90} | "
        f"{figures['env_steps']:,.0f} | {figures['minutes']:.1f} |"
    )


def main() -> None:
    names = sorted(path.stem for path in (ROOT / "configs/simulators").glob("*.yaml"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=names,
        metavar="TASK",
        help=f"tasks, of {', '.join(names)}",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "runs/tasks",
        help="run folders; runs there continue",
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    rows = [
        "| recipe | chance | demonstrations alone | after RL (95 %) | steps to 90 % | steps | "
        "minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in options.only:
        results[name] = learn(name, options.seed, options.out)
        rows.append(table_row(name, results[name]))
        print(rows[-1], flush=True)
        flat = {
            f"{task}_{key}": value
            for task, figures in results.items()
            for key, value in figures.items()
        }
        flat |= {
            "tasks": len(results),
            "learned": sum(figures["after"] >= GOAL for figures in results.values()),
        }
        if options.json:
            write(options.json, flat)
        if options.markdown:
            options.markdown.write_text("\n".join(rows) + "\n")
    print(f"{flat['learned']} of {flat['tasks']} tasks at {GOAL:.0%} or more")


if __name__ == "__main__":
    main()
