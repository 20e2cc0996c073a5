"""A whole station whose policy is served: the server dies in mid-chunk, the arm holds, it comes
back, and it goes on.
"""

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, PolicyStatus, SafetyState, TimeStep

from rlinf_core.episodes import read_episode
from rlinf_core.episodes.validate import check_episode
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.qos import profile
from tests.deploy.serving.test_serving import Served, policy_of
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
REACH = ("station.operator.kind=scripted", "station.task=reach", "seed=5")
KILLED_AT, COUNT = 6, 2  # a time step in the middle of a chunk, of which 4 are played


@pytest.mark.slow
@pytest.mark.domain(163)
def test_an_episode_outlives_the_server_of_its_policy(peer, tmp_path):
    spec = station_task(load_recipe("demo", [*REACH])).spec
    save_policy(policy_of(spec, 0), tmp_path / policy_name(3))
    served = Served(tmp_path)
    statuses, states = (
        listen(peer, PolicyStatus, "policy/status"),
        listen(peer, SafetyState, "safety"),
    )
    chunks = listen(peer, ActionChunk, "policy/action")
    targets = listen(peer, PoseStamped, "target_pose")
    killed = []

    def look(step):
        if step.step_index == KILLED_AT and not killed:
            served.process.kill()
            killed.append(step.episode_id)

    peer.node.create_subscription(TimeStep, "timestep", look, profile("timestep"))
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    remote = ("station.policy.backend=remote", f"station.policy.address='{served.address}'")
    try:
        for name in ("sim_bridge", "interlock", "environment", "operator", "recorder", "policy"):
            start(
                peer,
                name,
                *REACH,
                *remote,
                **({"lockstep_guard_s": 1.0} if name == "interlock" else {}),
            )
        peer.spin(
            lambda: statuses and statuses[-1].version == 3 and runner.server_is_ready(),
            what="the station",
        )
        sent = runner.send_goal_async(
            RunEpisodes.Goal(count=COUNT, mode="evaluate", first_seed=1_000_000)
        )
        peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()

        peer.spin(lambda: killed, what="the time step")
        peer.spin(
            lambda: (
                "The station retries" in statuses[-1].error and states[-1].state == SafetyState.HOLD
            ),
            what=lambda: f"the hold: {states[-1]}, {statuses[-1].error}",
        )
        peer.for_s(1.0)
        begun, chunk_count = len(targets) - 1, len(chunks)
        peer.for_s(3.0)
        held = np.array(
            [
                [goal.pose.position.x, goal.pose.position.y, goal.pose.position.z]
                for goal in targets[begun:]
            ]
        )
        assert len(held) > 1 and np.ptp(held, axis=0).max() < 1e-6 and not answer.done(), (
            "the arm holds, nothing is over"
        )

        served.end()
        served = Served(tmp_path, port=served.port)
        peer.spin(lambda: not statuses[-1].error, what="the connection again")
        peer.spin(answer.done, 120, lambda: f"the episodes: {states[-1]}")
    finally:
        served.end()
    result = answer.result().result
    assert (
        result.success and len(result.episode_ids) == COUNT and result.episode_ids[0] == killed[0]
    )
    assert len(chunks) > chunk_count
    for name in result.episode_ids:
        episode = read_episode(peer.supervisor.run_dir / "spool/closed" / name)
        check_episode(episode, spec, 1000)
        assert len(episode) > KILLED_AT and set(episode.sources) >= {"policy"}
