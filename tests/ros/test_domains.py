"""What this folder's tests rely on among themselves."""

import re
from collections import defaultdict
from pathlib import Path

DOMAIN = re.compile(
    r"domain(?:\(|=|_id=)(\d+)|standing\(.*?, (\d+), "
    r"|peer_in\(.*, (\d+)\)|\(\"\w+\", (\d{2,3})\)|DOMAIN, MARK = (\d+)"
)


def test_no_ros_domain_is_used_by_two_files_which_may_run_at_the_same_time():
    files = defaultdict(set)
    for path in Path("tests").rglob("test_*.py"):
        if "pytest.mark.ros" in (text := path.read_text()):
            for match in DOMAIN.finditer(text):
                files[int(next(filter(None, match.groups())))].add(path.name)
    assert len(files) > 50
    assert not {number: names for number, names in files.items() if len(names) > 1}


def test_timers_of_every_node_of_a_station_go_by_the_time_that_passes():
    """Whatever is done to the clock: they are StationNodes, but for what stands in for people and
    faults in a drill.
    """
    others = {
        path.stem
        for path in Path("ros_ws/src").glob("*/rlinf_*/*.py")
        if "(Node):" in path.read_text()
    }
    assert others == {"spinning", "memory_bus", "drill_operator", "fault_injector"}
