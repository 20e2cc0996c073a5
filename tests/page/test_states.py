"""Every state of the page in a browser: nothing moves, nothing is cut, all of it is accessible, and
by keyboard alone.
"""

import pytest

from tests.page.rendered import (
    FREE,
    HAS_AXE,
    NO_POLICY,
    SIZES,
    STATES,
    Rendered,
    chromium,
    needs_browser,
    state,
)

pytestmark = [needs_browser, pytest.mark.timed, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser):
    page = Rendered(browser)
    yield page
    page.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_moves_when_the_state_changes_and_nothing_is_cut(browser, size, scheme, tmp_path):
    page = Rendered(browser, SIZES[size], scheme)
    page.takes()
    before = None
    for name, says in STATES.items():
        page.shows(says, stopped=name == "stopped")
        boxes = page.measures("boxes")
        page.page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        moved = {
            key: (before[key], box)
            for key, box in boxes.items()
            if before and before.get(key) != box
        }
        assert not moved and (before is None or before.keys() == boxes.keys()), name
        assert not page.measures("cut"), name
        before = boxes
    high = page.page.evaluate("document.documentElement.scrollHeight - innerHeight")
    assert high <= 0 or size == "phone", "all of it is in the window"
    page.close()


@pytest.mark.skipif(
    not HAS_AXE, reason="no axe-core: expected the package axe-playwright-python. Run: make setup"
)
@pytest.mark.parametrize(
    "size, scheme", [("laptop", "light"), ("laptop", "dark"), ("phone", "light")]
)
def test_axe_finds_no_violation_in_any_state(browser, size, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = Rendered(browser, SIZES[size], scheme)
    page.takes()
    for name, says in STATES.items():
        page.shows(says, stopped=name == "stopped")
        violations = Axe().run(page.page).response["violations"]
        assert not [
            (rule["id"], [node["html"][:200] + node["failureSummary"] for node in rule["nodes"]])
            for rule in violations
        ], name
    page.close()


def holds(page, key, is_done):
    """Hold a key until it is heard; a browser on a busy machine may be late, and a person presses
    again.
    """
    for _ in range(10):
        page.presses(key, for_ms=400)
        for _ in range(30):
            if is_done():
                return
            page.say(page.last)
            page.page.wait_for_timeout(60)
    raise AssertionError(f"{key} is not heard")


def test_take_arm_demonstrate_stop_reset_and_label_by_the_keyboard_alone(page):
    page.shows(state())
    page.focuses("#controls")
    page.presses("Enter")
    page.sees("#controls", "You have the controls")
    page.focuses("#arm")
    page.presses("Enter")
    assert page.requests == [], "a press by chance arms nothing"
    page.presses("Enter", for_ms=1200)
    page.until(lambda: page.requests == ["arm"])
    page.shows(state("ARMED"))
    page.focuses("#mode")
    page.page.keyboard.press("End")
    assert page.page.input_value("#mode") == "demonstration"
    page.focuses("#start")
    page.presses("Enter")
    page.until(lambda: "start" in page.requests)
    hands = page.server.station_double.hands
    page.shows(state("ACTIVE", source="operator"))
    holds(page, "w", lambda: any(hand.held and hand.axes.get("x") == 1.0 for hand in hands))
    page.focuses(".pad")
    holds(page, "ArrowLeft", lambda: any(hand.held and hand.axes.get("y") == 1.0 for hand in hands))
    page.focuses("[data-hold='grip+']")
    holds(page, "Enter", lambda: any(hand.held and hand.axes.get("grip") == 1.0 for hand in hands))
    page.focuses("[data-label=success]")
    page.presses("Enter")
    page.until(lambda: "success" in page.requests)
    page.presses("Space")
    page.until(lambda: page.server.stop.pressed)
    page.shows(state("FAULT", "estop:page"), stopped=True)
    page.focuses("#release")
    page.presses("Enter")
    page.until(lambda: not page.server.stop.pressed)
    page.shows(state("FAULT", "estop:page"))
    page.focuses("#reset")
    page.presses("Enter")
    page.until(lambda: "reset" in page.requests)
    assert page.requests == ["arm", "start", "success", "reset"]


def test_keys_can_be_turned_off_and_then_move_nothing(page):
    page.takes()
    page.shows(state("ACTIVE", source="operator"))
    page.focuses("#keyed")
    page.page.click("#keyed")
    page.presses("w", for_ms=300)
    assert not any(hand.held for hand in page.server.station_double.hands)


def test_the_mode_is_one_that_can_be_played_now_and_the_others_say_why_not(page):
    page.takes()
    page.shows(
        state("ARMED", modes={"demonstration": "", "train": NO_POLICY, "evaluate": NO_POLICY})
    )
    assert page.page.input_value("#mode") == "demonstration" and page.page.is_enabled("#start")
    assert page.page.eval_on_selector_all(
        "#mode option:disabled", "all => all.map(each => each.value)"
    ) == ["evaluate", "train"]
    page.sees("#hint", "Evaluate, Learn: no policy has arrived yet")
    page.shows(state("HOLD", "stale_command", modes=FREE))
    assert page.page.is_enabled("#start")
    page.shows(state("HOLD", "operator_silent", modes=FREE))
    assert page.page.is_disabled("#start")
    page.sees("#hint", "Start needs an armed arm")
    page.shows(state("ARMED", modes=FREE))
    assert page.page.input_value("#mode") == "evaluate" and page.page.is_enabled("#start")


@pytest.mark.parametrize(
    "says, words",
    [
        (state(), "Nothing moves until it is armed. Next: take the controls"),
        (
            state("ARMED"),
            "Ready: the next command moves the arm. Next: start an episode, or hold a key or a pad",
        ),
        (
            state("HOLD", "stale_command"),
            "The arm has no commander now, so it rests. This is not a fault.*Next: hold a key",
        ),
        (state("ACTIVE", source="operator", script=True), "The script commands"),
        (state("ACTIVE", source="operator"), "A person commands"),
        (
            state("FAULT", "divergence"),
            r"an obstacle may block it. \(divergence\) Next: remove the obstacle, reset, then arm",
        ),
    ],
)
def test_a_state_says_what_it_is_why_and_what_to_do_next(page, says, words):
    page.shows(says)
    page.sees("#why", words)


def test_a_fault_interrupts_a_screen_reader_and_other_states_wait(page):
    page.shows(state("ARMED"))
    page.sees("#murmured", "ARMED. Ready")
    assert page.page.inner_text("#spoken") == ""
    page.shows(state("FAULT", "divergence"))
    page.sees("#spoken", "FAULT. The arm does not follow its target.*Next: remove the obstacle")
    assert page.page.get_attribute("#spoken", "role") == "alert"


def test_the_drawing_has_object_goal_set_point_and_workspace_and_says_so_in_words(page):
    page.shows(state("ARMED"))
    text = page.page.get_attribute("#box", "aria-label")
    assert (
        text
        == "tool at 45, 5, 20 cm, set-point 46, 6, 20 cm, object 50, -10, 2 cm, goal 40, 10, 10 cm"
    )
    drawn = """canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
        .data.filter((value, place) => place % 4 == 3 && value).length"""
    with_all = page.page.eval_on_selector("#box", drawn)
    bare = state("ARMED")
    page.shows(bare | {"arms": [bare["arms"][0] | {"object": [], "goal": [], "target": []}]})
    assert page.page.eval_on_selector("#box", drawn) != with_all
    for camera in ("simulator", "front"):
        at = page.page.locator(f"[data-camera={camera}] canvas").bounding_box()
        assert at["width"] > 280 and at["height"] > 180, "a person sees something"
    assert page.page.locator("[data-camera=simulator] button").count() == 0, (
        "no reference to align it with"
    )
