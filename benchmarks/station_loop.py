"""Measure the path from observation to command through a station, in real time and in lockstep.

    python benchmarks/station_loop.py --json results.json

Real time: this process stands in for the robot side. It publishes two camera images and the robot's
state. Environment, policy, interlock and recorder run as on a station. The policy is a small network
on the state; both images travel to it with every observation. Every observation asks for another
velocity than the one before, so the first command with that velocity is its answer. The time runs
from just before the observation's first message is published until the command arrives in this
process's callback. It includes transport, packing, inference and the waits for the timers of
environment and interlock; "late" counts times beyond a period.

Three floors exchange the same messages at the same rate: "spin" with a bare node under
``rclpy.spin``, which answers with a pose after the last message, "events" with the faster executor of
our nodes, which this process uses, too, and "relay" with three bare nodes in the places of
environment, policy and interlock.

The station is set up like docs/robots/realtime.md recommends for 100 Hz: an interlock of 200 Hz, so
that a chunk that misses a tick waits for 5 ms and not for 10; chunks of two actions, the second of
which is played if the next chunk is late; environment and policy in one process. ``--tick 0.01
--horizon 1 --backend local`` measures a station without these settings.

Lockstep: steps per second of the demo's station with its simulator, beside the simulator alone.

The benchmark does not cover a network between machines, compressed images, or the response of the
robot's own controller.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402
from benchmarks.robot_side import (  # noqa: E402
    CAMERAS,
    FLOORS,
    HOME,
    LEVELS,
    OFFSETS,
    SIZE,
    SPEED,
    STATE_HZ,
    WARM_UP_S,
    RobotSide,
    percentiles,
    round_trips,
    use_driver_priority,
    use_normal_priority,
)

DOMAIN = 55
# Names of the floors in the results.
KEYS = {
    "spin": "pingpong",
    "events": "pingpong_events",
    "relay": "relay",
}


def write_task(folder: Path, hz: int, seconds: float) -> Path:
    """Write the demo's task at another rate, with the same velocity of an action of 1."""
    task = yaml.safe_load((ROOT / "configs/tasks/peg_insertion.yaml").read_text())
    task |= {"control_hz": float(hz), "max_steps": round(seconds * hz)}
    for dimension in task["action"]["dimensions"].values():
        dimension["scale"] = SPEED / hz
    path = folder / f"task_{hz}hz.yaml"
    path.write_text(yaml.safe_dump(task))
    return path


def write_robot(folder: Path, tick_s: float) -> Path:
    """Write the demo's robot with another period of its interlock."""
    at = ROOT / "sim_bridges/simulators/franka_mujoco/franka_sim"
    robot = Path(shutil.copytree(at, folder / "robot", dirs_exist_ok=True))
    limits = yaml.safe_load((at / "limits.yaml").read_text())
    (robot / "limits.yaml").write_text(yaml.safe_dump(limits | {"tick": tick_s}))
    return robot


def train_policy(task_path: Path, path: Path, horizon: int) -> None:
    """Train a policy by regression that answers each socket offset with its level."""
    import torch

    from rlinf_core.policies.serialization import save_policy
    from rlinf_core.policies.small import tanh_gaussian
    from rlinf_core.policies.small.tanh_gaussian.policy import Actor
    from rlinf_core.tasks.task import load_task

    torch.manual_seed(0)
    spec = load_task(task_path).with_images(dict.fromkeys(CAMERAS, SIZE)).spec
    actor = Actor(
        spec,
        tanh_gaussian.Config(hidden=(64, 64), image_features=0, horizon=horizon, n_action_steps=1),
    )
    random, columns, start = np.random.default_rng(0), {}, 0
    for vector in spec.vectors:
        columns[vector.name] = slice(start, start := start + vector.size)
    optimiser = torch.optim.Adam(actor.parameters(), 3e-3)
    for _ in range(400):
        index = random.integers(len(LEVELS), size=64)
        vectors = random.normal(0.0, 0.02, (64, spec.vector_size)).astype(np.float32)
        vectors[:, columns["tcp_position"]] += HOME[:3]
        vectors[:, columns["socket_offset"].start] = np.take(OFFSETS, index)
        targets = torch.zeros(64, horizon, spec.action.dim)
        targets[..., 0] = torch.as_tensor(np.take(LEVELS, index))[:, None]
        loss = (
            (torch.tanh(actor({"vectors": torch.as_tensor(vectors)})[0]) - targets.flatten(1)) ** 2
        ).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    if loss.item() > 5e-3:
        raise SystemExit(f"expected a loss of at most 0.005 of the policy, got {loss.item():.4f}")
    save_policy(actor, path)


def measure_real_time(
    folder: Path, hz: int, seconds: float, tick_s: float, horizon: int, backend: str
) -> dict[str, float]:
    import rclpy
    from rclpy.action import ActionClient
    from rlinf_msgs.action import ResetScene, RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus, SafetyState
    from std_srvs.srv import SetBool

    from rlinf_core.config.overrides import quote_value
    from rlinf_core.launch.graph import station_processes
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_core.recipes import load_recipe
    from rlinf_ros.qos import profile
    from rlinf_ros.workarounds import single_threaded

    task = write_task(folder, hz, seconds + WARM_UP_S)
    policy = folder / f"policy_{hz}hz.safetensors"
    train_policy(task, policy, horizon)
    recipe = load_recipe(
        "demo",
        [
            f"station.robot={quote_value(write_robot(folder, tick_s))}",
            f"station.task={quote_value(task)}",
            "station.lockstep=false",
            f"station.domain_id={DOMAIN}",
            f"station.policy.backend={backend}",
            f"station.observe_cameras=[{','.join(CAMERAS)}]",
            f"station.image_size={list(SIZE)}",
        ],
    )
    (run_dir := folder / f"station_{hz}hz").mkdir()
    policy_host = "environment" if backend == "composed" else "policy"
    nodes = robot_node, node = [
        rclpy.create_node(name, namespace=f"/{recipe.station.name}") for name in ("robot", "asks")
    ]
    executors = executor, side_executor = [single_threaded() for _ in nodes]
    # Only the robot's node receives commands, as in the floors.
    executor.add_node(robot_node)
    side_executor.add_node(node)
    robot, safety, status, measured_from = (
        RobotSide(robot_node, hz),
        [SafetyState()],
        [PolicyStatus(version=-1)],
        [0.0],
    )
    node.create_subscription(
        SafetyState, "safety", lambda m: safety.__setitem__(0, m), profile("safety")
    )
    node.create_subscription(
        PolicyStatus, "policy/status", lambda m: status.__setitem__(0, m), profile("policy/status")
    )

    def on_reset(handle):
        handle.succeed()
        return ResetScene.Result(success=True, stamp=node.get_clock().now().to_msg())

    resetter = rclpy.action.ActionServer(node, ResetScene, "reset_scene", on_reset)
    runner, arming = (
        ActionClient(node, RunEpisodes, "run_episodes"),
        node.create_client(SetBool, "interlock/arm"),
    )

    def wait(ready, limit_s, what):
        end = time.monotonic() + limit_s
        while not ready():
            executor.spin_once(timeout_sec=0.05)
            if not 0.0 < time.monotonic() - measured_from[0] < seconds:
                side_executor.spin_once(timeout_sec=0.0)
            if time.monotonic() > end:
                raise SystemExit(f"waited {limit_s:.0f} s for {what}; logs in {run_dir / 'logs'}")

    use_driver_priority(os.SCHED_RESET_ON_FORK)
    with Supervisor(run_dir, DOMAIN) as supervisor:
        for process in station_processes(recipe, run_dir):
            if process.name in ("interlock", "environment", "policy", "recorder"):
                process.parameters.update(
                    {"policy_file": str(policy)} if process.name == policy_host else {}
                )
                supervisor.start(process)
        wait(
            lambda: (
                runner.server_is_ready() and arming.service_is_ready() and status[0].version >= 0
            ),
            60,
            "the station",
        )
        requests = [arming.call_async(SetBool.Request(data=True))]

        def armed() -> bool:
            # The interlock refuses to arm until the arm has been at rest for some time.
            if requests[-1].done() and not requests[-1].result().success:
                requests.append(arming.call_async(SetBool.Request(data=True)))
            return safety[0].state == SafetyState.ARMED

        wait(armed, 10, "the interlock to be armed")
        robot.published.clear()
        measured_from[0] = time.monotonic() + WARM_UP_S
        runner.send_goal_async(RunEpisodes.Goal(count=1, mode="evaluate"))
        ended_episodes = []
        node.create_subscription(
            EpisodeEvent,
            "episode",
            lambda m: m.kind == EpisodeEvent.ENDED and ended_episodes.append(1),
            10,
        )
        wait(lambda: ended_episodes, seconds + WARM_UP_S + 30, "the episode to end")
        robot.until = measured_from[0] + seconds
        inference_ms, dropped = status[0].inference_p50_ms, safety[0].dropped
    use_driver_priority()
    resetter.destroy()
    runner.destroy()
    for spinner, spinning_node in zip(executors, nodes, strict=True):
        spinner.shutdown()
        spinning_node.destroy_node()
    times, missed = robot.latencies(hz, tick_s)
    if len(times) < 0.5 * seconds * hz:
        raise SystemExit(
            f"expected answers to most of {seconds * hz:.0f} observations, got {len(times)}; logs "
            f"in {run_dir / 'logs'}"
        )
    return {
        **percentiles(times),
        "inference_p50_ms": inference_ms,
        "answered": len(times),
        "missed": missed,
        "late": int(np.sum(times > 1.0 / hz)),
        "dropped": dropped,
    }


def measure_lockstep(folder: Path, episodes: int) -> dict[str, float]:
    """Return steps per second of the demo's station, and of the bare simulator."""
    import rclpy
    from rclpy.action import ActionClient
    from rlinf_msgs.action import RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus

    from rlinf_core.launch.graph import station_processes
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_core.policies.serialization import save_policy
    from rlinf_core.policies.small.tanh_gaussian.policy import Actor
    from rlinf_core.recipes import load_recipe, station_task
    from rlinf_ros.qos import profile
    from rlinf_ros.workarounds import single_threaded
    from sim_bridges.core.isolated import make

    recipe = load_recipe("demo", [f"station.domain_id={DOMAIN}"])
    spec = station_task(recipe).spec
    policy = save_policy(Actor(spec), folder / "policy_lockstep.safetensors")
    (run_dir := folder / "lockstep").mkdir()
    node = rclpy.create_node("benchmark", namespace=f"/{recipe.station.name}")
    executor = single_threaded()
    executor.add_node(node)
    events, status = [], [PolicyStatus(version=-1)]
    node.create_subscription(
        EpisodeEvent, "episode", lambda m: events.append((time.monotonic(), m)), profile("episode")
    )
    node.create_subscription(
        PolicyStatus, "policy/status", lambda m: status.__setitem__(0, m), profile("policy/status")
    )
    runner = ActionClient(node, RunEpisodes, "run_episodes")
    with Supervisor(run_dir, DOMAIN) as supervisor:
        for process in station_processes(recipe, run_dir):
            if process.name != "uplink":
                process.parameters.update(
                    {"policy_file": str(policy)} if process.name == "policy" else {}
                )
                supervisor.start(process)
        end = time.monotonic() + 60 + 3 * episodes
        while not (runner.server_is_ready() and status[0].version >= 0) and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
        sent = runner.send_goal_async(
            RunEpisodes.Goal(count=episodes + 1, mode="evaluate", first_seed=1)
        )
        while sum(m.kind == EpisodeEvent.CLOSED for _, m in events) < episodes + 1:
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() > end:
                raise SystemExit(f"the lockstep episodes did not end; logs in {run_dir / 'logs'}")
        del sent
    executor.shutdown()
    node.destroy_node()
    (first, _), *closed = [(at, m.steps) for at, m in events if m.kind == EpisodeEvent.CLOSED]
    rate = sum(steps for _, steps in closed) / (closed[-1][0] - first)
    simulator, ticks = make("franka_mujoco"), round(1.0 / spec.control_hz / 0.01)
    simulator.reset(0)
    target, started, steps = simulator.tcp_pose(), time.monotonic(), 500
    for _ in range(steps):
        for _ in range(ticks):
            simulator.advance(target)
        simulator.channels()
    bare = steps / (time.monotonic() - started)
    return {
        "lockstep_steps_per_s": rate,
        "bare_simulator_steps_per_s": bare,
        "lockstep_ratio": rate / bare,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="measured time of each real-time run"
    )
    parser.add_argument("--hz", type=int, nargs="+", default=[20, 100], help="control rates")
    parser.add_argument("--tick", type=float, default=0.005, help="period of the interlock [s]")
    parser.add_argument(
        "--horizon", type=int, default=2, help="actions of a chunk; one of them is played"
    )
    parser.add_argument(
        "--backend",
        choices=["local", "composed"],
        default="composed",
        help="station.policy.backend",
    )
    parser.add_argument(
        "--episodes", type=int, default=20, help="lockstep episodes; 0 for no lockstep"
    )
    parser.add_argument(
        "--floors",
        choices=list(FLOORS),
        nargs="+",
        default=list(FLOORS),
        help="floors to compare with",
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    if wrong := [hz for hz in options.hz if hz < 1 or STATE_HZ % hz]:
        parser.error(
            f"--hz: expected a divisor of the robot's {STATE_HZ} Hz, e.g. 20, 50 or 100, got "
            f"{wrong[0]}"
        )
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    import rclpy

    use_driver_priority()
    rclpy.init()
    result: dict[str, float] = {}
    with figures.folder("rlinf-station-loop-") as folder:
        print(
            f"{'':24}{'p50':>9}{'p99':>12}{'missed':>8}{'late':>6}{'dropped':>9}{'inference':>11}{'ratio':>7}"
        )
        # Half of each floor runs before and half after, because other load varies.
        for hz in options.hz:
            before = {name: round_trips(hz, options.seconds / 2, name) for name in options.floors}
            ours = measure_real_time(
                folder, hz, options.seconds, options.tick, options.horizon, options.backend
            )
            result |= {f"{key}_{hz}hz": value for key, value in ours.items()}
            print(
                f"{hz:>4} Hz {'the station':<16}{ours['p50_ms']:9.2f} ms{ours['p99_ms']:9.2f} "
                f"ms{ours['missed']:5d}"
                f"{ours['late']:6d}{ours['dropped']:9d}{ours['inference_p50_ms']:8.2f} ms",
                flush=True,
            )
            for name, key in ((name, KEYS[name]) for name in options.floors):
                times = np.concatenate([before[name], round_trips(hz, options.seconds / 2, name)])
                floor = percentiles(times[np.isfinite(times)]) | {
                    "missed": int(np.sum(np.isinf(times)))
                }
                ratio = ours["p50_ms"] / floor["p50_ms"]
                print(
                    f"{'':8}{name:<16}{floor['p50_ms']:9.2f} ms{floor['p99_ms']:9.2f} "
                    f"ms{floor['missed']:5d}{'':26}{ratio:7.2f}",
                    flush=True,
                )
                result |= {f"{key}_{part}_{hz}hz": value for part, value in floor.items()}
                result[f"p50_ratio{'' if name == 'spin' else f'_{name}'}_{hz}hz"] = ratio
        if "spin" in options.floors:
            worst = max(options.hz, key=lambda hz: result[f"p50_ratio_{hz}hz"])
            result |= {key: result[f"{key}_{worst}hz"] for key in ("p50_ratio", "p50_ms", "p99_ms")}
        if "events" in options.floors:
            ratios = [result[f"p50_ratio_events_{hz}hz"] for hz in options.hz]
            result["p50_ratio_events"] = max(ratios)
        if options.episodes:
            use_normal_priority()  # a lockstep station inherits this priority
            result |= measure_lockstep(folder, options.episodes)
            print(
                f"lockstep: {result['lockstep_steps_per_s']:.1f} environment steps/s through the "
                f"station, {result['bare_simulator_steps_per_s']:.1f} of the bare simulator (ratio "
                f"{result['lockstep_ratio']:.2f})"
            )
    if options.json:
        figures.write(options.json, result)
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
