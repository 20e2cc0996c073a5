"""Nodes one by one, each a real process: what it does, and what it says when it cannot."""

import io
import os
import pty
import subprocess
import time
import tty
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient
from rlinf_msgs.action import ResetScene
from rlinf_msgs.msg import (
    ActionChunk,
    EpisodeEvent,
    PolicyStatus,
    PolicyUpdate,
    SafetyState,
    TimeStep,
)
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sensor_msgs.msg import Image
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import operator_process, station_processes
from rlinf_core.launch.supervisor import command_line
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.robots.operators.device import axes
from rlinf_core.robots.operators.keyboard import Keyboard
from rlinf_core.specs.arrays import ActionSpec
from rlinf_core.tasks.task import load_task
from rlinf_operator.human_operator import HumanOperator
from rlinf_ros.conversions import fill_observation, to_ns
from rlinf_ros.qos import profile
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
SMALL = tanh_gaussian.Config(hidden=(16,), image_features=4)


@pytest.mark.domain(86)
def test_the_simulator_in_lockstep_moves_one_tick_for_one_target_of_its_own_time(peer):
    poses, images = (
        listen(peer, PoseStamped, "current_pose"),
        listen(peer, Image, "camera/wrist/image"),
    )
    targets = peer.node.create_publisher(PoseStamped, "target_pose", profile("target_pose"))
    start(
        peer,
        "sim_bridge",
        "station.observe_cameras=[wrist]",
        "station.image_size=[24, 32]",
        "station.real_time_factor=0.05",
    )
    peer.spin(lambda: poses and images, what="the simulator")
    assert (images[-1].height, images[-1].width, images[-1].encoding) == (24, 32, "rgb8")
    first = poses[-1]
    for number in range(1, 6):
        now = to_ns(poses[-1].header.stamp)
        target = PoseStamped(pose=first.pose, header=poses[-1].header)
        targets.publish(target)
        peer.spin(lambda: to_ns(poses[-1].header.stamp) > now, what=f"tick {number}")  # noqa: B023
        assert to_ns(poses[-1].header.stamp) - now == 10_000_000
        targets.publish(target)  # of a time that has passed: no tick credit
        peer.for_s(0.1)
        assert to_ns(poses[-1].header.stamp) - now == 10_000_000
    began = time.monotonic()
    for _ in range(8):
        now = to_ns(poses[-1].header.stamp)
        targets.publish(PoseStamped(pose=first.pose, header=poses[-1].header))
        peer.spin(lambda: to_ns(poses[-1].header.stamp) > now, what="a tick")  # noqa: B023
    assert time.monotonic() - began > 7 * 0.01 / 0.05 - 0.1, (
        "between 8 ticks, of which 0.1 s may be caught up"
    )
    resetter = ActionClient(peer.node, ResetScene, "reset_scene")
    peer.spin(resetter.server_is_ready, what="reset_scene")
    before = to_ns(poses[-1].header.stamp)
    sent = resetter.send_goal_async(ResetScene.Goal(seed=3))
    peer.spin(sent.done, what="the goal")
    answer = sent.result().get_result_async()
    peer.spin(answer.done, what="the reset")
    result = answer.result().result
    assert result.success and to_ns(result.stamp) == 60 * 10**9 > before, (
        "a new scene begins at the next whole minute"
    )


def step_of(spec, mode="train", kind=TimeStep.FIRST, episode_id="e"):
    observation = {item.name: np.zeros(item.shape, item.dtype) for item in spec.observation}
    step = TimeStep(step_type=kind, mode=mode, episode_id=episode_id)
    step.header.stamp.sec = 12
    fill_observation(step, spec, observation)
    return step


@pytest.mark.domain(87)
def test_the_policy_refuses_what_does_not_fit_and_keeps_what_does(peer, tmp_path):
    statuses, chunks = (
        listen(peer, PolicyStatus, "policy/status"),
        listen(peer, ActionChunk, "policy/action"),
    )
    steps = peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))
    spec = start(peer, "policy")
    good = save_policy(Actor(spec, SMALL), tmp_path / "good.safetensors")
    other = save_policy(
        Actor(station_task(load_recipe("demo_vision")).spec, SMALL), tmp_path / "other.safetensors"
    )
    peer.spin(lambda: statuses, what="the policy")
    updates.publish(PolicyUpdate(version=3, path=str(good)))
    peer.spin(lambda: statuses[-1].version == 3, what="version 3")
    updates.publish(PolicyUpdate(version=4, path=str(other)))
    peer.spin(lambda: statuses[-1].error, what="the refusal")
    assert statuses[-1].version == 3 and "does not fit this station" in statuses[-1].error
    assert "socket_offset" in statuses[-1].error
    (tmp_path / "torn.safetensors").write_bytes(good.read_bytes()[:-50])
    updates.publish(PolicyUpdate(version=5, path=str(tmp_path / "torn.safetensors")))
    peer.spin(lambda: "truncated" in statuses[-1].error, what="the second refusal")
    larger = load_file(good) | {"more": np.zeros(1, np.float32)}
    save_file(larger, tmp_path / "larger.safetensors", safe_open(good, "numpy").metadata())
    updates.publish(PolicyUpdate(version=6, path=str(tmp_path / "larger.safetensors")))
    peer.spin(
        lambda: "larger.safetensors: RuntimeError" in statuses[-1].error,
        what="what nobody thought of",
    )
    peer.spin(lambda: steps.get_subscription_count() >= 1, what="its subscription")
    steps.publish(step_of(spec))
    peer.spin(lambda: chunks, what="a chunk")
    assert (chunks[0].policy_version, chunks[0].observation_stamp.sec, chunks[0].horizon) == (
        3,
        12,
        1,
    )
    assert np.abs(chunks[0].data).max() <= 0.02 + 1e-6
    for step in (step_of(spec, mode="demonstration"), step_of(spec, kind=TimeStep.LAST)):
        steps.publish(step)
    bad = step_of(spec)
    bad.vectors[0].data = [float("nan")] * 3
    steps.publish(bad)
    peer.for_s(0.5)
    assert len(chunks) == 1, (
        "silent in demonstrations, after the last step, and on observations that are not finite"
    )


@pytest.mark.domain(69)
def test_one_version_plays_all_episodes_of_one_evaluation(peer, tmp_path):
    chunks, statuses = (
        listen(peer, ActionChunk, "policy/action"),
        listen(peer, PolicyStatus, "policy/status"),
    )
    steps = peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))
    spec = start(peer, "policy")
    path = str(save_policy(Actor(spec, SMALL), tmp_path / "policy.safetensors"))
    peer.spin(
        lambda: statuses and steps.get_subscription_count() and updates.get_subscription_count(),
        what="the policy",
    )

    def announced(version, in_time=True):
        updates.publish(PolicyUpdate(version=version, path=path))
        if in_time:
            peer.spin(lambda: statuses[-1].version == version, what=f"version {version}")
        peer.for_s(0.4)

    def played(request, mode="evaluate", between=lambda: None):
        before = len(chunks)
        for kind in (TimeStep.FIRST, TimeStep.MID):
            steps.publish(step_of(spec, mode, kind, f"station_a-{request}-001"))
            peer.spin(lambda: len(chunks) > before + kind, what="a chunk")  # noqa: B023
            between()
        steps.publish(step_of(spec, mode, TimeStep.LAST, f"station_a-{request}-001"))
        peer.for_s(0.3)
        return [chunk.policy_version for chunk in chunks[before:]]

    announced(54)
    assert played("a", between=lambda: announced(55, in_time=False)) == [54, 54], (
        "nothing changes within an episode"
    )
    announced(56, in_time=False)
    assert [played("a"), played("b"), played("b")] == [[54, 54], [56, 56], [56, 56]], (
        "nor within a request to evaluate"
    )
    announced(57, in_time=False)
    assert played("c", "train", lambda: announced(58, in_time=False)) == [57, 57]
    peer.spin(
        lambda: statuses[-1].version == 58,
        what="the next, between any two episodes while it trains",
    )


@pytest.mark.slow
@pytest.mark.domain(86)
def test_a_node_that_finds_the_interlock_and_hears_nothing_is_started_again(peer):
    """S18: Fast DDS can leave a process deaf; here the interlock says nothing instead."""
    silent = peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    start(peer, "recorder")
    peer.spin(lambda: peer.supervisor.events, what="the supervisor to start it again")
    assert peer.supervisor.events == ["recorder ended (exit code 1) and was restarted"]
    assert (
        "interlock but received nothing from it for 8 s"
        in (peer.supervisor.run_dir / "logs/recorder.log").read_text()
    )
    silent.publish(SafetyState())
    peer.for_s(12)
    assert len(peer.supervisor.events) == 1, "it hears, and stays"


@pytest.mark.domain(189)
def test_a_full_disk_aborts_the_episode_with_the_way_out_and_the_recorder_lives(peer):
    events = listen(peer, EpisodeEvent, "episode")
    announcements = peer.node.create_publisher(EpisodeEvent, "episode", profile("episode"))
    start(peer, "recorder", min_free_mb=1e9)
    peer.meet(announcements, by=("recorder", "peer"))
    peer.spin(lambda: peer.node.count_publishers("/station_a/episode") >= 2, what="the recorder")
    for number in range(2):
        announcements.publish(
            EpisodeEvent(
                kind=EpisodeEvent.STARTED,
                episode_id=f"e{number}",
                station="station_a",
                mode="train",
            )
        )
        peer.spin(
            lambda: any(
                e.kind == EpisodeEvent.ABORTED and e.episode_id == f"e{number}"  # noqa: B023
                for e in events  # noqa: B023
            ),  # noqa: B023
            what="the abort",
        )
    assert (
        "Free disk space" in events[-1].detail and "Closed episodes are safe" in events[-1].detail
    )
    assert not peer.supervisor.events, "nothing died"


@pytest.mark.domain(185)
def test_a_person_at_the_keyboard_arms_takes_over_and_lets_go(peer, tmp_path):
    chunks, requests = listen(peer, ActionChunk, "teleop/action"), []

    def on_arm(request, response):
        requests.append(request.data)
        response.success = True
        return response

    peer.node.create_service(SetBool, "interlock/arm", on_arm)
    steps = peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    recipe = load_recipe("demo", ["station.operator.kind=keyboard"])
    spec = station_task(recipe).spec
    assert "operator" not in {process.name for process in station_processes(recipe, tmp_path)}
    terminal, inside = pty.openpty()
    person = subprocess.Popen(
        command_line(operator_process(recipe), tmp_path),
        stdin=inside,
        env=peer.supervisor.environment,
    )
    try:
        peer.spin(lambda: steps.get_subscription_count() >= 1, what="the operator")
        peer.for_s(1.0)
        steps.publish(step_of(spec))
        peer.for_s(0.3)
        assert not chunks, "hands off: the policy goes on"
        os.write(terminal, b"e")
        peer.spin(lambda: requests, what="arming")
        for _ in range(6):  # as a terminal repeats a key that is held
            os.write(terminal, b"w")
            peer.for_s(0.05)
        steps.publish(step_of(spec))
        peer.spin(lambda: chunks, what="the takeover")
        peer.for_s(0.6)
        steps.publish(step_of(spec))
        os.write(terminal, b"q")
        peer.spin(lambda: len(requests) == 2, what="disarming")
    finally:
        person.terminate()
        person.wait(10)
    assert requests == [True, False]
    assert [chunk.horizon for chunk in chunks] == [1, 0], (
        "the command, then the release that ends the takeover"
    )
    assert chunks[0].source == "operator" and list(chunks[0].data) == pytest.approx([0.01, 0, 0])


def at_the_keyboard(spec):
    node, log_lines, keyboard = MagicMock(), [], Keyboard()
    node.get_logger.return_value.info = log_lines.append
    node.get_clock.return_value.now.return_value.to_msg.return_value = Time()
    person = HumanOperator(node, [], spec, {"keyboard": keyboard})
    person.poll()
    return person, keyboard, log_lines


@pytest.mark.parametrize(
    "name, keys, others",
    [
        ("peg_insertion", "wsadrf", "ljikuovc"),
        ("pick_cube", "wsadrfvc", "ljikuo"),
        ("peg_insertion_tight", "wsadrfljikuo", "vc"),
    ],
)
def test_every_axis_has_two_keys_and_no_other_key_moves(name, keys, others, monkeypatch):
    """Half a step of the task to either side: forward is x, left y and up z; a turn to the left is
    one about z.
    """
    terminal, inside = pty.openpty()
    monkeypatch.setattr("sys.stdin", os.fdopen(inside))
    spec = load_task(f"configs/tasks/{name}.yaml").spec
    person, keyboard, lines = at_the_keyboard(spec)
    moves = {}
    for key in keys + others:
        keyboard.key, keyboard.key_at = key, time.monotonic()
        moves[key] = person.answer("train", person.device_motions()).tolist()
    axes = 0.5 * np.eye(spec.action.dim)
    assert [moves[key] for key in keys] == [row.tolist() for axis in axes for row in (axis, -axis)]
    assert not any(any(moves[key]) for key in others)
    assert ("u/o turn left/right" in lines[0], "v/c open/close the gripper" in lines[0]) == (
        "u" in keys,
        "v" in keys,
    )
    for key in "e 1yx":
        keyboard.key, keyboard.key_at = key, time.monotonic()
        assert person.answer("train", person.device_motions()) is None, (
            "what only asks, or renews the enable, takes nothing over"
        )
    keyboard.key, keyboard.key_at = "p", time.monotonic()
    assert person.answer("train", person.device_motions()).tolist() == [0.0] * spec.action.dim
    keyboard.key_at -= 1.0
    assert (
        person.answer("train", person.device_motions()) is None
        and not person.answer("demonstration", person.device_motions()).any()
    )
    os.close(terminal)


def test_the_keys_are_those_of_the_arm_that_they_move(monkeypatch):
    """The left arm turns and grips, the right one does neither."""
    terminal, inside = pty.openpty()
    tty.setcbreak(inside)
    monkeypatch.setattr("sys.stdin", os.fdopen(inside))
    axes = ("dx", "dy", "dz", "drx", "dry", "drz", "grip")
    names = (*(f"left/{axis}" for axis in axes), *(f"right/{axis}" for axis in axes[:3]))
    spec = replace(
        load_task("configs/tasks/reach_both.yaml").spec,
        action=ActionSpec("tcp_delta", names, (0.02,) * 10, ("m",) * 10),
    )
    person, keyboard, log_lines = at_the_keyboard(spec)
    for chosen, key, expected in (
        (b"1", "v", {6: 0.5}),
        (b"2", "v", {}),
        (b"2", "r", {9: 0.5}),
        (b"1", "o", {5: -0.5}),
    ):
        os.write(terminal, chosen)
        person.poll()
        keyboard.key, keyboard.key_at = key, time.monotonic()
        assert {
            place: value
            for place, value in enumerate(person.answer("train", person.device_motions()))
            if value
        } == expected
    assert "gripper" in log_lines[1] and "gripper" not in log_lines[2]
    os.close(terminal)


def test_in_joint_space_the_gripper_is_the_last_number_and_a_device_is_asked_once_a_time_step(
    monkeypatch,
):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    action = ActionSpec(
        "joint_delta", ("j1", "j2", "gripper"), (0.02, 0.02, 0.04), ("rad", "rad", "m")
    )
    spec = replace(load_task("configs/tasks/reach.yaml").spec, action=action)
    device = MagicMock(topics=())
    device.poll.return_value, device.at_rest.return_value, device.rest_s = (), True, 0.0
    device.motion.return_value = {"j1": 0.5, "j2": -1.0, "j3": 1.0, "grip": -0.25}
    node = MagicMock()
    node.get_clock.return_value.now.return_value.to_msg.return_value = Time()
    person = HumanOperator(node, [], spec, {"leader": device})
    person.poll()
    moves = person.device_motions()
    assert person.answer("train", moves).tolist() == [0.5, -1.0, -0.25]
    assert device.motion.call_count == 1
    assert axes(action)["grip"] == 2 and "grip" not in axes(replace(action, names=("a", "b", "c")))


def test_the_keyboard_needs_a_terminal(tmp_path):
    command = command_line(
        operator_process(load_recipe("demo", ["station.operator.kind=keyboard"])), tmp_path
    )
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90
    )
    assert result.returncode != 0 and "rlinf teleop" in result.stderr
