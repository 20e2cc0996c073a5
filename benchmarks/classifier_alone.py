"""What a reward that sees is worth: demo_vision by RL with a classifier's word alone, beside RL with the true reward.

    python benchmarks/classifier_alone.py --json results.json            # all of it: an hour and a half on two cores
    python benchmarks/classifier_alone.py --env-steps 5000 --seed 1 --out runs/classifier_1

The demo's script records tries through the station (`rlinf demo demo_vision`), `rlinf reward train` makes a classifier of
them, and `rlinf train demo_vision` learns in simulation twice from the same demonstrations: told by geometry what success
is, and told by the classifier alone. Both policies are then judged by geometry, on scenes that neither was trained in; how
often the classifier says of its own that it succeeds stands beside it. What is done in --out is kept, and the same command
goes on. It does not cover a real camera's light, nor a person's labels: the tries are a script's, and all but few succeed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from rlinf_core.settings.overrides import quoted  # noqa: E402

RLINF = ROOT / ".venv/bin/rlinf"
SEEN = """defaults: peg_insertion_vision
reward: {kind: classifier, model: success.safetensors}
success_steps: 2        # one frame may fool it, two in a row hardly
"""


def rlinf(*words: str | Path) -> None:
    """A command of ours, whose output is the terminal's."""
    subprocess.run([RLINF, *words], check=True)


def classifier(folder: Path, episodes: int) -> tuple[Path, dict[str, float]]:
    """The file of a task that it judges, and its scores on held-out episodes."""
    task, scores = folder / "task.yaml", folder / "classifier.json"
    if not scores.exists():
        if not (folder / "seen/inbox").exists():
            rlinf("demo", "demo_vision", "--quiet", "--out", folder / "seen",
                  "--set", "collect.only=true", f"collect.episodes={episodes}")
        rlinf("reward", "train", folder / "seen/inbox", "--out", folder / "success.safetensors", "--json", scores)
    task.write_text(SEEN)
    return task, json.loads(scores.read_text())


def judged(run: Path, name: str, scenes: int, *overrides: str) -> dict[str, float]:
    """A run's newest policy, on held-out scenes."""
    file = run / f"{name}.json"
    if not file.exists():
        rlinf("eval", run, "--episodes", str(scenes), "--first-seed", "2000000", "--json", file, "--set", *overrides)
    return json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the two runs")
    parser.add_argument("--episodes", type=int, default=80, help="tries that the classifier learns from")
    parser.add_argument("--env-steps", type=int, default=10000, help="of each run")
    parser.add_argument("--scenes", type=int, default=200, help="held-out ones that judge")
    parser.add_argument("--only", choices=("true", "classifier"), help="one of the two runs, and no word on the other")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/classifier_alone")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    task, scores = classifier(options.out, options.episodes)
    result = {"seed": options.seed, "env_steps": options.env_steps, "scenes": options.scenes,
              "classifier_accuracy": scores["accuracy"]}
    told = {"true": "peg_insertion_vision", "classifier": quoted(task.resolve())}
    for name in (options.only,) if options.only else told:
        run = options.out / name
        if not (run / "done").exists():
            rlinf("train", "demo_vision", "--no-report", "--out", run, "--set", f"seed={options.seed}",
                  f"station.task={told[name]}", f"simulation={{environments: 1, env_steps: {options.env_steps}, "
                  "start_steps: 300, updates_per_step: 1.0, evaluate_every: 2500, evaluate_episodes: 50}")
            (run / "done").touch()
        found = judged(run, "judged", options.scenes, f"station.task={told['true']}")
        result |= {f"{name}_{key}": found[key] for key in ("success", "low", "high")}
        print(f"told by {name}: {found['success']:.1%} of {options.scenes} held-out scenes "
              f"({found['low']:.0%} to {found['high']:.0%})", flush=True)
        if name == "classifier":
            result["classifier_believes"] = judged(run, "believed", options.scenes, f"station.task={told[name]}")["success"]
            print(f"what the classifier takes for success of the same: {result['classifier_believes']:.1%}")
    if not options.only:
        result["inside"] = float(result["true_low"] <= result["classifier_success"] <= result["true_high"])
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
