"""Compare SAC and CrossQ of this project, and SB3's SAC, with published tables by their protocol.

    python benchmarks/published.py --json results.json              # ten tasks of MetaWorld, 3 seeds
    python benchmarks/published.py --table gymnasium                # Hopper, HalfCheetah, ...
    python benchmarks/published.py --tasks reach --seeds 0 --steps 20000 --only sac

* MetaWorld: state, no demonstrations, dense reward, action repeat 2, 100 decisions, a random
  observed goal, no termination, success of the last step; steps are simulator steps. The published
  SAC is results/sac/mw-*.csv of github.com/nicklashansen/tdmpc2 (3 seeds, v2). The benchmark runs v3,
  whose rewards differ, and therefore also SB3's SAC: `--sb3 PYTHON` names an interpreter with
  stable-baselines3 and metaworld.
* Gymnasium: return at 100k steps. Compare it with the 100k column of
  github.com/DAVIAN-Robotics/SimbaV2, results/baseline.

``sac_over_published`` is the share of tasks in which our SAC reaches 50 % within the published
number of steps; tasks in which the published SAC needs more than ``--steps`` are left out. A task of
200k steps takes about 20 minutes on one core. The benchmark does not cover images, DMControl or v2 of
MetaWorld.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import folder, write  # noqa: E402

NEVER = 1_000_000_000
REPEAT, DECISIONS = 2, 100
# Published simulator steps of SAC to 50 and 90 %, on a grid of 100k; NEVER: not within 2M.
PUBLISHED = {
    "reach": (200_000, 1_100_000),
    "drawer-open": (900_000, NEVER),
    "door-open": (600_000, 1_800_000),
    "peg-insert-side": (300_000, 600_000),
    "push": (700_000, 1_100_000),
    "hammer": (300_000, 300_000),
    "coffee-push": (1_700_000, NEVER),
    "pick-place": (NEVER, NEVER),
    "assembly": (NEVER, NEVER),
    "stick-pull": (900_000, NEVER),
}
GYMNASIUM = ("Hopper-v4", "HalfCheetah-v4", "Walker2d-v4", "Ant-v4")
SETTINGS = {
    "sac": "{name: sac, discount: 0.99, critic_hidden: [256, 256], n_step: 1, ema_rate: 1.0, "
    "initial_temperature: 1.0, learning_rate: 3.0e-4}",
    "crossq": "{name: crossq, discount: 0.99, n_step: 1, ema_rate: 1.0, learning_rate: 1.0e-3}",
}


class Published(gymnasium.Wrapper):
    """MetaWorld by the published protocol: repeated actions, and the success of the last step."""

    def __init__(self, task: str, render_mode: str | None = None) -> None:
        import metaworld  # noqa: F401 (registers its environments)

        name, options = f"{task}-v3", {"render_mode": render_mode, "disable_env_checker": True}
        super().__init__(gymnasium.make("Meta-World/MT1", env_name=name, **options))
        self.decisions = 0

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.decisions = 0
        return self.env.reset(**options)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, success = 0.0, 0.0
        for _ in range(REPEAT):
            observation, step_reward, _, _, info = self.env.step(action)
            reward, success = reward + float(step_reward), float(info["success"])
        self.decisions += 1
        last = self.decisions >= DECISIONS
        return observation, reward, False, last, {"success": success if last else 0.0}


def make(task: str) -> gymnasium.Env:
    """Return the environment of a row."""
    return gymnasium.make(task) if task in GYMNASIUM else Published(task)


gymnasium.register("rlinf-published/metaworld", entry_point="benchmarks.published:Published")


def train_ours(name: str, task: str, seed: int, steps: int, episodes: int, out: Path) -> list[Any]:
    """Train one of our algorithms; return (simulator steps, success, return) of its evaluations."""
    from rlinf_core.recipes import load_recipe
    from rlinf_core.reports.curves import read_evaluations
    from rlinf_core.trainer.train import train

    published = task not in GYMNASIUM
    repeat = REPEAT if published else 1
    env = (
        ["env=gym:rlinf-published/metaworld", f"env_options={{task: {task}}}"]
        if published
        else [f"env=gym:{task}"]
    )
    decisions = steps // repeat
    recipe = load_recipe(
        f"sim_{name}",
        [
            *env,
            f"seed={seed}",
            f"algorithm={SETTINGS[name]}",
            "policy.hidden=[256, 256]",
            f"simulation.env_steps={decisions}",
            "simulation.environments=1",
            f"simulation.start_steps={min(1000, decisions // 4)}",
            "simulation.updates_per_step=1.0",
            f"simulation.evaluate_every={max(1, min(25_000, steps // 2) // repeat)}",
            f"simulation.evaluate_episodes={episodes}",
        ],
    )
    run = out / f"{name}_{task}_{seed}"
    train(recipe, run)
    return [
        (repeat * entry["env_steps"], entry["success"], entry["return"])
        for entry in read_evaluations(run)
    ]


def train_sb3(task: str, seed: int, steps: int, episodes: int) -> list[Any]:
    """Train SB3's SAC in this process; return the rows of ``train_ours``."""
    from stable_baselines3 import SAC

    env, repeat, rows = make(task), REPEAT if task not in GYMNASIUM else 1, []
    model = SAC("MlpPolicy", env, seed=seed, learning_starts=1000, device="cpu")
    every = max(1, min(25_000, steps // 2) // repeat)
    for done in range(every, steps // repeat + 1, every):
        model.learn(every, reset_num_timesteps=False)
        successes, returns = [], []
        for episode in range(episodes):
            observation, _ = env.reset(seed=1_000_000 + episode)
            total, over, info = 0.0, False, {}
            while not over:
                action, _ = model.predict(observation, deterministic=True)
                observation, reward, terminated, truncated, info = env.step(action)
                total, over = total + float(reward), terminated or truncated
            successes.append(info.get("success", 0.0))
            returns.append(total)
        rows.append((repeat * done, float(np.mean(successes)), float(np.mean(returns))))
    return rows


def train_sb3_with(python: Path, task: str, seed: int, steps: int, episodes: int) -> list[Any]:
    """Run ``train_sb3`` with another Python interpreter."""
    code = (
        "import json, sys; from benchmarks.published import train_sb3; "
        "print(json.dumps(train_sb3(sys.argv[1], *map(int, sys.argv[2:]))))"
    )
    command = [str(python), "-c", code, task, str(seed), str(steps), str(episodes)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def steps_to(rows: list[Any], rate: float) -> int:
    """Return the simulator steps of the first evaluation with this success; NEVER without one."""
    return next((steps for steps, success, _ in rows if success >= rate), NEVER)


def over_published(reached: dict[str, int], steps: int) -> float:
    """Return the share of tasks that reach 50 % within the published steps."""
    within = {
        task: PUBLISHED[task][0]
        for task in reached
        if task in PUBLISHED and PUBLISHED[task][0] <= steps
    }
    if not within:
        return float("nan")
    return float(np.mean([reached[task] <= limit for task, limit in within.items()]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", choices=("metaworld", "gymnasium"), default="metaworld")
    parser.add_argument("--tasks", nargs="+", help="some rows (default: all of the table)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="simulator steps (default: 200000, 100000)")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each evaluation")
    parser.add_argument("--only", choices=sorted(SETTINGS), help="this algorithm alone")
    parser.add_argument(
        "--sb3", type=Path, metavar="PYTHON", help="also run SB3's SAC with this Python"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    tasks = options.tasks or list(PUBLISHED if options.table == "metaworld" else GYMNASIUM)
    unknown = [task for task in tasks if task not in PUBLISHED and task not in GYMNASIUM]
    if unknown:
        parser.error(
            f"--tasks: expected some of {', '.join([*PUBLISHED, *GYMNASIUM])}, got {unknown[0]}"
        )
    steps = options.steps or (200_000 if options.table == "metaworld" else 100_000)
    figures: dict[str, float] = {"steps": steps, "seeds": len(options.seeds)}
    names = [options.only] if options.only else sorted(SETTINGS)
    reached: dict[str, dict[str, int]] = {}
    with folder("rlinf-published-") as out:
        for task in tasks:
            for name in [*names, *(["sb3_sac"] if options.sb3 else [])]:
                curves = [
                    train_sb3_with(options.sb3, task, seed, steps, options.episodes)
                    if name == "sb3_sac"
                    else train_ours(name, task, seed, steps, options.episodes, out)
                    for seed in options.seeds
                ]
                mean = [tuple(np.mean(point, axis=0)) for point in zip(*curves, strict=True)]
                last, row = mean[-1], f"{name}_{task}"
                reached.setdefault(name, {})[task] = steps_to(mean, 0.5)
                figures |= {f"{row}_success": last[1], f"{row}_return": last[2]}
                figures[f"{row}_steps_to_50"] = reached[name][task]
                print(f"{name:8} {task:16} success {last[1]:.0%}, return {last[2]:.4g}", flush=True)
    with contextlib.suppress(KeyError):
        figures["sac_over_published"] = over_published(reached["sac"], steps)
    if options.json:
        write(options.json, figures)


if __name__ == "__main__":
    main()
