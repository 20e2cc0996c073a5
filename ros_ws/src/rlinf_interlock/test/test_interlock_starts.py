"""The executable starts as a process, refuses what it cannot use in words, and ends at SIGINT."""

import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("rclpy")


@pytest.mark.parametrize(
    "words, message",
    [(["-p", "limits_file:=/gone/limits.yaml"], "/gone/limits.yaml"), ([], "limits_file")],
)
def test_a_missing_limits_file_is_named(words, message):
    ran = subprocess.run(
        [sys.executable, "-m", "rlinf_interlock.interlock", "--ros-args", *words],
        env=os.environ | {"ROS_DOMAIN_ID": "20"},  # not this shell's, where a robot may be
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert ran.returncode and message in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not shutil.which("ros2"), reason="ros2 is not there")
def test_ros2_run_lists_it():
    listed = subprocess.run(
        ["ros2", "pkg", "executables", "rlinf_interlock"],
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert "rlinf_interlock interlock" in listed.stdout
