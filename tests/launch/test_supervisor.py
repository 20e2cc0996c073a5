"""How a station's processes are ended by whoever is impatient, and why they ended the last time."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlinf_core.core.errors import RlinfError
from rlinf_core.launch.graph import RESPAWN, SHUTDOWN, Process
from rlinf_core.launch.supervisor import Supervisor, parameters_file

SLOW = """
import signal, sys, time
def end(*_):
    time.sleep(float(sys.argv[1]))
    open(sys.argv[2], "a").write(sys.argv[3])
    sys.exit()
signal.signal(signal.SIGINT, end)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def interruptible():
    """As at a terminal: what runs in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_asked_to_end_once_more_it_ends_in_its_order_all_the_same(tmp_path, interruptible):
    ended = tmp_path / "ended"
    with pytest.raises(KeyboardInterrupt), Supervisor(tmp_path, 90) as supervisor:
        for name, restart, seconds in (
            ("interlock", SHUTDOWN, "0.2"),
            ("recorder", RESPAWN, "1.0"),
        ):
            supervisor.run(name, [sys.executable, "-c", SLOW, seconds, str(ended), name], restart)
        end = time.monotonic() + 30
        while not all((tmp_path / f"logs/{name}.log").read_text() for name in supervisor.children):
            assert time.monotonic() < end
            time.sleep(0.05)
        threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert ended.read_text() == "recorderinterlock", (
        "what moves the arm comes to rest last, and by itself"
    )
    assert [child.popen.returncode for child in supervisor.children.values()] == [0, 0]


def test_what_a_process_said_the_last_time_is_no_reason_for_how_it_ends_now(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/uplink.log").write_text("rlinf: the trainer of yesterday\n")
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(
            Process(
                "uplink", "", "", "", "", {"command": [sys.executable, "-c", "raise SystemExit(1)"]}
            )
        )
        end = time.monotonic() + 30
        while not supervisor.events:
            assert time.monotonic() < end
            supervisor.poll()
            time.sleep(0.05)
    assert supervisor.events[0] == "uplink ended (exit code 1) and was restarted"


def test_a_full_disk_keeps_no_node_from_a_restart_and_what_does_is_said(tmp_path, monkeypatch):
    process = Process("uplink", "", "rlinf_station.uplink", "a", "", {"seed": 1})
    before = parameters_file(process, tmp_path / "params").stat()
    again = parameters_file(process, tmp_path / "params").stat()
    assert (again.st_mtime_ns, again.st_ino) == (before.st_mtime_ns, before.st_ino), (
        "nothing was written"
    )
    changed = parameters_file(replace(process, parameters={"seed": 2}), tmp_path / "params")
    assert "2" in changed.read_text()
    ends = Process("uplink", "", "", "", "", {"command": [sys.executable, "-c", ""]})
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(ends).popen.wait(30)
        monkeypatch.setattr(supervisor, "run_dir", tmp_path / "gone")
        (tmp_path / "gone").mkdir()
        (tmp_path / "gone/logs").symlink_to(tmp_path / "nowhere")
        with pytest.raises(
            RlinfError,
            match="uplink ended .exit code 0. and cannot be restarted: .*No such file",
        ):
            supervisor.poll()


GROUP = """
import signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_sigkill_ends_the_whole_group_of_a_process_that_ignores_the_rest(tmp_path):
    log = tmp_path / "logs/deaf.log"
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(
            Process("deaf", "", "", "", "", {"command": [sys.executable, "-c", GROUP]}, stop_s=0.3)
        )
        end = time.monotonic() + 30
        while not (text := log.read_text().strip()):
            assert time.monotonic() < end
            time.sleep(0.05)
    assert supervisor.children["deaf"].popen.returncode == -signal.SIGKILL
    end = time.monotonic() + 30
    while os.path.exists(f"/proc/{text}") and " Z " not in Path(f"/proc/{text}/stat").read_text():
        assert time.monotonic() < end, "its child lives on"
        time.sleep(0.05)


@pytest.mark.parametrize("age_s, ends", [(59.0, True), (61.0, False)])
def test_restarts_count_for_a_minute(tmp_path, age_s, ends):
    with Supervisor(tmp_path, 90) as supervisor:
        child = supervisor.start(
            Process("uplink", "", "", "", "", {"command": [sys.executable, "-c", ""]})
        )
        child.popen.wait(30)
        child.history.restarts = [time.monotonic() - age_s] * 5
        if ends:
            with pytest.raises(RlinfError, match="ended 6 times within 60 s"):
                supervisor.poll()
        else:
            assert len(supervisor.poll()) == 1 and len(child.history.restarts) == 1
