"""A program in a terminal's foreground: its end, its only signal, and the restored terminal."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time

import pytest

from rlinf_core.cli import terminal

pytestmark = pytest.mark.timed

PARENT = """import os, sys
from rlinf_core.cli.terminal import foreground
try:
    sys.exit(foreground([sys.executable, "child.py"], os.environ))
except KeyboardInterrupt:
    sys.exit(130)
"""
CHILD = """import signal, sys, termios, time, tty
said = open("said", "w", buffering=1)
if sys.stdin.isatty():
    tty.setcbreak(sys.stdin)
signal.signal(signal.SIGINT, lambda *_: said.write("asked\\n"))
print("ready", file=said)
while True:
    time.sleep(0.05)
    if "asked" in open("said").read():
        time.sleep(0.8)
        print("ended in order", file=said)
        sys.exit(0)
"""


@pytest.fixture
def started(at, tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    mine, its = pty.openpty()

    def owns():
        os.setsid()
        if at == "a terminal":
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    before = termios.tcgetattr(its)
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        preexec_fn=owns,
        text=True,
        stdin=its if at == "a terminal" else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    until = time.monotonic() + 60.0
    while (
        not ((tmp_path / "said").exists() and (tmp_path / "said").read_text())
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    yield process, mine, tmp_path / "said"
    assert termios.tcgetattr(its) == before
    os.close(mine)
    os.close(its)


@pytest.mark.parametrize(
    "how, at",
    [("Ctrl-C", "a terminal"), ("SIGTERM", "a terminal"), ("SIGINT", "none"), ("SIGTERM", "none")],
)
def test_it_is_asked_once_and_waited_for(how, started):
    process, terminal, log_file = started
    os.write(terminal, b"\x03") if how == "Ctrl-C" else process.send_signal(getattr(signal, how))
    assert (process.wait(60), process.stderr.read()) == (130, "")
    assert log_file.read_text().split("\n") == ["ready", "asked", "ended in order", ""]


@pytest.mark.parametrize("at", ["none"])
def test_it_ends_with_whoever_started_it_however_that_ends(started):
    process, _, log_file = started
    process.kill()
    assert process.communicate(timeout=60)[1] == "", "which waits for the last that has it open"
    assert log_file.read_text() == "ready\n"


@pytest.mark.parametrize("tells", [True, False])
def test_a_program_that_starts_slowly_is_reported_until_it_tells_that_it_works(
    tells, capfd, monkeypatch, tmp_path
):
    monkeypatch.setattr(terminal, "REPORT_S", 0.05)
    mark = tmp_path / "mark"
    child = f"""import pathlib, time
time.sleep(0.3)
from rlinf_core.cli.terminal import notify_started
if {tells}:
    notify_started()
    notify_started()  # a second call does nothing
pathlib.Path({str(mark)!r}).write_text("")
time.sleep(1.0)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert terminal.foreground([sys.executable, "-c", child], environment, starts="the client") == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines and all(
        re.fullmatch(r"rlinf: \d+ s: the client starts; a busy .*", line) for line in lines
    )
    assert mark.exists() and terminal.foreground([sys.executable, "-c", "pass"], environment) == 0
    assert capfd.readouterr().err == "", "other programs report themselves"
