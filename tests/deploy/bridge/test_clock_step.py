"""A machine's clock is set by an hour under a fleet: a trainer and two stations that upload.

It does not cover the nodes of a station (tests/ros/test_station_clock_step.py).
"""

import json
import os
import subprocess
import sys
import time

import pytest

from rlinf_core.deploy.bridge import PART_BYTES
from rlinf_core.episodes.checksums import seal
from rlinf_core.episodes.journal import ARRIVED
from tests.deploy.bridge.conftest import until
from tests.stepped_clock import SteppedClock

pytestmark = pytest.mark.timed

TRAINER = r"""
import signal, sys
from pathlib import Path
from rlinf_core.deploy.bridge.server import BridgeServer
root = Path(sys.argv[1])
server = BridgeServer("127.0.0.1:0", root / "inbox", root / "policies", lambda folder: None, dict)
(root / "port").write_text(f"{server.port}\n")
signal.pause()
"""
STATION_KEY = r"""
import sys, time
from pathlib import Path
from rlinf_core.deploy.bridge.client import BridgeClient, Sender
from rlinf_core.episodes.spool import Spool
spool, port, name = sys.argv[1:]
sender = Sender(Spool(Path(spool)), BridgeClient(f"127.0.0.1:{port}", name), print)
while True:
    sender.send_all()
    Path(f"{spool}.clock").write_text(f"{time.time()}\n")
    time.sleep(0.05)
"""
RECONNECT_S = 10.0  # the requirement's


@pytest.fixture
def shifted(tmp_path):
    """Start Python with a clock of its own; ``shifted.step`` sets that clock."""
    clock, running = SteppedClock(tmp_path), []

    def start(code, *arguments):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        running.append(subprocess.Popen(command, env=os.environ | clock.environment))

    start.step = clock.step
    yield start
    for process in running:
        process.kill()
        process.wait()


def text(file):
    """A whole line of a file that another process writes; empty if there is none yet."""
    line = file.read_text() if file.exists() else ""
    return line.strip() if line.endswith("\n") else ""


def arrived(journal):
    """The names of all episodes that have arrived, each as often as it is noted."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sorted(entry["id"] for entry in map(json.loads, lines) if entry["status"] == ARRIVED)


def lead(spool):
    """Return the lead of a station's clock over this process's [s]; infinite at first."""
    return float(text(spool.with_suffix(".clock")) or "inf") - time.time()


def record(spool, name):
    """Close a sealed episode of several parts."""
    folder = spool / "recording" / name
    folder.mkdir(parents=True)
    (folder / "x.mcap").write_bytes(os.urandom(3 * PART_BYTES))
    seal(folder)
    folder.rename(spool / "closed" / name)


@pytest.mark.timeout(180)
def test_a_clock_that_is_set_by_an_hour_loses_and_doubles_no_episode(shifted, tmp_path):
    run, spools = tmp_path / "run", {name: tmp_path / name for name in "ab"}
    run.mkdir()
    shifted(TRAINER, run)
    port = until(lambda: text(run / "port"), "the trainer")
    for name, spool in spools.items():
        (spool / "closed").mkdir(parents=True)
        shifted(STATION_KEY, spool, port, name)
    expected: list[str] = []
    for number, seconds in enumerate((0, 3600, 0, -3600)):
        for name, spool in spools.items():
            for letter in "xyz":
                expected.append(f"{name}{number}{letter}")
                record(spool, expected[-1])
        shifted.step(seconds)  # in the middle of the uploads
        began = time.monotonic()
        until(lambda: set(expected) <= set(arrived(run / "journal.jsonl")), "the episodes")
        assert number == 0 or time.monotonic() - began < RECONNECT_S
        for spool in spools.values():
            until(lambda at=spool, by=seconds: abs(lead(at) - by) < 60, "the clock of a station")
    assert arrived(run / "journal.jsonl") == sorted(expected)
    for name in expected:
        assert (run / "inbox" / name / "x.mcap").stat().st_size == 3 * PART_BYTES
