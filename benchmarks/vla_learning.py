"""A small pi0 and a small SmolVLA from scratch on two simulators' goals: SFT, then RL.

    python benchmarks/vla_learning.py --seeds 0 1 2 --json results.json
    python benchmarks/vla_learning.py --seeds 0 --only franka_marks pi0       # one of the four

Each run clones demonstrations of the task's script (``sft``) and goes on by GRPO with Flow-SDE
(``grpo``, arXiv 2510.25889). The policy after each plays held-out scenes. ``gain`` is the
difference in success. Wilson intervals are over all seeds' scenes together. ``--sft-steps`` and
``--env-steps`` set the time of a run. It does not cover published weights, LIBERO, whose assets
are on no package index, or a station.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402

SIMULATORS = {
    "franka_marks": ["station.robot=franka_marks_sim", "station.task=go_to_mark"],
    "metaworld": ["station.robot=sawyer_metaworld", "station.task=reach_goal"],
}
KINDS = ("pi0", "smolvla")
BASE = ["station.observe_cameras=[front]", "station.image_size=[32,32]"]


def rlinf(*words: object) -> None:
    """Run a command of rlinf; its error ends this one."""
    subprocess.run([ROOT / ".venv/bin/rlinf", *map(str, words)], check=True, stdout=sys.stderr)


def success(policy: Path, recipe: Path, scenes: int, folder: Path) -> float:
    """Return the share of held-out scenes in which the policy succeeds."""
    figures = folder / "eval.json"
    rlinf("eval", policy, "--recipe", recipe, "--episodes", scenes, "--json", figures)
    return float(json.loads(figures.read_text())["success"])


def learned(
    simulator: str, kind: str, seed: int, options: argparse.Namespace, folder: Path
) -> tuple[float, float]:
    """Success after SFT and after RL of one run."""
    keys = [*BASE, *SIMULATORS[simulator], f"seed={seed}"]
    policy = (
        f"policy={{kind: {kind}, horizon: 8, n_action_steps: 4, flow_steps: 4, sde_noise: 0.3}}"
    )
    cloned, improved = folder / "sft", folder / "grpo"
    rlinf(
        "train",
        "sim_vla",
        "--no-report",
        "--out",
        cloned,
        "--set",
        *keys,
        policy,
        f"collect.episodes={options.demonstrations}",
        f"algorithm.steps={options.sft_steps}",
        "algorithm.image_shift=0",
        "simulation.evaluate_every=1000000",
        "simulation.evaluate_episodes=1",
    )
    from rlinf_core.policies.serialization import newest_policy

    before = success(cloned, cloned / "recipe.yaml", options.scenes, folder)
    rlinf(
        "train",
        "sim_vla",
        "--no-report",
        "--out",
        improved,
        "--set",
        *keys,
        policy,
        "algorithm={name: grpo, group: 8, level: chunk, learning_rate: 1.0e-4, epochs: 1}",
        f"simulation={{environments: 16, env_steps: {options.env_steps}, shaping: 1.0, "
        f"evaluate_every: 1000000, evaluate_episodes: 1, initial_policy: {newest_policy(cloned)}}}",
        "collect.episodes=0",
    )
    return before, success(improved, improved / "recipe.yaml", options.scenes, folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        choices=[*SIMULATORS, *KINDS],
        help="simulators and kinds of policy",
    )
    parser.add_argument("--demonstrations", type=int, default=100)
    parser.add_argument("--sft-steps", type=int, default=3_000)
    parser.add_argument("--env-steps", type=int, default=30_000)
    parser.add_argument("--scenes", type=int, default=50, help="held out, of each success")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    from rlinf_core.reports.throughput import wilson

    simulators = [name for name in SIMULATORS if name in options.only] or [*SIMULATORS]
    kinds = [kind for kind in KINDS if kind in options.only] or [*KINDS]
    flat: dict[str, float] = {"seeds": len(options.seeds), "scenes": options.scenes}
    for simulator in simulators:
        for kind in kinds:
            pairs = []
            for seed in options.seeds:
                with tempfile.TemporaryDirectory(prefix="rlinf-vla-") as folder:
                    pairs.append(learned(simulator, kind, seed, options, Path(folder)))
                print(
                    f"{simulator} {kind} seed {seed}: {pairs[-1][0]:.0%} to {pairs[-1][1]:.0%}",
                    flush=True,
                )
            for when, values in zip(("sft", "rl"), zip(*pairs, strict=True), strict=True):
                count = len(values) * options.scenes
                low, high = wilson(round(sum(values) * options.scenes), count)
                name = f"{simulator} {kind} {when}"
                flat |= {name: sum(values) / len(values), f"{name} low": low, f"{name} high": high}
            gain = flat[f"{simulator} {kind} rl"] - flat[f"{simulator} {kind} sft"]
            flat[f"{simulator} {kind} gain"] = gain
            print(f"{simulator} {kind}: {gain:+.0%} by RL", flush=True)
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
