"""The safety drill: provokes faults at a simulated station under a real arm's limits.

    rlinf drill [--only WORD] [--json FILE] [--two-arms]

It plays the policy, the operator and the e-stop, puts a fault injector between the topics, kills
and stops processes, and measures the interlock's reaction. Scenarios: configs/drill.yaml and
drill_two_arms.yaml. On a real arm: docs/safety.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import EpisodeEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from std_msgs.msg import String
from std_srvs.srv import SetBool

from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.errors import RecipeError, RlinfError, nearest
from rlinf_core.core.paths import data_folder
from rlinf_core.interlock import Mode, Pose
from rlinf_core.interlock.latch import exclusive_command
from rlinf_core.interlock.scenarios import Scenario, load
from rlinf_core.interlock.takeover import OPERATOR_SILENT
from rlinf_core.launch.graph import Process
from rlinf_core.launch.supervisor import only_station
from rlinf_ros.conversions import pose_values, to_ns
from rlinf_ros.qos import lossless_profile, subscription
from rlinf_ros.station_state import command_context
from rlinf_tools.drill_checks import CHECKS
from rlinf_tools.drill_station import CAMERA, NODES, ROUTES, DrilledStation, Row, reached

REQUIREMENTS, TRAPS = [f"S{n}" for n in range(1, 27)], list(range(1, 20))
ARM_RESTS_M = 0.0005  # measurement noise of a resting arm
# an arm that still closes in on a fixed target moves at most this in a period of 0.7 s
CREEPS_M = 0.002
SETTLE_PERIODS = 3
DOMAIN = "42"  # if the shell sets none; the default of a recipe
STAYS = ("FAULT", f"HOLD {OPERATOR_SILENT}")  # states that last until a person ends them
FRESH_S = 0.5  # an interlock publishes its state ten times a second


class Drill(DrilledStation):
    """Runs scenarios on its station."""

    requirements = tuple(REQUIREMENTS)
    processes: tuple[str, ...] = (*NODES, "people")
    judges_others = False

    @classmethod
    def check(cls, scenario: Scenario) -> None:
        """Check that a scenario uses only routes, processes and requirements of this station.

        Raises:
            RecipeError: it uses another one.
        """
        for key, got, choices in (
            ("inject.route", scenario.inject and scenario.inject.route, (*cls.routes, CAMERA)),
            ("process", scenario.process, cls.processes),
            ("requirement", scenario.requirement, cls.requirements),
        ):
            if got and got not in choices:
                raise RecipeError(
                    f"scenario '{scenario.name}': '{key}': expected one of {', '.join(choices)}, "
                    f"got '{got}'{nearest(got, choices)}"
                )
        if scenario.others and not cls.judges_others:
            raise RecipeError(
                f"scenario '{scenario.name}': 'others': expected none at a station with one arm, "
                f"got '{scenario.others}'. Drill two: --two-arms"
            )

    # One scenario
    def run(self, scenario: Scenario) -> None:
        self.ready(
            scenario.real or bool(scenario.process) and not scenario.process.startswith("interlock")
        )
        self.scenario_starts.append((time.time(), scenario.name))
        before, start_s = self.state(), self._provoke(scenario)
        expect, within = scenario.expect, scenario.within_ms
        if within is None:
            held, measured, bound = self._continues(scenario, before, start_s)
        elif expect == "still":
            held, measured, bound = self._arm_stops(start_s, within)
        else:
            held, measured, bound = self._reaches(scenario, start_s)
        if held and expect.startswith(STAYS) or scenario.then.startswith(STAYS):
            stays, words = self._stays_stopped(scenario)
            held, measured = held and stays, f"{measured}; {words}"
        others, words = self._others(scenario, start_s)
        self._restore(scenario)
        self.add(
            Row(
                requirement=scenario.requirement,
                trap=scenario.trap,
                name=scenario.name,
                bound=bound,
                measured=measured + words,
                held=held and others,
            )
        )

    def _others(self, scenario: Scenario, start_s: float) -> tuple[bool, str]:
        """Return whether other arms stopped as required, and a text about it."""
        return True, ""

    def _provoke(self, scenario: Scenario) -> float:
        """Provoke the fault; return its time."""
        start_s = self._signal(scenario) if scenario.process else time.time()
        if scenario.inject:
            route = scenario.inject.route
            self.injected.pop(route, None)
            self.inject.publish(String(data=yaml.safe_dump(scenario.inject.model_dump())))
            if not self.spin(lambda: route in self.injected, 3.0):
                raise SystemExit(
                    f"the fault injector did not touch '{route}'; logs in {self.run_dir / 'logs'}"
                )
            start_s = self.injected[route]
        changes = (
            scenario.inputs.model_dump(exclude_unset=True, exclude_none=True)
            if scenario.inputs
            else {}
        )
        if changes.pop("end_episode", False):
            self.do(streaming=False)
            # the last chunk travels on another topic, and must not arrive after the end
            self.spin_for(0.02)
            start_s = time.time()
            self.episodes.publish(EpisodeEvent(kind=EpisodeEvent.ENDED, episode_id="drill"))
        return self.do(**changes) if changes else start_s

    def _signal(self, scenario: Scenario) -> float:
        """Kill or stop a process and return the time.

        A process stopped for some seconds resumes by itself, whatever happens to the drill.
        """
        process, start_s = self.supervisor.children[scenario.process].popen, time.time()
        if scenario.process.startswith("interlock"):
            self.deaths.append(
                (time.time_ns(), time.time_ns() + round((scenario.seconds or 10.0) * 1e9))
            )
        os.kill(process.pid, getattr(signal, f"SIG{scenario.signal}"))
        if scenario.seconds:
            subprocess.Popen(["sh", "-c", f"sleep {scenario.seconds}; kill -CONT {process.pid}"])
        return start_s

    def _reaches(self, scenario: Scenario, start_s: float) -> tuple[bool, str, str]:
        held = True
        measured: list[str] = []
        bounds: list[str] = []
        for expect, within in (
            (scenario.expect, scenario.within_ms),
            (scenario.then, scenario.then_within_ms),
        ):
            if within is None:
                continue
            first_match = self.first_state(expect, start_s, within / 1e3 + 1.0)
            took = 1e3 * (first_match - start_s)
            held &= took <= within
            measured.append(
                f"{expect} after {took:.0f} ms" if math.isfinite(took) else f"never {expect}"
            )
            bounds.append(f"{expect} within {within:g} ms")
        return held, "; ".join(measured), "; ".join(bounds)

    def _continues(
        self, scenario: Scenario, before: SafetyState, start_s: float
    ) -> tuple[bool, str, str]:
        """Check a disturbance that must not stop the arm, but be counted."""
        self.spin_for(1.5)
        stopped = [
            m
            for at, m in self.states[-200:]
            if at > start_s and m.state in (SafetyState.HOLD, SafetyState.FAULT)
        ]
        # an episode may just have ended, and its recorder must still close it
        patience_s = 20.0 if scenario.process else 1.0
        has_state = self.spin(lambda: self._has_state(scenario.expect), patience_s)
        trouble = ""
        if stopped:
            trouble = f"stopped: {stopped[0].cause}"
        elif not has_state:
            trouble = self._state_text()
        name = scenario.counts
        if not name:
            return not trouble, trouble or "continued", "the arm continues"
        counted = getattr(self.state(), name) - getattr(before, name)
        measured = f"{counted} {name}" + (f", {trouble}" if trouble else "")
        return not trouble and counted > 0, measured, f"continues, {name} counted"

    def _fresh(self) -> bool:
        return bool(self.states) and time.time() - self.states[-1][0] < FRESH_S

    def _has_state(self, expect: str) -> bool:
        return self._fresh() and reached(self.state(), expect)

    def _state_text(self) -> str:
        return (
            f"the interlock is in {Mode(self.state().state).name}"
            if self._fresh()
            else "no message from the interlock any more"
        )

    def _arm_stops(self, start_s: float, within: float) -> tuple[bool, str, str]:
        """Check that the robot side's own timeout stops the arm without an interlock.

        The measured pose shows it.
        """
        last, quiet_since = self.pose, time.time()
        while time.time() - start_s < within / 1e3 + 2.0 and time.time() - quiet_since < 0.3:
            self.spin_for(0.02)
            if math.dist(self.pose[:3], last[:3]) > 2e-4:
                quiet_since = time.time()
            last = self.pose
        took = 1e3 * (quiet_since - start_s)
        return took <= within, f"the arm rests after {took:.0f} ms", f"within {within:g} ms"

    def _stays_stopped(self, scenario: Scenario) -> tuple[bool, str]:
        """Check that neither target nor arm moves once the cause is gone and commands continue.

        Only a person may end such a stop.
        """
        self._restore(scenario)
        # a process that hung has resumed and caught up
        self.spin_for(0.7 + (scenario.seconds or 0.0))
        at, rests = self.targets[-1][2], False
        for _ in range(SETTLE_PERIODS):
            arm = self.pose
            self.spin_for(0.7)
            moved, arm_moved = math.dist(self.targets[-1][2], at), math.dist(self.pose[:3], arm[:3])
            if (rests := arm_moved < ARM_RESTS_M) or arm_moved > CREEPS_M:
                break
        is_stopped = rests and math.dist(self.targets[-1][2][:3], self.pose[:3]) < ARM_RESTS_M
        stays = any(reached(self.state(), expectation) for expectation in STAYS)
        # S17: the set-point started at the measured pose
        still = stays and rests and (moved < 1e-9 or is_stopped)
        return (
            still,
            f"then {1e3 * (arm_moved if is_stopped else max(moved, arm_moved)):.0f} mm by itself",
        )

    def _restore(self, scenario: Scenario) -> None:
        if scenario.signal == "STOP" and not scenario.seconds:
            os.kill(self.supervisor.children[scenario.process].popen.pid, signal.SIGKILL)
        if scenario.inject:
            self.inject.publish(
                String(data=yaml.safe_dump({"route": scenario.inject.route, "kind": "none"}))
            )
        self.do(
            estop="released",
            enabled=True,
            taking_over=False,
            operator_hangs=False,
            fault="",
            rogue="",
        )

    # The table
    def result(self) -> dict[str, Any]:
        held = [
            name
            for name in self.requirements
            if _all_rows_held(row for row in self.rows if row.requirement == name)
        ]
        traps = [
            number
            for number in TRAPS
            if _all_rows_held(row for row in self.rows if row.trap == number)
        ]
        return {
            "requirements_held": len(held),
            "traps_held": len(traps),
            "longest_silence_ms": round(self.longest_silence_ms, 1),
            "not_held": [row.name for row in self.rows if not row.held],
            "rows": [asdict(row) for row in self.rows],
        }


def _all_rows_held(rows: Iterable[Row]) -> bool:
    rows = list(rows)
    return bool(rows) and all(row.held for row in rows)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="rlinf drill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument(
        "--json", type=Path, help="write requirements_held, traps_held and each row there"
    )
    parser.add_argument("--out", type=Path, help="run folder (default: runs/drill-<time>)")
    parser.add_argument(
        "--two-arms",
        action="store_true",
        help="at a station with two arms (configs/drill_two_arms.yaml)",
    )
    parser.add_argument("--scenarios", type=Path, help="another list of scenarios")
    options, _ = parser.parse_known_args()
    # the drill's own node has it, too
    os.environ["ROS_DOMAIN_ID"] = os.environ.get("ROS_DOMAIN_ID") or DOMAIN
    with command_context():
        sys.exit(perform(options))


def perform(options: argparse.Namespace) -> int:
    """Run the selected scenarios; return 1 if one did not hold."""
    kind: type[Drill] = Drill
    listed = "drill.yaml"
    if options.two_arms:
        kind, listed = TwoArmDrill, "drill_two_arms.yaml"
    all_scenarios = load(options.scenarios or data_folder() / "configs" / listed)
    for scenario in all_scenarios:
        kind.check(scenario)
    scenarios = [scenario for scenario in all_scenarios if options.only in scenario.name]
    if not scenarios:
        raise RecipeError(
            f"--only: expected words of a scenario's name, got '{options.only}', which no scenario "
            f"has. Scenarios: {'; '.join(scenario.name for scenario in all_scenarios)}"
        )
    run_dir = (options.out or Path("runs") / time.strftime("drill-%Y%m%d-%H%M%S")).resolve()
    if run_dir.exists():
        _new(run_dir)  # refuses it, whoever holds the station
    domain_id = int(os.environ.get("ROS_DOMAIN_ID") or DOMAIN)
    # a real robot's station, whose faults a drill would reset
    for interlock in ("/station_a", "/station_a/left", "/station_a/right"):
        exclusive_command(interlock).close()
    with only_station("station_a", domain_id), kind(_new(run_dir), domain_id) as drill:
        for scenario in scenarios:
            drill.run(scenario)
        if not options.only:
            for check in () if options.two_arms else CHECKS:
                drill.scenario_starts.append((time.time(), check.__name__))
                check(drill)
        result = drill.result()
        evidence = {
            "scenarios": drill.scenario_starts,
            "targets": drill.targets,
            "reseeds": drill.reseeds,
            "stops": drill.deaths,
            "stalls": drill.stalls,
        }
        # the evidence, for a person who investigates
        (run_dir / "heard.json").write_text(json.dumps(evidence))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print(
        "\n"
        f"{len(drill.rows) - len(result['not_held'])} of {len(drill.rows)} held; requirements "
        "held and measured: "
        f"{result['requirements_held']}{'' if options.two_arms else f' of {len(REQUIREMENTS)}'}, "
        f"traps: {result['traps_held']}{'' if options.two_arms else f' of {len(TRAPS)}'}. Logs "
        f"and recordings: {run_dir}"
    )
    return 1 if result["not_held"] else 0


def _new(run_dir: Path) -> Path:
    """Make a new folder and return it.

    Raises:
        RlinfError: it exists, or cannot be made.
    """
    try:
        run_dir.mkdir(parents=True)
    except OSError as error:
        raise RlinfError(
            f"--out {run_dir}: expected a new folder, got: {error.strerror}. Choose another folder"
        ) from error
    return run_dir


class TwoArmDrill(Drill):
    """A drill with two arms: faults of the left arm, or of both, also stop the right one (S27)."""

    requirements = (*REQUIREMENTS, "S27")
    arm = "left"
    other = "right"
    task_name = "reach_both"
    processes = (
        *(name for name in Drill.processes if name != "interlock"),
        "interlock_left",
        "interlock_right",
    )
    judges_others = True
    routes = {
        "policy/action": ROUTES["policy/action"],
        **{f"left/{name}": ROUTES[name] for name in ("current_pose", "wrench")},
    }

    def _robot(self) -> Path:
        folder = self.run_dir / "robot"
        folder.mkdir(parents=True)
        limits = load_plain((data_folder() / "robots/franka_fr3/limits.yaml").read_text())
        limits["joint_names"] = [f"panda_joint{number}" for number in range(1, 8)]
        (folder / "limits.yaml").write_text(yaml.safe_dump(limits))
        (folder / "robot.yaml").write_text(
            yaml.safe_dump(
                {
                    "driver": "simulator",
                    "simulator": "two_frankas",
                    "estops": ["pendant"],
                    "cameras": {"front": [32, 32]},
                    "arms": {arm: {"limits": "limits.yaml"} for arm in (self.arm, self.other)},
                }
            )
        )
        return folder

    def _interfaces(self) -> None:
        super()._interfaces()
        self.others: list[tuple[float, SafetyState]] = []
        self.their_targets: list[tuple[float, int, Pose]] = []
        for topic, take in (
            (f"{self.other}/safety", self._on_their_safety),
            (f"{self.other}/target_pose", self._on_their_target),
        ):
            subscription(self.node, topic, take, quality=lossless_profile(topic))
        self.other_clients = self._clients(self.other)

    def _on_their_safety(self, m: SafetyState) -> None:
        self.others.append((to_ns(m.header.stamp) / 1e9, m))

    def _on_their_target(self, m: PoseStamped) -> None:
        self.their_targets.append((time.time(), to_ns(m.header.stamp), pose_values(m.pose)))

    def _through(self, process: Process) -> tuple[tuple[str, str], ...]:
        if process.executable != "interlock":
            return super()._through(process)
        root, arm_name = f"/{self.recipe.station.name}", process.namespace.rpartition("/")[2]
        injected = {
            topic.removeprefix(f"{arm_name}/"): f"{root}/drill/{topic}"
            for topic in self.routes
            if topic == "policy/action" or topic.startswith(f"{arm_name}/")
        }
        return tuple({**dict(process.remappings), **injected}.items())

    def _arm(self) -> Any:
        """Arm both arms."""
        arming, resetting = self.other_clients
        if self.others and self.others[-1][1].state == SafetyState.FAULT:
            self.ask(resetting, ResetFault.Request(cause=self.others[-1][1].cause))
        if self.others and self.others[-1][1].state != SafetyState.DISARMED:
            self.ask(arming, SetBool.Request(data=False))
            self.spin(
                lambda: self.others[-1][1].state in (SafetyState.DISARMED, SafetyState.FAULT), 0.5
            )
        answer = super()._arm()
        if answer and answer.success:
            answer = self.ask(arming, SetBool.Request(data=True))
        return answer

    def _others(self, scenario: Scenario, start_s: float) -> tuple[bool, str]:
        """Check that the right arm stops within the left one's bound and two ticks, and rests."""
        expect = scenario.others
        within = scenario.others_within_ms or (scenario.within_ms or 0.0) + 20.0
        if not expect:
            return True, ""
        self.spin_for(0.6)  # the arm brakes
        took = 1e3 * (
            next(
                (at for at, safety in self.others if at >= start_s and reached(safety, expect)),
                math.inf,
            )
            - start_s
        )
        at = self.their_targets[-1][2]
        self.spin_for(0.3)
        moved = math.dist(self.their_targets[-1][2], at)
        rests = moved < 1e-9 or scenario.others_go_on
        return took <= within and rests, f"; {self.other}: {expect} after {took:.0f} ms" + (
            "" if scenario.others_go_on else f", then {1e3 * moved:.0f} mm"
        )


if __name__ == "__main__":
    main()
