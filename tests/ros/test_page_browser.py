"""The operator's page in a real browser, at a running station: every button does what it says."""

import contextlib
import re
import shutil
from functools import partial

import pytest
from rlinf_msgs.msg import EpisodeEvent, SafetyState

from tests.ros.conftest import peer_in
from tests.ros.paged import Paged, visitor

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), pytest.mark.skipif(
    not CHROMIUM, reason="no browser: expected chromium or google-chrome. Run: make browser")]


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paged")
    with peer_in(folder, 67) as peer:
        station = Paged(peer, folder)
        with visitor(station):  # it is up
            pass
        yield station
        station.close()


class Tab:
    """One, whose complaints fail the test."""

    def __init__(self, browser, station):
        self.station, self.wrong = station, []
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, has_touch=True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # a busy machine is no failure
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(said.text))
        ours = (station.url, station.url.replace("http", "ws"), "blob:")
        self.page.on("request", lambda asked: asked.url.startswith(ours) or self.wrong.append(asked.url))
        self.page.goto(station.url)
        self.sees("#link", "connected")

    def until(self, holds, what="it", timeout_s=90):
        """The station and the browser both go on."""
        def look():
            self.page.wait_for_timeout(50)
            return holds()

        self.station.peer.spin(look, timeout_s, lambda: f"{what}: {self.page.inner_text('body')} {self.station.state}")

    def sees(self, element, text):
        self.until(lambda: re.search(text, self.page.inner_text(element)), f"{text!r} in {element}")

    def reach(self, state):
        self.until(lambda: self.station.state.state == state, f"state {state}")

    def touch(self, element):
        """A pointer that goes down on it."""
        self.until(lambda: self.page.is_enabled(element) and self.page.is_visible(element), f"{element} enabled")
        at = self.page.locator(element).first.bounding_box()
        self.page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
        self.page.mouse.down()

    def click(self, element):
        self.touch(element)
        self.page.mouse.up()

    def press_and_hold(self, element):
        self.touch(element)
        self.page.wait_for_timeout(800)
        self.page.mouse.up()

    def takes(self):
        said = self.page.inner_text("#controls")
        if "You have" not in said:
            (self.press_and_hold if "has the" in said else self.click)("#controls")
            self.sees("#controls", "You have the controls")

    def armed(self):
        """With the controls, in an episode that the policy plays."""
        self.takes()
        if self.station.state.state == SafetyState.HOLD and "let go" in self.page.inner_text("#enable"):
            self.click("#disarm")
            self.reach(SafetyState.DISARMED)
        while self.station.state.state in (SafetyState.FAULT, SafetyState.DISARMED):
            if self.page.is_visible("#release"):
                self.click("#release")
                self.until(lambda: not self.page.is_visible("#release"), "the stop released")
            if self.station.state.state == SafetyState.FAULT:
                self.click("#reset")
                self.reach(SafetyState.DISARMED)
            self.takes()
            self.press_and_hold("#arm")
            self.page.wait_for_timeout(500)
            self.station.peer.for_s(0.3)
        if "train, step" not in self.page.inner_text("#playing"):
            self.page.select_option("#mode", "train")
            self.click("#start")
        self.sees("#playing", "train, step")
        self.until(lambda: self.station.state.source == "policy", "the policy in command")

    def moves_left(self, press, let_go):
        """Held until it moves; a browser that is late on a busy machine loses what it held, and a person takes it anew."""
        for _ in range(6):
            press()
            before = self.station.at[1]
            with contextlib.suppress(AssertionError):
                self.until(lambda: self.station.state.source == "operator" and self.station.at[1] > before + 0.004,  # noqa: B023
                           "motion", 15)
                return
            let_go()
            self.page.wait_for_timeout(1500)  # it must be heard at rest, before a touch counts
        raise AssertionError(f"no motion: {self.page.inner_text('body')} {self.station.state}")

    def push(self):
        """The pad, to the left."""
        self.touch(".pad")
        at = self.page.locator(".pad").first.bounding_box()
        self.page.mouse.move(at["x"] + 3, at["y"] + at["height"] / 2)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        print(f"browser: {browser.version}")
        yield browser
        browser.close()


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
        tab.until(lambda: any(each.kind == EpisodeEvent.CLOSED for each in station.episodes[before:]), "its end")  # noqa: B023
        tab.sees("#playing", wanted)
        tab.armed()
    before = len(station.episodes)
    tab.click("[data-label=rerecord]")
    tab.until(lambda: station.episodes[-1].kind == EpisodeEvent.STARTED and len(station.episodes) > before, "it once more")
    tab.click("#cancel")
    tab.sees("#notes", "no further episode")
    tab.sees("#success", r"\d+ %")


@pytest.mark.parametrize("how", ["a key", "a pad"])
def test_a_held_key_or_pad_moves_and_a_lost_focus_holds_the_arm_and_says_so(tab, station, how):
    tab.armed()
    press, let_go = (tab.push, tab.page.mouse.up) if how == "a pad" else (
        partial(tab.page.keyboard.down, "KeyA"), partial(tab.page.keyboard.up, "KeyA"))
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


def test_a_lost_connection_says_so_disarms_nothing_and_a_held_takeover_holds(tab, station):
    tab.armed()
    tab.moves_left(partial(tab.page.keyboard.down, "KeyA"), partial(tab.page.keyboard.up, "KeyA"))
    tab.context.set_offline(True)  # an open socket falls silent
    tab.reach(SafetyState.HOLD)
    station.rests()
    tab.sees("#banner", "Not connected. Nothing was disarmed")
    assert tab.page.inner_text("#word") == "UNKNOWN" and station.state.state == SafetyState.HOLD
    tab.page.keyboard.press("Space")
    tab.sees("#banner", "THE STOP DID NOT ARRIVE")
    tab.context.set_offline(False)
    tab.page.keyboard.up("KeyA")
    tab.wrong.clear()  # the browser's own words about the network
    tab.sees("#link", "^connected")


def test_no_button_moves_from_under_a_finger_when_the_reason_grows(tab, station):
    tab.armed()
    grow = """words => { document.getElementById("why").textContent = "because ".repeat(words);
                          return document.getElementById("disarm").getBoundingClientRect().y }"""
    assert tab.page.evaluate(grow, 1) == tab.page.evaluate(grow, 60) > 0


def test_a_second_tab_watches_until_it_takes_the_controls(browser, tab, station):
    tab.armed()
    other = Tab(browser, station)
    other.sees("#controls", "has the controls: hold to take them")
    assert other.page.is_disabled("#start") and other.page.is_enabled("#stop") and other.page.is_enabled("#disarm")
    other.click("#controls")
    other.page.wait_for_timeout(300)
    assert "You have" in tab.page.inner_text("#controls"), "a touch by chance takes nothing"
    other.press_and_hold("#controls")
    other.sees("#controls", "You have the controls")
    tab.sees("#controls", "has the controls: hold to take them")
    for each in ("front", "wrist"):
        other.until(lambda: "fps" in other.page.inner_text(f"[data-camera={each}]"), "pictures")  # noqa: B023
    other.context.close()
    assert not other.wrong
