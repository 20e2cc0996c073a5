"""The interlock as a process on the real middleware, with this test as robot side and policy."""

import math
import subprocess
import sys
import time

import pytest
import yaml

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
rclpy = pytest.importorskip("rclpy")

from geometry_msgs.msg import PoseStamped  # noqa: E402
from rlinf_msgs.msg import ActionChunk, Applied, EpisodeEvent, SafetyState  # noqa: E402
from rlinf_msgs.srv import ResetFault  # noqa: E402
from std_srvs.srv import SetBool  # noqa: E402

from rlinf.qos import profile  # noqa: E402

DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)


class Bench:
    """Publishes a perfectly following arm at 100 Hz and keeps what the interlock says."""

    def __init__(self, tmp_path):
        rclpy.init(domain_id=85)
        self.node = rclpy.create_node("bench", namespace="/t")
        self.executor = rclpy.executors.SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.pose = PoseStamped()
        self.pose.pose.position.x, self.pose.pose.position.z, self.pose.pose.orientation.y = 0.5, 0.2, 1.0
        self.pose.pose.orientation.w = 0.0
        self.targets, self.applied, self.safety, self.publish_state = [], [], SafetyState(), True
        node = self.node
        self.poses = node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
        self.actions = node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
        self.teleop = node.create_publisher(ActionChunk, "teleop/action", profile("teleop/action"))
        self.episodes = node.create_publisher(EpisodeEvent, "episode", profile("episode"))
        node.create_subscription(PoseStamped, "target_pose", self._on_target, profile("target_pose"))
        node.create_subscription(Applied, "applied", self.applied.append, profile("applied"))
        node.create_subscription(SafetyState, "safety", lambda m: setattr(self, "safety", m), profile("safety"))
        self.arming = node.create_client(SetBool, "interlock/arm")
        self.resetting = node.create_client(ResetFault, "interlock/reset_fault")
        node.create_timer(0.01, self._publish)
        parameters = tmp_path / "p.yaml"
        parameters.write_text(yaml.safe_dump({"/**": {"ros__parameters": {
            "limits_file": "robots/franka_sim/limits.yaml", "lockstep": False}}}))
        import os

        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlinf.interlock", "--ros-args", "-r", "__ns:=/t", "--params-file", str(parameters)],
            env=os.environ | {"ROS_DOMAIN_ID": "85"})
        self.seq = 0

    def _on_target(self, message):
        self.targets.append((time.monotonic(), message.pose.position.x))
        self.pose.pose = message.pose

    def _publish(self):
        if self.publish_state:
            self.pose.header.stamp = self.node.get_clock().now().to_msg()
            self.poses.publish(self.pose)

    def spin(self, until, timeout_s=10.0):
        deadline = time.monotonic() + timeout_s
        while not until():
            self.executor.spin_once(timeout_sec=0.01)
            assert time.monotonic() < deadline, (self.safety, len(self.targets))

    def for_s(self, seconds):
        end = time.monotonic() + seconds
        self.spin(lambda: time.monotonic() > end)

    def call(self, client, request):
        assert client.wait_for_service(10.0)
        future = client.call_async(request)
        self.spin(future.done)
        return future.result()

    def arm(self):
        self.spin(lambda: self.targets)
        assert self.call(self.arming, SetBool.Request(data=True)).success
        self.spin(lambda: self.safety.state == ARMED)

    def send(self, x=0.01, publisher=None, source="policy", session="s", dt=0.1):
        self.seq += 1
        message = ActionChunk(source=source, session=session, seq=self.seq, policy_version=1, dt=dt,
                              control_mode="tcp_delta", horizon=1, dim=3, execute=1)
        message.observation_stamp = self.node.get_clock().now().to_msg()
        message.data = [x, 0.0, 0.0]
        (publisher or self.actions).publish(message)

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        self.node.destroy_node()
        rclpy.try_shutdown()


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_s02_s12_a_policy_that_falls_silent_is_answered_with_a_stop_and_a_held_target(bench):
    bench.arm()
    for _ in range(5):
        bench.send()
        bench.for_s(0.1)
    assert bench.safety.state == ACTIVE and bench.pose.pose.position.x > 0.52
    bench.spin(lambda: bench.safety.state == HOLD and bench.safety.cause == "stale_command", 2.0)
    bench.for_s(0.2)
    count, held = len(bench.targets), bench.targets[-1][1]
    bench.for_s(0.5)
    assert len(bench.targets) - count > 30, "it holds by publishing, never by silence"
    assert {x for _, x in bench.targets[count:]} == {held}


def test_s05_nan_is_held_at_once_and_three_latch_until_reset_by_name(bench):
    bench.arm()
    for _ in range(3):
        bench.send(math.nan)
    bench.spin(lambda: bench.safety.state == FAULT)
    assert bench.safety.cause == "invalid_command"
    answer = bench.call(bench.arming, SetBool.Request(data=True))
    assert not answer.success and "FAULT 'invalid_command' stands" in answer.message
    answer = bench.call(bench.resetting, ResetFault.Request(cause="e_stop"))
    assert not answer.success and "FAULT 'invalid_command' stands" in answer.message
    assert bench.call(bench.resetting, ResetFault.Request(cause="invalid_command")).success
    bench.spin(lambda: bench.safety.state == DISARMED)
    assert len({x for _, x in bench.targets}) == 1, "the arm never moved"


def test_s03_a_robot_side_that_falls_silent_faults(bench):
    bench.arm()
    bench.send()
    bench.spin(lambda: bench.safety.state == ACTIVE)
    bench.publish_state = False
    bench.spin(lambda: bench.safety.state == FAULT and bench.safety.cause == "stale_state", 3.0)


def test_s06_the_operator_takes_over_and_the_record_says_so(bench):
    bench.arm()
    bench.send()
    bench.for_s(0.1)
    bench.send(-0.01, bench.teleop, "operator", "o")
    bench.spin(lambda: bench.safety.source == "operator")
    bench.send()
    bench.for_s(0.15)
    assert {record.source for record in bench.applied} == {"policy", "operator"}
    assert bench.safety.dropped >= 1
    assert all(len(record.limits_hash) == 12 for record in bench.applied)


def test_trap09_the_end_of_an_episode_drops_the_rest_of_the_chunk(bench):
    bench.arm()
    bench.send(0.02, dt=0.5)
    bench.for_s(0.1)
    bench.episodes.publish(EpisodeEvent(kind=EpisodeEvent.ENDED, episode_id="e"))
    bench.spin(lambda: bench.safety.state == ARMED)
    bench.for_s(0.2)
    held = bench.targets[-1][1]
    bench.for_s(0.3)
    assert bench.targets[-1][1] == held < 0.515


def test_the_node_refuses_to_start_without_limits(tmp_path):
    (tmp_path / "limits.yaml").write_text("speed: 0.1\n")
    result = subprocess.run(
        [sys.executable, "-m", "rlinf.interlock", "--ros-args", "-p", f"limits_file:={tmp_path / 'limits.yaml'}"],
        text=True, capture_output=True, timeout=30)
    assert result.returncode != 0 and "'box_low' is missing" in result.stderr
