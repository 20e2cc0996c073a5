"""The safety drill: a simulated station under the limits of a real arm, to which one thing after the other goes wrong.

    rlinf drill [--only WORD] [--json FILE]

Stands at the place of the policy, the operator and the e-stop, puts a fault injector between the topics, kills and stops
processes, and measures what the interlock makes of it. Scenarios: configs/drill.yaml. On a real arm: docs/safety.md.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import Range
from std_msgs.msg import Bool, Header, String
from std_srvs.srv import SetBool

from rlinf.qos import profile
from rlinf.spinning import single_threaded
from rlinf.stamps import to_ns
from rlinf_core.interlock import Chunk, Inputs, Mode, State, load_limits, step
from rlinf_core.interlock.motion import Group
from rlinf_core.interlock.rotation import angle, inverse, product
from rlinf_core.places import shared
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.specs import StationSpec
from rlinf_core.station import RESPAWN, Process, station_processes
from rlinf_core.supervisor import Supervisor, only_station

ROUTES = {"policy/action": "rlinf_msgs/msg/ActionChunk", "current_pose": "geometry_msgs/msg/PoseStamped",
          "wrench": "geometry_msgs/msg/WrenchStamped", "distance": "sensor_msgs/msg/Range"}
CAMERA = "camera/front/image"
DT, SPEED, TURN = 0.05, 0.08, 0.2  # of the drill's own stream: [s], [m/s], [rad/s]
NODES = ("sim_bridge", "interlock", "environment", "policy", "recorder")
REQUIREMENTS, TRAPS = [f"S{n}" for n in range(1, 21)], list(range(1, 13))


@dataclass
class Row:
    """One line of the table."""

    requirement: str
    trap: int
    name: str
    bound: str
    measured: str
    held: bool


class Drill:
    """One station, and everybody around it."""

    def __init__(self, run_dir: Path, domain_id: int) -> None:
        self.run_dir, self.rows = run_dir, []
        recipe = load_recipe("demo", [f"station.robot={self._robot()}", "station.lockstep=false",
                                      f"station.domain_id={domain_id}", "station.observe_cameras=[front]",
                                      "station.image_size=[32, 32]"])
        self.limits, self.task = load_limits(run_dir / "robot/limits.yaml"), station_task(recipe)
        self.supervisor, self.recipe = Supervisor(run_dir, domain_id), recipe
        self.node = rclpy.create_node("drill", namespace=f"/{recipe.station.name}")
        self.executor = single_threaded()
        self.executor.add_node(self.node)
        self.states: list[tuple[float, SafetyState]] = []
        self.targets: list[tuple[float, int, tuple[float, ...]]] = []
        self.reseeds: list[int] = []
        self.deaths: list[int] = []  # of the interlock
        self.events = self.seq = 0
        self.pose, self.moved_at = (), 0.0
        self.injected: dict[str, float] = {}
        self.reaction: dict[str, str] = {}
        self.streaming = self.taking_over = False
        self.goal, self.episode_id = None, ""
        self.turn, self.enabled, self.estop = TURN, True, "released"
        self._interfaces()

    def _robot(self) -> Path:
        """The simulated arm under the real one's limits."""
        folder = self.run_dir / "robot"
        folder.mkdir(parents=True)
        limits = yaml.safe_load((shared() / "robots/franka_fr3/limits.yaml").read_text())
        limits["joint_names"] = [f"panda_joint{number}" for number in range(1, 8)]
        (folder / "limits.yaml").write_text(yaml.safe_dump(limits))
        (folder / "robot.yaml").write_text(yaml.safe_dump({
            "driver": "simulator", "simulator": "franka_mujoco", "limits": "limits.yaml", "estops": ["pendant"],
            "distance": True, "cameras": {"front": [32, 32]}}))
        return folder

    def _interfaces(self) -> None:
        node = self.node
        kinds = {"policy/action": ActionChunk, "teleop/action": ActionChunk, "enable": Bool, "estop/pendant": Bool,
                 "distance": Range, "robot/fault": String, "episode": EpisodeEvent}
        self.say = {topic: node.create_publisher(kind, topic, profile(topic)) for topic, kind in kinds.items()}
        self.inject = node.create_publisher(String, "inject", 10)
        node.create_subscription(SafetyState, "safety", lambda m: self.states.append((time.time(), m)), profile("safety"))
        node.create_subscription(SafetyEvent, "safety/events", self._on_event, profile("safety/events"))
        node.create_subscription(PoseStamped, "target_pose", self._on_target, 1000)  # none may be missed
        node.create_subscription(PoseStamped, "current_pose", self._on_pose, profile("current_pose"))
        node.create_subscription(EpisodeEvent, "episode", self._on_episode, profile("episode"))
        node.create_subscription(Header, "injected", self._on_injected, 10)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.arming, self.resetting = node.create_client(SetBool, "interlock/arm"), node.create_client(
            ResetFault, "interlock/reset_fault")
        self.setting = node.create_client(SetParameters, "interlock/set_parameters")
        self.runner = ActionClient(node, RunEpisodes, "run_episodes")
        node.create_timer(DT, self._stream)
        node.create_timer(0.02, self._keep_alive)

    def _processes(self) -> list[Process]:
        routes = [f"{topic}:drill/{topic}:{kind}" for topic, kind in ROUTES.items()]
        routes.append(f"{CAMERA}:drill/{CAMERA}:sensor_msgs/msg/Image")
        through = {"interlock": tuple((topic, f"drill/{topic}") for topic in ROUTES),
                   "environment": ((CAMERA, f"drill/{CAMERA}"),)}
        policy = self.run_dir / "policy.safetensors"
        making = multiprocessing.get_context("spawn").Process(target=make_policy, args=(self.task.spec, policy))
        making.start()  # in a process of its own: with torch loaded, starting others would take too long
        making.join()
        namespace = f"/{self.recipe.station.name}"
        processes = [Process("fault_injector", "rlinf", "fault_injector", "rlinf.fault_injector", namespace,
                             {"routes": routes})]
        for process in station_processes(self.recipe, self.run_dir):
            if process.name in NODES:
                extra = {"policy_file": str(policy)} if process.name == "policy" else {}
                processes.append(replace(process, restart=RESPAWN, remappings=through.get(process.name, ()),
                                         parameters=process.parameters | extra))
        return processes

    # What comes in
    def _on_event(self, event: SafetyEvent) -> None:
        self.events += 1
        if event.kind == "reseeded":
            self.reseeds.append(to_ns(event.header.stamp))

    def _on_target(self, m: PoseStamped) -> None:
        p, q = m.pose.position, m.pose.orientation
        target = (p.x, p.y, p.z, q.x, q.y, q.z, q.w)
        if self.targets and math.dist(target, self.targets[-1][2]) > 1e-7:
            self.moved_at = time.time()
        self.targets.append((time.time(), to_ns(m.header.stamp), target))

    def _on_pose(self, m: PoseStamped) -> None:
        p, q = m.pose.position, m.pose.orientation
        self.pose = (p.x, p.y, p.z, q.x, q.y, q.z, q.w)

    def _on_episode(self, event: EpisodeEvent) -> None:
        if event.kind == EpisodeEvent.STARTED:
            self.episode_id = event.episode_id

    def _on_injected(self, header: Header) -> None:
        self.injected[header.frame_id] = to_ns(header.stamp) / 1e9

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.endswith("/interlock"):
                self.reaction = {value.key: value.value for value in status.values}

    # What the people around the arm do
    def _stream(self) -> None:
        """Back and forth and round, as a policy would: 20 chunks a second of two actions each."""
        if not (self.streaming or self.taking_over):
            return
        self.seq += 1
        sign = 1.0 if self.seq // 20 % 2 else -1.0
        action = [sign * SPEED * DT, 0.0, 0.0, 0.0, 0.0, (sign if self.turn == TURN else 1.0) * self.turn * DT]
        source = "operator" if self.taking_over else "policy"
        chunk = ActionChunk(source=source, session=f"drill-{source}", seq=self.seq, dt=DT, control_mode="tcp_delta",
                            horizon=2, dim=6, data=action * 2, execute=1)
        chunk.header.stamp = chunk.observation_stamp = self.node.get_clock().now().to_msg()
        self.say["teleop/action" if self.taking_over else "policy/action"].publish(chunk)
        if self.taking_over and self.streaming:
            self.seq += 1
            self.say["policy/action"].publish(replace_source(chunk, self.seq))

    def _keep_alive(self) -> None:
        self.say["enable"].publish(Bool(data=self.enabled))
        if self.estop != "silent":
            self.say["estop/pendant"].publish(Bool(data=self.estop == "press"))
        self.say["distance"].publish(Range(range=1.0))

    # Waiting and asking
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
            raise SystemExit(f"nobody answers {client.srv_name}; logs in {self.run_dir / 'logs'}")
        future = client.call_async(request)
        self.spin(future.done, 5.0)
        return future.result()

    def state(self) -> SafetyState:
        return self.states[-1][1] if self.states else SafetyState()

    def ready(self, real: bool = False) -> None:
        """Healthy, armed and moving: under the drill's own stream, or the real policy's."""
        for _ in range(3):
            trouble = self._make_ready(real)
            if not trouble:
                self.spin_for(0.3)
                return
        raise SystemExit(f"the arm does not move: {Mode(self.state().state).name} {trouble}; "
                         f"logs in {self.run_dir / 'logs'}")

    def _make_ready(self, real: bool) -> str:
        """Empty, or what kept it from moving."""
        self.streaming, self.taking_over, self.turn, self.enabled, self.estop = False, False, TURN, True, "released"
        self.say["robot/fault"].publish(String(data=""))
        for route in (*ROUTES, CAMERA):
            self.inject.publish(String(data=yaml.safe_dump({"route": route, "kind": "none"})))
        self._end_episodes()
        self.spin_for(0.4)
        answer, patience = None, time.monotonic() + 60.0
        while time.monotonic() < patience:
            if self.state().state == SafetyState.FAULT:
                self.ask(self.resetting, ResetFault.Request(cause=self.state().cause))
            if self.state().state != SafetyState.DISARMED:
                self.ask(self.arming, SetBool.Request(data=False))
                self.spin(lambda: self.state().state in (SafetyState.DISARMED, SafetyState.FAULT), 0.5)
            answer = self.ask(self.arming, SetBool.Request(data=True))
            if answer and answer.success and self.spin(lambda: self.state().state == SafetyState.ARMED, 0.5):
                break
            self.spin_for(0.2)
        for _ in range(10 if real else 0):  # a server that has just died may still look ready
            self.spin(self.runner.server_is_ready, 20.0)
            self.goal = self.runner.send_goal_async(RunEpisodes.Goal(count=20, mode="evaluate"))
            if self.spin(self.goal.done, 3.0) and self.goal.result().accepted:
                break
            self.spin_for(1.0)
        self.streaming = not real
        moving = self.spin(lambda: self.state().state == SafetyState.ACTIVE and time.time() - self.moved_at < 0.05, 15.0)
        return "" if moving else f"{self.state().cause} ({answer.message if answer else 'no answer to arming'})"

    def _end_episodes(self) -> None:
        """The real policy falls silent: its environment's goal is cancelled, its episode aborted."""
        handle = self.goal.result() if self.goal and self.goal.done() else None
        if handle is not None and handle.accepted:
            handle.cancel_goal_async()
            self.spin_for(0.2)
            self.say["episode"].publish(EpisodeEvent(kind=EpisodeEvent.ABORTED, episode_id=self.episode_id,
                                                     detail="the drill's scenario is over"))
            self.spin_for(0.5)
        self.goal = None

    # One scenario
    def run(self, scenario: dict[str, Any]) -> None:
        real = "process" in scenario and scenario["process"] != "interlock" or scenario.get("real", False)
        self.ready(real)
        dropped, began = self.state(), self._go_wrong(scenario)
        expect, within = scenario["expect"], scenario.get("within_ms")
        if within is None:
            held, measured, bound = self._goes_on(scenario, dropped, began)
        elif expect == "still":
            held, measured, bound = self._arm_stops(began, within)
        else:
            held, measured, bound = self._reaches(scenario, began)
        if held and expect.startswith("FAULT") or scenario.get("then", "").startswith("FAULT"):
            stays, words = self._stays_stopped(scenario)
            held, measured = held and stays, f"{measured}; {words}"
        self._mend(scenario)
        self.add(Row(scenario.get("requirement", ""), scenario.get("trap", 0), scenario["name"], bound, measured, held))

    def _go_wrong(self, scenario: dict[str, Any]) -> float:
        """Do it; returns when it happened."""
        began = time.time()
        if scenario.get("process") == "interlock":
            self.deaths.append(time.time_ns())
        if "process" in scenario:
            popen = self.supervisor.children[scenario["process"]].popen
            os.kill(popen.pid, getattr(signal, f"SIG{scenario['signal']}"))
        words = scenario.get("say", {})
        self.estop = words.get("estop", self.estop)
        self.enabled = words.get("enable", self.enabled)
        self.taking_over = words.get("takeover", False)
        if self.taking_over:
            self._stream()
        if "robot_fault" in words:
            self.say["robot/fault"].publish(String(data=words["robot_fault"]))
        if "end_episode" in words:
            self.streaming = False
            self.say["episode"].publish(EpisodeEvent(kind=EpisodeEvent.ENDED, episode_id="drill"))
        if "inject" in scenario:
            route = scenario["inject"]["route"]
            self.injected.pop(route, None)
            self.inject.publish(String(data=yaml.safe_dump(scenario["inject"])))
            if not self.spin(lambda: route in self.injected, 3.0):
                raise SystemExit(f"the fault injector did not touch '{route}'; logs in {self.run_dir / 'logs'}")
            began = self.injected[route]
        return began

    def _reaches(self, scenario: dict[str, Any], began: float) -> tuple[bool, str, str]:
        held, measured, bounds = True, [], []
        for expect, within in ((scenario["expect"], scenario["within_ms"]),
                               (scenario.get("then"), scenario.get("then_within_ms"))):
            if expect is None:
                continue
            found = self._first(expect, began, within / 1e3 + 1.0)
            took = 1e3 * (found - began)
            held &= took <= within
            measured.append(f"{expect} after {took:.0f} ms" if math.isfinite(took) else f"never {expect}")
            bounds.append(f"{expect} within {within} ms")
        return held, "; ".join(measured), "; ".join(bounds)

    def _first(self, expect: str, began: float, seconds: float) -> float:
        """When the expected state was first heard since then; infinity if it is not within so many seconds."""
        looked_at = next((index for index in range(len(self.states) - 1, -1, -1) if self.states[index][0] < began), 0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for at, safety in self.states[looked_at:]:
                if at >= began and _is(safety, expect):
                    return at
            looked_at = len(self.states)
            self.spin(lambda: len(self.states) > looked_at, end - time.monotonic())  # noqa: B023
        return math.inf

    def _goes_on(self, scenario: dict[str, Any], before: SafetyState, began: float) -> tuple[bool, str, str]:
        """Something that must not stop the arm, but be counted."""
        self.spin_for(1.5)
        stopped = [m for at, m in self.states[-200:] if at > began and m.state in (SafetyState.HOLD, SafetyState.FAULT)]
        name = scenario.get("counts")
        if not name:
            return not stopped, "went on" if not stopped else f"stopped: {stopped[0].cause}", "the arm goes on"
        counted = getattr(self.state(), name) - getattr(before, name)
        return not stopped and counted > 0, f"{counted} {name}{f', stopped: {stopped[0].cause}' if stopped else ''}", \
            f"goes on, {name} counted"

    def _arm_stops(self, began: float, within: float) -> tuple[bool, str, str]:
        """Without an interlock, by the robot side's own timeout; the measured pose tells."""
        last, quiet_since = self.pose, time.time()
        while time.time() - began < within / 1e3 + 2.0 and time.time() - quiet_since < 0.3:
            self.spin_for(0.02)
            if math.dist(self.pose[:3], last[:3]) > 2e-4:
                quiet_since = time.time()
            last = self.pose
        took = 1e3 * (quiet_since - began)
        return took <= within, f"the arm rests after {took:.0f} ms", f"within {within} ms"

    def _stays_stopped(self, scenario: dict[str, Any]) -> tuple[bool, str]:
        """With the cause gone and commands going on, a latched fault moves nothing."""
        self._mend(scenario)
        self.spin_for(0.7)
        at = self.targets[-1][2]
        self.spin_for(0.7)
        moved = math.dist(self.targets[-1][2], at)
        still = self.state().state == SafetyState.FAULT and moved < 1e-9
        return still, f"then {1e3 * moved:.0f} mm by itself"

    def _mend(self, scenario: dict[str, Any]) -> None:
        if scenario.get("signal") == "STOP":
            os.kill(self.supervisor.children[scenario["process"]].popen.pid, signal.SIGKILL)
        if "inject" in scenario:
            self.inject.publish(String(data=yaml.safe_dump({"route": scenario["inject"]["route"], "kind": "none"})))
        self.say["robot/fault"].publish(String(data=""))
        self.estop, self.enabled, self.taking_over = "released", True, False

    # What is measured over the whole drill
    def overall(self) -> None:
        """Requirements that are no scenario of their own."""
        self.ready()
        self.spin_for(1.5)
        worst = float(self.reaction.get("reaction_p99_ms", "inf"))
        tick = 1e3 * self.limits.tick
        self.add(Row("S1", 0, "from a chunk's arrival to the answer on target_pose, p99", f"{tick:.0f} + 2 ms",
                     f"{worst:.1f} ms (worst {float(self.reaction.get('reaction_worst_ms', 'inf')):.1f} ms)",
                     worst <= tick + 2.0))
        self._configuration()
        self._turning()
        self._aligned()
        publishers = sorted({info.node_name for info in self.node.get_publishers_info_by_topic(
            f"/{self.recipe.station.name}/target_pose")})  # one that was killed is still remembered
        self.add(Row("", 10, "who can command the robot side, resets included", "the interlock alone",
                     ", ".join(publishers), publishers == ["interlock"]))
        self._wrong_reset()
        self._envelope()
        self._one_joint()
        infinite = [name for name, value in vars(self.limits).items() if value == math.inf]
        self.add(Row("S9", 7, "limits in force: those of the FR3, none infinite", "0.25 m/s, 1 m/s^2, 10 m/s^3",
                     f"{self.limits.speed} m/s, {self.limits.acceleration} m/s^2, {self.limits.jerk} m/s^3, "
                     f"{len(infinite)} infinite", not infinite and self.limits.speed <= 0.25
                     and self.limits.acceleration <= 1.0 and self.limits.jerk <= 10.0))
        boxes = sorted((self.run_dir / "faults/closed").glob("*"))
        self.add(Row("S20", 0, "events, and recordings of the half minute before a fault", "of every fault",
                     f"{self.events} events, {len(boxes)} recordings", self.events > 50 and len(boxes) >= 5))

    def _configuration(self) -> None:
        def set_speed(value: float) -> Any:
            parameter = Parameter(name="limits.speed", value=ParameterValue(type=ParameterType.PARAMETER_DOUBLE,
                                                                            double_value=value))
            return self.ask(self.setting, SetParameters.Request(parameters=[parameter])).results[0]

        loose, tight = set_speed(0.5), set_speed(0.2)
        back = set_speed(0.25)
        self.add(Row("S19", 0, "speed limit set live: 0.5, 0.2, 0.25 m/s while ACTIVE", "refused, taken, refused",
                     f"{'taken' if loose.successful else 'refused'}, {'taken' if tight.successful else 'refused'}, "
                     f"{'taken' if back.successful else 'refused'}",
                     not loose.successful and tight.successful and not back.successful))
        self.ask(self.arming, SetBool.Request(data=False))
        self.spin_for(0.8)
        set_speed(0.25)

    def _turning(self) -> None:
        """Four seconds of turning one way: the rotation stays inside its cone."""
        self.ready()
        self.turn = 0.4
        began = time.time()
        self.spin_for(4.0)
        nominal = tuple(self.limits.orientation)
        worst = max(angle(product(inverse(nominal), target[3:])) for at, _, target in self.targets if at > began)
        self.add(Row("S8", 8, "rotation away from nominal after turning one way for 4 s", f"{self.limits.cone} rad",
                     f"{worst:.4f} rad", worst <= self.limits.cone + 1e-9))

    def _aligned(self) -> None:
        """Arming and resuming: the first target lies where the arm is."""
        for trap, name in ((4, "first target after arming, from the measured pose"),
                           (3, "first target after a hold, from the measured pose")):
            self.ready()
            self.streaming = False
            self.spin(lambda: time.time() - self.moved_at > 0.3, 3.0)
            if trap == 4:
                self.ask(self.arming, SetBool.Request(data=False))
                self.spin(lambda: self.state().state == SafetyState.DISARMED, 0.5)
                self.ask(self.arming, SetBool.Request(data=True))
            self.spin_for(0.2)
            self.streaming = True
            self.spin(lambda: self.state().state == SafetyState.ACTIVE, 2.0)
            gap = math.dist(self.targets[-1][2][:3], self.pose[:3])
            self.add(Row("S13", trap, name, "10 mm", f"{1e3 * gap:.1f} mm", gap <= 0.01))

    def _wrong_reset(self) -> None:
        self.ready()
        self.estop = "press"
        self.spin(lambda: self.state().state == SafetyState.FAULT, 2.0)
        answers = [self.ask(self.resetting, ResetFault.Request(cause=cause)) for cause in ("stale_state", "estop:pendant")]
        refused = not any(answer.success for answer in answers)
        self.add(Row("S13", 0, "resets that name another cause, or come while the e-stop is pressed", "refused by name",
                     "; ".join(answer.message for answer in answers), refused and "estop:pendant" in answers[0].message))

    def _envelope(self) -> None:
        """Every target of the drill, by differences from tick to tick."""
        group = Group("position", self.limits.tick, self.limits.speed, self.limits.acceleration, self.limits.jerk,
                      self.limits.box_low, self.limits.box_high)
        worst, gap, breaks = np.zeros(3), 0.0, sorted(self.reseeds)
        run: list[tuple[float, ...]] = []
        out = 0
        for (_, before_ns, _), (_, at_ns, target) in zip(self.targets, self.targets[1:], strict=False):
            if not _between(self.deaths, before_ns - 50_000_000, at_ns):
                gap = max(gap, (at_ns - before_ns) / 1e6)
            if at_ns - before_ns > 1.6e9 * self.limits.tick or _between(breaks, before_ns, at_ns):
                run = []
            run = [*run[-3:], target[:3]]
            out += not group.inside(target[:3])
            for order in range(1, len(run)):
                difference = np.diff(np.array(run[-order - 1:]), order, axis=0)[-1]
                worst[order - 1] = max(worst[order - 1], np.linalg.norm(difference) / self.limits.tick**order)
        bound = np.array([group.speed, group.acceleration, group.jerk])
        self.add(Row("S8", 0, f"all {len(self.targets)} targets of the drill: speed, acceleration, jerk, outside the box",
                     f"{group.speed} m/s, {group.acceleration} m/s^2, {group.jerk} m/s^3, 0",
                     f"{worst[0]:.4f} m/s, {worst[1]:.4f} m/s^2, {worst[2]:.3f} m/s^3, {out}",
                     bool((worst <= bound + [1e-9, 1e-8, 1e-4]).all()) and out == 0))
        most = 25.0 + 1e3 * self.limits.tick  # S1's worst case without a real-time kernel, after a tick
        self.add(Row("S12", 0, "never silence: longest time between two targets", f"{most:.0f} ms", f"{gap:.1f} ms",
                     gap <= most))

    def _one_joint(self) -> None:
        """In joint mode, through the core: the group stops together (the simulated arm takes poses)."""
        limits = replace(self.limits, control_mode="joint_delta")
        joints = tuple(0.5 * (a + b) for a, b in zip(limits.joint_low, limits.joint_high, strict=True))
        joints = (*joints[:3], limits.joint_high[3] - limits.joint_margin - 0.05, *joints[4:])
        start, action, state, worst = joints, (0.03, 0.02, -0.01, 0.02, 0.0, 0.04, 0.0), State(), 0.0
        pose = (0.5, 0.0, 0.2, *limits.orientation)
        for tick in range(400):
            now = tick * round(limits.tick * 1e9)
            chunks = (Chunk("policy", "a", tick + 1, 0, now, 0.1, "joint_delta", (action,)),) if tick % 10 == 0 else ()
            state, output, _ = step(limits, state, Inputs(pose=pose, joints=joints, chunks=chunks, arm=tick == 0 or None,
                                                          enable=True, enable_age_s=0.0), now)
            joints = output.joints
            moved = np.subtract(joints, start)
            worst = max(worst, np.abs(moved - moved[3] / action[3] * np.array(action)).max())
        self.add(Row("", 6, "one joint at the end of its range: others leave the common path by (core)", "1e-9 rad",
                     f"{worst:.0e} rad, after {moved[3]:.3f} of 0.8 rad", bool(worst < 1e-9 and moved[3] < 0.051)))

    # The table
    def add(self, row: Row) -> None:
        self.rows.append(row)
        label = row.requirement + (f" trap {row.trap}" if row.trap else "")
        verdict = "held" if row.held else "NOT HELD"
        print(f"{verdict:<9}{label.strip():<13}{row.name}\n{'':22}bound: {row.bound}\n{'':22}measured: {row.measured}",
              flush=True)

    def result(self) -> dict[str, Any]:
        held = [name for name in REQUIREMENTS if _all_held(row for row in self.rows if row.requirement == name)]
        traps = [number for number in TRAPS if _all_held(row for row in self.rows if row.trap == number)]
        return {"requirements_held": len(held), "traps_held": len(traps),
                "not_held": [row.name for row in self.rows if not row.held], "rows": [asdict(row) for row in self.rows]}

    def __enter__(self) -> Drill:
        for process in self._processes():
            self.supervisor.start(process)
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.stop()


def make_policy(spec: StationSpec, path: Path) -> None:
    """Save a network that always goes up, slowly."""
    import torch

    from rlinf_core.policies.actor import Actor, PolicyConfig
    from rlinf_core.policies.files import save_policy

    actor = Actor(spec, PolicyConfig(hidden=(8,), image_features=0))
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias.zero_()
        actor.head.bias[2] = 0.15
    save_policy(actor, path)


def replace_source(chunk: ActionChunk, seq: int) -> ActionChunk:
    """The policy's chunk beside the operator's."""
    return ActionChunk(source="policy", session="drill-policy", seq=seq, dt=chunk.dt, control_mode=chunk.control_mode,
                       horizon=chunk.horizon, dim=chunk.dim, data=chunk.data, execute=1,
                       observation_stamp=chunk.observation_stamp)


def _is(safety: SafetyState, expect: str) -> bool:
    state, _, cause = expect.partition(" ")
    return Mode(safety.state).name == state and cause in ("", safety.source if state == "ACTIVE" else safety.cause)


def _between(sorted_ns: list[int], low: int, high: int) -> bool:
    import bisect

    index = bisect.bisect_left(sorted_ns, low)
    return index < len(sorted_ns) and sorted_ns[index] <= high


def _all_held(rows: Any) -> bool:
    rows = list(rows)
    return bool(rows) and all(row.held for row in rows)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="rlinf drill", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--json", type=Path, help="write requirements_held, traps_held and each row there")
    parser.add_argument("--out", type=Path, help="run folder (default: runs/drill-<time>)")
    parser.add_argument("--scenarios", type=Path, default=shared() / "configs/drill.yaml", help="another list of scenarios")
    options, _ = parser.parse_known_args()
    run_dir = (options.out or Path("runs") / time.strftime("drill-%Y%m%d-%H%M%S")).resolve()
    run_dir.mkdir(parents=True)
    domain_id = int(os.environ.get("ROS_DOMAIN_ID", "42"))
    scenarios = [s for s in yaml.safe_load(options.scenarios.read_text()) if options.only in s["name"]]
    rclpy.init()
    with only_station("station_a", domain_id), Drill(run_dir, domain_id) as drill:
        for scenario in scenarios:
            drill.run(scenario)
        if not options.only:
            drill.overall()
        result = drill.result()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print(f"\n{len(drill.rows) - len(result['not_held'])} of {len(drill.rows)} held; requirements held and measured: "
          f"{result['requirements_held']} of {len(REQUIREMENTS)}, traps: {result['traps_held']} of {len(TRAPS)}. "
          f"Logs and recordings: {run_dir}")
    sys.exit(1 if result["not_held"] else 0)


if __name__ == "__main__":
    main()
