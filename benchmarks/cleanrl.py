"""PPO and SAC beside CleanRL's, on the same task with the same budget, each from its own files.

    git clone https://github.com/vwxyzjn/cleanrl && python benchmarks/cleanrl.py --cleanrl cleanrl --json results.json

CleanRL's scripts run unchanged in processes of their own, under an adapter for the newer Gymnasium (autoreset and the shape
of its infos). Both get CleanRL's own hyper-parameters and network sizes; one torch thread each; runs take turns. The return
is the mean of the last tenth of the training episodes; the interval is mean +- 1.96 standard errors over seeds. Time is
that of the process from its first to its last environment step, without imports. It does not cover pixels, nor more than
one process.
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

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

TASKS = {"ppo": ("Hopper-v5", 60_000), "sac": ("InvertedDoublePendulum-v5", 8_000)}
SCRIPTS = {"ppo": "cleanrl/ppo_continuous_action.py", "sac": "cleanrl/sac_continuous_action.py"}
STARTS = 1_000  # of SAC, by chance; CleanRL's 5,000 would be half of the budget

ADAPTER = """
import sys, runpy, time, gymnasium as gym, numpy as np, torch
torch.set_num_threads(1)
observed = gym.wrappers.TransformObservation
gym.wrappers.TransformObservation = lambda env, f, space=None: observed(env, f, space or env.observation_space)

class Vector(gym.vector.SyncVectorEnv):
    steps = 0
    def __init__(self, makers):
        super().__init__(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    def step(self, actions, active=None):
        if Vector.steps == 0:
            Vector.started = time.time()
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
        print("SECONDS", time.time() - Vector.started, flush=True)
        super().close(**rest)

gym.vector.SyncVectorEnv = Vector
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def theirs(folder: Path, name: str, seed: int) -> tuple[list[float], float]:
    """Returns of the training episodes in order, and seconds."""
    task, steps = TASKS[name]
    more = [f"--learning-starts={STARTS}"] if name == "sac" else []
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as there:
        done = subprocess.run([sys.executable, "-c", ADAPTER, str(folder / SCRIPTS[name]), f"--env-id={task}",
                               f"--seed={seed}", f"--total-timesteps={steps}", "--no-cuda", *more], cwd=there,
                              env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"CleanRL's {name} stopped:\n{done.stderr[-2000:]}")
    returns = [float(value) for value in re.findall(r"episodic_return=\[?([-\d.e+]+)", done.stdout)]
    return returns, float(re.search(r"SECONDS ([\d.]+)", done.stdout).group(1))


def ours(name: str, seed: int) -> tuple[list[float], float]:
    """The same of ours, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--ours", name, str(seed)], capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"our {name} stopped:\n{done.stderr[-2000:]}")
    return tuple(json.loads(done.stdout.strip().splitlines()[-1]))


def train(name: str, seed: int) -> tuple[list[float], float]:
    """`rlinf train` on a Gymnasium task instead of a station."""
    import gymnasium

    from rlinf_core.recipes import load_recipe
    from rlinf_core.rollouts.vector_env import Steps
    from rlinf_core.specs import ActionSpec, ArraySpec, StationSpec
    from rlinf_core.trainer.train import train as train_run

    task, steps = TASKS[name]
    returns: list[float] = []

    class One:
        """One Gymnasium environment as a ``VectorEnv``."""

        size = 1

        def __init__(self) -> None:
            self.env, self.total = gymnasium.make(task), 0.0
            high, names = self.env.action_space.high, [f"a{i}" for i in range(len(self.env.action_space.high))]
            action = ActionSpec("joint_delta", tuple(names), tuple(high.tolist()), ("",) * len(names))
            self.spec = StationSpec((ArraySpec("state", self.env.observation_space.shape),), action, 10.0)

        def reset(self, seeds):
            self.total = 0.0
            return {"vectors": self.env.reset(seed=int(list(seeds)[0]))[0][None].astype(np.float32)}

        def step(self, actions, active=None):
            seen, reward, terminated, truncated, _ = self.env.step(self.spec.action.to_si(actions[0]))
            next_observations, self.total = {"vectors": seen[None].astype(np.float32)}, self.total + reward
            observation, done = next_observations, terminated or truncated
            if done:
                returns.append(self.total)
                self.total = 0.0
                observation = {"vectors": self.env.reset()[0][None].astype(np.float32)}
            flags = (np.array([float(flag)]) for flag in (terminated, truncated and not terminated, terminated))
            return Steps(next_observations, np.array([reward]), *flags, observation)

        def close(self):
            self.env.close()

    nothing = ["simulation.environments=1", f"simulation.env_steps={steps}", "simulation.evaluate_every=1000000000",
               "simulation.evaluate_episodes=1", f"seed={seed}"]
    if name == "ppo":
        settings = ["policy.kind=gaussian", "policy.hidden=[64, 64]", "policy.initial_log_std=0.0", "algorithm={name: ppo, "
                    "chunks: 2048, minibatches: 32, epochs: 10, learning_rate: 3.0e-4, discount: 0.99, dual_clip: 0.0, "
                    f"huber: 0.0, scale_rewards: true, anneal_updates: {steps // 2048}}}"]
    else:
        settings = ["policy.hidden=[256, 256]", "algorithm={name: sac, critic_hidden: [256, 256], learning_rate: 1.0e-3, "
                    "target_entropy: -1.0, initial_temperature: 1.0}", f"simulation.start_steps={STARTS}"]
    recipe = load_recipe("sim_ppo" if name == "ppo" else "sim_sac", [*nothing, *settings])
    made: list[One] = []

    def make(_, size):
        made.append(One())
        return made[-1]

    with TemporaryDirectory() as folder:
        last = train_run(recipe, Path(folder), make)
    return returns[1:-1], last["seconds"] - last["seconds_evaluate"]  # less one evaluation before, one after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--only", choices=TASKS, nargs="*", default=list(TASKS))
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--ours", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(train(options.ours[0], int(options.ours[1]))))
        return
    if options.cleanrl is None:
        parser.error("--cleanrl: expected a checkout of https://github.com/vwxyzjn/cleanrl")
    result: dict[str, float] = {"seeds": len(options.seeds)}
    for name in options.only:
        runs = {"ours": [], "cleanrl": []}
        for seed in options.seeds:
            for who in runs:
                started = time.time()
                returns, seconds = ours(name, seed) if who == "ours" else theirs(options.cleanrl.resolve(), name, seed)
                last = float(np.mean(returns[-max(len(returns) // 10, 5):]))
                runs[who].append((last, seconds))
                print(f"  {name} seed {seed} {who:8} return {last:9.1f}  {seconds:6.1f} s  ({time.time() - started:.0f} s)",
                      flush=True)
        for who, seen in runs.items():
            values, seconds = np.array(seen).T
            result |= {f"{name}_{who}_return": float(values.mean()), f"{name}_{who}_seconds": float(seconds.mean()),
                       f"{name}_{who}_interval": float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))}
        result[f"{name}_time_ratio"] = result[f"{name}_ours_seconds"] / result[f"{name}_cleanrl_seconds"]
        print(f"{name} on {TASKS[name][0]}, {TASKS[name][1]} steps: return {result[f'{name}_ours_return']:.0f} +- "
              f"{result[f'{name}_ours_interval']:.0f} against {result[f'{name}_cleanrl_return']:.0f} +- "
              f"{result[f'{name}_cleanrl_interval']:.0f}; time ratio {result[f'{name}_time_ratio']:.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
