"""Language models that learn in conversations: success of each task, and TRL beside it from the
same warm start.

    python benchmarks/agentic.py --json results.json --trl .venvs/trl/bin/python

Sums: five seeds, a network of 362k parameters, 102,400 completions after a warm start of 35 to 45
%, 500 held-out sums. Seconds are those of one torch thread, for learning and drawing alone; TRL's
are those of its train(). ``--trl`` names the Python of an environment with TRL
(scripts/trl_losses.py); without it the comparison is left out. It does not cover search, programs,
sub-agents and the planner, engines behind a server, and models larger than this one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402

CORRECTIONS = ("none", "token_truncate", "token_mask")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--only", default="", help="parts whose name contains this: arithmetic, staleness, ..."
    )
    parser.add_argument("--trl", type=Path, help="Python of an environment with TRL")
    parser.add_argument(
        "--short", action="store_true", help="a fiftieth of the completions: tries the command"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    parts = {
        "arithmetic": partial(arithmetic, options.seeds, options.trl, options.short),
        "staleness": partial(staleness, options.seeds[:1], options.short),
        "log-probabilities": log_probabilities,
    }
    chosen = {name: part for name, part in parts.items() if options.only in name}
    if not chosen:
        parser.error(f"--only: expected a part of one of {', '.join(parts)}, got '{options.only}'")
    result: dict[str, float] = {}
    for part in chosen.values():
        result |= part()
    if options.json:
        write(options.json, result)


def played(seed: int, short: bool, *overrides: str, before: Path | None = None) -> dict[str, float]:
    """Success before and after a run, its seconds and those of CPU; the warm start's policy is kept
    in ``before``.
    """
    from rlinf_core.trainer.train import train

    fewer = [
        "simulation.env_steps=512",
        "simulation.evaluate_episodes=40",
        "simulation.evaluate_every=512",
        "text.warm_start.steps=20",
    ]
    recipe = load_recipe("text_arithmetic", [f"seed={seed}", *(fewer if short else []), *overrides])
    marks: dict[str, Any] = {"seconds": 0.0}

    def on_progress(run: Any, entry: dict[str, float] | None) -> None:
        if "before" not in marks and entry:
            marks["before"], marks["recipe"] = entry["success"], recipe
            if before:
                run.policy.network.save_pretrained(before)
                marks["tokenizer"] = run.policy.tokenizer.text
            marks["cpu"] = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        last = train(recipe, Path(folder) / "run", on_progress=on_progress)
    spent = last["seconds"] - last["seconds_evaluate"]
    marks |= {
        "after": last["success"],
        "seconds": spent,
        "cpu_seconds": time.process_time() - marks["cpu"],
    }
    return marks


def arithmetic(seeds: list[int], trl: Path | None, short: bool) -> dict[str, float]:
    """The recipe, and TRL from the same weights with as many completions."""
    ours, theirs = [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ours.append(played(seed, short, before=folder))
            print(
                f"sums, seed {seed}: {ours[-1]['before']:.1%} -> {ours[-1]['after']:.1%} in "
                f"{ours[-1]['seconds']:.0f} s "
                f"({ours[-1]['cpu_seconds']:.0f} CPU s)",
                flush=True,
            )
            if trl:
                theirs.append(by_trl(trl, folder, ours[-1], seed))
                print(
                    f"  TRL: {theirs[-1]['before']:.1%} -> {theirs[-1]['after']:.1%} in "
                    f"{theirs[-1]['seconds']:.0f} s "
                    f"({theirs[-1]['cpu_seconds']:.0f} CPU s)",
                    flush=True,
                )
    result = {
        "arithmetic_min": min(run["after"] for run in ours),
        "arithmetic_seeds": len(seeds),
        "arithmetic_before_min": min(run["before"] for run in ours),
        "arithmetic_before_max": max(run["before"] for run in ours),
        "arithmetic_seconds_max": max(run["seconds"] for run in ours),
    }
    if theirs:
        result |= {
            "arithmetic_min_trl": min(run["after"] for run in theirs),
            "arithmetic_seconds_ratio_trl": sum(run["seconds"] for run in ours)
            / sum(run["seconds"] for run in theirs),
        }
    return result


def by_trl(python: Path, folder: Path, run: dict[str, Any], seed: int) -> dict[str, float]:
    """Success and seconds of scripts/trl_arithmetic.py."""
    from rlinf_core.agentic.tasks.arithmetic import Environment

    recipe, task = run["recipe"], Environment()
    text = [
        [[f"<|user|>{a}+{b}=<|end|><|assistant|>", str(a + b)] for a, b in sums]
        for sums in (task.training, task.held_out[: recipe.simulation.evaluate_episodes])
    ]
    size = recipe.simulation.environments
    (folder / "sums.json").write_text(
        json.dumps(
            {
                "tokenizer": run["tokenizer"],
                "training": text[0],
                "held_out": text[1],
                "completions": size,
                "seed": seed,
                "group": recipe.algorithm.group,
                "steps": recipe.simulation.env_steps // size,
                "learning_rate": recipe.algorithm.learning_rate,
                "clip_high": recipe.algorithm.clip_high,
                "max_new_tokens": recipe.text.max_new_tokens,
            }
        )
    )
    command = [python, ROOT / "scripts/trl_arithmetic.py", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python}: TRL's run failed:\n{done.stderr[-2000:]}")
    return json.loads((folder / "result.json").read_text())


def staleness(seeds: list[int], short: bool) -> dict[str, float]:
    """Success with rollouts that are 0, 1 and 4 updates old, by correction; the gap is that of the
    best one at 4.
    """
    result: dict[str, float] = {}
    for steps in (0, 1, 4):
        for correction in CORRECTIONS:
            after = [
                played(
                    seed, short, f"text.max_staleness={steps}", f"algorithm.correction={correction}"
                )["after"]
                for seed in seeds
            ]
            result[f"stale_{steps}_{correction}"] = min(after)
            print(f"staleness {steps}, correction {correction}: {min(after):.1%}", flush=True)
    corrected = max(result[f"stale_4_{correction}"] for correction in CORRECTIONS[1:])
    return result | {"stale_gap": result["stale_0_none"] - corrected}


def log_probabilities() -> dict[str, float]:
    """The largest difference between engine and trainer after each of five updates, tied and
    untied, T 0.5 and 1.
    """
    import torch

    from rlinf_core.agentic.engines.in_process import InProcessEngine
    from rlinf_core.policies.pretrained.language import Config
    from rlinf_core.policies.pretrained.language.policy import LanguagePolicy
    from rlinf_core.specs.arrays import TextSpec

    worst = 0.0
    for tied in (True, False):
        for temperature in (0.5, 1.0):
            torch.manual_seed(0)
            policy = LanguagePolicy(
                TextSpec(), Config(temperature=temperature, network={"tie_word_embeddings": tied})
            )
            engine = InProcessEngine(policy)
            for version in range(5):
                with torch.no_grad():
                    for parameter in policy.parameters():
                        parameter += 0.02 * torch.randn_like(parameter)
                engine.update(policy, version)
                worst = max(worst, engine.check(policy))
    print(f"log-probabilities, engine against trainer: {worst:.2g} nats apart at most")
    return {"worst_logprob_difference": worst}


if __name__ == "__main__":
    main()
