"""The first hour of a new user, as far as a program can live it: the operator's page, by axe-core
and by keyboard alone.

    python benchmarks/first_hour.py --json FILE            # axe_violations, keyboard_steps_done, stop_s_at_load
    python benchmarks/first_hour.py --load 100             # so many busy processes while STOP is pressed

Needs Chromium (``make browser``) and the extra ``test``. The page is served by its own server; a
test stands for the station.
``axe_violations`` are those of WCAG 2.2 A and AA and of axe-core's best practices, in every state,
at 1280x800, 390x844 and in dark. ``keyboard_steps_done`` counts take, arm, demonstrate, stop, reset
and label, each done by the keyboard alone. ``mjcf_minutes`` are from an arm's MJCF to a policy by
`rlinf new robot` and `rlinf train`; ``mjcf_success`` and ``urdf_success`` are on held-out scenes.
``stop_s_at_load`` is the longest time from the press of the space bar to the station's e-stop, of
``--presses``. It does not cover installation, ROS, or what the interlock and a driver take after
that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
LOOKS = (("laptop", "light"), ("laptop", "dark"), ("phone", "light"))
STEPS = ("take", "arm", "demonstrate", "stop", "reset", "label")


def violations(browser) -> int:
    """Found by axe-core in every state and look."""
    from axe_playwright_python.sync_playwright import Axe

    from tests.page.rendered import SIZES, STATES, Rendered

    count = 0
    for size, scheme in LOOKS:
        page = Rendered(browser, SIZES[size], scheme)
        page.takes()
        for name, says in STATES.items():
            page.shows(says, stopped=name == "stopped")
            for violation in Axe().run(page.page).response["violations"]:
                count += len(violation["nodes"])
                print(f"{size} {scheme} {name}: {violation['id']}: {violation['help']}")
        page.close()
    return count


def keyboard_steps(browser) -> list[str]:
    """Those of STEPS that the keyboard alone does."""
    from tests.page.rendered import Rendered, state

    page, done = Rendered(browser), []

    def step(name: str, element: str, key: str, holds, for_ms: int = 30) -> None:
        with contextlib.suppress(AssertionError):
            if element:
                page.focuses(element)
            page.presses(key, for_ms)
            page.until(holds)
            done.append(name)

    page.shows(state())
    step("take", "#controls", "Enter", lambda: "You have" in page.page.inner_text("#controls"))
    step("arm", "#arm", "Enter", lambda: "arm" in page.requests, 1200)
    page.shows(state("ARMED"))
    step("demonstrate", "#start", "Enter", lambda: "start" in page.requests)
    page.shows(state("ACTIVE", source="operator"))
    step("label", "[data-label=success]", "Enter", lambda: "success" in page.requests)
    step("stop", "", "Space", lambda: page.server.stop.pressed)
    page.server.stop.release()
    page.shows(state("FAULT", "estop:page"))
    step("reset", "#reset", "Enter", lambda: "reset" in page.requests)
    page.close()
    return done


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute meanwhile."""
    children = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def slowest_stop_s(browser, load: int, presses: int) -> float:
    """The longest of several presses of the space bar, until the station's e-stop is published."""
    from tests.page.rendered import Rendered

    page, slowest = Rendered(browser), 0.0
    station = page.server.station_double
    with busy(load):
        time.sleep(3.0)
        for _ in range(presses):
            page.server.stop.release()
            page.page.wait_for_timeout(300)
            before, begun = len(station.stopped), time.monotonic()
            page.page.keyboard.press("Space")
            while not any(station.stopped[before:]) and time.monotonic() - begun < 10.0:
                time.sleep(0.002)
            stopped_at = next(
                (
                    at
                    for at, is_stopped in zip(
                        station.beats[before:], station.stopped[before:], strict=False
                    )
                    if is_stopped
                ),
                time.monotonic(),
            )
            slowest = max(slowest, stopped_at - begun)
    page.close()
    return slowest


def learned(model: Path, folder: Path) -> tuple[float, float]:
    """Minutes from a model's file to a policy, and its success on held-out scenes; nothing is
    written by hand.
    """
    from rlinf_core.cli.main import main as rlinf

    begun = time.monotonic()
    for command in (
        ["new", "robot", str(model), "--out", str(folder / "robot")],
        ["train", str(folder / "robot/recipe.yaml"), "--no-report", "--out", str(folder / "run")],
    ):
        if rlinf(command):
            raise SystemExit(f"rlinf {' '.join(command)}: expected success")
    lines = (folder / "run/progress.jsonl").read_text().splitlines()
    evaluations = [entry["success"] for entry in map(json.loads, lines) if "success" in entry]
    return (time.monotonic() - begun) / 60.0, evaluations[-1]


def arms() -> dict[str, float]:
    """An arm of Menagerie's layout and one of a URDF that are in no example, each to a policy that
    reaches.
    """
    from tests.cli.test_new_robot import ARM6, fingers, urdf

    with TemporaryDirectory(prefix="rlinf-hour-") as name:
        folder = Path(name)
        changed = folder / "arm.xml"  # the example's arm with other lengths
        changed.write_text(
            ARM6.read_text()
            .replace('pos="0 0 0.36"', 'pos="0 0 0.30"')
            .replace('0 0 0.06 0 0 0.3"', '0 0 0.06 0 0 0.24"')
        )
        minutes, success = learned(changed, folder / "mjcf")
        return {
            "mjcf_minutes": round(minutes, 1),
            "mjcf_success": success,
            "urdf_success": learned(urdf(folder, extra=fingers()), folder / "urdf")[1],
        }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--load", type=int, default=100, help="busy processes while STOP is pressed (default: 100)"
    )
    parser.add_argument("--presses", type=int, default=5, help="of STOP (default: 5)")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    from benchmarks.figures import write
    from tests.page.rendered import chromium

    with chromium() as browser:
        done = keyboard_steps(browser)
        figures = {
            "axe_violations": violations(browser),
            "keyboard_steps_done": len(done),
            "stop_s_at_load": round(slowest_stop_s(browser, options.load, options.presses), 3),
        }
    figures |= arms()
    print(f"keyboard: {', '.join(done)} of {', '.join(STEPS)}")
    print(figures)
    if options.json:
        write(options.json, figures)


if __name__ == "__main__":
    main()
