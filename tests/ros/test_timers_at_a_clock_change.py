"""No timer stands still when the machine's clock is set back: each goes by the time that passes."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for top in ("ros_ws/src", "sim_bridges")
    for path in sorted((ROOT / top).rglob("*.py"))
    if "create_timer(" in path.read_text()
]
PLAIN = ("Node", "LifecycleNode")  # rclpy's own, whose timers go by the calendar


def test_there_are_timers_to_look_at():
    assert len(FILES) > 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_timer_of_rclpys_own_node_names_a_steady_clock(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not (
            isinstance(node, ast.ClassDef)
            and any(getattr(base, "id", "") in PLAIN for base in node.bases)
        ):
            continue
        if node.name == "StationNode":  # hands a steady clock on
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "self.create_timer":
                assert "clock" in [keyword.arg for keyword in call.keywords], (
                    f"{path}:{call.lineno}"
                )
