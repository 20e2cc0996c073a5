"""A clock that is told to stop, while the executor has its timer in hand already."""

import time
from types import SimpleNamespace

import pytest
import rclpy

from rlinf_core.interlock import Mode
from rlinf_interlock.interlock_clock import Lockstep
from rlinf_ros.timer_phase import PhaseLockedTimer
from rlinf_ros.workarounds import single_threaded

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), pytest.mark.domain(99)]


@pytest.fixture
def node(request):
    rclpy.init(domain_id=request.node.get_closest_marker("domain").args[0])
    node = rclpy.create_node("stopping")
    yield node
    node.destroy_node()
    rclpy.try_shutdown()


@pytest.mark.parametrize("again", range(10))
def test_a_timer_that_is_due_when_it_is_stopped_calls_nobody(node, again):
    executor, ticks = single_threaded(), []
    executor.add_node(node)
    phase = PhaseLockedTimer(node, 0.005, lambda: ticks.append(1), hurry=0.0, early=0.0)

    def stop():
        if not ticks:
            return  # on a busy machine it is due before the first tick; it will be again
        phase.stop(node)
        node.destroy_timer(stopping)
        ticks.append("stopped")

    stopping = node.create_timer(0.011 + 0.0005 * again, stop)
    holding_up = node.create_timer(0.01, lambda: time.sleep(0.02))  # both are due, when it ends
    end = time.monotonic() + 0.08
    while time.monotonic() < end or "stopped" not in ticks:
        executor.spin_once(timeout_sec=0.01)
    node.destroy_timer(holding_up)
    assert len(ticks) > 1 and ticks[-1] == "stopped"
    executor.shutdown()


def test_a_lockstep_that_is_stopped_ticks_for_nothing_that_comes_after(node):
    inputs = SimpleNamespace(
        others={}, pose_stamp_ns=7, pull=lambda: None, check_publishers=lambda: None
    )
    ticks = []
    clock = Lockstep(
        node, inputs, 0.01, lambda *now: ticks.append(now), 0.5, lambda: Mode.HOLD, lambda: None
    )
    for stop in (lambda node: None, clock.stop):
        stop(node)
        clock.pending = True
        clock.on_request()
    assert ticks == [(7, 0, 0.0)]
