"""Train language models in conversations, and compare one task with TRL from the same warm start.

    python benchmarks/agentic.py --json results.json --trl .venvs/trl/bin/python
    python benchmarks/agentic.py --json results.json --only search --seeds 0 1 2

The figures are success before and after reinforcement learning. benchmarks/results/agentic.md holds
the results, and names the parts that have none yet.

* Sums: by default five seeds of configs/text_arithmetic.yaml with 500 held-out sums. The recipe
  ends its warm start at 38 % of the training scenes. Our seconds are those of one torch thread for
  learning and drawing alone; TRL's are those of its train(). ``--trl`` names the Python of an
  environment with TRL (scripts/trl_arithmetic.py); without it the comparison is left out.
* Search, programs and planner run their recipes.
* Wide compares lead agents with sub-agents and one agent.
* Coder has a simulated user behind the completion server.

``--json`` keeps the figures of other parts that the file has. The benchmark does not cover engines
behind a server and models larger than these.
"""

from __future__ import annotations

import argparse
import json
import re
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

CORRECTIONS = ("none", "token_truncate", "token_mask")  # token_mask: IcePop's bounds


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
    seeds, short = options.seeds, options.short
    parts = {
        "arithmetic": partial(measure_arithmetic, seeds, options.trl, short),
        "search": partial(measure_search, seeds, short),
        "programs": partial(measure_task, "programs", seeds, short),
        "planner": partial(measure_task, "planner", seeds, short),
        "wide": partial(measure_wide, seeds[:1], short),
        "coder": partial(measure_coder, seeds, short),
        "staleness": partial(measure_staleness, seeds[:1], short),
        "log-probabilities": measure_log_probabilities,
        "jail": measure_jail,
    }
    chosen = {name: part for name, part in parts.items() if options.only in name}
    if not chosen:
        parser.error(f"--only: expected a part of one of {', '.join(parts)}, got '{options.only}'")
    result: dict[str, float] = {}
    if options.json and options.json.is_file():
        result = json.loads(options.json.read_text())
    for part in chosen.values():
        result |= part()
        result |= summary(result)
        if options.json:
            write(options.json, result)


def run_recipe(
    name: str, seed: int, short: bool, *overrides: str, before: Path | None = None
) -> dict[str, Any]:
    """Run the recipe ``text_NAME``; return its figures, the run and the recipe.

    Args:
        before: the folder that gets the policy of the warm start.
    """
    from rlinf_core.trainer.train import train

    short_overrides = [
        "simulation.environments=32",
        "simulation.env_steps=64",
        "simulation.evaluate_episodes=8",
        "simulation.evaluate_every=64",
        "text.warm_start.steps=20",
    ]
    recipe = load_recipe(
        f"text_{name}", [f"seed={seed}", *overrides, *(short_overrides if short else [])]
    )
    marks: dict[str, Any] = {}

    def on_progress(run: Any, entry: dict[str, float] | None) -> None:
        marks["run"] = run
        if entry:
            print(f"  {run.steps} conversations: {entry['success']:.1%}", flush=True)
        if "before" not in marks and entry:
            marks["before"], marks["recipe"] = entry["success"], recipe
            if before:
                run.policy.network.save_pretrained(before)
                marks["tokenizer"] = run.policy.tokenizer.text
            marks["cpu"] = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        last = train(recipe, Path(folder) / "run", on_progress=on_progress)
    marks |= {
        "after": last["success"],
        "return": last["return"],
        "seconds": last["seconds"] - last["seconds_evaluate"],
        "warm_seconds": last.get("seconds_warm_start", 0.0),
        "cpu_seconds": time.process_time() - marks["cpu"],
    }
    print(
        f"{name}, seed {seed}: {marks['before']:.1%} -> {marks['after']:.1%} in "
        f"{marks['seconds']:.0f} s ({marks['cpu_seconds']:.0f} CPU s with evaluations)",
        flush=True,
    )
    return marks


def measure_arithmetic(seeds: list[int], trl: Path | None, short: bool) -> dict[str, float]:
    """Measure the sums, and TRL from the same weights with as many completions."""
    result: dict[str, float] = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run = run_recipe("arithmetic", seed, short, before=folder)
            result |= figures("arithmetic", seed, run)
            if trl:
                theirs = run_trl(trl, folder, run, seed)
                result |= figures("trl", seed, theirs)
                print(
                    f"  TRL: {theirs['before']:.1%} -> {theirs['after']:.1%} in "
                    f"{theirs['seconds']:.0f} s ({theirs['cpu_seconds']:.0f} CPU s)",
                    flush=True,
                )
    return result


def figures(name: str, seed: int, run: dict[str, Any]) -> dict[str, float]:
    """Return success before and after, and seconds, of one seed, by key."""
    keys = ("before", "after", "seconds", "cpu_seconds")
    return {f"{name}_seed_{seed}_{key}": run[key] for key in keys}


def summary(result: dict[str, float]) -> dict[str, float]:
    """Return the worst figures over the seeds in ``result``."""
    rows: dict[str, float] = {}
    for name in ("arithmetic", "trl", "search", "programs", "planner"):
        values = {
            key: [value for full, value in result.items() if re.fullmatch(pattern, full)]
            for key in ("before", "after", "cpu_seconds")
            if (pattern := rf"{name}_seed_\d+_{key}")
        }
        if values["after"]:
            rows |= {
                f"{name}_min": min(values["after"]),
                f"{name}_seeds": len(values["after"]),
                f"{name}_before_min": min(values["before"]),
                f"{name}_before_max": max(values["before"]),
                f"{name}_cpu_seconds_max": max(values["cpu_seconds"]),
            }
    both = [
        seed
        for full in result
        if (seed := full.removeprefix("trl_seed_").removesuffix("_cpu_seconds")).isdecimal()
    ]
    if both:
        ours, theirs = (
            sum(result[f"{name}_seed_{seed}_cpu_seconds"] for seed in both)
            for name in ("arithmetic", "trl")
        )
        rows["arithmetic_seconds_ratio_trl"] = ours / theirs
    return rows


def measure_task(name: str, seeds: list[int], short: bool) -> dict[str, float]:
    """Measure the recipe of one task."""
    result: dict[str, float] = {}
    for seed in seeds:
        result |= figures(name, seed, run_recipe(name, seed, short))
    return result


def measure_search(seeds: list[int], short: bool) -> dict[str, float]:
    """Measure the recipe, and its last policies with a tool that finds nothing."""
    from rlinf_core.agentic.environment import Scene
    from rlinf_core.agentic.source import Conversations
    from rlinf_core.agentic.tasks.search import Search
    from rlinf_core.agentic.tools import SearchIndex

    class SearchWithoutResults(Search):
        def begin(self, seed: int) -> Scene:
            return Scene(
                super().begin(seed).messages, [SearchIndex(["no document"]).tool().brief()]
            )

    result: dict[str, float] = {}
    for seed in seeds:
        run = run_recipe("search", seed, short)
        recipe, policy = run["recipe"], run["run"].policy
        make = partial(SearchWithoutResults, **recipe.text.options)
        conversations = Conversations(recipe.text, make, policy, 8, 0)
        first, count = recipe.evaluate.first_seed, recipe.simulation.evaluate_episodes
        results = conversations.evaluate(policy, range(first, first + count))
        without_tool = sum(episode.success for episode in results) / count
        print(f"  without the tool: {without_tool:.1%}", flush=True)
        result |= figures("search", seed, run) | {f"search_seed_{seed}_without_tool": without_tool}
    return result


def measure_wide(seeds: list[int], short: bool) -> dict[str, float]:
    """Measure the item F1 of one agent alone, and of a lead agent with 1, 2, 4 and 8 sub-agents.

    The single agent's rows have the same limit of tokens. ``wide_gain`` compares two sub-agents with
    it.
    """
    result: dict[str, float] = {}
    for sub_agents in (0, 1, 2, 4, 8):
        runs = [
            run_recipe("wide", seed, short, f"text.options.sub_agents={sub_agents}")
            for seed in seeds
        ]
        result[f"wide_f1_{sub_agents}"] = min(run["return"] for run in runs)
        print(f"  {sub_agents} sub-agents: item F1 {result[f'wide_f1_{sub_agents}']:.3f}")
    return result | {"wide_gain": result["wide_f1_2"] - result["wide_f1_0"]}


def measure_coder(seeds: list[int], short: bool) -> dict[str, float]:
    """Measure how often a simulated user with a hidden rule accepts completions over HTTP."""
    from tests.agentic.test_online import acceptance

    first, last = [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            rates = acceptance(Path(folder), seed, 2 if short else 60)
        print(f"coder, seed {seed}: {rates[0]:.1%} -> {rates[1]:.1%}", flush=True)
        first.append(rates[0])
        last.append(rates[1])
    return {"coder_before_max": max(first), "coder_min": min(last)}


def measure_jail() -> dict[str, float]:
    """Count the attempted escapes from the jail, and those that succeed."""
    from rlinf_core.agentic.jail_drill import ESCAPES, attempt

    succeeded = [escape.name for escape in ESCAPES if attempt(escape)[0]]
    print(f"jail: {len(ESCAPES)} escapes tried, {len(succeeded)} succeed", flush=True)
    return {"jail_tried": len(ESCAPES), "jail_escapes": len(succeeded)}


def run_trl(python: Path, folder: Path, run: dict[str, Any], seed: int) -> dict[str, float]:
    """Run scripts/trl_arithmetic.py; return its success and seconds."""
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
                "temperature": recipe.policy.temperature,
                "schedule": "linear" if recipe.algorithm.anneal_updates else "constant",
                "max_new_tokens": recipe.text.max_new_tokens,
            }
        )
    )
    command = [python, ROOT / "scripts/trl_arithmetic.py", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python}: TRL's run failed:\n{done.stderr[-2000:]}")
    return json.loads((folder / "result.json").read_text())


def measure_staleness(seeds: list[int], short: bool) -> dict[str, float]:
    """Measure success with rollouts that are 0, 1 and 4 updates old, for each correction.

    ``stale_gap`` compares the best correction at 4 updates with no staleness.
    """
    result: dict[str, float] = {}
    for steps in (0, 1, 4):
        for correction in CORRECTIONS if steps else CORRECTIONS[:1]:
            bounds = ["algorithm.correction_low=0.5", "algorithm.correction_high=5"]
            after = [
                run_recipe(
                    "arithmetic",
                    seed,
                    short,
                    f"text.max_staleness={steps}",
                    f"algorithm.correction={correction}",
                    *(bounds if correction == "token_mask" else []),
                )["after"]
                for seed in seeds
            ]
            result[f"stale_{steps}_{correction}"] = min(after)
            print(f"staleness {steps}, correction {correction}: {min(after):.1%}", flush=True)
    corrected = max(result[f"stale_4_{correction}"] for correction in CORRECTIONS[1:])
    return result | {"stale_gap": result["stale_0_none"] - corrected}


def measure_log_probabilities() -> dict[str, float]:
    """Return the largest difference between the log-probabilities of engine and trainer [nats].

    It is taken after each of five updates, with tied and untied embeddings, at temperatures 0.5 and 1.
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
