"""`colcon build` and `colcon test` on the packages of the workspace, as a user of ROS runs them."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.machine.workspace import built, colcon

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.timeout(600)]
TESTED = sorted(path.parent.name for path in ROOT.glob("ros_ws/src/*/setup.py"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the tests of each package: its result file's root, after colcon test."""
    clone = built(tmp_path_factory)
    ran = colcon(clone, "test", "--event-handlers", "console_direct+", "--packages-select", *TESTED)
    files = {name: clone / f"ros_ws/build/{name}/pytest.xml" for name in TESTED}
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return {
        name: ElementTree.parse(path).getroot() for name, path in files.items() if path.exists()
    }


def test_every_package_has_tests_and_none_fails(results):
    assert sorted(results) == TESTED
    for name, root in results.items():
        suites = [element for element in root.iter("testsuite")]
        count = {
            key: sum(int(suite.get(key, "0")) for suite in suites)
            for key in ("tests", "failures", "errors")
        }
        assert count["tests"] >= 4 and not count["failures"] + count["errors"], f"{name}: {count}"


def test_the_build_names_no_virtual_environment(tmp_path_factory):
    """So that bloom-release can build the packages: only a script's first line names the Python
    that built it.
    """
    installed = built(tmp_path_factory) / "ros_ws/install"
    listed = subprocess.run(
        ["grep", "-rlI", sys.prefix, *(str(installed / name) for name in TESTED)],
        text=True,
        capture_output=True,
    ).stdout.split()
    for path in map(Path, listed):
        if path.parts[-3] != "lib":  # hooks of colcon itself, which bloom does not keep
            assert path.suffix in (".sh", ".dsv", ".ps1", ".bash", ".zsh"), path
            continue
        assert path.read_text().count(sys.prefix) == 1 and path.read_text().startswith(
            f"#!{sys.prefix}"
        ), path
