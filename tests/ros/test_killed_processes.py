"""The whole loop after each of its processes was killed."""

import signal

import pytest
from rlinf_msgs.msg import PolicyUpdate
from rosbags.highlevel import AnyReader

from rlinf_core.core.errors import RlinfError
from rlinf_core.episodes.messages import typestore
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_ros.qos import profile
from tests.ros.demo_runs import Run, check_nothing_lost, online

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(600)]
SEVERAL = "station.processes=several"  # so that one node can be killed alone


@pytest.mark.slow
@pytest.mark.domain(70)
def test_an_evaluation_is_of_one_version_whatever_arrives_and_dies_on_the_way(tmp_path, peer):
    """Newer weights wait; a policy that dies takes its episode along, and comes back with the
    newest: all over again.
    """
    updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))

    def evaluated(run):
        return [event for event in run.events("episode") if event["mode"] == "evaluate"]

    with Run(tmp_path, SEVERAL, "evaluate.episodes=6", "online.max_minutes=0.02", domain=70) as run:
        run.wait(lambda: len(evaluated(run)) >= 2, 150, "the evaluation")
        newest = PolicyUpdate(
            version=1000, path=str(newest_policy(tmp_path / "policies_at_station"))
        )
        updates.publish(newest)
        run.wait(lambda: len(evaluated(run)) >= 4, 60, "two more")
        uplink = run.supervisor.children["uplink"].popen
        # or it would announce the older version to the new process
        uplink.send_signal(signal.SIGSTOP)
        run.kill("policy")
        run.wait(
            lambda: updates.publish(newest) or evaluated(run)[-1]["policy_version"] == 1000,
            90,
            "the new process",
        )
        uplink.send_signal(signal.SIGCONT)
        run.wait(lambda: run.events("evaluation"), 120, "its end")
        run.wait(lambda: run.events("result"), 150, "the end")
    assert run.events("result")[0]["ended"] == "0.02 minutes have passed (online.max_minutes)"
    before = run.events("evaluation")[0]
    first, again = evaluated(run)[:6], evaluated(run)[6:12]
    assert {event["policy_version"] for event in first[:4]} == {1}, "held while it was alive"
    assert {event["policy_version"] for event in first[4:]} == {1000}
    assert "got 1, 1000" in run.events("warning")[0]["detail"]
    assert {event["policy_version"] for event in again} == {before["policy_version"]}
    assert [event["id"] for event in again] == before["episode_ids"]
    aborted = [event["detail"] for event in run.events("aborted")]
    assert any("the policy was restarted during the episode" in detail for detail in aborted)
    episodes = [
        folder for name in ("closed", "sent") for folder in (tmp_path / "spool" / name).iterdir()
    ]
    assert len(episodes) > 16 and all(len(versions(folder)) <= 1 for folder in episodes), (
        "none has two"
    )


def versions(folder):
    """Return the policy versions in the actions of a recorded episode."""
    with AnyReader([folder], default_typestore=typestore()) as reader:
        of = [
            connection for connection in reader.connections if connection.topic.endswith("/applied")
        ]
        messages = [
            reader.deserialize(raw, connection.msgtype)
            for connection, _, raw in reader.messages(of)
        ]
    return {message.policy_version for message in messages if message.source == "policy"}


@pytest.mark.slow
def test_s18_killed_nodes_come_back_and_nothing_closed_is_lost(tmp_path, evidence):
    """SIGKILL policy, recorder, uplink, operator, environment and trainer in turn, all in one
    online phase.
    """
    with Run(
        tmp_path,
        SEVERAL,
        "online.max_env_steps=450",
        "online.max_minutes=6",
        "online.updates_per_step=0.5",
        "checkpoint.every_minutes=0.1",
        domain=82,
    ) as run:
        run.wait(lambda: len(online(run)) >= 2, 150, "the online phase")
        for name in ("policy", "recorder", "uplink", "operator", "environment", "trainer"):
            before = len(online(run))
            run.kill(name)
            run.wait(
                lambda: len(online(run)) >= before + 2,  # noqa: B023
                90,
                f"episodes after {name} was killed",  # noqa: B023
            )  # noqa: B023
        run.finish()
        restarted = [event for event in run.supervisor.events if "SIGKILL" in event]
    assert len(restarted) == 6, restarted
    check_nothing_lost(run)
    evidence(
        "S18", f"{len(restarted)} of 6 killed processes came back, every closed episode kept", "6"
    )


@pytest.mark.parametrize("name, domain", [("interlock", 186), ("sim_bridge", 187)])
def test_s18_the_death_of_interlock_or_robot_side_ends_the_station_with_a_clear_message(
    tmp_path, name, domain, evidence
):
    with Run(tmp_path, SEVERAL, domain=domain) as run:
        run.wait(lambda: len(run.events("episode")) >= 1, 60, "the first episode")
        run.kill(name)
        with pytest.raises(
            RlinfError, match=f"{name} ended \\(killed by SIGKILL\\). The station cannot continue"
        ):
            run.wait(lambda: False, 20, "the supervisor to notice")
        children = [child.popen for child in run.supervisor.children.values()]
    assert all(child.poll() is not None for child in children), "nobody is left behind"
    evidence("S18", f"{name} killed: {len(children)} processes ended, 0 left", "0 left")
