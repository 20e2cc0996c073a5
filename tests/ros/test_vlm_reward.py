"""A station in real time whose reward is a vision-language model's word: it goes on meanwhile, and
says what it lacks.
"""

from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rlinf_msgs.msg import EpisodeEvent

from tests.ros.test_collect import Unreset
from tests.tasks.test_reward_of_a_vlm import server, task_with  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), pytest.mark.domain(197), pytest.mark.slow]


def test_an_episode_ends_with_the_models_second_yes_and_without_an_answer_it_goes_on_and_says_why(
    peer, tmp_path, server
):
    server.says = (500, b"still loading")
    (task,) = task_with(tmp_path, url=server.url)
    at, health = Unreset(peer, Path(task.partition("=")[2]), "station.observe_cameras=[front]"), {}
    peer.node.create_subscription(
        DiagnosticArray,
        "/diagnostics",
        lambda array: health.update({status.name: status.message for status in array.status}),
        10,
    )
    at.arm()
    at.ask(count=1, mode="demonstration", first_seed=7)
    at.ready()
    peer.spin(
        lambda: "still loading" in health.get("station_a/environment", ""),
        what=lambda: f"the trouble: {health}",
    )
    before = at.steps[-1].step_index
    peer.spin(lambda: at.steps[-1].step_index > before + 3, what="further time steps")
    assert not any(step.success for step in at.steps)
    server.says = (200, "yes")
    peer.spin(
        lambda: at.events[-1].kind == EpisodeEvent.ENDED,
        what=lambda: f"the end: {len(server.asked)} asked, {health}",
    )
    assert at.events[-1].success
