"""Trainer and station as if on two machines: in namespaces of their own, over a slow or lossy line
that is pulled out.
"""

import os
import re
import subprocess
import sys

import pytest

from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.episodes.checksums import seal
from rlinf_core.episodes.journal import Journal
from rlinf_core.episodes.spool import Spool
from tests.deploy.bridge.conftest import until

pytestmark = pytest.mark.timed

MIB = 1 << 20
PORT, TRAINER, STATION_KEY = 50551, "10.199.17.1", "10.199.17.2"
SERVE = """
import signal, sys
from pathlib import Path
from rlinf_core.deploy.bridge.server import BridgeServer
root = Path(sys.argv[1])
BridgeServer(sys.argv[2], root / "run/inbox", root / "run/policies", lambda folder: None, dict, fleet=root / "fleet")
signal.pause()
"""
SEND = """
import sys, time
from pathlib import Path
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.deploy.bridge.client import Sender
from rlinf_core.episodes.spool import Spool
root = Path(sys.argv[1])
spool = Spool(root / "spool")
sender = Sender(spool, BridgeClient(sys.argv[2], "a", root / "a"), print)
while spool.closed():
    if said := sender.send_all():
        print(said, flush=True)
        time.sleep(0.5)
"""


def run(*command):
    """A command of the system; the test is skipped, with its words, where the kernel or the user
    may not.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip(f"{command[0]}: not installed here (iproute2)")
    if done.returncode:
        pytest.skip(f"not possible here: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture
def machines():
    """Two namespaces, and a cable between them: (trainer's, station's) names."""
    names = [f"rlinf{os.getpid()}{end}" for end in "ts"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run(
            "ip",
            "link",
            "add",
            "cable",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            names[1],
        )
        for name, address in zip(names, (TRAINER, STATION_KEY), strict=True):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
            run("ip", "-n", name, "link", "set", "cable", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def started(name, code, root):
    with open(root / f"{name}.log", "w") as log:
        return subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                name,
                sys.executable,
                "-c",
                code,
                str(root),
                f"{TRAINER}:{PORT}",
            ],
            stdout=log,
            stderr=log,
        )


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "line",
    ["tbf rate 40mbit burst 64kb latency 100ms", "netem delay 30ms 10ms loss 1%"],
    ids=["slow", "lossy"],
)
def test_episodes_go_on_over_a_bad_line_and_after_the_cable_was_pulled(machines, tmp_path, line):
    for name in machines:
        run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", *line.split())
    Fleet(tmp_path / "fleet").enroll("a", tmp_path / "a")
    spool = Spool(tmp_path / "spool")
    for number in range(4):
        folder = spool.root / "closed" / f"e{number}"
        folder.mkdir()
        (folder / "x.mcap").write_bytes(os.urandom(2 * MIB))
        seal(folder)
    processes = [started(machines[0], SERVE, tmp_path)]
    until(lambda: (tmp_path / "run/inbox").is_dir(), "the trainer", 60)
    processes.append(started(machines[1], SEND, tmp_path))
    try:
        journal = tmp_path / "run/journal.jsonl"
        until(journal.exists, "the first episode", 60)
        run("ip", "-n", machines[1], "link", "set", "cable", "down")
        before = Journal(journal).ids()
        with pytest.raises(subprocess.TimeoutExpired):
            processes[1].wait(3)
        assert len(before) < 4 and len(Journal(journal).ids()) <= len(before) + 1, (
            "nothing comes through a pulled cable"
        )
        run("ip", "-n", machines[1], "link", "set", "cable", "up")
        assert processes[1].wait(90) == 0
        stats = run("tc", "-n", machines[1], "-s", "qdisc", "show", "dev", "cable")
        assert (
            line.split()[0] in stats and int(re.search(r"Sent (\d+) bytes", stats)[1]) > 8 * MIB
        ), "it used that line"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert sorted(Journal(journal).ids()) == ["e0", "e1", "e2", "e3"]
    for number in range(4):
        sent, came = spool.root / f"sent/e{number}/x.mcap", tmp_path / f"run/inbox/e{number}/x.mcap"
        assert came.read_bytes() == sent.read_bytes()
