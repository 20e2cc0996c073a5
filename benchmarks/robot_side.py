"""The robot side of a benchmark, and floors for its figures: bare processes in the station's place.

* "spin": one process under ``rclpy.spin``
* "events": one process with the executor of our nodes
* "relay": three of those in a row, in the places of environment, policy and interlock; they pass on
  messages of the same size and compute nothing
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
# Velocity of an action of 1 [m/s]: small enough to change between any two levels in a tick of 2 ms.
SPEED = 0.005
OFFSETS = (-0.15, -0.05, 0.05, 0.15)  # published offsets of the socket [m]; each asks for a level
WARM_UP_S = 8.0
HOME = (0.5, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0)
FLOORS = {"spin": ("spin",), "events": ("events",), "relay": ("environment", "policy", "interlock")}


def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, (*SIZE, 3), dtype=np.uint8)


class RobotSide:
    """Publishes the state at STATE_HZ and both images at ``hz``, and records the commands.

    Attributes:
        published: (time, level) of every observation.
        answers: (time, x of the target pose) of every command.
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
        """Return the times [s] from each observation to the first command of its level.

        The second value is the number of observations without an answer.
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
    """Measure a floor: the time [s] from each message to the pose that answers it.

    An answer does not name its message. Without an answer within a period the time is infinite. A
    station's answers name their observation; they count within three periods, and as late after one.
    """
    import rclpy

    from rlinf_ros.workarounds import single_threaded

    node = rclpy.create_node("ping", namespace="/pingpong")
    executor = single_threaded()
    executor.add_node(node)
    robot = RobotSide(node, hz)
    floor_processes = [subprocess.Popen([sys.executable, __file__, name]) for name in FLOORS[floor]]
    try:
        end = time.monotonic() + 60
        while len(robot.answers) < 10:
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() > end:
                raise SystemExit(f"{floor}: expected answers within 60 s, got none")
        robot.published.clear()
        robot.answers.clear()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
    finally:
        for other in floor_processes:
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


def answer_messages(name: str) -> None:
    """Run one process of a floor: answer the last message of a set with a ready message."""
    import rclpy
    from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
    from rclpy._rclpy_pybind11 import RCLError
    from rclpy.executors import ExternalShutdownException
    from rclpy.node import Node
    from rlinf_msgs.msg import ActionChunk, NamedVector, TimeStep
    from sensor_msgs.msg import Image, JointState

    from rlinf_ros.qos import profile
    from rlinf_ros.spinning import run

    # The last image completes an observation and triggers the answer.
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
    subscribed, topic, answer, priority = {
        "environment": (kinds, "timestep", step, 20),
        "policy": ({"timestep": TimeStep}, "policy/action", chunk, 10),
        "interlock": ({"policy/action": ActionChunk}, "target_pose", pose, 30),
    }.get(name, (kinds, "target_pose", pose, 10))

    class Answerer(Node):
        def __init__(self) -> None:
            super().__init__(name, namespace="/pingpong")
            answers = self.create_publisher(type(answer), topic, profile(topic))
            *before, last = subscribed
            for topic_name in before:
                self.create_subscription(
                    subscribed[topic_name], topic_name, lambda _: None, profile(topic_name)
                )
            self.create_subscription(
                subscribed[last], last, lambda _: answers.publish(answer), profile(last)
            )

    if name != "spin":
        run(Answerer, priority=priority)
        return
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    rclpy.init()
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException, RCLError):
        rclpy.spin(Answerer())


def use_driver_priority(children: int = 0) -> None:
    """Set this thread to the real-time priority of a robot's driver.

    Args:
        children: os.SCHED_RESET_ON_FORK to give threads and processes started from now on none.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | children, os.sched_param(25))


def use_normal_priority() -> None:
    """Set this thread, and all that it starts from now on, to no real-time priority."""
    # A thread without the privilege may not remove SCHED_RESET_ON_FORK again.
    for children in (0, os.SCHED_RESET_ON_FORK):
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER | children, os.sched_param(0))
            return


if __name__ == "__main__":
    answer_messages(sys.argv[1])
