"""Repeat the safety drill, half of the time beside two hogs: one computes, one writes and syncs.

    python benchmarks/drills.py --runs 10 --json benchmarks/results/drills.json

Every run is `rlinf drill` in its own run folder, on the same disk as the hog's file. The figures are
the number of requirements and traps that held, the ones that did not, and the longest silence
between two targets in any row. The benchmark does not cover another machine, a real-time kernel, or
a robot with mass.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from benchmarks.interlock import burn, running, sync  # noqa: E402

DOMAIN = 64


def run_drill(folder: Path, busy: bool) -> dict[str, object]:
    """Run one drill and return its report."""
    hogs = (
        [
            multiprocessing.Process(target=burn, daemon=True),
            multiprocessing.Process(target=sync, args=(folder,), daemon=True),
        ]
        if busy
        else []
    )
    report = folder / "drill.json"
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "drill",
        "--json",
        report,
        "--out",
        folder / "run",
        "--domain",
        str(DOMAIN),
    ]
    with running(hogs):
        ended = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if not report.exists():
        raise SystemExit(
            f"the drill ended with {ended.returncode} and wrote no report:\n"
            f"{ended.stdout}{ended.stderr}"
        )
    return json.loads(report.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error(f"--runs: expected at least 1, got {arguments.runs}")
    figures: dict[str, object] = {"runs": arguments.runs}
    for run in range(arguments.runs):
        busy = run >= (arguments.runs + 1) // 2
        folder = Path(tempfile.mkdtemp(prefix="rlinf-drills-"))
        report = run_drill(folder, busy)
        if report["not_held"]:
            print(f"files of this run: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        silence = report["longest_silence_ms"]
        figures |= {
            f"run{run}_busy": busy,
            f"run{run}_requirements_held": report["requirements_held"],
            f"run{run}_traps_held": report["traps_held"],
            f"run{run}_longest_silence_ms": silence,
            f"run{run}_not_held": "; ".join(report["not_held"]),
        }
        print(
            f"{run}: {'beside hogs' if busy else 'alone':12} requirements "
            f"{report['requirements_held']} traps {report['traps_held']} longest silence "
            f"{silence:.1f} ms {report['not_held'] or ''}",
            flush=True,
        )
        if arguments.json:
            write(arguments.json, figures)
    for key in ("requirements_held", "traps_held"):
        figures[f"fewest_{key}"] = min(figures[f"run{run}_{key}"] for run in range(arguments.runs))
    for name, busy in (("alone", False), ("beside_hogs", True)):
        if silences := [
            silence
            for run in range(arguments.runs)
            if figures[f"run{run}_busy"] == busy
            and math.isfinite(silence := figures[f"run{run}_longest_silence_ms"])
        ]:
            figures[f"longest_silence_ms_{name}"] = max(silences)
    if arguments.json:
        write(arguments.json, figures)


if __name__ == "__main__":
    main()
