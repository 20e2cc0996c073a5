"""A test that depends on time runs again once after a failure, and the summary names it."""

import os
import subprocess
import sys

import pytest

FAILS = """
import pytest
pytestmark = pytest.mark.{mark}
tries = []
def test_it():
    tries.append(1)
    assert len(tries) > {times}
"""
ABORTS = """
import atexit, os, sys
sys.modules["rclpy"] = None
atexit.register(os.abort)
def test_it():
    assert {passes}
"""


def run(test):
    return subprocess.run(
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


@pytest.mark.parametrize(
    "mark, times, expected",
    [
        ("ros", 1, "1 passed, 1 rerun"),
        ("timed", 1, "1 passed, 1 rerun"),
        ("timed", 9, "1 failed, 1 rerun"),
        ("slow", 1, "1 failed in"),
    ],
)
def test_only_what_depends_on_time_is_run_again(tmp_path, mark, times, expected):
    test = tmp_path / "test_it.py"
    test.write_text(FAILS.format(mark=mark, times=times))
    ran = run(test)
    assert expected in ran.stdout, ran.stdout + ran.stderr
    named = "test_it: failed at first: assert 1 > " in ran.stdout
    assert named == ("rerun" in expected), ran.stdout


@pytest.mark.parametrize("passes, code", [(True, 0), (False, 1)])
def test_what_aborts_after_the_last_test_leaves_the_verdict_as_it_is(tmp_path, passes, code):
    test = tmp_path / "test_it.py"
    test.write_text(ABORTS.format(passes=passes))
    ran = run(test)
    assert ran.returncode == code and ("1 passed" if passes else "1 failed") in ran.stdout, (
        ran.stdout + ran.stderr
    )
