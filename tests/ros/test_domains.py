"""What this folder's tests rely on among themselves."""

import re
from collections import defaultdict
from pathlib import Path

DOMAIN = re.compile(r"domain(?:\(|=|_id=)(\d+)|peer_in\(.*, (\d+)\)|\(\"\w+\", (\d{2,3})\)|DOMAIN, MARK = (\d+)")


def test_no_ros_domain_is_used_by_two_files_which_may_run_at_the_same_time():
    files = defaultdict(set)
    for path in Path("tests").rglob("test_*.py"):
        if "pytest.mark.ros" in (text := path.read_text()):
            for found in DOMAIN.finditer(text):
                files[int(next(filter(None, found.groups())))].add(path.name)
    assert len(files) > 50
    assert not {number: names for number, names in files.items() if len(names) > 1}
