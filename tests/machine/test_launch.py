"""Every launch file by ROS's own launch, used by ROS's own command line, ended by Ctrl-C.

Where ROS 2 is (``ros2_there``).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rlinf_core.core.paths import built_messages, message_packages
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from tests.machine.ros2_there import SETUP, as_installed, needs_ros2
from tests.machine.workspace import built
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DOMAIN, MARK = 232, "RLINF_TEST_LAUNCH"
pytestmark = [pytest.mark.ros, pytest.mark.timeout(600), needs_ros2]
OURS = ("PYTHONPATH", "_ROS_WHEELS_BOOTSTRAP_COMPLETE", "OMP_NUM_THREADS")
CLEAN = {key: value for key, value in os.environ.items() if key not in OURS}
# as of any command
TRAINER_INTERRUPTED = re.compile(r"\[trainer-1\]: process has died \[pid \d+, exit code 130,")
# asyncio's, whose end launch has missed
LOST = re.compile(r"Unknown child process pid (\d+), will report returncode 255")
SIGNS = re.compile(r"Traceback|InvalidHandle|RCLError|context is not valid|process has died")


class Workspace:
    """The shell of somebody who has ROS and has built this package, of an environment in a folder
    with a space.
    """

    def __init__(self, folder, clone=None):
        sourced = f'. "{SETUP}"; ' if SETUP else ""
        messages, site = built_messages(), message_packages()
        (folder / "my own").symlink_to(sys.prefix)
        self.python = f"{folder}/my own/bin/{Path(sys.executable).name}"
        self.environment = CLEAN | {
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "RLINF_PYTHON": self.python,
        }
        workspace = (
            f"export AMENT_PREFIX_PATH={messages}:$AMENT_PREFIX_PATH "
            f"PYTHONPATH={site}:$PYTHONPATH LD_LIBRARY_PATH={messages}/lib:$LD_LIBRARY_PATH; . "
            f"{clone}/ros_ws/install/local_setup.sh; "
            if clone
            else ""
        )
        output = self.shell(f"{sourced} {workspace} {as_installed(folder / 'ros')} env -0")
        self.environment = dict(
            variable.split("=", 1) for variable in output.split("\0") if variable
        )

    def shell(self, script):
        ran = subprocess.run(
            ["bash", "-ec", script], cwd=ROOT, env=self.environment, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def ros2(self, words, domain=DOMAIN, timeout=180):
        """Return the output of a ``ros2`` command with exit code 0.

        Its own session, like a terminal, has a share of the cores.
        """
        ran = subprocess.run(
            ["ros2", *words.split()] if isinstance(words, str) else ["ros2", *words],
            cwd=ROOT,
            text=True,
            env=self.environment | {"ROS_DOMAIN_ID": str(domain)},
            capture_output=True,
            timeout=timeout,
            start_new_session=True,
        )
        assert ran.returncode == 0, f"ros2 {words}: {ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    def all_at_once(self, *questions):
        """Return the outputs of commands that run in parallel, because each mostly waits."""
        with ThreadPoolExecutor(len(questions)) as asking:
            return list(asking.map(self.ros2, questions))

    @contextmanager
    def launched(self, words, log, domain=DOMAIN):
        """ros2 launch, as long as the block takes, then Ctrl-C: every process ends, in order.

        Linux shares its cores out among sessions. All of this station is one, of ten processes;
        each of a supervisor's has one of its own, so beside stations of those it gets the share of
        nine, where that is permitted.
        """
        mark = f"{log}"
        with open(log, "wb") as file:
            package = (
                []
                if words.startswith("/")
                else ["rlinf_bringup" if words.startswith("station") else "rlinf"]
            )
            launch = subprocess.Popen(
                ["ros2", "launch", *package, *words.split()],
                cwd=ROOT,
                stdout=file,
                start_new_session=True,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment | {"ROS_DOMAIN_ID": str(domain), MARK: mark},
            )
        with suppress(OSError):
            Path(f"/proc/{launch.pid}/autogroup").write_text("-10")
        try:
            yield Launched(launch, log)
            os.killpg(launch.pid, signal.SIGINT)  # as a terminal does
            launch.wait(90)
            end = time.monotonic() + 20
            # what has been told to end may take a moment
            while marked(mark) and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            left = marked(mark)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            launch.wait(20)
        assert not left and launch.returncode == 0, f"{left} {log.read_text()[-3000:]}"
        text = TRAINER_INTERRUPTED.sub("", log.read_text())
        for lost in LOST.findall(text):
            text = re.sub(rf"process has died \[pid {lost}, exit code 255,", "", text)
        assert not SIGNS.search(text), text[-6000:]


class Launched:
    """One that runs."""

    def __init__(self, process, log):
        self.process, self.log = process, log

    def until(self, words, seconds=180):
        """Wait until the output contains a text."""
        end = time.monotonic() + seconds
        while not re.search(words, text := self.log.read_text(errors="replace")):
            assert self.process.poll() is None and time.monotonic() < end, (
                f"waited for '{words}': {text[-3000:]}"
            )
            time.sleep(0.1)


def marked(value):
    """Processes that were begun with it, and theirs: what their environments say."""
    environments = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            if f"{MARK}={value}".encode() in variables:
                environments[int(folder.name)] = variables
        except OSError:
            continue
    return environments


@pytest.fixture(scope="module")
def ros(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("ws"), built(tmp_path_factory))


# One after the other with what else starts stations in real time: the nodes of two of them, at
# their real-time priorities, may leave nothing of two slow cores to whoever asks.
def test_a_station_comes_up_answers_ros2s_questions_and_ends_with_ctrl_c(ros, tmp_path):
    with ros.launched(
        f"realworld.launch.py recipe:=franka_twin run_dir:={tmp_path}/run", tmp_path / "log"
    ) as launch:
        launch.until("now waits for you; next, each in a terminal")
        launch.until("mode: ARMED")
        assert (tmp_path / "run/recipe.yaml").exists(), "which its recordings have with them"
        nodes = [
            variables
            for pid, variables in marked(f"{tmp_path}/log").items()
            if b"--ros-args" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]
        assert len(nodes) > 8 and all(b"OMP_NUM_THREADS=1" in variables for variables in nodes), (
            "or one spins at its priority"
        )
        topics, echoed, info, active, described, actions, parameters, services, health = (
            ros.all_at_once(
                "topic list --no-daemon --spin-time 4 -t",
                "topic echo --once --no-daemon --qos-reliability best_effort "
                "/station_a/current_pose geometry_msgs/msg/PoseStamped",
                "topic info -v --no-daemon --spin-time 4 /station_a/target_pose",
                "lifecycle get --no-daemon --spin-time 4 /station_a/interlock",
                "param describe --no-daemon --spin-time 4 /station_a/interlock limits.speed",
                "node info --no-daemon --spin-time 4 /station_a/environment",
                "param list --no-daemon --spin-time 4",
                "service list --no-daemon --spin-time 4",
                "doctor --report",
            )
        )
        for process in station_processes(load_recipe("franka_twin"), tmp_path):
            node = f"{process.namespace}/{process.executable}"
            assert (
                f"{node}:" in parameters.splitlines()
                and f"{node}/describe_parameters" in services.split()
            ), node
        assert not re.search(r"compatibility status\s*: ERROR", health)
        assert {
            "/station_a/safety [rlinf_msgs/msg/SafetyState]",
            "/station_a/tf [tf2_msgs/msg/TFMessage]",
            "/station_a/target_pose [geometry_msgs/msg/PoseStamped]",
            "/station_a/franka_robot_state_broadcaster/robot_state "
            "[franka_msgs/msg/FrankaRobotState]",
        } <= set(topics.splitlines())
        assert "frame_id: base_link" in echoed
        assert re.search(r"Publisher count: 1\n\nNode name: interlock", info)
        assert "active [3]" in active
        assert "Type: double" in described and "Max value" in described and "m/s" in described
        assert (
            "/station_a/run_episodes: rlinf_msgs/action/RunEpisodes"
            in actions.partition("Action Servers:")[2]
        )
        refused, disarmed, reset = ros.all_at_once(
            "param set --no-daemon --spin-time 4 /station_a/interlock limits.speed 99.0",
            [
                "service",
                "call",
                "/station_a/interlock/arm",
                "std_srvs/srv/SetBool",
                "{data: false}",
            ],
            [
                "service",
                "call",
                "/station_a/interlock/reset_fault",
                "rlinf_msgs/srv/ResetFault",
                "{cause: nothing}",
            ],
        )
        assert "limits.speed" in refused and "successful" not in refused
        assert "success=True" in disarmed
        assert "success=False" in reset and "message=" in reset


@pytest.mark.patient
@pytest.mark.parametrize(
    "name, words, sign, domain",
    [
        ("sim", "lockstep:=true managed:=true", "now waits for you", 209),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in (
                ("collect", "", "now waits for you", 210),
                ("safety_drill", "json:={out}.json", r"held +S2", 211),
                (
                    "fleet",
                    "recipe:=demo_tiny stations:=1 set:=station.domain_id=213",
                    "demonstrations succeeded",
                    212,
                ),
            )
        ),
    ],
)
def test_another_comes_up_and_ends_with_ctrl_c(ros, tmp_path, name, words, sign, domain):
    """The file of a clone whose workspace is not built starts the same modules."""
    arguments = words.format(out=tmp_path / name) + (
        "" if name == "safety_drill" else f" run_dir:={tmp_path / name}"
    )
    workspace, file = (
        (Workspace(tmp_path), f"{ROOT}/launch/sim.launch.py")
        if name == "sim"
        else (ros, f"{name}.launch.py")
    )
    with workspace.launched(f"{file} {arguments}", tmp_path / f"{name}.log", domain) as launch:
        launch.until(sign)
        if name in ("sim", "collect"):
            message_text = ros.ros2(
                # it may not tick now
                "topic echo --once --no-daemon --qos-durability transient_local "
                "/station_a/safety rlinf_msgs/msg/SafetyState",
                domain,
            )
            assert "state: " in message_text and "limits_hash" in message_text
        if name == "sim":
            launch.until("operator is active")
            assert "active [3]" in ros.ros2(
                "lifecycle get --no-daemon --spin-time 4 /station_a/environment", domain
            )


@pytest.mark.slow
def test_a_trainer_that_says_why_it_cannot_go_on_ends_the_fleet_and_is_not_started_again(
    ros, tmp_path
):
    checkpoint = tmp_path / "run/checkpoints/00000001-updates-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    ran = subprocess.run(
        [
            "ros2",
            "launch",
            "rlinf",
            "fleet.launch.py",
            "recipe:=demo_tiny",
            "stations:=1",
            f"run_dir:={tmp_path}/run",
            f"set:=station.domain_id=142 bridge.port={free_port()}",
        ],
        cwd=ROOT,
        env=ros.environment | {"ROS_DOMAIN_ID": "142"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    output = ran.stdout + ran.stderr
    assert (
        "the trainer cannot continue; its output above has the reason" in output
        and "rlinf: " in output
    ), output[-3000:]
    assert len(re.findall(r"\[trainer-\d+\]: process started", output)) == 1


@pytest.mark.patient
def test_a_launch_argument_may_be_any_path(ros, tmp_path):
    odd = tmp_path / "it's (mine), too"
    process = subprocess.run(
        [
            "python3",
            "-c",
            "import json, station; from pathlib import Path; station.find_rlinf()\n"
            "said = dict.fromkeys(station.ARGUMENTS, '') | json.loads(input())\n"
            "from rlinf_core.cli.launch_arguments import overrides_of\n"
            "from rlinf_core.config.overrides import apply_override\nfrom rlinf_core.config.yaml_source "
            "import Document\n"
            "found = Document({})\nfor each in overrides_of(said): apply_override(found, each)\n"
            "print(json.dumps(found.data))",
        ],
        cwd=ROOT / "launch",
        env=ros.environment,
        text=True,
        capture_output=True,
        input=json.dumps(
            {"robot": f"{odd}/arm", "credentials": str(odd), "policy": "remote://host:8000"}
        ),
    )
    document = json.loads(process.stdout or process.stderr)
    assert (document["station"]["robot"], document["bridge"]["credentials"]) == (
        f"{odd}/arm",
        str(odd),
    )
    assert document["station"]["policy"]["address"] == "ws://host:8000"
