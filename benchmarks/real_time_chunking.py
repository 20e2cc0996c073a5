"""Compare ways to handle chunks at 20 Hz when a policy computes for 300 ms.

    python benchmarks/real_time_chunking.py --scenes 100 --json results.json
    python benchmarks/real_time_chunking.py --tasks pick --steps 8000         # needs `make simulators`
    python benchmarks/real_time_chunking.py --tasks insertion --steady --demonstrations 1000
    --hidden 512 512         --steps 40000 --corrected 3                      # half an hour on a core

A flow policy is cloned from a script's episodes at 20 Hz: chunks of 16 actions, with the next
request after six. It plays held-out scenes in simulated time, so other work on this machine does
not matter. An answer arrives a fixed number of time steps after its request, and ``Chunking``
merges it, as in the policy node. The columns are:

* success
* the time steps without an action of the policy (the arm holds), after an episode's first answer
* the largest step from one action to the next, in units of the largest action

``real_time`` continues the actions in play, as the flow is trained to (``max_delay``). ``blended``
only mixes the new actions with them, as for policies that are no flows. ``no delay`` is the same
policy without computing time. With ``--corrected`` the script takes over somewhere in episodes that
the policy plays with its delay, and cloning continues with the script's part (HG-DAgger).

In ``reach`` and ``pick`` the arm moves freely most of the time. ``insertion`` must hit a hole within
a millimetre, from observations up to 12 time steps old. The benchmark does not cover network and
middleware (tests/ros/test_remote_station.py does).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402

TASKS = {
    "reach": ("franka_sim", "reach"),
    "pick": ("panda_maniskill", "pick_cube"),  # robot and task of the recipe
    "insertion": ("franka_sim", "peg_insertion"),
}
HZ, COMPUTING_S, HORIZON, DELAY = 20.0, 0.3, 16, 6
CORRECTIONS = 72  # episodes of a round of corrections
LATEST = 45  # time step by which the script has taken over
MODES = {
    "no delay": ("receding_horizon", 0, False),
    "real_time": ("real_time", DELAY, True),
    "blended": ("real_time", DELAY, False),
    "receding_horizon": ("receding_horizon", DELAY, False),
    "synchronous": ("synchronous", DELAY, False),
}


def write_task(folder: Path, name: str, steady: bool) -> Path:
    """Write a task at 20 Hz: more time steps, each with a proportionally smaller action."""
    task = yaml.safe_load((ROOT / f"configs/tasks/{name}.yaml").read_text())
    faster = HZ / task["control_hz"]
    task |= {"control_hz": HZ, "max_steps": int(task["max_steps"] * faster)}
    for action, dimension in task["action"]["dimensions"].items():
        if action != "grip":  # a width, independent of the rate
            dimension["scale"] /= faster
    task["script"] |= {"gain": 0.4 / faster} | ({"pause": 0.0} if steady else {})
    path = folder / f"{name}_20hz.yaml"
    path.write_text(yaml.safe_dump(task))
    return path


class ClonedFlow:
    """A flow policy trained by SFT to continue chunks in play, and its training data."""

    def __init__(self, env: Any, options: argparse.Namespace) -> None:
        from rlinf_core.data.replay import ReplayBuffer
        from rlinf_core.policies import make_policy
        from rlinf_core.policies.small import flow
        from rlinf_core.rollouts.collect import demonstrate

        torch.manual_seed(options.seed)
        self.options, self.random = options, np.random.default_rng(options.seed)
        self.policy = make_policy(
            env.spec,
            flow.Config(
                hidden=tuple(options.hidden),
                fine_scale=20.0,
                flow_steps=5,
                horizon=HORIZON,
                n_action_steps=options.execute,
                max_delay=DELAY,
            ),
        )
        self.replay = ReplayBuffer(env.spec, 200 * options.demonstrations + 10_000, prefixes=True)
        for demonstration in demonstrate(env, options.demonstrations, 5):
            self.replay.insert_episode(
                demonstration.observations,
                demonstration.actions,
                demonstration.rewards,
                demonstration.discounts,
            )
        self.learn(options.steps, 1e-3, fit=True)

    def learn(self, steps: int, rate: float, fit: bool = False) -> None:
        """Train for some steps with a rate that falls to 0."""
        from rlinf_core.algorithms import sft

        config = sft.Config(learning_rate=rate, anneal_steps=steps, min_std=0.03)
        learner = sft.Learner(self.policy.train(), config, self.options.seed)
        if fit:
            learner.fit_normalisation(self.replay.vectors())
        for _ in tqdm(range(steps), "cloning", leave=False):
            learner.update(self.replay.sample(self.options.batch, self.random, HORIZON))
        self.policy.eval()

    def correct(self, env: Any, scenes: range) -> None:
        """Add the script's takeovers in episodes with delay, and train on."""
        from rlinf_core.trainer.data import valid_chunk_starts

        for scene in scenes:
            observation = env.reset([scene])
            station = Station(self.policy, env.spec, "real_time", DELAY, True, self.options.execute)
            takes_over = int(self.random.integers(LATEST))
            observations = [observation]
            actions = []
            result = None
            while result is None or not result.done[0]:
                now = len(actions)
                action = env.expert()[0] if now >= takes_over else station.action(now, observation)
                actions.append(
                    np.zeros(env.spec.action.dim, np.float32) if action is None else action
                )
                result = env.step(actions[-1][None])
                observation = result.observation
                observations.append(observation)
            if result.success[0] and len(actions) > takes_over:
                all_observations = {
                    name: np.concatenate([arrays[name] for arrays in observations])
                    for name in observations[0]
                }
                none = np.zeros(len(actions), np.float32)
                is_correction = np.arange(len(actions)) >= takes_over
                starts, prefixes = valid_chunk_starts(is_correction, self.options.execute, DELAY)
                self.replay.insert_episode(
                    all_observations, np.stack(actions), none, none, starts, prefix_lengths=prefixes
                )
        self.learn(self.options.steps // 2, 5e-4)


class Station:
    """An episode in simulated time with a policy whose answers arrive late."""

    def __init__(
        self, policy: Any, spec: Any, mode: str, delay: int, guided: bool, execute: int
    ) -> None:
        from rlinf_core.policies.chunking import Chunking

        self.policy = policy
        self.spec = spec
        self.delay = delay
        self.guided = guided
        self.execute = execute
        self.chunking = Chunking(mode, execute)
        # The time step of the first action in play, and the actions.
        self.playing: tuple[int, np.ndarray] = (0, np.zeros((0, spec.action.dim)))
        self.request: tuple[int, np.ndarray, bool] | None = None
        self.next_at, self.answered = 0, False

    def action(self, now: int, observation: Any) -> np.ndarray | None:
        """Return the action at a time step; None if the arm holds."""
        if self.request is None and now >= self.next_at:
            self.request = now, *self.request_chunk(now, observation)
        if self.request is not None and now >= self.request[0] + self.delay:
            self.merge_answer(now)
        since, actions = self.playing
        return actions[now - since] if 0 <= now - since < len(actions) else None

    def request_chunk(self, now: int, observation: Any) -> tuple[np.ndarray, bool]:
        from rlinf_core.policies.base import Observation
        from rlinf_core.policies.real_time_chunking import Continuation

        batch, left = Observation.from_arrays(self.spec, observation), self.chunking.remaining(now)
        if self.guided and len(left):
            unplayed = Continuation.from_remaining(left, self.delay, HORIZON)
            return self.policy.continue_chunk(batch, unplayed).actions[0].numpy(), True
        return self.policy.act(batch, explore=False).actions[0].numpy(), False

    def merge_answer(self, now: int) -> None:
        """Merge the answer as the policy node does.

        If the arm held in the meantime, the whole answer is played from now on.
        """
        assert self.request is not None
        (began, actions, continues), self.request = self.request, None
        is_holding = not self.chunking.chunks or self.chunking.mode == "synchronous"
        start = now if is_holding else began
        self.playing = start, self.chunking.merge(actions, start, now - start, continues)
        self.answered, self.next_at = True, start + self.execute


def play_scenes(
    env: Any, policy: Any, scenes: range, execute: int, mode: str, delay: int, guided: bool
) -> dict[str, float]:
    solved, held, steps, jump = 0, 0, 0, 0.0
    for scene in tqdm(scenes, mode, leave=False):
        observation = env.reset([scene])
        station = Station(policy, env.spec, mode, delay, guided, execute)
        now, before, done = 0, None, False
        while not done:
            action = station.action(now, observation)
            if station.answered:
                steps += 1
                held += action is None
                if action is not None and before is not None:
                    jump = max(jump, float(np.abs(action - before).max()))
            before = action
            result = env.step(
                np.zeros((1, env.spec.action.dim)) if action is None else action[None]
            )
            solved, done = solved + int(result.success[0]), bool(result.done[0])
            now, observation = now + 1, result.observation
    return {
        "success": solved / len(scenes),
        "ticks_without_action": float(held),
        "ticks": float(steps),
        "largest_jump": jump,
    }


def compare_modes(name: str, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Play a task with each way to handle chunks; print and return the figures."""
    from rlinf_core.config.overrides import quote_value
    from rlinf_core.recipes import load_recipe
    from rlinf_core.reports.throughput import wilson
    from sim_bridges.core.environments import make_environments

    robot, task = TASKS[name][0], write_task(folder, TASKS[name][1], options.steady)
    noise = 0.03 if options.steady else 0.12
    env = make_environments(
        load_recipe(
            "sim_sft",
            [
                f"station.robot={robot}",
                f"station.task={quote_value(task)}",
                f"station.operator={{kind: scripted, noise: {noise}}}",
            ],
        ),
        1,
    )
    flow_policy, scenes = ClonedFlow(env, options), options.scenes
    for number in range(options.corrected):
        first = 2_000_000 + number * CORRECTIONS
        flow_policy.correct(env, range(first, first + CORRECTIONS))
    print(
        f"{name:>18}{'success':>9}{'95 %':>14}{'without action':>16}{'largest jump':>14}",
        flush=True,
    )
    flat: dict[str, float] = {}
    for mode_name, (mode, delay, guided) in MODES.items():
        result = play_scenes(
            env,
            flow_policy.policy,
            range(1_000_000, 1_000_000 + scenes),
            options.execute,
            mode,
            delay,
            guided,
        )
        low, high = wilson(round(result["success"] * scenes), scenes)
        print(
            f"{mode_name:>18}{result['success']:9.0%}{low:9.0%} "
            f"to{high:4.0%}{result['ticks_without_action']:9.0f} "
            f"of{result['ticks']:6.0f}{result['largest_jump']:12.2f}",
            flush=True,
        )
        flat |= {
            f"{name}_{key}_{mode_name.replace(' ', '_')}": value for key, value in result.items()
        }
    env.close()
    low, _ = wilson(round(flat[f"{name}_success_no_delay"] * scenes), scenes)
    flat[f"{name}_real_time_within_interval"] = float(flat[f"{name}_success_real_time"] >= low)
    return flat


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["reach", "insertion"])
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--demonstrations", type=int, default=100)
    parser.add_argument("--steps", type=int, default=3000, help="gradient steps of SFT")
    parser.add_argument(
        "--hidden", type=int, nargs="+", default=[256, 256], help="widths of the flow's layers"
    )
    parser.add_argument("--batch", type=int, default=256, help="rows of each gradient step")
    parser.add_argument(
        "--execute", type=int, default=DELAY, help="actions played before the next request"
    )
    parser.add_argument(
        "--corrected",
        type=int,
        default=0,
        help=f"rounds of {CORRECTIONS} episodes in which the script takes over",
    )
    parser.add_argument(
        "--steady",
        action="store_true",
        help="the script's hand hardly trembles and never hesitates",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    flat: dict[str, float] = {"thinks_s": COMPUTING_S, "control_hz": HZ, "scenes": options.scenes}
    with tempfile.TemporaryDirectory(prefix="rlinf-rtc-") as folder:
        for name in options.tasks:
            flat |= compare_modes(name, options, Path(folder))
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
