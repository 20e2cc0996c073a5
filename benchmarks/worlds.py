"""Measure learned worlds on the demo's peg, a fitted simulator, a tiny video model, and splats.

    python benchmarks/worlds.py --json FILE                    # an hour of one core
    python benchmarks/worlds.py --json FILE --quick            # minutes: without the training of RL
    python benchmarks/worlds.py --json FILE --only error exploit

The parts measure a world's error, actions that exploit it, its ranking of policies, and the real time
steps that it saves. Parts that ran before keep their figures in the file. Imagined figures come from
the world alone, success from the simulator. The benchmark does not cover cameras, other tasks than
the demo's, and a real robot.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from rlinf_core.episodes.types import Episode
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import Recipe, load_recipe, station_task
from rlinf_core.rollouts.evaluate import evaluate
from rlinf_core.rollouts.types import DEMONSTRATION, TRAIN, Trajectory
from rlinf_core.trainer.train import train
from rlinf_core.trainer.worlds import FILE, predict, run_episodes
from rlinf_core.worlds import tiny_video
from rlinf_core.worlds.episodes import Episodes
from rlinf_core.worlds.model import WorldModel, rank_correlation
from rlinf_core.worlds.settings import WorldSettings
from sim_bridges.core import real_to_sim
from sim_bridges.core import splats as gaussians
from sim_bridges.core.environments import make_environments
from sim_bridges.core.station import simulated_station

NOISES = (0.0, 0.1, 0.2, 0.3, 0.5)  # noise of the script's actions, in turn by episode
PARTS = (
    "error",
    "exploit",
    "splats",
    "video",
    "identify",
    "rank",
    "second_source",
    "alone",
    "transfer",
)
QUICK = ("error", "exploit", "splats", "video", "identify")
HIDDEN = (  # the "real" arm: another simulator, whose values the fit does not know
    "simulation.dynamics={delay_s: 0.2, gain: 0.8}",
    "station.options.friction=0.8",
    "station.options.front_camera=[0.02,-0.015,0.02,0.03,-0.03,0.02]",
)
CAMERA = ("station.observe_cameras=[front]", "station.image_size=[64,64]")
DEMONSTRATION_COUNTS = (1, 3, 8, 20, 60)  # demonstrations of the cloned policies
SCENES, FIT_S = 50, 30.0


def noisy_episodes(
    episodes: int, seed: int = 0
) -> tuple[list[Trajectory], list[tuple[int, np.ndarray]]]:
    """Play episodes of the demo's script with increasing noise.

    Returns:
        The episodes, and the scene and the actions of each, to play it again.
    """
    env, random = make_environments(load_recipe("sim_rlpd"), 1), np.random.default_rng(seed)
    env.auto_reset = False
    played, scenes = [], []
    for number in range(episodes):
        noise, scene = NOISES[number % len(NOISES)], 20_000 + seed * 1000 + number
        bias, observation = noise * random.uniform(-1.0, 1.0, 3), env.reset([scene])
        vectors, actions, success = [observation["vectors"][0]], [], 0.0
        while True:
            bias = bias if random.random() > 0.05 else noise * random.uniform(-1.0, 1.0, 3)
            action = np.clip(env.expert()[0] + bias + noise * random.standard_normal(3), -1, 1)
            steps = env.step(action[None])
            actions.append(action.astype(np.float32))
            vectors.append(steps.next_observations["vectors"][0])
            if steps.done[0]:
                success = steps.success[0]
                break
        rewards, discounts = np.zeros(len(actions), np.float32), np.ones(len(actions), np.float32)
        rewards[-1], discounts[-1] = success, 1.0 - success
        played.append(
            Trajectory(
                {"vectors": np.array(vectors)},
                np.array(actions),
                rewards,
                discounts,
                bool(success),
                DEMONSTRATION if noise == 0.0 and success else TRAIN,
            )
        )
        scenes.append((scene, np.array(actions)))
    env.close()
    return played, scenes


def fit_world(
    played: list[Trajectory], seconds: float = FIT_S, **settings: object
) -> tuple[WorldModel, Episodes]:
    """Fit a world to episodes for some seconds."""
    world = WorldModel(station_task(load_recipe("sim_rlpd")), WorldSettings(**settings))
    episodes = Episodes(played)
    world.fit(episodes, seconds=seconds)
    return world, episodes


def error() -> dict[str, float]:
    """Measure the errors of about 4,000 predicted time steps; takes half a minute."""
    world, episodes = fit_world(noisy_episodes(100)[0], horizon=10)
    check = world.check
    return {
        "steps": episodes.steps,
        "error_1_mm": check.tool_mm[0],
        "error_10_mm": check.tool_mm[9],
        "persistence_1_mm": check.persistence_mm[0],
        "persistence_10_mm": check.persistence_mm[9],
        "disagreement_correlation": check.correlation,
        "coverage": check.coverage,
    }


def exploit(branches: int = 60) -> dict[str, float]:
    """Search for actions that succeed within ten time steps in the world, and play them in the simulator.

    ``exploited_flagged`` is the share of the false successes that the members' disagreement flags.
    ``real_flagged_N`` is the share of recorded successes that the world flags from N actions before; no
    world was fitted to them.
    """
    played, scenes = noisy_episodes(100)
    world, episodes = fit_world(played, horizon=10)
    env, depth, random = make_environments(load_recipe("sim_rlpd"), 1), 10, np.random.default_rng(0)
    env.auto_reset, fooled, flagged, real_successes = False, 0, 0, 0
    for _ in range(branches):
        number = int(random.integers(len(episodes)))
        length = int(np.diff(episodes.bounds)[number]) - 1
        step = int(random.integers(max(1, length - depth)))
        search_result = _search_success(
            world, episodes, int(episodes.bounds[number]) + step, depth, random
        )
        if search_result is None:
            continue
        actions, peak = search_result
        scene, before = scenes[number]
        env.reset([scene])
        for action in before[:step]:
            env.step(action[None])
        done = False
        for action in actions:
            steps = env.step(action[None])
            done = bool(steps.success[0])
            if steps.done[0]:
                break
        real_successes += done
        fooled += not done
        windows = episodes.windows(
            np.array([episodes.bounds[number] + step]), world.settings.history
        )
        is_flagged = peak > world.check.threshold or not world.confirms(windows, actions)
        flagged += not done and is_flagged
    env.close()
    return {
        "exploited_flagged": flagged / max(1, fooled),
        "exploited": fooled,
        "found_and_real": real_successes,
        **_flagged_successes(world, Episodes(noisy_episodes(100, seed=3)[0])),
    }


def _flagged_successes(world: WorldModel, episodes: Episodes) -> dict[str, float]:
    """Return the share of real successes that the world does not confirm, by length."""
    figures = {}
    for length in (3, 5, 8):
        confirmed = []
        for number in np.flatnonzero(episodes.success):
            begin, end = episodes.bounds[number : number + 2]
            if (index := int(end) - 1 - length) >= begin:
                plan, _ = episodes.following(np.array([index]), length)
                windows = episodes.windows(np.array([index]), world.settings.history)
                confirmed.append(world.confirms(windows, plan[0]))
        figures[f"real_flagged_{length}"] = 1.0 - float(np.mean(confirmed))
    return figures


def _search_success(
    world: WorldModel,
    episodes: Episodes,
    index: int,
    depth: int,
    random: np.random.Generator,
    size: int = 200,
    rounds: int = 4,
) -> tuple[np.ndarray, float] | None:
    """Search by CEM for actions that succeed in the world; return them and the disagreement."""
    mean, std, best = np.zeros((depth, 3)), np.full((depth, 3), 0.8), None
    offset = slice(9, 12)  # of the socket from the tool
    for _ in range(rounds):
        plans = np.clip(mean + std * random.standard_normal((size, depth, 3)), -1, 1)
        windows = episodes.windows(np.full(size, index), world.settings.history)
        state, peak = world.begin(windows, torch.full((size,), -1)), np.zeros(size)
        value, when = np.zeros(size), np.full(size, -1)
        for step in range(depth):
            state, _, ended, disagreement = world.step(state, plans[:, step])
            peak = np.where(when < 0, np.maximum(peak, disagreement), peak)
            won = np.array([result.success for result in state.results]) & (when < 0)
            when[won] = step
            offsets = state.vectors[:, -1, offset].numpy()
            near = 10.0 * offsets[:, 2] - 20.0 * np.abs(offsets[:, :2]).sum(
                1
            )  # the rim above the tool
            value = np.where(when >= 0, 10.0 - 0.01 * when, near)
        first = int(value.argmax())
        if when[first] >= 0 and (best is None or value[first] > best[0]):
            best = value[first], plans[first, : when[first] + 1], float(peak[first])
        elite = plans[np.argsort(-value)[:20]]
        mean, std = elite.mean(0), elite.std(0) + 0.05
    return None if best is None else (best[1], best[2])


def clone_policy(folder: Path, demonstrations: int) -> tuple[Path, float]:
    """Return a policy by behaviour cloning, and its success in the simulator."""
    result = train(
        load_recipe(
            "sim_sft",
            [
                f"collect.episodes={demonstrations}",
                f"simulation.evaluate_episodes={SCENES}",
                "algorithm.steps=1500",
            ],
        ),
        folder,
    )
    return newest_policy(folder), result["success"]


def train_rlpd(folder: Path, *more: str) -> dict[str, float]:
    """Train RLPD on the demo; return the last evaluation with the time steps to 90 %."""
    recipe = load_recipe(
        "sim_rlpd",
        [
            "simulation.env_steps=8000",
            "simulation.evaluate_every=1000",
            f"simulation.evaluate_episodes={SCENES}",
            *more,
        ],
    )
    reached: list[float] = []

    def on_progress(run: object, entry: dict[str, float] | None) -> None:
        if entry and entry["success"] >= 0.9:
            reached.append(entry["env_steps"])

    result = train(recipe, folder, on_progress=on_progress)
    return result | {"to_90": min(reached, default=float("nan"))}


def rank() -> dict[str, float]:
    """Compare predicted with real success for cloned policies and one after RL."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policies = [
            clone_policy(folder / f"cloned_{count}", count) for count in DEMONSTRATION_COUNTS
        ]
        after = train_rlpd(folder / "rl")
        policies.append((newest_policy(folder / "rl"), after["success"]))
        spec = station_task(load_recipe("sim_rlpd")).spec
        world, episodes = fit_world(
            noisy_episodes(100)[0] + run_episodes(folder / "rl", spec), 2 * FIT_S
        )
        predicted = [
            predict(world, episodes, load_policy(path).eval(), SCENES).success
            for path, _ in policies
        ]
    real = [success for _, success in policies]
    for count, one, other in zip([*DEMONSTRATION_COUNTS, "RL"], real, predicted, strict=True):
        print(f"  {count}: simulator {one:.2f}, world {other:.2f}", flush=True)
    return {
        "rank_spearman": rank_correlation(real, predicted),
        "rank_gap": max(abs(one - other) for one, other in zip(real, predicted, strict=True)),
        **{
            f"rank_real_{count}": one
            for count, one in zip([*DEMONSTRATION_COUNTS, "rl"], real, strict=True)
        },
        **{
            f"rank_predicted_{count}": one
            for count, one in zip([*DEMONSTRATION_COUNTS, "rl"], predicted, strict=True)
        },
    }


def second_source(seeds: int = 3, share: float = 0.5) -> dict[str, float]:
    """Train RLPD with and without a world beside the simulator, at equal real time steps."""
    results: dict[str, float] = {}
    for kind, value in (("without", 0.0), ("with", share)):
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as name:
                result = train_rlpd(Path(name) / "run", f"seed={seed}", f"world.share={value}")
            results |= {
                f"to_90_{kind}_{seed}": result["to_90"],
                f"success_{kind}_{seed}": result["success"],
            }
            print(
                f"  {kind} {seed}: {result['to_90']:.0f} steps to 90 %, {result['success']:.2f} at "
                f"the end",
                flush=True,
            )
    steps = {
        kind: np.mean(
            [np.nan_to_num(results[f"to_90_{kind}_{seed}"], nan=9000.0) for seed in range(seeds)]
        )
        for kind in ("without", "with")
    }
    return results | {"real_steps_ratio": float(steps["without"] / steps["with"])}


def alone() -> dict[str, float]:
    """Compare RLPD in a world alone (short branches) with RLPD in the simulator."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real = train_rlpd(folder / "real")
        spec = station_task(load_recipe("sim_rlpd")).spec
        demonstrations = [
            episode
            for episode in run_episodes(folder / "real", spec)
            if episode.mode == DEMONSTRATION
        ]
        world, episodes = fit_world(demonstrations + noisy_episodes(100)[0], 2 * FIT_S, horizon=10)
        world.save(folder / FILE, episodes)
        imagined = train_rlpd(
            folder / "alone",
            f"world.run={folder}",
            "simulation.environments=16",
            "world.horizon=10",
        )
    return {
        "success_simulator": real["success"],
        "success_world": imagined["success"],
        "world_only_ratio": imagined["success"] / max(real["success"], 1e-9),
    }


def record_contact_episode(recipe: Recipe, seed: int, steps: int = 70) -> Episode:
    """Return an episode of a station without ROS.

    The tool moves to and fro, then presses on the socket's rim and slides.
    """
    station = simulated_station(recipe)
    spec, random = station.task.spec, np.random.default_rng(seed)
    observation = station.reset(seed)
    observed: dict[str, list[np.ndarray]] = {name: [value] for name, value in observation.items()}
    executed = []
    action = np.zeros(3)
    for step in range(steps):
        if step < steps // 3:
            action = random.uniform(-0.7, 0.7, 3) if step % 5 == 0 else action
        else:
            aim = observation["socket_offset"] + [0.0205, 0.01 * np.sin(0.6 * step), 0.012]
            action = np.clip(aim / 0.06, -0.8, 0.8)  # slow, because the arm may answer late
            action[2] = -0.25 if step > steps * 3 // 4 else action[2]
        observation = station.step(action)[0]
        executed.append(spec.action.to_si(station.executed))
        for name, value in observation.items():
            observed[name].append(value)
    observations = {name: np.array(values) for name, values in observed.items()}
    actions, names = np.array(executed), ("",) * (steps + 1)
    rewards, stamps = np.zeros(steps), np.arange(steps + 1) * 10**8
    outcome = {"success": False, "failure": False, "truncated": True, "policy_version": 0}
    return Episode(
        id=f"a-{seed}",
        station="a",
        mode="train",
        seed=seed,
        spec_hash=spec.hash,
        limits_hash="",
        instructions=names,
        observations=observations,
        requested=actions,
        executed=actions,
        sources=("policy",) * steps,
        limits=((),) * steps,
        rewards=rewards,
        discounts=np.ones(steps),
        stamps_ns=stamps,
        **outcome,
    )


def fit_hidden() -> tuple[real_to_sim.Fit, float]:
    """Fit the demo's simulator to eight episodes of the hidden one; return also the seconds."""
    straight = "simulation.interlock=false"
    hidden = load_recipe("sim_rlpd", [straight, *HIDDEN, *CAMERA])
    episodes = [record_contact_episode(hidden, seed) for seed in range(100, 108)]
    begin = time.perf_counter()
    result = real_to_sim.fit(load_recipe("sim_rlpd", [straight, *CAMERA]), episodes, print)
    return result, time.perf_counter() - begin


def identify() -> dict[str, float]:
    """Return relative errors of the fitted delay, gain, friction and camera pose."""
    result, seconds = fit_hidden()
    truth = load_recipe("sim_rlpd", [*HIDDEN, *CAMERA])
    dynamics, options = truth.simulation.dynamics, truth.station.options
    camera = np.array(options["front_camera"])
    moved = np.linalg.norm(np.array(result.options["front_camera"]) - camera)
    return {
        "identify_delay_error": abs(result.dynamics.delay_s / dynamics.delay_s - 1.0),
        "identify_gain_error": abs(result.dynamics.gain / dynamics.gain - 1.0),
        "identify_lag_s": result.dynamics.lag_s,
        "identify_friction_error": abs(result.options["friction"] / options["friction"] - 1.0),
        "identify_camera_error": float(moved / np.linalg.norm(camera)),
        "replay_before_mm": result.before_mm,
        "replay_after_mm": result.after_mm,
        "identify_s": seconds,
    }


def transfer() -> dict[str, float]:
    """Return success on the hidden simulator after training in today's and in the fitted one."""
    result, _ = fit_hidden()
    fitted_values = result.dynamics.model_dump()
    friction = f"station.options.friction={result.options['friction']}"
    fitted_overrides = (
        f"simulation.dynamics={{delay_s: {fitted_values['delay_s']}, lag_s: "
        f"{fitted_values['lag_s']}, gain: {fitted_values['gain']}}}",
        friction,
    )
    hidden = make_environments(load_recipe("sim_rlpd", list(HIDDEN[:2])), 1)
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        for kind, overrides in (("today", ()), ("fitted", fitted_overrides)):
            train_rlpd(Path(name) / kind, *overrides)
            policy = load_policy(newest_policy(Path(name) / kind)).eval()
            results = evaluate(hidden, policy, range(1_000_000, 1_000_000 + SCENES))
            figures[f"transfer_{kind}"] = float(np.mean([result.success for result in results]))
            print(f"  trained in {kind}: {figures[f'transfer_{kind}']:.2f}", flush=True)
    ratio = figures["transfer_fitted"] / max(figures["transfer_today"], 0.5 / SCENES)
    return figures | {"transfer_ratio": ratio}


def video(episodes: int = 40) -> dict[str, float]:
    """Fit a tiny video model to 32 x 32 pictures of the demo's front camera; return its errors."""
    camera = ["station.observe_cameras=[front]", "station.image_size=[32,32]"]
    env = make_environments(load_recipe("sim_rlpd", [*camera, "simulation.interlock=false"]), 1)
    env.auto_reset, random, films = False, np.random.default_rng(0), []
    for number in range(episodes):
        observation, frames, actions = env.reset([30_000 + number]), [], []
        frames.append(observation["front"][0])
        noise = NOISES[number % len(NOISES)]
        for _ in range(30):
            action = np.clip(env.expert()[0] + noise * random.standard_normal(3), -1, 1)
            steps = env.step(action[None])
            actions.append(action.astype(np.float32))
            frames.append(steps.next_observations["front"][0])
            if steps.done[0]:
                break
        films.append((np.array(frames), np.array(actions)))
    env.close()
    begin = time.perf_counter()
    _, check = tiny_video.fit(films, updates=1500)
    last = len(check.errors) - 1
    return {
        "video_error_1": check.errors[0],
        "video_still_1": check.persistence[0],
        f"video_error_{last + 1}": check.errors[last],
        f"video_still_{last + 1}": check.persistence[last],
        "video_moving_1": check.moving[0],
        "video_moving_still_1": check.moving_persistence[0],
        f"video_moving_{last + 1}": check.moving[last],
        f"video_moving_still_{last + 1}": check.moving_persistence[last],
        "video_fit_s": time.perf_counter() - begin,
    }


def splats() -> dict[str, float]:
    """Return the seconds to render 2,000 Gaussians at 128 x 128, without and with gradients."""
    random = torch.Generator().manual_seed(0)
    cloud = gaussians.scattered(2000, np.full(3, -1.0), np.ones(3))
    cloud = dataclasses.replace(cloud, colours=torch.randn(2000, 3, generator=random))
    view = gaussians.View(np.array([0.0, 0.0, 3.0]), np.eye(3), float(np.deg2rad(45)))
    forward, both = [], []
    for _ in range(5):
        begin = time.perf_counter()
        with torch.no_grad():
            gaussians.render(cloud, view, 128, 128)
        forward.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        positions = cloud.positions.clone().requires_grad_()
        moved = dataclasses.replace(cloud, positions=positions)
        gaussians.render(moved, view, 128, 128)[0].sum().backward()
        both.append(time.perf_counter() - begin)
    return {"splats_s": float(np.median(forward)), "splats_gradient_s": float(np.median(both))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="write one flat object there")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"only {', '.join(QUICK)}, without the training of RL"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for part in QUICK if arguments.quick else arguments.only:
        print(part, flush=True)
        part_figures = {name: round(float(value), 4) for name, value in globals()[part]().items()}
        print(json.dumps(part_figures, indent=1), flush=True)
        figures |= {
            name: None if np.isnan(value) else value for name, value in part_figures.items()
        }
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
