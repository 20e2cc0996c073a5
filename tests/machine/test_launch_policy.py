"""ROS's launch and rlinf up do the same with the ends of a station's processes, here of small
programs.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf_core.core.errors import REFUSED, RlinfError
from rlinf_core.launch.graph import ONCE, RESPAWN, SHUTDOWN, Process
from rlinf_core.launch.supervisor import Supervisor
from tests.machine.ros2_there import SETUP, needs_ros2

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.timeout(120), needs_ros2]
PROGRAM = """#!{python}
import os, signal, sys, time
name, log = os.path.basename(__file__), {log!r}

def tell(words):
    with open(log, "a") as file:
        file.write(f"{{name}} {{words}}\\n")

def interrupted(*_):
    time.sleep({patience})
    tell("ends")
    sys.exit()

signal.signal(signal.SIGINT, interrupted)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
tell("starts")
while len({{line.split()[0] for line in open(log)}}) < {count}:  # all of the station run
    time.sleep(0.02)
{body}
"""
SLEEPS, DIES = "time.sleep(60)", "time.sleep(0.05); os.kill(os.getpid(), signal.SIGKILL)"
REFUSES = (
    f"print('rlinf: the certificate has expired', file=sys.stderr, flush=True); sys.exit({REFUSED})"
)
DESCRIPTION = """
import sys
sys.path.insert(0, {launch!r})
from launch import LaunchDescription
from rlinf_core.launch.graph import Process
from station import cannot_go_on, nodes_of, watched

def generate_launch_description():
    from pathlib import Path
    processes = [Process(name, "odd", name, "", "/a", restart=restart, stop_s=8.0)
                 for name, restart in {restarts!r}.items()]
    nodes = nodes_of(processes, Path({folder!r}))
    return LaunchDescription([action for process, node in zip(processes, nodes)
                              for action in (*watched(process, node, cannot_go_on), node)])
"""


class Programs:
    """A station of programs, for either launcher."""

    def __init__(self, folder, restarts, bodies):
        self.folder, self.restarts, self.log = folder, restarts, folder / "log"
        prefix = folder / "prefix"
        (prefix / "lib/odd").mkdir(parents=True)
        index = prefix / "share/ament_index/resource_index/packages"
        index.mkdir(parents=True)
        (index / "odd").touch()
        for name, restart in restarts.items():
            program = prefix / "lib/odd" / name
            program.write_text(
                PROGRAM.format(
                    python=sys._base_executable,
                    log=str(self.log),
                    body=bodies.get(name, SLEEPS),
                    count=len(restarts),
                    patience=0.5 if restart != SHUTDOWN else 0.0,
                )
            )
            program.chmod(0o755)
        (folder / "odd.launch.py").write_text(
            DESCRIPTION.format(launch=str(ROOT / "launch"), restarts=restarts, folder=str(folder))
        )

    def lines(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def up(self, interrupt):
        """Run by the supervisor; return the error that ends it, empty after an interrupt."""
        with Supervisor(self.folder / "run", 90) as supervisor:
            for name, restart in self.restarts.items():
                supervisor.start(
                    Process(
                        name,
                        "odd",
                        name,
                        "",
                        "/a",
                        {"command": [str(self.folder / "prefix/lib/odd" / name)]},
                        restart=restart,
                    )
                )
            try:
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    supervisor.poll()
                    if interrupt and len(self.lines()) >= len(self.restarts):
                        return ""
                    time.sleep(0.02)
            except RlinfError as error:
                return str(error)
        raise AssertionError("it goes on")

    def launch(self, interrupt, how=signal.SIGINT):
        """Run by ROS's launch; return its exit code and output.

        It gets an interrupt as from a terminal, or another signal.
        """
        words = f'[ -z "{SETUP}" ] || . "{SETUP}"; exec ros2 launch {self.folder}/odd.launch.py'
        with open(self.folder / "output", "wb") as file:
            prefixes = ":".join((f"{self.folder}/prefix", os.environ.get("AMENT_PREFIX_PATH", "")))
            ran = subprocess.Popen(
                ["bash", "-ec", words],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ
                | {"ROS_LOG_DIR": str(self.folder / "logs"), "AMENT_PREFIX_PATH": prefixes},
            )
        end = time.monotonic() + 60
        while interrupt and len(self.lines()) < len(self.restarts):
            assert ran.poll() is None and time.monotonic() < end, (
                self.folder / "output"
            ).read_text()
            time.sleep(0.02)
        if interrupt:
            os.killpg(ran.pid, how)
        return ran.wait(60), (self.folder / "output").read_text()


@pytest.fixture
def programs(tmp_path):
    def make(kind, restarts, **bodies):
        (tmp_path / kind).mkdir()
        return Programs(tmp_path / kind, restarts, bodies)

    return make


STATION = {"sim_bridge": SHUTDOWN, "interlock": SHUTDOWN, "uplink": RESPAWN, "director": ONCE}


@pytest.mark.parametrize(
    "bodies, reason, starts, exit_code",
    [
        ({"uplink": DIES}, "uplink ended 6 times within 60 s (last: killed by SIGKILL)", 6, 1),
        ({"uplink": REFUSES}, "uplink cannot continue: the certificate has expired", 1, REFUSED),
        (
            {"interlock": "sys.exit(3)"},
            "interlock ended (exit code 3). The station cannot continue without it",
            1,
            1,
        ),
        (  # a person has ended it
            {"interlock": "sys.exit(0)"},
            "interlock ended (exit code 0). The station cannot continue without it",
            1,
            REFUSED,
        ),
    ],
)
def test_both_end_a_station_for_the_same_reason_after_as_many_restarts_in_the_same_order(
    programs, bodies, reason, starts, exit_code
):
    up, launch = programs("up", STATION, **bodies), programs("launch", STATION, **bodies)
    error = up.up(interrupt=False)
    code, output = launch.launch(interrupt=False)
    assert reason in error and code == exit_code
    assert reason in output.replace("\r", ""), output
    name = next(iter(bodies))
    assert up.lines().count(f"{name} starts") == launch.lines().count(f"{name} starts") == starts
    assert ends_of(up) == ends_of(launch)


def test_both_end_first_what_commands_and_then_interlock_and_robot_side(programs):
    up, launch = programs("up", STATION), programs("launch", STATION)
    assert up.up(interrupt=True) == ""
    code, output = launch.launch(interrupt=True)
    assert code == 0, output
    assert ends_of(up) == ends_of(launch) == [{"uplink", "director"}, {"interlock", "sim_bridge"}]
    assert "escalating" not in output


def test_a_lifecycle_manager_ends_before_every_node(programs):
    station = programs("launch", {"lifecycle_manager": RESPAWN} | STATION)
    code, output = station.launch(interrupt=True)
    ends = [line.split()[0] for line in station.lines() if line.endswith(" ends")]
    assert (
        code == 0 and ends[0] == "lifecycle_manager" and {*ends[-2:]} == {"interlock", "sim_bridge"}
    ), output


def test_no_node_outlives_a_launch_that_is_killed(programs):
    station = programs("launch", STATION)
    code, _ = station.launch(interrupt=True, how=signal.SIGKILL)
    end = time.monotonic() + 20
    while alive := [
        pid for pid in Path("/proc").glob("[0-9]*") if str(station.folder).encode() in command(pid)
    ]:
        assert time.monotonic() < end, alive
        time.sleep(0.05)
    assert code == -signal.SIGKILL


def command(folder):
    """Return the command line of a process; empty once it has ended."""
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""


def ends_of(station):
    """Names of those that ended, in the two groups in which they may."""
    ends = [line.removesuffix(" ends") for line in station.lines() if line.endswith(" ends")]
    commanders = [name for name in ends if station.restarts[name] != SHUTDOWN]
    assert ends[: len(commanders)] == commanders, ends
    return [set(commanders), set(ends[len(commanders) :])]
