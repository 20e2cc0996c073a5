"""A station with two arms, whole, over the real middleware: it plays as the vectorised environment
does.
"""

import threading
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, PolicyStatus, PolicyUpdate, SafetyState, TimeStep
from rlinf_msgs.srv import ResetFault
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_core.episodes.validate import check_episode
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.envs import single_action_chunks
from rlinf_core.rollouts.evaluate import play
from rlinf_ros.conversions import action_chunk
from rlinf_ros.qos import profile
from sim_bridges.core.environments import make_environments
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start
from tests.ros.test_chunks import Watched, recorded

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
BOTH = ("station.operator.kind=scripted", "station.robot=two_franka_sim", "station.task=reach_both")
NODES = (
    "sim_bridge",
    "interlock_left",
    "interlock_right",
    "environment",
    "operator",
    "recorder",
    "policy",
)
SCENES = range(1_000_000, 1_000_003)
TOO_LARGE = [3, 4, 11, 20, 21, 22, 30]  # time steps


@pytest.fixture(scope="module")
def env():
    torch.set_num_threads(1)
    env = make_environments(load_recipe("sim_rlpd", [*BOTH[1:], "simulation.interlock=true"]), 1)
    yield env
    env.close()


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    """All but the uplink, in lockstep."""
    with peer_in(tmp_path_factory.mktemp("station"), 171) as peer:
        peer.statuses = listen(peer, PolicyStatus, "policy/status")
        peer.updates = peer.node.create_publisher(
            PolicyUpdate, "policy/update", profile("policy/update")
        )
        for name in NODES:
            start(peer, name, *BOTH)
        peer.runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(
            lambda: (
                peer.statuses
                and peer.updates.get_subscription_count()
                and peer.runner.server_is_ready()
            ),
            what="the station",
        )
        # nodes may still be finding each other
        recorded(peer, peer.runner, "demonstration", [SCENES[0] - 1])
        yield peer


def same(recording, episode, shown, spec):
    vectors, played, rewards = shown
    observed = np.concatenate([recording.observations[item.name] for item in spec.vectors], axis=1)
    assert (recording.success, len(recording)) == (episode.success, episode.steps)
    assert np.array_equal(recording.requested, np.array(played)) and np.array_equal(
        observed, np.array(vectors)
    )
    assert np.array_equal(recording.rewards, np.array(rewards, np.float32))


def test_both_arms_are_shown_the_task_to_the_last_bit_as_in_the_vectorised_environment(
    env, station
):
    watched = Watched(env)
    expected = play(watched, lambda _: single_action_chunks(env.expert()), 1, SCENES)
    recordings = recorded(station, station.runner, "demonstration", SCENES)
    for recording, episode, shown in zip(recordings, expected, watched.episodes, strict=True):
        same(recording, episode, shown, env.spec)
        check_episode(recording, env.spec, 100)
        assert recording.success and set(recording.sources) == {"operator"}
        assert np.abs(recording.executed).max(0).min() > 1e-3, "each axis of each arm has moved"
        assert len(set(recording.limits_hash.split("+"))) == 2


@pytest.mark.slow
def test_a_policy_of_both_arms_plays_its_chunks_there_to_the_last_bit(env, station):
    torch.manual_seed(0)
    policy = make_policy(
        env.spec, tanh_gaussian.Config(hidden=(32,), horizon=8, n_action_steps=4)
    ).eval()
    watched = Watched(env)
    expected = play(watched, lambda observation: policy.act(observation, explore=False), 4, SCENES)
    file = save_policy(policy, station.supervisor.run_dir / "1.safetensors")
    station.updates.publish(PolicyUpdate(version=1, path=str(file)))
    station.spin(lambda: station.statuses[-1].version == 1, what="the policy")
    recorded(station, station.runner, "evaluate", [SCENES[0] - 1])
    for recording, episode, shown in zip(
        recorded(station, station.runner, "evaluate", SCENES),
        expected,
        watched.episodes,
        strict=True,
    ):
        same(recording, episode, shown, env.spec)
        assert recording.chunks is not None and set(recording.chunks.lengths[:-1]) == {4}, (
            "as sent, and played by both"
        )


@pytest.mark.domain(172)
def test_s27_what_holds_one_arm_holds_both_at_the_same_ticks_as_in_the_vectorised_environment(
    peer, tmp_path
):
    """Large actions are refused for the left arm here, whose speed is limited so much; the right
    one must stop too.
    """
    shared = Path("sim_bridges/simulators").resolve()
    box = "box_low: [0.3, -0.25, 0.005]\nbox_high: [0.7, 0.25, 0.45]\n"
    (tmp_path / "left.yaml").write_text(
        f"extends: {shared}/franka_mujoco/franka_sim/limits.yaml\n{box}speed: "
        f"0.015\nrefusals_to_fault: 100\n"
    )
    (tmp_path / "robot.yaml").write_text(
        f"driver: simulator\nsimulator: two_frankas\narms:\n  left: {{limits: left.yaml}}\n"
        f"  right: {{limits: {shared}/two_frankas/two_franka_sim/right.yaml}}\n"
    )
    robot = (BOTH[0], f"station.robot={tmp_path}", BOTH[2])
    random = np.random.default_rng(0)
    actions = random.uniform(-0.6, 0.6, (40, 6)).astype(np.float32)
    actions[TOO_LARGE, 0] = 0.9
    vector = make_environments(
        load_recipe("sim_rlpd", [*robot[1:], "simulation.interlock=true"]), 1
    )
    alone, spec = vector.envs[0].station, vector.spec
    shown, executed, held, result = [alone.reset(SCENES[0])], [], [], None
    while result is None or not result.last:
        observation, result = alone.step(actions[len(executed)])
        shown.append(observation)
        executed.append(alone.executed * spec.action.scale)
        held.append(alone.held)
    vector.close()

    chunks, numbers = (
        peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action")),
        count(1),
    )

    def answer(step):
        if step.step_type != TimeStep.LAST:
            chunks.publish(
                action_chunk(
                    spec,
                    actions[step.step_index],
                    source="policy",
                    session="test",
                    seq=next(numbers),
                    version=0,
                    observation_stamp=step.header.stamp,
                )
            )

    peer.node.create_subscription(TimeStep, "timestep", answer, profile("timestep"))
    for name in NODES[:-1]:
        start(peer, name, *robot)
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(
        lambda: runner.server_is_ready() and chunks.get_subscription_count() >= 3,
        what="the station",
    )
    recorded(peer, runner, "demonstration", [SCENES[0] - 1])
    (recording,) = recorded(peer, runner, "evaluate", SCENES[:1])
    assert len(recording) == len(executed) and any(held)
    for item in spec.vectors:
        assert np.array_equal(
            recording.observations[item.name], np.array([frame[item.name] for frame in shown])
        ), item.name
    assert recording.executed == pytest.approx(np.array(executed), abs=1e-12)
    refused = recording.executed[TOO_LARGE]
    assert not refused[:, :3].any() and np.abs(refused[:, 3:]).max() < 0.002, (
        "the right arm moved for a tick, and braked"
    )


@pytest.mark.slow
@pytest.mark.domain(173)
def test_in_real_time_a_whole_station_plays_and_stops_as_one(peer, tmp_path, request):
    """A fault of one arm within an episode holds the other, and an e-stop is a fault of both; then
    it plays on.
    """
    shared = Path("sim_bridges/simulators/two_frankas/two_franka_sim").resolve()
    (tmp_path / "robot.yaml").write_text(
        f"driver: simulator\nsimulator: two_frankas\nestops: [pendant]\narms:\n  left: {{limits: "
        f"{shared}/left.yaml}}\n"
        f"  right: {{limits: {shared}/right.yaml}}\n"
    )
    stop = peer.node.create_publisher(Bool, "estop/pendant", profile("estop/pendant"))
    reflex = peer.node.create_publisher(String, "left/robot/fault", profile("left/robot/fault"))
    pressed, over = [False], threading.Event()

    def pendant():  # it is heard while the test reads a recording, too
        while not over.wait(0.03):
            stop.publish(Bool(data=pressed[0]))

    threading.Thread(target=pendant, daemon=True).start()
    request.addfinalizer(over.set)
    safety = {arm: listen(peer, SafetyState, f"{arm}/safety") for arm in ("left", "right")}
    for name in NODES[:-1]:
        start(peer, name, BOTH[0], f"station.robot={tmp_path}", BOTH[2], "station.lockstep=false")
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(lambda: runner.server_is_ready() and all(safety.values()), what="the station")

    def state_text():
        return [(states[-1].state, states[-1].cause) for states in safety.values()]

    def ask(kind, service, message):
        for arm in safety:
            client = peer.node.create_client(kind, f"{arm}/interlock/{service}")
            peer.spin(client.service_is_ready, what=service)
            future = client.call_async(message)
            peer.spin(future.done, what=service)

    def set_going():
        """Where a busy machine kept somebody from being heard, whoever stands beside it clears that
        and arms again.
        """
        for cause in {cause for state, cause in state_text() if state == SafetyState.FAULT}:
            ask(ResetFault, "reset_fault", ResetFault.Request(cause=cause))
        if SafetyState.DISARMED in [state for state, _ in state_text()]:
            ask(SetBool, "arm", SetBool.Request(data=True))

    def plays():
        (recording,) = recorded(peer, runner, "demonstration", SCENES[:1], set_going)
        assert recording.success and np.abs(recording.executed).max(0).min() > 1e-3

    def reach(left, right):
        peer.spin(
            lambda: state_text() == [left, right],
            what=lambda: f"{left} and {right}, stands {state_text()}",
        )

    plays()
    peer.spin(
        lambda: SafetyState.ACTIVE not in [state for state, _ in state_text()],
        what="the end of that episode",
    )
    sent = runner.send_goal_async(
        RunEpisodes.Goal(count=1, mode="demonstration", first_seed=SCENES[1])
    )
    peer.spin(
        lambda: set_going() or [state for state, _ in state_text()] == [SafetyState.ACTIVE] * 2,
        what="motion",
    )
    reflex.publish(String(data="reflex"))
    # the fault ends the episode of both
    reach((SafetyState.FAULT, "robot:reflex"), (SafetyState.ARMED, ""))
    peer.for_s(1.0)
    assert state_text()[1] == (SafetyState.ARMED, ""), "nothing commands the other arm any more"
    reflex.publish(String(data=""))
    pressed[0] = True
    reach((SafetyState.FAULT, "robot:reflex"), (SafetyState.FAULT, "estop:pendant"))
    pressed[0] = False
    peer.for_s(0.3)
    for cause in ("robot:reflex", "estop:pendant"):
        ask(ResetFault, "reset_fault", ResetFault.Request(cause=cause))
    peer.spin(
        lambda: [state for state, _ in state_text()] == [SafetyState.DISARMED] * 2,
        what="the resets",
    )
    ask(SetBool, "arm", SetBool.Request(data=True))
    answer = sent.result().get_result_async()
    peer.spin(lambda: set_going() or answer.done(), 120, "the end of what was asked for")
    assert (
        answer.result().result.message
        == "the interlock stopped: FAULT robot:reflex. Arm, then try again"
    )
    plays()
