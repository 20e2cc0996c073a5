"""The first motion of a real arm: at a tenth of its speeds, under a drill in which a person does what can go wrong.

    rlinf first-motion RECIPE

The station runs, disarmed, and its operator is in another terminal. Speeds in the interlock are lowered to a tenth, then
one thing after the other is asked for, and what the interlock and the arm make of it is measured. It publishes nothing and
arms nothing: what moves the arm is a person, at their device, through the interlock as ever.
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
from typing import Any

import rclpy
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.qos import QoSProfile
from rlinf_msgs.msg import SafetyState
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String

from rlinf.arms import each
from rlinf.asking import asker, asking
from rlinf.drill_table import Row
from rlinf.qos import AT_ONCE, OVERHEARD, overheard, subscription, witnessed
from rlinf.spinning import prioritise
from rlinf.whereabouts import nothing_heard
from rlinf_core.errors import RlinfError
from rlinf_core.interlock import Mode, load_limits
from rlinf_core.recipes import Recipe, load_recipe, station_robot

SLOWER, PATIENCE_S, MEET_S = 0.1, 180.0, 8.0
SPEEDS = ("speed", "rotation_speed", "joint_speed")
FAR_M, REST_M, REST_S = 0.005, 0.0005, 0.3
PRIORITY = 5  # above what computes, or it is itself late in what it measures; below what controls
STOPPED = (SafetyState.HOLD, SafetyState.FAULT, SafetyState.DISARMED, SafetyState.ARMED)


class Watcher:
    """Hears one arm's interlock, its pose, and who asks for what."""

    def __init__(self, recipe: Recipe, arm: str) -> None:
        self.robot = station_robot(recipe)
        if arm not in self.robot.interlocks:
            raise RlinfError(f"--arm: expected {', '.join(filter(None, self.robot.interlocks)) or 'none'}, got '{arm}'")
        self.arm, self.limits = arm, load_limits(self.robot.interlocks[arm])
        self.states: list[tuple[float, SafetyState]] = []
        self.poses: list[tuple[float, tuple[float, ...]]] = []
        self.joints, self.targets = list[tuple[float, tuple[float, ...]]](), list[tuple[float, tuple[float, ...]]]()
        self.begun = 0.0  # the present one of what is asked for
        self.asked: dict[str, float] = {}  # what people did, and when it was last heard
        self.node = asker(recipe.station.name)
        self._hear(each(arm, "safety"), self._on_safety, witnessed("safety"))
        self._hear(each(arm, "current_pose"), partial(self._on_pose, self.poses), OVERHEARD)
        self.by_joints = self.limits.control_mode == "joint_delta"
        self.measured = self.joints if self.by_joints else self.poses  # of what is commanded
        if self.by_joints:
            for name, into in (("joint_states", self.joints), ("target_joints", self.targets)):
                self._hear(each(arm, name), partial(self._on_joints, into), overheard(AT_ONCE))
        else:
            self._hear(each(arm, "target_pose"), partial(self._on_pose, self.targets), OVERHEARD)
        self._hear("teleop/action", lambda _: self.asked.__setitem__("command", time.monotonic()))
        self._hear(each(arm, "robot/fault"), self._on_fault)
        for name in self.robot.estops:
            self._hear(f"estop/{name}", partial(self._on_estop, name))
        self.setting = {name: self.node.create_client(SetParameters, each(name, "interlock/set_parameters"))
                        for name in self.robot.interlocks}
        prioritise(PRIORITY)

    def _hear(self, topic: str, callback: Callable[[Any], None], quality: QoSProfile | None = None) -> None:
        """By the name that the robot has for it."""
        subscription(self.node, topic, callback, quality=quality, at=self.robot.topics.get(topic, topic))

    def _on_safety(self, message: SafetyState) -> None:
        self.states.append((time.monotonic(), message))

    def _on_pose(self, into: list[Any], message: PoseStamped) -> None:
        p = message.pose.position
        into.append((time.monotonic(), (p.x, p.y, p.z)))

    def _on_joints(self, into: list[Any], message: JointState) -> None:
        angles = dict(zip(message.name, message.position, strict=False))
        if all(name in angles for name in self.limits.joint_names):
            into.append((time.monotonic(), tuple(angles[name] for name in self.limits.joint_names)))

    def _on_fault(self, fault: String) -> None:
        if fault.data:
            self.asked.setdefault(f"robot:{fault.data}", time.monotonic())

    def _on_estop(self, name: str, pressed: Bool) -> None:
        if pressed.data:
            self.asked.setdefault(f"estop:{name}", time.monotonic())
        else:
            self.asked.pop(f"estop:{name}", None)

    def spin(self, until: Callable[[], Any], seconds: float, what: str) -> None:
        """RlinfError where it does not come."""
        end = time.monotonic() + seconds
        while not until():
            rclpy.spin_once(self.node, timeout_sec=0.02)
            if time.monotonic() > end:
                raise RlinfError(f"waited {seconds:g} s for {what}; the interlock is {self.words}")

    @property
    def words(self) -> str:
        state = self.states[-1][1]
        return f"{Mode(state.state).name} {state.cause}".strip()

    @property
    def rests(self) -> bool:
        """Whether the arm has for REST_S."""
        lately = [at for when, at in self.poses if time.monotonic() - when < REST_S]
        return len(lately) > 2 and max(math.dist(lately[0], at) for at in lately) < REST_M

    def meet(self) -> None:
        """Until the interlock and the arm are heard."""
        try:
            self.spin(lambda: self.states and self.poses and self.measured and all(
                client.service_is_ready() for client in self.setting.values()), MEET_S, "it")
        except (RlinfError, IndexError):
            what = "pose of the arm" if self.states else "interlock"
            raise RlinfError(nothing_heard(self.node, what, MEET_S)) from None
        if self.states[-1][1].state != SafetyState.DISARMED:
            raise RlinfError(f"expected the interlock DISARMED before the first motion, it is {self.words}: rlinf disarm")

    def set_speeds(self, factor: float) -> dict[str, float]:
        """Those of each arm's limits times that, and of this arm what they are; RlinfError where one does not take them.

        Of every arm: a person's device may move another one than they think.
        """
        slow = dict[str, dict[str, float]]()
        for arm, client in self.setting.items():
            limits = load_limits(self.robot.interlocks[arm])
            wanted = {name: value * factor for name in SPEEDS if math.isfinite(value := getattr(limits, name))}
            said = [Parameter(name=f"limits.{name}", value=ParameterValue(type=3, double_value=value))
                    for name, value in wanted.items()]
            future = client.call_async(SetParameters.Request(parameters=said))
            self.spin(future.done, 10.0, "the interlock's answer")
            if refused := [each.reason for each in future.result().results if not each.successful]:
                told = f". Those of {', '.join(slow)} have theirs times {factor:g}: start them anew" if slow else ""
                raise RlinfError(f"the interlock{arm and f' of {arm}'} takes no other speeds: {refused[0]}{told}")
            slow[arm] = wanted
        return slow[self.arm]

    def since(self, where: list[Any], when: float) -> list[Any]:
        """What was heard since then."""
        return [at for at in where if at[0] >= when]

    def first(self, when: float, holds: Callable[[SafetyState], bool]) -> float:
        """When the interlock first stood so; infinity while it has not."""
        return next((at for at, state in self.states if at >= when and holds(state)), math.inf)


def disarmed(state: SafetyState) -> bool:
    """Whether the interlock is."""
    return bool(state.state == SafetyState.DISARMED)


def latched(cause: str, state: SafetyState) -> bool:
    """Whether the interlock is, for a cause that begins so."""
    return bool(state.state == SafetyState.FAULT and state.cause.startswith(cause))


def drill(watcher: Watcher, speeds: dict[str, float]) -> Iterator[Row]:
    """One thing after the other, each with what to do."""
    yield _moves(watcher, speeds["joint_speed" if watcher.by_joints else "speed"])
    yield _stops(watcher, "S2", "let go of your device while the arm moves", "the device was let go",
                 lambda: watcher.asked.get("command", math.inf) if time.monotonic() - watcher.asked.get(
                     "command", math.inf) > 0.15 else None, lambda state: state.state in STOPPED, 1e3 * 0.35)
    yield _stops(watcher, "S13", "while the arm moves, disarm it: q", "disarmed by a person",
                 lambda: watcher.first(watcher.begun, disarmed), disarmed, 10.0)
    for name in watcher.robot.estops:
        cause = f"estop:{name}"
        yield _stops(watcher, "S14", f"while the arm moves, press the e-stop '{name}'", f"e-stop {name} pressed",
                     partial(watcher.asked.get, cause), partial(latched, cause), 135.0)
        _reset(watcher, cause)
    yield _stops(watcher, "S17", "while the arm moves, press the robot's own stop (or touch it until it stops by itself)",
                 "the robot stopped by itself", lambda: next((at for name, at in watcher.asked.items()
                                                              if name.startswith("robot:")), None),
                 partial(latched, "robot:"), 55.0)
    _reset(watcher, watcher.states[-1][1].cause)


def _say(text: str) -> None:
    print(f"\n>>> {text}", flush=True)


def _moving(watcher: Watcher) -> None:
    """Armed by a person, and moved by them."""
    watcher.asked.clear()
    watcher.begun = time.monotonic()
    start = watcher.poses[-1][1]
    watcher.spin(lambda: watcher.states[-1][1].state == SafetyState.ACTIVE
                 and math.dist(watcher.poses[-1][1], start) > FAR_M, PATIENCE_S, "the arm to move by a person's hand")


def _moves(watcher: Watcher, speed: float) -> Row:
    """It goes where it is told to, and no faster than it may."""
    _say("clear the table, hold the hardware e-stop, arm (e), and move the tool a little, then stop")
    _moving(watcher)
    begun = watcher.begun
    watcher.spin(lambda: watcher.rests, PATIENCE_S, "the arm to rest again")
    poses, targets = watcher.since(watcher.measured, begun), watcher.since(watcher.targets, begun)
    if not targets:
        raise RlinfError("expected to hear what the interlock commands while the arm moved, and heard nothing")
    far, per_s = (math.dist, "m/s") if not watcher.by_joints else (lambda a, b: max(map(abs, map(sub, a, b))), "rad/s")
    fastest = max((far(a[1], b[1]) / (b[0] - a[0]) for a, b in zip(poses, poses[10:], strict=False)), default=0.0)
    way = [b - a for a, b in zip(poses[0][1], poses[-1][1], strict=True)]
    asked = [b - a for a, b in zip(targets[0][1], targets[-1][1], strict=True)]
    length = math.hypot(*way) * math.hypot(*asked)
    along = sum(a * b for a, b in zip(way, asked, strict=True)) / length if length else 0.0
    return Row("S9", 0, "the first motion: where it was told to go, at a tenth",
               f"{1.2 * speed:.3f} {per_s}, 0.9 of 1 alike", f"{fastest:.3f} {per_s}, {along:.2f} alike",
               fastest <= 1.2 * speed and along >= 0.9)


def _stops(watcher: Watcher, requirement: str, do: str, name: str, happened: Callable[[], float | None],
           expected: Callable[[SafetyState], bool], within_ms: float) -> Row:
    """Someone does it, the interlock says so in time, and the arm comes to rest."""
    _say(f"arm (e) and move the tool; then, {do}")
    _moving(watcher)

    def begun() -> float:
        at = happened()
        return math.inf if at is None else at

    watcher.spin(lambda: math.isfinite(begun()), PATIENCE_S, do)
    at = begun()
    watcher.spin(lambda: math.isfinite(watcher.first(at - 0.05, expected)), 2.0, f"the interlock to answer: {do}")
    took = 1e3 * max(watcher.first(at - 0.05, expected) - at, 0.0)
    watcher.spin(lambda: watcher.rests, 5.0, "the arm to rest")
    moved = [pose for _, pose in watcher.since(watcher.poses, at)]
    way = max((math.dist(moved[0], pose) for pose in moved), default=0.0)
    bound = watcher.limits.speed * SLOWER * 0.5 + 0.01  # half a second's way at a tenth, and a centimetre
    return Row(requirement, 0, name, f"within {within_ms:.0f} ms; {1e3 * bound:.0f} mm",
               f"after {took:.0f} ms; {1e3 * way:.1f} mm", took <= within_ms and way <= bound)


def _reset(watcher: Watcher, cause: str) -> None:
    _say(f"release it, then: rlinf fault reset --cause '{cause}'")
    watcher.spin(lambda: watcher.states[-1][1].state == SafetyState.DISARMED, PATIENCE_S, f"the reset of {cause}")


def first_motion(recipe: Recipe, arm: str, json_file: Path | None) -> int:
    """The whole of it; 1 where something was not held."""
    watcher = Watcher(recipe, arm)
    watcher.meet()
    speeds = watcher.set_speeds(SLOWER)
    print("the interlock's speeds are a tenth now: " + ", ".join(f"{name} {value:g}" for name, value in speeds.items())
          + (f"; so are those of every arm. Move '{arm}' with your device" if arm else ""))
    rows: list[Row] = []
    try:
        for row in drill(watcher, speeds):
            rows.append(row)
            print(f"{'held' if row.held else 'NOT HELD':<9}{row.requirement:<5}{row.name}: bound {row.bound}, measured "
                  f"{row.measured}", flush=True)
            if not row.held:
                break
    except (RlinfError, KeyboardInterrupt):
        print("left before its end: the speeds stay at a tenth until the interlock is started anew", flush=True)
        raise
    finally:
        if json_file:
            json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if all(row.held for row in rows):
        _say("all held. Disarm, and the speeds are those of the limits again")
        watcher.spin(lambda: watcher.states[-1][1].state == SafetyState.DISARMED, PATIENCE_S, "the disarming")
        watcher.set_speeds(1.0)
        return 0
    print("that was not held, and nothing more is asked for: the speeds stay at a tenth until the interlock is started "
          "anew. Find out why first")
    return 1


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--arm", default="")
    parser.add_argument("--json", type=Path)
    said = parser.parse_args()
    with asking():
        raise SystemExit(first_motion(load_recipe(said.recipe, said.overrides), said.arm, said.json))


if __name__ == "__main__":
    main()
