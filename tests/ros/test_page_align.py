"""A camera is put back where it was by the operator's page, in a real browser at a running
station.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from rlinf_core.robots.config import robot_folder
from tests.ros.page_browser import Tab, chromium, needs_browser
from tests.ros.page_station import paged

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), needs_browser]
FRONT = "[data-camera=front]"
# Of the picture of before that lies over the camera's: how much of it is seen, whether it comes and
# goes, and its pixels.
OVER = """() => {
  const canvas = document.querySelector("canvas.before"), {width, height} = canvas;
  const pixels = [...canvas.getContext("2d").getImageData(0, 0, width, height).data];
  return {opacity: +canvas.style.opacity, flickers: getComputedStyle(canvas).animationName, width, height, pixels};
}"""


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    """Return a station with the test's own robot folder."""
    folder = tmp_path_factory.mktemp("aligned")
    robots = robot_folder("franka_sim").parent
    for path in (
        *robots.glob("*.yaml"),
        *robots.glob("franka_sim/*.yaml"),
        *robots.glob("franka_sim/*.urdf"),
    ):
        (folder / path.relative_to(robots)).parent.mkdir(exist_ok=True)
        shutil.copy(path, folder / path.relative_to(robots))
    overrides = [f"station.robot={folder}/franka_sim", "station.image_size=[120,160]"]
    with paged(folder, *overrides, domain=145) as station:
        station.folder, station.overrides = folder / "franka_sim", overrides
        yield station


@pytest.fixture(scope="module")
def tab(station):
    with chromium() as browser:
        tab = Tab(browser, station)
        yield tab
        tab.context.close()
        assert not tab.wrong


@pytest.fixture(autouse=True)
def neither_open_nor_taken(tab, station):
    """Also where a test is run again."""
    shutil.rmtree(station.folder / "views", ignore_errors=True)
    if tab.page.is_visible("#align"):
        tab.click("#aligned")
        tab.until(lambda: not tab.page.is_visible("#align"), "both cameras")


def lying_over(tab):
    """How the picture of before is drawn, once it is: the page says what it has found
    before that.
    """
    tab.page.wait_for_selector("canvas.before", state="attached")
    return tab.page.evaluate(OVER)


def test_without_a_picture_of_before_the_page_says_how_to_take_one(tab, station):
    tab.click(f"{FRONT} button")
    tab.sees(
        "#align output",
        r"no reference: expected .*views/front.png.*rlinf camera align, with --write",
    )
    assert not tab.page.is_visible("[data-camera=wrist]"), "one camera at a time"
    assert tab.page.locator("canvas.before").count() == 0
    tab.click("#aligned")
    tab.until(
        lambda: tab.page.is_visible("[data-camera=wrist]") and not tab.page.is_visible("#align"),
        "both cameras",
    )


def test_the_picture_of_before_lies_over_the_live_one_and_how_far_that_moved_is_said(tab, station):
    taken = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "camera",
            "align",
            "demo",
            "front",
            "--write",
            "--set",
            *station.overrides,
            "station.domain_id=145",
            "station.observe_cameras=[front,wrist]",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert taken.returncode == 0, taken.stdout + taken.stderr
    reference = cv2.imread(str(station.folder / "views/front.png"))[..., ::-1]
    tab.click(f"{FRONT} button")
    tab.sees("#align.well output", "aligned: within 1 pixel")

    over = lying_over(tab)
    assert (over["width"], over["height"], over["opacity"], over["flickers"]) == (
        160,
        120,
        0.5,
        "none",
    )
    overlay = np.array(over["pixels"]).reshape(120, 160, 4)
    assert np.array_equal(overlay[..., :3], reference) and (overlay[..., 3] == 255).all()
    tab.page.fill("#align input", "80")
    tab.click("[data-way=flicker]")
    over = lying_over(tab)
    assert (over["opacity"], over["flickers"]) == (0.8, "flicker")
    tab.click("[data-way=edges]")
    over = lying_over(tab)
    clear = np.array(over["pixels"]).reshape(120, 160, 4)[1:-1, 1:-1, 3]
    grey = reference.sum(-1).astype(float)
    strength = np.hypot(grey[1:-1, 2:] - grey[1:-1, :-2], grey[2:, 1:-1] - grey[:-2, 1:-1])
    assert clear[strength == 0].max() == 0 and clear[strength == strength.max()].min() == 255
    assert over["flickers"] == "none" and np.corrcoef(clear.ravel(), strength.ravel())[0, 1] > 0.8

    cv2.imwrite(str(station.folder / "views/front.png"), np.roll(reference, -7, axis=1)[..., ::-1])
    tab.sees("#shift", r"\+[67]\.\d px →")
    tab.sees("#align output", "pixels to the right")
    right, down, _ = (
        float(text.replace("−", "-"))
        for text in re.findall(r"[+−][\d.]+", tab.page.inner_text("#shift"))
    )
    assert right == pytest.approx(7.0, abs=0.5) and down == pytest.approx(0.0, abs=0.5)
    tab.click("#aligned")
    assert tab.page.locator("canvas.before").count() == 0


@pytest.mark.slow
def test_a_picture_of_another_size_is_told(tab, station):
    Path(station.folder / "views").mkdir(exist_ok=True)
    cv2.imwrite(str(station.folder / "views/wrist.png"), np.zeros((64, 64, 3), np.uint8))
    tab.click("[data-camera=wrist] button")
    tab.sees(
        "#align output",
        r"expected a picture of \(64, 64\), the size of the reference, got \(120, 160\)",
    )
    tab.click("#aligned")
