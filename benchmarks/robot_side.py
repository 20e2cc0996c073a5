"""The robot side of a benchmark, and the floors of what it measures: bare processes in the
station's place.

"spin": one process under ``rclpy.spin``. "events": one on the executor that our nodes spin on.
"relay": three of those in a row, as environment, policy and interlock are, which pass on messages
of the same size and compute nothing.
"""

from __future__ import annotations

import array
import contextlib
import os
import subprocess
import sys
import time

import numpy as np

CAMERAS, SIZE, STATE_HZ = ("front", "wrist"), (128, 128), 100
LEVELS = (-0.75, -0.25, 0.25, 0.75)  # normalised actions
SPEED = 0.005  # [m/s] of an action of 1: of those above, each follows each within a tick of 2 ms
OFFSETS = (-0.15, -0.05, 0.05, 0.15)  # [m] where the socket seems to be, which names the level
WARM_UP_S = 8.0
HOME = (0.5, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0)
FLOORS = {"spin": ("spin",), "events": ("events",), "relay": ("environment", "policy", "interlock")}


def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (*SIZE, 3), dtype=np.uint8)


class RobotSide:
    """Publishes state at STATE_HZ and both images at ``hz``; ``answers`` holds (time, target pose)
    of every command.
    """

    def __init__(self, node, hz: int) -> None:
        from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
        from sensor_msgs.msg import Image, JointState

        from rlinf_ros.qos import profile

        self.node, self.every = node, STATE_HZ // hz
        self.tick, self.step, self.target, self.until = 0, 0, HOME, 0.0
        self.published: list[tuple[float, int]] = []
        self.answers: list[tuple[float, float]] = []
        kinds = {
            "current_pose": PoseStamped,
            "object_pose": PoseStamped,
            "current_twist": TwistStamped,
            "wrench": WrenchStamped,
            "joint_states": JointState,
            "gripper/state": JointState,
        }
        self.messages = {topic: kind() for topic, kind in kinds.items()}
        self.messages["joint_states"].position = [0.0] * 7
        data = array.array("B", pixels().tobytes())
        for name in CAMERAS:
            self.messages[f"camera/{name}/image"] = Image(
                height=SIZE[0], width=SIZE[1], encoding="rgb8", step=3 * SIZE[1], data=data
            )
        self.outputs = {
            topic: node.create_publisher(type(message), topic, profile(topic))
            for topic, message in self.messages.items()
        }
        node.create_subscription(PoseStamped, "target_pose", self.on_target, profile("target_pose"))
        node.create_timer(1.0 / STATE_HZ, self.publish)

    def publish(self) -> None:
        started, stamp = time.monotonic(), self.node.get_clock().now().to_msg()
        observation = self.tick % self.every == 0
        if observation:
            self.step += 1
            self.messages["object_pose"].pose.position.x = (
                self.target[0] + OFFSETS[self.step % len(OFFSETS)]
            )
            self.published.append((started, self.step % len(OFFSETS)))
        self.tick += 1
        pose = self.messages["current_pose"].pose
        pose.position.x, pose.position.y, pose.position.z = self.target[:3]
        pose.orientation.x, pose.orientation.w = 1.0, 0.0
        (
            self.messages["object_pose"].pose.position.y,
            self.messages["object_pose"].pose.position.z,
        ) = self.target[1:3]
        for topic, message in self.messages.items():
            if observation or not topic.startswith(("camera/", "object_pose")):
                message.header.stamp = stamp
                self.outputs[topic].publish(message)

    def on_target(self, message) -> None:
        p = message.pose.position
        self.answers.append((time.monotonic(), p.x))
        self.target = (p.x, p.y, p.z)

    def latencies(self, hz: int, tick_s: float) -> tuple[np.ndarray, int]:
        """Seconds from each observation to the first command of its level; and how many were never
        answered.
        """
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


def round_trips(hz: int, seconds: float, floor: str) -> np.ndarray:
    """Seconds from a message to the pose that answers it, without a station: through the processes
    of one of FLOORS.

    inf where no answer came within a period: these answers do not say what they answer. A station's
        do, and count
    within three periods, those after more than one as late.
    """
    import rclpy

    from rlinf_ros.workarounds import single_threaded

    node = rclpy.create_node("ping", namespace="/pingpong")
    executor = single_threaded()
    executor.add_node(node)
    robot = RobotSide(node, hz)
    others = [subprocess.Popen([sys.executable, __file__, name]) for name in FLOORS[floor]]
    try:
        end = time.monotonic() + 60
        while len(robot.answers) < 10:
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() > end:
                raise SystemExit(f"{floor}: the other side does not answer")
        robot.published.clear()
        robot.answers.clear()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
    finally:
        for other in others:
            other.terminate()
            other.wait()
        executor.shutdown()
        node.destroy_node()
    arrived = np.array([at for at, _ in robot.answers])
    times = []
    for at, _ in robot.published[:-1]:
        later = arrived[(arrived > at) & (arrived < at + 1.0 / hz)]
        times.append(later[0] - at if len(later) else np.inf)
    return np.array(times)


def percentiles(times: np.ndarray) -> dict[str, float]:
    """Return the median and the 99th percentile of seconds, in milliseconds."""
    return {
        "p50_ms": 1e3 * float(np.percentile(times, 50)),
        "p99_ms": 1e3 * float(np.percentile(times, 99)),
    }


def other_side(name: str) -> None:
    """One process of a floor: it answers what has come with a message that it has ready, and
    computes nothing.
    """
    import rclpy
    from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
    from rclpy._rclpy_pybind11 import RCLError
    from rclpy.executors import ExternalShutdownException
    from rclpy.node import Node
    from rlinf_msgs.msg import ActionChunk, NamedVector, TimeStep
    from sensor_msgs.msg import Image, JointState

    from rlinf_ros.qos import profile
    from rlinf_ros.spinning import run

    # an answer is due when the last image has come
    kinds = {
        "current_pose": PoseStamped,
        "object_pose": PoseStamped,
        "current_twist": TwistStamped,
        "wrench": WrenchStamped,
        "joint_states": JointState,
        "gripper/state": JointState,
        **{f"camera/{camera}/image": Image for camera in CAMERAS},
    }
    image = Image(height=SIZE[0], width=SIZE[1], encoding="rgb8", step=3 * SIZE[1])
    image.data = array.array("B", pixels().tobytes())
    step = TimeStep(
        images=[image] * len(CAMERAS),
        vectors=[NamedVector(name=topic_name, data=[0.0] * 7) for topic_name in kinds],
    )
    pose, chunk = PoseStamped(), ActionChunk(horizon=1, dim=7, data=[0.0] * 7)
    hears, topic, answer, priority = {
        "environment": (kinds, "timestep", step, 20),
        "policy": ({"timestep": TimeStep}, "policy/action", chunk, 10),
        "interlock": ({"policy/action": ActionChunk}, "target_pose", pose, 30),
    }.get(name, (kinds, "target_pose", pose, 10))

    class Other(Node):
        def __init__(self) -> None:
            super().__init__(name, namespace="/pingpong")
            answers = self.create_publisher(type(answer), topic, profile(topic))
            *before, last = hears
            for topic_name in before:
                self.create_subscription(
                    hears[topic_name], topic_name, lambda _: None, profile(topic_name)
                )
            self.create_subscription(
                hears[last], last, lambda _: answers.publish(answer), profile(last)
            )

    if name != "spin":
        run(Other, priority=priority)
        return
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    rclpy.init()
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException, RCLError):
        rclpy.spin(Other())


def as_a_driver(children: int = 0) -> None:
    """At the priority of a robot's driver; with SCHED_RESET_ON_FORK, what this thread starts from
    now on has none.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | children, os.sched_param(25))


def as_everybody() -> None:
    """At no real-time priority, which what this thread starts would have, too."""
    # which a thread that has no right to it may not take back
    for children in (
        0,
        os.SCHED_RESET_ON_FORK,
    ):
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER | children, os.sched_param(0))
            return


if __name__ == "__main__":
    other_side(sys.argv[1])
