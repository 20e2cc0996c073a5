"""Measure the CPU time of the Franka driver node at robot states of 1 kHz.

    python benchmarks/franka_driver.py --json results.json

The node runs alone in its process and uses the newest state at 100 Hz. This process publishes the
states in place of franka_ros2. Three variants take turns:

* ``fields`` is the node as it is: it reads the needed fields by their offsets.
* ``converted``: rclpy converts each used state to Python.
* ``idle``: there are no states.

The figures are the node's share of a core, and the microseconds to read one state in this process.
The benchmark does not cover the hand, a recovery, or franka_ros2 on another machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *map(str, ROOT.glob("ros_ws/src/*"))]
from benchmarks import figures  # noqa: E402
from benchmarks.page import cpu_s  # noqa: E402

DOMAIN, STATE_HZ, WARM_UP_S = 61, 1000, 1.0
KINDS = ("fields", "converted", "idle")


def state():
    """Return a state as franka_ros2 publishes it: every joint and frame has a name."""
    from franka_msgs.msg import FrankaRobotState

    message = FrankaRobotState(robot_mode=FrankaRobotState.ROBOT_MODE_MOVE)
    message.control_command_success_rate = message.o_t_ee.pose.orientation.w = 1.0
    for name in (
        "measured_joint_state",
        "desired_joint_state",
        "measured_joint_motor_state",
        "tau_ext_hat_filtered",
    ):
        joints = getattr(message, name)
        joints.name = [f"fr3_joint{k}" for k in range(1, 8)]
        joints.position, joints.velocity, joints.effort = [0.1] * 7, [0.2] * 7, [0.3] * 7
    for name in message.get_fields_and_field_types():
        if hasattr(part := getattr(message, name), "header"):
            part.header.frame_id = "fr3_link0"
    return message


def run_node(kind: str) -> None:
    """Run the driver node in this process until it is ended."""
    from rclpy.serialization import deserialize_message

    from rlinf_drivers.franka import Franka
    from rlinf_ros.spinning import run

    class ConvertingFranka(Franka):
        def __init__(self) -> None:
            super().__init__()
            self.reader.read = self._convert

        def _convert(self, raw: bytes):
            self.reader.message = deserialize_message(raw, self.reader.kind)
            return self.reader.message

    run(ConvertingFranka if kind == "converted" else Franka, listens=False)


def measure_core_share(kind: str, seconds: float) -> float:
    """Return the node's share of a core while states arrive."""
    import rclpy
    from franka_msgs.msg import FrankaRobotState
    from rclpy.serialization import serialize_message
    from std_msgs.msg import String

    from rlinf_drivers.franka import ROBOT_STATE
    from rlinf_ros.qos import profile

    broadcaster = rclpy.create_node("broadcaster", namespace="/floor")
    states = broadcaster.create_publisher(FrankaRobotState, ROBOT_STATE, 10)
    faults: list[Any] = []
    broadcaster.create_subscription(String, "robot/fault", faults.append, profile("robot/fault"))
    message = state()
    child = subprocess.Popen(
        [sys.executable, __file__, "--node", kind, "--ros-args", "-r", "__ns:=/floor"]
    )
    try:
        raw, end = serialize_message(message), time.monotonic() + 30
        while not faults or states.get_subscription_count() < 1:
            rclpy.spin_once(broadcaster, timeout_sec=0.05)
            if child.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the driver node ({kind}) did not start")
        started_at = due = time.monotonic()
        before, started = cpu_s(child.pid), started_at
        warm = True
        while due < started_at + WARM_UP_S + seconds:
            if kind != "idle":
                states.publish(raw)
            due += 1 / STATE_HZ
            time.sleep(max(0.0, due - time.monotonic()))
            if warm and due > started_at + WARM_UP_S:
                before, started, warm = cpu_s(child.pid), time.monotonic(), False
        core_share = (cpu_s(child.pid) - before) / (time.monotonic() - started)
        rclpy.spin_once(broadcaster, timeout_sec=0.05)
        for _ in range(50):
            rclpy.spin_once(broadcaster, timeout_sec=0.0)
        if kind != "idle" and faults[-1].data:
            raise SystemExit(
                f"expected a driver that receives states, got robot/fault {faults[-1].data}"
            )
        return core_share
    finally:
        child.terminate()
        child.wait(20)
        broadcaster.destroy_node()


def measure_reading_us(kind: str, repetitions: int = 1000) -> float:
    """Return the CPU microseconds to read one state."""
    from franka_msgs.msg import FrankaRobotState
    from rclpy.serialization import deserialize_message, serialize_message

    from rlinf_drivers.franka import FIELDS
    from rlinf_drivers.partial_reader import PartialReader

    raw, by_offsets = serialize_message(state()), PartialReader(FrankaRobotState, FIELDS)
    read = (
        by_offsets.read
        if kind == "fields"
        else lambda raw: deserialize_message(raw, FrankaRobotState)
    )
    read(raw)
    started_at = time.process_time()
    for _ in range(repetitions):
        read(raw)
    return 1e6 * (time.process_time() - started_at) / repetitions


def compare(seconds: float, runs: int) -> dict[str, float]:
    """Return medians over the runs; ratios compare variants of the same run."""
    values_by_name: dict[str, list[float]] = {}
    for _ in range(runs):
        share = {kind: measure_core_share(kind, seconds) for kind in KINDS}
        reading = {kind: measure_reading_us(kind) for kind in KINDS[:2]}
        row = {f"driver_core_{kind}": value for kind, value in share.items()}
        row |= {f"driver_reading_us_{kind}": value for kind, value in reading.items()}
        row["driver_core_ratio"] = share["fields"] / share["converted"]
        row["driver_reading_ratio"] = reading["fields"] / reading["converted"]
        for key, value in row.items():
            values_by_name.setdefault(key, []).append(value)
    return figures.summary(values_by_name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--node", choices=KINDS, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.node:
        run_node(options.node)
        return
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    import rclpy

    rclpy.init()
    result = compare(options.seconds, options.runs)
    for name, value in result.items():
        print(f"{name:40}{value:12.4f}")
    if options.json:
        figures.write(options.json, result)
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
