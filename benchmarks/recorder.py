"""Measure the cost of recording two 480x640 cameras at 30 Hz, raw and as JPEG.

    python benchmarks/recorder.py --json results.json

* raw: each time step carries both images, for a policy that observes them (55 MB/s).
* jpeg: time steps carry no image. The recorder stores from each camera's topic the image with the
  time step's stamp, as JPEG.

This process stands in for the rest of the station, and publishes one episode of each kind. The
recorder runs as in a station. Its share of a core is user and system time of all of its threads,
from the first time step until the episode is closed, sealed and flushed. The floor is a bare
subscriber: an rclpy node with the same subscriptions and queues, which writes the raw bytes to a
file. A second floor also computes the checksums of a recording: CRC-32 of each message, as MCAP
stores it, and SHA-256 of the file, which seals it. Lost messages are those that were sent and are
not in the recording, which the `mcap` package reads. The benchmark does not cover a slow disk,
other rates, or a network.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *map(str, ROOT.glob("ros_ws/src/*"))]
from benchmarks.figures import write  # noqa: E402
from benchmarks.page import CAMERAS, HZ, cpu_s, scene  # noqa: E402

DOMAIN, KINDS, TIMEOUT_S = 59, ("raw", "jpeg"), 60.0
FLOORS = ("bare", "checksums")
# An environment publishes a time step after the images that belong to it.
IMAGE_LEAD_S = 0.005


class Station:
    """One node that publishes what a recorder subscribes to."""

    def __init__(self, name: str) -> None:
        import rclpy
        from rlinf_msgs.msg import Applied, EpisodeEvent, TimeStep
        from sensor_msgs.msg import Image

        from rlinf_ros.conversions import to_image
        from rlinf_ros.qos import profile

        self.name = name
        self.node = rclpy.create_node("station", namespace=f"/{name}")
        self.closed = []
        kinds = {"timestep": TimeStep, "applied": Applied, "episode": EpisodeEvent}
        self.topics: dict[str, Any] = {
            topic: self.node.create_publisher(kind, topic, profile(topic))
            for topic, kind in kinds.items()
        }
        self.cameras = [
            self.node.create_publisher(
                Image, f"camera/{camera}/image", profile(f"camera/{camera}/image")
            )
            for camera in CAMERAS
        ]
        now = self.node.get_clock().now().to_msg()
        self.images = [
            [to_image(camera, scene(seed), now) for seed in range(4)] for camera in CAMERAS
        ]
        self.node.create_subscription(EpisodeEvent, "episode", self._on_episode, profile("episode"))

    def _on_episode(self, event: Any) -> None:
        if event.kind >= 2:  # closed, or aborted
            self.closed.append(event)

    def has_subscribers(self, receivers: int) -> bool:
        """Return whether every topic has this number of subscribers."""
        return all(
            publisher.get_subscription_count() >= receivers
            for publisher in (self.topics["timestep"], *self.cameras)
        )

    def play(self, kind: str, seconds: float, episode: str) -> int:
        """Publish one episode; return its number of time steps."""
        import rclpy
        from rlinf_msgs.msg import Applied, EpisodeEvent, NamedVector, TimeStep

        steps = round(seconds * HZ)
        episode_fields = {"episode_id": episode, "station": self.name, "mode": "demonstration"}
        self.topics["episode"].publish(EpisodeEvent(kind=EpisodeEvent.STARTED, **episode_fields))
        due = time.monotonic()
        for k in range(steps + 1):
            stamp = self.node.get_clock().now().to_msg()
            images = [frames[k % 4] for frames in self.images]
            for image, publisher in zip(images, self.cameras, strict=True):
                image.header.stamp = stamp
                if kind == "jpeg":
                    publisher.publish(image)
            time.sleep(IMAGE_LEAD_S)
            step = TimeStep(
                step_index=k,
                episode_id=episode,
                mode="demonstration",
                discount=1.0,
                step_type=TimeStep.FIRST if not k else TimeStep.MID if k < steps else TimeStep.LAST,
                vectors=[NamedVector(name="state", data=array.array("f", [float(k)]))],
                images=images if kind == "raw" else [],
            )
            step.header.stamp = stamp
            self.topics["timestep"].publish(step)
            if k < steps:
                applied = Applied(source="operator", seq=k + 1, requested=[0.0], executed=[0.0])
                applied.header.stamp = applied.observation_stamp = stamp
                self.topics["applied"].publish(applied)
            rclpy.spin_once(self.node, timeout_sec=0)
            due += 1 / HZ
            time.sleep(max(0.0, due - time.monotonic()))
        self.topics["episode"].publish(
            EpisodeEvent(kind=EpisodeEvent.ENDED, steps=steps, **episode_fields)
        )
        return steps + 1


def subscribed_profiles() -> dict[str, Any]:
    """Return the recorder's quality of service for each topic."""
    from rlinf_ros.qos import lazy_profile, lossless_profile
    from rlinf_station.recorder import IMAGE_QUEUE_DEPTH

    return {
        "timestep": lossless_profile("timestep"),
        **{f"camera/{camera}/image": lazy_profile(IMAGE_QUEUE_DEPTH) for camera in CAMERAS},
    }


def run_bare_subscriber(namespace: str, out: Path, has_checksums: bool) -> None:
    """Write the raw messages to a file until the standard input ends.

    Args:
        namespace: of the station.
        out: the file.
        has_checksums: whether to compute CRC-32 and SHA-256, too.
    """
    import threading

    import rclpy

    from rlinf_ros.qos import subscription

    rclpy.init()
    node, counts = rclpy.create_node("bare", namespace=namespace), Counter[str]()
    sha256 = hashlib.sha256()
    with out.open("wb") as file:

        def write_message(topic: str, raw: bytes) -> None:
            counts[topic] += 1
            file.write(raw)
            if has_checksums:
                zlib.crc32(raw)
                sha256.update(raw)

        for topic, quality in subscribed_profiles().items():
            subscription(node, topic, partial(write_message, topic), quality=quality, raw=True)
        threading.Thread(target=lambda: (sys.stdin.read(), rclpy.shutdown()), daemon=True).start()
        with contextlib.suppress(Exception):  # spin raises after the shutdown
            rclpy.spin(node)
    print(json.dumps(counts))


def wait(node: Any, condition: Any, what: str) -> None:
    import rclpy

    end = time.monotonic() + TIMEOUT_S
    while not condition():
        rclpy.spin_once(node, timeout_sec=0.05)
        if time.monotonic() > end:
            raise SystemExit(f"expected {what} within {TIMEOUT_S:.0f} s")


def count_recorded(folder: Path) -> Counter[str]:
    """Return the number of messages of each topic in a recording."""
    from mcap.reader import make_reader

    with next(folder.glob("*.mcap")).open("rb") as file:
        return Counter(
            channel.topic.partition("/")[2].partition("/")[2]
            for _, channel, _ in make_reader(file, validate_crcs=True).iter_messages()
        )


def count_lost(counts: Counter[str], kind: str, steps: int, suffix: str) -> int:
    images = (
        sum(steps - counts[f"camera/{camera}/image{suffix}"] for camera in CAMERAS)
        if kind == "jpeg"
        else 0
    )
    return steps - counts["timestep"] + images


def measure_recorder(
    station: Station, pid: int, kind: str, seconds: float, spool: Path
) -> dict[str, float]:
    before, started = cpu_s(pid), time.monotonic()
    steps = station.play(kind, seconds, f"take_{kind}")
    wait(station.node, lambda: station.closed, "the recorder to close the episode")
    elapsed, event = time.monotonic() - started, station.closed.pop()
    if event.kind != 2:
        raise SystemExit(f"expected a closed episode, got: {event.detail}")
    folder = spool / "closed" / f"take_{kind}"
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    return {
        "core": (cpu_s(pid) - before) / elapsed,
        "lost": count_lost(count_recorded(folder), kind, steps, "/compressed"),
        "sent": steps,
        "megabytes_per_s": size / seconds,
    }


def measure_bare(
    station: Station, kind: str, floor: str, seconds: float, folder: Path
) -> dict[str, float]:
    """Measure a floor: ``bare``, or ``checksums`` for one that computes them."""
    out = folder / f"{floor}_{kind}"
    child = subprocess.Popen(
        [sys.executable, __file__, "--floor", floor, f"/{station.name}", str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait(station.node, lambda: station.has_subscribers(1), "the bare subscriber")
    time.sleep(1.0)
    before, started = cpu_s(child.pid), time.monotonic()
    steps = station.play(kind, seconds, f"{floor}_{kind}")
    elapsed, written = time.monotonic() - started, -1
    while written != (written := out.stat().st_size):  # until its queue is written
        time.sleep(0.5)
    core = (cpu_s(child.pid) - before) / elapsed
    counts = Counter(json.loads(child.communicate("")[0].splitlines()[-1]))
    out.unlink()
    return {f"{floor}_core": core, f"{floor}_lost": count_lost(counts, kind, steps, "")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="duration of each episode, at most 30"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder on the measured disk (default: a temporary one)"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--floor", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    from rlinf_core.core.ros import ros_environment
    from rlinf_core.launch.graph import station_processes
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_core.recipes import load_recipe

    if options.floor:
        floor, namespace, out = options.floor
        run_bare_subscriber(namespace, Path(out), floor == "checksums")
        return
    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    import rclpy

    rclpy.init()
    recipe = load_recipe(
        "demo", [f"station.observe_cameras=[{','.join(CAMERAS)}]", "station.lockstep=false"]
    )
    station, result = Station(recipe.station.name), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="rlinf-recorder-", dir=options.folder) as name:
        folder = Path(name)
        for kind in KINDS:
            for floor in FLOORS:
                shares = measure_bare(station, kind, floor, options.seconds, folder)
                for key, value in shares.items():
                    result[f"{kind}_{key}"] = round(value, 4)
                wait(
                    station.node,
                    lambda: not station.has_subscribers(1),
                    "the bare subscriber to be gone",
                )
        with Supervisor(folder, DOMAIN) as supervisor:
            process = next(
                spec for spec in station_processes(recipe, folder) if spec.name == "recorder"
            )
            child = supervisor.start(process)
            wait(
                station.node,
                lambda: (
                    station.has_subscribers(1)
                    and station.topics["episode"].get_subscription_count() > 1
                ),
                "the recorder",
            )
            time.sleep(1.0)
            for kind in KINDS:
                figures = measure_recorder(
                    station, child.popen.pid, kind, options.seconds, folder / "spool"
                )
                for key, value in figures.items():
                    result[f"{kind}_{key}"] = round(value, 4)
    print(f"{'':24}{'lost':>6}{'of':>8}{'share of a core':>18}{'MB/s':>8}")
    for kind in KINDS:
        print(
            f"{kind + ', recorder':24}{result[f'{kind}_lost']:>6.0f}{result[f'{kind}_sent']:>8.0f}"
            f"{result[f'{kind}_core']:>18.3f}{result[f'{kind}_megabytes_per_s']:>8.1f}"
        )
        for floor in FLOORS:
            print(
                f"{kind + ', ' + floor:24}{result[f'{kind}_{floor}_lost']:>6.0f}"
                f"{result[f'{kind}_sent']:>8.0f}{result[f'{kind}_{floor}_core']:>18.3f}"
            )
    if options.json:
        write(options.json, result)
    os._exit(0)  # without waiting for the middleware's threads


if __name__ == "__main__":
    main()
