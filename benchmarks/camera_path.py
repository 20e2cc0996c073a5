"""Measure the path from a camera to a subscriber: lost images, latency, processor time.

    python benchmarks/camera_path.py --json results.json

Two RealSense cameras run at 640x480 and 30 Hz, each in its own process of the station's camera
node. librealsense's software device stands in for the hardware in the same process, and counts in
the processor time. This process receives both topics as a station does: best effort, the newest
image alone. The first pixel of an image holds its number, so every lost image counts. Latency is
the time from the image's stamp (the device's, mapped to this machine's clock) to the callback.
The floor are two processes in which bare rclpy publishes messages of the same size from a timer.

The benchmark does not cover USB, a camera's exposure and transfer, or a network.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DOMAIN, CAMERAS, SIZE, HZ, WARM_UP_S = 68, ("front", "wrist"), (480, 640), 30, 5.0
ROBOT = """driver: external
limits: {limits}
cameras:
  front: {{kind: realsense, serial: '001', size: [480, 640], twin: true}}
  wrist: {{kind: realsense, serial: '002', size: [480, 640], twin: true}}
"""


class Receiver:
    """Receives both topics; keeps the number and the latency of each image."""

    def __init__(self, node: Any) -> None:
        from sensor_msgs.msg import Image

        from rlinf_ros.qos import received

        self.numbers: dict[str, list[int]] = {name: [] for name in CAMERAS}
        self.late_ms: list[float] = []
        for name in CAMERAS:
            topic = f"camera/{name}/image"
            node.create_subscription(
                Image,
                topic,
                lambda image, name=name: self.add(name, image),
                received(topic, False),
            )

    def add(self, name: str, image: Any) -> None:
        stamp = image.header.stamp
        self.late_ms.append(time.time() * 1e3 - stamp.sec * 1e3 - stamp.nanosec / 1e6)
        first = image.data[:3]
        self.numbers[name].append(first[0] + (first[1] << 8) + (first[2] << 16))

    def clear(self) -> None:
        self.late_ms.clear()
        for numbers in self.numbers.values():
            numbers.clear()

    def lost(self, expected: int) -> int:
        """Return the number of images lost between the first and the last one.

        A camera that falls silent counts as if ``expected`` images had been due.
        """
        gaps = (
            (numbers[-1] - numbers[0] + 1 if numbers else 0, len(numbers))
            for numbers in self.numbers.values()
        )
        return sum(max(span, expected) - came for span, came in gaps)


def publish(name: str) -> None:
    """Run a bare publisher."""
    import array

    import rclpy
    from rclpy.executors import ExternalShutdownException
    from sensor_msgs.msg import Image

    from rlinf_ros.qos import profile

    rclpy.init()
    node = rclpy.create_node("bare", namespace=f"/station_a/camera/{name}")
    publisher = node.create_publisher(Image, "image", profile(f"camera/{name}/image"))
    image = Image(height=SIZE[0], width=SIZE[1], encoding="rgb8", step=3 * SIZE[1])
    image.data = array.array(
        "B", np.random.default_rng(0).integers(0, 255, (*SIZE, 3), dtype=np.uint8).tobytes()
    )
    numbers = iter(range(1, 1 << 24))

    def publish_next() -> None:
        number = next(numbers)
        image.data[0], image.data[1], image.data[2] = number & 255, number >> 8 & 255, number >> 16
        image.header.stamp = node.get_clock().now().to_msg()
        publisher.publish(image)

    node.create_timer(1 / HZ, publish_next)
    with contextlib.suppress(ExternalShutdownException):
        rclpy.spin(node)


def cpu_s(pids: list[int]) -> float:
    """Return user and system time of processes with all their threads [s]."""
    ticks = (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in pids
    )
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")


def measure(receiver: Receiver, spin: Any, pids: list[int], seconds: float) -> dict[str, float]:
    deadline = time.monotonic() + 60
    while not all(receiver.numbers.values()):
        spin(0.1)
        if time.monotonic() > deadline:
            raise SystemExit(
                "no image within 60 s of "
                f"{[name for name, received in receiver.numbers.items() if not received]}"
            )
    for pause in (WARM_UP_S, seconds):
        receiver.clear()
        before, started = cpu_s(pids), time.monotonic()
        while time.monotonic() - started < pause:
            spin(0.1)
    used = (cpu_s(pids) - before) / (time.monotonic() - started)
    latencies = np.percentile(receiver.late_ms, [50, 99])
    return {
        "images": sum(map(len, receiver.numbers.values())),
        "dropped": receiver.lost(int(0.98 * HZ * seconds)),
        "p50_ms": latencies[0],
        "p99_ms": latencies[1],
        "max_ms": max(receiver.late_ms),
        "core": used / len(pids),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="measured time of each")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), *map(str, ROOT.glob("ros_ws/src/*"))]
    from benchmarks.figures import write
    from rlinf_core.config.overrides import quote_value
    from rlinf_core.core.ros import ros_environment
    from rlinf_core.launch.graph import station_processes
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_core.recipes import load_recipe

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    if options.publish:
        publish(options.publish)
        return
    import rclpy

    from rlinf_ros.workarounds import single_threaded

    rclpy.init()
    node, executor = rclpy.create_node("receiver", namespace="/station_a"), single_threaded()
    executor.add_node(node)
    receiver, result = Receiver(node), dict[str, float]()

    def spin(seconds: float) -> None:
        executor.spin_once(timeout_sec=seconds)

    print(
        f"{'':<10}{'images':>8}{'dropped':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'core, each':>12}"
    )
    with tempfile.TemporaryDirectory(prefix="rlinf-cameras-") as folder:
        Path(folder, "robot.yaml").write_text(
            ROBOT.format(limits=ROOT / "robots/franka_fr3/limits.yaml")
        )
        recipe = load_recipe(
            "demo",
            [
                f"station.robot={quote_value(folder)}",
                "station.lockstep=false",
                "station.operator.kind=keyboard",
            ],
        )
        for name in ("cameras", "bare"):
            receiver.clear()
            with Supervisor(Path(folder), DOMAIN) as supervisor:
                if name == "cameras":
                    children = [
                        supervisor.start(process).popen
                        for process in station_processes(recipe, Path(folder))
                        if process.name.startswith("camera_")
                    ]
                else:
                    children = [
                        subprocess.Popen([sys.executable, *sys.argv, "--publish", camera])
                        for camera in CAMERAS
                    ]
                try:
                    figures = measure(
                        receiver, spin, [child.pid for child in children], options.seconds
                    )
                finally:
                    for child in children:
                        child.terminate()
            print(
                f"{name:<10}{figures['images']:>8}{figures['dropped']:>9}{figures['p50_ms']:>9.2f}{figures['p99_ms']:>9.2f}"
                f"{figures['max_ms']:>9.1f}{figures['core']:>12.3f}"
            )
            result |= {f"{key}_{name}": round(float(value), 4) for key, value in figures.items()}
    if options.json:
        write(options.json, result)
    os._exit(0)  # what the middleware still has in its threads is of no interest


if __name__ == "__main__":
    main()
