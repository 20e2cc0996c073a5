"""Play a recording into a running graph, like ros2 bag play."""

import time

import rclpy
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosbags.rosbag2 import Reader

from rlinf_core.specs.topics import topic
from rlinf_ros.qos import kind, profile


def assert_played(folder, domain, least, others=(), station="station_a"):
    """Publish the recorded bytes with the recorded quality of service; check that all arrive.

    Args:
        least: smallest number of recorded topics of the robot interface.
        others: other recorded topics.
    """
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain)
    player, listener = (rclpy.create_node(name, context=context) for name in ("player", "listener"))
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(listener)
    received, sent, publishers = {}, {}, {}
    try:
        with Reader(folder) as reader:
            for connection in reader.connections:
                name = connection.topic.removeprefix(f"/{station}/")
                if name in others or name.startswith("/"):
                    continue
                [offered] = connection.ext.offered_qos_profiles
                assert (offered.depth, offered.durability.name == "TRANSIENT_LOCAL") == (
                    topic(name).depth,
                    topic(name).latched,
                )
                publishers[connection.topic] = player.create_publisher(
                    kind(name),
                    connection.topic,
                    QoSProfile(
                        depth=offered.depth,
                        history=HistoryPolicy[offered.history.name],
                        reliability=ReliabilityPolicy[offered.reliability.name],
                        durability=DurabilityPolicy[offered.durability.name],
                    ),
                )
                listener.create_subscription(
                    kind(name),
                    connection.topic,
                    lambda message, to=connection.topic: received.setdefault(to, []).append(
                        message
                    ),
                    profile(name),
                )
            deadline = time.monotonic() + 20
            while (
                not all(publisher.get_subscription_count() for publisher in publishers.values())
                and time.monotonic() < deadline
            ):
                executor.spin_once(timeout_sec=0.05)
            for connection, _, raw in reader.messages(
                [connection for connection in reader.connections if connection.topic in publishers]
            ):
                publishers[connection.topic].publish(raw)
                sent[connection.topic] = sent.get(connection.topic, 0) + 1
                executor.spin_once(timeout_sec=0.01)
        while {
            name: len(got) for name, got in received.items()
        } != sent and time.monotonic() < deadline + 20:
            executor.spin_once(timeout_sec=0.05)
        assert {name: len(got) for name, got in received.items()} == sent and len(sent) >= least
    finally:
        executor.shutdown()
        for node in (player, listener):
            node.destroy_node()
        rclpy.shutdown(context=context)
