"""The station of a safety drill: its processes, people, messages and table."""

from __future__ import annotations

import bisect
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.srv import SetParameters
from rclpy.action import ActionClient
from rclpy.client import Client
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import EpisodeEvent, SafetyEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from std_msgs.msg import Header, String
from std_srvs.srv import SetBool

from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.paths import data_folder
from rlinf_core.interlock import Mode, Pose, load_limits
from rlinf_core.launch.graph import RESPAWN, Process, station_processes
from rlinf_core.launch.supervisor import Supervisor
from rlinf_core.recipes import load_recipe, station_robot, station_task
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.topics import topic
from rlinf_ros.arms import arm_topic
from rlinf_ros.conversions import pose_values, to_ns
from rlinf_ros.qos import lossless_profile, publisher, subscription
from rlinf_ros.workarounds import single_threaded
from rlinf_tools.drill_operator import ROGUE, DrillActivity


@dataclass(kw_only=True)
class Row:
    """A requirement and its measurement.

    Attributes:
        requirement: safety requirement, S1 to S27; empty if the row measures a trap alone.
        trap: number of the known trap (docs/reference/safety_evidence.md); 0 for none.
        name: of the scenario or the check.
        bound: the expected result, as a text.
        measured: the result, as a text.
        held: whether the result is within the bound.
    """

    requirement: str
    trap: int = 0
    name: str
    bound: str
    measured: str
    held: bool


ROUTES = {
    name: topic(name).type for name in ("policy/action", "current_pose", "wrench", "distance")
}
CAMERA = "camera/front/image"
NODES = ("sim_bridge", "interlock", "environment", "policy", "recorder")


Self = TypeVar("Self", bound="DrilledStation")


class DrilledStation:
    """One simulated station, the people around it, and its messages (of its first arm)."""

    arm = ""
    task_name = "peg_insertion"
    routes = ROUTES

    def __init__(self, run_dir: Path, domain_id: int) -> None:
        self.run_dir = run_dir
        recipe = load_recipe(
            "demo",
            [
                f"station.robot={self._robot()}",
                f"station.task={self.task_name}",
                "station.lockstep=false",
                f"station.domain_id={domain_id}",
                "station.observe_cameras=[front]",
                "station.image_size=[32, 32]",
            ],
        )
        self.robot, self.task = station_robot(recipe), station_task(recipe)
        self.limits = load_limits(self.robot.limits_by_arm[self.arm])
        self.supervisor = Supervisor(run_dir, domain_id)
        self.recipe = recipe
        self.node = rclpy.create_node("drill", namespace=f"/{recipe.station.name}")
        self.executor = single_threaded()
        self.executor.add_node(self.node)
        self.states: list[tuple[float, SafetyState]] = []
        self.targets: list[tuple[float, int, Pose]] = []
        self.reseeds: list[int] = []
        # start and end of each kill or stop of the interlock
        self.deaths: list[tuple[int, int]] = []
        self.stalls: list[tuple[int, int]] = []  # start and end of each stall of the whole machine
        self.events = 0
        self.rows: list[Row] = []  # the drill's table
        # start [s, epoch] and name of each scenario
        self.scenario_starts: list[tuple[float, str]] = []
        self.longest_silence_ms = math.nan
        self.pose: tuple[float, ...] = ()
        self.moved_at = 0.0
        self.injected: dict[str, float] = {}
        self.reaction: dict[str, str] = {}
        self.doing = DrillActivity()
        self.goal: Any = None  # the goal sent to the environment
        self.episode_id = ""
        self._interfaces()

    def _robot(self) -> Path:
        """Write the simulated arm with the real one's limits; return its folder."""
        folder = self.run_dir / "robot"
        folder.mkdir(parents=True)
        limits = load_plain((data_folder() / "robots/franka_fr3/limits.yaml").read_text())
        limits["joint_names"] = [f"panda_joint{number}" for number in range(1, 8)]
        (folder / "limits.yaml").write_text(yaml.safe_dump(limits))
        (folder / "robot.yaml").write_text(
            yaml.safe_dump(
                {
                    "driver": "simulator",
                    "simulator": "franka_mujoco",
                    "limits": "limits.yaml",
                    "estops": ["pendant"],
                    "distance": True,
                    "cameras": {"front": [32, 32]},
                }
            )
        )
        return folder

    def _interfaces(self) -> None:
        node = self.node
        self.episodes = publisher(node, "episode")
        self.people = node.create_publisher(String, "drill/do", 10)
        self.inject = node.create_publisher(String, "inject", 10)
        for name, take in (
            ("safety", self._on_safety),
            ("safety/events", self._on_event),
            ("target_pose", self._on_target),
        ):
            subscription(node, arm_topic(self.arm, name), take, quality=lossless_profile(name))
        subscription(node, arm_topic(self.arm, "current_pose"), self._on_pose)
        subscription(node, "episode", self._on_episode)
        node.create_subscription(Header, "injected", self._on_injected, 50)
        node.create_subscription(Header, "drill/stalls", self._on_stall, 50)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.arming, self.resetting = self._clients(self.arm)
        self.setting = node.create_client(
            SetParameters, arm_topic(self.arm, "interlock/set_parameters")
        )
        self.runner = ActionClient(node, RunEpisodes, "run_episodes")

    def _clients(self, arm: str) -> tuple[Client, Client]:
        """Return the clients for arming and resetting."""
        return (
            self.node.create_client(SetBool, arm_topic(arm, "interlock/arm")),
            self.node.create_client(ResetFault, arm_topic(arm, "interlock/reset_fault")),
        )

    def _through(self, process: Process) -> tuple[tuple[str, str], ...]:
        """Return a process's remappings of the topics that pass the fault injector."""
        if process.executable == "interlock":
            return tuple((topic, f"drill/{topic}") for topic in self.routes)
        return ((CAMERA, f"drill/{CAMERA}"),) if process.executable == "environment" else ()

    def _processes(self) -> list[Process]:
        routes = [f"{topic}:drill/{topic}:{kind}" for topic, kind in self.routes.items()]
        routes.append(f"{CAMERA}:drill/{CAMERA}:sensor_msgs/msg/Image")
        policy = self.run_dir / "policy.safetensors"
        making = multiprocessing.get_context("spawn").Process(
            target=make_policy, args=(self.task.spec, policy)
        )
        # in its own process: with torch loaded, starting other processes would take too long
        making.start()
        making.join()
        namespace = f"/{self.recipe.station.name}"
        processes = [
            Process(
                "fault_injector",
                "rlinf_tools",
                "fault_injector",
                "rlinf_tools.fault_injector",
                namespace,
                {"routes": routes},
            ),
            Process(
                "people",
                "rlinf_tools",
                "drill_operator",
                "rlinf_tools.drill_operator",
                namespace,
                {"arms": list(self.robot.arms) or [""]},
            ),
        ]
        extra: dict[str, dict[str, Any]] = dict.fromkeys(
            ("policy", "environment"), {"policy_file": str(policy)}
        )
        extra["sim_bridge"] = {"priority": 25}  # priority of a robot's own controller
        for process in station_processes(self.recipe, self.run_dir):
            if process.executable in NODES:
                processes.append(
                    replace(
                        process,
                        restart=RESPAWN,
                        remappings=self._through(process),
                        parameters=process.parameters | extra.get(process.name, {}),
                    )
                )
        return processes

    # Incoming messages; times are their stamps, so that a delay here does not count
    def _on_safety(self, m: SafetyState) -> None:
        self.states.append((to_ns(m.header.stamp) / 1e9, m))

    def _on_event(self, event: SafetyEvent) -> None:
        self.events += 1
        if event.kind == "reseeded":
            self.reseeds.append(to_ns(event.header.stamp))

    def _on_target(self, m: PoseStamped) -> None:
        if m.header.frame_id == ROGUE:
            return
        target = pose_values(m.pose)
        if self.targets and math.dist(target, self.targets[-1][2]) > 1e-7:
            self.moved_at = time.time()
        self.targets.append((time.time(), to_ns(m.header.stamp), target))

    def _on_pose(self, m: PoseStamped) -> None:
        self.pose = pose_values(m.pose)

    def _on_stall(self, header: Header) -> None:
        end = to_ns(header.stamp)
        self.stalls.append((end - round(float(header.frame_id) * 1e9), end))

    def _on_episode(self, event: EpisodeEvent) -> None:
        if event.kind == EpisodeEvent.STARTED:
            self.episode_id = event.episode_id

    def _on_injected(self, header: Header) -> None:
        self.injected[header.frame_id] = to_ns(header.stamp) / 1e9

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.endswith("/interlock"):
                self.reaction = {value.key: value.value for value in status.values}

    # Acts of the people around the arm
    def do(self, **changes: Any) -> float:
        """Make the people act; return the time of their first act."""
        self.doing = replace(self.doing, **changes, number=self.doing.number + 1)
        key = f"do:{self.doing.number}"
        for _ in range(60):  # discovery of a new process may take long on a busy machine
            self.people.publish(String(data=json.dumps(asdict(self.doing))))
            if self.spin(lambda: key in self.injected, 0.5):
                return self.injected.pop(key)
        raise SystemExit(f"the drill's people do not answer; logs in {self.run_dir / 'logs'}")

    # Waiting and requests
    def spin(self, until: Callable[[], Any], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                return False
            self.executor.spin_once(timeout_sec=0.02)
            self.supervisor.poll()
        return True

    def spin_for(self, seconds: float) -> None:
        self.spin(lambda: False, seconds)

    def ask(self, client: Any, request: Any) -> Any:
        if not self.spin(client.service_is_ready, 20.0):
            raise SystemExit(f"{client.srv_name} is not available; logs in {self.run_dir / 'logs'}")
        future = client.call_async(request)
        self.spin(future.done, 5.0)
        return future.result()

    def state(self) -> SafetyState:
        return self.states[-1][1] if self.states else SafetyState()

    def first_state(self, expect: str, start_s: float, seconds: float) -> float:
        """Return the time of the expected state's first message since ``start_s`` [s, epoch].

        It is infinity if none comes within ``seconds``.
        """
        looked_at = next(
            (
                index
                for index in range(len(self.states) - 1, -1, -1)
                if self.states[index][0] < start_s
            ),
            0,
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for at, safety in self.states[looked_at:]:
                if at >= start_s and reached(safety, expect):
                    return at
            looked_at = len(self.states)
            self.spin(lambda: len(self.states) > looked_at, end - time.monotonic())  # noqa: B023
        return math.inf

    def add(self, row: Row) -> None:
        self.rows.append(row)
        label = row.requirement + (f" trap {row.trap}" if row.trap else "")
        verdict = "held" if row.held else "NOT HELD"
        print(
            f"{verdict:<9}{label.strip():<13}{row.name}\n"
            f"{'':22}bound: {row.bound}\n"
            f"{'':22}measured: {row.measured}",
            flush=True,
        )

    def none_due(self, before_ns: int, at_ns: int) -> bool:
        """Return whether targets may be missing in between.

        They may if the interlock had died, or if it was disarmed and the arm may be lost.
        """
        last = bisect.bisect_right(self.states, at_ns / 1e9, key=lambda sample: sample[0]) - 1
        stopped = last >= 0 and self.states[last][1].state in (
            SafetyState.DISARMED,
            SafetyState.FAULT,
        )
        return stopped or any(
            start - 50_000_000 <= at_ns and before_ns <= end + 200_000_000
            for start, end in self.deaths
        )

    def ready(self, real: bool = False) -> None:
        """Make the station healthy, armed and moving, by the drill's stream or the real policy."""
        for _ in range(3):
            trouble = self._make_ready(real)
            if not trouble:
                self.spin_for(0.3)
                return
        raise SystemExit(
            f"the arm does not move: {Mode(self.state().state).name} {trouble}; "
            f"logs in {self.run_dir / 'logs'}"
        )

    def _make_ready(self, real: bool) -> str:
        """Return the reason why the arm does not move, or an empty string."""
        self.do(
            **{
                field.name: field.default
                for field in fields(DrillActivity)
                if field.name != "number"
            }
        )
        for route in (*self.routes, CAMERA):
            self.inject.publish(String(data=yaml.safe_dump({"route": route, "kind": "none"})))
        self._end_episodes()
        self.spin_for(0.4)
        answer, patience = None, time.monotonic() + 60.0
        while time.monotonic() < patience:
            if (answer := self._arm()) and answer.success:
                break
            self.spin_for(0.2)
        for _ in range(10 if real else 0):  # a server that has just died may still look ready
            self.spin(self.runner.server_is_ready, 20.0)
            self.goal = self.runner.send_goal_async(RunEpisodes.Goal(count=20, mode="evaluate"))
            if self.spin(self.goal.done, 3.0) and self.goal.result().accepted:
                break
            self.spin_for(1.0)
        self.do(streaming=not real)
        moving = self.spin(
            lambda: self.state().state == SafetyState.ACTIVE and time.time() - self.moved_at < 0.05,
            15.0,
        )
        return (
            ""
            if moving
            else f"{self.state().cause} ({answer.message if answer else 'no answer to arming'})"
        )

    def _arm(self) -> Any:
        """Arm from any state; return the answer to the arming, or None."""
        if self.state().state == SafetyState.FAULT:
            self.ask(self.resetting, ResetFault.Request(cause=self.state().cause))
        if self.state().state != SafetyState.DISARMED:
            self.ask(self.arming, SetBool.Request(data=False))
            self.spin(lambda: self.state().state in (SafetyState.DISARMED, SafetyState.FAULT), 0.5)
        answer = self.ask(self.arming, SetBool.Request(data=True))
        if (
            answer
            and answer.success
            and not self.spin(lambda: self.state().state == SafetyState.ARMED, 0.5)
        ):
            return None
        return answer

    def _end_episodes(self) -> None:
        """Silence the real policy.

        Cancel its environment's goal, and abort its episodes until none begins.
        """
        handle = self.goal.result() if self.goal and self.goal.done() else None
        if handle is not None and handle.accepted:
            ended = handle.get_result_async()
            handle.cancel_goal_async()
            for _ in range(8):  # a killed environment does not report its end
                self.spin_for(0.2)
                self.episodes.publish(
                    EpisodeEvent(
                        kind=EpisodeEvent.ABORTED,
                        episode_id=self.episode_id,
                        detail="the drill's scenario is over",
                    )
                )
                if self.spin(ended.done, 0.5):
                    break
        self.goal = None

    def __enter__(self: Self) -> Self:
        for process in self._processes():
            self.supervisor.start(process)
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.stop()


def reached(safety: SafetyState, expect: str) -> bool:
    """Return whether an interlock's state is the expected one, e.g. 'HOLD contact'."""
    state, _, cause = expect.partition(" ")
    if state == "STOP":  # whichever of the two comes first
        return safety.state in (SafetyState.HOLD, SafetyState.FAULT) and bool(safety.cause)
    return Mode(safety.state).name == state and cause in (
        "",
        safety.source if state == "ACTIVE" else safety.cause,
    )


def make_policy(spec: StationSpec, path: Path) -> None:
    """Save a network that always moves up, slowly."""
    import torch

    from rlinf_core.policies.serialization import save_policy
    from rlinf_core.policies.small import tanh_gaussian
    from rlinf_core.policies.small.tanh_gaussian.policy import Actor

    actor = Actor(spec, tanh_gaussian.Config(hidden=(8,), image_features=0))
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias.zero_()
        actor.head.bias[2 : spec.action.dim : 3] = 0.15  # the same dimension of each arm
    save_policy(actor, path)
