"""The operator's page in a real browser, at a running station: every button does what it says."""

from functools import partial

import pytest
from rlinf_msgs.msg import EpisodeEvent, SafetyState

from tests.ros.page_browser import Network, Tab, chromium, needs_browser
from tests.ros.page_station import paged

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), needs_browser]


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    with paged(tmp_path_factory.mktemp("paged"), domain=67) as station:
        yield station


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser, station):
    tab = Tab(browser, station)
    yield tab
    tab.context.close()
    assert not tab.wrong


def test_arm_disarm_stop_release_and_reset(tab, station):
    tab.armed()
    tab.sees("#word", "ACTIVE")
    tab.touch("#disarm")  # at once: no finger need come off it
    tab.sees("#word", "DISARMED")
    tab.page.mouse.up()
    tab.click("#arm")  # a touch by chance
    tab.page.wait_for_timeout(500)
    station.peer.for_s(0.3)
    assert station.state.state == SafetyState.DISARMED
    tab.armed()
    for press in (lambda: tab.click("#stop"), lambda: tab.page.keyboard.press("Space")):
        press()
        tab.sees("#why", r"The stop on this page is pressed. \(estop:page\)")
        station.reach(SafetyState.FAULT, "estop:page")
        assert tab.page.is_disabled("#reset")
        tab.armed()


def test_labels_start_and_no_more(tab, station):
    tab.armed()
    for label, wanted in (("success", "last: success"), ("failure", "last: no success")):
        before = len(station.episodes)
        tab.click(f"[data-label={label}]")
        tab.until(
            lambda: any(event.kind == EpisodeEvent.CLOSED for event in station.episodes[before:]),  # noqa: B023
            "its end",
        )  # noqa: B023
        tab.sees("#playing", wanted)
        tab.armed()
    before = len(station.episodes)
    tab.click("[data-label=rerecord]")
    tab.until(
        lambda: (
            station.episodes[-1].kind == EpisodeEvent.STARTED and len(station.episodes) > before
        ),
        "it once more",
    )
    tab.click("#cancel")
    tab.sees("#notes", "no further episode")
    tab.sees("#success", r"\d+ %")


@pytest.mark.parametrize("how", ["a key", "a pad"])
def test_a_held_key_or_pad_moves_and_a_lost_focus_holds_the_arm_and_says_so(tab, station, how):
    tab.armed()
    press, let_go = (
        (tab.push, tab.page.mouse.up)
        if how == "a pad"
        else (partial(tab.page.keyboard.down, "KeyA"), partial(tab.page.keyboard.up, "KeyA"))
    )
    tab.moves_left(press, let_go)
    tab.sees("#hand", "you command")
    tab.page.evaluate("window.dispatchEvent(new Event('blur'))")
    tab.reach(SafetyState.HOLD)
    tab.sees("#banner", "Your takeover ended: the window lost the focus. The arm is held")
    let_go()
    tab.page.wait_for_timeout(1500)  # it must be heard at rest, before a touch counts
    tab.page.mouse.move(300, 300)
    tab.page.mouse.move(320, 320)
    tab.until(lambda: station.state.source == "policy", "it goes on once somebody is there again")


def test_a_key_that_is_let_go_of_beside_another_one_is_let_go_of(tab, station):
    tab.armed()
    keyboard = tab.page.keyboard
    tab.moves_left(partial(keyboard.down, "KeyA"), partial(keyboard.up, "KeyA"))
    for key in ("Control", "KeyA"):
        (keyboard.down if key == "Control" else keyboard.up)(key)
    keyboard.up("Control")
    tab.until(lambda: station.state.source == "policy", "nothing is held any more")


def test_a_lost_connection_says_so_disarms_nothing_and_a_held_takeover_holds(tab, station):
    tab.armed()
    tab.moves_left(partial(tab.page.keyboard.down, "KeyA"), partial(tab.page.keyboard.up, "KeyA"))
    tab.context.set_offline(True)  # an open socket falls silent
    tab.reach(SafetyState.HOLD)
    station.rests()
    tab.sees("#banner", "Not connected. This does not disarm")
    assert tab.page.inner_text("#word") == "UNKNOWN" and station.state.state == SafetyState.HOLD
    tab.page.keyboard.press("Space")
    tab.sees("#banner", "THE STOP DID NOT ARRIVE")
    tab.context.set_offline(False)
    tab.page.keyboard.up("KeyA")
    tab.sees("#link", "^connected")
    tab.wrong.clear()  # the browser's own words about the network, until it is back


def test_what_waits_for_the_network_is_not_done_once_it_is_back_but_a_disarm(tab, station):
    network = Network(tab)
    tab.armed()
    tab.click("#disarm")
    tab.sees("#word", "DISARMED")
    network.holds_up_a_word(lambda: tab.press_and_hold("#arm"))
    tab.sees("#notes", "No answer to: arm. Look at the arm before you press it again")
    network.comes_back()
    tab.sees("#controls", "Take the controls|hold to take them")
    station.peer.for_s(1.0)
    assert station.state.state == SafetyState.DISARMED
    tab.armed()
    network.holds_up_a_word(lambda: tab.click("#disarm"))
    network.comes_back(loses=True)
    tab.reach(SafetyState.DISARMED)
    tab.sees("#word", "DISARMED")


def test_a_pointer_that_is_told_of_at_every_frame_of_a_fast_screen_says_no_more_words(tab, station):
    tab.armed()
    tab.moves_left(tab.push, tab.page.mouse.up)
    number = tab.page.evaluate("""() => {
        const pad = document.querySelector(".pad"), {left, top} = pad.getBoundingClientRect();
        for (let each = 0; each < 500; each++) {
            pad.dispatchEvent(new PointerEvent("pointermove", {pointerId: 1, clientX: left + 3, clientY: top + each % 9}));
        }
        return document.querySelectorAll(".pad.held").length; }""")
    assert number == 1
    tab.page.wait_for_timeout(500)
    assert "closed the connection" not in tab.page.inner_text("#notes")
    tab.sees("#hand", "you command")
    tab.page.mouse.up()


def test_no_button_moves_from_under_a_finger_when_the_reason_grows(tab, station):
    tab.armed()
    grow = """words => { document.getElementById("why").textContent = "because ".repeat(words);
                          return document.getElementById("disarm").getBoundingClientRect().y }"""
    assert tab.page.evaluate(grow, 1) == tab.page.evaluate(grow, 60) > 0


def test_a_second_tab_watches_until_it_takes_the_controls(browser, tab, station):
    tab.armed()
    other = Tab(browser, station)
    other.sees("#controls", "has the controls: hold to take them")
    assert (
        other.page.is_disabled("#start")
        and other.page.is_enabled("#stop")
        and other.page.is_enabled("#disarm")
    )
    other.click("#controls")
    other.page.wait_for_timeout(300)
    assert "You have" in tab.page.inner_text("#controls"), "a touch by chance takes nothing"
    other.takes()
    tab.sees("#controls", "has the controls: hold to take them")
    size = "canvas => [canvas.width, canvas.height]"
    for camera in ("simulator", "front", "wrist"):  # the policy sees 32x32 pixels
        other.until(lambda: "fps" in other.page.inner_text(f"[data-camera={camera}]"), "pictures")  # noqa: B023
        assert min(other.page.eval_on_selector(f"[data-camera={camera}] canvas", size)) == 360
    other.context.close()
    assert not other.wrong
