"""Which policy plays an episode, message by message."""

import pytest
from builtin_interfaces.msg import Time
from rlinf_msgs.msg import Applied, PolicyStatus

from rlinf_station.episodes import PolicyTracker, episode_name, new_request, request_of


def applied(session, version, source="policy", at_s=10):
    return Applied(
        source=source, session=session, policy_version=version, observation_stamp=Time(sec=at_s)
    )


@pytest.fixture
def tracker():
    tracker = PolicyTracker()
    assert not tracker.update(PolicyStatus(session="a", version=54))
    tracker.begin("evaluate", 10 * 10**9)
    return tracker


def test_an_episode_has_the_version_that_was_applied(tracker):
    assert tracker.version == 54, "announced, until something is applied"
    assert not tracker.update(PolicyStatus(session="a", version=55)) and tracker.version == 55
    assert not tracker.played(applied("a", 55)) and tracker.version == 55
    assert not tracker.played(applied("o", -1, "operator")) and tracker.version == 55, (
        "a takeover leaves it the policy's"
    )


def test_the_last_action_of_the_episode_before_does_not_count(tracker):
    assert not tracker.played(applied("a", 53, at_s=9)) and tracker.version == 54
    assert not tracker.played(applied("a", 54))


@pytest.mark.parametrize("session, version", [("a", 55), ("b", 54), ("b", 55)])
def test_another_version_or_process_within_an_episode_breaks_it(tracker, session, version):
    assert not tracker.played(applied("a", 54))
    assert f"from version 54 to {version}" in tracker.played(applied(session, version))


def test_a_policy_that_starts_again_breaks_the_episode_before_it_can_act(tracker):
    assert "restarted during the episode" in tracker.update(PolicyStatus(session="b", version=54))
    tracker.begin("demonstration", 11 * 10**9)
    assert not tracker.update(PolicyStatus(session="c", version=54)) and tracker.version == -1


def test_an_episode_of_the_operator_alone_is_of_no_version(tracker):
    assert not tracker.played(applied("o", -1, "operator")) and tracker.version == -1
    assert not tracker.update(PolicyStatus(session="a", version=56)) and tracker.version == -1


def test_episodes_of_one_request_are_known_by_their_names():
    one, other = new_request(), new_request()
    names = [
        episode_name("arm-1", request, number) for request in (one, other) for number in (1, 1000)
    ]
    assert (
        len({*names}) == 4
        and [request_of(name) for name in names] == [f"arm-1-{one}"] * 2 + [f"arm-1-{other}"] * 2
    )
