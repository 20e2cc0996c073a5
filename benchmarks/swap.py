"""A policy that is swapped, or dies and comes back, while the arm moves: what is asked of the arm,
and what it is told.

    python benchmarks/swap.py --json results.json

A whole simulated station in real time, the arm under a real FR3's speed, acceleration and jerk.
Version 1 of the policy goes around a circle at 8 cm/s, version 2 around the same circle the other
way: wherever it is, a swap at once would ask for 16 cm/s. Chunks of 8 actions at 10 Hz, of which 4
are played; in the policy node (``local``), and of a server by each way of handling them. In one
episode version 2 comes in mid-chunk; in the next, which plays it, a process is killed in mid-chunk
(SIGKILL): the server, or the policy node. Columns: time steps that the old version played on, and
whether any other played; the largest step between two actions asked for in a row since; the largest
change of the commanded velocity from tick to tick, beside what the acceleration allows in one; how
long the arm went on after the kill, by the rest of its chunk and braking; and how long it stood
until it moved again. A scene's reset, which puts a simulated arm elsewhere, and a tick that was
late, from which the interlock begins at rest (S24), are no steps. It does not cover a real arm, nor
a real network.
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
# [m], [m], [m/s], [m] of an action of 1
CENTRE = np.array([0.5, 0.0, 0.25])
RADIUS = 0.08
SPEED = 0.08
SCALE = 0.02
HORIZON, EXECUTE, AT, STEPS = 8, 4, 18, 160  # time step in mid-chunk, and of an episode
MODES = ("local", "synchronous", "receding_horizon", "temporal_ensembling", "real_time")
NS, STILL, TRIES = 10**9, 1e-6, 5  # [m/s]


def around(places: np.ndarray, sign: int) -> np.ndarray:
    """Chunks (N, 8, 3) of normalised actions from places (N, 3) on, around the circle one way (1)
    or the other (-1).
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


def taught(spec: Any, sign: int, steps: int = 800) -> Any:
    """A small policy that goes around so, by regression: seconds."""
    import torch

    from rlinf_core.policies import make_policy
    from rlinf_core.policies.small import tanh_gaussian

    torch.manual_seed(0)
    policy = make_policy(
        spec, tanh_gaussian.Config(hidden=(64, 64), horizon=HORIZON, n_action_steps=EXECUTE)
    )
    random, names = np.random.default_rng(0), [vector.name for vector in spec.vectors]
    begins = sum(vector.size for vector in spec.vectors[: names.index("tcp_position")])
    where, (mean, std) = slice(begins, begins + 3), np.zeros((2, spec.vector_size))
    std += 1e3  # it looks at nothing but where the tool is
    mean[where], std[where] = CENTRE, 0.1
    policy.encoder.fit_normalisation(
        (mean + std * random.normal(size=(4000, spec.vector_size))).astype(np.float32)
    )
    optimiser = torch.optim.Adam(policy.parameters(), 4e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        places = CENTRE + random.uniform([-0.16, -0.16, -0.12], [0.16, 0.16, 0.1], (128, 3))
        vectors = np.zeros((128, spec.vector_size), np.float32)
        vectors[:, where] = places
        wanted = torch.as_tensor(around(places, sign).reshape(128, -1), dtype=torch.float32)
        loss = (
            (torch.tanh(policy({"vectors": torch.as_tensor(vectors)})[0]) - wanted).square().mean()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        scheduler.step()
    if loss.item() > 2e-3:
        raise SystemExit(f"the benchmark's policy was not learned: loss {loss.item():.4f}")
    return policy.eval()


def written(folder: Path, steps: int) -> list[str]:
    """Overrides of a recipe: the simulated arm under a real FR3's motion limits, a task that is not
    done before its end.
    """
    from rlinf_core.config.overrides import quoted

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
        f"station.robot={quoted(robot)}",
        f"station.task={quoted(circle)}",
        "station.operator.kind=scripted",
    ]


@dataclass
class SwapResult:
    """What the arm was told during something, and what was asked for.

    Attributes:
        versions: of the policy, in the actions that were applied.
        step: the largest change of the commanded velocity from tick to tick [m/s].
        asked: the largest change of the asked velocity from one action to the next [m/s].
    """

    versions: list[int]
    step: float
    requested_step: float

    def others(self, version: int) -> float:
        """How many actions were of another version; of all, where there was none."""
        return (
            float(len(self.versions) - self.versions.count(version)) if self.versions else math.inf
        )


class Station:
    """One station under a supervisor, and what was heard of it.

    Args:
        folder: of its run.
        mode: one of ``MODES``.
        domain: ROS_DOMAIN_ID.
        steps: of an episode.
        supervisor: what keeps its processes.
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
        from rlinf_core.policies.serialization import policy_name, save_policy
        from rlinf_core.recipes import load_recipe, station_robot, station_task
        from rlinf_ros.qos import lossless_profile, profile

        self.folder, self.mode, self.port = folder, mode, free_port()
        served = (
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
                *written(folder, steps),
                *served,
                "station.lockstep=false",
                f"station.domain_id={domain}",
            ],
        )
        self.limits = load_limits(station_robot(self.recipe).interlocks[""])
        self.policies = folder / "policies"
        spec = station_task(self.recipe).spec
        self.files = [
            save_policy(taught(spec, sign), folder / policy_name(version))
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

        self.give(1)
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

    def give(self, version: int) -> None:
        """To the policy node, or to the server's folder."""
        from rlinf_msgs.msg import PolicyUpdate

        file = self.files[version - 1]
        if self.mode == "local":
            self.updates.publish(PolicyUpdate(version=version, path=str(file)))
            return
        self.policies.mkdir(exist_ok=True)
        (self.folder / "new").write_bytes(file.read_bytes())
        (self.folder / "new").rename(self.policies / file.name)

    def wait(self, until: Callable[[], Any], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not until():
            self.executor.spin_once(timeout_sec=0.02)
            self.supervisor.poll()
            if time.monotonic() > end:
                raise SystemExit(
                    f"{self.mode}: waited {seconds:.0f} s for {what}; logs in "
                    f"{self.folder / 'logs'}"
                )

    def during(self, do: Callable[[], None], seed: int) -> dict[str, Any]:
        """One episode, with ``do`` in mid-chunk: its time steps, and what was heard from its
        request to its end.
        """
        from rlinf_msgs.action import RunEpisodes

        before = {
            topic: len(messages)
            for topic, messages in self.messages.items()
            if topic != "policy/status"
        }
        begun = before["timestep"]

        def is_due() -> bool:
            steps = self.messages["timestep"][begun:]
            return (
                bool(steps)
                and AT <= steps[-1].step_index <= AT + 3 * EXECUTE
                and self.speed() > 0.5 * SPEED
            )

        for _ in range(TRIES):  # on a busy machine an arm may be held just then
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
                f"{self.mode}: in {TRIES} episodes the arm was held; logs in {self.folder / 'logs'}"
            )
        at = _ns(self.messages["target_pose"][-1])
        speed = self.speed()
        step = self.messages["timestep"][-1].step_index
        do()
        self.wait(answer.done, 180, "the episode")
        result = answer.result().result
        if not result.success:
            raise SystemExit(f"{self.mode}: {result.message}")
        got = {topic: self.messages[topic][number:] for topic, number in before.items()}
        return got | {"at": at, "speed": speed, "step": step, "id": result.episode_ids[0]}

    def speed(self) -> float:
        """As commanded last [m/s]."""
        targets = self.messages["target_pose"][-2:]
        return math.dist(*map(_place, targets)) / TICK_S if len(targets) == 2 else 0.0

    def commands_since(self, got: dict[str, Any], since_ns: int) -> SwapResult:
        """What the arm was told during it, and asked since then."""
        velocity, step = None, 0.0
        for a, b, placed in self._pairs(got):
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
            for message in got["applied"]
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

    def _pairs(self, got: dict[str, Any]) -> list[tuple[Any, Any, bool]]:
        """Targets one after the other, and whether the arm was put elsewhere between the two."""
        placed = [_ns(event) for event in got["safety/events"] if event.kind == "reseeded"]
        return [
            (a, b, any(_ns(a) < stamp <= _ns(b) for stamp in placed))
            for a, b in zip(got["target_pose"], got["target_pose"][1:], strict=False)
        ]

    def swapped(self, seed: int) -> dict[str, float]:
        """Version 2 comes in mid-chunk."""
        got = self.during(lambda: self.give(2), seed)
        if (
            self.mode != "local"
            and "version 2 is served now" not in (self.folder / "logs/server.log").read_text()
        ):
            raise SystemExit(
                f"{self.mode}: the server had not taken version 2 before the episode's end"
            )
        last = max(step.step_index for step in got["timestep"] if step.episode_id == got["id"])
        commands = self.commands_since(got, got["at"])
        return {
            "speed": got["speed"],
            "at": float(got["step"]),
            "old_went_on": float(last - got["step"]),
            "others": commands.others(1),
            "step": commands.step,
            "asked": commands.requested_step,
        }

    def killed(self, name: str, seed: int) -> dict[str, float]:
        """A process dies in mid-chunk; the episode after ``swapped`` is of version 2."""
        got = self.during(
            lambda: os.kill(self.supervisor.children[name].popen.pid, signal.SIGKILL), seed
        )
        commands = self.commands_since(got, got["at"])
        return {
            "speed": got["speed"],
            "others": commands.others(2),
            "step": commands.step,
            "asked": commands.requested_step,
            **self._stood(got),
        }

    def _stood(self, got: dict[str, Any]) -> dict[str, float]:
        """How long the arm went on and then stood, half a second at least; empty where it
        did not.
        """
        pairs = [pair for pair in self._pairs(got) if _ns(pair[0]) >= got["at"]]
        still = [
            placed or math.dist(_place(a), _place(b)) / TICK_S < STILL for a, b, placed in pairs
        ]
        begun = next((index for index in range(len(still)) if all(still[index : index + 50])), None)
        ended = next((index for index in range(begun or 0, len(still)) if not still[index]), None)
        if begun is None or ended is None:
            return {}
        since, until = _ns(pairs[begun][0]), _ns(pairs[ended][0])
        return {"went_on_s": (since - got["at"]) / NS, "stood_s": (until - since) / NS}


def _ns(message: Any) -> int:
    return message.header.stamp.sec * NS + message.header.stamp.nanosec


def _place(message: Any) -> tuple[float, float, float]:
    p = message.pose.position
    return p.x, p.y, p.z


def measured(
    folder: Path, mode: str, domain: int, steps: int = STEPS, supervisor: Any = None
) -> dict[str, dict[str, float]]:
    """By what happened: swap, and the death of each process of the policy."""
    from rlinf_core.launch.supervisor import Supervisor

    with Station(folder, mode, domain, steps, supervisor or Supervisor) as station:
        allowed = {"allowed": station.limits.acceleration * TICK_S}
        rows = {"swap": station.swapped(1)}
        for number, name in enumerate(
            ("policy",) if mode == "local" else ("server", "policy"), start=2
        ):
            rows[f"{name} killed"] = station.killed(name, number)
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
            for name, row in measured(folder / mode, mode, DOMAIN).items():
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
