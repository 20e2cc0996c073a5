"""Write docs/images/page_*.jpg: the operator's page in each of its states, in Chromium.

    make browser && python scripts/screenshots.py [--only hold fault]

Foxglove and RViz are not opened, as they need a screen. docs/howto/operator_page.md lists the
panels of both layouts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.ros.page_browser import Tab

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from rlinf_core.core.ros import ros_environment  # noqa: E402

DOMAIN, READY = 68, "RLINF_SCREENSHOTS"
IMAGES = ROOT / "docs/images"
CAMERAS = "station.image_size=[128,128]"


def active(tab: Tab) -> None:
    """Arm the station, so that the policy moves the arm."""
    tab.armed()


def takeover(tab: Tab) -> None:
    """Move the arm as a person with a pad."""
    tab.armed()
    tab.moves_left(tab.push, tab.page.mouse.up)


def hold(tab: Tab) -> None:
    """Take the focus from the window during a takeover."""
    takeover(tab)
    tab.page.evaluate("window.dispatchEvent(new Event('blur'))")
    tab.sees("#banner", "Your takeover ended")


def fault(tab: Tab) -> None:
    """Press STOP."""
    tab.armed()
    tab.click("#stop")
    tab.sees("#why", "The stop on this page is pressed")


def disarmed(tab: Tab) -> None:
    """Disarm the station."""
    tab.armed()
    tab.click("#disarm")
    tab.sees("#word", "DISARMED")


def disconnected(tab: Tab) -> None:
    """Cut the network."""
    tab.armed()
    tab.context.set_offline(True)
    tab.sees("#banner", "Not connected")


STATES = {
    "active": active,
    "takeover": takeover,
    "hold": hold,
    "fault": fault,
    "disarmed": disarmed,
    "disconnected": disconnected,
}


def main() -> None:
    """Bring the page into each state and take its picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=STATES, default=list(STATES))
    options = parser.parse_args()
    if READY not in os.environ:  # ROS's libraries are found at the start of a process alone
        os.execve(
            sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN) | {READY: "1"}
        )
    from tests.ros.page_browser import Tab, chromium
    from tests.ros.page_station import paged

    with (
        tempfile.TemporaryDirectory() as folder,
        paged(Path(folder), CAMERAS, domain=DOMAIN) as station,
        chromium() as browser,
    ):
        for name in options.only:
            tab = Tab(browser, station, viewport={"width": 1100, "height": 760})
            STATES[name](tab)
            tab.page.wait_for_timeout(700)
            tab.page.screenshot(path=IMAGES / f"page_{name}.jpg", type="jpeg", quality=70)
            print(f"page_{name}.jpg", flush=True)
            tab.page.mouse.up()
            tab.context.set_offline(False)
            tab.context.close()


if __name__ == "__main__":
    main()
