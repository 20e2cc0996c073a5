"""Lockstep: environment steps a second through the demo's whole station, in one process and in
several, and of its parts.

    python benchmarks/lockstep.py --json results.json

Each of these several times in turn:

* ``one``, ``several``: the demo's station with its recorder and that ``station.processes``, from
  the end of its first episode to the end of its last one; resets and recording included.
* ``loop``: the same simulator, the interlock's core and the same policy in one loop without ROS.
* ``bare``: the same simulator, stepped in a loop.

CPU is what the station's processes compute, their children included, in milliseconds a step. It
depends less on what else the machine does than steps a second do. This command does not cover
cameras, two arms and listeners outside.
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
    """What these processes and their descendants have computed so far [s]; who has ended counts
    with its parent.
    """
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
    wanted = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return sum(used.get(pid, 0.0) for pid in wanted)


def station(
    folder: Path, episodes: int, processes: str, without: tuple[str, ...] = ("uplink",)
) -> dict[str, float]:
    """Steps a second and CPU milliseconds a step through the demo's station."""
    import rclpy
    from rclpy.action import ActionClient
    from rlinf_msgs.action import RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus

    from rlinf_core.launch.graph import composed, station_processes
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_core.policies.serialization import save_policy
    from rlinf_core.recipes import load_recipe
    from rlinf_ros.qos import profile
    from rlinf_ros.workarounds import single_threaded

    recipe = load_recipe("demo", [f"station.domain_id={DOMAIN}", f"station.processes={processes}"])
    folder.mkdir()
    file = save_policy(policy(recipe), folder / "policy.safetensors")
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
        for process in composed(recipe, nodes):
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


def policy(recipe):
    """One that has learned nothing, the same in each process."""
    import torch

    from rlinf_core.policies.small.tanh_gaussian.policy import Actor
    from rlinf_core.recipes import station_task

    torch.manual_seed(0)
    return Actor(station_task(recipe).spec).eval()


def loop(episodes: int) -> dict[str, float]:
    """Simulator, interlock core and policy without ROS, in the scenes of ``station`` but
    the first.
    """
    import torch

    from rlinf_core.recipes import load_recipe
    from rlinf_core.rollouts.evaluate import evaluate
    from sim_bridges.core.environments import stations

    torch.set_num_threads(1)
    recipe = load_recipe("demo", ["simulation.interlock=true", "simulation.environments=1"])
    env, actor = stations(recipe, 1), policy(recipe)
    evaluate(env, actor, [FIRST_SCENE])
    begun, cpu = time.monotonic(), time.process_time()
    played = evaluate(env, actor, range(FIRST_SCENE + 1, FIRST_SCENE + 1 + episodes))
    steps = sum(episode.steps for episode in played)
    result = {
        "steps_per_s": steps / (time.monotonic() - begun),
        "cpu_ms": 1e3 * (time.process_time() - cpu) / steps,
    }
    env.close()
    return result


def bare(steps: int = 500) -> dict[str, float]:
    """The demo's simulator alone."""
    from rlinf_core.recipes import load_recipe, station_task
    from sim_bridges.core.isolated import make

    simulator = make("franka_mujoco")
    ticks = round(1.0 / station_task(load_recipe("demo", [])).spec.control_hz / 0.01)
    simulator.reset(0)
    target = simulator.tcp_pose()
    begun, cpu = time.monotonic(), time.process_time()
    for _ in range(steps):
        for _ in range(ticks):
            simulator.advance(target)
        simulator.channels()
    return {
        "steps_per_s": steps / (time.monotonic() - begun),
        "cpu_ms": 1e3 * (time.process_time() - cpu) / steps,
    }


def compare(folder: Path, episodes: int, runs: int = 1, several: bool = True) -> dict[str, float]:
    """Medians over the runs, and the ratios of each run's own figures; spread as lowest and
    highest.
    """
    measured: dict[str, list[float]] = {}
    for run in range(runs):
        rows = {
            "bare": bare(),
            "one": station(folder / f"one_{run}", episodes, "one"),
            "loop": loop(episodes),
        }
        if several:
            rows["several"] = station(folder / f"several_{run}", episodes, "several")
        rate = {name: row["steps_per_s"] for name, row in rows.items()}
        ratios = {
            "lockstep_ratio": rate["one"] / rate["bare"],
            "lockstep_ratio_loop": rate["one"] / rate["loop"],
        }
        if several:
            ratios["lockstep_ratio_several"] = rate["several"] / rate["bare"]
        flat = {f"{name}_{key}": value for name, row in rows.items() for key, value in row.items()}
        for key, value in (flat | ratios).items():
            measured.setdefault(key, []).append(value)
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
    return figures.summary(measured)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=20, help="of each run")
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
