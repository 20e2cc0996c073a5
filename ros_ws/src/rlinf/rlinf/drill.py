"""The safety drill: a simulated station under the limits of a real arm, to which one thing after the other goes wrong.

    rlinf drill [--only WORD] [--json FILE]

Stands at the place of the policy, the operator and the e-stop, puts a fault injector between the topics, kills and stops
processes, and measures what the interlock makes of it. Scenarios: configs/drill.yaml. On a real arm: docs/safety.md.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.msg import EpisodeEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from std_msgs.msg import String
from std_srvs.srv import SetBool

from rlinf.drilled_station import DrilledStation
from rlinf_core.interlock import Chunk, Inputs, Mode, State, step
from rlinf_core.interlock.motion import Group
from rlinf_core.interlock.rotation import angle, inverse, product
from rlinf_core.places import shared
from rlinf_core.supervisor import only_station

REQUIREMENTS, TRAPS = [f"S{n}" for n in range(1, 21)], list(range(1, 13))


@dataclass
class Row:
    """One line of the table."""

    requirement: str
    trap: int
    name: str
    bound: str
    measured: str
    held: bool


class Drill(DrilledStation):
    """Runs scenarios on its station and keeps the table."""

    def __init__(self, run_dir: Path, domain_id: int) -> None:
        super().__init__(run_dir, domain_id)
        self.rows: list[Row] = []

    # One scenario
    def run(self, scenario: dict[str, Any]) -> None:
        real = "process" in scenario and scenario["process"] != "interlock" or scenario.get("real", False)
        self.ready(real)
        dropped, began = self.state(), self._go_wrong(scenario)
        expect, within = scenario["expect"], scenario.get("within_ms")
        if within is None:
            held, measured, bound = self._goes_on(scenario, dropped, began)
        elif expect == "still":
            held, measured, bound = self._arm_stops(began, within)
        else:
            held, measured, bound = self._reaches(scenario, began)
        if held and expect.startswith("FAULT") or scenario.get("then", "").startswith("FAULT"):
            stays, words = self._stays_stopped(scenario)
            held, measured = held and stays, f"{measured}; {words}"
        self._mend(scenario)
        self.add(Row(scenario.get("requirement", ""), scenario.get("trap", 0), scenario["name"], bound, measured, held))

    def _go_wrong(self, scenario: dict[str, Any]) -> float:
        """Do it; returns when it happened."""
        began = time.time()
        if scenario.get("process") == "interlock":
            self.deaths.append(time.time_ns())
        if "process" in scenario:
            popen = self.supervisor.children[scenario["process"]].popen
            os.kill(popen.pid, getattr(signal, f"SIG{scenario['signal']}"))
        words = scenario.get("say", {})
        self.estop = words.get("estop", self.estop)
        self.enabled = words.get("enable", self.enabled)
        self.taking_over = words.get("takeover", False)
        if self.taking_over:
            self._stream()
        if "robot_fault" in words:
            self.say["robot/fault"].publish(String(data=words["robot_fault"]))
        if "end_episode" in words:
            self.streaming = False
            self.say["episode"].publish(EpisodeEvent(kind=EpisodeEvent.ENDED, episode_id="drill"))
        if "inject" in scenario:
            route = scenario["inject"]["route"]
            self.injected.pop(route, None)
            self.inject.publish(String(data=yaml.safe_dump(scenario["inject"])))
            if not self.spin(lambda: route in self.injected, 3.0):
                raise SystemExit(f"the fault injector did not touch '{route}'; logs in {self.run_dir / 'logs'}")
            began = self.injected[route]
        return began

    def _reaches(self, scenario: dict[str, Any], began: float) -> tuple[bool, str, str]:
        held, measured, bounds = True, [], []
        for expect, within in ((scenario["expect"], scenario["within_ms"]),
                               (scenario.get("then"), scenario.get("then_within_ms"))):
            if expect is None:
                continue
            found = self._first(expect, began, within / 1e3 + 1.0)
            took = 1e3 * (found - began)
            held &= took <= within
            measured.append(f"{expect} after {took:.0f} ms" if math.isfinite(took) else f"never {expect}")
            bounds.append(f"{expect} within {within} ms")
        return held, "; ".join(measured), "; ".join(bounds)

    def _first(self, expect: str, began: float, seconds: float) -> float:
        """When the expected state was first heard since then; infinity if it is not within so many seconds."""
        looked_at = next((index for index in range(len(self.states) - 1, -1, -1) if self.states[index][0] < began), 0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for at, safety in self.states[looked_at:]:
                if at >= began and _is(safety, expect):
                    return at
            looked_at = len(self.states)
            self.spin(lambda: len(self.states) > looked_at, end - time.monotonic())  # noqa: B023
        return math.inf

    def _goes_on(self, scenario: dict[str, Any], before: SafetyState, began: float) -> tuple[bool, str, str]:
        """Something that must not stop the arm, but be counted."""
        self.spin_for(1.5)
        stopped = [m for at, m in self.states[-200:] if at > began and m.state in (SafetyState.HOLD, SafetyState.FAULT)]
        name = scenario.get("counts")
        if not name:
            return not stopped, "went on" if not stopped else f"stopped: {stopped[0].cause}", "the arm goes on"
        counted = getattr(self.state(), name) - getattr(before, name)
        return not stopped and counted > 0, f"{counted} {name}{f', stopped: {stopped[0].cause}' if stopped else ''}", \
            f"goes on, {name} counted"

    def _arm_stops(self, began: float, within: float) -> tuple[bool, str, str]:
        """Without an interlock, by the robot side's own timeout; the measured pose tells."""
        last, quiet_since = self.pose, time.time()
        while time.time() - began < within / 1e3 + 2.0 and time.time() - quiet_since < 0.3:
            self.spin_for(0.02)
            if math.dist(self.pose[:3], last[:3]) > 2e-4:
                quiet_since = time.time()
            last = self.pose
        took = 1e3 * (quiet_since - began)
        return took <= within, f"the arm rests after {took:.0f} ms", f"within {within} ms"

    def _stays_stopped(self, scenario: dict[str, Any]) -> tuple[bool, str]:
        """With the cause gone and commands going on, a latched fault moves nothing."""
        self._mend(scenario)
        self.spin_for(0.7)
        at = self.targets[-1][2]
        self.spin_for(0.7)
        moved = math.dist(self.targets[-1][2], at)
        still = self.state().state == SafetyState.FAULT and moved < 1e-9
        return still, f"then {1e3 * moved:.0f} mm by itself"

    def _mend(self, scenario: dict[str, Any]) -> None:
        if scenario.get("signal") == "STOP":
            os.kill(self.supervisor.children[scenario["process"]].popen.pid, signal.SIGKILL)
        if "inject" in scenario:
            self.inject.publish(String(data=yaml.safe_dump({"route": scenario["inject"]["route"], "kind": "none"})))
        self.say["robot/fault"].publish(String(data=""))
        self.estop, self.enabled, self.taking_over = "released", True, False

    # What is measured over the whole drill
    def overall(self) -> None:
        """Requirements that are no scenario of their own."""
        self.ready()
        self.spin_for(1.5)
        worst = float(self.reaction.get("reaction_p99_ms", "inf"))
        tick = 1e3 * self.limits.tick
        self.add(Row("S1", 0, "from a chunk's arrival to the answer on target_pose, p99", f"{tick:.0f} + 2 ms",
                     f"{worst:.1f} ms (worst {float(self.reaction.get('reaction_worst_ms', 'inf')):.1f} ms)",
                     worst <= tick + 2.0))
        self._configuration()
        self._turning()
        self._aligned()
        publishers = sorted({info.node_name for info in self.node.get_publishers_info_by_topic(
            f"/{self.recipe.station.name}/target_pose")})  # one that was killed is still remembered
        self.add(Row("", 10, "who can command the robot side, resets included", "the interlock alone",
                     ", ".join(publishers), publishers == ["interlock"]))
        self._wrong_reset()
        self._envelope()
        self._one_joint()
        infinite = [name for name, value in vars(self.limits).items() if value == math.inf]
        self.add(Row("S9", 7, "limits in force: those of the FR3, none infinite", "0.25 m/s, 1 m/s^2, 10 m/s^3",
                     f"{self.limits.speed} m/s, {self.limits.acceleration} m/s^2, {self.limits.jerk} m/s^3, "
                     f"{len(infinite)} infinite", not infinite and self.limits.speed <= 0.25
                     and self.limits.acceleration <= 1.0 and self.limits.jerk <= 10.0))
        boxes = sorted((self.run_dir / "faults/closed").glob("*"))
        self.add(Row("S20", 0, "events, and recordings of the half minute before a fault", "of every fault",
                     f"{self.events} events, {len(boxes)} recordings", self.events > 50 and len(boxes) >= 5))

    def _configuration(self) -> None:
        def set_speed(value: float) -> Any:
            parameter = Parameter(name="limits.speed", value=ParameterValue(type=ParameterType.PARAMETER_DOUBLE,
                                                                            double_value=value))
            return self.ask(self.setting, SetParameters.Request(parameters=[parameter])).results[0]

        loose, tight = set_speed(0.5), set_speed(0.2)
        back = set_speed(0.25)
        self.add(Row("S19", 0, "speed limit set live: 0.5, 0.2, 0.25 m/s while ACTIVE", "refused, taken, refused",
                     f"{'taken' if loose.successful else 'refused'}, {'taken' if tight.successful else 'refused'}, "
                     f"{'taken' if back.successful else 'refused'}",
                     not loose.successful and tight.successful and not back.successful))
        self.ask(self.arming, SetBool.Request(data=False))
        self.spin_for(0.8)
        set_speed(0.25)

    def _turning(self) -> None:
        """Four seconds of turning one way: the rotation stays inside its cone."""
        self.ready()
        self.turn = 0.4
        began = time.time()
        self.spin_for(4.0)
        nominal = tuple(self.limits.orientation)
        worst = max(angle(product(inverse(nominal), target[3:])) for at, _, target in self.targets if at > began)
        self.add(Row("S8", 8, "rotation away from nominal after turning one way for 4 s", f"{self.limits.cone} rad",
                     f"{worst:.4f} rad", worst <= self.limits.cone + 1e-9))

    def _aligned(self) -> None:
        """Arming and resuming: the first target lies where the arm is."""
        for trap, name in ((4, "first target after arming, from the measured pose"),
                           (3, "first target after a hold, from the measured pose")):
            self.ready()
            self.streaming = False
            self.spin(lambda: time.time() - self.moved_at > 0.3, 3.0)
            if trap == 4:
                self.ask(self.arming, SetBool.Request(data=False))
                self.spin(lambda: self.state().state == SafetyState.DISARMED, 0.5)
                self.ask(self.arming, SetBool.Request(data=True))
            self.spin_for(0.2)
            self.streaming = True
            self.spin(lambda: self.state().state == SafetyState.ACTIVE, 2.0)
            gap = math.dist(self.targets[-1][2][:3], self.pose[:3])
            self.add(Row("S13", trap, name, "10 mm", f"{1e3 * gap:.1f} mm", gap <= 0.01))

    def _wrong_reset(self) -> None:
        self.ready()
        self.estop = "press"
        self.spin(lambda: self.state().state == SafetyState.FAULT, 2.0)
        answers = [self.ask(self.resetting, ResetFault.Request(cause=cause)) for cause in ("stale_state", "estop:pendant")]
        refused = not any(answer.success for answer in answers)
        self.add(Row("S13", 0, "resets that name another cause, or come while the e-stop is pressed", "refused by name",
                     "; ".join(answer.message for answer in answers), refused and "estop:pendant" in answers[0].message))

    def _envelope(self) -> None:
        """Every target of the drill, by differences from tick to tick."""
        group = Group("position", self.limits.tick, self.limits.speed, self.limits.acceleration, self.limits.jerk,
                      self.limits.box_low, self.limits.box_high)
        worst, gap, breaks = np.zeros(3), 0.0, sorted(self.reseeds)
        run: list[tuple[float, ...]] = []
        out = 0
        for (_, before_ns, _), (_, at_ns, target) in zip(self.targets, self.targets[1:], strict=False):
            if not _between(self.deaths, before_ns - 50_000_000, at_ns):
                gap = max(gap, (at_ns - before_ns) / 1e6)
            if at_ns - before_ns > 1.6e9 * self.limits.tick or _between(breaks, before_ns, at_ns):
                run = []
            run = [*run[-3:], target[:3]]
            out += not group.inside(target[:3])
            for order in range(1, len(run)):
                difference = np.diff(np.array(run[-order - 1:]), order, axis=0)[-1]
                worst[order - 1] = max(worst[order - 1], np.linalg.norm(difference) / self.limits.tick**order)
        bound = np.array([group.speed, group.acceleration, group.jerk])
        self.add(Row("S8", 0, f"all {len(self.targets)} targets of the drill: speed, acceleration, jerk, outside the box",
                     f"{group.speed} m/s, {group.acceleration} m/s^2, {group.jerk} m/s^3, 0",
                     f"{worst[0]:.4f} m/s, {worst[1]:.4f} m/s^2, {worst[2]:.3f} m/s^3, {out}",
                     bool((worst <= bound + [1e-9, 1e-8, 1e-4]).all()) and out == 0))
        most = 25.0 + 1e3 * self.limits.tick  # S1's worst case without a real-time kernel, after a tick
        self.add(Row("S12", 0, "never silence: longest time between two targets", f"{most:.0f} ms", f"{gap:.1f} ms",
                     gap <= most))

    def _one_joint(self) -> None:
        """In joint mode, through the core: the group stops together (the simulated arm takes poses)."""
        limits = replace(self.limits, control_mode="joint_delta")
        joints = tuple(0.5 * (a + b) for a, b in zip(limits.joint_low, limits.joint_high, strict=True))
        joints = (*joints[:3], limits.joint_high[3] - limits.joint_margin - 0.05, *joints[4:])
        start, action, state, worst = joints, (0.03, 0.02, -0.01, 0.02, 0.0, 0.04, 0.0), State(), 0.0
        pose = (0.5, 0.0, 0.2, *limits.orientation)
        for tick in range(400):
            now = tick * round(limits.tick * 1e9)
            chunks = (Chunk("policy", "a", tick + 1, 0, now, 0.1, "joint_delta", (action,)),) if tick % 10 == 0 else ()
            state, output, _ = step(limits, state, Inputs(pose=pose, joints=joints, chunks=chunks, arm=tick == 0 or None,
                                                          enable=True, enable_age_s=0.0), now)
            joints = output.joints
            moved = np.subtract(joints, start)
            worst = max(worst, np.abs(moved - moved[3] / action[3] * np.array(action)).max())
        self.add(Row("", 6, "one joint at the end of its range: others leave the common path by (core)", "1e-9 rad",
                     f"{worst:.0e} rad, after {moved[3]:.3f} of 0.8 rad", bool(worst < 1e-9 and moved[3] < 0.051)))

    # The table
    def add(self, row: Row) -> None:
        self.rows.append(row)
        label = row.requirement + (f" trap {row.trap}" if row.trap else "")
        verdict = "held" if row.held else "NOT HELD"
        print(f"{verdict:<9}{label.strip():<13}{row.name}\n{'':22}bound: {row.bound}\n{'':22}measured: {row.measured}",
              flush=True)

    def result(self) -> dict[str, Any]:
        held = [name for name in REQUIREMENTS if _all_held(row for row in self.rows if row.requirement == name)]
        traps = [number for number in TRAPS if _all_held(row for row in self.rows if row.trap == number)]
        return {"requirements_held": len(held), "traps_held": len(traps),
                "not_held": [row.name for row in self.rows if not row.held], "rows": [asdict(row) for row in self.rows]}


def _is(safety: SafetyState, expect: str) -> bool:
    state, _, cause = expect.partition(" ")
    return Mode(safety.state).name == state and cause in ("", safety.source if state == "ACTIVE" else safety.cause)


def _between(sorted_ns: list[int], low: int, high: int) -> bool:
    index = bisect.bisect_left(sorted_ns, low)
    return index < len(sorted_ns) and sorted_ns[index] <= high


def _all_held(rows: Iterable[Row]) -> bool:
    rows = list(rows)
    return bool(rows) and all(row.held for row in rows)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="rlinf drill", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--json", type=Path, help="write requirements_held, traps_held and each row there")
    parser.add_argument("--out", type=Path, help="run folder (default: runs/drill-<time>)")
    parser.add_argument("--scenarios", type=Path, default=shared() / "configs/drill.yaml", help="another list of scenarios")
    options, _ = parser.parse_known_args()
    run_dir = (options.out or Path("runs") / time.strftime("drill-%Y%m%d-%H%M%S")).resolve()
    run_dir.mkdir(parents=True)
    domain_id = int(os.environ.get("ROS_DOMAIN_ID", "42"))
    scenarios = [s for s in yaml.safe_load(options.scenarios.read_text()) if options.only in s["name"]]
    rclpy.init()
    with only_station("station_a", domain_id), Drill(run_dir, domain_id) as drill:
        for scenario in scenarios:
            drill.run(scenario)
        if not options.only:
            drill.overall()
        result = drill.result()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print(f"\n{len(drill.rows) - len(result['not_held'])} of {len(drill.rows)} held; requirements held and measured: "
          f"{result['requirements_held']} of {len(REQUIREMENTS)}, traps: {result['traps_held']} of {len(TRAPS)}. "
          f"Logs and recordings: {run_dir}")
    sys.exit(1 if result["not_held"] else 0)


if __name__ == "__main__":
    main()
