"""Measure learning from a base policy, recordings and failed episodes: residual RL, RECAP, monitor.

    python benchmarks/learning.py --json results.json                 # all parts, seeds 0 to 2
    python benchmarks/learning.py --only residual --seeds 0           # one part
    python benchmarks/learning.py --only residual --served            # the base behind rlinf serve

All parts play the demo's peg insertion in the plain simulator, without ROS. ``residual_min`` is the
worst seed's success after residual RL. ``residual_worst_window`` is the success of the worst 50
consecutive training episodes, divided by the base's success on held-out scenes. ``recap_gain`` is
the mean gain of RECAP over SFT of the same episodes, in points. ``monitor_found`` is the share of
failures that the monitor finds before half time. Robot-minutes are time steps at 10 Hz, without
resets. The benchmark does not cover a real arm, cameras, or a vision-language-action base.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import folder, write  # noqa: E402
from rlinf_core.algorithms import algorithm  # noqa: E402
from rlinf_core.algorithms.common.settings import AlgorithmSettings  # noqa: E402
from rlinf_core.cli.monitor import judge, simulated_steps  # noqa: E402
from rlinf_core.data.replay import ReplayBuffer  # noqa: E402
from rlinf_core.policies import make_policy  # noqa: E402
from rlinf_core.policies.base import NetworkPolicy  # noqa: E402
from rlinf_core.policies.monitor import fit  # noqa: E402
from rlinf_core.policies.policy_folder import newest_policy, policy_name  # noqa: E402
from rlinf_core.policies.serialization import load_policy, save_policy  # noqa: E402
from rlinf_core.policies.small import conditioned, tanh_gaussian  # noqa: E402
from rlinf_core.recipes import Recipe, load_recipe  # noqa: E402
from rlinf_core.reports.curves import read_evaluations  # noqa: E402
from rlinf_core.rollouts.collect import EpisodeRollouts  # noqa: E402
from rlinf_core.rollouts.evaluate import EpisodeResult, evaluate  # noqa: E402
from rlinf_core.rollouts.types import Trajectory  # noqa: E402
from rlinf_core.specs.arrays import StationSpec  # noqa: E402
from rlinf_core.trainer import checkpoint  # noqa: E402
from rlinf_core.trainer.diagnosis import Episodes  # noqa: E402
from rlinf_core.trainer.train import train  # noqa: E402
from sim_bridges.core.environments import make_environments  # noqa: E402

HELD_OUT, WINDOW = 100, 50
BASE = (
    "collect.episodes=50",
    "algorithm.steps=2000",
    "simulation.evaluate_every=2000",
    "simulation.evaluate_episodes=8",
)


def evaluate_policy(policy: Path, seed: int) -> list[EpisodeResult]:
    """Play a policy in held-out scenes."""
    recipe = load_recipe("sim_rlpd")
    env = make_environments(recipe, 8)
    first = recipe.evaluate.first_seed + 10_000 * (seed + 1)
    results = evaluate(
        env, load_policy(newest_policy(policy), env.spec), range(first, first + HELD_OUT)
    )
    env.close()
    return results


def rates(results: list[EpisodeResult], hz: float = 10.0) -> tuple[float, float]:
    """Return success, and successes per hour of robot time."""
    won = sum(result.success for result in results)
    return won / len(results), won * 3600 * hz / sum(result.steps for result in results)


@contextlib.contextmanager
def serve_policy(policy: Path) -> Iterator[str]:
    """Serve a policy during the block; yields the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "serve",
        str(policy),
        "--port",
        str(port),
    ]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    try:
        yield f"ws://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def measure_residual(
    out: Path, seeds: list[int], serve: bool, overrides: list[str]
) -> dict[str, float]:
    """Correct a cloned base by residual RL with each seed."""
    figures: dict[str, float] = {}
    for seed in seeds:
        base = train_base(out, seed)
        file = newest_policy(base)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        before, before_an_hour = rates(evaluate_policy(base, seed))
        run, started = out / f"residual_{seed}", time.monotonic()
        with serve_policy(file) if serve else contextlib.nullcontext(str(file)) as address:
            train(
                load_recipe("sim_residual", [f"policy.base={address}", f"seed={seed}", *overrides]),
                run,
            )
            after, after_an_hour = rates(evaluate_policy(run, seed))
        state = checkpoint.load_newest(run / "checkpoints") or {}
        episodes = Episodes.from_replay(state["data"]["online"])
        outcomes = [
            bool(ended and rewards[-1] > 0)
            for ended, rewards in zip(episodes.ended, episodes.rewards, strict=True)
        ]
        windows = [
            np.mean(outcomes[end - WINDOW : end]) for end in range(WINDOW, len(outcomes) + 1)
        ]
        steps = read_evaluations(run)[-1]["env_steps"]
        row = {
            "base": before,
            "after": after,
            "worst_window": min(windows) / before,
            "robot_minutes": steps / 600,
            "successes_an_hour_ratio": after_an_hour / before_an_hour,
            "episodes": len(outcomes),
            "base_unchanged": hashlib.sha256(file.read_bytes()).hexdigest() == digest,
            "minutes": (time.monotonic() - started) / 60,
        }
        print(
            f"residual, seed {seed}: "
            + ", ".join(f"{name} {value:.3g}" for name, value in row.items()),
            flush=True,
        )
        figures |= {f"residual_{name}_seed_{seed}": value for name, value in row.items()}
    return figures | {
        "residual_min": min(figures[f"residual_after_seed_{seed}"] for seed in seeds),
        "residual_worst_window": min(
            figures[f"residual_worst_window_seed_{seed}"] for seed in seeds
        ),
    }


def train_base(out: Path, seed: int) -> Path:
    """Return the run of the cloned base; train it if it is missing."""
    base = out / f"base_{seed}"
    train(load_recipe("sim_sft", [*BASE, f"seed={seed}"]), base)
    return base


def measure_monitor(out: Path, seeds: list[int], episodes: int) -> dict[str, float]:
    """Fit a failure monitor to episodes of the base, and count its alarms on others."""
    figures: dict[str, float] = {}
    for seed in seeds:
        base = train_base(out, seed)
        played = simulated_steps(load_recipe("sim_sft"), base, episodes, seed)
        count = round(HELD_OUT_SHARE * episodes)
        row = judge(fit(played[count:], ALPHA, seed=seed), played[:count])
        print(
            f"monitor, seed {seed}: " + ", ".join(f"{k} {v:.3g}" for k, v in row.items()),
            flush=True,
        )
        figures |= {f"monitor_{name}_seed_{seed}": value for name, value in row.items()}
    early = [figures[f"monitor_found_early_seed_{seed}"] for seed in seeds]
    alarms = [figures[f"monitor_false_alarms_seed_{seed}"] for seed in seeds]
    return figures | {
        "monitor_found": float(np.mean(early)),
        "monitor_false_alarms": float(np.mean(alarms)),
        "monitor_alpha": ALPHA,
    }


def measure_recap(out: Path, seeds: list[int], steps: int) -> dict[str, float]:
    """Compare SFT and RECAP on the base's own exploring episodes, half of which fail."""
    figures: dict[str, float] = {}
    for seed in seeds:
        recipe = load_recipe("sim_recap", [f"seed={seed}"])
        env = make_environments(recipe, 1)
        base = load_policy(newest_policy(train_base(out, seed)), env.spec)
        rollouts = EpisodeRollouts(env, base, seed, 5_000_000 + 100_000 * seed)
        episodes = rollouts.play(steps).trajectories
        env.close()
        row = {
            "episodes": len(episodes),
            "recorded": np.mean([episode.success for episode in episodes]),
        }
        for name in ("sft", "sft_all", "recap"):
            policy = train_offline(name, recipe, env.spec, episodes, seed)
            file = save_policy(policy, out / f"{name}_{seed}" / policy_name(1))
            row[name] = rates(evaluate_policy(file, seed))[0]
        print(
            f"recap, seed {seed}: " + ", ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True
        )
        figures |= {f"recap_{name}_seed_{seed}": float(value) for name, value in row.items()}
    gains = [
        100 * (figures[f"recap_recap_seed_{seed}"] - figures[f"recap_sft_seed_{seed}"])
        for seed in seeds
    ]
    return figures | {"recap_gain": float(np.mean(gains))}


def train_offline(
    name: str, recipe: Recipe, spec: StationSpec, episodes: list[Trajectory], seed: int
) -> NetworkPolicy:
    """Return a policy by SFT of the successful episodes, by SFT of all, or by RECAP of all."""
    torch.manual_seed(seed)
    sizes = {"fine_scale": recipe.policy.fine_scale}
    config: AlgorithmSettings
    if name == "recap":
        policy = make_policy(spec, conditioned.Config(**sizes))
        config = recipe.algorithm.but(steps=UPDATES, value_steps=UPDATES // 4)
    else:
        policy = make_policy(spec, tanh_gaussian.Config(**sizes))
        config = recipe.sft.but(steps=UPDATES)
    learner = algorithm(config.name).Learner(policy, config, seed)
    random = np.random.default_rng(seed)
    data = ReplayBuffer(policy.policy_spec, 100_000)
    for episode in episodes:
        if episode.success or name != "sft":
            data.insert_episode(
                policy.annotate(episode.observations),
                episode.actions,
                episode.rewards,
                episode.discounts,
            )
    learner.fit_normalisation(data.vectors())
    for _ in range(UPDATES):
        batch = data.sample(
            config.batch_size, random, gamma=config.gamma, n_step=config.n_return_steps
        )
        learner.update(batch)
    return policy.eval()


PARTS = ("residual", "recap", "monitor")
ALPHA, HELD_OUT_SHARE, UPDATES = 0.05, 0.4, 3000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--served", action="store_true", help="the base of residual RL is behind rlinf serve"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], dest="overrides", help="keys of sim_residual"
    )
    parser.add_argument(
        "--episodes", type=int, default=500, help="episodes that the monitor is fitted to"
    )
    parser.add_argument("--steps", type=int, default=8000, help="recorded time steps for RECAP")
    parser.add_argument("--out", type=Path, help="folder of the runs, which continue there")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    figures: dict[str, float] = {"seeds": len(options.seeds)}
    with (
        folder("rlinf-learning-")
        if options.out is None
        else contextlib.nullcontext(options.out) as out
    ):
        if options.only in (None, "monitor"):
            figures |= measure_monitor(out, options.seeds, options.episodes)
        if options.only in (None, "recap"):
            figures |= measure_recap(out, options.seeds, options.steps)
        if options.only in (None, "residual"):
            figures |= measure_residual(out, options.seeds, options.served, options.overrides)
    print(
        ", ".join(f"{name} {value:.3g}" for name, value in figures.items() if "_seed_" not in name)
    )
    if options.json:
        write(options.json, figures)


if __name__ == "__main__":
    main()
