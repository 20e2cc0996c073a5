"""Episodes that a person begins and ends: at a robot that nobody else resets, and by `rlinf
collect` in a terminal.
"""

import contextlib
import fcntl
import json
import os
import pty
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyState, TimeStep
from std_msgs.msg import String
from std_srvs.srv import SetBool

from rlinf_core.data.demonstrations import demonstration_stats
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.conversions import action_chunk
from rlinf_ros.qos import profile
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


ACTION = [
    f"reset_scene/_action/{part}"
    for part in ("send_goal", "cancel_goal", "get_result", "feedback", "status")
]


class Unreset:
    """A robot in real time whose side has no ``reset_scene``; the test is its operator and
    arms it.
    """

    def __init__(self, peer, task, *more, records=True):
        self.overrides = overrides = ("station.lockstep=false", f"station.task={task}", *more)
        robot, *_ = station_processes(
            load_recipe("demo", [*overrides, "station.operator.kind=keyboard"]), task.parent
        )
        elsewhere = tuple((f"/station_a/{name}", f"/elsewhere/{name}") for name in ACTION)
        self.peer = peer
        self.seq = 0
        self.idle = False
        self.spec = station_task(load_recipe("demo", overrides)).spec
        self.prompts = listen(peer, String, "prompt")
        self.events = listen(peer, EpisodeEvent, "episode")
        self.steps = listen(peer, TimeStep, "timestep")
        self.states = listen(peer, SafetyState, "safety")
        self.chunks = peer.node.create_publisher(
            ActionChunk, "teleop/action", profile("teleop/action")
        )
        self.word = peer.node.create_publisher(String, "label", profile("label"))
        peer.node.create_subscription(TimeStep, "timestep", self.rest, profile("timestep"))
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        self.runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.supervisor.start(replace(robot, remappings=robot.remappings + elsewhere))
        for name in ("interlock", "recorder")[: 1 + records]:
            start(peer, name, *overrides)
        start(peer, "environment", *overrides, person=True, external=True, retries=1)
        peer.spin(
            lambda: self.runner.server_is_ready() and self.arming.service_is_ready(),
            what="the station",
        )

    def rest(self, step):
        if step.step_type != TimeStep.LAST and not self.idle:
            self.seq += 1
            self.chunks.publish(
                action_chunk(
                    self.spec,
                    [[0.0, 0.0, 0.0]],
                    source="operator",
                    session="o",
                    seq=self.seq,
                    version=-1,
                    observation_stamp=step.header.stamp,
                )
            )

    def arm(self, value=True):
        def done():
            self.arming.call_async(SetBool.Request(data=value))
            self.peer.for_s(0.3)
            return self.states and (self.states[-1].state != SafetyState.DISARMED) == value

        self.peer.spin(done, what=lambda: f"arming {value}: {self.states[-1:]}")

    def say(self, word):
        self.word.publish(String(data=word))

    def ask(self, **goal):
        sent = self.runner.send_goal_async(RunEpisodes.Goal(**goal))
        self.peer.spin(
            lambda: sent.done() and self.prompts and self.prompts[-1].data, what="the question"
        )
        return sent.result()

    @property
    def started(self):
        return [event for event in self.events if event.kind == EpisodeEvent.STARTED]

    def ready(self):
        before = len(self.started)
        self.peer.spin(lambda: self.prompts and self.prompts[-1].data, what="the question")
        self.say("ready")
        self.peer.spin(lambda: len(self.started) > before, what="the episode")
        episode_id = self.started[-1].episode_id
        self.peer.spin(
            lambda: (
                self.steps
                and (self.steps[-1].episode_id, self.prompts[-1].data) == (episode_id, "")
                and self.steps[-1].step_index > 2
            ),
            20,
            "time steps, and the question taken back",
        )


def task_without_end(folder):
    """It ends by a person's word alone."""
    path = folder / "long.yaml"
    path.write_text(
        Path("configs/tasks/reach.yaml").read_text().replace("max_steps: 30", "max_steps: 900")
    )
    return path


@pytest.mark.domain(180)
def test_where_nobody_resets_the_scene_a_persons_word_begins_the_episode_and_discards_it(
    peer, tmp_path
):
    at = Unreset(peer, task_without_end(tmp_path), records=False)
    at.arm()
    at.say("ready")  # before it is asked: it counts for nothing
    goal_sent = at.runner.send_goal_async(
        RunEpisodes.Goal(count=2, mode="demonstration", first_seed=7)
    )
    peer.spin(goal_sent.done, what="the request to be taken")
    peer.for_s(1.0)
    assert "'ready' came before the question" in at.prompts[-1].data
    assert not any("reset the scene" in prompt.data for prompt in at.prompts), (
        "nobody would record it"
    )
    start(peer, "recorder", *at.overrides)
    peer.spin(lambda: at.prompts[-1].data.startswith("reset the scene"), what="the question")
    handle = goal_sent.result()
    peer.for_s(0.5)
    assert not at.started and "confirm that it is ready" in at.prompts[-1].data
    at.arm(False)
    at.say("ready")
    peer.spin(
        lambda: at.prompts[-1].data.startswith("ready: the interlock does not let the arm move"),
        30,
        "the answer",
    )
    assert not at.started and "reset the scene" in at.prompts[-1].data, (
        "a word while it is disarmed begins nothing"
    )
    at.arm()
    for word in ("discard", "rerecord", "failure", "success"):
        at.ready()
        at.say(word)
    result = handle.get_result_async()
    peer.spin(result.done, what="the end of the request")
    got = result.result().result
    assert (got.success, got.episodes, got.successes) == (True, 2, 1)
    assert [event.seed for event in at.started] == [7, 8, 8, 9], (
        "once more is the same scene, a discarded one is not"
    )
    spool, ids = peer.supervisor.run_dir / "spool", [event.episode_id for event in at.started]
    broken, closed = (
        {path.name for path in (spool / name).iterdir()} for name in ("broken", "closed")
    )
    assert broken == set(ids[:2]) and closed == set(ids[2:]) == set(got.episode_ids)
    handle = at.ask(count=1, mode="train", first_seed=1)
    ended = handle.get_result_async()
    handle.cancel_goal_async()
    peer.spin(ended.done, 30, "its end without a word")
    assert ended.result().result.message == "cancelled" and len(at.started) == 4


@pytest.mark.domain(180)
def test_takes_in_which_nobody_moves_the_arm_do_not_count_however_many_and_end_no_request(
    peer, tmp_path
):
    at = Unreset(peer, task_without_end(tmp_path))
    at.arm()
    handle = at.ask(count=1, mode="demonstration", first_seed=7)
    at.idle = True
    for _ in range(3):  # more than the environment would try again
        at.ready()
        at.say("failure")
        episode_id = at.started[-1].episode_id
        peer.spin(
            lambda: any(
                event.kind == EpisodeEvent.ABORTED and event.episode_id == episode_id  # noqa: B023
                for event in at.events
            ),  # noqa: B023
            what="the recorder's word",
        )
        assert "applied no action: the arm had no commander" in at.events[-1].detail
    at.idle = False
    at.ready()
    at.say("success")
    result = handle.get_result_async()
    peer.spin(result.done, what="the end of the request")
    got = result.result().result
    assert (got.success, got.episodes, got.message) == (True, 1, "") and {
        event.seed for event in at.started
    } == {7}


class AtTheTerminal:
    """Somebody who has typed `rlinf collect`, with what they see and what lies on the disk."""

    def __init__(self, folder, *argv):
        self.folder, (self.terminal, inside) = folder, pty.openpty()
        # so that Ctrl-C comes to all of them
        self.popen = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rlinf_core.cli.main",
                "collect",
                "demo",
                "--quiet",
                "--out",
                str(folder),
                *argv,
            ],
            stdin=inside,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )

    def status(self):
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / "status.json").read_text())
        return {}

    def wait(self, until, what):
        end = time.monotonic() + 45
        while not until():
            assert self.popen.poll() is None, self.popen.stdout.read()
            assert time.monotonic() < end, f"{what}: {self.status()}"
            time.sleep(0.05)

    def count(self, where):
        folder = self.folder / "spool" / where
        return len(list(folder.iterdir())) if folder.is_dir() else 0

    def key(self, key):
        os.write(self.terminal, key)

    def arm(self):
        """Again and again, until the robot side is up: why it is refused is shown."""
        self.wait(lambda: "disarmed" in self.status().get("waiting_for", ""), "the station")
        pressed = time.monotonic()
        self.key(b"e")
        while self.status()["safety"]["state"] == "DISARMED":
            if time.monotonic() > pressed + 2:
                pressed = time.monotonic()
                self.key(b"e")
            assert self.popen.poll() is None
            time.sleep(0.1)

    def take(self, word, into):
        """Scene ready, some motion, and the word that ends it."""
        self.wait(lambda: "reset the scene" in self.status().get("waiting_for", ""), "the question")
        assert not self.count("open"), "nothing begins before"
        before = self.count(into)
        self.key(b"g")
        self.wait(lambda: self.count("open"), "the episode")
        for _ in range(4):
            self.key(b"w")
            time.sleep(0.1)
        self.key(word)
        self.wait(lambda: self.count(into) > before or self.popen.poll() is not None, "its end")


@pytest.fixture
def at_the_terminal():
    everybody = []

    def begin(*argv):
        everybody.append(AtTheTerminal(*argv))
        return everybody[-1]

    yield begin
    for terminal in everybody:
        terminal.popen.terminate()
        terminal.popen.wait(30)


@pytest.mark.slow
def test_a_person_collects_in_one_terminal_stops_and_goes_on(tmp_path, at_the_terminal):
    run = tmp_path / "run"
    overrides = [
        "--set",
        f"station.task={task_without_end(tmp_path)}",
        "station.operator.kind=keyboard",
        "station.domain_id=181",
    ]
    first = at_the_terminal(run, "--episodes", "2", *overrides)
    first.arm()
    first.take(b"y", "closed")
    first.take(b"x", "broken")
    first.take(b"n", "closed")
    first.wait(lambda: first.status()["done"] == 2, "the count")
    assert (first.status()["successes"], first.status()["dropped"]) == (1, 1)
    first.key(b"\x03")
    output, code = first.popen.communicate(timeout=90)[0], first.popen.returncode
    assert code == 130 and "1 of 2 demonstrations succeeded and count, 1 failed;" in output
    assert f"the same command with --out {run} continues" in output
    assert (
        "takes: 1 of 2 succeeded, 0 failed, 1 discarded" in output
        and "g: the scene is ready" in output
    )
    assert (
        "y: success · n: failure · b: once more · x: discard" in output
        and "GB free, about" in output
    )
    second = at_the_terminal(run, "--episodes", "2", *overrides)
    second.arm()
    second.take(b"y", "closed")
    output, code = second.popen.communicate(timeout=90)[0], second.popen.returncode
    assert code == 0 and "2 of 2 demonstrations succeeded and count, 1 failed;" in output
    assert "rlinf data export lerobot" in output
    takes = demonstration_stats(run, load_recipe("demo", overrides[1:]))
    assert (takes.succeeded, takes.failed) == (2, 1)
    seeds = [
        json.loads(line)["seed"]
        for line in (run / "progress.jsonl").read_text().splitlines()
        if '"episode"' in line
    ]
    assert len(set(seeds)) == 3, "no scene twice"
