"""From observation to command through a station in real time, beside a bare rclpy ping-pong; and lockstep steps a second.

    python benchmarks/station_loop.py --json results.json

Real time: this process stands at the robot side. It publishes two camera images and the robot's state; environment, policy
(a small network on the state: both images travel to it with every observation, but what a network on images costs is not
the loop's), interlock and recorder run as they do on a station. Every observation asks for another velocity than the one
before, so that the first command with that velocity is the answer to it. The time is from just before the observation's
first message is published until that command is in this process's callback: transport, packing, inference and the waits
for the environment's and the interlock's timers included; "late" counts those beyond a period. The ping-pong sends the
same messages at the same rate to one process, a bare node under ``rclpy.spin``, which answers with a pose when the last has
come. "events" is the same ping-pong with the executor that our nodes spin on, which wakes faster: the floor of what four
processes in a row could reach.

``--tick 0.004 --horizon 2``: an interlock of 250 Hz, and chunks of two actions of which the first is played until the next
chunk comes, the second where that one is late. A chunk that has missed one tick then waits for 4 ms, not for 10.

Lockstep: the demo's station and its simulator, as fast as it goes, beside the simulator stepped in a loop.

It does not cover a network between machines, compressed images, or what the robot's own controller does with a command.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DOMAIN, CAMERAS, SIZE, STATE_HZ = 55, ("front", "wrist"), (128, 128), 100
LEVELS = (-0.75, -0.25, 0.25, 0.75)     # normalised actions
SPEED = 0.005                           # [m/s] of an action of 1: of those above, each follows each within a tick of 2 ms
PING_PONGS = {"spin": "pingpong", "events": "pingpong_events"}  # executor of the other side, and its key in the results
OFFSETS = (-0.15, -0.05, 0.05, 0.15)    # [m] where the socket seems to be, which names the level
WARM_UP_S = 8.0
HOME = (0.5, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0)


def write_task(folder: Path, hz: int, seconds: float) -> Path:
    """The demo's task at another rate, with actions whose size does not depend on it."""
    import yaml

    task = yaml.safe_load((ROOT / "configs/tasks/peg_insertion.yaml").read_text())
    task |= {"control_hz": float(hz), "max_steps": round(seconds * hz)}
    for dimension in task["action"]["dimensions"].values():
        dimension["scale"] = SPEED / hz
    path = folder / f"task_{hz}hz.yaml"
    path.write_text(yaml.safe_dump(task))
    return path


def write_robot(folder: Path, tick_s: float) -> Path:
    """The demo's robot with another period of its interlock."""
    import yaml

    at = ROOT / "sim_bridges/franka_mujoco/franka_sim"
    robot = folder / "robot"
    robot.mkdir(exist_ok=True)
    for name, other in (("robot.yaml", {}), ("limits.yaml", {"tick": tick_s})):
        (robot / name).write_text(yaml.safe_dump(yaml.safe_load((at / name).read_text()) | other))
    return robot


def train_policy(task_path: Path, path: Path, horizon: int) -> None:
    """A policy that answers each socket offset with its level, throughout a chunk (supervised, seconds)."""
    import torch

    from rlinf_core.policies import tanh_gaussian
    from rlinf_core.policies.files import save_policy
    from rlinf_core.policies.tanh_gaussian.policy import Actor
    from rlinf_core.task import load_task

    torch.manual_seed(0)
    spec = load_task(task_path).with_images(dict.fromkeys(CAMERAS, SIZE)).spec
    actor = Actor(spec, tanh_gaussian.Config(hidden=(64, 64), image_features=0, horizon=horizon, execute=1))
    random, columns, start = np.random.default_rng(0), {}, 0
    for vector in spec.vectors:
        columns[vector.name] = slice(start, start := start + vector.size)
    optimiser = torch.optim.Adam(actor.parameters(), 3e-3)
    for _ in range(400):
        index = random.integers(len(LEVELS), size=64)
        vectors = random.normal(0.0, 0.02, (64, spec.vector_size)).astype(np.float32)
        vectors[:, columns["tcp_position"]] += HOME[:3]
        vectors[:, columns["socket_offset"].start] = np.take(OFFSETS, index)
        wanted = torch.zeros(64, horizon, spec.action.dim)
        wanted[..., 0] = torch.as_tensor(np.take(LEVELS, index))[:, None]
        loss = ((torch.tanh(actor({"vectors": torch.as_tensor(vectors)})[0]) - wanted.flatten(1)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    if loss.item() > 5e-3:
        raise SystemExit(f"the benchmark's policy was not learned: loss {loss.item():.4f}")
    save_policy(actor, path)


def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (*SIZE, 3), dtype=np.uint8)


class RobotSide:
    """Publishes state at STATE_HZ and both images at ``hz``; ``answers`` holds (time, target pose) of every command."""

    def __init__(self, node, hz: int) -> None:
        from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
        from sensor_msgs.msg import Image, JointState

        from rlinf.qos import profile

        self.node, self.every = node, STATE_HZ // hz
        self.tick, self.step, self.target, self.until = 0, 0, HOME, 0.0
        self.published: list[tuple[float, int]] = []
        self.answers: list[tuple[float, float]] = []
        kinds = {"current_pose": PoseStamped, "object_pose": PoseStamped, "current_twist": TwistStamped,
                 "wrench": WrenchStamped, "joint_states": JointState, "gripper/state": JointState}
        self.messages = {topic: kind() for topic, kind in kinds.items()}
        self.messages["joint_states"].position = [0.0] * 7
        data = array.array("B", pixels().tobytes())
        for name in CAMERAS:
            self.messages[f"camera/{name}/image"] = Image(height=SIZE[0], width=SIZE[1], encoding="rgb8",
                                                          step=3 * SIZE[1], data=data)
        self.outputs = {topic: node.create_publisher(type(message), topic, profile(topic))
                        for topic, message in self.messages.items()}
        node.create_subscription(PoseStamped, "target_pose", self.on_target, profile("target_pose"))
        node.create_timer(1.0 / STATE_HZ, self.publish)

    def publish(self) -> None:
        started, stamp = time.monotonic(), self.node.get_clock().now().to_msg()
        observation = self.tick % self.every == 0
        if observation:
            self.step += 1
            self.messages["object_pose"].pose.position.x = self.target[0] + OFFSETS[self.step % len(OFFSETS)]
            self.published.append((started, self.step % len(OFFSETS)))
        self.tick += 1
        pose = self.messages["current_pose"].pose
        pose.position.x, pose.position.y, pose.position.z = self.target[:3]
        pose.orientation.x, pose.orientation.w = 1.0, 0.0
        self.messages["object_pose"].pose.position.y, self.messages["object_pose"].pose.position.z = self.target[1:3]
        for topic, message in self.messages.items():
            if observation or not topic.startswith(("camera/", "object_pose")):
                message.header.stamp = stamp
                self.outputs[topic].publish(message)

    def on_target(self, message) -> None:
        p = message.pose.position
        self.answers.append((time.monotonic(), p.x))
        self.target = (p.x, p.y, p.z)

    def latencies(self, hz: int, tick_s: float) -> tuple[np.ndarray, int]:
        """Seconds from each observation to the first command of its level; and how many were never answered."""
        levels, arrived = [], []
        for (_, before), (at, x) in zip(self.answers, self.answers[1:], strict=False):
            action = (x - before) / tick_s / SPEED
            nearest = int(np.argmin(np.abs(np.array(LEVELS) - action)))
            levels.append(nearest if abs(LEVELS[nearest] - action) < 0.2 else -1)
            arrived.append(at)
        arrived, levels = np.array(arrived), np.array(levels)
        times, missed, begin = [], 0, self.published[0][0] + WARM_UP_S
        for at, level in self.published:
            if not begin < at < self.until - 3.0 / hz:
                continue
            window = (arrived > at) & (arrived < at + 3.0 / hz) & (levels == level)
            if window.any():
                times.append(arrived[np.argmax(window)] - at)
            else:
                missed += 1
        return np.array(times), missed


def real_time(folder: Path, hz: int, seconds: float, tick_s: float, horizon: int) -> dict[str, float]:
    import rclpy
    from rclpy.action import ActionClient
    from rlinf_msgs.action import ResetScene, RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus, SafetyState
    from std_srvs.srv import SetBool

    from rlinf.qos import profile
    from rlinf_core.launching.graph import station_processes
    from rlinf_core.launching.supervisor import Supervisor
    from rlinf_core.recipes import load_recipe
    from rlinf_core.settings.overrides import quoted

    task = write_task(folder, hz, seconds + WARM_UP_S)
    policy = folder / f"policy_{hz}hz.safetensors"
    train_policy(task, policy, horizon)
    recipe = load_recipe("demo", [f"station.robot={quoted(write_robot(folder, tick_s))}", f"station.task={quoted(task)}",
                                  "station.lockstep=false", f"station.domain_id={DOMAIN}",
                                  f"station.observe_cameras=[{','.join(CAMERAS)}]", f"station.image_size={list(SIZE)}"])
    run_dir = folder / f"station_{hz}hz"
    run_dir.mkdir()
    node = rclpy.create_node("robot_side", namespace=f"/{recipe.station.name}")
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(node)
    robot, safety, status = RobotSide(node, hz), [SafetyState()], [PolicyStatus()]
    node.create_subscription(SafetyState, "safety", lambda m: safety.__setitem__(0, m), profile("safety"))
    node.create_subscription(PolicyStatus, "policy/status", lambda m: status.__setitem__(0, m), profile("policy/status"))

    def on_reset(handle):
        handle.succeed()
        return ResetScene.Result(success=True, stamp=node.get_clock().now().to_msg())

    resetter = rclpy.action.ActionServer(node, ResetScene, "reset_scene", on_reset)
    runner, arming = ActionClient(node, RunEpisodes, "run_episodes"), node.create_client(SetBool, "interlock/arm")

    def wait(ready, limit_s, what):
        end = time.monotonic() + limit_s
        while not ready():
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() > end:
                raise SystemExit(f"waited {limit_s:.0f} s for {what}; logs in {run_dir / 'logs'}")

    as_a_driver(os.SCHED_RESET_ON_FORK)
    with Supervisor(run_dir, DOMAIN) as supervisor:
        for process in station_processes(recipe, run_dir):
            if process.name in ("interlock", "environment", "policy", "recorder"):
                process.parameters.update({"policy_file": str(policy)} if process.name == "policy" else {})
                supervisor.start(process)
        wait(lambda: runner.server_is_ready() and arming.service_is_ready() and status[0].version >= 0, 60, "the station")
        asked = [arming.call_async(SetBool.Request(data=True))]

        def armed() -> bool:
            if asked[-1].done() and not asked[-1].result().success:  # it has not seen the arm at rest for long enough
                asked.append(arming.call_async(SetBool.Request(data=True)))
            return safety[0].state == SafetyState.ARMED

        wait(armed, 10, "the interlock to be armed")
        robot.published.clear()
        runner.send_goal_async(RunEpisodes.Goal(count=1, mode="evaluate"))
        ended = []
        node.create_subscription(EpisodeEvent, "episode", lambda m: m.kind == EpisodeEvent.ENDED and ended.append(1), 10)
        wait(lambda: ended, seconds + WARM_UP_S + 30, "the episode to end")
        robot.until = time.monotonic()
        inference_ms, dropped = status[0].inference_p50_ms, safety[0].dropped
    as_a_driver()
    del resetter
    executor.shutdown()
    node.destroy_node()
    times, missed = robot.latencies(hz, tick_s)
    if len(times) < 0.5 * seconds * hz:
        raise SystemExit(f"only {len(times)} of {seconds * hz:.0f} observations were answered; logs in {run_dir / 'logs'}")
    return {**percentiles(times), "inference_p50_ms": inference_ms, "answered": len(times), "missed": missed,
            "late": int(np.sum(times > 1.0 / hz)), "dropped": dropped}


def ping_pong(hz: int, seconds: float, executor_name: str) -> np.ndarray:
    """Seconds per round trip: the same messages to one process that answers the last of them with a pose.

    inf where no answer came within a period, which is what a station has for one, too.
    """
    import rclpy

    node = rclpy.create_node("ping", namespace="/pingpong")
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(node)
    robot = RobotSide(node, hz)
    pong = subprocess.Popen([sys.executable, __file__, "--pong", executor_name])
    try:
        end = time.monotonic() + 60
        while len(robot.answers) < 10:
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() > end:
                raise SystemExit("the ping-pong's other process does not answer")
        robot.published.clear()
        robot.answers.clear()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
    finally:
        pong.terminate()
        pong.wait()
        executor.shutdown()
        node.destroy_node()
    arrived = np.array([at for at, _ in robot.answers])
    times = []
    for at, _ in robot.published[:-1]:
        later = arrived[(arrived > at) & (arrived < at + 1.0 / hz)]
        times.append(later[0] - at if len(later) else np.inf)
    return np.array(times)


def pong(executor_name: str) -> None:
    """The other side of the ping-pong; its answer is due when the last camera's image has come."""
    import rclpy
    from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
    from rclpy._rclpy_pybind11 import RCLError
    from rclpy.executors import ExternalShutdownException
    from rclpy.node import Node
    from sensor_msgs.msg import Image, JointState

    from rlinf.qos import profile
    from rlinf.spinning import run

    class Pong(Node):
        def __init__(self) -> None:
            super().__init__("pong", namespace="/pingpong")
            answers, answer = self.create_publisher(PoseStamped, "target_pose", profile("target_pose")), PoseStamped()
            for topic, kind in {"current_pose": PoseStamped, "object_pose": PoseStamped, "current_twist": TwistStamped,
                                "wrench": WrenchStamped, "joint_states": JointState,
                                "gripper/state": JointState}.items():
                self.create_subscription(kind, topic, lambda _: None, profile(topic))
            one, other = (f"camera/{name}/image" for name in CAMERAS)
            self.create_subscription(Image, one, lambda _: None, profile(one))
            self.create_subscription(Image, other, lambda _: answers.publish(answer), profile(other))

    if executor_name == "events":
        run(Pong, priority=10)
        return
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    rclpy.init()
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException, RCLError):
        rclpy.spin(Pong())


def lockstep(folder: Path, episodes: int) -> dict[str, float]:
    """Environment steps per second through the demo's station, resets and recording included; and of the bare simulator."""
    import rclpy
    from rclpy.action import ActionClient
    from rlinf_msgs.action import RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus

    from rlinf.qos import profile
    from rlinf_core.launching.graph import station_processes
    from rlinf_core.launching.supervisor import Supervisor
    from rlinf_core.policies.files import save_policy
    from rlinf_core.policies.tanh_gaussian.policy import Actor
    from rlinf_core.recipes import load_recipe, station_task
    from sim_bridges.simulator import make

    recipe = load_recipe("demo", [f"station.domain_id={DOMAIN}"])
    spec = station_task(recipe).spec
    policy = save_policy(Actor(spec), folder / "policy_lockstep.safetensors")
    run_dir = folder / "lockstep"
    run_dir.mkdir()
    node = rclpy.create_node("benchmark", namespace=f"/{recipe.station.name}")
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(node)
    events, status = [], [PolicyStatus(version=-1)]
    node.create_subscription(EpisodeEvent, "episode", lambda m: events.append((time.monotonic(), m)), profile("episode"))
    node.create_subscription(PolicyStatus, "policy/status", lambda m: status.__setitem__(0, m), profile("policy/status"))
    runner = ActionClient(node, RunEpisodes, "run_episodes")
    with Supervisor(run_dir, DOMAIN) as supervisor:
        for process in station_processes(recipe, run_dir):
            if process.name != "uplink":
                process.parameters.update({"policy_file": str(policy)} if process.name == "policy" else {})
                supervisor.start(process)
        end = time.monotonic() + 60 + 3 * episodes
        while not (runner.server_is_ready() and status[0].version >= 0) and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
        goal = RunEpisodes.Goal(count=episodes + 1, mode="evaluate", first_seed=1)
        sent = runner.send_goal_async(goal)
        while sum(m.kind == EpisodeEvent.CLOSED for _, m in events) < episodes + 1:
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() > end:
                raise SystemExit(f"the lockstep episodes did not end; logs in {run_dir / 'logs'}")
        del sent
    executor.shutdown()
    node.destroy_node()
    closed = [(at, m.steps) for at, m in events if m.kind == EpisodeEvent.CLOSED]
    rate = sum(steps for _, steps in closed[1:]) / (closed[-1][0] - closed[0][0])
    simulator, ticks = make("franka_mujoco"), round(1.0 / spec.control_hz / 0.01)
    simulator.reset(0)
    target, started, steps = simulator.tcp_pose(), time.monotonic(), 500
    for _ in range(steps):
        for _ in range(ticks):
            simulator.advance(target)
        simulator.channels()
    bare = steps / (time.monotonic() - started)
    return {"lockstep_steps_per_s": rate, "bare_simulator_steps_per_s": bare, "lockstep_ratio": rate / bare}


def as_a_driver(children: int = 0) -> None:
    """At the priority of a robot's driver; with SCHED_RESET_ON_FORK, what this thread starts from now on has none."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | children, os.sched_param(25))


def as_everybody() -> None:
    """At no real-time priority, which what this thread starts would have, too."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def percentiles(times: np.ndarray) -> dict[str, float]:
    return {"p50_ms": 1e3 * float(np.percentile(times, 50)), "p99_ms": 1e3 * float(np.percentile(times, 99))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time of each real-time run")
    parser.add_argument("--hz", type=int, nargs="+", default=[20, 100], help="control rates")
    parser.add_argument("--tick", type=float, default=0.01, help="period of the interlock [s]")
    parser.add_argument("--horizon", type=int, default=1, help="actions of a chunk, of which one is played")
    parser.add_argument("--episodes", type=int, default=20, help="lockstep episodes")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--pong", choices=PING_PONGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from rlinf_core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    if options.pong:
        pong(options.pong)
        return
    import rclpy

    as_a_driver()
    rclpy.init()
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rlinf-station-loop-") as folder:
        print(f"{'':8}{'station p50':>13}{'p99':>9}{'inference':>11}{'missed':>8}{'late':>8}{'dropped':>9}"
              f"{'rclpy.spin p50':>16}{'p99':>9}{'missed':>8}{'ratio':>7}{'events p50':>12}{'p99':>9}{'missed':>8}"
              f"{'ratio':>7}")
        for hz in options.hz:  # half of each floor before and half after: the machine's mood changes
            before = {name: ping_pong(hz, options.seconds / 2, name) for name in PING_PONGS}
            ours = real_time(Path(folder), hz, options.seconds, options.tick, options.horizon)
            line = (f"{hz:>4} Hz {ours['p50_ms']:10.2f} ms{ours['p99_ms']:6.2f} ms{ours['inference_p50_ms']:8.2f} ms"
                    f"{ours['missed']:8d}{ours['late']:8d}{ours['dropped']:9d}")
            result |= {f"{key}_{hz}hz": value for key, value in ours.items()}
            for name, key in PING_PONGS.items():
                times = np.concatenate([before[name], ping_pong(hz, options.seconds / 2, name)])
                floor = percentiles(times[np.isfinite(times)]) | {"missed": int(np.sum(np.isinf(times)))}
                ratio = ours["p50_ms"] / floor["p50_ms"]
                line += f"{floor['p50_ms']:{13 if name == 'spin' else 9}.2f} ms{floor['p99_ms']:6.2f} ms"
                line += f"{floor['missed']:8d}{ratio:7.2f}"
                result |= {f"{key}_{part}_{hz}hz": value for part, value in floor.items()}
                result[f"p50_ratio{'' if name == 'spin' else '_events'}_{hz}hz"] = ratio
            print(line, flush=True)
        worst = max(options.hz, key=lambda hz: result[f"p50_ratio_{hz}hz"])
        result |= {key: result[f"{key}_{worst}hz"] for key in ("p50_ratio", "p50_ms", "p99_ms")}
        as_everybody()  # what a lockstep's station is started from
        result |= lockstep(Path(folder), options.episodes)
    print(f"lockstep: {result['lockstep_steps_per_s']:.1f} environment steps/s through the station, "
          f"{result['bare_simulator_steps_per_s']:.1f} of the bare simulator (ratio {result['lockstep_ratio']:.2f})")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
