"""Environment and policy in one process (what it plays: test_chunks)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from rlinf_msgs.msg import PolicyStatus, TimeStep

from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_station.composed import EVERY_S, Composed
from rlinf_station.environment import Environment
from tests.ros.stand_ins import listen

pytestmark = pytest.mark.ros


@pytest.mark.domain(144)
def test_each_node_has_its_name_as_ros2_launch_starts_them(peer):
    """Which says the name of the one that it knows of."""
    recipe = load_recipe("demo", ["station.policy.backend=composed"])
    environment = {
        process.name: process for process in station_processes(recipe, peer.supervisor.run_dir)
    }["environment"]
    statuses = listen(peer, PolicyStatus, "policy/status")
    peer.supervisor.start(
        replace(environment, remappings=(*environment.remappings, ("__node", "environment")))
    )
    peer.spin(lambda: statuses, what="the policy")
    names = {"environment", "policy"}
    peer.spin(
        lambda: names <= set(peer.node.get_node_names()),
        what=lambda: f"{names}, of {peer.node.get_node_names()}",
    )
    assert peer.node.count_subscribers("timestep") == 0, "it is handed over"
    assert [
        endpoint.node_name for endpoint in peer.node.get_publishers_info_by_topic("policy/action")
    ] == ["policy"]


@pytest.mark.parametrize(
    "took_ms, lockstep, kind, warns",
    [
        (24, False, TimeStep.MID, False),
        (26, False, TimeStep.MID, True),
        (26, True, TimeStep.MID, False),
        (26, False, TimeStep.FIRST, False),
        (26, False, TimeStep.LAST, False),
    ],
)
def test_a_policy_that_keeps_the_environment_from_hearing_is_told_so(
    took_ms, lockstep, kind, warns, monkeypatch
):
    """But not of the time in which it takes newer weights, for which the last time step does not
    wait either.
    """
    warnings, sent, now = [], [], [5.0]
    monkeypatch.setattr("rlinf_station.composed.time.monotonic", lambda: now[0])

    def answer(step, observation):
        assert bool(sent) == (kind == TimeStep.LAST) and observation == {"x": 1}, (
            "it is answered first"
        )
        now[0] += 0.001 * took_ms

    monkeypatch.setattr(Environment, "_publish_step", lambda self, *what: sent.append(what))
    log = SimpleNamespace(warning=warnings.append)
    node = object.__new__(Composed)
    vars(node).update(
        policy=SimpleNamespace(answer=answer),
        period_ns=5 * 10**7,
        lockstep=lockstep,
        get_logger=lambda: log,
        warned_at=float("-inf"),
    )
    node._publish_step(step := TimeStep(step_type=kind), {"x": 1})
    assert sent == [(step, {"x": 1})] and len(warnings) == warns
    if warns:
        assert warnings[0].startswith("the policy took 26 of the 50 ms between two time steps")
        for at, times in ((now[0] + 0.9 * EVERY_S, 1), (6.0 + EVERY_S, 2)):
            now[0] = at
            sent.clear()
            node._publish_step(step, {"x": 1})
            assert len(warnings) == times, "now and then"
