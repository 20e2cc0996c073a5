"""Leader-follower teleoperation of twins: a hand at the leader demonstrates a reach."""

import pytest

from benchmarks.leader_follower import collect
from rlinf_core.episodes.read import read_episode

pytest.importorskip("scservo_sdk", reason="make setup installs feetech-servo-sdk")


@pytest.mark.ros
@pytest.mark.timeout(180)
def test_a_leader_moves_the_follower_to_the_goal(tmp_path):
    collect(tmp_path, takes=4, domain=224)
    episodes = [read_episode(take) for take in (tmp_path / "takes/spool/closed").iterdir()]
    assert sum(episode.success for episode in episodes) >= 4
    assert all(set(episode.sources) <= {"operator", ""} for episode in episodes)
    moved = [
        abs(episode.observations["joints"][-1] - episode.observations["joints"][0]).max()
        for episode in episodes
    ]
    assert max(moved) > 0.05, "the follower's own joints, measured on its bus"
    log = (tmp_path / "takes/logs/interlock.log").read_text()
    assert "FAULT" not in log, "the twin's arm is at its home at once before each take"
