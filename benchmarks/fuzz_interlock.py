"""Fuzz the interlock's core with random limits, commands, measurements, people and clocks.

    python benchmarks/fuzz_interlock.py [--ticks 10000000] [--seed 0] [--processes 2] [--json FILE]
    python benchmarks/fuzz_interlock.py --replay SEED        # one stretch again, with its violations
    python benchmarks/fuzz_interlock.py --digest --ticks 200000   # hash of all outputs, to compare two versions

Each stretch has a seed, limits from the whole table and an arm of its own (``interlock_world.py``).
After each tick an independent model (``interlock_oracle.py``), which shares no code with the core,
compares inputs and outputs with docs/safety.md. A violation is printed with the seed that replays it.
The benchmark does not cover the process around the core (tests/ros).
"""

from __future__ import annotations

import argparse
import hashlib
import math
import multiprocessing
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks import interlock_world  # noqa: E402
from benchmarks.figures import write  # noqa: E402
from benchmarks.interlock_world import World, run_stretch  # noqa: E402

STRETCH = 2_000
WORDS = (
    "",
    "base",
    "base_link",
    "camera",
    "contact",
    "current_pose",
    "disarmed",
    "enable",
    "error",
    "fault",
    "frozen",
    "gripper",
    "gripper/state",
    "handing_back",
    "interlock",
    "joint_delta",
    "joint_states",
    "operator",
    "operator_silent",
    "policy",
    "protective_stop",
    "realigning",
    "recovering",
    "reflex",
    "robot/fault",
    "silent",
    "stale_command",
    "stale_state",
    "target_pose",
    "tcp_delta",
    "tool0",
    "unreadable",
    "wrench",
)
JOB_STRETCHES = 25


def fuzz(seeds: range, ticks: int = STRETCH) -> dict[str, Any]:
    """Fuzz a stretch of each seed; return ticks, violations with their seeds, and the margins."""
    counts: Counter[str] = Counter(ticks=0, violations=0, exceptions=0)
    worst: dict[str, float] = {}
    messages: list[str] = []
    for seed in seeds:
        worlds: set[World] = set()
        for number, problems, world in run_stretch(seed, ticks):
            counts["ticks"] += 1
            worlds.add(world)
            if problems:
                counts[
                    "exceptions" if problems[0].startswith("an exception") else "violations"
                ] += 1
                messages.append(f"seed {seed}, tick {number}: {'; '.join(problems)}")
                break
        for world in worlds:
            counts.update(world.oracle.counts)
            for group in world.oracle.groups:
                for name, value in group.worst.items():
                    limit = getattr(group, f"max_{name}")
                    if math.isfinite(limit):
                        worst[name] = max(worst.get(name, -math.inf), value / limit)
    return {**counts, "worst": worst, "messages": messages}


def replay(seed: int, ticks: int = STRETCH) -> int:
    """Print the violations of a stretch with limits and inputs around them; return their number."""
    violating_ticks = 0
    for number, problems, world in run_stretch(seed, ticks):
        if problems:
            violating_ticks += 1
            output = world.output
            print(f"tick {number}: {'; '.join(problems)}\n  {output}")
            if violating_ticks == 1:
                print(f"  {world.limits}")
            if violating_ticks == 5:
                break
    print(f"seed {seed}: {violating_ticks} ticks with violations")
    return violating_ticks


def digest(seeds: range, ticks: int = STRETCH) -> str:
    """Return a SHA-256 over all outputs, events and plans of a stretch of each seed.

    The words are fixed, because those of the code change with it.
    """
    result = hashlib.sha256()
    with mock.patch.object(interlock_world, "vocabulary", lambda: WORDS):
        for seed in seeds:
            for number, _, world in run_stretch(seed, ticks):
                result.update(
                    repr((number, world.output, world.events, world.state.motions)).encode()
                )
    return result.hexdigest()


def figures(
    total: Counter[str], worst: dict[str, float], options: argparse.Namespace, began: float
) -> dict[str, Any]:
    """Return the results so far as one flat object."""
    return {
        **total,
        **worst,
        "seed": options.seed,
        "seconds": round(time.time() - began),
        "when": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {multiprocessing.cpu_count()} cores, no GPU",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ticks", type=int, default=10_000_000)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first stretch; the next one has the next"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one stretch, and what it broke")
    parser.add_argument(
        "--digest", action="store_true", help="print a digest of all outputs, and check nothing"
    )
    options = parser.parse_args()
    if options.digest:
        print(digest(range(options.seed, options.seed + options.ticks // STRETCH)))
        return
    if options.replay is not None:
        sys.exit(1 if replay(options.replay) else 0)
    began = time.time()
    total: Counter[str] = Counter()
    worst: dict[str, float] = {}
    size = JOB_STRETCHES * STRETCH
    first = range(
        options.seed, options.seed + JOB_STRETCHES * math.ceil(options.ticks / size), JOB_STRETCHES
    )
    with multiprocessing.Pool(options.processes) as pool:
        for result in pool.imap_unordered(
            fuzz, [range(seed, seed + JOB_STRETCHES) for seed in first]
        ):
            for message in result.pop("messages"):
                print(f"\n{message}", flush=True)
            for name, value in result.pop("worst").items():
                worst[f"worst_{name}"] = max(worst.get(f"worst_{name}", -math.inf), value)
            total.update(result)
            if options.json:
                write(options.json, figures(total, worst, options, began))
            print(
                f"\r{total['ticks']:,} ticks, {total['violations']} violations, "
                f"{total['exceptions']} exceptions",
                end="",
                flush=True,
            )
    result = figures(total, worst, options, began)
    print("\n" + "\n".join(f"{key}: {value}" for key, value in result.items()))
    if options.json:
        write(options.json, result)
    sys.exit(1 if total["violations"] or total["exceptions"] else 0)


if __name__ == "__main__":
    main()
