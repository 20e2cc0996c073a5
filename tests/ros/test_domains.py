"""Assumptions that the tests of this folder share."""

import os
from collections import defaultdict
from pathlib import Path

import pytest

from rlinf_core.core.ros import MAX_DOMAIN
from tests.domains import FIRST, OF_ALL, OF_WORKERS, WITHOUT_ROS, domains_in, loses_domain

TESTS = {
    path: path.read_text()
    for files in (Path("tests").rglob("*.py"), Path("ros_ws/src").glob("*/test/*.py"))
    for path in files
}
# they ask what a shell without one means, and start nothing
WITHOUT = {"test_drill.py", "test_discovery_reports.py", "test_station_client.py"}


def domains_of_files():
    files = defaultdict(set)
    for path, text in TESTS.items():
        # of policies, a domain is one of X-VLA's
        if "policies" not in path.parts and path.name != "test_domains.py":
            for number in domains_in(text):
                files[number].add(path.name)
    for number in (OF_ALL, *OF_WORKERS):
        files[number].add("domains.py")
    return files


def test_no_ros_domain_is_used_by_two_files_which_may_run_at_the_same_time():
    files = domains_of_files()
    assert len(files) > 150
    shared = {number: names for number, names in files.items() if len(names) > 1}
    assert shared.keys() <= {WITHOUT_ROS, MAX_DOMAIN + 1}, shared


def test_no_test_is_in_a_domain_of_people():
    """Else a demo beside the tests meets their stations: it went to FAULT."""
    assert {number: names for number, names in domains_of_files().items() if number < FIRST} == {}
    assert int(os.environ["ROS_DOMAIN_ID"]) in (OF_ALL, *OF_WORKERS)
    for path, text in TESTS.items():
        lost = loses_domain(text)
        assert not lost or path.name in WITHOUT, (
            f"{path}:{lost[0]}: a process in no domain of tests"
        )


@pytest.mark.parametrize(
    "line, domains",
    [
        ("rclpy.init(domain_id=0)", {0}),
        ("peer_in(folder, 3)", {3}),
        ("DOMAIN, MARK = 7, 'a'", {7}),
        ("DOMAINS = 8, 9", {8, 9}),
        ("monkeypatch.setenv('ROS_DOMAIN_ID', '0')", {0}),
        ("{'ROS_DOMAIN_ID': '4'}", {4}),
        ("'station.domain_id=12'", {12}),
        ("CASES = [('a', 5, 1)]\n@parametrize('name, domain, x', CASES)\ndef test(): pass", {5}),
        ("Supervisor(folder, 90)", {90}),
        ("play(folder, 3)", set()),
    ],
)
def test_domains_are_found_however_they_are_given(line, domains):
    assert domains_in(line) == domains


def test_a_process_without_the_variables_of_this_one_is_found():
    assert loses_domain("a()\nrun(c, env={'HOME': '/'})") == [2]
    assert loses_domain("monkeypatch.delenv('ROS_DOMAIN_ID')") == [1]
    assert loses_domain("monkeypatch.setenv('ROS_DOMAIN_ID', '')") == [1]
    assert loses_domain("run(c, env={**os.environ, 'A': 'b'}); run(c, env=os.environ | {})") == []


def test_timers_of_every_node_of_a_station_go_by_the_time_that_passes():
    """Whatever is done to the clock: they are StationNodes, but for what stands in for people and
    faults in a drill.
    """
    others = {
        path.stem
        for path in Path("ros_ws/src").glob("*/rlinf_*/*.py")
        if "(Node):" in path.read_text()
    }
    assert others == {"station_node", "memory_bus", "drill_operator", "fault_injector"}
