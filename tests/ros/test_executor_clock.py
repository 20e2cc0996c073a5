"""An executor's timers go on after this machine's clock was set."""

import os
import subprocess
import sys
import time

import pytest

from tests.stepped_clock import SteppedClock

pytestmark = [pytest.mark.ros, pytest.mark.patient]
TICKS = """
import sys, time
from pathlib import Path
import rclpy
from rclpy.clock import Clock, ClockType
from rlinf_ros.workarounds import single_threaded
rclpy.init()
node, executor, ticks = rclpy.create_node("ticks"), single_threaded(), [0]
executor.add_node(node)
def tick():
    ticks[0] += 1
    Path(sys.argv[1]).write_text(f"{ticks[0]}\\n")
node.create_timer(0.05, tick, clock=Clock(clock_type=ClockType.STEADY_TIME))
while True:
    executor.spin_once(timeout_sec=0.5)
"""


@pytest.mark.domain(13)
def test_timers_go_on_after_the_clock_was_set_by_an_hour(tmp_path):
    clock, count = SteppedClock(tmp_path), tmp_path / "count"
    environment = os.environ | clock.environment | {"ROS_DOMAIN_ID": "13"}
    process = subprocess.Popen([sys.executable, "-c", TICKS, str(count)], env=environment)

    def ticks():
        text = count.read_text() if count.exists() else ""
        return int(text) if text.endswith("\n") else 0

    def wait_for(number):
        deadline = time.monotonic() + 60.0
        while ticks() < number:
            assert process.poll() is None and time.monotonic() < deadline, (number, ticks())
            time.sleep(0.02)

    try:
        wait_for(5)
        for offset_s in (3600, 0, -3600, 0):
            clock.step(offset_s)
            wait_for(ticks() + 10)
    finally:
        process.kill()
        process.wait()
