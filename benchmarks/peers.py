"""Compare PPO and SAC with Stable-Baselines3 and CleanRL: same tasks, budgets, seeds and machine.

    git clone https://github.com/vwxyzjn/cleanrl
    uv pip install --target sb3 --no-deps stable-baselines3 pandas python-dateutil tzdata six
    python benchmarks/peers.py --cleanrl cleanrl --sb3 sb3 --json results.json

The libraries take turns, each in its own process with one torch thread. CleanRL's scripts run
unchanged, under an adapter for the newer Gymnasium (autoreset and the shape of its infos). Each
library has its own hyper-parameters, with these in common: PPO's rollouts of 2,048 time steps, 32
minibatches, 10 epochs and networks of 64 x 64; SAC's batches of 256, one update a time step, 1,000
random time steps and networks of 256 x 256. PPO starts with a standard deviation of one unit of the
environment's actions. These differ:

* PPO of CleanRL and ours normalises observations and rewards, Stable-Baselines3's does not.
* SAC of CleanRL and ours steps its critics and its temperature at 1e-3, Stable-Baselines3's at 3e-4.
* Our critics are layer-normalised and measure values in units of their scale.

The return is the mean of the training episodes that ended in the last tenth of the time steps. The
interval is the mean +- 1.96 standard errors over seeds. ``all`` is the mean of all training episodes,
which shows how early a task is learned. Time runs from a process's first to its last environment
step, without imports; processor time depends less on other work of the machine.
``worst_time_ratio`` is our time over the faster peer's (``worst_processor_ratio`` likewise).
``worst_return_gap`` is the distance of our interval's upper end below the better peer's mean, divided
by that mean's size; 0 if our interval reaches it. The benchmark does not cover pixels, nor more than
one environment and process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402

TASKS = {
    "ppo_pendulum": ("ppo", "InvertedPendulum-v5", 80_000),
    "ppo_hopper": ("ppo", "Hopper-v5", 200_000),
    "sac_pendulum": ("sac", "Pendulum-v1", 8_000),
    "sac_double": ("sac", "InvertedDoublePendulum-v5", 15_000),
    "sac_reach": ("sac", "gymnasium_robotics:FetchReachDense-v4", 8_000),
}
LIBRARIES = ("ours", "sb3", "cleanrl")
RANDOM_STEPS = 1_000  # random time steps at the start of SAC
SCRIPTS = {"ppo": "cleanrl/ppo_continuous_action.py", "sac": "cleanrl/sac_continuous_action.py"}

ADAPTER = """
import sys, runpy, time, gymnasium as gym, numpy as np, torch
torch.set_num_threads(1)
observed, made = gym.wrappers.TransformObservation, gym.make
gym.wrappers.TransformObservation = lambda env, f, space=None: observed(env, f, space or env.observation_space)

def make(name, **rest):
    env = made(name, **rest)
    return gym.wrappers.FlattenObservation(env) if isinstance(env.observation_space, gym.spaces.Dict) else env

gym.make = make

class Vector(gym.vector.SyncVectorEnv):
    steps = 0
    def __init__(self, makers):
        super().__init__(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    def step(self, actions, active=None):
        if Vector.steps == 0:
            Vector.started = time.time(), time.process_time()
        Vector.steps += 1
        observation, reward, terminated, truncated, info = super().step(actions)
        old = {}
        if "final_info" in info:
            done = terminated | truncated
            episode = info["final_info"]["episode"]
            old["final_info"] = [{"episode": {k: float(episode[k][i]) for k in "rl"}} if done[i] else None
                                 for i in range(self.num_envs)]
            old["final_observation"] = info["final_obs"]
        return observation, reward, terminated, truncated, old
    def close(self, **rest):
        began, used = Vector.started
        print("SECONDS", time.time() - began, time.process_time() - used, flush=True)
        super().close(**rest)

gym.vector.SyncVectorEnv = Vector
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


Durations = tuple[float, float]  # seconds of the clock, and of the processor
Episodes = list[tuple[int, float]]  # time step at the end, and return


class EpisodeRecorder:
    """Records an environment's episodes, and the times of its first and last step."""

    def __init__(self) -> None:
        self.episodes: Episodes = []
        self.steps, self.total, self.first, self.last = 0, 0.0, (0.0, 0.0), (0.0, 0.0)

    def record(self, env: Any) -> Any:
        """Return the same environment; its steps are recorded from now on."""
        step = env.step

        def recorded_step(action: Any) -> Any:
            if not self.first[0]:
                self.first = time.perf_counter(), time.process_time()
            result = step(action)
            self.steps += 1
            self.total += float(result[1])
            self.last = (time.perf_counter(), time.process_time())
            if result[2] or result[3]:
                self.episodes.append((self.steps, self.total))
                self.total = 0.0
            return result

        env.step = recorded_step
        return env

    @property
    def durations(self) -> Durations:
        """Seconds from the first step to the last."""
        return self.last[0] - self.first[0], self.last[1] - self.first[1]


def train_ours(algorithm: str, name: str, steps: int, seed: int) -> tuple[Episodes, Durations]:
    """Run `rlinf train` with ``env``."""
    import gymnasium

    from rlinf_core.recipes import load_recipe
    from rlinf_core.trainer.train import train
    from sim_bridges.core.gymnasium_envs import make_gymnasium

    unit = -float(np.log(gymnasium.make(name).action_space.high.max()))  # actions are [-1, 1] here
    settings = {
        "ppo": [
            "policy.hidden=[64, 64]",
            f"policy.initial_log_std={unit}",
            "algorithm={name: ppo, chunks: 2048, minibatches: 32, epochs: 10, learning_rate: "
            "3.0e-4, discount: 0.99, dual_clip: 0.0, huber: 0.0, scale_rewards: true, "
            f"anneal_updates: {steps // 2048}}}",
        ],
        "sac": [
            "policy.hidden=[256, 256]",
            "algorithm={name: sac, critic_hidden: [256, 256], target_entropy: -1.0, "
            "initial_temperature: 1.0, critic_learning_rate: 1.0e-3}",
            f"simulation.start_steps={RANDOM_STEPS}",
        ],
    }[algorithm]
    recipe = load_recipe(
        f"sim_{algorithm}",
        [
            f"env=gym:{name}",
            "simulation.environments=1",
            f"simulation.env_steps={steps}",
            f"seed={seed}",
            "simulation.evaluate_every=1000000000",
            "simulation.evaluate_episodes=1",
            *settings,
        ],
    )
    recorder, envs = EpisodeRecorder(), []

    def make(_: Any, size: int) -> Any:
        envs.append(make_gymnasium(name, size))
        if len(envs) == 1:  # the second one is for evaluations
            recorder.record(envs[-1].envs[0].env)
        return envs[-1]

    with TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run", make)
    if recorder.steps < steps:
        raise SystemExit(
            f"expected {steps} steps of the training environment, recorded {recorder.steps}"
        )
    return recorder.episodes, recorder.durations


def train_sb3(algorithm: str, name: str, steps: int, seed: int) -> tuple[Episodes, Durations]:
    """Run Stable-Baselines3's own training loop."""
    import gymnasium
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    recorder = EpisodeRecorder()
    env = recorder.record(gymnasium.make(name))
    arguments = {
        "ppo": {"n_steps": 2048, "batch_size": 64, "n_epochs": 10},
        "sac": {"learning_starts": RANDOM_STEPS},
    }[algorithm]
    policy = (
        "MultiInputPolicy"
        if isinstance(env.observation_space, gymnasium.spaces.Dict)
        else "MlpPolicy"
    )
    model = getattr(stable_baselines3, algorithm.upper())(
        policy, env, seed=seed, device="cpu", **arguments
    )
    model.learn(steps)
    return recorder.episodes, recorder.durations


def train_in_process(
    library: str, task: str, seed: int, options: argparse.Namespace
) -> tuple[Episodes, Durations]:
    """Train in a new process; return the training episodes in order, and the durations."""
    algorithm, name, steps = TASKS[task]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if library == "cleanrl":
        folder = options.cleanrl.resolve()
        more = [f"--learning-starts={RANDOM_STEPS}"] if algorithm == "sac" else []
        environment |= {"PYTHONPATH": str(folder)}
        command = [
            "-c",
            ADAPTER,
            str(folder / SCRIPTS[algorithm]),
            f"--env-id={name}",
            f"--seed={seed}",
            f"--total-timesteps={steps}",
            "--no-cuda",
            *more,
        ]
    else:
        environment |= {"PYTHONPATH": str(options.sb3.resolve())} if library == "sb3" else {}
        command = [__file__, "--one", library, task, str(seed)]
    with TemporaryDirectory() as working_folder:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=working_folder,
            env=environment,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{library} on {task} stopped:\n{done.stderr[-2000:]}")
    if library == "cleanrl":
        matches = re.findall(r"global_step=(\d+), episodic_return=\[?([-\d.e+]+)", done.stdout)
        durations = re.search(r"SECONDS ([\d.]+) ([\d.]+)", done.stdout)
        return [(int(step), float(value)) for step, value in matches], (
            float(durations.group(1)),
            float(durations.group(2)),
        )
    episodes, durations = json.loads(done.stdout.strip().splitlines()[-1])
    return episodes, durations


def table(task: str, runs: dict[str, list[tuple[float, float, float, float]]]) -> dict[str, float]:
    """Return means and intervals of each library, and the comparison with the better peer."""
    flat: dict[str, float] = {}
    for library, rows in runs.items():
        returns, all_episodes, seconds, used = np.array(rows).T
        spread = 1.96 * returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else 0.0
        flat |= {
            f"{task}_{library}_return": float(returns.mean()),
            f"{task}_{library}_interval": float(spread),
            f"{task}_{library}_all": float(all_episodes.mean()),
            f"{task}_{library}_seconds": float(seconds.mean()),
            f"{task}_{library}_processor": float(used.mean()),
        }
    best = max(flat[f"{task}_{library}_return"] for library in LIBRARIES[1:])
    below = best - flat[f"{task}_ours_return"] - flat[f"{task}_ours_interval"]
    flat[f"{task}_return_gap"] = max(0.0, below) / max(abs(best), 1e-9)
    for ratio, kind in (("time", "seconds"), ("processor", "processor")):
        flat[f"{task}_{ratio}_ratio"] = flat[f"{task}_ours_{kind}"] / min(
            flat[f"{task}_{library}_{kind}"] for library in LIBRARIES[1:]
        )
    return flat


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL")
    parser.add_argument("--sb3", type=Path, help="a folder with Stable-Baselines3")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--only", choices=TASKS, nargs="*", default=list(TASKS))
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        library, task, seed = options.one
        print(json.dumps({"ours": train_ours, "sb3": train_sb3}[library](*TASKS[task], int(seed))))
        return
    if options.cleanrl is None or options.sb3 is None:
        parser.error(
            "expected --cleanrl (a checkout of CleanRL) and --sb3 (a folder with "
            "stable_baselines3); see --help"
        )
    result: dict[str, float] = {"seeds": len(options.seeds)}
    for task in options.only:
        runs: dict[str, list[tuple[float, float, float, float]]] = {
            library: [] for library in LIBRARIES
        }
        for seed in options.seeds:
            for library in LIBRARIES:
                episodes, durations = train_in_process(library, task, seed, options)
                last = [value for step, value in episodes if step > 0.9 * TASKS[task][2]] or [
                    episodes[-1][1]
                ]
                runs[library].append(
                    (
                        float(np.mean(last)),
                        float(np.mean([value for _, value in episodes])),
                        *durations,
                    )
                )
                print(
                    f"  {task} seed {seed} {library:8} return {runs[library][-1][0]:9.1f}, of all "
                    f"{runs[library][-1][1]:9.1f}  {durations[0]:6.1f} s, {durations[1]:6.1f} of the processor",
                    flush=True,
                )
        result |= table(task, runs)
        summary = "; ".join(
            f"{library} {result[f'{task}_{library}_return']:.0f} +- "
            f"{result[f'{task}_{library}_interval']:.0f} in {result[f'{task}_{library}_seconds']:.0f} s"
            for library in LIBRARIES
        )
        print(
            f"{task}, {TASKS[task][2]} steps: {summary}; time ratio "
            f"{result[f'{task}_time_ratio']:.2f}, of the processor "
            f"{result[f'{task}_processor_ratio']:.2f}",
            flush=True,
        )
    result |= {
        "worst_time_ratio": max(
            value for name, value in result.items() if name.endswith("_time_ratio")
        ),
        "worst_processor_ratio": max(
            value for name, value in result.items() if name.endswith("_processor_ratio")
        ),
        "worst_return_gap": max(
            value for name, value in result.items() if name.endswith("_return_gap")
        ),
    }
    if options.json:
        write(options.json, result)


if __name__ == "__main__":
    main()
