"""Train a small vision-language-action model from scratch to follow an instruction: SFT, then RL.

    python benchmarks/vla.py --seeds 0 1 2 --json results.json            # in simulation, then through the whole station
    python benchmarks/vla.py --seeds 0 --only simulation
    python benchmarks/vla.py --runs runs/a runs/b --json results.json     # of finished runs, by train or demo

A sentence names one of two marks as the goal. ``rlinf train demo_vla --set
simulation.environments=1`` trains in simulation alone, ``rlinf demo demo_vla`` through simulator,
interlock, nodes, bridge and trainer. The newest policy of each run then plays held-out scenes in the
simulator twice: with the scene's sentence (``success_after``), and with the other sentence, while
success is still that of the scene (``wrong_instruction``). The first policy of a run, after SFT,
gives ``success_before``. ``families`` counts the families of docs/howto/vla.md that pass a whole
cycle with random weights: each acts, an SFT step and a PPO step (if it has a density) change it, and
its file gives the same actions. The benchmark does not cover published weights, other sentences, or a
real arm.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402

OTHER = {"red": "blue", "blue": "red"}
FAMILIES: dict[str, dict[str, Any]] = {
    "pi0": {"sde_noise": 0.5},
    "pi05": {"sde_noise": 0.5},
    "smolvla": {"sde_noise": 0.5},
    "groot": {"sde_noise": 0.5},
    "groot_n1_6": {"sde_noise": 0.5},
    "groot_n1_7": {"sde_noise": 0.5},
    "openvla": {},
    "openvla parallel": {"decoding": "parallel"},
    "openvla regression": {"decoding": "regression"},
    "qwen_vl": {},
    "pi0_fast": {"max_decoding_steps": 32},
    "xvla": {"sde_noise": 0.5},
}


def train(place: str, seed: int, folder: Path) -> Path:
    """Train with this seed, and return the run's folder."""
    out = folder / f"{place}_{seed}"
    arguments = {
        "simulation": ["train", "demo_vla", "--no-report", "--set", "simulation.environments=1"],
        "station": ["demo", "demo_vla", "--quiet", "--set"],
    }[place]
    subprocess.run([ROOT / ".venv/bin/rlinf", *arguments, f"seed={seed}", "--out", out], check=True)
    return out


def other_instruction(observation: Any) -> Any:
    """Return the same observation with the other sentence."""
    sentences = tuple(
        " ".join(OTHER.get(word, word) for word in sentence.split())
        for sentence in observation.instruction
    )
    return replace(observation, instruction=sentences)


def evaluate_run(run: Path, scenes: int) -> dict[str, float]:
    """Return the figures of a run's policies before and after RL."""
    from rlinf_core.policies.policy_folder import newest_policy, read_info
    from rlinf_core.policies.serialization import load_policy
    from rlinf_core.recipes import load_recipe
    from rlinf_core.rollouts.evaluate import play
    from sim_bridges.core.environments import make_environments

    env = make_environments(load_recipe("demo_vla"), 1)
    files = sorted(run.glob("**/policy-*.safetensors"))
    held_out = range(1_000_000, 1_000_000 + scenes)
    result = {
        "file_mb": newest_policy(run).stat().st_size / 1e6,
        **{
            key: float(value)
            for key, value in read_info(newest_policy(run)).items()
            if key in ("updates", "env_steps")
        },
    }
    for when, file, change in (
        ("success_before", files[0], None),
        ("success_after", newest_policy(run), None),
        ("wrong_instruction", newest_policy(run), other_instruction),
    ):
        policy, draw = load_policy(file, env.spec), torch.Generator().manual_seed(0)

        def decide(
            observation: Any, policy: Any = policy, change: Any = change, draw: Any = draw
        ) -> Any:
            return policy.act(
                change(observation) if change else observation, explore=False, generator=draw
            )

        episodes = play(env, decide, policy.config.executed, held_out)
        result[when] = float(np.mean([episode.success for episode in episodes]))
    env.close()
    return result


def passes_cycle(name: str, folder: Path) -> bool:
    """Return whether a family acts, learns by SFT and PPO, and keeps its actions in its file."""
    from rlinf_core.algorithms import algorithm
    from rlinf_core.algorithms.common.rollout import Rollout
    from rlinf_core.policies import make_policy, policy_kind
    from rlinf_core.policies.base import Observation
    from rlinf_core.policies.policy_folder import policy_name
    from rlinf_core.policies.serialization import load_policy, save_policy
    from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

    spec = StationSpec(
        (ArraySpec("state", (3,)), ArraySpec("front", (32, 32, 3), "uint8")),
        ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m")),
        10.0,
        "go",
    )
    torch.manual_seed(0)
    policy = make_policy(spec, policy_kind(name.split()[0]).Config(horizon=4, **FAMILIES[name]))
    pictures = {"front": torch.full((4, 32, 32, 3), 90, dtype=torch.uint8)}
    observation = Observation(torch.zeros(4, 3), pictures, ("go", "stay", "go", "stay"))
    batch = policy.to_batch(observation)

    def sampled_actions(acting_policy: Any) -> torch.Tensor:
        actions: torch.Tensor = (
            acting_policy.eval().act(observation, True, torch.Generator().manual_seed(1)).actions
        )
        return actions

    def weights() -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])

    before = weights()
    cloner = algorithm("sft").Learner(policy, algorithm("sft").Config(image_shift=0), 0)
    cloner.update(
        {key: value.numpy() for key, value in batch.items()}
        | {"action": np.full((4, policy.action_size), 0.5, np.float32)}
    )
    cloned = weights()
    if not policy.config.no_density_reason:
        chunk = policy.act(observation, True, torch.Generator().manual_seed(1))
        one = torch.ones(1, 4)
        assert chunk.log_probs is not None
        now = {key: value.unsqueeze(0) for key, value in batch.items()}
        rewards = torch.randn(
            1, 4, chunk.actions.shape[1], generator=torch.Generator().manual_seed(2)
        )
        rollout = Rollout(
            now,
            now,
            chunk.drawn.unsqueeze(0),
            chunk.log_probs.flatten(1).unsqueeze(0),
            rewards,
            one * chunk.actions.shape[1],
            one,
            one,
            one,
            0 * one,
        )
        algorithm("ppo").Learner(
            policy, algorithm("ppo").Config(minibatches=2, epochs=1), 0
        ).update(rollout)
        assert not torch.equal(weights(), cloned), name
    loaded = load_policy(save_policy(policy, folder / name / policy_name(1)), spec)
    return bool(
        not torch.equal(cloned, before)
        and torch.equal(sampled_actions(loaded), sampled_actions(policy))
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", choices=["simulation", "station"], help="train only there")
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="*",
        help="finished run folders; an empty list leaves the runs out",
    )
    parser.add_argument("--scenes", type=int, default=100, help="held-out scenes of each success")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    from rlinf_core.reports.throughput import wilson

    names = [run.name for run in options.runs or []]
    if len(set(names)) < len(names):
        parser.error(f"--runs: expected folders of different names, got {', '.join(names)}")
    torch.set_num_threads(1)
    flat: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rlinf-vla-") as folder:
        flat["families"] = sum(passes_cycle(name, Path(folder)) for name in FAMILIES)
        print(f"families: {flat['families']} of {len(FAMILIES)}")
        runs = (
            options.runs
            if options.runs is not None
            else [
                train(place, seed, Path(folder))
                for place in ([options.only] if options.only else ["simulation", "station"])
                for seed in options.seeds
            ]
        )
        results = {run.name: evaluate_run(run, options.scenes) for run in runs}
    for name, result in results.items():
        cells = ""
        for key in ("success_before", "success_after", "wrong_instruction"):
            low, high = wilson(round(result[key] * options.scenes), options.scenes)
            cells += f"  {key} {result[key]:4.0%} ({low:.0%} to {high:.0%})"
        print(f"{name:>16}{cells}  {result['file_mb']:.1f} MB")
        flat |= {f"{key}_{name}": value for key, value in result.items()}
    if results:
        flat |= {
            "min_success_after": min(result["success_after"] for result in results.values()),
            "max_wrong_instruction": max(
                result["wrong_instruction"] for result in results.values()
            ),
            "max_success_before": max(result["success_before"] for result in results.values()),
        }
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
