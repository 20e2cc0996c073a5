"""The end of a station's processes by impatient users, and the reasons for their last end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlinf_core.core.errors import RlinfError
from rlinf_core.launch import supervisor as supervising
from rlinf_core.launch.graph import ONCE, RESPAWN, SHUTDOWN, Process
from rlinf_core.launch.supervisor import Supervisor, command_line, only_station, parameters_file

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
    """Enable Ctrl-C as at a terminal; background processes ignore it."""
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


def ended(supervisor, name):
    """Wait for a process's own end."""
    supervisor.children[name].popen.wait(30)


def program(code, **fields):
    command = {"command": [sys.executable, "-c", code]}
    return Process("uplink", "", "", "", "", command, **fields)


def test_a_process_that_runs_has_no_namesake_and_one_that_ended_may_be_started_again(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        first = supervisor.start(program("import time; time.sleep(60)"))
        with pytest.raises(RlinfError, match="^uplink is already running under this supervisor. E"):
            supervisor.start(program(""))
        first.popen.kill()
        first.popen.wait(30)
        assert supervisor.start(program("")) is supervisor.children["uplink"] is not first


def test_any_command_runs_and_is_restarted_as_asked(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        for name, restart in (("once", ONCE), ("again", RESPAWN)):
            child = supervisor.run(name, [sys.executable, "-c", f"print('{name}')"], restart)
            assert child.process == Process(
                name,
                "",
                "",
                "",
                "",
                {"command": [sys.executable, "-c", f"print('{name}')"]},
                (),
                restart,
            )
            ended(supervisor, name)
        assert supervisor.poll() == ["again ended (exit code 0) and was restarted"]
        assert supervisor.poll() in ([], ["again ended (exit code 0) and was restarted"])
    assert (tmp_path / "logs/once.log").read_text() == "once\n"
    assert (tmp_path / "params").is_dir()


def test_a_process_has_its_domain_no_input_and_a_session_of_its_own(tmp_path):
    code = (
        "import os, sys; print(os.environ['ROS_DOMAIN_ID'], os.getsid(0) == os.getpid(), "
        "sys.stdin.read() == '', os.environ.get('ROS_LOG_DIR')); print('words', file=sys.stderr)"
    )
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(program(code, restart=ONCE))
        ended(supervisor, "uplink")
    fields, words = (tmp_path / "logs/uplink.log").read_text().splitlines()
    assert fields.split()[:3] == ["90", "True", "True"] and words == "words"


def test_one_at_the_terminal_stays_in_its_session(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        code = "import os; print(os.getsid(0))"
        supervisor.start(program(code, restart=ONCE, terminal=True))
        ended(supervisor, "uplink")
    assert (tmp_path / "logs/uplink.log").read_text() == f"{os.getsid(0)}\n"


def test_logs_of_ros_lie_in_the_run_where_no_home_can_be_written(tmp_path, monkeypatch):
    with Supervisor(tmp_path / "a", 90) as supervisor:
        assert not (tmp_path / "a/ros_logs").exists()
    monkeypatch.setattr(supervising, "replacement_folders", lambda: {"ROS_LOG_DIR": "/elsewhere"})
    with Supervisor(tmp_path / "b/c", 90) as supervisor:
        assert supervisor.environment["ROS_LOG_DIR"] == str(tmp_path / "b/c/ros_logs")
        assert (tmp_path / "b/c/ros_logs").is_dir()


@pytest.mark.parametrize(
    "code, words",
    [
        (
            "print('[INFO] all well'); print('no latch'); print('[INFO] bye'); print(' ')",
            "uplink ended (exit code 0). The station cannot continue without it: the robot side "
            "stops by its own timeout. Its last line: 'no latch'. See {log}",
        ),
        (
            "print('[INFO] all well'); print('[INFO] bye')",
            "uplink ended (exit code 0). The station cannot continue without it: the robot side "
            "stops by its own timeout. Its last line: '[INFO] bye'. See {log}",
        ),
        (
            "",
            "uplink ended (exit code 0). The station cannot continue without it: the robot side "
            "stops by its own timeout. See {log}",
        ),
        (
            "import sys; print('rlinf: no limits'); print('and more'); sys.exit(78)",
            "uplink cannot continue: no limits\nand more\nIts log: {log}",
        ),
        (
            "import sys; print('out of words'); sys.exit(78)",
            "uplink cannot continue: Its last line: 'out of words'. See {log}\nIts log: {log}",
        ),
        (
            "import sys; print('x' * 400); sys.exit(2)",
            "uplink ended (exit code 2). The station cannot continue without it: the robot side "
            f"stops by its own timeout. Its last line: '{'x' * 300}'. See {{log}}",
        ),
    ],
)
def test_the_end_of_a_station_is_told_with_the_last_words_of_who_ended_it(tmp_path, code, words):
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(program(code, restart=SHUTDOWN))
        ended(supervisor, "uplink")
        with pytest.raises(RlinfError) as error:
            supervisor.poll()
    assert str(error.value) == words.format(log=tmp_path / "logs/uplink.log")
    assert supervisor.events == []


def test_a_restart_is_told_with_its_reason(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(program("import sys; sys.exit('rlinf: no trainer')"))
        ended(supervisor, "uplink")
        event = "uplink ended (exit code 1) and was restarted: no trainer"
        assert supervisor.poll() == [event]
        ended(supervisor, "uplink")
        assert supervisor.poll() == [event] and supervisor.events == [event] * 2


def test_a_node_is_started_by_its_module_with_its_parameters(tmp_path):
    node = Process(
        "interlock_left",
        "rlinf_interlock",
        "interlock",
        "rlinf_interlock.interlock",
        "/lab/left",
        {"arms": ["left"]},
        (("/clock", "/lab/clock"), ("enable", "/lab/enable")),
        SHUTDOWN,
    )
    arguments = [
        "--ros-args",
        *("-r", "__ns:=/lab/left", "-r", "/clock:=/lab/clock", "-r", "enable:=/lab/enable"),
        *("--params-file", str(tmp_path / "a/params/interlock_left.yaml")),
    ]
    folder = tmp_path / "a/params"
    assert command_line(node, folder) == [sys.executable, "-m", node.module, *arguments]
    text = (folder / "interlock_left.yaml").read_text()
    assert yaml.safe_load(text) == {"/**": {"ros__parameters": {"arms": ["left"]}}}
    recorder = Process("recorder", "", "recorder", "rlinf_station.recorder", "/lab")
    host = Process("station", "", "", "s", "/lab", {"a": 1}, nodes=(node, recorder))
    values = yaml.safe_load(parameters_file(host, folder).read_text())["/**"]["ros__parameters"]
    nodes = json.loads(values.pop("nodes"))
    assert values == {"a": 1} and nodes == [
        {
            "name": "interlock_left",
            "module": "rlinf_interlock.interlock",
            "arguments": arguments,
            "ends_station": True,
        },
        {
            "name": "recorder",
            "module": "rlinf_station.recorder",
            "arguments": [
                *("--ros-args", "-r", "__ns:=/lab"),
                *("--params-file", str(folder / "recorder.yaml")),
            ],
            "ends_station": False,
        },
    ]
    assert (folder / "recorder.yaml").exists()


def test_parameters_stay_in_the_order_of_the_process(tmp_path):
    process = Process("one", "", "", "", "", {"z": 1, "a": "y", "m": {"b": 2, "a": 3}})
    text = parameters_file(process, tmp_path).read_text()
    assert text.index('"z"') < text.index('"a"') < text.index('"m"') < text.index('"b"')


NODE = "import signal; print(*sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"


@pytest.mark.parametrize("module, blocked", [("a.node", "2 15"), ("", "")])
def test_a_node_hears_of_its_end_only_once_it_can_answer(tmp_path, module, blocked):
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(replace(program(NODE, restart=ONCE), module=module))
        ended(supervisor, "uplink")
    assert (tmp_path / "logs/uplink.log").read_text().strip() == blocked


TELLS = """
import signal, sys, time
times, numbers = [], []
def note(number, _):
    numbers.append(number)
    times.append(time.monotonic())
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
print("up", flush=True)
while len(numbers) < 2:
    time.sleep(0.005)
print(*numbers, round(times[1] - times[0], 1), flush=True)
"""


@pytest.mark.timed
def test_sigint_comes_first_and_sigterm_a_while_later(tmp_path):
    with Supervisor(tmp_path, 90) as supervisor:
        supervisor.start(program(TELLS, stop_s=0.5))
        end = time.monotonic() + 30
        while not (tmp_path / "logs/uplink.log").read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        started = time.monotonic()
    assert time.monotonic() - started < 1.4, "it waits for no SIGKILL"
    numbers = (tmp_path / "logs/uplink.log").read_text().split()[1:]
    assert numbers[:2] == ["2", "15"] and 0.4 <= float(numbers[2]) <= 0.9


def test_one_station_of_a_name_and_domain_says_whose_the_other_is():
    with only_station("lab", 90), pytest.raises(RlinfError) as error, only_station("lab", 90):
        pass
    assert str(error.value).startswith(
        "station 'lab' is already running in ROS_DOMAIN_ID 90 on this machine, as process "
    )
    assert error.value.code == "RL-E208"


def test_signals_of_a_node_wait_until_it_handles_them(monkeypatch):
    """In this process, for once: what is done between fork and exec is seen by nobody."""
    steps = []
    monkeypatch.setattr(supervising, "end_with_parent", lambda: steps.append("parent"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        supervising._node_begins()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert steps == ["parent"] and blocked - before == {signal.SIGINT, signal.SIGTERM}


def test_who_has_gone_meanwhile_needs_no_signal():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    for number in (signal.SIGINT, signal.SIGKILL):
        supervising._signal(gone, number)


def test_one_in_the_group_of_the_launcher_is_killed_alone():
    """Else Ctrl-C's last resort would kill the launcher, too."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert os.getpgid(child.pid) == os.getpgid(0)
    supervising._signal(child, signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
