"""A whole trainer, as a process: what comes in, what it says, and who can reach it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import BridgeClient, Sender
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.serialization import load_policy
from tests.messages import record

pytestmark = pytest.mark.timed

CODE = """
import sys
from pathlib import Path
from rlinf_core.trainer.train import train
from rlinf_core.recipes import load_recipe
train(load_recipe("demo", sys.argv[2:]), Path(sys.argv[1]))
"""
SMALL = (
    "collect.episodes=2",
    "sft.steps=4",
    "policy.hidden=[16]",
    "replay.capacity=50",
    "online.min_transitions=5",
    "algorithm.critic_hidden=[16]",
)


class Process:
    """A trainer in ``run_dir`` on a free port."""

    def __init__(self, run_dir):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        run_dir.mkdir(exist_ok=True)
        self.log = run_dir / f"log-{self.port}"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CODE, str(run_dir), *SMALL, f"bridge.port={self.port}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.client = BridgeClient(f"127.0.0.1:{self.port}", "a", tokens=[run_dir / "bridge.token"])

    def report(self):
        try:
            return self.client.report(0, 0)
        except BridgeError:
            return None

    def wait(self, until, seconds=60.0):
        """Wait until ``until(report)`` is true; a trainer that ends is an error."""
        end = time.monotonic() + seconds
        while (report := self.report()) is None or not until(report):
            assert self.process.poll() is None and time.monotonic() < end, (
                f"{report}\n{self.log.read_text()}"
            )
            time.sleep(0.1)
        return report

    def end(self):
        """SIGTERM; returns the exit code."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def start():
    started = []
    yield lambda run_dir: started.append(Process(run_dir)) or started[-1]
    for trainer in started:
        if trainer.process.poll() is None:
            os.killpg(trainer.process.pid, signal.SIGKILL)


def listeners(root):
    """Addresses, in hex, of the listening TCP sockets of a process and those below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    inodes = set()
    for pid in family:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(handle))
            except FileNotFoundError:
                continue
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [
        row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    ]


def vectors_nan(topic, number, message):
    if topic == "timestep" and number == 1:
        message.vectors[0].data = np.full(3, np.nan, np.float32)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_trainer_outlives_whatever_comes_in_and_listens_on_this_machine_alone(
    task, tmp_path, start
):
    spool, run_dir = Spool(tmp_path / "spool"), tmp_path / "run"
    trainer = start(run_dir)
    trainer.wait(lambda report: True)
    bound = listeners(trainer.process.pid)
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert bound and set(bound) <= loopback, bound

    record(spool, task.spec, "no_actions", leave=("applied",)).close()
    record(spool, task.spec, "nan", change=vectors_nan).close()
    record(spool, task.spec, "long", steps=80).close()
    (spool.root / "closed" / "stray").write_text("")
    for number in range(2):
        record(spool, task.spec, f"demonstration_{number}", mode="demonstration", start=7.0).close()
    for number in range(3):
        record(spool, task.spec, f"online_{number}").close()
    assert Sender(spool, trainer.client, print).send_all() == ""
    report = trainer.wait(
        lambda report: (
            report.metrics["refused"] == 3 and report.updates and report.transitions >= 15
        )
    )
    assert report.metrics["demonstrations"] == 2 and report.transitions == 15
    assert sorted(path.name for path in (run_dir / "refused").glob("*/")) == [
        "long",
        "nan",
        "no_actions",
    ]
    assert "the arm had no commander" in trainer.log.read_text()
    _, policy, _ = trainer.client.next_policy(0, tmp_path / "policies")
    assert load_policy(policy).encoder.mean.numpy() == pytest.approx(9.0), (
        "normalised by its demonstrations"
    )
    assert trainer.end() == 0, trainer.log.read_text()

    shutil.rmtree(run_dir / "checkpoints")  # so that it reads its inbox again
    file = run_dir / "inbox/online_1/online_1.mcap"
    file.write_bytes(file.read_bytes().replace(b"do it", b"do is", 1))
    again = start(run_dir)
    report = again.wait(
        lambda report: (
            report.metrics["refused"] == 4 and report.updates and report.transitions >= 10
        )
    )
    assert report.transitions == 10 and report.metrics["demonstrations"] == 2
    assert (
        "online_1.mcap does not fit SHA256SUMS"
        in (run_dir / "refused/online_1.reason.txt").read_text()
    )
    assert again.end() == 0, again.log.read_text()
