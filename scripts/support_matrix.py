"""Write docs/support_matrix.md from docs/support_matrix.yaml.

    python scripts/support_matrix.py

A driver, camera, gripper, device, simulator, policy or algorithm of the code without a row is an
error, and so is a test or benchmark that does not exist.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from rlinf_core.algorithms import algorithms  # noqa: E402
from rlinf_core.policies import kinds  # noqa: E402
from rlinf_core.robots.cameras import cameras  # noqa: E402
from rlinf_core.robots.drivers import drivers  # noqa: E402
from rlinf_core.robots.grippers import grippers  # noqa: E402
from rlinf_core.robots.operators import operators  # noqa: E402
from sim_bridges.core.interface import simulators  # noqa: E402

NAMES = {
    "drivers": drivers,
    "cameras": cameras,
    "grippers": grippers,
    "operators": operators,
    "simulators": simulators,
    "policies": kinds,
    "algorithms": algorithms,
}
TABLE = ["| part | tested on | date | test or command | not tested |", "|---|---|---|---|---|"]
RAN = {
    "hardware": "hardware",
    "protocol": "vendor protocol in simulation",
    "twin": "software twin",
    "simulator": "here, by hand",
    "stand-in": "stand-in",
    "weights": "random weights",
    "CI": "CI",
    False: "not run",
}
HEAD = """# Support matrix

This page says what was tested, on what, and when. **No row means a physical arm.**
`scripts/support_matrix.py` writes it from `docs/support_matrix.yaml`.

| tested on | meaning |
|---|---|
| CI | each change runs it, in simulation |
| here, by hand | it ran on the development machine with the real package |
| hardware | it ran on the real device |
| vendor protocol in simulation | the vendor's own client talked to a simulated device |
| software twin | a process of ours stands in for driver and device |
| stand-in | an imitation of the package's interface; the package itself did not run |
| random weights | the architecture ran; published weights did not |
| not run | only its files or parts were checked |
"""


def page() -> str:
    """Return the Markdown of the matrix."""
    lines = [HEAD]
    for group in yaml.safe_load((ROOT / "docs/support_matrix.yaml").read_text()):
        named = {row["name"] for row in group["rows"] if "name" in row}
        expected = set(NAMES[group["kind"]]()) if "kind" in group else set()
        if named != expected:
            raise SystemExit(
                f"docs/support_matrix.yaml: {group['group']}: expected rows for "
                f"{sorted(expected)}, got {sorted(named)}"
            )
        lines += [f"## {group['group']}", "", *TABLE]
        lines += [
            f"| {row['title']} | {RAN[row['ran']]} | {row['date']} | `{evidence(row['by'])}` | "
            f"{row['open']} |"
            for row in group["rows"]
        ]
        lines.append("")
    return "\n".join(lines)


def evidence(text: str) -> str:
    """Return the command of a benchmark, or the text unchanged.

    A path in the text must exist.
    """
    if "/" in text and not (ROOT / text).exists():
        raise SystemExit(
            f"docs/support_matrix.yaml: expected a test, a benchmark or a command, got '{text}'"
        )
    return f"python {text}" if text.startswith("benchmarks/") else text


if __name__ == "__main__":
    (ROOT / "docs/support_matrix.md").write_text(page())
