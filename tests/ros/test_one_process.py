"""A simulated station in one process: it plays as several do; its topics are heard outside; its
failures are named.
"""

import array
import contextlib
import os
import signal
import sys

import numpy as np
import pytest
from lifecycle_msgs.msg import State
from rclpy.action import ActionClient
from rlinf_msgs.action import ResetScene, RunEpisodes
from rlinf_msgs.msg import ActionChunk, Applied, EpisodeEvent, PolicyStatus, SafetyState, TimeStep
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Empty, String
from std_srvs.srv import SetBool

from rlinf_core.core.errors import NODE_FAILED, RecipeError, RlinfError
from rlinf_core.launch.graph import (
    HOSTED_EXECUTABLES,
    RESPAWN,
    SHUTDOWN,
    Process,
    compose,
    station_processes,
    with_lifecycle_manager,
)
from rlinf_core.launch.supervisor import Supervisor
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.memory_bus import Envelope, snapshot
from rlinf_ros.qos import lossless_profile, profile
from rlinf_station.station_process import Host
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import Lives, listen
from tests.ros.test_chunks import recorded

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
SCENES = range(1_000_000, 1_000_012)
SMALL = tanh_gaussian.Config(hidden=(32,), horizon=4, n_action_steps=2)


@contextlib.contextmanager
def standing(folder, domain, processes, *overrides, manager=False):
    """A whole station but for its uplink, with an untrained policy; yields the test's peer and what
    has scenes played.
    """
    recipe = load_recipe(
        "demo", ["station.task=reach", f"station.processes={processes}", *overrides]
    )
    import torch

    torch.manual_seed(3)
    file = save_policy(make_policy(station_task(recipe).spec, SMALL), folder / "policy.safetensors")
    with peer_in(folder, domain) as peer:
        statuses = listen(peer, PolicyStatus, "policy/status")
        nodes = station_processes(recipe, folder, without=("uplink",))
        next(node for node in nodes if node.name == "policy").parameters["policy_file"] = str(file)
        nodes = compose(recipe, nodes)
        for process in with_lifecycle_manager(recipe, nodes) if manager else nodes:
            peer.supervisor.start(process)
        runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(lambda: statuses and runner.server_is_ready(), what="the station")
        yield peer, lambda mode, scenes: recorded(peer, runner, mode, scenes)


def play(folder, domain, processes):
    folder.mkdir()
    with standing(folder, domain, processes) as (_, played):
        return [*played("demonstration", SCENES[:3]), *played("evaluate", SCENES)]


def test_one_process_plays_as_several_do_to_the_last_bit(tmp_path):
    """Fifteen episodes: a script's, whose noise has a seed, and a policy's, with chunks of which a
    part is played.
    """
    pairs = zip(
        play(tmp_path / "one", processes="one", domain=150),
        play(tmp_path / "several", processes="several", domain=168),
        strict=True,
    )
    for one, other in pairs:
        assert (one.success, one.failure, len(one)) == (other.success, other.failure, len(other))
        for name in ("requested", "executed", "rewards", "discounts"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert one.observations.keys() == other.observations.keys()
        assert all(
            np.array_equal(one.observations[name], other.observations[name])
            for name in one.observations
        )
        assert np.array_equal(np.diff(one.stamps_ns), np.diff(other.stamps_ns))


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    with standing(tmp_path_factory.mktemp("one"), 100, "one") as standing_station:
        yield standing_station


def test_a_lifecycle_manager_brings_the_nodes_of_one_process_up_and_they_play_the_same(
    station, tmp_path
):
    _, played = station
    (one,) = played("evaluate", SCENES[:1])
    with standing(tmp_path, 110, "one", manager=True) as (peer, played_too):
        lives = Lives(peer)
        for node in ("interlock", "recorder", "policy", "environment", "operator"):
            peer.spin(
                lambda node=node: lives.state(node) == State.PRIMARY_STATE_ACTIVE,
                what=f"{node} to be active",
            )
        (other,) = played_too("evaluate", SCENES[:1])
        assert np.array_equal(one.requested, other.requested) and np.array_equal(
            one.executed, other.executed
        )


def test_listeners_outside_get_every_message_and_late_ones_what_is_latched(station):
    peer, played = station
    steps = listen(peer, TimeStep, "timestep", lossless_profile)
    applied = listen(peer, Applied, "applied", lossless_profile)
    safety = listen(peer, SafetyState, "safety")
    peer.spin(lambda: safety, what="the latched state of the interlock")
    peer.for_s(0.5)  # until both are matched
    for episode in played("evaluate", SCENES[:2]):
        received = [step for step in steps if step.episode_id == episode.id]
        assert [step.step_index for step in received] == list(range(len(episode) + 1))
        assert np.array_equal([step.reward for step in received[1:]], episode.rewards)
    assert len(applied) >= sum(step.step_type != TimeStep.LAST for step in steps)


def test_speakers_outside_are_heard_by_the_interlock(station):
    """A person disarms by the topic, from another process, within an episode; then the episode does
    not count.
    """
    peer, _ = station
    safety, events = (
        listen(peer, SafetyState, "safety"),
        listen(peer, EpisodeEvent, "episode", lossless_profile),
    )
    disarm = peer.node.create_publisher(Empty, "disarm", profile("disarm"))
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(
        lambda: safety and disarm.get_subscription_count() and runner.server_is_ready(),
        what="the interlock",
    )
    sent = runner.send_goal_async(RunEpisodes.Goal(count=1000, mode="evaluate", first_seed=1))
    peer.spin(
        lambda: any(event.kind == EpisodeEvent.STARTED for event in events), what="an episode"
    )
    disarm.publish(Empty())
    peer.spin(lambda: safety[-1].state == SafetyState.DISARMED, what="the disarming")
    answer = sent.result().get_result_async()
    peer.spin(answer.done, what="the end of the request")
    assert not answer.result().result.success


def test_a_new_scene_while_disarmed_lets_the_arm_be_armed_again(station):
    """The scripted operator does so if a freed arm rests outside of its workspace."""
    peer, played = station
    safety = listen(peer, SafetyState, "safety")
    arming = peer.node.create_client(SetBool, "interlock/arm")
    scenes = ActionClient(peer.node, ResetScene, "reset_scene")
    peer.spin(
        lambda: safety and arming.service_is_ready() and scenes.server_is_ready(),
        what="the station",
    )
    disarmed = arming.call_async(SetBool.Request(data=False))
    peer.spin(
        lambda: disarmed.done() and safety[-1].state == SafetyState.DISARMED, what="the disarming"
    )
    for seed in (11, 12):
        sent = scenes.send_goal_async(ResetScene.Goal(seed=seed))
        peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()
        peer.spin(answer.done, what="the scene")
        assert answer.result().result.success

    def armed():
        if getattr(arming, "request", None) is None or arming.request.done():
            arming.request = arming.call_async(SetBool.Request(data=True))
        return safety[-1].state == SafetyState.ARMED

    peer.spin(armed, 30, what="the arming")
    assert len([*played("evaluate", SCENES[:1])]) == 1


def test_each_topic_has_one_publisher(station):
    peer, _ = station
    for topic in ("target_pose", "current_pose", "policy/action", "timestep"):
        infos = peer.node.get_publishers_info_by_topic(f"/station_a/{topic}")
        assert len(infos) == 1, topic


@pytest.mark.domain(101)
def test_a_killed_process_is_started_again_and_plays(tmp_path):
    folder = tmp_path / "killed"
    folder.mkdir()
    with standing(folder, 101, "one") as (peer, played):
        (before,) = played("evaluate", SCENES[:1])
        os.kill(peer.supervisor.children["station"].popen.pid, signal.SIGKILL)
        peer.spin(
            lambda: any("station ended" in event for event in peer.supervisor.events),
            what="the restart",
        )
        runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        safety = listen(peer, SafetyState, "safety")
        peer.spin(
            lambda: runner.server_is_ready() and safety and safety[-1].state == SafetyState.ARMED,
            what="the station",
        )
        (after,) = recorded(peer, runner, "evaluate", SCENES[:1])
        assert np.array_equal(before.requested, after.requested) and np.array_equal(
            before.executed, after.executed
        )


def test_a_snapshot_is_what_a_serialised_message_would_be():
    """Numbers of 32 bits are rounded, texts without UTF-8 bytes escaped; nothing is shared that
    could change.
    """
    step = TimeStep(
        reward=0.1, episode_id="a\udc80", images=[Image(data=array.array("B", [1, 2, 3]))]
    )
    step.header.stamp.sec = 5
    copy = snapshot(step)
    sent = Envelope(copy).raw
    assert copy.reward == np.float32(0.1) and copy.episode_id.encode() and len(sent) > 40
    step.header.stamp.sec, step.images[0].data[0], step.images[0].height = 6, 9, 7
    assert (copy.header.stamp.sec, copy.images[0].data[0], copy.images[0].height) == (5, 1, 0)
    assert Envelope(snapshot(copy)).raw == sent
    joints = JointState(name=["a"], position=[1.0, 2.0])
    copy = snapshot(joints)
    joints.name.append("b")
    joints.position[0] = 3.0
    assert (copy.name, list(copy.position)) == (["a"], [1.0, 2.0])
    assert snapshot(ActionChunk(data=[0.1])).data == ActionChunk(data=[0.1]).data
    assert snapshot(Bool(data=True)).data and snapshot(String(data="é")).data == "é"


class Part:
    """A part of a node, as ``Watch`` is one of the environment."""

    def __init__(self, node):
        self.environment = node

    def look(self):
        raise ValueError("broken")


def test_a_failure_is_that_of_the_node_whose_callback_it_was(capfd, monkeypatch):
    import rclpy

    monkeypatch.setattr("rlinf_station.station_process.end_soon", lambda code: None)
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=102)
    node = rclpy.create_node("environment", context=context)
    host = Host(None, [{"name": "sim_bridge"}, {"name": "environment"}])
    host.names = {node: 1}
    try:
        Part(node).look()
    except ValueError as error:
        failure = error
    assert host._failing_node(failure.__traceback__) == 1
    for index, error, code, line in (
        (1, failure, NODE_FAILED + 1, "environment: ValueError: broken"),
        (0, RlinfError("no mesh"), NODE_FAILED, "sim_bridge: no mesh"),
        (None, failure, 1, "station: ValueError: broken"),
    ):
        with pytest.raises(SystemExit) as ended:
            host.fail(index, error)
        error_text = capfd.readouterr().err
        assert ended.value.code == code and error_text.splitlines()[-1] == line
        assert ("Traceback" in error_text) == (not isinstance(error, RlinfError))
    node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.mark.parametrize(("index", "ends"), [(0, True), (1, False)])
def test_the_supervisor_goes_by_the_node_that_failed(index, ends, tmp_path):
    """A recorder's failure starts the process again, an interlock's ends the station, and either is
    named.
    """
    nodes = tuple(
        Process(name, "", name, "", "", restart=restart)
        for name, restart in (("interlock", SHUTDOWN), ("recorder", RESPAWN))
    )
    command = [
        sys.executable,
        "-c",
        f"import sys; print('no disk'); sys.exit({NODE_FAILED + index})",
    ]
    with Supervisor(tmp_path, 90) as supervisor:
        child = supervisor.start(
            Process("station", "", "", "", "", {"command": command}, nodes=nodes)
        )
        child.popen.wait(20)
        if ends:
            with pytest.raises(
                RlinfError,
                match="interlock ended .*'station'.* cannot continue without it.*no disk",
            ):
                supervisor.poll()
        else:
            (event,) = supervisor.poll()
            assert event.startswith(
                "recorder ended (in the process 'station', with all its nodes) and was restarted"
            )


def test_only_a_simulator_in_lockstep_shares_a_process(tmp_path, monkeypatch):
    def names(*overrides):
        recipe = load_recipe("demo", list(overrides))
        return [process.name for process in compose(recipe, station_processes(recipe, tmp_path))]

    together = names("station.processes=one")
    assert together == ["station", "uplink"]
    assert set(names("station.processes=several")) >= {*HOSTED_EXECUTABLES, "uplink"}
    remote = names(
        "station.processes=one", "station.policy={backend: remote, address: 'ws://localhost:1'}"
    )
    assert remote == ["station", "policy", "uplink"]
    assert names("station.processes=one", "station.web.port=8080") == ["station", "uplink", "page"]
    assert "station" not in names("station.processes=auto", "station.lockstep=false")
    monkeypatch.setenv("RMW_IMPLEMENTATION", "rmw_cyclonedds_cpp")
    assert "station" not in names("station.processes=auto")
    with pytest.raises(RecipeError, match="station.processes: expected several"):
        names("station.processes=one", "station.lockstep=false")
