"""Measure the value of a visual reward: demo_vision by RL with a classifier's reward only.

The other run has the true reward.

    python benchmarks/classifier_alone.py --json results.json            # all of it: two hours on two cores
    python benchmarks/classifier_alone.py --only classifier --rounds 1 --seed 1 --out
    runs/classifier_1

The demo's script records tries through the station (`rlinf demo demo_vision`), `rlinf reward train`
makes a classifier of them, and `rlinf train demo_vision` learns in simulation from 50
demonstrations, told by the classifier alone what success is. In the next round the policy that came
of it plays a hundred episodes through the station, judged by geometry as a person who watches
would; the classifier is trained again with these, too, and a policy is learned anew. Beside it the
same is learned with geometry as the reward. All policies are then judged by geometry, on scenes
that none was trained in; how often the classifier says of its own that it succeeds stands beside
it. What is done in --out is kept, and the same command goes on. It does not cover a real camera's
light, nor people who label wrongly.
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
from rlinf_core.config.overrides import quoted  # noqa: E402

RLINF = ROOT / ".venv/bin/rlinf"
TRUE = "peg_insertion_vision"
VISION_TASK = """defaults: peg_insertion_vision
reward: {{kind: classifier, model: {model}}}
success_steps: 2        # one frame may fool it, two in a row hardly
"""


def rlinf(*words: str | Path) -> None:
    """A command of ours, whose output is the terminal's."""
    subprocess.run([RLINF, *words], check=True)


def played(folder: Path, *overrides: str) -> Path:
    """Episodes of a station: its inbox."""
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)  # it was cut short
        rlinf("demo", "demo_vision", "--quiet", "--out", folder, "--set", *overrides)
        (folder / "done").touch()
    return folder / "inbox"


def classifier(folder: Path, number: int, recordings: list[Path]) -> tuple[Path, dict[str, float]]:
    """The file of a task that it judges, and its scores on held-out episodes."""
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


def learned(run: Path, seed: int, env_steps: int, task: str) -> None:
    """A run of demo_vision in simulation."""
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


def judged(run: Path, name: str, scenes: int, *overrides: str) -> dict[str, float]:
    """A run's newest policy, on held-out scenes."""
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
    parser.add_argument("--seed", type=int, default=0, help="of all runs")
    parser.add_argument(
        "--episodes", type=int, default=80, help="tries that the first classifier learns from"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="classifiers, each with a run of its own"
    )
    parser.add_argument("--env-steps", type=int, default=10000, help="of each run")
    parser.add_argument("--scenes", type=int, default=200, help="held-out ones that judge")
    parser.add_argument(
        "--only", choices=("true", "classifier"), help="told so alone, and no word on the other"
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
    begun = options.out / "settings.json"
    settings = json.dumps(result | {"episodes": options.episodes})
    if begun.exists() and begun.read_text() != settings:
        parser.error(
            f"--out {options.out}: expected what it was begun with, {begun.read_text()}, got "
            f"{settings}. Take another folder"
        )
    begun.write_text(settings)

    def judge(run: Path, name: str) -> None:
        score = judged(run, "judged", options.scenes, f"station.task={TRUE}")
        result.update({f"{name}_{key}": score[key] for key in ("success", "low", "high")})
        print(
            f"{name}: {score['success']:.1%} of {options.scenes} held-out scenes "
            f"({score['low']:.0%} to {score['high']:.0%})",
            flush=True,
        )

    if options.only != "true":
        run_folders = [
            played(
                options.out / "seen",
                "collect.no_training=true",
                f"collect.episodes={options.episodes}",
            )
        ]
        for number in range(1, options.rounds + 1):
            task, scores = classifier(options.out, number, run_folders)
            run, task_path = options.out / f"classifier_{number}", quoted(task.resolve())
            learned(run, options.seed, options.env_steps, task_path)
            judge(run, run.name)
            result[f"{run.name}_accuracy"] = scores["accuracy"]
            result[f"{run.name}_believes"] = judged(
                run, "believed", options.scenes, f"station.task={task_path}"
            )["success"]
            print(
                f"the classifier's own word on it: {result[f'{run.name}_believes']:.1%}", flush=True
            )
            if number < options.rounds:
                run_folders.append(
                    played(
                        options.out / f"played_{number}",
                        f"simulation.initial_policy={quoted(run.resolve())}",
                        "collect.episodes=1",
                        "sft.steps=0",
                        "online.max_env_steps=0",
                    )
                )
        result["classifier_success"] = result[f"classifier_{options.rounds}_success"]
    if options.only != "classifier":
        learned(options.out / "true", options.seed, options.env_steps, TRUE)
        judge(options.out / "true", "true")
    if not options.only:
        result["inside"] = float(
            result["true_low"] <= result["classifier_success"] <= result["true_high"]
        )
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
