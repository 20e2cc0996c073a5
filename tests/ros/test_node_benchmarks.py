"""Benchmarks of nodes measure what they say: the interlock while it is armed, and who is compared
as they compare.
"""

import contextlib
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from benchmarks import interlock, recorder, robot_side, station_loop

rclpy = pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue  # noqa: E402
from geometry_msgs.msg import PoseStamped  # noqa: E402

from rlinf_ros.qos import lossless_profile, profile  # noqa: E402
from rlinf_station import recorder as sampled  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


@pytest.fixture
def alone(request, monkeypatch):
    """As the benchmark's own process is, in the test's domain, and with few chunks to wait for."""
    domain = request.node.get_closest_marker("domain").args[0]
    monkeypatch.setattr(interlock, "DOMAIN", domain)
    monkeypatch.setattr(interlock, "HISTORY", 50)
    rclpy.init(domain_id=domain)
    yield
    rclpy.try_shutdown()


@contextlib.contextmanager
def saying(kind, topic, message, quality):
    """Somebody else in the domain, who says this without end."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=interlock.DOMAIN)
    node, over = rclpy.create_node("somebody", context=context), threading.Event()
    publisher = node.create_publisher(kind, topic, quality)

    def repeat():
        while not over.wait(0.02):
            publisher.publish(message)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        node.destroy_node()
        rclpy.try_shutdown(context=context)


@pytest.mark.domain(74)
def test_the_interlocks_times_are_its_own(alone):
    other = DiagnosticStatus(
        name="station_a/interlock", values=[KeyValue(key="reaction_p99_ms", value="1e9")]
    )
    with saying(DiagnosticArray, "/diagnostics", DiagnosticArray(status=[other]), 10):
        assert interlock.node_times(100, "idle", 1.0)["p99_ms"] < 1e9


@pytest.mark.slow
@pytest.mark.domain(75)
def test_an_interlock_that_cannot_be_armed_gives_no_times(alone, monkeypatch):
    monkeypatch.setattr(interlock, "ARM_TIMEOUT_S", 2.0)
    with (
        saying(PoseStamped, "/bench/current_pose", PoseStamped(), profile("current_pose")),
        pytest.raises(SystemExit, match="100 Hz, idle: waited 2 s for the interlock to be armed"),
    ):
        interlock.node_times(100, "idle", 1.0)


@pytest.mark.domain(93)
def test_a_lockstep_station_is_started_without_real_time_priority(monkeypatch):
    before = (os.sched_getscheduler(0), os.sched_getparam(0))
    rate = {"p50_ms": 1.0, "p99_ms": 1.0}
    schedulers = []

    def real_time(*_):
        station_loop.use_driver_priority(os.SCHED_RESET_ON_FORK)
        station_loop.use_driver_priority()
        return rate | {"inference_p50_ms": 1.0, "missed": 0, "late": 0, "dropped": 0}

    def lockstep(*_):
        result = subprocess.run(
            [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"],
            capture_output=True,
        )
        schedulers.append(int(result.stdout))
        return dict.fromkeys(
            ("lockstep_steps_per_s", "bare_simulator_steps_per_s", "lockstep_ratio"), 1.0
        )

    monkeypatch.setattr(station_loop, "DOMAIN", 93)
    monkeypatch.setenv("ROS_DOMAIN_ID", "93")
    monkeypatch.setattr(station_loop, "round_trips", lambda *_: [1e-3])
    monkeypatch.setattr(station_loop, "measure_real_time", real_time)
    monkeypatch.setattr(station_loop, "measure_lockstep", lockstep)
    monkeypatch.setattr(sys, "argv", ["station_loop.py"])
    try:
        station_loop.main()
    finally:
        os.sched_setscheduler(0, *before)
    assert schedulers == [os.SCHED_OTHER]


@pytest.mark.domain(95)
def test_one_bare_process_answers_and_so_do_three_in_a_row(alone, monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "95")
    started, start = [], robot_side.subprocess.Popen
    monkeypatch.setattr(
        robot_side.subprocess, "Popen", lambda words: started.append(words[-1]) or start(words)
    )
    for floor in ("events", "relay"):
        times = robot_side.round_trips(20, 2.0, floor)
        assert len(times) > 10 and (times < 0.05).sum() > len(times) / 2 and times.min() > 0.0
    assert started == ["events", "environment", "policy", "interlock"]


@pytest.mark.domain(95)
def test_for_the_bare_subscriber_as_much_is_kept_as_for_the_recorder(alone, monkeypatch):
    cameras, qualities = [name for name in recorder.subscribed_profiles() if name != "timestep"], {}

    def subscription(node, name, *_, quality, **__):
        qualities[name] = quality
        return SimpleNamespace(topic_name=name)

    monkeypatch.setattr(sampled, "subscription", subscription)
    sampled.Sampled(rclpy.create_node("recorder"), cameras).node.destroy_node()
    assert (
        recorder.subscribed_profiles() == qualities | {"timestep": lossless_profile("timestep")}
        and len(cameras) == 2
    )
