"""Measure the cost of the operator's page to a station, with two 480x640 cameras at 30 Hz.

    python benchmarks/page.py --json results.json

This process stands in for the robot side: it publishes two cameras of a noisy scene, and a pose at
100 Hz. The page's process runs as in a station. ``core`` is its share of a core (user and system
time of all threads), without a viewer, and with one and two viewers. A viewer is a WebSocket client
that acknowledges each frame like a browser. ``fps`` are the frames per second that arrive at the
first viewer, of the slower camera. The benchmark does not cover the browser's own drawing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DOMAIN, CAMERAS, SIZE, HZ, WARM_UP_S = 58, ("front", "wrist"), (480, 640), 30, 3.0


def scene(seed: int) -> np.ndarray:
    """Return a smooth picture with the noise of a camera."""
    rows, columns = np.mgrid[0 : SIZE[0], 0 : SIZE[1]]
    smooth = np.stack([rows * 0.3, columns * 0.25, (rows + columns) * 0.15], axis=-1)
    return np.clip(smooth + np.random.default_rng(seed).normal(0, 4, smooth.shape), 0, 255).astype(
        np.uint8
    )


class Robot:
    """Publishes as the robot side does, at its own rates, in threads."""

    def __init__(self, node) -> None:
        from geometry_msgs.msg import PoseStamped
        from sensor_msgs.msg import Image

        from rlinf_ros.conversions import to_image
        from rlinf_ros.qos import profile

        self.node, self.over, self.sent = node, threading.Event(), 0
        self.cameras = {
            name: node.create_publisher(
                Image, f"camera/{name}/image", profile(f"camera/{name}/image")
            )
            for name in CAMERAS
        }
        now = node.get_clock().now().to_msg()
        self.images = [[to_image(name, scene(seed), now) for seed in range(4)] for name in CAMERAS]
        self.pose = node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
        self.message = PoseStamped()
        for seconds, publish in ((1 / HZ, self.publish_images), (0.01, self.publish_pose)):
            threading.Thread(target=self.repeat, args=[seconds, publish], daemon=True).start()

    def repeat(self, seconds: float, publish) -> None:
        due = time.monotonic()
        while not self.over.is_set():
            publish()
            due = max(due + seconds, time.monotonic() - seconds)
            time.sleep(max(0.0, due - time.monotonic()))

    def publish_images(self) -> None:
        stamp, self.sent = self.node.get_clock().now().to_msg(), self.sent + 1
        for publisher, images in zip(self.cameras.values(), self.images, strict=True):
            images[self.sent % 4].header.stamp = stamp
            publisher.publish(images[self.sent % 4])

    def publish_pose(self) -> None:
        self.message.header.stamp = self.node.get_clock().now().to_msg()
        self.message.pose.position.x += 1e-5
        self.pose.publish(self.message)


async def watch(url: str, seconds: float, counts: list[int]) -> None:
    """Run one viewer, and count its frames by camera."""
    import aiohttp

    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/live", headers={"Origin": url}) as page,
    ):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = await page.receive(timeout=5.0)
            if message.type is aiohttp.WSMsgType.BINARY:
                counts[message.data[0]] += 1
                await page.send_str('{"kind": "acknowledgement"}')


def cpu_s(pid: int) -> float:
    """Return user and system time of a process with all its threads [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(pid: int, url: str, viewers: int, seconds: float, robot: Robot) -> dict[str, float]:
    counts = [[0] * len(CAMERAS) for _ in range(viewers)]

    async def run_viewers() -> None:
        await asyncio.gather(
            asyncio.sleep(seconds), *(watch(url, seconds, count) for count in counts)
        )

    before, started, sent = cpu_s(pid), time.monotonic(), robot.sent
    asyncio.run(run_viewers())
    elapsed = time.monotonic() - started
    return {
        "core": (cpu_s(pid) - before) / elapsed,
        "fps": min(counts[0]) / elapsed if viewers else 0.0,
        "sent_fps": (robot.sent - sent) / elapsed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="measured time for each number of viewers"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), *map(str, ROOT.glob("ros_ws/src/*"))]
    from benchmarks.figures import write
    from rlinf_core.core.ros import ros_environment
    from rlinf_core.launch.graph import station_processes
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_core.recipes import load_recipe

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    import rclpy

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    recipe = load_recipe(
        "demo", [f"station.web.port={port}", "station.observe_cameras=[front,wrist]"]
    )
    rclpy.init()
    result: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="rlinf-page-") as folder,
        Supervisor(Path(folder), DOMAIN) as supervisor,
    ):
        robot = Robot(rclpy.create_node("robot", namespace=f"/{recipe.station.name}"))
        page = next(
            process for process in station_processes(recipe, Path(folder)) if process.name == "page"
        )
        child, url = supervisor.start(page), f"http://127.0.0.1:{port}"
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        time.sleep(WARM_UP_S)
        print(f"{'viewers':<10}{'share of a core':>18}{'frames/s':>12}{'sent/s':>10}")
        for viewers in (0, 1, 2):
            figures = measure(child.popen.pid, url, viewers, options.seconds, robot)
            result |= {f"{key}_{viewers}": round(value, 4) for key, value in figures.items()}
            print(
                f"{viewers:<10}{figures['core']:>18.3f}{figures['fps']:>12.1f}{figures['sent_fps']:>10.1f}"
            )
        robot.over.set()
    if options.json:
        write(options.json, result)
    os._exit(0)  # without waiting for the middleware's threads


if __name__ == "__main__":
    main()
