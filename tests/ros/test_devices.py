"""A person's devices at a station: motion that passes the interlock, and what stops it; labels of
the episode in play.
"""

import contextlib
import os
import pty
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyState, TimeStep
from sensor_msgs.msg import Joy
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import operator_process
from rlinf_core.launch.supervisor import command_line
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.robots.operators.twins import Pedal, SpaceMouse
from rlinf_ros.qos import profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start
from tests.ros.test_nodes import step_of

ARMED = (SafetyState.ARMED, SafetyState.ACTIVE, SafetyState.HOLD)
pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


class Manned:
    """A simulated station in real time, whose operator holds a SpaceMouse and has a pedal; both are
    twins.
    """

    def __init__(self, peer, folder):
        self.peer = peer
        self.mouse = SpaceMouse(folder / "mouse")
        self.pedal = Pedal(folder / "pedal")
        self.states = listen(peer, SafetyState, "safety")
        self.targets = listen(peer, PoseStamped, "target_pose")
        self.chunks = listen(peer, ActionChunk, "teleop/action")
        self.episodes = listen(peer, EpisodeEvent, "episode")
        self.enables, self.health = listen(peer, Bool, "enable"), []
        peer.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        task = folder / "long.yaml"
        task.write_text(
            Path("configs/tasks/reach.yaml").read_text().replace("max_steps: 30", "max_steps: 900")
        )
        overrides = [
            "station.lockstep=false",
            f"station.task={task}",
            f"station.operator={{kind: spacemouse, device: {self.mouse.path}, buttons: {{1: "
            "enable, 2: arm}, curve: 1.0}",
            f"station.second_operator={{kind: pedal, device: {self.pedal.path}, buttons: "
            "{a: failure, b: rerecord, c: success}}",
        ]
        for name in ("sim_bridge", "interlock", "recorder", "environment"):
            start(peer, name, *overrides, **({"patience_s": 30.0} if name == "environment" else {}))
        peer.supervisor.start(operator_process(load_recipe("demo", overrides)))
        self.runner = ActionClient(peer.node, RunEpisodes, "run_episodes")

    def _on_diagnostics(self, message):
        self.health += [status for status in message.status if status.name == "station_a/operator"]

    def arm(self):
        self.peer.spin(
            lambda: self.health and self.health[-1].message.endswith("ready"), what="the operator"
        )
        for _ in range(40):
            self.mouse.press("2", True)
            self.mouse.press("2", False)
            with contextlib.suppress(AssertionError):
                self.peer.spin(lambda: self.states and self.states[-1].state in ARMED, 2)
                return
        raise AssertionError(f"not armed: {self.states[-1:]}")

    def begin(self, count=1):
        self.peer.spin(self.runner.server_is_ready, what="the environment")
        sent = self.runner.send_goal_async(
            RunEpisodes.Goal(count=count, mode="demonstration", first_seed=7)
        )
        before = len(self.episodes)
        self.peer.spin(sent.done, what="the goal")
        self.peer.spin(
            lambda: any(event.kind == EpisodeEvent.STARTED for event in self.episodes[before:]),
            what="an episode",
        )
        return sent.result().get_result_async()

    @property
    def y(self):
        return self.targets[-1].pose.position.y

    def moves_left(self):
        self.mouse.deflect({"tx": -0.6})
        before = self.y
        self.peer.spin(
            lambda: self.y > before + 0.005,
            10,
            lambda: f"motion: {self.states[-1]} {self.health[-1:]}",
        )

    @property
    def commands(self):
        return [chunk for chunk in self.chunks if chunk.data]

    @property
    def releases(self):
        return [chunk for chunk in self.chunks if not chunk.data]

    def stops(self, cause, seconds=0.5):
        """Wait until the arm brakes and rests, although commands were under way."""
        self.peer.for_s(0.4)
        commands, y = len(self.commands), self.y
        self.peer.for_s(seconds)
        assert len(self.commands) == commands and abs(self.y - y) < 1e-4, (
            "nothing is asked, and nothing moves"
        )
        self.peer.spin(
            lambda: (self.states[-1].state, self.states[-1].cause) == (SafetyState.HOLD, cause),
            10,
            lambda: f"the hold: {self.states[-1]}",
        )


@pytest.fixture(scope="module")
def manned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manned")
    with peer_in(folder, 35) as peer:
        station = Manned(peer, folder)
        yield station
        station.mouse.unplug()
        station.pedal.unplug()


def well(station):
    return not any(status.level != b"\x00" for status in station.health[-1:])


def log_of(station):
    return (station.peer.supervisor.run_dir / "logs/operator.log").read_text()


def test_while_nobody_wants_episodes_a_device_moves_the_arm_and_let_go_it_stops(manned):
    """As for `rlinf first-motion`, and to show a camera its board."""
    manned.arm()
    manned.mouse.rest()
    # a second until the operator has looked who is there, and another in which it is at rest
    manned.peer.for_s(3.0)
    manned.moves_left()
    assert manned.states[-1].source == "operator" and not manned.episodes
    assert not manned.releases, "while it commands it lets nothing go"
    manned.mouse.rest()
    manned.stops("stale_command")
    assert len(manned.releases) == 1 and manned.releases[0].seq > manned.commands[-1].seq


def test_a_spacemouse_moves_the_arm_through_the_interlock_and_silence_stops_it(manned):
    manned.arm()
    done = manned.begin()
    manned.moves_left()
    manned.peer.spin(lambda: manned.states[-1].source == "operator", 30, "the operator in command")
    manned.mouse.silent()
    manned.peer.spin(lambda: "spacemouse: silent" in manned.health[-1].message, 30, "the diagnosis")
    assert manned.health[-1].level == b"\x02" and manned.enables[-1].data is False
    manned.stops("operator_silent")
    assert "spacemouse: silent: expected reports while it is deflected" in log_of(manned)
    enable_count = len(manned.enables)
    manned.pedal.press("d", True)
    manned.pedal.press("d", False)
    manned.peer.for_s(0.5)
    assert not any(enable.data for enable in manned.enables[enable_count:]), (
        "a pedal that is well is no reason to go on"
    )
    manned.mouse.rest()
    manned.peer.spin(lambda: well(manned), 30, "it to be well again")
    manned.moves_left()
    manned.mouse.unplug()
    manned.peer.spin(lambda: "unplugged" in manned.health[-1].message, 30, "the diagnosis")
    manned.stops("operator_silent")
    manned.mouse = SpaceMouse(manned.mouse.path)
    manned.peer.spin(lambda: well(manned), 30, "it to be plugged in again")
    manned.moves_left()
    manned.mouse.write(b"\x01\x02\x03")
    manned.peer.spin(lambda: "garbage" in manned.health[-1].message, 30, "the diagnosis")
    manned.stops("operator_silent")
    manned.mouse.rest()
    manned.peer.spin(lambda: well(manned), 30, "it to be well again")
    # the operator lets go of the takeover first: an enable before that gives nothing back
    manned.peer.for_s(0.5)
    manned.pedal.press("c", True)
    manned.pedal.press("c", False)
    manned.peer.spin(done.done, what="the end of the episode")
    assert done.result().result.successes == 1, "the pedal said so"
    manned.peer.spin(
        lambda: manned.states[-1].cause != "operator_silent",
        30,
        "the enable, given back by the pedal",
    )


def test_a_pedal_labels_a_failure_and_asks_for_an_episode_once_more(manned):
    done = manned.begin()
    first = manned.episodes[-1].episode_id
    manned.pedal.press("b", True)
    manned.pedal.press("b", False)
    manned.peer.spin(
        lambda: (
            manned.episodes[-1].kind == EpisodeEvent.STARTED
            and manned.episodes[-1].episode_id != first
        ),
        30,
        "the episode once more",
    )
    aborted = next(
        event
        for event in manned.episodes
        if event.kind == EpisodeEvent.ABORTED and event.episode_id == first
    )
    assert "another take" in aborted.detail and manned.episodes[-1].seed == 7
    manned.peer.for_s(0.3)
    manned.pedal.press("a", True)
    manned.pedal.press("a", False)
    manned.peer.spin(done.done, what="the end of the episode")
    ended = [event for event in manned.episodes if event.kind == EpisodeEvent.ENDED][-1]
    assert ended.failure and not ended.success and done.result().result.successes == 0


def test_an_episode_that_is_aborted_ends_the_takeover_though_the_device_is_held(manned):
    """Else the operator would count as silent, and the next episode would wait for an enable."""
    done = manned.begin()
    manned.moves_left()
    manned.peer.spin(lambda: manned.states[-1].source == "operator", 30, "the operator in command")
    state_count, releases = len(manned.states), len(manned.releases)
    manned.pedal.press("b", True)
    manned.pedal.press("b", False)
    manned.peer.spin(lambda: len(manned.releases) > releases, 30, "the release")
    manned.mouse.rest()
    manned.peer.for_s(2.0)
    assert "operator_silent" not in {state.cause for state in manned.states[state_count:]}
    manned.pedal.press("c", True)
    manned.pedal.press("c", False)
    manned.peer.spin(done.done, what="the end of the episode")


def test_another_word_is_no_label(manned):
    say = manned.peer.node.create_publisher(String, "label", profile("label"))
    manned.peer.spin(lambda: say.get_subscription_count(), what="the environment")
    say.publish(String(data="sucess"))
    log = manned.peer.supervisor.run_dir / "logs/environment.log"
    message = "label: expected one of ready, success, failure, rerecord, discard, got 'sucess'"
    manned.peer.spin(lambda: message in log.read_text(), 30, "its word")
    manned.peer.node.destroy_publisher(say)


@pytest.mark.domain(183)
def test_a_joy_topic_commands_and_a_device_that_is_missing_ends_the_operator(peer, tmp_path):
    labels = listen(peer, String, "label")
    joy = peer.node.create_publisher(Joy, "joy", profile("joy"))
    peer.supervisor.start(
        operator_process(load_recipe("demo", ["station.operator={kind: joy, clutch: ''}"]))
    )
    buttons = [0] * 11
    peer.node.create_timer(
        0.05,
        lambda: joy.publish(Joy(axes=[0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], buttons=buttons)),
    )
    peer.spin(lambda: joy.get_subscription_count(), what="the operator")
    end = time.monotonic() + 20
    while not labels:
        buttons[3] = 1 - buttons[3]
        peer.for_s(0.4)  # it is believed once it was heard at rest for 0.2 s
        assert time.monotonic() < end
    assert labels[0].data == "success"
    peer.supervisor.stop()
    missing = load_recipe("demo", ["station.operator={kind: spacemouse, device: /dev/hidraw99}"])
    peer.supervisor.start(operator_process(missing))
    log = peer.supervisor.run_dir / "logs/operator.log"
    peer.spin(
        lambda: "expected a SpaceMouse at /dev/hidraw99, got: No such file" in log.read_text(),
        what="its word",
    )
    assert "Traceback" not in log.read_text()


@pytest.mark.domain(162)
def test_keys_move_the_arm_whose_number_was_pressed_and_arm_both(peer, tmp_path):
    chunks, requests = listen(peer, ActionChunk, "teleop/action"), []

    def on_arm(name, request, response):
        requests.append((name, request.data))
        response.success = True
        return response

    for name in ("left", "right"):
        peer.node.create_service(SetBool, f"{name}/interlock/arm", partial(on_arm, name))
    steps = peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    recipe = load_recipe(
        "demo",
        [
            "station.robot=two_franka_sim",
            "station.task=reach_both",
            "station.operator.kind=keyboard",
        ],
    )
    spec, (terminal, inside) = station_task(recipe).spec, pty.openpty()
    person = subprocess.Popen(
        command_line(operator_process(recipe), tmp_path),
        stdin=inside,
        env=peer.supervisor.environment,
    )

    def moved(keys):
        chunks.clear()
        for _ in range(6):  # as a terminal repeats a key that is held
            os.write(terminal, keys)
            peer.for_s(0.05)
        steps.publish(step_of(spec))
        peer.spin(lambda: chunks, what="the takeover")
        return list(chunks[-1].data)

    try:
        peer.spin(lambda: steps.get_subscription_count() >= 1, what="the operator")
        peer.for_s(1.0)
        os.write(terminal, b"e")
        peer.spin(lambda: len(requests) == 2, what="arming")
        assert moved(b"w") == pytest.approx([0.01, 0, 0, 0, 0, 0])
        os.write(terminal, b"2")
        assert moved(b"r") == pytest.approx([0, 0, 0, 0, 0, 0.01])
    finally:
        person.terminate()
        person.wait(10)
    assert sorted(requests) == [("left", True), ("right", True)]
