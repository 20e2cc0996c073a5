"""Measure the reaction to faults of a Franka's twin, up to the interlock and /diagnostics.

    python benchmarks/twin_faults.py --json results.json

The station of the recipe franka_twin_devices runs in real time. This process is the operator, whose
answers move the arm up and down, and open and close the hand. Each fault is injected --times times
while the arm moves. The time runs from just before the command to the twin (or the stop of the
camera's process) to the first message ``safety`` with the fault. The bounds are those of
docs/safety.md plus the driver node's share: a state's period and its own check, 10 ms each, or the
time after which silence is a fault. The benchmark does not cover a real Franka, whose controller
stops by itself, two machines, or faults that the twin does not imitate.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DOMAIN, HAND_S = 56, 2.0
STATES = ("DISARMED", "ARMED", "ACTIVE", "HOLD", "FAULT")
# Name, injection, expected text of the interlock or diagnostics, bound [ms], requirement.
FAULTS = (
    ("reflex", ("inject", "cartesian_reflex"), "FAULT robot:reflex (cartesian_reflex)", 55, "S17"),
    ("user stop", ("inject", "user_stop"), "FAULT robot:user_stop", 55, "S17"),
    ("control loop lost: held", ("inject", "control_lost"), "HOLD stale_state", 95, "S3"),
    ("control loop lost: latched", ("inject", "control_lost"), "FAULT", 555, "S3"),
    ("camera stalls", ("stop", "camera_wrist"), "HOLD stale_command", 725, "trap 11"),
    (
        "gripper does not answer",
        ("inject", "gripper_timeout"),
        "FAULT robot:gripper",
        1e3 * HAND_S + 200,
        "S17",
    ),
    ("clock 2 s ahead: held", ("clock_offset_s", 2.0), "HOLD", 175, "S4"),
    (
        "clock 2 s ahead: told",
        ("clock_offset_s", 2.0),
        "diagnostics: clock of franka_ros2's machine",
        1200,
        "S4",
    ),
)


class Bench:
    """The station, and the messages received from it."""

    def __init__(self, folder: Path) -> None:
        import rclpy
        import yaml
        from diagnostic_msgs.msg import DiagnosticArray
        from rcl_interfaces.srv import SetParameters
        from rclpy.action import ActionClient
        from rlinf_msgs.action import RunEpisodes
        from rlinf_msgs.msg import ActionChunk, SafetyState, TimeStep
        from rlinf_msgs.srv import ResetFault
        from std_msgs.msg import Bool, String
        from std_srvs.srv import SetBool

        from rlinf_core.config.overrides import quote_value
        from rlinf_core.launch.graph import station_processes
        from rlinf_core.launch.supervisor import Supervisor
        from rlinf_core.recipes import load_recipe, station_task
        from rlinf_ros.qos import profile
        from rlinf_ros.workarounds import single_threaded

        robot = folder / "robot"
        robot.mkdir()
        robot_yaml = (
            (ROOT / "robots/franka_twin_devices/robot.yaml")
            .read_text()
            .replace("hand_eye: hand_eye.yaml\n", "")
        )
        (robot / "robot.yaml").write_text(f"{robot_yaml}options: {{hand_timeout_s: {HAND_S}}}\n")
        (robot / "limits.yaml").write_text(
            f"extends: {ROOT}/robots/franka_fr3/limits.yaml\ngripper_width: 0.08\n"
            "gripper_speed: 0.2\n"
        )
        task = yaml.safe_load((ROOT / "configs/tasks/reach.yaml").read_text())
        task |= {"max_steps": 3000, "reward": {"kind": "external"}}
        task["action"]["dimensions"]["grip"] = {"scale": 0.04, "unit": "m"}
        (folder / "task.yaml").write_text(yaml.safe_dump(task))
        recipe = load_recipe(
            "franka_twin_devices",
            [
                f"station.robot={quote_value(robot)}",
                f"station.task={quote_value(folder / 'task.yaml')}",
                f"station.domain_id={DOMAIN}",
                "station.second_operator=null",
                "station.observe_cameras=[wrist]",
            ],
        )
        self.spec = station_task(recipe).spec
        self.node = rclpy.create_node("bench", namespace=f"/{recipe.station.name}")
        self.executor = single_threaded()
        self.executor.add_node(self.node)
        self.states: list[tuple[float, str]] = []
        self.diagnostics: list[tuple[float, str]] = []
        subscribe = self.node.create_subscription
        subscribe(
            SafetyState,
            "safety",
            lambda m: self.states.append(
                (time.monotonic(), f"{STATES[m.state]} {m.cause}".strip())
            ),
            profile("safety"),
        )
        subscribe(DiagnosticArray, "/diagnostics", self._on_health, 50)
        subscribe(TimeStep, "timestep", self._answer_step, profile("timestep"))
        self.actions = self.node.create_publisher(
            ActionChunk, "teleop/action", profile("teleop/action")
        )
        self.labels = self.node.create_publisher(String, "label", profile("label"))
        self.seq = 0
        self.enable = self.node.create_publisher(Bool, "enable", profile("enable"))
        self.node.create_timer(0.1, lambda: self.enable.publish(Bool(data=True)))
        self.setting = self.node.create_client(SetParameters, "twin/set_parameters")
        self.arming = self.node.create_client(SetBool, "interlock/arm")
        self.clearing = self.node.create_client(ResetFault, "interlock/reset_fault")
        self.runner = ActionClient(self.node, RunEpisodes, "run_episodes")
        self.supervisor = Supervisor(folder, DOMAIN)
        self.processes = station_processes(recipe, folder, without=("uplink", "operator", "policy"))

    def _answer_step(self, step: Any) -> None:
        """Answer a time step as an operator does."""
        from rlinf_ros.conversions import action_chunk

        if step.step_type == step.LAST:
            return
        self.seq += 1
        speed = 0.2 if self.seq // 8 % 2 else -0.2
        self.actions.publish(
            action_chunk(
                self.spec,
                np.array([0.0, 0.0, speed, 5.0 * speed]),
                source="operator",
                session="bench",
                seq=self.seq,
                version=-1,
                observation_stamp=step.header.stamp,
            )
        )

    def _on_health(self, array: Any) -> None:
        for status in array.status:
            if status.level == b"\2":
                self.diagnostics.append((time.monotonic(), f"diagnostics: {status.message}"))

    def spin(self, until: Callable[[], Any], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not until():
            self.executor.spin_once(timeout_sec=0.01)
            self.supervisor.poll()
            if time.monotonic() > end:
                raise SystemExit(
                    f"waited {seconds:g} s for {what}; it is {self.states[-1:]}; logs in "
                    f"{self.supervisor.run_dir}"
                )

    def ask(self, client: Any, request: Any) -> Any:
        self.spin(client.service_is_ready, 30, client.srv_name)
        future = client.call_async(request)
        self.spin(future.done, 15, client.srv_name)
        return future.result()

    def set(self, name: str, value: Any) -> None:
        from rcl_interfaces.msg import Parameter, ParameterValue
        from rcl_interfaces.srv import SetParameters

        parameter_value = (
            ParameterValue(type=3, double_value=value)
            if isinstance(value, float)
            else ParameterValue(type=4, string_value=value)
        )
        request = SetParameters.Request(parameters=[Parameter(name=name, value=parameter_value)])
        self.setting_answer = self.setting.call_async(request)

    def start_motion(self) -> None:
        """Arm the interlock, start an episode and wait for motion."""
        from rlinf_msgs.action import RunEpisodes
        from std_srvs.srv import SetBool

        def armed() -> bool:
            return self.states[-1][1].startswith(("ARMED", "ACTIVE")) or bool(
                self.ask(self.arming, SetBool.Request(data=True)).success
            )

        self.spin(armed, 30, "the interlock to be armed")
        goal = self.runner.send_goal_async(RunEpisodes.Goal(count=1, mode="demonstration"))
        self.spin(goal.done, 20, "the goal")
        self.handle = goal.result()
        self.spin(lambda: self.states[-1][1].startswith("ACTIVE"), 30, "motion")
        end = time.monotonic() + 0.7
        self.spin(lambda: time.monotonic() > end, 5, "a while")

    def recover(self) -> None:
        """End the fault and the episode, and reset the interlock."""
        from rlinf_msgs.srv import ResetFault
        from std_msgs.msg import String

        for name, value in (("inject", ""), ("clock_offset_s", 0.0)):
            self.set(name, value)
            self.spin(self.setting_answer.done, 10, "the twin's answer")
        os.kill(self.supervisor.children["camera_wrist"].popen.pid, signal.SIGCONT)
        if self.handle.accepted:
            ended = self.handle.get_result_async()
            self.handle.cancel_goal_async()
            label_timer = self.node.create_timer(
                0.2, lambda: self.labels.publish(String(data="discard"))
            )
            self.spin(ended.done, 60, "the episode's end")
            self.node.destroy_timer(label_timer)

        def clear() -> bool:
            state, _, cause = self.states[-1][1].partition(" ")
            return state != "FAULT" or bool(
                self.ask(self.clearing, ResetFault.Request(cause=cause)).success
            )

        end = time.monotonic() + 0.8  # a hold may still become a fault
        self.spin(lambda: time.monotonic() > end, 5, "a while")
        self.spin(clear, 60, "the reset")

    def inject(self, injection: tuple[str, Any], expect: str) -> float:
        """Inject a fault; return the milliseconds to the expected text, infinity after 5 s."""
        self.start_motion()
        injected_at = time.monotonic()
        if injection[0] == "stop":
            os.kill(self.supervisor.children[injection[1]].popen.pid, signal.SIGSTOP)
        else:
            self.set(*injection)
        samples = self.diagnostics if expect.startswith("diagnostics") else self.states
        end = injected_at + 5.0

        def first_match() -> float | None:
            return next(
                (at for at, text in samples if at > injected_at and text.startswith(expect)), None
            )

        while first_match() is None and time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.01)
        milliseconds = 1e3 * ((first_match() or float("inf")) - injected_at)
        if milliseconds == float("inf"):
            print(
                f"never '{expect}': "
                + ", ".join(
                    f"{1e3 * (at - injected_at):.0f} ms {text}" for at, text in samples[-8:]
                )
            )
        self.recover()
        return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5, help="injections of each fault")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.only in fault[0]]
    if not faults:
        parser.error(
            f"--only: expected a part of one of {', '.join(fault[0] for fault in FAULTS)}; got "
            f"'{options.only}'"
        )
    if options.times < 1:
        parser.error(f"--times: expected at least 1, got {options.times}")
    sys.path[:0] = [str(ROOT), *map(str, ROOT.glob("ros_ws/src/*"))]
    from benchmarks import figures
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    import rclpy

    rclpy.init()
    result: dict[str, Any] = {}
    with figures.folder("rlinf-twin-faults-") as folder:
        bench = Bench(folder)
        with bench.supervisor:
            for process in bench.processes:
                process.parameters.update(
                    {"person": False} if process.name == "environment" else {}
                )
                bench.supervisor.start(process)
            bench.spin(
                lambda: (
                    bench.states
                    and bench.runner.server_is_ready()
                    and bench.setting.service_is_ready()
                ),
                90,
                "the station",
            )
            print(f"{'':<28}{'heard':<44}{'bound':>9}{'worst':>9}{'median':>9}")
            for name, injection, expect, within, requirement in faults:
                milliseconds = sorted(bench.inject(injection, expect) for _ in range(options.times))
                held = milliseconds[-1] <= within
                print(
                    f"{name:<28}{expect:<44}{within:>6.0f} ms{milliseconds[-1]:>6.0f} "
                    f"ms{milliseconds[len(milliseconds) // 2]:>6.0f} ms  {requirement} "
                    f"{'held' if held else 'NOT HELD'}",
                    flush=True,
                )
                key = name.replace(":", "").replace(" ", "_")
                result |= {
                    f"{key}_bound_ms": within,
                    f"{key}_worst_ms": round(milliseconds[-1], 1),
                    f"{key}_median_ms": round(milliseconds[len(milliseconds) // 2], 1),
                    f"{key}_held": held,
                }
    result["held"] = all(value for key, value in result.items() if key.endswith("_held"))
    if options.json:
        figures.write(options.json, result)
    rclpy.try_shutdown()
    sys.exit(0 if result["held"] else 1)


if __name__ == "__main__":
    main()
