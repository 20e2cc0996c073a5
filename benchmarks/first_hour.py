"""Measure a new user's first hour, as far as a program can: the operator's page and a new robot.

    python benchmarks/first_hour.py --json FILE            # axe_violations, keyboard_steps_done, stop_s_at_load
    python benchmarks/first_hour.py --load 100             # this number of busy processes while STOP is pressed
    python benchmarks/first_hour.py --parts robosuite      # the figures of one part

The page needs Chromium (``make browser``) and the extra ``test``; the part robosuite needs
``make simulators``. The page's own server serves it, and a test stands in for the station.

* ``axe_violations`` counts violations of WCAG 2.2 A and AA and of axe-core's best practices, in
  every state, at 1280x800, 390x844 and in dark.
* ``keyboard_steps_done`` counts take, arm, demonstrate, stop, reset and label, by keyboard alone.
* ``mjcf_minutes`` is the time from an arm's MJCF to a policy by `rlinf new robot` and
  `rlinf train`, until an evaluation reaches 90 %. No file is written by hand.
* ``mjcf_success``, ``urdf_success`` and ``robosuite_success`` are on held-out scenes.
* ``stop_s_at_load`` is the longest time from the press of the space bar to the station's e-stop,
  of ``--presses``, beside busy processes of another session, such as a training run.
* ``stop_s_at_load_same_session`` is the same beside busy processes of the browser's own session:
  Linux shares its cores among sessions first.

The benchmark does not cover installation, ROS, or the time of interlock and driver after that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.figures import write  # noqa: E402

LOOKS = (("laptop", "light"), ("laptop", "dark"), ("phone", "light"))
GOAL = 0.9  # success on the held-out scenes of an evaluation
STEPS = ("take", "arm", "demonstrate", "stop", "reset", "label")
BUSY = """
import os, sys
for _ in range(int(sys.argv[1]) - 1):
    if not os.fork():
        break
while True:
    pass
"""


def violations(browser) -> int:
    """Count the violations that axe-core reports in every state and look."""
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
    """Return the STEPS that succeed with the keyboard alone."""
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
    page.shows(state("FAULT", "estop:page"), stopped=True)
    with contextlib.suppress(AssertionError):
        page.focuses("#release")
        page.presses("Enter")
        page.until(lambda: not page.server.stop.pressed)
    page.shows(state("FAULT", "estop:page"))
    step("reset", "#reset", "Enter", lambda: "reset" in page.requests)
    page.close()
    return done


@contextlib.contextmanager
def busy(processes: int, new_session: bool) -> Iterator[None]:
    """Run busy processes during the block, in a new session or in this one."""
    parent = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(processes)],
        process_group=None if new_session else 0,
        start_new_session=new_session,
    )
    try:
        yield
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def slowest_stop_s(browser, load: int, presses: int, new_session: bool) -> float:
    """Return the longest time from a press of the space bar to the published e-stop [s]."""
    from tests.page.rendered import Rendered

    page, slowest = Rendered(browser), 0.0
    station = page.server.station_double
    with busy(load, new_session):
        time.sleep(3.0)
        for _ in range(presses):
            page.server.stop.release()
            page.page.wait_for_timeout(300)
            before, started = len(station.stopped), time.monotonic()
            page.page.keyboard.press("Space")
            while not any(station.stopped[before:]) and time.monotonic() - started < 10.0:
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
            slowest = max(slowest, stopped_at - started)
    page.close()
    return slowest


def train_new_robot(model: Path, folder: Path, *options: str) -> tuple[float, float]:
    """Return the minutes from a model's file to a policy, and its success on held-out scenes.

    The run stops at the first evaluation that reaches GOAL.
    """
    started, out = time.monotonic(), folder / "run"
    rlinf = [sys.executable, "-m", "rlinf_core.cli.main"]
    subprocess.run(
        [*rlinf, "new", "robot", str(model), "--out", str(folder / "robot"), *options], check=True
    )
    train = [*rlinf, "train", str(folder / "robot/recipe.yaml"), "--no-report", "--out", str(out)]
    process, minutes, success, progress = subprocess.Popen(train), 0.0, 0.0, out / "progress.jsonl"
    try:
        while success < GOAL:
            ended = process.poll() is not None
            lines = progress.read_text().splitlines() if progress.is_file() else []
            evaluations = [
                entry["success"] for entry in map(json.loads, lines) if "success" in entry
            ]
            success, minutes = max(evaluations, default=0.0), (time.monotonic() - started) / 60.0
            if ended:
                break
            time.sleep(0.5)
    finally:
        process.terminate()
        process.wait()
    return round(minutes, 1), success


def train_mjcf(folder: Path) -> tuple[float, float]:
    """Train an arm of Menagerie's layout with lengths that no example has."""
    from tests.cli.test_new_robot import ARM6

    model = folder / "arm.xml"
    model.write_text(
        ARM6.read_text()
        .replace('pos="0 0 0.36"', 'pos="0 0 0.30"')
        .replace('0 0 0.06 0 0 0.3"', '0 0 0.06 0 0 0.24"')
    )
    return train_new_robot(model, folder / "mjcf")


def train_urdf(folder: Path) -> tuple[float, float]:
    """Train an arm of a URDF that is in no example."""
    from tests.cli.test_new_robot import fingers, urdf

    return train_new_robot(urdf(folder, extra=fingers()), folder / "urdf")


def train_robosuite(folder: Path) -> tuple[float, float]:
    """Train robosuite's Jaco without its gripper; no example has this arm."""
    import robosuite

    robots = Path(robosuite.__file__).parent / "models/assets/robots"
    return train_new_robot(robots / "jaco/robot.xml", folder / "robosuite", "--name", "jaco")


ARMS = {"mjcf": train_mjcf, "urdf": train_urdf, "robosuite": train_robosuite}


def save(file: Path | None, figures: dict[str, float]) -> None:
    """Write the figures, and keep those of other parts in the file."""
    if file:
        before = json.loads(file.read_text()) if file.is_file() else {}
        write(file, before | figures)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--load", type=int, default=100, help="busy processes while STOP is pressed (default: 100)"
    )
    parser.add_argument(
        "--presses", type=int, default=5, help="number of presses of STOP (default: 5)"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("page", *ARMS),
        default=["page", "mjcf", "urdf", "robosuite"],
        help="parts to measure (default: all)",
    )
    parser.add_argument(
        "--json", type=Path, help="write one flat object there, and keep other parts' figures"
    )
    options = parser.parse_args()
    figures: dict[str, float] = {}
    if "page" in options.parts:
        from tests.page.rendered import chromium

        with chromium() as browser:
            done = keyboard_steps(browser)
            print(f"keyboard: {', '.join(done)} of {', '.join(STEPS)}")
            figures |= {
                "axe_violations": violations(browser),
                "keyboard_steps_done": len(done),
                "stop_s_at_load": round(
                    slowest_stop_s(browser, options.load, options.presses, True), 3
                ),
                "stop_s_at_load_same_session": round(
                    slowest_stop_s(browser, options.load, options.presses, False), 3
                ),
            }
    for name in [name for name in ARMS if name in options.parts]:
        with TemporaryDirectory(prefix="rlinf-hour-") as folder:
            figures[f"{name}_minutes"], figures[f"{name}_success"] = ARMS[name](Path(folder))
        save(options.json, figures)
    save(options.json, figures)
    print(figures)


if __name__ == "__main__":
    main()
