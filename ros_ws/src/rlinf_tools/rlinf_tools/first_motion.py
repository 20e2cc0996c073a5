"""The first motion of a real arm, at a tenth of its speeds: a drill of its faults.

    rlinf first-motion RECIPE

The station runs, disarmed, with its operator in another terminal. The drill lowers the interlock's
speeds to a tenth. Then it asks the person to provoke one fault after another, and measures how
interlock and arm react. It publishes nothing and arms nothing: a person moves the arm, with their
device, through the interlock.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from operator import sub
from pathlib import Path

from rlinf_msgs.msg import SafetyState

from rlinf_core.core.errors import RlinfError
from rlinf_core.recipes import Recipe, load_recipe
from rlinf_ros.station_state import command_context
from rlinf_tools.drill_station import Row
from rlinf_tools.first_motion_watch import StampedValues, Watcher, disarmed, latched

SLOWER = 0.1
PATIENCE_S = 180.0
FAR_M = 0.005
SPEED_S = 0.1  # window of a speed measurement; delays of a few milliseconds are a small part of it
STOPPED = (SafetyState.HOLD, SafetyState.FAULT, SafetyState.DISARMED, SafetyState.ARMED)


def drill(watcher: Watcher, speeds: dict[str, float]) -> Iterator[Row]:
    """Yield the results of one act after another; each tells the person what to do."""
    yield _moves(watcher, speeds["joint_speed" if watcher.by_joints else "speed"])
    # consecutive actions of a device are one period apart
    silent_s = max(0.15, 1.5 * watcher.period_s)
    yield _stops(
        watcher,
        "S2",
        "let go of your device while the arm moves",
        "the device was let go",
        lambda: (
            watcher.event_times.get("command", math.inf)
            if time.monotonic() - watcher.event_times.get("command", math.inf) > silent_s
            else None
        ),
        lambda state: state.state in STOPPED,
        1e3 * (watcher.period_s + 0.25),
    )
    yield _stops(
        watcher,
        "S13",
        "while the arm moves, disarm it: q",
        "disarmed by a person",
        lambda: watcher.first(watcher.started_at, disarmed),
        disarmed,
        10.0,
    )
    for name in watcher.robot.estops:
        cause = f"estop:{name}"
        yield _stops(
            watcher,
            "S14",
            f"while the arm moves, press the e-stop '{name}'",
            f"e-stop {name} pressed",
            partial(watcher.event_times.get, cause),
            partial(latched, cause),
            135.0,
        )
        _reset(watcher, cause)
    yield _stops_by_itself(watcher)


def _print(text: str) -> None:
    print(f"\n>>> {text}", flush=True)


def _moving(watcher: Watcher) -> None:
    """Wait until a person has armed the arm and moved it."""
    watcher.event_times.clear()
    watcher.started_at = time.monotonic()
    start = watcher.poses[-1][1]
    watcher.spin(
        lambda: (
            watcher.states[-1][1].state == SafetyState.ACTIVE
            and math.dist(watcher.poses[-1][1], start) > FAR_M
        ),
        PATIENCE_S,
        "the arm to move by a person's hand",
    )


def _moves(watcher: Watcher, speed: float) -> Row:
    """Check that the arm follows its command, within its speed limit."""
    _print(
        "clear the table, hold the hardware e-stop, arm (e), and move the tool a little, then stop"
    )
    _moving(watcher)
    started_at = watcher.started_at
    watcher.spin(lambda: watcher.rests, PATIENCE_S, "the arm to rest again")
    poses = watcher.since(watcher.measured, started_at)
    targets = watcher.since(watcher.targets, started_at)
    if not targets:
        raise RlinfError("expected commands of the interlock while the arm moved, got none")
    far, per_s = (
        (math.dist, "m/s")
        if not watcher.by_joints
        else (lambda a, b: max(map(abs, map(sub, a, b))), "rad/s")
    )
    fastest = max((far(a[1], b[1]) / (b[0] - a[0]) for a, b in _spaced_pairs(poses)), default=0.0)
    measured = [b - a for a, b in zip(poses[0][1], poses[-1][1], strict=True)]
    commanded = [b - a for a, b in zip(targets[0][1], targets[-1][1], strict=True)]
    length = math.hypot(*measured) * math.hypot(*commanded)
    cosine = (
        sum(a * b for a, b in zip(measured, commanded, strict=True)) / length if length else 0.0
    )
    return Row(
        requirement="S9",
        name="the first motion: follows the command, at a tenth of the speed",
        bound=f"{1.2 * speed:.3f} {per_s}, 0.9 of 1 alike",
        measured=f"{fastest:.3f} {per_s}, {cosine:.2f} alike",
        held=fastest <= 1.2 * speed and cosine >= 0.9,
    )


def _spaced_pairs(poses: list[StampedValues]) -> Iterator[tuple[StampedValues, StampedValues]]:
    """Yield each pose with the first one that came SPEED_S after it."""
    last = 0
    for first in poses:
        while last < len(poses) and poses[last][0] < first[0] + SPEED_S:
            last += 1
        if last < len(poses):
            yield first, poses[last]


def _stops(
    watcher: Watcher,
    requirement: str,
    do: str,
    name: str,
    happened: Callable[[], float | None],
    expected: Callable[[SafetyState], bool],
    within_ms: float,
) -> Row:
    """Check that the interlock reports a person's act in time, and that the arm comes to rest."""
    _print(f"arm (e) and move the tool; then, {do}")
    _moving(watcher)

    def started_at() -> float:
        at = happened()
        return math.inf if at is None else at

    watcher.spin(lambda: math.isfinite(started_at()), PATIENCE_S, do)
    at = started_at()
    watcher.spin(
        lambda: math.isfinite(watcher.first(at - 0.05, expected)),
        2.0,
        f"the interlock to answer: {do}",
    )
    took = 1e3 * max(watcher.first(at - 0.05, expected) - at, 0.0)
    return _row(watcher, requirement, name, at, took, within_ms)


def _stops_by_itself(watcher: Watcher) -> Row:
    """Check a stop by the robot itself.

    The robot reports it, or falls silent, as a Franka does at a reflex. The resting pose is known
    only after the reset.
    """
    do = "while the arm moves, press the robot's own stop (or touch it until it stops by itself)"
    _print(f"arm (e) and move the tool; then, {do}")
    _moving(watcher)
    started_at = watcher.started_at

    def latch() -> float:
        return watcher.first(
            started_at, lambda state: latched("robot:", state) or latched("stale_state", state)
        )

    watcher.spin(lambda: math.isfinite(latch()), PATIENCE_S, do)
    stop_times = [at for name, at in watcher.event_times.items() if name.startswith("robot:")]
    cause = watcher.states[-1][1].cause
    if stop_times and min(stop_times) <= latch() + 0.05:
        at, within_ms = min(stop_times), 55.0
    else:  # the interlock noticed the silence that ended a motion before the driver did
        before = [pose_at for pose_at, _ in watcher.poses if pose_at <= latch()]
        at, within_ms = before[-1], 1e3 * (watcher.limits.lost_state + 0.1)
    took = 1e3 * max(latch() - at, 0.0)
    _reset(watcher, cause)
    return _row(watcher, "S17", "the robot stopped by itself, and was reset", at, took, within_ms)


def _row(
    watcher: Watcher, requirement: str, name: str, at: float, took: float, within_ms: float
) -> Row:
    """Wait until the arm rests, and return the row with its distance from the start of the stop."""
    watcher.spin(lambda: watcher.rests, 5.0, "the arm to rest")
    moved = [pose for _, pose in watcher.since(watcher.poses, at)]
    distance = max((math.dist(moved[0], pose) for pose in moved), default=0.0)
    # half a second at a tenth of the speed, and a centimetre
    bound = watcher.limits.speed * SLOWER * 0.5 + 0.01
    return Row(
        requirement=requirement,
        name=name,
        bound=f"within {within_ms:.0f} ms; {1e3 * bound:.0f} mm",
        measured=f"after {took:.0f} ms; {1e3 * distance:.1f} mm",
        held=took <= within_ms and distance <= bound,
    )


def _reset(watcher: Watcher, cause: str) -> None:
    _print(f"release it, then: rlinf fault reset --cause '{cause}'")
    watcher.spin(
        lambda: watcher.states[-1][1].state == SafetyState.DISARMED,
        PATIENCE_S,
        f"the reset of {cause}",
    )


def first_motion(recipe: Recipe, arm: str, json_file: Path | None) -> int:
    """Run the drill; return 1 if a requirement was not held."""
    watcher = Watcher(recipe, arm)
    watcher.meet()
    rows: list[Row] = []
    try:
        before, speeds = watcher.slow_down(SLOWER)
        print(
            "the interlock's speeds are now a tenth: "
            + ", ".join(f"{name} {value:g}" for name, value in speeds.items())
            + (f"; so are those of every arm. Move '{arm}' with your device" if arm else "")
        )
        for row in drill(watcher, speeds):
            rows.append(row)
            print(
                f"{'held' if row.held else 'NOT HELD':<9}{row.requirement:<5}{row.name}: bound "
                f"{row.bound}, measured {row.measured}",
                flush=True,
            )
            if not row.held:
                break
    except (RlinfError, KeyboardInterrupt):
        if watcher.lowered:
            print(
                "ended early: the speeds stay at a tenth until the interlock is restarted",
                flush=True,
            )
        raise
    finally:
        if json_file:
            json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if all(row.held for row in rows):
        _print("all requirements held. Disarm to restore the speeds")
        watcher.spin(
            lambda: watcher.states[-1][1].state == SafetyState.DISARMED, PATIENCE_S, "the disarming"
        )
        watcher.speed_up(before)
        return 0
    print(
        "this requirement was not held, so the drill ends. The speeds stay at a tenth until the "
        "interlock is restarted. First find the cause"
    )
    return 1


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--arm", default="")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with command_context():
        raise SystemExit(
            first_motion(
                load_recipe(arguments.recipe, arguments.overrides), arguments.arm, arguments.json
            )
        )


if __name__ == "__main__":
    main()
