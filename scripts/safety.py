"""Write docs/reference/safety_evidence.md: the interlock's requirements with tests and evidence.

    python scripts/safety.py [--drill drill.json]

Runs the safety tests, reads what the fuzzer found and the drill's rows (both in
benchmarks/results), and puts all of it in one table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = [
    "tests/interlock",
    "tests/ros/test_interlock_node.py",
    "tests/ros/test_interlock_attacks.py",
    "tests/ros/test_two_interlocks.py",
    "tests/ros/test_killed_processes.py",
    "tests/ros/test_operator.py",
    "-k",
    "interlock or s18 or s26",
]
REQUIREMENTS = {
    "S1": "reaction: from bad or missing input to a safe output one tick and 2 ms at p99",
    "S2": "stale command: hold; nothing is extrapolated past a chunk's end",
    "S3": "stale state: hold after 50 ms, latched fault after 500 ms",
    "S4": "clocks: ages from receive time; a stamp more than 50 ms ahead is refused; a clock that "
    "steps moves nothing",
    "S5": "validity: a bad sample is refused with a hold in the same tick, leaves no trace; three "
    "in a second latch",
    "S6": "order and authority: duplicates and late arrivals dropped; a new session needs arming; "
    "one commander at a time",
    "S7": "jumps: too fast is limited and counted, ten times too fast refused",
    "S8": "envelope: workspace, cone, joint range, speed, acceleration and jerk at every tick, for "
    "every input",
    "S9": "default envelope for learning on an FR3",
    "S10": "contact: 20 N or 5 Nm hold, 40 N latches, two samples",
    "S11": "collision (optional): slower within 2 cm, stop at contact, stop when the input is "
    "silent",
    "S12": "the whole group stops along its path within its jerk, then holds by publishing every "
    "tick, as long as the arm "
    "is there",
    "S13": "states: the most severe demand wins; a fault ends by a reset that names it, and a "
    "reset moves nothing",
    "S14": "e-stop: the OR of all sources, each a heartbeat; survives a restart of the interlock",
    "S15": "enable: a held enable or a lease of at most 60 s; let go counts without a lease too",
    "S16": "takeover: the operator in the same tick; back through a pause after a release; an "
    "operator who falls silent "
    "without one drops the enable",
    "S17": "the robot's own faults are faults here",
    "S18": "death or hang of any part: hold; of the interlock: the robot side stops by its own "
    "timeout",
    "S19": "configuration: checked, frozen while armed but for tightening, its hash in every "
    "episode",
    "S20": "evidence: every intervention on a topic and in the recording; the half minute before a "
    "fault is kept",
    "S21": "the arm's place: another frame or unit, a jump or a place not yet seen at rest is no "
    "state; the set-point goes "
    "to the arm within its limits, or at once where nothing follows it; resting far from the arm "
    "it is a fault",
    "S22": "an input that a limit needs (wrench, joints, gripper, pose) is alive, or nothing is "
    "armed and nothing moves",
    "S23": "one interlock, one commander: authority is of the topic; a second publisher of "
    "commands or of an e-stop is a "
    "fault by name, of any other input a hold, but for joint_states and episode, on which several "
    "may speak; a command of two publishers counts for nothing",
    "S24": "limits hold by measured time: after a stall motion begins from rest, and stamps are "
    "never closer than a tick",
    "S25": "no request, message, log line or disk ends or delays the process that holds the arm",
    "S26": "arming a real arm is a person's act each time; a disarming stands until a person arms "
    "again",
    "S27": "several arms: one moves only while all may; a fault or hold of one holds the others a "
    "tick later, its death "
    "after the time of a needed input; the e-stops are those of all",
    "trap 1": "a heartbeat lives while the thread that commands hangs (PX4 offboard)",
    "trap 2": "a NaN is ignored, or passes a clip and poisons the memory (Nav2, LeRobot, HIL-SERL)",
    "trap 3": "resuming replays an old far target (MoveIt Servo)",
    "trap 4": "re-arming jumps because the controller catches up (PR2)",
    "trap 5": "reflexes cleared automatically before every command (HIL-SERL, RLinf)",
    "trap 6": "one joint halted alone turns the tool (MoveIt Servo)",
    "trap 7": "limits off by default (LeRobot, JTC, libfranka)",
    "trap 8": "Euler angles wrap, rotation unbounded (HIL-SERL, LeRobot)",
    "trap 9": "the rest of a chunk plays after the episode (RLinf)",
    "trap 10": "reset motion goes round the guard (RLinf)",
    "trap 11": "a camera that stalls blocks the control loop with the arm live (RLinf, HIL-SERL)",
    "trap 12": "the software that is stopped owns the stop (Spot wrapper)",
    "trap 13": "one wrong measured pose becomes a target (this interlock, until 2026-11)",
    "trap 14": "who commands is a word in the message (this interlock, until 2026-11)",
    "trap 15": "the demo's script arms a real arm (this project's launch file, until 2026-11)",
    "trap 16": "limits hold per tick and not per second (this interlock, until 2026-11)",
    "trap 17": "a parameter or a lifecycle request ends the guard (this interlock, until 2026-11)",
    "trap 18": "a pressed e-stop is released by another publisher (this interlock, until 2026-11)",
    "trap 19": "the control thread waits for its log's disk (this interlock, until 2026-11)",
}


HEAD = """# Evidence of the safety requirements

[The interlock](../safety.md) keeps these requirements. Each row names the test and its last value.
The tests are in `tests/interlock` (the core, without ROS) and `tests/ros` (the node on the
middleware). The drill ran on two cores without a real-time kernel. `python scripts/safety.py`
writes this page.

"""


def main() -> None:
    """Run the tests, collect the results and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drill", type=Path, default=ROOT / "benchmarks/results/drill.json")
    parser.add_argument(
        "--fuzz",
        type=Path,
        default=ROOT / "benchmarks/results/fuzz_interlock.json",
        help="what benchmarks/fuzz_interlock.py found",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        evidence = Path(folder) / "evidence.json"
        subprocess.run(
            [
                str(ROOT / "scripts/run_tests.sh"),
                "-q",
                "-m",
                "not slow",
                f"--evidence={evidence}",
                *TESTS,
            ],
            cwd=ROOT,
            check=True,
        )
        measured = json.loads(evidence.read_text()) + [fuzzed(json.loads(options.fuzz.read_text()))]
    drill = json.loads(options.drill.read_text())
    (ROOT / "docs/reference/safety_evidence.md").write_text(page(measured, drill))
    sys.stdout.write("docs/reference/safety_evidence.md written\n")


def fuzzed(figures: dict) -> dict[str, str]:
    """Return the fuzzer's result as a line of evidence."""
    nearest = ", ".join(
        f"{name} {figures[f'worst_{name}']:+.1e}"
        for name in ("position", "speed", "acceleration", "jerk")
        if f"worst_{name}" in figures
    )
    when = f"{figures['when']}: " if "when" in figures else ""
    return {
        "requirement": "S8",
        "test": "benchmarks::benchmarks/fuzz_interlock.py",
        "measured": f"{when}{figures['ticks']:,} ticks, {figures['violations']} violations, "
        f"{figures['exceptions']} "
        f"exceptions; nearest to its limit: {nearest}",
    }


def page(measured: list[dict[str, str]], drill: dict) -> str:
    """Return the page's Markdown."""
    by_test: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for entry in measured:
        name = entry["test"].split("::")[1].split("[")[0]
        by_test[entry["requirement"]][name].append(entry["measured"])
    lines = ["| | requirement | test | measured |", "|---|---|---|---|"]
    for number, text in REQUIREMENTS.items():
        cells = [f"| {number} | {text} |"]
        for name, values in by_test[number].items():
            lines.append(
                f"{cells.pop() if cells else '| | |'} `{name}` | "
                f"{'; '.join(dict.fromkeys(values))} |"
            )
        for row in drill["rows"]:
            if row["requirement"] == number or number == f"trap {row['trap']}":
                cell = ("" if row["held"] else "**not held**: ") + row["measured"].replace(
                    "<", "&lt;"
                )
                lines.append(f"{cells.pop() if cells else '| | |'} drill: {row['name']} | {cell} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
