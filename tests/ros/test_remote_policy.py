"""The policy node whose chunks a served policy answers: the same as here, while it answers, and
once it is gone.
"""

import time
from collections import deque
from queue import Queue
from threading import Event, RLock
from types import SimpleNamespace

import numpy as np
import pytest
from rlinf_msgs.msg import ActionChunk, PolicyStatus, SafetyState, TimeStep

from rlinf_core.policies.base import Observation
from rlinf_core.policies.chunking import Chunking, ChunkSchedule
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.conversions import set_stamp, to_ns
from rlinf_ros.qos import profile
from rlinf_station import remote_policy
from rlinf_station.policy_node import PolicyNode
from rlinf_station.remote_policy import RemotePolicyNode
from tests.deploy.serving.test_serving import SMALL, Served, policy_of
from tests.ros.stand_ins import listen, start
from tests.ros.test_nodes import step_of

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]


@pytest.mark.domain(154)
def test_a_served_policy_plays_reconnects_and_says_when_it_is_gone(peer, tmp_path):
    spec = station_task(load_recipe("demo")).spec
    policy = policy_of(spec, 0)
    save_policy(policy, tmp_path / policy_name(7))
    served = Served(tmp_path)
    statuses, chunks = (
        listen(peer, PolicyStatus, "policy/status"),
        listen(peer, ActionChunk, "policy/action"),
    )
    steps = peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    safety = peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    try:
        start(
            peer,
            "policy",
            "station.policy.backend=remote",
            f"station.policy.address='{served.address}'",
        )
        peer.spin(
            lambda: statuses and statuses[-1].version == 7 and steps.get_subscription_count(),
            what="the connection",
        )
        safety.publish(SafetyState(state=SafetyState.ARMED))
        peer.for_s(0.3)

        def decided(number, expected, kind=TimeStep.MID, instruction=""):
            """Whether as many chunks come: one takes the time that it takes, none is waited for a
            little.
            """
            step, before = step_of(spec, "evaluate", kind, "station_a-1-1"), len(chunks)
            step.instruction = instruction
            set_stamp(step.header.stamp, 10**9 + number * 10**8)
            steps.publish(step)
            peer.spin(
                lambda: len(chunks) >= before + expected, what=lambda: f"the answer to {number}"
            )
            peer.for_s(0.1 if expected else 0.3)
            return len(chunks) - before == expected

        assert decided(0, 1, TimeStep.FIRST) and all(map(decided, range(1, 6), [0, 0, 0, 1, 0]))
        named = {item.name: np.zeros(item.shape, item.dtype) for item in spec.observation}
        expected = spec.action.to_si(
            policy.act(Observation.from_single(spec, named, instruction=""), False)
            .actions[0]
            .numpy()
        )
        assert np.allclose(np.reshape(chunks[0].data, (SMALL.horizon, -1)), expected, atol=1e-12)
        assert (chunks[0].policy_version, chunks[0].horizon, chunks[0].execute) == (7, 8, 4)
        assert decided(6, 1, instruction="to the left"), "asked for something else, it decides anew"
        served.process.kill()
        peer.spin(lambda: "The station retries" in statuses[-1].error, what="the loss to be said")
        assert decided(8, 0) and decided(9, 0), "nothing is made up"
        served.end()
        again = Served(tmp_path, port=served.port)
        served = again
        peer.spin(lambda: not statuses[-1].error, what="the connection again")
        assert decided(10, 1)
    finally:
        served.end()


def without_ros():
    """A node that is active, and has nothing else."""
    node = RemotePolicyNode.__new__(RemotePolicyNode)
    node.active = True
    return node


@pytest.mark.parametrize("instruction, cut", [("to the left", True), ("", False)])
def test_for_other_words_nothing_of_before_is_played_or_blended_in(instruction, cut, monkeypatch):
    """Neither what is in play, nor what waits, nor an answer that is on its way."""
    monkeypatch.setattr(
        PolicyNode,
        "_on_timestep",
        lambda node, step: setattr(node, "instruction", step.instruction),
    )
    spec = station_task(load_recipe("demo")).spec
    before, step = (step_of(spec, "evaluate", TimeStep.MID, "e") for _ in range(2))
    step.instruction = instruction
    node, actions, sent = without_ros(), np.zeros((8, 3)), []
    node.stopping = Event()
    node.lock = RLock()
    node.idle = False
    node.interrupted = False
    node.instruction = ""
    node.newest_id = "e"
    node.status = PolicyStatus()
    node.times_ms = deque()
    node.execute = 4
    node.nothing_in_play = False
    node.outdated = False
    node.stamp_ns, node.period_ns = to_ns(step.header.stamp), 10**8
    node.chunking, node.pending = Chunking("real_time", 4), ("e", actions, {})
    node.chunking.merge(actions, 0, 0)
    monkeypatch.setattr(RemotePolicyNode, "_send", lambda *arguments: sent.append(arguments))
    node._on_timestep(step)
    assert (not node.chunking.chunks) == (node.pending is None) == cut
    node._on_chunk(before, actions, {}, 0.1)
    assert bool(sent) != cut


@pytest.mark.parametrize(
    "cause, interrupted", [("stale_command", False), ("enable", True), ("contact", True)]
)
def test_an_arm_that_is_held_for_its_own_waiting_has_not_interrupted_it(cause, interrupted):
    node = without_ros()
    node.stopping = Event()
    node.lock, node.interrupted, node.outdated = RLock(), False, False
    node.chunking, node.schedule = Chunking("real_time", 4), ChunkSchedule(1, 4)
    node._on_safety(SafetyState(state=SafetyState.HOLD, cause=cause))
    assert node.interrupted == interrupted
    node._on_safety(SafetyState(state=SafetyState.FAULT, cause="stale_command"))
    assert node.interrupted


@pytest.mark.parametrize(
    "mode, number, state_text",
    [("synchronous", 2, True), ("receding_horizon", 2, False), ("receding_horizon", 4, True)],
)
def test_where_nothing_is_left_to_play_all_of_an_answer_is_played(mode, number, state_text):
    node, step = without_ros(), TimeStep()
    node.interrupted, node.period_ns, node.chunking = False, 10**8, Chunking(mode, 4)
    node.chunking.merge(np.zeros((4, 3)), 0, 0)
    set_stamp(step.header.stamp, number * 10**8)
    assert node._can_play_all(step) == state_text
    node.interrupted = True
    assert not node._can_play_all(step)


TAKEN_OVER, GIVEN_BACK = (
    SafetyState(state=SafetyState.ACTIVE, source="operator"),
    SafetyState(state=SafetyState.ARMED),
)
STARVED = SafetyState(state=SafetyState.HOLD, cause="stale_command")


@pytest.mark.parametrize(
    "before, after, sent",
    [
        ([], [TAKEN_OVER, GIVEN_BACK], False),
        ([], [SafetyState(state=SafetyState.HOLD, cause="enable"), GIVEN_BACK], False),
        ([TAKEN_OVER], [GIVEN_BACK], True),
        ([TAKEN_OVER], [GIVEN_BACK, TAKEN_OVER, GIVEN_BACK], False),
        ([], [STARVED, GIVEN_BACK], True),
        ([TAKEN_OVER, GIVEN_BACK], [], True),
    ],
)
def test_an_answer_to_before_a_takeover_is_not_played_after_it(before, after, sent, monkeypatch):
    """It is not played even if the takeover begins and ends between two time steps."""
    node, chunks = without_ros(), []
    node.stopping = Event()
    node.lock, node.interrupted, node.outdated, node.idle = RLock(), False, False, False
    node.connected = True
    node.busy = False
    node.pending = None
    node.requests = Queue(1)
    node.instruction = ""
    node.status, node.times_ms, node.execute, node.newest_id = PolicyStatus(), deque(), 4, "e"
    node.stamp_ns, node.period_ns, node.chunking = 10**9, 10**8, Chunking("receding_horizon", 4)
    node.schedule = ChunkSchedule(1, 4)
    monkeypatch.setattr(
        RemotePolicyNode, "_send", lambda node, *arguments: chunks.append(arguments)
    )
    step = TimeStep(step_type=TimeStep.MID, mode="evaluate", episode_id="e")
    set_stamp(step.header.stamp, 10**9)
    for safety in before:
        node._on_safety(safety)
    node._answer_step(step)
    assert node.requests.get_nowait()[0] is step
    for safety in after:
        node._on_safety(safety)
    node._on_chunk(step, np.zeros((8, 3)), {}, 0.1)
    assert bool(chunks) == sent
    node.pending = "e", np.zeros((8, 3)), {}
    node.schedule.replan()
    node.chunking.merge(np.zeros((8, 3)), node._number(step), 0)
    for safety in (GIVEN_BACK, TAKEN_OVER, GIVEN_BACK):
        node._on_safety(safety)
    assert node.pending is None and not node.chunking.chunks and node.schedule.due[0], (
        "the interlock dropped its chunk"
    )


def test_the_length_of_a_server_that_does_not_say_is_that_of_its_first_answer_which_is_played(
    monkeypatch,
):
    node, step, sent = without_ros(), TimeStep(mode="evaluate", episode_id="e"), []
    node.stopping = Event()
    node.lock = RLock()
    node.idle = False
    node.outdated = False
    node.instruction = ""
    node.newest_id = "e"
    node.status = PolicyStatus()
    node.times_ms = deque()
    node.execute = 0
    node.nothing_in_play = True
    node.chunking, node.schedule = Chunking("receding_horizon", 1), ChunkSchedule(1, 1)
    node.schedule.advance(steps=3)  # while it was asked
    node.stamp_ns, node.period_ns = 3 * 10**8, 10**8
    monkeypatch.setattr(RemotePolicyNode, "_send", lambda node, *arguments: sent.append(arguments))
    node._on_chunk(step, np.zeros((50, 3)), {}, 0.3)
    assert node.pending and node.chunking.execute == node.schedule.execute == 50
    node.schedule.advance()
    assert node.schedule.due[0], "with the next time step"
    node._answer_step(step)
    assert len(sent) == 1


@pytest.mark.parametrize("mode", ["receding_horizon", "real_time", "synchronous"])
def test_a_reconnect_forgets_nothing_of_what_the_arm_still_plays(mode):
    """Else an answer that comes late would be played whole, from its start, as if the arm stood."""
    node, step = without_ros(), TimeStep()
    node.stopping = Event()
    node.lock = RLock()
    node.spec = station_task(load_recipe("demo")).spec
    node.status = PolicyStatus()
    node.settings = {"address": "ws://there", "n_action_steps": 0, "chunking": mode, "keys": {}}
    node.requests, node.interrupted, node.period_ns = Queue(1), False, 10**8
    node.chunking, node.schedule = Chunking("receding_horizon", 1), ChunkSchedule(1, 1)
    node._connect({"rlinf": {"execute": 4}})
    assert node.schedule.due[0] and node._can_play_all(step) and node.connected
    node.chunking.merge(np.zeros((8, 3)), node._number(step), 0)
    node.schedule.replan()
    node.schedule.advance(steps=3)
    node.requests.put_nowait((step, time.monotonic()))
    node._connect({"rlinf": {"execute": 6}})
    set_stamp(step.header.stamp, 3 * 10**8)
    assert len(node.chunking.remaining(node._number(step))) == (1 if mode == "synchronous" else 5)
    assert mode == "synchronous" or not node._can_play_all(step)
    assert node.chunking.execute == node.schedule.execute == 6 and node.requests.empty()
    assert not node.schedule.due[0], "it is due when it was"
    node.schedule.advance()
    assert node.schedule.due[0]


@pytest.mark.parametrize("mode", ["real_time", "temporal_ensembling"])
def test_a_time_step_that_comes_a_millisecond_late_is_the_next_one_all_the_same(mode):
    node = without_ros()
    node.period_ns = 5 * 10**7
    node.chunking = Chunking(mode, 4)
    first = TimeStep()
    second = TimeStep()
    for seconds in (1, 1_800_000_001):
        set_stamp(first.header.stamp, seconds * 10**9 + 24_900_000)
        set_stamp(second.header.stamp, seconds * 10**9 + 75_100_000)
        node.chunking.cut()
        node.chunking.merge(np.arange(8.0)[:, None], node._number(first), 0)
        assert node.chunking.remaining(node._number(second))[0] == 1.0


def test_whatever_a_server_says_of_itself_the_next_try_comes_and_the_reason_is_told(monkeypatch):
    """Else nobody would ask it ever again, and the node would live on."""
    lines = []
    node = without_ros()
    node.settings, node._set_error = {"address": "ws://there:1", "timeout_s": 1.0}, lines.append
    node.stopping = SimpleNamespace(is_set=lambda: len(lines) > 1, wait=lambda _: None)
    monkeypatch.setattr(
        remote_policy,
        "PolicyClient",
        lambda *_: SimpleNamespace(metadata={"rlinf": "a text"}, close=list),
    )
    node._work()
    assert (
        len(lines) == 2
        and lines[0].startswith("answer: expected a map in 'rlinf'")
        and "The station retries every" in lines[0]
    )


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"actions": "text"},
        {"actions": np.zeros((8, 2))},
        {"actions": np.zeros((0, 3))},
        {"actions": [[0.0] * 3] * 8},
        {"actions": np.full((8, 3), np.nan)},
        {"actions": np.zeros((8, 3), np.int64)},
        {"actions": np.zeros((2, 3))},
        {"actions": np.tile([0.5, -0.3, -0.8], (8, 1))},
        {"actions": np.tile([10.0, -6.0, -16.0], (8, 1))},
        {"actions": np.zeros((8, 3)), "rlinf": 3},
        {"actions": np.zeros((8, 3)), "rlinf": {"version": "\ud800"}},
        {"actions": np.zeros((8, 3)), "rlinf": {"drawn": "text"}},
    ],
)
def test_an_answer_that_cannot_be_is_reported_and_not_played(answer, monkeypatch):
    """The connection stays: the next answer may be right, and is asked for at the next time
    step.
    """
    spec = station_task(load_recipe("demo")).spec
    node, step, played = without_ros(), step_of(spec, "evaluate", TimeStep.MID, "e"), []
    node.stopping = Event()
    node.lock, node.spec, node.status, node.requests = RLock(), spec, PolicyStatus(), Queue(1)
    node.settings, node.execute, node.horizon, node.busy = {"keys": {}}, 4, 0, True
    logged = []
    node.get_logger = lambda: SimpleNamespace(warning=logged.append, info=logged.append)
    node._publish_status = lambda: None
    monkeypatch.setattr(
        RemotePolicyNode, "_on_chunk", lambda node, *arguments: played.append(arguments)
    )
    client = SimpleNamespace(metadata={}, infer=lambda message: answer)
    for _ in range(3):
        node.requests.put_nowait((step, 0.0))
        node._request_chunk(client)
        assert not played and not node.busy and node.status.error.startswith("answer: expected")
        assert len(logged) == 1 and logged[0].encode()
    answer = {"actions": np.zeros((8, 3))}
    node.requests.put_nowait((step, 0.0))
    node._request_chunk(client)
    assert len(played) == 1
    node.requests.put_nowait((step, 0.0))
    answer = {"actions": np.zeros((7, 3))}
    node._request_chunk(client)
    assert len(played) == 1 and "expected 8 actions in a chunk, got 7" in node.status.error
