"""The operator asks a running station for something else, and its policy hears of it at the next
time step.
"""

import pytest
import torch
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.action import ActionClient
from rclpy.parameter import Parameter
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, PolicyStatus, PolicyUpdate, TimeStep

from rlinf_core.episodes import read_episode
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_ros.qos import lossless_profile, profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start
from tests.ros.test_station_client import rlinf

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
DOMAIN = 214
SLOW = ("station.operator.kind=scripted", "station.task=reach", "station.real_time_factor=0.2")


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    """Slowly, with a policy whose chunks are played to their end, longer than an episode."""
    with peer_in(tmp_path_factory.mktemp("station"), 214) as peer:
        peer.steps = listen(peer, TimeStep, "timestep", lossless_profile)
        peer.chunks = listen(peer, ActionChunk, "policy/action", lossless_profile)
        statuses = listen(peer, PolicyStatus, "policy/status")
        for name in ("sim_bridge", "interlock", "environment", "operator", "recorder", "policy"):
            peer.spec = start(
                peer, name, *SLOW, **({"lockstep_guard_s": 15.0} if name == "interlock" else {})
            )
        torch.manual_seed(0)
        policy = make_policy(
            peer.spec, tanh_gaussian.Config(hidden=(8,), sentence_features=4, horizon=200)
        )
        file = save_policy(policy, peer.supervisor.run_dir / "1.safetensors")
        updates = peer.node.create_publisher(
            PolicyUpdate, "policy/update", profile("policy/update")
        )
        peer.spin(lambda: statuses, what="the policy")
        updates.publish(PolicyUpdate(version=1, path=str(file)))
        peer.spin(lambda: statuses[-1].version == 1, what="its version")
        yield peer


def test_it_holds_from_the_next_time_step_on_and_a_chunk_is_cut_for_it(station):
    peer = station
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    setting = peer.node.create_client(SetParameters, "environment/set_parameters")
    peer.spin(
        lambda: runner.server_is_ready() and setting.service_is_ready(), what="the environment"
    )
    sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="evaluate", first_seed=3))
    peer.spin(sent.done, what="the goal")
    answer = sent.result().get_result_async()
    # a first one may be abandoned
    peer.spin(lambda: peer.steps and peer.steps[-1].step_index >= 3, what="time steps")
    default, chunks = peer.spec.instruction, len(peer.chunks)
    assert {step.instruction for step in peer.steps} == {default}
    parameter = Parameter("instruction", value="  to the left ").to_parameter_msg()
    # at once: the episode does not wait
    set_ = setting.call_async(SetParameters.Request(parameters=[parameter]))
    peer.spin(set_.done, what="the parameter")
    assert set_.result().results[0].successful
    peer.spin(answer.done, 120, "the episode")
    result = answer.result().result
    assert result.success, result.message
    steps = [step for step in peer.steps if step.episode_id == result.episode_ids[0]]
    instructions = [step.instruction for step in steps]
    change = instructions.index("to the left")
    assert change > 2 and instructions == [default] * change + ["to the left"] * (
        len(instructions) - change
    )
    begun = [chunk.observation_stamp for chunk in peer.chunks[chunks - 1 :]]
    assert begun == [steps[0].header.stamp, steps[change].header.stamp], (
        "at that very time step, and at no other"
    )
    episode = read_episode(peer.supervisor.run_dir / "spool/closed" / result.episode_ids[0])
    assert list(episode.instructions) == instructions


@pytest.mark.parametrize(
    "words, instruction, stored",
    [(" to the right", "to the right", " to the right"), ("", "that of scene or task", "")],
)
def test_the_command_says_what_is_asked_for_now(station, words, instruction, stored):
    code, output = rlinf(station, "set-instruction", words, domain=DOMAIN)
    assert code == 0 and output == f"instruction from the next time step on: {instruction}\n"
    getting = station.node.create_client(GetParameters, "environment/get_parameters")
    station.spin(getting.service_is_ready, what="the environment")
    got = getting.call_async(GetParameters.Request(names=["instruction"]))
    station.spin(got.done, what="the parameter")
    assert got.result().values[0].string_value == stored


@pytest.mark.parametrize(
    "words, error",
    [
        ("x" * 129, "instruction: expected at most 128 bytes of UTF-8 without NUL, got 129"),
        ("   ", "expected words, or '' for the instruction of scene or task; got blanks"),
        ("a\nb", "expected one line of words, got 'a\\nb'"),
    ],
)
def test_what_is_no_instruction_is_refused(station, words, error):
    code, output = rlinf(station, "set-instruction", words, domain=DOMAIN)
    assert code == 2 and error in output and len(output.splitlines()) == 1


def test_where_no_station_is_it_says_so(station):
    code, output = rlinf(station, "set-instruction", "go", "--timeout", "2", domain=215)
    assert code == 1 and "received no interlock" in output
