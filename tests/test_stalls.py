"""Only tests that failed during a stall of the machine run again."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.stalls import LATE_S, Watch

FAILS = """
import pytest
from tests.stalls import WATCH
pytestmark = pytest.mark.{mark}
tries = []
WATCH.note = lambda late_s: None  # the machine that this runs on may be as late as it likes
def test_it():
    WATCH.process.kill()
    tries.append(1)
    WATCH.worst = {late}
    assert len(tries) > {times}
"""
ABORTS = """
import atexit, os, sys
sys.modules["rclpy"] = None
atexit.register(os.abort)
def test_it():
    assert {passes}
"""


def test_a_process_that_is_woken_late_says_so():
    watch = Watch()
    watch.begin()
    end = time.monotonic() + 30
    while not watch.stalled(AssertionError()):
        assert time.monotonic() < end
        watch.process.send_signal(signal.SIGSTOP)
        time.sleep(2 * LATE_S)
        watch.process.send_signal(signal.SIGCONT)
        time.sleep(LATE_S)
    watch.process.kill()
    watch.process.wait()
    watch.begin("the next")
    watch.note(LATE_S / 2)
    assert not watch.stalled(AssertionError())
    watch.note(2 * LATE_S)
    assert not watch.stalled(None) and watch.stalled(AssertionError()) and "the next" in watch.again


@pytest.mark.parametrize(
    "late, fails, expected",
    [
        (0.06, 1, "1 passed, 1 rerun"),
        (0.04, 1, "1 failed in"),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in ((0.06, 9, "1 failed, 2 rerun"), (0.06, 0, "1 passed in"))
        ),
    ],
)
def test_only_what_failed_meanwhile_is_run_again(tmp_path, late, fails, expected):
    test = tmp_path / "test_it.py"
    test.write_text(FAILS.format(mark="ros", late=late, times=fails))
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            "pyproject.toml",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            test,
        ],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert expected in ran.stdout, ran.stdout + ran.stderr
    assert ("failed while the machine stood still for 0.06 s" in ran.stdout) == (
        "rerun" in expected
    )


@pytest.mark.parametrize("passes, code", [(True, 0), (False, 1)])
def test_what_aborts_after_the_last_test_leaves_the_verdict_as_it_is(tmp_path, passes, code):
    test = tmp_path / "test_it.py"
    test.write_text(ABORTS.format(passes=passes))
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            "pyproject.toml",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            test,
        ],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert ran.returncode == code and ("1 passed" if passes else "1 failed") in ran.stdout, (
        ran.stdout + ran.stderr
    )
