"""Measure steps per second of the demo's station in lockstep, and of its parts.

    python benchmarks/lockstep.py --json results.json

Each of these runs several times in turn:

* ``one``, ``several``: the demo's station with its recorder and that ``station.processes``, from
  the end of its first episode to the end of its last one, including resets and recording.
* ``loop``: the same simulator, the interlock's core and the same policy in one loop without ROS.
* ``bare``: the same simulator, stepped in a loop.

CPU is the computing time of the station's processes and their children, in milliseconds per step. It
depends less on other load of the machine than steps per second do. The benchmark does not cover
cameras, two arms and subscribers outside of the station.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402

DOMAIN, FIRST_SCENE = 56, 1
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: list[int]) -> float:
    """Return the processor time of processes and their descendants so far [s]."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            values = (
                (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdecimal()
                else None
            )
        except OSError:
            continue
        if values:
            parents[int(entry.name)], used[int(entry.name)] = (
                int(values[1]),
                sum(map(int, values[11:15])) / TICKS,
            )
    counted_pids = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in counted_pids} - counted_pids:
        counted_pids |= more
    return sum(used.get(pid, 0.0) for pid in counted_pids)


def measure_station(
    folder: Path, episodes: int, processes: str, without: tuple[str, ...] = ("uplink",)
) -> dict[str, float]:
    """Return steps per second and CPU milliseconds per step of the demo's station."""
    import rclpy
    from rclpy.action import ActionClient
    from rlinf_msgs.action import RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus

    from rlinf_core.launch.graph import compose, station_processes
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_core.policies.serialization import save_policy
    from rlinf_core.recipes import load_recipe
    from rlinf_ros.qos import profile
    from rlinf_ros.workarounds import single_threaded

    recipe = load_recipe("demo", [f"station.domain_id={DOMAIN}", f"station.processes={processes}"])
    folder.mkdir()
    file = save_policy(make_actor(recipe), folder / "policy.safetensors")
    node = rclpy.create_node("benchmark", namespace=f"/{recipe.station.name}")
    executor = single_threaded()
    executor.add_node(node)
    closed, status, used = [], [PolicyStatus(version=-1)], [0.0, 0.0]
    runner = ActionClient(node, RunEpisodes, "run_episodes")
    with Supervisor(folder, DOMAIN) as supervisor:

        def on_event(event: EpisodeEvent) -> None:
            if event.kind == EpisodeEvent.CLOSED:
                used[len(closed) > 0] = cpu_s(
                    [child.popen.pid for child in supervisor.children.values()]
                )
                closed.append((time.monotonic(), event.steps))

        node.create_subscription(EpisodeEvent, "episode", on_event, profile("episode"))
        node.create_subscription(
            PolicyStatus,
            "policy/status",
            lambda message: status.__setitem__(0, message),
            profile("policy/status"),
        )
        nodes = station_processes(recipe, folder, without)
        next(process for process in nodes if process.name == "policy").parameters["policy_file"] = (
            str(file)
        )
        for process in compose(recipe, nodes):
            supervisor.start(process)
        end = time.monotonic() + 60 + 3 * episodes
        while not (runner.server_is_ready() and status[0].version >= 0) and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
            supervisor.poll()
        sent = runner.send_goal_async(
            RunEpisodes.Goal(count=episodes + 1, mode="evaluate", first_seed=FIRST_SCENE)
        )
        while len(closed) < episodes + 1:
            executor.spin_once(timeout_sec=0.05)
            supervisor.poll()
            if time.monotonic() > end:
                raise SystemExit(f"the episodes did not end; logs in {folder / 'logs'}")
        del sent
    executor.shutdown()
    node.destroy_node()
    steps = sum(steps for _, steps in closed[1:])
    return {
        "steps_per_s": steps / (closed[-1][0] - closed[0][0]),
        "cpu_ms": 1e3 * (used[1] - used[0]) / steps,
    }


def make_actor(recipe):
    """Return an untrained policy, the same in each process."""
    import torch

    from rlinf_core.policies.small.tanh_gaussian.policy import Actor
    from rlinf_core.recipes import station_task

    torch.manual_seed(0)
    return Actor(station_task(recipe).spec).eval()


def measure_loop(episodes: int) -> dict[str, float]:
    """Measure simulator, interlock core and policy without ROS, in the same scenes."""
    import torch

    from rlinf_core.recipes import load_recipe
    from rlinf_core.rollouts.evaluate import evaluate
    from sim_bridges.core.environments import make_environments

    torch.set_num_threads(1)
    recipe = load_recipe("demo", ["simulation.interlock=true", "simulation.environments=1"])
    env, actor = make_environments(recipe, 1), make_actor(recipe)
    evaluate(env, actor, [FIRST_SCENE])
    started, cpu = time.monotonic(), time.process_time()
    played = evaluate(env, actor, range(FIRST_SCENE + 1, FIRST_SCENE + 1 + episodes))
    steps = sum(episode.steps for episode in played)
    result = {
        "steps_per_s": steps / (time.monotonic() - started),
        "cpu_ms": 1e3 * (time.process_time() - cpu) / steps,
    }
    env.close()
    return result


def measure_bare(steps: int = 500) -> dict[str, float]:
    """Measure the demo's simulator alone."""
    from rlinf_core.recipes import load_recipe, station_task
    from sim_bridges.core.isolated import make

    simulator = make("franka_mujoco")
    ticks = round(1.0 / station_task(load_recipe("demo", [])).spec.control_hz / 0.01)
    simulator.reset(0)
    target = simulator.tcp_pose()
    started, cpu = time.monotonic(), time.process_time()
    for _ in range(steps):
        for _ in range(ticks):
            simulator.advance(target)
        simulator.channels()
    return {
        "steps_per_s": steps / (time.monotonic() - started),
        "cpu_ms": 1e3 * (time.process_time() - cpu) / steps,
    }


def compare(folder: Path, episodes: int, runs: int = 1, several: bool = True) -> dict[str, float]:
    """Return medians, lowest and highest figures over the runs; ratios are within one run."""
    values_by_name: dict[str, list[float]] = {}
    for run in range(runs):
        rows = {
            "bare": measure_bare(),
            "one": measure_station(folder / f"one_{run}", episodes, "one"),
            "loop": measure_loop(episodes),
        }
        if several:
            rows["several"] = measure_station(folder / f"several_{run}", episodes, "several")
        rate = {name: row["steps_per_s"] for name, row in rows.items()}
        ratios = {
            "lockstep_ratio": rate["one"] / rate["bare"],
            "lockstep_ratio_loop": rate["one"] / rate["loop"],
        }
        if several:
            ratios["lockstep_ratio_several"] = rate["several"] / rate["bare"]
        flat = {f"{name}_{key}": value for name, row in rows.items() for key, value in row.items()}
        for key, value in (flat | ratios).items():
            values_by_name.setdefault(key, []).append(value)
        print(
            f"run {run + 1}: "
            + ", ".join(
                f"{name} {row['steps_per_s']:.0f}/s {row['cpu_ms']:.1f} CPU ms"
                for name, row in rows.items()
            )
            + f"; one process {ratios['lockstep_ratio']:.2f} of bare, "
            f"{ratios['lockstep_ratio_loop']:.2f} of loop",
            flush=True,
        )
    return figures.summary(values_by_name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--one", action="store_true", help="only the station in one process, without several"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    import rclpy

    rclpy.init()
    with figures.folder("rlinf-lockstep-") as folder:
        result = compare(folder, options.episodes, options.runs, not options.one)
    if options.json:
        figures.write(options.json, result)
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
