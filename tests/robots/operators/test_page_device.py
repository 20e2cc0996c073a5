"""The operator's page as a device: what is held must be heard again and again."""

import time
from types import SimpleNamespace

import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.operators.device import AXES, LABELS
from rlinf_core.robots.operators.page import BUTTONS, Page
from tests.robots.operators.guards import ready, settle

pytestmark = pytest.mark.timed


def report(*pressed, **axes):
    return SimpleNamespace(
        axes=[axes.get(axis, 0.0) for axis in AXES],
        buttons=[int(name in pressed) for name in BUTTONS],
    )


def held(guard, *messages, seconds=0.15):
    """The last one again and again, as the page says it."""
    requests, end = [], time.monotonic() + seconds
    for message in messages:
        guard.device.receive(message)
    while time.monotonic() < end:
        guard.device.receive(messages[-1])
        requests += guard.poll()
        time.sleep(0.02)
    return requests


def opened(page):
    """Return a page that has been heard at rest."""
    guard = ready(page)
    held(guard, report(), seconds=0.0)
    return guard


def test_what_is_held_moves_and_what_is_not_asks_for_nothing():
    guard = opened(Page(curve=1.0, scale=0.5))
    held(guard, report("held", x=1.0, rz=-0.5))
    assert guard.motion() == dict.fromkeys(AXES, 0.0) | {"x": 0.5, "rz": -0.25}
    held(guard, report("held"))
    assert guard.motion() == dict.fromkeys(AXES, 0.0), "held without a direction, it rests"
    held(guard, report())
    assert guard.motion() is None, "let go, the policy commands"


@pytest.mark.parametrize("last", [report("held", x=1.0), report("held"), report(y=0.3)])
def test_a_takeover_that_falls_silent_is_trouble_until_it_was_let_go(last):
    guard = opened(Page(silence_s=0.2))
    held(guard, last)
    assert guard.trusted and guard.motion() is not None
    settle(guard, lambda: guard.trouble)
    assert (
        "silent: a takeover is held, but no message came for 0.2 s" in guard.trouble
        and guard.motion() is None
    )
    held(guard, last, seconds=0.4)
    assert guard.motion() is None, "it goes on where it was: a hand is not taken for granted"
    held(guard, report(), seconds=0.3)
    assert guard.trusted and not guard.trouble


def test_silence_of_a_page_that_holds_nothing_is_no_trouble():
    guard = ready(Page(silence_s=0.1))
    held(guard, report())
    time.sleep(0.25)
    assert guard.poll() == () and guard.trusted and not guard.trouble


@pytest.mark.parametrize("label", LABELS)
def test_a_label_counts_once_for_each_press_and_a_hand_renews_the_enable(label):
    guard = ready(Page())
    assert held(guard, report("asked", "active", label), report()) == ["enable", label]
    assert held(guard, report("asked", label), report()) == [label], (
        "one that comes late is no hand"
    )


def test_a_button_says_nothing_of_what_is_held_and_does_not_stand_in_for_its_silence():
    guard = opened(Page(silence_s=0.2))
    held(guard, report("held", x=1.0))
    moved, end = guard.motion(), time.monotonic() + 0.1
    while time.monotonic() < end:
        guard.device.receive(report("asked", "active"))
        guard.poll()
        assert guard.motion() in (moved, None)
    settle(
        guard,
        lambda: guard.device.receive(report("asked", "active", "success")) or guard.trouble,
        5.0,
    )
    assert "silent: a takeover is held" in guard.trouble and guard.motion() is None


def test_a_takeover_that_is_held_when_it_is_first_heard_moves_nothing_until_it_is_let_go_of():
    guard = ready(Page())
    assert guard.trusted and not guard.trouble, (
        "while nobody has opened the page, nothing waits for them"
    )
    guard.device.receive(report("held", "active", x=1.0))
    assert guard.motion() is None, "before it is looked at, too"
    held(guard, report("held", "active", x=1.0), seconds=0.4)
    assert (
        guard.motion() is None and "expected it at rest before its first command" in guard.trouble
    )
    held(guard, report(), seconds=0.3)
    assert guard.trusted and not guard.trouble
    held(guard, report("held", x=1.0))
    assert guard.motion()


@pytest.mark.parametrize(
    "message",
    [
        report(x=1.5),
        report(x=float("nan")),
        SimpleNamespace(axes=[0.0], buttons=[0] * len(BUTTONS)),
        SimpleNamespace(axes=[0.0] * len(AXES), buttons=[0]),
    ],
)
def test_garbage_on_its_topic_is_trouble_by_name(message):
    guard = ready(Page())
    guard.device.receive(message)
    guard.poll()
    assert (
        "garbage on the topic page: expected 7 axes from -1 to 1" in guard.trouble
        and guard.motion() is None
    )


def test_its_settings_are_those_of_a_device():
    operator = load_recipe("demo", ["station.operator={kind: page, scale: 0.2}"]).station.operator
    assert operator.scale == 0.2
    with pytest.raises(RecipeError, match="silence_s"):
        load_recipe("demo", ["station.operator={kind: page, silence_s: 30.0}"])
