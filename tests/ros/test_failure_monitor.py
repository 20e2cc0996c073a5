"""The failure monitor of a policy node sends nothing and asks until a person takes over."""

import numpy as np
import pytest
from rlinf_msgs.msg import ActionChunk, PolicyStatus, PolicyUpdate, SafetyState, TimeStep

from rlinf_core.policies.monitor import FEATURES, PERSON_NEEDED, Monitor
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.conversions import set_stamp
from rlinf_ros.qos import profile
from tests.ros.stand_ins import listen, start
from tests.ros.test_nodes import step_of

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


def by_time(spec, step):
    """Return a monitor that raises its alarm at this time step, whatever is observed."""
    size, actions = spec.vector_size, spec.action.dim
    weights = np.zeros(len(FEATURES) + 1)
    weights[FEATURES.index("time")] = 1.0
    return Monitor(
        spec.hash,
        0.1,
        np.zeros(size),
        np.ones(size),
        np.zeros((5, size)),
        np.zeros((5, actions)),
        np.zeros(5),
        np.stack([np.zeros(len(FEATURES)), np.ones(len(FEATURES))]),
        weights,
        np.array([step + 0.5]),
    )


@pytest.mark.domain(107)
def test_it_falls_silent_asks_and_goes_on_after_a_takeover_and_with_the_next_episode(
    peer, tmp_path
):
    spec = station_task(load_recipe("demo")).spec
    by_time(spec, 3).save(tmp_path / "monitor.safetensors")
    chunks, statuses = (
        listen(peer, ActionChunk, "policy/action"),
        listen(peer, PolicyStatus, "policy/status"),
    )
    publishers = {
        name: peer.node.create_publisher(kind, name, profile(name))
        for name, kind in (
            ("timestep", TimeStep),
            ("safety", SafetyState),
            ("policy/update", PolicyUpdate),
        )
    }
    start(peer, "policy", f"station.policy.monitor={tmp_path / 'monitor.safetensors'}")
    peer.spin(
        lambda: all(one.get_subscription_count() for one in publishers.values()) and statuses,
        what="the policy",
    )
    path = save_policy(
        Actor(spec, tanh_gaussian.Config(hidden=(8,))), tmp_path / "policy-00000001.safetensors"
    )
    publishers["policy/update"].publish(PolicyUpdate(version=1, path=str(path)))
    peer.spin(lambda: statuses[-1].version == 1, what="version 1")

    def answers(number, expected=1, kind=TimeStep.MID, episode="a"):
        step, before = step_of(spec, "evaluate", kind, episode), len(chunks)
        set_stamp(step.header.stamp, 10**9 + number * 10**8)
        publishers["timestep"].publish(step)
        peer.spin(lambda: len(chunks) >= before + expected, what=lambda: f"the answer to {number}")
        peer.for_s(0.1 if expected else 0.3)
        return len(chunks) - before == expected

    def safety(source):
        publishers["safety"].publish(SafetyState(state=SafetyState.ACTIVE, source=source))
        peer.for_s(0.15)

    safety("policy")
    assert answers(0, 1, TimeStep.FIRST) and all(map(answers, (1, 2, 3)))
    peer.spin(
        lambda: statuses[-1].error == PERSON_NEEDED,
        what="the alarm of the fourth time step, after its chunk was sent",
    )
    assert answers(4, 0) and answers(5, 0)
    safety("operator")
    peer.spin(lambda: not statuses[-1].error, what="the takeover")
    assert answers(6), "the policy stands by while a person drives"
    safety("policy")
    assert answers(7) and answers(8) and not statuses[-1].error, (
        "the rest of the episode is watched by the person"
    )
    assert answers(9, 0, TimeStep.LAST) and answers(20, 1, TimeStep.FIRST, "b")
    assert all(answers(number, 1, TimeStep.MID, "b") for number in (21, 22, 23))
    peer.spin(lambda: statuses[-1].error == PERSON_NEEDED, what="the alarm of the next episode")
    assert answers(24, 0, TimeStep.MID, "b") and answers(25, 0, TimeStep.LAST, "b")
    peer.spin(lambda: not statuses[-1].error, what="the end of the episode")
