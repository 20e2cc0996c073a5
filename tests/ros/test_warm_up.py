"""Warm-ups on a real executor: each runs once and in time, whatever it creates."""

import time

import pytest

rclpy = pytest.importorskip("rclpy")

from rlinf_msgs.msg import TimeStep  # noqa: E402

from rlinf_core.core.errors import SpecError  # noqa: E402
from rlinf_ros.timer_phase import BEFORE_S, SELDOM_S, WarmUp  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


@pytest.fixture
def spun():
    """Provide a node, and what spins it for so many seconds, or until something is so."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=194)
    node = rclpy.create_node("rehearsing", context=context)
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin(seconds, until=lambda: False):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            executor.spin_once(timeout_sec=0.01)

    yield node, spin
    executor.shutdown()
    node.destroy_node()
    rclpy.try_shutdown(context=context)


def test_it_is_made_once_and_before_it_is_due(spun):
    node, spin = spun
    times = []
    rehearsal = WarmUp(node, lambda: times.append(time.monotonic()) or TimeStep())
    spin(0.2)
    assert times == [], "nothing is due"
    due = time.monotonic() + 0.2
    rehearsal.before(0.2)
    spin(10.0, until=lambda: times)
    spin(0.4)
    assert len(times) == 1 and times[0] >= due - BEFORE_S - 0.001


def test_what_is_due_at_once_or_made_fifty_times_a_second_is_not_rehearsed(spun):
    node, spin = spun
    calls = []
    rehearsal = WarmUp(node, lambda: calls.append(1) or TimeStep())
    rehearsal.before(SELDOM_S)
    spin(0.3)
    assert calls == []
    rehearsal.before(SELDOM_S + 0.001)
    spin(10.0, until=lambda: calls)
    assert calls == [1]


@pytest.mark.parametrize("error", [SpecError, KeyError, ValueError])
def test_what_cannot_be_made_by_now_ends_nothing(spun, error):
    node, spin = spun
    calls = []

    def make():
        calls.append(1)
        raise error("not a number")

    rehearsal = WarmUp(node, make)
    for times in (1, 2):
        rehearsal.before(0.03)
        spin(10.0, until=lambda: len(calls) == times)  # noqa: B023
    assert len(calls) == 2
