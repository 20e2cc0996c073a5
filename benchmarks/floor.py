"""Measure how close station, bridge and learner are to their floors, in one command.

    python benchmarks/floor.py --agentlace PATH --json results.json
    python benchmarks/floor.py --quick --only replay driver

Each part is another benchmark in its own process, which measures our code and its floor or peer. It
runs five times. The table has the median, the lowest and the highest ratio, and the bar. All parts
take 25 minutes on two quiet cores; ``--quick`` takes a few minutes and only shows that all parts
run. ``--agentlace`` needs pyzmq, lz4, jax and chex in Python's path (PYTHONPATH). Without it the
rows on agentlace are left out.

The recorder's peer is a bare subscriber that writes the bytes, because rosbag2's C++ recorder does
not install from wheels. RLinf-VLA's figure of pipelining is from its paper. The benchmark does not
cover the minutes of a demo (``benchmarks/demo_seeds.py``: 5 minutes a run), machines on a network,
GPUs, or other load on the machine: it prints a note if the load average is above 0.5.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402

RUNS = 5
TICK_MS = 5.0  # of the interlock in benchmarks/station_loop.py
Figures = dict[str, float]


class Part(NamedTuple):
    """A benchmark of the table.

    Attributes:
        words: the script and its arguments.
        quick: further arguments with ``--quick``; they override earlier ones.
        runs: the option for a number of runs; empty if the script is called once for each run.
        peer: whether the script takes ``--agentlace``.
    """

    words: tuple[str, ...]
    quick: tuple[str, ...] = ()
    runs: str = ""
    peer: bool = False


PARTS = {
    "lockstep": Part(("lockstep.py", "--one"), ("--episodes", "2"), "--runs"),
    "loop_20hz": Part(
        (
            "station_loop.py",
            "--hz",
            "20",
            "--floors",
            "events",
            "relay",
            "--episodes",
            "0",
            "--seconds",
            "10",
        ),
        ("--seconds", "4"),
    ),
    "loop_100hz": Part(
        (
            "station_loop.py",
            "--hz",
            "100",
            "--floors",
            "relay",
            "--episodes",
            "0",
            "--seconds",
            "10",
        ),
        ("--seconds", "4"),
    ),
    "weights": Part(
        ("bridge.py", "--linked", "--transitions", "0", "--rounds", "3"),
        ("--rounds", "1", "--megabytes", "8"),
    ),
    "upload": Part(
        ("bridge.py", "--megabytes", "0", "--transitions", "500", "--rounds", "1"),
        ("--transitions", "50"),
        peer=True,
    ),
    "replay": Part(
        ("replay.py", "--capacity", "4000", "--seconds", "1"),
        ("--seconds", "0.2", "--capacity", "1000"),
        "--runs",
        peer=True,
    ),
    "pipelined": Part(
        ("pipelined.py", "--rounds", "1", "--steps", "3072")
        + ("--ways", "one_worker", "one_worker_pipelined"),
        ("--steps", "2048"),
    ),
    "driver": Part(("franka_driver.py", "--seconds", "5"), ("--seconds", "2"), "--runs"),
    "recorder": Part(("recorder.py", "--seconds", "6"), ("--seconds", "2")),
}


class Row(NamedTuple):
    """A row of the table: one figure of a part, and its bar.

    Attributes:
        part: name of the part.
        title: the row's name in the table.
        figure: computes the row's value from the part's figures of one run.
        bar: the limit.
        at_most: True if the value may be at most the bar, False if it must be at least the bar.
    """

    part: str
    title: str
    figure: Callable[[Figures], float]
    bar: float
    at_most: bool = True


def read_figure(name: str) -> Callable[[Figures], float]:
    """Return a function that reads the figure of this name."""
    return lambda figures: figures[name]


ROWS = {
    "lockstep_bare": Row(
        "lockstep", "lockstep, of the bare simulator", read_figure("lockstep_ratio"), 0.28, False
    ),
    "lockstep_loop": Row(
        "lockstep",
        "lockstep, of one loop without ROS",
        read_figure("lockstep_ratio_loop"),
        0.65,
        False,
    ),
    "p50_20hz": Row(
        "loop_20hz",
        "20 Hz, p50 over the events ping-pong",
        read_figure("p50_ratio_events_20hz"),
        2.0,
    ),
    "p50_20hz_relay": Row(
        "loop_20hz",
        "20 Hz, p50 over three bare processes",
        read_figure("p50_ratio_relay_20hz"),
        1.5,
    ),
    "p50_20hz_idle": Row(
        "loop_20hz",
        "the same, without the inference of the policy",
        lambda figures: (
            (figures["p50_ms_20hz"] - figures["inference_p50_ms_20hz"])
            / figures["relay_p50_ms_20hz"]
        ),
        1.15,
    ),
    "p99_20hz": Row("loop_20hz", "20 Hz, p99 [ms]", read_figure("p99_ms_20hz"), 10.0),
    "p50_100hz": Row(
        "loop_100hz",
        "100 Hz, p50 over three bare processes",
        read_figure("p50_ratio_relay_100hz"),
        1.15,
    ),
    "p50_100hz_idle": Row(
        "loop_100hz",
        "the same, without the inference of the policy",
        lambda figures: (
            (figures["p50_ms_100hz"] - figures["inference_p50_ms_100hz"])
            / figures["relay_p50_ms_100hz"]
        ),
        1.15,
    ),
    "p99_100hz": Row(
        "loop_100hz",
        "100 Hz, p99 - p50 over one tick",
        lambda figures: (figures["p99_ms_100hz"] - figures["p50_ms_100hz"]) / TICK_MS,
        1.0,
    ),
    "missed_100hz": Row(
        "loop_100hz", "100 Hz, observations without an answer", read_figure("missed_100hz"), 0.0
    ),
    "weights": Row(
        "weights",
        "80 MB to 8 stations, over bare sockets",
        read_figure("weights_ratio_socket_80mb"),
        2.0,
    ),
    "upload": Row(
        "upload", "upload, over agentlace", read_figure("upload_ratio_agentlace"), 6.0, False
    ),
    "recorded": Row(
        "upload",
        "upload with recording, over agentlace",
        read_figure("recorded_ratio_agentlace"),
        4.0,
        False,
    ),
    "replay": Row(
        "replay",
        "replay sample, over agentlace",
        read_figure("sample_ratio_to_agentlace"),
        1.0,
        False,
    ),
    "replay_memory": Row(
        "replay",
        "replay's memory, of agentlace's",
        lambda figures: figures["ours_memory_mb"] / figures["agentlace_memory_mb"],
        1.0,
    ),
    "pipelined": Row(
        "pipelined", "pipelined, over in turns", read_figure("one_worker_ratio"), 1.6, False
    ),
    "pipelined_of_ideal": Row(
        "pipelined",
        "pipelined, of a complete overlap",
        lambda figures: figures["one_worker_ratio"] / figures["one_worker_ideal_ratio"],
        0.8,
        False,
    ),
    "driver": Row(
        "driver", "Franka driver, CPU of before", read_figure("driver_core_ratio"), 1 / 3
    ),
    "recorder_raw": Row(
        "recorder",
        "recorder, raw, CPU of a bare subscriber",
        lambda figures: figures["raw_core"] / figures["raw_bare_core"],
        1.2,
    ),
    "recorder_raw_checksums": Row(
        "recorder",
        "recorder, raw, of one with checksums",
        lambda figures: figures["raw_core"] / figures["raw_checksums_core"],
        1.2,
    ),
    "recorder_jpeg": Row(
        "recorder",
        "recorder, JPEG, CPU of a bare subscriber",
        lambda figures: figures["jpeg_core"] / figures["jpeg_bare_core"],
        1.2,
    ),
}


def run_once(part: Part, quick: bool, agentlace: Path | None, runs: int = 0) -> Figures:
    """Run a benchmark and return its figures; empty if it failed."""
    with tempfile.TemporaryDirectory(prefix="rlinf-floor-") as folder:
        out = Path(folder) / "figures.json"
        script, *words = part.words
        command = [sys.executable, str(ROOT / "benchmarks" / script), *words]
        command += [*(part.quick if quick else ()), "--json", str(out)]
        command += [part.runs, str(runs)] if runs else []
        command += ["--agentlace", str(agentlace)] if part.peer and agentlace else []
        environment = {name: value for name, value in os.environ.items() if name != "ROS_DOMAIN_ID"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if out.is_file():
            return json.loads(out.read_text())
        print(f"{' '.join(command)}: exit code {ended.returncode}\n{ended.stderr[-2000:]}")
        return {}


def measure(part: Part, quick: bool, agentlace: Path | None, runs: int) -> list[Figures]:
    """Return the figures of each run.

    A script that repeats itself gives three rows: its lowest, its highest and its median figures.
    """
    if not part.runs:
        return [run_once(part, quick, agentlace) for _ in range(runs)]
    figures = run_once(part, quick, agentlace, runs)
    return [
        {
            name.removesuffix(end): value
            for name, value in figures.items()
            if name.endswith(end) or f"{name}{end}" not in figures
        }
        for end in ("_lowest", "_highest")
    ] + [figures]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--quick", action="store_true", help="one short run of each part")
    parser.add_argument("--agentlace", type=Path, help="checkout of agentlace")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    agentlace = options.agentlace and options.agentlace.resolve()
    runs = 1 if options.quick else options.runs
    load, flat, failed = os.getloadavg()[0], dict[str, float](), []
    flat["load_average"] = load
    if load > 0.5:
        print(f"expected a quiet machine, got a load average of {load:.1f}", flush=True)
    print(f"{'':44}{'median':>9}{'lowest':>9}{'highest':>9}{'bar':>14}")
    for name in options.only:
        started = time.monotonic()
        measured = measure(PARTS[name], options.quick, agentlace, runs)
        flat[f"{name}_minutes"] = (time.monotonic() - started) / 60
        for label, row in ROWS.items():
            if row.part != name:
                continue
            try:
                values = [row.figure(figures) for figures in measured]
            except KeyError:  # the script failed, or agentlace is missing
                failed += [label]
                print(f"{row.title:44}{'not measured':>27}", flush=True)
                continue
            spread = figures.summary({label: values})
            middle = spread[label]
            met = middle <= row.bar if row.at_most else middle >= row.bar
            flat |= spread | {f"{label}_bar": row.bar, f"{label}_met": float(met)}
            print(
                f"{row.title:44}{middle:9.2f}{spread[f'{label}_lowest']:9.2f}"
                f"{spread[f'{label}_highest']:9.2f}{'<=' if row.at_most else '>=':>6} "
                f"{row.bar:.2f}{'  met' if met else ''}",
                flush=True,
            )
        if options.json:
            figures.write(options.json, flat)
    print(__doc__.rpartition("\n\n")[2])
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
