"""`rlinf replay`: the same motion to the last bit in lockstep, refusals, and a real-time station
whose person arms it.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import SafetyState
from sensor_msgs.msg import JointState

from benchmarks.lockstep_starts import STATION as BENCHMARK_STATION
from benchmarks.lockstep_starts import play, write_policy
from rlinf_core.cli.replay import check_recording
from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes.actions import motion_difference, read_actions
from rlinf_core.episodes.read import read_episode
from rlinf_core.interlock.latch import FOLDERS
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.folder import write_recipe
from rlinf_ros.qos import publisher
from sim_bridges.twins.servo_arm import HOME_RAD
from sim_bridges.twins.servos import Servos
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
STATION = ["station.task=reach"]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Two episodes by a policy of chunks, and two by a script, of a station in lockstep."""
    folder = tmp_path_factory.mktemp("recorded")
    policy = write_policy(folder / "policy.safetensors")
    write_recipe(load_recipe("demo", [*BENCHMARK_STATION]), folder)
    with peer_in(folder, 226) as peer:
        return play(peer, policy)[0]


def rlinf_replay(recording, out):
    words = [
        "replay",
        recording,
        "--out",
        out,
        "--json",
        f"{out}.json",
        "--set",
        "station.domain_id=227",
    ]
    command = [sys.executable, "-m", "rlinf_core.cli.main", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL
    )


@pytest.mark.lockstep
@pytest.mark.parametrize("index", [0, 2], ids=["a policy's chunks", "a script's"])
def test_a_replay_in_lockstep_is_the_same_motion_to_the_last_bit(recordings, tmp_path, index):
    done = rlinf_replay(recordings[index], tmp_path / "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same motion, to the last bit" in done.stdout
    assert json.loads((tmp_path / "again.json").read_text()) == {"same": True, "difference": 0.0}


def test_a_recording_keeps_the_chunks_that_moved_the_arm(recordings):
    actions = read_actions(recordings[0])
    assert {chunk.horizon for chunk in actions.chunks.values()} == {8} and min(actions.chunks) == 0
    assert sorted(actions.chunks) == list(range(0, len(actions.episode), 4)), (
        "four of eight are played"
    )
    assert len(actions.pose) == 7 and actions.joints
    script = read_actions(recordings[2])
    first = script.chunks[0]
    np.testing.assert_array_equal(first.data, script.episode.requested[0])
    other = replace(script.episode, executed=script.episode.executed + 1e-12)
    assert (
        motion_difference(script.episode, script.episode)
        == 0.0
        < motion_difference(script.episode, other)
    )
    shorter = replace(script.episode, executed=script.episode.executed[:-1])
    assert motion_difference(script.episode, shorter) == float("inf")


def test_what_does_not_fit_the_station_is_refused_by_name(recordings, tmp_path):
    actions, demo = read_actions(recordings[0]), load_recipe("demo", STATION)
    check_recording(actions, recordings[0], demo, "demo")
    slower = replace(
        actions, episode=replace(actions.episode, stamps_ns=actions.episode.stamps_ns * 2)
    )
    with pytest.raises(EpisodeError, match="expected 10 time steps per second .* got 5.0"):
        check_recording(slower, recordings[0], demo, "demo")
    task = tmp_path / "task.yaml"
    text = Path("configs/tasks/reach.yaml").read_text()
    task.write_text(text.replace("scale: 0.02", "scale: 0.01"))
    assert task.read_text() != text
    with pytest.raises(EpisodeError, match="expected the specs of the station of 'mine'"):
        check_recording(
            actions, recordings[0], load_recipe("demo", [f"station.task={task}"]), "mine"
        )
    robot = tmp_path / "franka_sim"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", robot)
    limits = robot / "limits.yaml"
    limits.write_text(limits.read_text().replace("\nspeed: ", "\nspeed: 0.1  # "))
    with pytest.raises(EpisodeError, match=r"expected limits \w+ \(the station's\), got"):
        check_recording(
            actions,
            recordings[0],
            load_recipe("demo", [*STATION, f"station.robot={robot}"]),
            "mine",
        )
    other = robot.rename(tmp_path / "another_arm")
    with pytest.raises(
        EpisodeError, match="expected a recording of robot '.*another_arm', got one of 'franka_sim'"
    ):
        check_recording(
            actions,
            recordings[0],
            load_recipe("demo", [*STATION, f"station.robot={other}"]),
            "mine",
        )


REAL_DOMAIN = 225
GOAL = (0.33, 0.02, 0.25)  # is published for the task; no reward matters here


def servo_station(folder, device, *, twin):
    """Overrides of a station with an SO-101 by its bus: with its twin, or as a real arm."""
    robot = folder / "so101_bench"  # the same name for both: a recording is of a robot
    robot.mkdir(parents=True)
    urdf = str(Path("robots/so101/so101.urdf").resolve())
    document = yaml.safe_load(Path("robots/so101_twin/robot.yaml").read_text())
    document |= {"limits": str(Path("robots/so101/limits.yaml").resolve()), "urdf": urdf}
    document["options"] |= {"device": str(device), "urdf": urdf}
    if not twin:
        del document["twin"]
        document |= {"estops": [], "no_estop_reason": "the test is at the plug"}
    (robot / "robot.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return [
        f"station.robot='{robot}'",
        "station.task=so101_reach",
        "station.lockstep=false",
        f"station.domain_id={REAL_DOMAIN}",
    ]


@pytest.fixture(scope="module")
def of_servos(tmp_path_factory):
    """Return an episode by a script, of an arm of servos in real time."""
    folder = tmp_path_factory.mktemp("servos")
    overrides = [
        *servo_station(folder, folder / "bus", twin=True),
        "station.operator.kind=scripted",
    ]
    with peer_in(folder, REAL_DOMAIN) as peer:
        for name in ("twin", "driver", "interlock", "environment", "operator", "recorder"):
            start(peer, name, *overrides)
        runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(runner.server_is_ready, what="the station")
        sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="demonstration", first_seed=4))
        peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()
        peer.spin(answer.done, what="the episode")
        result = answer.result().result
        assert result.success, result.message
        [episode] = result.episode_ids
    return folder / "spool/closed" / episode


class ReplayAtArm:
    """`rlinf replay` in a terminal, at servos that are a real arm to it; the test is its person."""

    def __init__(self, folder, recording, angles):
        settings = yaml.safe_load(Path("robots/so101_twin/robot.yaml").read_text())["options"]
        self.servos = Servos(folder / "bus", "feetech", range(1, 7))
        self.ids = {name: joint["id"] for name, joint in settings["joints"].items()}
        self.servos.deflect({str(number): angle for number, angle in enumerate(angles, 1)})
        self.run, self.log = folder / "again", folder / "log"
        overrides = servo_station(folder / "real", folder / "bus", twin=False)
        self.terminal, inside = pty.openpty()
        command = [sys.executable, "-m", "rlinf_core.cli.main", "replay", str(recording)]
        command += ["--recipe", "so101_twin", "--out", str(self.run), "--set", *overrides]
        self.popen = subprocess.Popen(
            command,
            stdin=inside,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )
        os.close(inside)

    def status(self):
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.run / "status.json").read_text())
        return {}

    def until(self, peer, holds, what):
        def done():
            assert self.popen.poll() is None, self.log.read_text()
            return holds()

        peer.spin(done, 90, lambda: f"{what}: {self.status()}\n{self.log.read_text()[-1500:]}")

    def arm(self, peer, states):
        """Press e until the interlock is armed."""
        self.until(peer, lambda: "disarmed" in self.status().get("waiting_for", ""), "the station")
        pressed = time.monotonic() - 2.0

        def armed():
            nonlocal pressed
            if time.monotonic() - pressed > 2.0:
                pressed = time.monotonic()
                os.write(self.terminal, b"e")
            return states[-1].state != SafetyState.DISARMED

        self.until(peer, armed, "arming")

    def ready(self, peer):
        self.until(peer, lambda: "scene" in self.status().get("waiting_for", ""), "the question")
        os.write(self.terminal, b"g")

    def close(self):
        self.popen.terminate()
        self.popen.wait(60)
        os.close(self.terminal)
        self.servos.unplug()


def forget_latches():
    """The machine keeps the latch of a real robot; each test begins and ends without one."""
    for folder in FOLDERS:
        for record in folder.glob(f"rlinf-latch.*.{REAL_DOMAIN}.{os.getuid()}"):
            record.unlink()


@contextlib.contextmanager
def replay_at_arm(folder, recording, angles):
    forget_latches()
    with peer_in(folder, REAL_DOMAIN) as peer:
        goal, goals = PoseStamped(), publisher(peer.node, "goal_pose")
        goal.header.frame_id, goal.pose.orientation.w = "base_link", 1.0
        place = goal.pose.position
        place.x, place.y, place.z = GOAL

        def publish():
            goal.header.stamp = peer.node.get_clock().now().to_msg()
            goals.publish(goal)

        peer.every(0.05, publish)
        at = ReplayAtArm(folder, recording, angles)
        try:
            yield (
                peer,
                at,
                listen(peer, SafetyState, "safety"),
                listen(peer, JointState, "joint_states"),
            )
        finally:
            at.close()
            forget_latches()


def test_on_a_real_arm_a_person_arms_before_the_recording_moves_it(of_servos, tmp_path):
    recorded = read_episode(of_servos)
    with replay_at_arm(tmp_path, of_servos, HOME_RAD) as (peer, at, states, joints):
        at.until(peer, lambda: "disarmed" in at.status().get("waiting_for", ""), "the station")
        peer.for_s(1.0)
        rest = np.array(joints[-1].position)
        assert not any(at.servos.torque.values()) and states[-1].state == SafetyState.DISARMED
        at.arm(peer, states)
        peer.for_s(0.5)
        np.testing.assert_allclose(joints[-1].position, rest, atol=0.02)
        at.ready(peer)
        peer.spin(lambda: at.popen.poll() is not None, 90, lambda: at.log.read_text()[-2000:])
        assert at.popen.returncode == 0, at.log.read_text()
    [again] = (tmp_path / "again/spool/closed").iterdir()
    replayed = read_episode(again)
    assert (
        set(replayed.sources) <= {"operator", ""} and replayed.limits_hash == recorded.limits_hash
    )
    moved = recorded.observations["joints"][-1] - recorded.observations["joints"][0]
    assert np.abs(moved).max() > 0.1, "the recording moves the arm"
    joint = int(np.abs(moved).argmax())
    turned = replayed.observations["joints"][:, joint]
    assert 0.5 < (turned[-1] - turned[0]) / moved[joint] < 1.5, "real time: the arm lags otherwise"
    assert "largest difference of the motion" in at.log.read_text()


def test_on_a_real_arm_far_from_its_start_a_recording_moves_nothing(of_servos, tmp_path):
    far = (HOME_RAD[0] + 0.3, *HOME_RAD[1:])
    with replay_at_arm(tmp_path, of_servos, far) as (peer, at, states, joints):
        at.arm(peer, states)
        rest = np.array(joints[-1].position)
        at.ready(peer)
        peer.spin(lambda: at.popen.poll() is not None, 90, lambda: at.log.read_text()[-2000:])
        np.testing.assert_allclose(joints[-1].position, rest, atol=0.02)
    text = at.log.read_text()
    assert at.popen.returncode == 1, text
    assert "expected the arm at the start of recording" in text
    assert re.search(r"'shoulder_pan' 0\.(29|30)\d rad away", text), text
