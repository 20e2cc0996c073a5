"""The operator's page in a real browser, operated by a mouse or by fingers."""

import contextlib
import re

from rlinf_msgs.msg import SafetyState

from tests.page.rendered import chromium, needs_browser

__all__ = ["Network", "Phone", "Tab", "chromium", "needs_browser"]


class Tab:
    """An open tab; errors of the browser fail the test."""

    def __init__(self, browser, station, **how):
        self.station, self.wrong = station, []
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "has_touch": True} | how
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # long, because a busy machine must not fail a test
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console", lambda message: message.type == "error" and self.wrong.append(message.text)
        )
        ours = (station.url, station.url.replace("http", "ws"), "blob:")
        self.page.on(
            "request",
            lambda request: request.url.startswith(ours) or self.wrong.append(request.url),
        )
        self.page.goto(station.url)
        self.sees("#link", "connected")

    def until(self, holds, what="it", timeout_s=90):
        """Wait for a condition while station and browser continue."""

        def look():
            self.page.wait_for_timeout(50)
            return holds()

        self.station.peer.spin(
            look, timeout_s, lambda: f"{what}: {self.page.inner_text('body')} {self.station.state}"
        )

    def sees(self, element, text):
        self.until(lambda: re.search(text, self.page.inner_text(element)), f"{text!r} in {element}")

    def reach(self, state):
        self.until(lambda: self.station.state.state == state, f"state {state}")

    def touch(self, element):
        """Press the pointer down on an element."""
        self.until(
            lambda: self.page.is_enabled(element) and self.page.is_visible(element),
            f"{element} enabled",
        )
        at = self.page.locator(element).first.bounding_box()
        self.page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
        self.page.mouse.down()

    def lift(self):
        self.page.mouse.up()

    def click(self, element):
        self.touch(element)
        self.lift()

    def press_and_hold(self, element):
        """Hold the pointer down until the page has counted it as held."""
        self.touch(element)
        self.page.wait_for_timeout(800)
        self.until(lambda: not self.page.query_selector(f"{element}.holding"), f"{element} held")
        self.lift()

    def takes(self):
        """Take the controls: by a click, or by a hold if another page has them.

        Try again if the server answers that the request came too late.
        """
        late = "take: expected within"
        while "You have" not in (text := self.page.inner_text("#controls")):
            (self.press_and_hold if "has the" in text else self.click)("#controls")
            self.until(
                lambda: (
                    "You have" in self.page.inner_text("#controls")
                    or late in self.page.inner_text("#notes")
                ),
                "the controls",
            )

    def armed(self):
        """Take the controls and arm, in an episode of the policy."""
        self.takes()
        self._arm()
        if "train, step" not in self.page.inner_text("#playing"):
            self.page.select_option("#mode", "train")
            self.click("#start")
        self.sees("#playing", "train, step")

        def plays():
            if self._waits():  # an earlier takeover may end only now
                self._arm()
            return self.station.state.source == "policy"

        self.until(plays, "the policy in command")

    def _waits(self):
        """Return whether a hold waits for a person after a takeover without a release."""
        state = self.station.state
        return state.state == SafetyState.HOLD and (
            state.cause == "operator_silent" or "let go" in self.page.inner_text("#enable")
        )

    def _arm(self):
        """Arm like a person after a stop of the arm."""
        if self._waits():
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

    def moves_left(self, press, let_go):
        """Push until the arm moves; release and push again if the browser was late."""
        for _ in range(6):
            press()
            before = self.station.at[1]
            with contextlib.suppress(AssertionError):
                self.until(
                    lambda: (
                        self.station.state.source == "operator"
                        and self.station.at[1] > before + 0.004  # noqa: B023
                    ),  # noqa: B023
                    "motion",
                    15,
                )
                return
            let_go()
            self.page.wait_for_timeout(1500)  # the station must see a rest before the next touch
        raise AssertionError(f"no motion: {self.page.inner_text('body')} {self.station.state}")

    def push(self):
        """Push the pad to the left."""
        self.touch(".pad")
        at = self.page.locator(".pad").first.bounding_box()
        self.page.mouse.move(at["x"] + 3, at["y"] + at["height"] / 2)


NETWORK_SCRIPT = """
    const Real = WebSocket;
    network = {words: true, answers: true, waiting: [], old: []};
    WebSocket = class extends Real {
      constructor(address) {
        super(address);
        this.addEventListener("message", event => {
          if (!network.answers || network.old.includes(this)) event.stopImmediatePropagation();
        });
      }
      send(word) {
        if (!network.words && word.includes('"request"')) network.waiting.push([this, word]);
        else if (network.answers) super.send(word);
      }
      close() { network.old.push(this); }
    };
    network.back = () => {
      Object.assign(network, {words: true, answers: true});
      for (const [socket, word] of network.waiting) Real.prototype.send.call(socket, word);
      for (const socket of network.old) Real.prototype.close.call(socket);
      network.waiting = [];
    };"""


class Network:
    """Delays or drops the messages between a tab and its server. It opens the tab again."""

    def __init__(self, tab):
        self.tab = tab
        tab.page.add_init_script(NETWORK_SCRIPT)
        tab.page.goto(tab.station.url)
        tab.sees("#link", "^connected")

    def holds_up_a_word(self, press):
        """Delay a button's message, then drop all answers, until the page notices."""
        before = self.tab.page.evaluate("network.words = false, network.old.length")
        press()
        self.tab.until(lambda: self.tab.page.evaluate("network.waiting.length"), "a word")
        self.tab.page.evaluate("network.answers = false")
        self.tab.sees("#banner", "Not connected")
        self.tab.until(
            lambda: self.tab.page.evaluate("network.old.length") > before, "the end of its socket"
        )

    def comes_back(self, loses=False):
        """Deliver the delayed messages, or drop them with ``loses``; then connect again."""
        if loses:
            self.tab.page.evaluate("network.waiting = []")
        self.tab.page.evaluate("network.back()")
        self.tab.sees("#link", "^connected")


class Phone(Tab):
    """A tab on a phone, operated by fingers."""

    def __init__(self, browser, station, width, height):
        super().__init__(
            browser,
            station,
            viewport={"width": width, "height": height},
            is_mobile=True,
            device_scale_factor=2,
        )
        self.glass = self.context.new_cdp_session(self.page)

    def finger(self, what, *places):
        """Send a touch event of this type, with (x, y) of each finger that is down."""
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(places)]
        self.glass.send("Input.dispatchTouchEvent", {"type": what, "touchPoints": points})

    def middle(self, element):
        """Return the middle (x, y) of an element, once a finger can reach it."""
        target = self.page.locator(element).first
        target.evaluate("each => each.scrollIntoView({block: 'center'})")
        at = target.bounding_box()
        return at["x"] + at["width"] / 2, at["y"] + at["height"] / 2

    def touch(self, element):
        self.until(
            lambda: self.page.is_enabled(element) and self.page.is_visible(element),
            f"{element} enabled",
        )
        self.finger("touchStart", self.middle(element))

    def lift(self):
        self.finger("touchEnd")

    def push(self):
        """Rest a finger on the pad, then move it to the left."""
        x, y = self.middle(".pad")
        self.finger("touchStart", (x, y))
        self.page.wait_for_timeout(300)
        for step in range(6):
            self.finger("touchMove", (x - 12 * (step + 1), y))
