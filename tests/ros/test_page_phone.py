"""The operator's page on phones and tablets, in a real browser with real touches."""

import pytest
from rlinf_msgs.msg import SafetyState

from tests.ros.page_browser import Phone, chromium, needs_browser
from tests.ros.page_station import paged

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), needs_browser]
SIZES = {
    "small phone": (360, 640),
    "phone": (390, 844),
    "large phone": (430, 932),
    "phone on its side": (844, 390),
    "tablet": (820, 1180),
    "tablet on its side": (1180, 820),
    "small tablet": (768, 1024),
    "its side": (1024, 768),
    "laptop": (1280, 800),
}
# Of what can be pressed and is shown: its size, whether it lies within the window and its own words
# within it, and what a finger would touch in its middle once one has scrolled there.
LOOK = """() => [...document.querySelectorAll("button, select, .pad, input")]
  .filter(a => a.checkVisibility({visibilityProperty: true})).map(each => {
  each.scrollIntoView({block: "center"});
  const at = each.getBoundingClientRect(), x = at.x + at.width / 2, y = at.y + at.height / 2;
  const hit = document.elementFromPoint(x, y);
  return {name: each.id || each.dataset.label || each.dataset.hold || each.dataset.way || each.dataset.x, wide: at.width,
          high: at.height, left: at.left, beyond: at.right - innerWidth, cut: each.scrollWidth - each.clientWidth,
          hit: hit === each || each.contains(hit)};
})"""
# Which parts lie over others, or are cut off.
OVERLAP = """() => {
  const parts = [...document.querySelectorAll("main > section")].filter(a => a.checkVisibility());
  const at = new Map(parts.map(each => [each, each.getBoundingClientRect()])), found = [];
  for (const one of parts) {
    if (one.scrollHeight > one.clientHeight + 1) found.push([one.id, "cut", one.scrollHeight, one.clientHeight]);
    for (const other of parts) {
      const a = at.get(one), b = at.get(other);
      const meet = a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
      if (one.id < other.id && meet) found.push([one.id, other.id]);
    }
  }
  return found;
}"""
# Wherever one has scrolled to, STOP is what a finger touches there, whole.
STOP = """() => {
  const missed = [], most = document.documentElement.scrollHeight - innerHeight;
  for (let y = 0; y <= most + 100; y += 50) {
    scrollTo(0, y);
    const at = document.getElementById("stop").getBoundingClientRect();
    const hit = document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2);
    const whole = at.top >= 0 && at.bottom <= innerHeight && at.right <= innerWidth;
    if (hit?.id !== "stop" || !whole) missed.push([y, at.top, hit?.id]);
  }
  scrollTo(0, 0);
  return missed;
}"""


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    with paged(tmp_path_factory.mktemp("phoned"), domain=143) as station:
        yield station


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(
    params=[
        name
        if name in ("small phone", "phone on its side")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in SIZES
    ]
)
def sized(request, browser, station):
    phone = Phone(browser, station, *SIZES[request.param])
    yield phone
    phone.context.close()
    assert not phone.wrong


@pytest.fixture
def phone(browser, station):
    phone = Phone(browser, station, *SIZES["phone"])
    yield phone
    phone.context.close()
    assert not phone.wrong


def fits(phone):
    """Every control can be reached, is large enough for a finger, and says all it has to say; STOP
    is always there.
    """
    # of any
    phone.page.evaluate(
        "document.querySelectorAll('.pad, [data-hold]').forEach(each => { each.hidden = false })"
    )
    controls = phone.page.evaluate(LOOK)
    for control in controls:
        assert min(control["wide"], control["high"]) >= 44, control
        assert (
            control["left"] >= 0
            and control["beyond"] <= 0
            and control["cut"] <= 0
            and control["hit"]
        ), control
    assert not phone.page.evaluate(STOP)
    assert not phone.page.evaluate(OVERLAP)
    assert phone.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return {control["name"] for control in controls}


def test_every_control_is_within_a_fingers_reach_in_every_state(sized, station):
    sized.armed()
    assert {
        "stop",
        "controls",
        "disarm",
        "start",
        "cancel",
        "mode",
        "success",
        "grip+",
        "-y",
    } <= fits(sized)
    sized.click("[data-camera=front] button")
    assert {"blend", "flicker", "edges", "aligned"} <= fits(sized)
    sized.click("#aligned")
    sized.click("#stop")
    station.reach(SafetyState.FAULT, "estop:page")
    sized.until(
        lambda: sized.page.is_visible("#release") and sized.page.is_visible("#reset"),
        "what ends it",
    )
    assert {"stop", "controls", "release", "reset"} <= fits(sized)


def test_two_fingers_zoom_nothing_away(phone):
    x, y = phone.middle("#arm-view")
    phone.finger("touchStart", (x - 40, y), (x + 40, y))
    for step in range(10):
        phone.finger("touchMove", (x - 40 - 12 * step, y), (x + 40 + 12 * step, y))
        phone.page.wait_for_timeout(20)
    phone.lift()
    phone.page.wait_for_timeout(300)
    assert phone.page.evaluate("visualViewport.scale") == 1


def test_two_fingers_that_are_lifted_again_arm_nothing(phone, station):
    phone.armed()
    phone.click("#disarm")
    phone.reach(SafetyState.DISARMED)
    phone.until(
        lambda: phone.page.is_enabled("#arm") and phone.page.is_visible("#arm"),
        "the button that arms",
    )
    x, y = phone.middle("#arm")
    phone.finger("touchStart", (x - 12, y), (x + 12, y))
    phone.lift()
    phone.page.wait_for_timeout(1500)
    station.peer.for_s(0.3)
    assert station.state.state == SafetyState.DISARMED


def test_a_finger_that_scrolls_past_a_pad_moves_nothing_and_one_that_rests_there_does(
    phone, station
):
    phone.armed()
    # a browser that is late on a busy machine takes the finger for one that rests
    for _ in range(8):
        x, y = phone.middle(".pad")
        before, scrolled = len(station.teleop), phone.page.evaluate("scrollY")
        phone.finger("touchStart", (x, y))
        for step in range(1, 6):
            phone.finger("touchMove", (x, y - 25 * step))
        rested = phone.page.locator(".pad.held").count()
        phone.page.wait_for_timeout(400)
        phone.lift()
        station.peer.for_s(0.5)
        if not rested:
            break
    assert phone.page.evaluate("scrollY") > scrolled + 50, "it scrolled"
    assert len(station.teleop) == before, "nobody took over"
    phone.until(lambda: station.state.source == "policy", "the policy to command")
    phone.moves_left(phone.push, phone.lift)
    phone.sees("#hand", "you command")
    scrolled = phone.page.evaluate("scrollY")
    for step in range(12):
        phone.finger("touchMove", (x - 72, y - 10 * (step + 1)))
        phone.page.wait_for_timeout(16)
    assert phone.page.evaluate("scrollY") == scrolled, "it moves the arm alone"
    assert phone.page.locator(".pad.held").count() == 1
    phone.lift()


def test_a_lifted_finger_lets_go_and_one_that_is_cut_off_holds_the_arm(phone, station):
    phone.armed()
    phone.moves_left(phone.push, phone.lift)
    phone.lift()
    phone.until(lambda: station.state.source == "policy", "the policy to go on")
    command_count = len(station.teleop)
    station.peer.for_s(1.0)
    assert len(station.teleop) == command_count and station.state.source == "policy", (
        "nobody commands but the policy"
    )
    phone.moves_left(phone.push, phone.lift)
    phone.finger("touchCancel")  # a call comes in
    phone.reach(SafetyState.HOLD)
    phone.sees("#banner", "Your takeover ended: the touch was cut. The arm is held")
    station.rests()
