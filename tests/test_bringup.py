"""The package rlinf_bringup: the unit of a station that starts at boot, and what the build
installs.
"""

import configparser
import re
import shlex
from pathlib import Path

import pytest

from rlinf_core.launch.graph import TRAINER_STOP_S

ROOT = Path(__file__).resolve().parents[1]
BRINGUP = ROOT / "ros_ws/src/rlinf_bringup"


@pytest.fixture
def unit():
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read(BRINGUP / "systemd/rlinf@.service")
    return parser


def test_the_unit_interrupts_launch_alone_and_leaves_it_the_time_to_end_in_order(unit):
    service = unit["Service"]
    assert (service["KillMode"], service["KillSignal"], service["Restart"]) == (
        "mixed",
        "SIGINT",
        "on-failure",
    )
    assert float(service["TimeoutStopSec"]) > TRAINER_STOP_S
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST" in service["Environment"].split()
    limits = unit["Unit"]
    assert int(limits["StartLimitBurst"]) * float(service["RestartSec"]) < float(
        limits["StartLimitIntervalSec"]
    )


def test_the_unit_starts_a_launch_file_of_ours_with_arguments_that_it_has(unit):
    words = shlex.split(shlex.split(unit["Service"]["ExecStart"])[2])
    package, file = words[words.index("rlinf_bringup") :][:2]
    assert package == BRINGUP.name and (ROOT / "launch" / file).is_file()
    arguments = re.findall(r'^    "(\w+)": \(', (ROOT / "launch/station.py").read_text(), re.M)
    example = dict(
        line.split("=", 1)
        for line in (BRINGUP / "systemd/station.conf").read_text().splitlines()
        if line and not line.startswith("#")
    )
    given = [
        word.split(":=")[0] for word in [*words, *example["ARGUMENTS"].split()] if ":=" in word
    ]
    assert set(given) == {"run_dir", "recipe"} and set(given) <= set(arguments)
    assert set(re.findall(r"\$(\w+)", unit["Service"]["ExecStart"])) <= set(example)


@pytest.mark.parametrize(
    "link, target",
    [
        ("rlinf_bringup/launch", "launch"),
        ("rlinf_bringup/robots", "robots"),
        ("rlinf/launch", "launch"),
        ("rlinf_description/layouts", "configs"),
    ],
)
def test_launch_files_and_robots_are_in_one_place(link, target):
    assert (ROOT / "ros_ws/src" / link).is_symlink() and (
        ROOT / "ros_ws/src" / link
    ).resolve() == ROOT / target
