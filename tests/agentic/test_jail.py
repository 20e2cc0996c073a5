"""The jail: escapes do not succeed, and each of them is real: without a jail it does."""

import os
import subprocess
import sys
import threading
import time

import pytest

from rlinf_core.agentic import jail
from rlinf_core.agentic.jail import JailError, JailLimits, run_program
from rlinf_core.agentic.jail_drill import ESCAPES, attempt, run_alone

try:
    run_program("")
    CLOSED = ""
except JailError as error:
    CLOSED = str(error)
pytestmark = [pytest.mark.timed, pytest.mark.skipif(bool(CLOSED), reason=CLOSED)]


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
def test_an_escape_does_not_succeed(escape):
    escaped, outcome = attempt(escape)
    assert not escaped, outcome


@pytest.mark.parametrize(
    "escape", [escape for escape in ESCAPES if escape.alone], ids=lambda escape: escape.name
)
def test_the_same_program_succeeds_without_a_jail(escape):
    escaped, outcome = attempt(escape, run_alone)
    assert escaped, outcome


def test_there_are_at_least_sixteen_escapes_and_half_have_a_control():
    assert len({escape.name for escape in ESCAPES}) >= 16
    assert sum(escape.alone for escape in ESCAPES) >= 8


def test_a_program_computes_values_and_prints():
    outcome = run_program(
        "def f(a, b=1):\n    print('hi')\n    return {'sum': a + b}\n", "f", [[1, 2], [3]]
    )
    assert outcome == jail.Outcome("exit", 0, "hi\nhi\n", "", ('{"sum": 3}', '{"sum": 4}'))
    outcome = run_program("import sys\nprint(1)\nsys.exit(3)")
    assert (outcome.end, outcome.exit_code, outcome.stdout) == ("exit", 3, "1\n")


def test_values_before_an_error_count_and_none_after():
    outcome = run_program("def f(x): return 1 / x", "f", [[1], [0], [2]])
    assert (
        outcome.values == ("1.0",)
        and "ZeroDivisionError" in outcome.stderr
        and outcome.exit_code == 1
    )
    assert "jail_process" not in outcome.stderr
    assert run_program("def f(x): return float('nan')", "f", [[1]]).values == ()
    assert run_program("def g(x): return x", "f", [[1]]).values == ()


@pytest.mark.parametrize(
    "program, end",
    [
        ("while True: pass", "wall_time"),
        ("import time\ntime.sleep(9)", "wall_time"),
        ("print('x' * 100000)", "output"),
        ("import os\nos.kill(os.getpid(), 9)", "killed"),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", "killed|exit|wall_time"),
        ("x = '", "exit"),
    ],
)
def test_each_end_has_a_name(program, end):
    outcome = run_program(program, limits=JailLimits(wall_s=1.5))
    assert outcome.end in end.split("|") and outcome.exit_code != 0


def test_a_program_that_ends_while_its_output_is_too_long_has_no_exit_code():
    outputs = [b"x" * 200, b"", b"", b"ready\nexit 0\n"]
    outcome = jail._outcome("output", outputs, JailLimits(output_bytes=100))
    assert (outcome.end, outcome.exit_code) == ("output", None)


def test_building_the_jail_takes_no_time_from_the_program():
    """A busy machine builds a jail slowly; the program's time begins when it is closed."""
    assert run_program("while True: pass", limits=JailLimits(wall_s=0.005)).end == "wall_time"


def test_cpu_seconds_are_bounded():
    outcome = run_program("while True: pass", limits=JailLimits(wall_s=20, cpu_s=1))
    assert outcome.end == "killed"


def test_programs_run_at_once_from_many_threads():
    outputs = {}

    def play(number):
        outputs[number] = run_program(f"print({number})").stdout

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {number: f"{number}\n" for number in range(8)}


def test_nothing_is_left_open_or_running():
    before = set(os.listdir("/proc/self/fd"))
    for program in (
        "",
        "import os, time\nos.fork()\ntime.sleep(30)",
        "import os\nwhile 1: os.write(1, b'x' * 9999)",
    ):
        run_program(program, limits=JailLimits(wall_s=0.8))
    assert set(os.listdir("/proc/self/fd")) == before
    assert not _jails()


def test_a_killed_caller_takes_its_jail_along():
    caller = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from rlinf_core.agentic.jail import *\n"
            "run_program('import time; time.sleep(60)', limits=JailLimits(wall_s=60))",
        ]
    )
    _wait(lambda: len(_jails()) == 4)
    caller.kill()
    caller.wait()
    _wait(lambda: not _jails())


def test_a_machine_without_a_layer_is_refused(monkeypatch, tmp_path):
    text = jail.INSIDE.read_text().replace("LANDLOCK = 442, 444", "LANDLOCK = 442, 999")
    (tmp_path / "inside.py").write_text(text)
    monkeypatch.setattr(jail, "INSIDE", tmp_path / "inside.py")
    with pytest.raises(JailError, match="Landlock: Function not implemented"):
        run_program("print(1)")


def _jails():
    """Command lines of the jails' processes that this user has."""
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                lines += [line for line in [file.read()] if "jail_process.py" in line]
        except OSError:
            continue
    return lines


def _wait(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
