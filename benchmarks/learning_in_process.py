"""How fast SFT and RLPD learn the demo's task without ROS or Ray: simulator and learner in one process, taking turns.

    python benchmarks/learning_in_process.py --seed 0 --env-steps 15000 --json results.json

Prints the success of the SFT policy, of training episodes as they come, and of the final policy, on held-out seeds.
It does not cover the middleware, the trainer's processes, or asynchronous collection: ``make demo`` does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch

from rlinf_core.algorithms import rlpd, sft
from rlinf_core.environment import load_task
from rlinf_core.interlock import load_limits
from rlinf_core.policies.actor import Actor
from rlinf_core.replay import ReplayBuffer, mix
from sim_bridges.scripted import InsertionOperator
from sim_bridges.simulator import make
from sim_bridges.vector import SimulatedStation

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = 1_000_000


def play(station, act, seed, after_step=lambda: None):
    """One episode; returns observations, actions, rewards, discounts."""
    observation = station.reset(seed)
    observations, actions, rewards, discounts = [observation], [], [], []
    while True:
        actions.append(np.clip(act(observation), -1, 1))
        observation, reward, discount, last = station.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
        discounts.append(discount)
        after_step()
        if last:
            break
    spec = station.task.spec
    stacked = {"vectors": np.stack([spec.flatten(o) for o in observations])}
    stacked |= {image.name: np.stack([o[image.name] for o in observations]) for image in spec.images}
    return stacked, np.array(actions), np.array(rewards), np.array(discounts)


def evaluate(station, actor, episodes, random, explore=False):
    """Success rate over held-out seeds, by the policy's mean or by samples of it."""
    return float(np.mean([play(station, lambda o: actor.act(o, explore, random)[0], HELD_OUT + i)[2][-1]
                          for i in range(episodes)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demonstrations", type=int, default=20)
    parser.add_argument("--env-steps", type=int, default=15000)
    parser.add_argument("--updates-per-step", type=float, default=2.0)
    parser.add_argument("--sft-steps", type=int, default=sft.Config.steps)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="override rlpd.Config")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    random = np.random.default_rng(arguments.seed)
    task = load_task(ROOT / "configs/tasks/peg_insertion.yaml")
    station = SimulatedStation(make("franka_mujoco"), task, load_limits(ROOT / "robots/franka_sim/limits.yaml"))
    operator = InsertionOperator(task.spec.action.scale[0], seed=arguments.seed)
    demonstrations, online = ReplayBuffer(task.spec, 50_000), ReplayBuffer(task.spec, 200_000)
    seed = 10_000 * (arguments.seed + 1)
    while demonstrations.episodes < arguments.demonstrations:
        operator.reset()
        episode = play(station, lambda o: operator.act(o["socket_offset"]), seed)
        seed += 1
        if episode[2][-1] > 0:
            demonstrations.insert_episode(*episode)
    actor = Actor(task.spec)
    actor.encoder.fit_normalisation(demonstrations.vectors())
    cloner = sft.Learner(actor, sft.Config(), arguments.seed)
    for _ in range(arguments.sft_steps):
        metrics = cloner.update(demonstrations.sample(256, random))
    before = evaluate(station, actor, 50, random)
    print(f"demonstrations {demonstrations.episodes} ({len(demonstrations)} transitions, next seed {seed}), "
          f"SFT loss {metrics['sft_loss']:.2f}, success {before:.2f}", flush=True)
    overrides = dict(item.split("=", 1) for item in arguments.set)
    config = rlpd.Config(**{key: type(getattr(rlpd.Config, key))(float(value)) for key, value in overrides.items()})
    learner = rlpd.Learner(actor, config, arguments.seed)
    recent, started, curve, metrics = deque(maxlen=50), time.time(), [], {}

    def learn() -> None:
        if online.episodes:
            while learner.updates < arguments.updates_per_step * online.inserted:
                half = config.batch_size // 2
                metrics.update(learner.update(mix(online.sample(half, random), demonstrations.sample(half, random))))

    while online.inserted < arguments.env_steps:
        episode = play(station, lambda o: actor.act(o, True, random)[0], seed)
        seed += 1
        online.insert_episode(*episode)
        learn()
        recent.append(episode[2][-1])
        if online.episodes % 25 == 0:
            curve.append((online.inserted, float(np.mean(recent)), time.time() - started))
            print(f"steps {online.inserted:6d} updates {learner.updates:6d} success(50) {np.mean(recent):.2f} "
                  f"{time.time() - started:5.0f} s " + " ".join(f"{k} {v:.3g}" for k, v in metrics.items()), flush=True)
    after, sampled = evaluate(station, actor, 50, random), evaluate(station, actor, 50, random, explore=True)
    result = {"seed": arguments.seed, "success_before": before, "success_after": after, "success_after_sampled": sampled,
              "eval_episodes": 50,
              "env_steps": online.inserted, "updates": learner.updates, "minutes": (time.time() - started) / 60,
              "curve": curve}
    print(json.dumps({key: value for key, value in result.items() if key != "curve"}))
    if arguments.json:
        arguments.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
