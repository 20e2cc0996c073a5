"""The page in a real browser at a simulated station: every state without a robot."""

import contextlib
import importlib.util
import re
import shutil
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from rlinf_core.page.views import NOBODY_COMMANDS, cause_meaning, next_step
from rlinf_core.robots.operators.device import LABELS
from tests.page.pages import serve

# the first, which has no window, computes least
KINDS = (
    "chromium-headless-shell",
    "chromium",
    "google-chrome",
)
CHROMIUM = next(filter(None, map(shutil.which, KINDS)), None)
needs_browser = pytest.mark.skipif(
    not CHROMIUM, reason=f"no browser: expected one of {', '.join(KINDS)}. Run: make browser"
)


@contextlib.contextmanager
def chromium():
    """Provide the browser of this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        print(f"browser: {browser.version}")
        yield browser
        browser.close()


MEASURE = Path(__file__).with_name("measure.js").read_text()
HAS_AXE = importlib.util.find_spec("axe_playwright_python") is not None
STATION = {
    "station": "station_a",
    "cameras": ["simulator", "front"],
    "aligned": ["front"],
    "labels": LABELS,
    "lease": 15.0,
    "boxes": [{"arm": "", "low": [0.3, -0.2, 0.0], "high": [0.6, 0.2, 0.4]}],
    "joints": False,
    "axes": ["x", "y", "z", "rx", "ry", "rz", "grip"],
}
NO_POLICY = "no policy has arrived yet. A trainer sends one; until then, demonstrate."
FREE = {"demonstration": "", "train": "", "evaluate": ""}
TRAINER = {
    "connected": False,
    "phase": "",
    "updates": 0,
    "episodes": 0,
    "backlog": 0,
    "set_aside": 0,
    "spool_full": 0.0,
}


def state(name="DISARMED", cause="", source="", **changes):
    """Return a message that a station publishes 20 times a second."""
    words = (
        NOBODY_COMMANDS if cause == "stale_command" else (cause_meaning(cause), next_step(cause))
    )
    says = {
        "safety": {
            "state": name,
            "cause": cause,
            "source": source,
            "takeover": "NONE",
            "holds": 3,
            "refused": 0,
            "limited": 12,
        },
        "arms": [
            {
                "name": "",
                "state": name,
                "cause": cause,
                "source": source,
                "pose": [0.45, 0.05, 0.2, 1, 0, 0, 0],
                "object": [0.5, -0.1, 0.02],
                "goal": [0.4, 0.1, 0.1],
                "target": [0.46, 0.06, 0.2],
            }
        ],
        "why": words[0],
        "next": words[1],
        "may_start": name in ("ARMED", "ACTIVE") or cause == "stale_command",
        "modes": FREE,
        "script": False,
        "trouble": "",
        "operator": "",
        "director": False,
        "phase": {},
        "prompt": "",
        "enable": {"held": True, "age": 3.0},
        "heard": True,
        "episode": {
            "playing": name == "ACTIVE",
            "id": "",
            "mode": "train",
            "steps": 12,
            "last": {"id": "", "success": False, "steps": 0},
        },
        "policy_version": 3,
        "inference_p50_ms": 4.2,
        "trainer": TRAINER,
    }
    return says | changes


STATES = {
    "disarmed": state(
        enable={"held": False, "age": 0.0},
        modes={"demonstration": "", "train": NO_POLICY, "evaluate": NO_POLICY},
        policy_version=-1,
    ),
    "armed": state("ARMED"),
    "policy": state("ACTIVE", source="policy"),
    "operator": state("ACTIVE", source="operator"),
    "let go": state("HOLD", "stale_command"),
    "hold": state("HOLD", "operator_silent", enable={"held": False, "age": 0.0}),
    "prompt": state("ARMED", prompt="lay out the scene: then say ready, or press the button"),
    "fault": state("FAULT", "divergence", operator="the space mouse is gone"),
    "stopped": state("FAULT", "estop:page"),
    "a long fault": state(
        "FAULT",
        "robot:cartesian_reflex, joint_velocity_violation, self_collision_avoidance_violation",
    ),
    "a run": state(
        "ACTIVE",
        source="policy",
        director=True,
        phase={"phase": "online", "done": 12, "total": 300},
        trainer=TRAINER
        | {
            "connected": True,
            "phase": "online",
            "backlog": 4,
            "set_aside": 2,
            "spool_full": 0.9,
            "updates": 123456,
        },
    ),
    "unknown": state("ACTIVE", source="policy", heard=False),
}
SIZES = {"laptop": (1280, 800), "desktop": (1920, 1080), "phone": (390, 844)}


class Rendered:
    """A page that is open at its own server, whose state the test sets.

    Attributes:
        requests: what was asked of the station, in order.
    """

    def __init__(self, browser, size=(1280, 800), scheme="light", **how):
        self.server = serve()
        self.requests = self.server.station_double.requests
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, **how
        )
        self.page, self.wrong = self.context.new_page(), []
        self.page.set_default_timeout(60_000)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console", lambda message: message.type == "error" and self.wrong.append(message.text)
        )
        self.server.broadcast("station", STATION, keep=True)
        self.server.broadcast(
            "history",
            {
                "window": 20,
                "demonstrations": 0,
                "success": [0.1, 0.4, 0.8],
                "intervened": [0.5, 0.3, 0.1],
            },
            keep=True,
        )
        self.last = state()
        for _ in range(100):
            with contextlib.suppress(Exception):
                self.page.goto(self.server.url)
                break
            time.sleep(0.1)
        self.until(lambda: self.page.inner_text("#link") == "connected")

    def until(self, holds, what="it"):
        """Wait for a condition while the station continues to publish."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, (what, self.page.inner_text("body"))
            self.say(self.last)
            self.page.wait_for_timeout(60)

    def say(self, says):
        self.last = says
        self.server.broadcast("state", says)

    def shows(self, says, stopped=False):
        """Wait until the page shows a text, with pictures."""
        self.server.stop.pressed = stopped
        self.say(says)
        word = says["safety"]["state"] if says["heard"] else "UNKNOWN"
        self.until(lambda: self.page.inner_text("#word") == word)
        for camera in range(2):
            self.server.show(
                camera, cv2.imencode(".jpg", np.full((360, 480, 3), 90, np.uint8))[1].tobytes()
            )
        for _ in range(4):
            self.say(says)
            self.page.wait_for_timeout(60)

    def measures(self, what):
        """Call a function of measure.js."""
        return self.page.evaluate(f"() => {{ {MEASURE}\n return {what}(); }}")

    def sees(self, element, text):
        self.until(lambda: re.search(text, self.page.inner_text(element)), f"{text!r} in {element}")

    def presses(self, key, for_ms=30):
        """Press a key of the keyboard for some time."""
        self.page.keyboard.down(key)
        end = time.monotonic() + for_ms / 1000
        while time.monotonic() < end:
            self.say(self.last)
            self.page.wait_for_timeout(40)
        self.page.keyboard.up(key)

    def focuses(self, element):
        """Move the focus to an element by the Tab key only."""
        for _ in range(60):
            if self.page.evaluate("element => document.activeElement.matches(element)", element):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"{element}: not reached by Tab")

    def takes(self):
        """Take the controls; try again if the request came too late on a busy machine."""

        def has_them():
            self.say(self.last)
            self.page.wait_for_timeout(100)
            if "You have" not in (text := self.page.inner_text("#controls")) and "Take the" in text:
                self.page.click("#controls")
                self.page.wait_for_timeout(200)
            return "You have" in text

        self.until(has_them, "the controls")

    def close(self):
        self.context.close()
        self.server.close()
        assert not self.wrong, self.wrong
