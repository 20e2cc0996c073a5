"""Measure the commands to a moving arm when its policy is swapped, or dies and restarts.

    python benchmarks/swap.py --json results.json

A whole simulated station runs in real time, with a real FR3's limits of speed, acceleration and jerk.
Version 1 of the policy moves around a circle at 8 cm/s, version 2 in the other direction: an
immediate swap would ask for a change of 16 cm/s. Chunks have 8 actions at 10 Hz, of which 4 are
played, in the policy node (``local``), or from a server with each way to handle chunks. In one
episode version 2 arrives in mid-chunk. In the next one, which version 2 plays, SIGKILL ends a process
in mid-chunk: the server, or the policy node. The columns are:

* "old went on": time steps that the old version played on
* "others": actions of any other version
* "asked step": largest step between two consecutive requested velocities
* "told step", "allowed": largest change of the commanded velocity from tick to tick, and the limit
* "goes on": motion after the kill, by the rest of the chunk and by braking
* "stands": time at rest until the arm moves again

A scene's reset, which moves a simulated arm elsewhere, is no step; nor is a late tick, after which
the interlock begins at rest (S24). The benchmark does not cover a real arm, nor a real network.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from benchmarks import figures  # noqa: E402

DOMAIN, HZ, TICK_S = 91, 10.0, 0.01
CENTRE = np.array([0.5, 0.0, 0.25])  # [m]
RADIUS = 0.08  # [m]
SPEED = 0.08  # [m/s]
SCALE = 0.02  # displacement of an action of 1 [m]
HORIZON, EXECUTE = 8, 4
AT = 18  # the time step in mid-chunk
STEPS = 160  # time steps of an episode
MODES = ("local", "synchronous", "receding_horizon", "temporal_ensembling", "real_time")
NS, TRIES = 10**9, 5
STILL = 1e-6  # speed of an arm at rest [m/s]


def circle_chunks(places: np.ndarray, sign: int) -> np.ndarray:
    """Return chunks (N, 8, 3) of normalised actions around the circle from places (N, 3).

    Args:
        sign: 1 or -1, the direction.
    """
    places, chunks = places.copy(), []
    for _ in range(HORIZON):
        out = places - CENTRE
        far = np.maximum(np.linalg.norm(out[:, :2], axis=1, keepdims=True), 0.02)
        along = sign * np.stack([-out[:, 1], out[:, 0]], axis=1) / far
        velocity = np.concatenate(
            [SPEED * along + 0.5 * (RADIUS - far) * out[:, :2] / far, -0.5 * out[:, 2:]], axis=1
        )
        chunks.append(velocity / HZ / SCALE)
        places += velocity / HZ
    return np.clip(np.stack(chunks, axis=1), -0.9, 0.9)


def train_policy(spec: Any, sign: int, steps: int = 800) -> Any:
    """Train a small policy by regression to move around the circle."""
    import torch

    from rlinf_core.policies import make_policy
    from rlinf_core.policies.small import tanh_gaussian

    torch.manual_seed(0)
    policy = make_policy(
        spec, tanh_gaussian.Config(hidden=(64, 64), horizon=HORIZON, n_action_steps=EXECUTE)
    )
    random, names = np.random.default_rng(0), [vector.name for vector in spec.vectors]
    begins = sum(vector.size for vector in spec.vectors[: names.index("tcp_position")])
    tool, (mean, std) = slice(begins, begins + 3), np.zeros((2, spec.vector_size))
    std += 1e3  # the policy uses the tool's position alone
    mean[tool], std[tool] = CENTRE, 0.1
    policy.encoder.fit_normalisation(
        (mean + std * random.normal(size=(4000, spec.vector_size))).astype(np.float32)
    )
    optimiser = torch.optim.Adam(policy.parameters(), 4e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        places = CENTRE + random.uniform([-0.16, -0.16, -0.12], [0.16, 0.16, 0.1], (128, 3))
        vectors = np.zeros((128, spec.vector_size), np.float32)
        vectors[:, tool] = places
        targets = torch.as_tensor(circle_chunks(places, sign).reshape(128, -1), dtype=torch.float32)
        loss = (
            (torch.tanh(policy({"vectors": torch.as_tensor(vectors)})[0]) - targets).square().mean()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        scheduler.step()
    if loss.item() > 2e-3:
        raise SystemExit(f"expected a loss of at most 0.002 of the policy, got {loss.item():.4f}")
    return policy.eval()


def write_recipe(folder: Path, steps: int) -> list[str]:
    """Write robot and task; return the recipe's overrides.

    The robot has a real FR3's limits of motion. The task cannot succeed before its end.
    """
    from rlinf_core.config.overrides import quote_value

    robot, circle = folder / "robot", folder / "circle.yaml"
    robot.mkdir(parents=True)
    limits = yaml.safe_load(
        (ROOT / "sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml").read_text()
    )
    real = yaml.safe_load((ROOT / "robots/franka_fr3/limits.yaml").read_text())
    limits |= {key: real[key] for key in ("speed", "acceleration", "jerk")}
    (robot / "limits.yaml").write_text(yaml.safe_dump(limits))
    (robot / "robot.yaml").write_text(
        yaml.safe_dump(
            {"driver": "simulator", "simulator": "franka_mujoco", "limits": "limits.yaml"}
        )
    )
    task = yaml.safe_load((ROOT / "configs/tasks/reach.yaml").read_text())
    task |= {"max_steps": steps, "reward": {"kind": "reach", "height": 0.5, "radius": 0.01}}
    circle.write_text(yaml.safe_dump(task))
    return [
        f"station.robot={quote_value(robot)}",
        f"station.task={quote_value(circle)}",
        "station.operator.kind=scripted",
    ]


@dataclass
class SwapResult:
    """The requests and commands during a swap or a kill.

    Attributes:
        versions: the policy versions of the applied actions.
        step: the largest change of the commanded velocity from tick to tick [m/s].
        requested_step: the largest change of the requested velocity between actions [m/s].
    """

    versions: list[int]
    step: float
    requested_step: float

    def other_versions(self, version: int) -> float:
        """Return the number of actions of other versions; infinity without any action."""
        return (
            float(len(self.versions) - self.versions.count(version)) if self.versions else math.inf
        )


class Station:
    """A station under a supervisor, and the messages received from it.

    Args:
        folder: the run's folder.
        mode: one of ``MODES``.
        domain: the ROS_DOMAIN_ID.
        steps: time steps of an episode.
        supervisor: the class that supervises the processes.
    """

    def __init__(self, folder: Path, mode: str, domain: int, steps: int, supervisor: Any) -> None:
        import rclpy
        from bridge_peers import free_port
        from geometry_msgs.msg import PoseStamped
        from rclpy.action import ActionClient
        from rlinf_msgs.action import RunEpisodes
        from rlinf_msgs.msg import (
            Applied,
            PolicyStatus,
            PolicyUpdate,
            SafetyEvent,
            SafetyState,
            TimeStep,
        )

        from rlinf_core.interlock import load_limits
        from rlinf_core.policies.policy_folder import policy_name
        from rlinf_core.policies.serialization import save_policy
        from rlinf_core.recipes import load_recipe, station_robot, station_task
        from rlinf_ros.qos import lossless_profile, profile

        self.folder, self.mode, self.port = folder, mode, free_port()
        remote_settings = (
            []
            if mode == "local"
            else [
                "station.policy.backend=remote",
                f"station.policy.address='ws://127.0.0.1:{self.port}'",
                f"station.policy.chunking={mode}",
            ]
        )
        self.recipe = load_recipe(
            "demo",
            [
                *write_recipe(folder, steps),
                *remote_settings,
                "station.lockstep=false",
                f"station.domain_id={domain}",
            ],
        )
        self.limits = load_limits(station_robot(self.recipe).limits_by_arm[""])
        self.policies = folder / "policies"
        spec = station_task(self.recipe).spec
        self.files = [
            save_policy(train_policy(spec, sign), folder / policy_name(version))
            for version, sign in ((1, 1), (2, -1))
        ]
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node(
            "swap", namespace=f"/{self.recipe.station.name}", context=self.context
        )
        self.executor = rclpy.executors.SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.messages: dict[str, list[Any]] = {}
        for topic, kind in {
            "target_pose": PoseStamped,
            "applied": Applied,
            "timestep": TimeStep,
            "safety": SafetyState,
            "safety/events": SafetyEvent,
            "policy/status": PolicyStatus,
        }.items():
            self.messages[topic] = []
            self.node.create_subscription(
                kind, topic, self.messages[topic].append, lossless_profile(topic)
            )
        self.updates = self.node.create_publisher(
            PolicyUpdate, "policy/update", profile("policy/update")
        )
        self.runner = ActionClient(self.node, RunEpisodes, "run_episodes")
        self.supervisor = supervisor(folder, domain)

    def __enter__(self) -> Station:
        from rlinf_core.launch.graph import Process, station_processes

        self.publish_policy(1)
        if self.mode != "local":
            command = [
                sys.executable,
                "-m",
                "rlinf_core.cli.main",
                "serve",
                str(self.policies),
                "--port",
                str(self.port),
                "--device",
                "cpu",
            ]
            self.supervisor.start(Process("server", "", "", "", "", {"command": command}))
        for process in station_processes(self.recipe, self.folder):
            if process.name != "uplink":
                self.supervisor.start(process)
        self.wait(lambda: self.version() == 1 and self.runner.server_is_ready(), 120, "the station")
        return self

    def __exit__(self, *_: object) -> None:
        import rclpy

        self.supervisor.stop()
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)

    def version(self) -> int:
        statuses = self.messages["policy/status"]
        return statuses[-1].version if statuses and not statuses[-1].error else -1

    def publish_policy(self, version: int) -> None:
        """Send a version to the policy node, or write it to the server's folder."""
        from rlinf_msgs.msg import PolicyUpdate

        file = self.files[version - 1]
        if self.mode == "local":
            self.updates.publish(PolicyUpdate(version=version, path=str(file)))
            return
        self.policies.mkdir(exist_ok=True)
        (self.folder / "new").write_bytes(file.read_bytes())
        (self.folder / "new").rename(self.policies / file.name)

    def wait(self, motion_ns: Callable[[], Any], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not motion_ns():
            self.executor.spin_once(timeout_sec=0.02)
            self.supervisor.poll()
            if time.monotonic() > end:
                raise SystemExit(
                    f"{self.mode}: waited {seconds:.0f} s for {what}; logs in "
                    f"{self.folder / 'logs'}"
                )

    def play_episode(self, action: Callable[[], None], seed: int) -> dict[str, Any]:
        """Play an episode, call ``do`` in mid-chunk, and return the messages of the episode."""
        from rlinf_msgs.action import RunEpisodes

        before = {
            topic: len(messages)
            for topic, messages in self.messages.items()
            if topic != "policy/status"
        }
        first_step = before["timestep"]

        def is_due() -> bool:
            steps = self.messages["timestep"][first_step:]
            return (
                bool(steps)
                and AT <= steps[-1].step_index <= AT + 3 * EXECUTE
                and self.speed() > 0.5 * SPEED
            )

        for _ in range(TRIES):  # on a busy machine the interlock may hold the arm at that moment
            sent = self.runner.send_goal_async(
                RunEpisodes.Goal(count=1, mode="evaluate", first_seed=seed)
            )
            self.wait(sent.done, 30, "the goal")
            answer = sent.result().get_result_async()
            self.wait(lambda: is_due() or answer.done(), 120, f"time step {AT} in motion")  # noqa: B023
            if not answer.done():
                break
        else:
            raise SystemExit(
                f"{self.mode}: expected a moving arm at time step {AT}, but the interlock held it "
                f"in {TRIES} episodes; logs in {self.folder / 'logs'}"
            )
        at = _ns(self.messages["target_pose"][-1])
        speed = self.speed()
        step = self.messages["timestep"][-1].step_index
        action()
        self.wait(answer.done, 180, "the episode")
        result = answer.result().result
        if not result.success:
            raise SystemExit(f"{self.mode}: {result.message}")
        messages_by_topic = {
            topic: self.messages[topic][number:] for topic, number in before.items()
        }
        return messages_by_topic | {
            "at": at,
            "speed": speed,
            "step": step,
            "id": result.episode_ids[0],
        }

    def speed(self) -> float:
        """Return the last commanded speed [m/s]."""
        targets = self.messages["target_pose"][-2:]
        return math.dist(*map(_place, targets)) / TICK_S if len(targets) == 2 else 0.0

    def commands_since(self, messages_by_topic: dict[str, Any], since_ns: int) -> SwapResult:
        """Return the commands of an episode, and its requests since a time."""
        velocity, step = None, 0.0
        for a, b, placed in self._pairs(messages_by_topic):
            if placed:
                velocity = np.zeros(3)
                continue
            now = (np.array(_place(b)) - _place(a)) / TICK_S
            changed = 0.0 if velocity is None else float(np.linalg.norm(now - velocity))
            if _ns(b) - _ns(a) > 1.5 * TICK_S * NS:
                changed = min(changed, float(np.linalg.norm(now)))
            step, velocity = max(step, changed), now
        applied = [
            message
            for message in messages_by_topic["applied"]
            if message.source == "policy" and _ns(message) >= since_ns
        ]
        rows = [
            (message.session, _ns(message), np.array(message.requested[:3]) * HZ)
            for message in applied
        ]
        requested_step = max(
            (
                float(np.linalg.norm(b[2] - a[2]))
                for a, b in zip(rows, rows[1:], strict=False)
                if a[0] == b[0] and 0 < b[1] - a[1] < 1.5 * NS / HZ
            ),
            default=0.0,
        )
        return SwapResult([message.policy_version for message in applied], step, requested_step)

    def _pairs(self, messages_by_topic: dict[str, Any]) -> list[tuple[Any, Any, bool]]:
        """Return consecutive targets, and whether the arm was moved elsewhere between the two."""
        placed = [
            _ns(event) for event in messages_by_topic["safety/events"] if event.kind == "reseeded"
        ]
        return [
            (a, b, any(_ns(a) < stamp <= _ns(b) for stamp in placed))
            for a, b in zip(
                messages_by_topic["target_pose"], messages_by_topic["target_pose"][1:], strict=False
            )
        ]

    def swap_policy(self, seed: int) -> dict[str, float]:
        """Publish version 2 in mid-chunk."""
        messages_by_topic = self.play_episode(lambda: self.publish_policy(2), seed)
        if (
            self.mode != "local"
            and "version 2 is served now" not in (self.folder / "logs/server.log").read_text()
        ):
            raise SystemExit(
                f"{self.mode}: expected the server to load version 2 before the episode's end"
            )
        last = max(
            step.step_index
            for step in messages_by_topic["timestep"]
            if step.episode_id == messages_by_topic["id"]
        )
        commands = self.commands_since(messages_by_topic, messages_by_topic["at"])
        return {
            "speed": messages_by_topic["speed"],
            "at": float(messages_by_topic["step"]),
            "old_went_on": float(last - messages_by_topic["step"]),
            "others": commands.other_versions(1),
            "step": commands.step,
            "asked": commands.requested_step,
        }

    def kill_process(self, name: str, seed: int) -> dict[str, float]:
        """Kill a process in mid-chunk, in an episode of version 2 (after ``swap_policy``)."""
        messages_by_topic = self.play_episode(
            lambda: os.kill(self.supervisor.children[name].popen.pid, signal.SIGKILL), seed
        )
        commands = self.commands_since(messages_by_topic, messages_by_topic["at"])
        return {
            "speed": messages_by_topic["speed"],
            "others": commands.other_versions(2),
            "step": commands.step,
            "asked": commands.requested_step,
            **self._time_at_rest(messages_by_topic),
        }

    def _time_at_rest(self, messages_by_topic: dict[str, Any]) -> dict[str, float]:
        """Return how long the arm went on and then stood; empty for less than half a second."""
        pairs = [
            pair
            for pair in self._pairs(messages_by_topic)
            if _ns(pair[0]) >= messages_by_topic["at"]
        ]
        still = [
            placed or math.dist(_place(a), _place(b)) / TICK_S < STILL for a, b, placed in pairs
        ]
        first_step = next(
            (index for index in range(len(still)) if all(still[index : index + 50])), None
        )
        rest_end = next(
            (index for index in range(first_step or 0, len(still)) if not still[index]), None
        )
        if first_step is None or rest_end is None:
            return {}
        rest_ns, motion_ns = _ns(pairs[first_step][0]), _ns(pairs[rest_end][0])
        return {
            "went_on_s": (rest_ns - messages_by_topic["at"]) / NS,
            "stood_s": (motion_ns - rest_ns) / NS,
        }


def _ns(message: Any) -> int:
    return message.header.stamp.sec * NS + message.header.stamp.nanosec


def _place(message: Any) -> tuple[float, float, float]:
    p = message.pose.position
    return p.x, p.y, p.z


def measure(
    folder: Path, mode: str, domain: int, steps: int = STEPS, supervisor: Any = None
) -> dict[str, dict[str, float]]:
    """Measure a swap, and the death of each process of the policy."""
    from rlinf_core.launch.supervisor import Supervisor

    with Station(folder, mode, domain, steps, supervisor or Supervisor) as station:
        allowed = {"allowed": station.limits.acceleration * TICK_S}
        rows = {"swap": station.swap_policy(1)}
        for number, name in enumerate(
            ("policy",) if mode == "local" else ("server", "policy"), start=2
        ):
            rows[f"{name} killed"] = station.kill_process(name, number)
        return {name: row | allowed for name, row in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    flat: dict[str, float] = {}
    print(
        f"{'':21}{'':15}{'old went on':>12}{'others':>8}{'asked step':>13}{'told step':>13}{'allowed':>11}"
        f"{'goes on':>9}{'stands':>8}",
        flush=True,
    )
    with figures.folder("rlinf-swap-") as folder:
        for mode in options.modes:
            for name, row in measure(folder / mode, mode, DOMAIN).items():
                durations = {
                    key: f"{value:.2f} s"
                    for key, value in row.items()
                    if key in ("went_on_s", "stood_s")
                }
                print(
                    f"{mode:21}{name:15}{row.get('old_went_on', math.nan):12.0f}{row['others']:8.0f}"
                    f"{row['asked']:9.4f} m/s"
                    f"{row['step']:9.4f} m/s{row['allowed']:7.4f} "
                    f"m/s{durations.get('went_on_s', ''):>9}"
                    f"{durations.get('stood_s', ''):>8}",
                    flush=True,
                )
                flat |= {
                    f"{mode}_{name.replace(' ', '_')}_{key}": value for key, value in row.items()
                }
    flat["largest_step_ratio"] = max(
        value / flat[key.replace("_step", "_allowed")]
        for key, value in flat.items()
        if key.endswith("_step")
    )
    flat["other_versions"] = sum(value for key, value in flat.items() if key.endswith("_others"))
    print(
        f"largest step of the commanded velocity: {flat['largest_step_ratio']:.3f} of what the "
        f"acceleration allows"
    )
    if options.json:
        figures.write(options.json, flat)


if __name__ == "__main__":
    main()
