"""A node that finds the interlock and hears nothing of it ends, to be started again (S18); a real
one: test_nodes.py.
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from rlinf_core.core.errors import RlinfError
from rlinf_ros import workarounds
from rlinf_ros.workarounds import DEAF_S, LOOK_UP_S, DiscoveryWatchdog


@pytest.fixture
def watched(monkeypatch):
    """Return the watchdog, its node, and a clock whose hand is turned by ``later``."""
    fake = SimpleNamespace(now=100.0, destroyed=[], publishers=1)
    monkeypatch.setattr(
        workarounds, "subscription", lambda node, topic, callback: (topic, callback)
    )
    monkeypatch.setattr(workarounds, "time", SimpleNamespace(monotonic=lambda: fake.now))
    node = SimpleNamespace(
        count_publishers=lambda topic: fake.publishers,
        destroy_subscription=fake.destroyed.append,
        get_fully_qualified_name=lambda: "/station_a/recorder",
    )
    fake.dog = DiscoveryWatchdog(node, [""])

    def later(seconds=LOOK_UP_S):
        fake.now += seconds
        return fake.dog.check()

    fake.later = later
    return fake


def test_one_that_is_deaf_ends_with_what_helps(watched):
    for _ in range(round(DEAF_S / LOOK_UP_S)):
        assert not watched.later()
    error = (
        "/station_a/recorder discovered the interlock but received nothing from it for 8 s: "
        ".*fastdds shm clean"
    )
    with pytest.raises(RlinfError, match=error):
        watched.later()


@pytest.mark.parametrize(
    "busy", [False, True], ids=["there is none to be heard", "it did not listen"]
)
def test_one_that_could_have_heard_nothing_goes_on(watched, busy):
    watched.publishers = int(busy)
    for _ in range(40):
        assert not watched.later(3.0 * LOOK_UP_S if busy else LOOK_UP_S)
    watched.publishers = 1
    assert not watched.later(), "it is given its time from then on"


def test_one_that_hears_needs_no_watching(watched):
    assert not watched.later()
    topic, callback = watched.dog.subscription
    callback(None)
    assert topic == "safety" and watched.later() and watched.destroyed == [watched.dog.subscription]
