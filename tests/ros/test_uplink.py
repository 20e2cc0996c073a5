"""The uplink as a process, against a real trainer's bridge over TLS; and what a station does whose
spool is full.
"""

import shutil

import pytest
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, PolicyStatus, PolicyUpdate, SafetyState, TrainerStatus

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.deploy.bridge.admission import Entry
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.episodes.checksums import SUMS
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.policy_folder import policy_name
from rlinf_ros.qos import profile
from tests.messages import record
from tests.ros.stand_ins import listen, start
from tests.ros.test_scene import RobotSide

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]


@pytest.mark.domain(46)
def test_an_enrolled_station_sends_what_can_go_sets_aside_what_cannot_and_tells_both(
    peer, tmp_path, task
):
    fleet = Fleet(tmp_path / "fleet")
    fleet.enroll("station_a", tmp_path / "carried", days=20)
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "run/inbox",
        tmp_path / "run/policies",
        print,
        lambda: {"phase": "online", "accepting": True},
        fleet=fleet.folder,
    )
    spool = Spool(tmp_path / "spool")
    record(spool, task.spec, "one").close()
    (record(spool, task.spec, "two").close() / SUMS).unlink()
    record(spool, task.spec, "three").close()
    (server.policies / ".part").write_bytes(b"policy")
    publish_file(server.policies / ".part", server.policies / policy_name(3))
    statuses, updates = (
        listen(peer, TrainerStatus, "trainer/status"),
        listen(peer, PolicyUpdate, "policy/update"),
    )
    # before its restart
    server.registered.entries["station_a"] = Entry("another task's", "", "", "expected others")
    (tmp_path / "policies_at_station").mkdir()
    (tmp_path / "policies_at_station/policy-00000001_best.safetensors").write_bytes(
        b"somebody's copy"
    )
    start(
        peer, "uplink", f"bridge.port={server.port}", f"bridge.credentials={tmp_path / 'carried'}"
    )
    peer.spin(
        lambda: (
            statuses
            and statuses[-1].set_aside == 1
            and statuses[-1].backlog == 0
            and updates
            and statuses[-1].connected
            and statuses[-1].accepting
        ),
        what="the uplink",
    )
    assert sorted(server.journal.ids()) == ["one", "three"] and updates[-1].version == 3
    assert 0 < statuses[-1].spool_full < 0.01
    assert (spool.root / "refused/two").is_dir() and "SHA256SUMS" in (
        spool.root / "refused/two.reason.txt"
    ).read_text()
    peer.spin(
        lambda: server.stations["station_a"][1].set_aside == 1, what="the trainer to hear of it"
    )
    assert server.stations["station_a"][1].playing == -1, "nothing is loaded yet"
    peer.spin(
        lambda: not server.registered.refusal_reason("station_a"),
        what="the station to say what it is",
    )
    entry = server.registered.entries["station_a"]
    assert (entry.spec_hash, entry.refusal_reason) == (task.spec.hash, "") and len(
        entry.limits_hash
    ) == 12
    loaded = peer.node.create_publisher(PolicyStatus, "policy/status", profile("policy/status"))
    loaded.publish(PolicyStatus(version=2, error="version 3 does not fit"))
    peer.spin(
        lambda: server.stations["station_a"][1].playing == 2, what="the trainer to hear what plays"
    )
    assert server.stations["station_a"][1].policy_error == "version 3 does not fit"

    for version in (4, 5):
        (server.policies / ".part").write_bytes(b"policy %d" % version)
        publish_file(server.policies / ".part", server.policies / policy_name(version))
        peer.spin(lambda version=version: updates[-1].version == version, what="the next policy")
    server.choice.version_for = lambda station, newest: 4
    server.choice.revision += 1
    peer.spin(lambda: updates[-1].version == 4, what="the one before it")
    assert (tmp_path / "policies_at_station" / policy_name(4)).read_bytes() == b"policy 4"

    server.choice.wait_reason = lambda station: "drained"
    peer.spin(lambda: statuses[-1].held, what="the order to begin nothing")
    assert not statuses[-1].accepting and statuses[-1].message == "drained"
    server.choice.wait_reason = lambda station: ""
    peer.spin(lambda: not statuses[-1].held, what="leave to begin again")
    assert not (spool.root / ".held").exists()
    server.choice.wait_reason = lambda station: "drained"
    peer.spin(lambda: statuses[-1].held, what="the order once more")

    assert "ends in 20 days, on" in (peer.supervisor.run_dir / "logs/uplink.log").read_text()

    fleet.revoke("station_a")
    record(spool, task.spec, "four").close()
    peer.spin(
        lambda: "station 'station_a': its certificate was revoked" in statuses[-1].message,
        what="the revocation",
    )
    assert not statuses[-1].connected
    peer.for_s(1.5)
    assert statuses[-1].held, "until a trainer says otherwise"
    assert (
        statuses[-1].backlog == 1
        and len(spool.closed()) == 1
        and "four" not in server.journal.ids()
    )
    peer.supervisor.children["uplink"].popen.kill()
    peer.spin(lambda: peer.supervisor.events, what="its death")
    statuses.clear()
    peer.spin(lambda: statuses, what="the one that comes after it")
    assert all(status.held for status in statuses), "which no trainer has told anything"
    server.stop()


@pytest.mark.domain(96)
def test_a_station_that_the_trainer_does_not_know_yet_begins_nothing_and_forgets_it(peer, tmp_path):
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "run/inbox",
        tmp_path / "run/policies",
        print,
        lambda: {"phase": "online", "accepting": True},
    )
    register, server.registered.register = server.registered.register, lambda *_: 1 / 0
    statuses = listen(peer, TrainerStatus, "trainer/status")
    start(peer, "uplink", f"bridge.port={server.port}")
    peer.spin(lambda: any(status.connected for status in statuses), what="the uplink")
    peer.for_s(1.0)
    connected = [status for status in statuses if status.connected]
    assert all(status.held and not status.accepting and status.message for status in connected)
    assert not (tmp_path / "spool/.held").exists(), "no trainer has said it"
    server.registered.register = register
    peer.spin(
        lambda: statuses[-1].connected and not statuses[-1].held and statuses[-1].accepting,
        what="its word",
    )
    server.stop()


@pytest.mark.domain(47)
def test_a_full_spool_is_told_and_nothing_is_played_until_there_is_room(peer, tmp_path, task):
    statuses = listen(peer, TrainerStatus, "trainer/status")
    folder = record(Spool(tmp_path / "spool"), task.spec).close()
    start(peer, "uplink", "bridge.port=1", "station.spool_gb=1e-5")
    peer.spin(lambda: statuses and statuses[-1].spool_full > 1.0, what="a full spool")
    assert not statuses[-1].accepting

    safety = peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    runner, robot_side = ActionClient(peer.node, RunEpisodes, "run_episodes"), RobotSide(47)
    # without it no episode is ready
    peer.node.create_publisher(ActionChunk, "teleop/action", profile("teleop/action"))
    try:
        peer.node.create_timer(0.1, lambda: safety.publish(SafetyState(state=SafetyState.ARMED)))
        start(peer, "recorder")
        start(peer, "environment")
        peer.spin(runner.server_is_ready, what="the environment")
        peer.spin(
            lambda: peer.node.count_subscribers("trainer/status") > 1, what="the environment's ear"
        )
        peer.for_s(4.0)  # in which the uplink is found
        sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="demonstration", first_seed=1))
        peer.spin(sent.done, what="the goal")
        assert sent.result().accepted
        peer.for_s(2.0)
        assert robot_side.requested_seeds == [], (
            "no scene is reset for an episode that could not be recorded"
        )
        shutil.move(folder, tmp_path / "elsewhere")
        peer.spin(lambda: robot_side.requested_seeds == [1], what="the episode", timeout_s=40.0)
        assert statuses[-1].spool_full < 1.0
    finally:
        robot_side.close()


@pytest.mark.domain(48)
def test_a_station_whose_trainer_has_said_nothing_yet_or_holds_it_begins_no_episode_of_any_mode(
    peer,
):
    trainer_status = peer.node.create_publisher(
        TrainerStatus, "trainer/status", profile("trainer/status")
    )
    safety = peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    runner, robot_side = ActionClient(peer.node, RunEpisodes, "run_episodes"), RobotSide(48)
    for topic in ("policy/action", "teleop/action"):
        peer.node.create_publisher(ActionChunk, topic, profile(topic))
    try:
        peer.node.create_timer(0.1, lambda: safety.publish(SafetyState(state=SafetyState.ARMED)))
        for node in ("recorder", "environment"):
            start(peer, node)
        peer.spin(
            lambda: runner.server_is_ready() and trainer_status.get_subscription_count(),
            what="the environment",
        )
        peer.for_s(4.0)  # in which it finds who will tell of the trainer
        sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="evaluate", first_seed=1))
        peer.spin(sent.done, what="the goal")
        peer.for_s(2.0)
        assert sent.result().accepted and robot_side.requested_seeds == []
        log = peer.supervisor.run_dir / "logs/environment.log"
        peer.spin(
            lambda: "no message from the uplink yet" in log.read_text(), what="what it waits for"
        )
        trainer_status.publish(TrainerStatus(connected=False, held=True))
        peer.for_s(2.0)
        assert robot_side.requested_seeds == []
        trainer_status.publish(TrainerStatus(connected=True))
        peer.spin(lambda: robot_side.requested_seeds == [1], what="the episode", timeout_s=40.0)
    finally:
        robot_side.close()
