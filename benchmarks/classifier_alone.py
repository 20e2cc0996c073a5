"""Measure the value of a visual reward: train demo_vision by RL with a classifier's reward only.

    python benchmarks/classifier_alone.py --json results.json            # two hours on two cores
    python benchmarks/classifier_alone.py --only classifier --rounds 1 --seed 1 --out
    runs/classifier_1

Round 1: the demo's script records episodes through the station (`rlinf demo demo_vision`),
`rlinf reward train` trains a classifier on them, and `rlinf train demo_vision` learns in simulation
from 50 demonstrations with that classifier as its only reward. Round 2: the trained policy plays a
hundred episodes through the station. Geometry labels them, in place of a person who watches. They
join the classifier's data, and classifier and policy are trained anew. A second run learns with the
true reward (geometry).

Geometry judges all policies on scenes that none was trained in. ``..._believes`` is the success
rate by the classifier's own judgement. --out keeps each finished step, and the same command
continues there. The benchmark does not cover a real camera's light, nor people who label wrongly.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from rlinf_core.config.overrides import quote_value  # noqa: E402

RLINF = ROOT / ".venv/bin/rlinf"
GEOMETRY_TASK = "peg_insertion_vision"
VISION_TASK = """defaults: peg_insertion_vision
reward: {{kind: classifier, model: {model}}}
success_steps: 2        # the classifier errs on single frames, hardly on two in a row
"""


def rlinf(*words: str | Path) -> None:
    """Run an `rlinf` command with its output on this terminal."""
    subprocess.run([RLINF, *words], check=True)


def record_episodes(folder: Path, *overrides: str) -> Path:
    """Record a station's episodes, unless they are in the folder; return its inbox."""
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)  # remains of an interrupted recording
        rlinf("demo", "demo_vision", "--quiet", "--out", folder, "--set", *overrides)
        (folder / "done").touch()
    return folder / "inbox"


def train_classifier(
    folder: Path, number: int, recordings: list[Path]
) -> tuple[Path, dict[str, float]]:
    """Train a classifier; return its task file and its scores on held-out episodes."""
    task, model, scores = (
        folder / name
        for name in (
            f"task_{number}.yaml",
            f"success_{number}.safetensors",
            f"scores_{number}.json",
        )
    )
    if not scores.exists():
        model.unlink(missing_ok=True)
        rlinf("reward", "train", *recordings, "--out", model, "--json", scores)
    task.write_text(VISION_TASK.format(model=model.name))
    return task, json.loads(scores.read_text())


def train_policy(run: Path, seed: int, env_steps: int, task: str) -> None:
    """Train demo_vision in simulation, unless the run is finished."""
    if not (run / "done").exists():
        rlinf(
            "train",
            "demo_vision",
            "--no-report",
            "--out",
            run,
            "--set",
            f"seed={seed}",
            f"station.task={task}",
            f"simulation={{environments: 1, env_steps: {env_steps}, start_steps: 300, "
            "updates_per_step: 1.0, evaluate_every: 2500, evaluate_episodes: 50}",
        )
        (run / "done").touch()


def evaluate_policy(run: Path, name: str, scenes: int, *overrides: str) -> dict[str, float]:
    """Evaluate a run's newest policy on held-out scenes."""
    file = run / f"{name}.json"
    if not file.exists():
        rlinf(
            "eval",
            run,
            "--episodes",
            str(scenes),
            "--first-seed",
            "2000000",
            "--json",
            file,
            "--set",
            *overrides,
        )
    return json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all runs")
    parser.add_argument(
        "--episodes", type=int, default=80, help="episodes that the first classifier learns from"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="number of classifiers, each with one run"
    )
    parser.add_argument("--env-steps", type=int, default=10000, help="time steps of each run")
    parser.add_argument("--scenes", type=int, default=200, help="held-out scenes of an evaluation")
    parser.add_argument(
        "--only", choices=("true", "classifier"), help="run only the one with this reward"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs/classifier_alone")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, float] = {
        "seed": options.seed,
        "env_steps": options.env_steps,
        "scenes": options.scenes,
    }
    settings_file = options.out / "settings.json"
    settings = json.dumps(result | {"episodes": options.episodes})
    if settings_file.exists() and settings_file.read_text() != settings:
        parser.error(
            f"--out {options.out}: expected the settings of its first start, "
            f"{settings_file.read_text()}, got {settings}. Choose another folder"
        )
    settings_file.write_text(settings)

    def judge(run: Path, name: str) -> None:
        score = evaluate_policy(run, "judged", options.scenes, f"station.task={GEOMETRY_TASK}")
        result.update({f"{name}_{key}": score[key] for key in ("success", "low", "high")})
        print(
            f"{name}: {score['success']:.1%} of {options.scenes} held-out scenes "
            f"({score['low']:.0%} to {score['high']:.0%})",
            flush=True,
        )

    if options.only != "true":
        run_folders = [
            record_episodes(
                options.out / "seen",
                "collect.no_training=true",
                f"collect.episodes={options.episodes}",
            )
        ]
        for number in range(1, options.rounds + 1):
            task, scores = train_classifier(options.out, number, run_folders)
            run, task_path = options.out / f"classifier_{number}", quote_value(task.resolve())
            train_policy(run, options.seed, options.env_steps, task_path)
            judge(run, run.name)
            result[f"{run.name}_accuracy"] = scores["accuracy"]
            result[f"{run.name}_believes"] = evaluate_policy(
                run, "believed", options.scenes, f"station.task={task_path}"
            )["success"]
            believes = result[f"{run.name}_believes"]
            print(f"success by the classifier's judgement: {believes:.1%}", flush=True)
            if number < options.rounds:
                run_folders.append(
                    record_episodes(
                        options.out / f"played_{number}",
                        f"simulation.initial_policy={quote_value(run.resolve())}",
                        "collect.episodes=1",
                        "sft.steps=0",
                        "online.max_env_steps=0",
                    )
                )
        result["classifier_success"] = result[f"classifier_{options.rounds}_success"]
    if options.only != "classifier":
        train_policy(options.out / "true", options.seed, options.env_steps, GEOMETRY_TASK)
        judge(options.out / "true", "true")
    if not options.only:
        result["inside"] = float(
            result["true_low"] <= result["classifier_success"] <= result["true_high"]
        )
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
