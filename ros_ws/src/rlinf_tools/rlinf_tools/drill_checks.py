"""The safety drill's checks besides its scenarios: over all recorded messages, and by requests.

docs/reference/safety_evidence.md lists the requirements S1 to S27 and the numbered traps.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.msg import ActionChunk, SafetyState
from rlinf_msgs.srv import ResetFault
from std_srvs.srv import SetBool

from rlinf_core.core.rotation import angle, inverse, product
from rlinf_core.interlock import Chunk, Inputs, State, step
from rlinf_core.interlock.motion import Group
from rlinf_core.launch.graph import Process
from rlinf_ros.conversions import any_between
from rlinf_ros.qos import publisher
from rlinf_tools.drill_station import DrilledStation, Row

NS = 1_000_000_000
REACTIONS, REACTIONS_TIMEOUT_S = 200, 60.0  # answers of S1


def check_reaction_time(drill: DrilledStation) -> None:
    """Check S1: the reaction time, over enough answers for a 99th percentile."""
    drill.ready()

    def value(name: str, default: str) -> float:
        return float(drill.reaction.get(f"reaction_{name}", default))

    deadline = time.monotonic() + REACTIONS_TIMEOUT_S
    while value("samples", "0") < REACTIONS and time.monotonic() < deadline:
        drill.spin_for(0.5)
    worst, tick, samples = value("p99_ms", "inf"), 1e3 * drill.limits.tick, value("samples", "0")
    drill.add(
        Row(
            requirement="S1",
            name="from a chunk's arrival to the answer on target_pose, p99",
            bound=f"{tick:.0f} + 2 ms",
            measured=f"{worst:.1f} ms (worst of {samples:.0f}: {value('worst_ms', 'inf'):.1f} ms)",
            held=worst <= tick + 2.0 and samples >= REACTIONS,
        )
    )


def check_live_limits(drill: DrilledStation) -> None:
    """Check S19: limits set live."""
    loose, tight, back = (set_limit(drill, "speed", value) for value in (0.5, 0.2, 0.25))
    drill.add(
        Row(
            requirement="S19",
            name="speed limit set live: 0.5, 0.2, 0.25 m/s while ACTIVE",
            bound="refused, accepted, refused",
            measured=", ".join(
                "taken" if answer.successful else "refused" for answer in (loose, tight, back)
            ),
            held=not loose.successful and tight.successful and not back.successful,
        )
    )
    drill.ask(drill.arming, SetBool.Request(data=False))
    drill.spin_for(0.8)
    answers = [
        set_limit(drill, *limit)
        for limit in (("speed", math.inf), ("joint_speed", 2.9), ("acceleration", 9.5))
    ]
    drill.add(
        Row(
            requirement="S19",
            name="disarmed: speed inf, joint_speed and acceleration beyond those of the arm",
            bound="refused, each",
            measured=", ".join("taken" if answer.successful else "refused" for answer in answers),
            held=not any(answer.successful for answer in answers),
        )
    )
    set_limit(drill, "speed", 0.25)


def check_rotation_cone(drill: DrilledStation) -> None:
    """Turn one way for four seconds and check that the rotation stays inside its cone."""
    drill.ready()
    start_s = drill.do(turn=0.4)
    drill.spin_for(4.0)
    nominal = drill.limits.nominal
    worst = max(
        angle(product(inverse(nominal), target[3:]))
        for at, _, target in drill.targets
        if at > start_s
    )
    drill.add(
        Row(
            requirement="S8",
            trap=8,
            name="rotation away from nominal after turning one way for 4 s",
            bound=f"{drill.limits.cone} rad",
            measured=f"{worst:.4f} rad",
            held=worst <= drill.limits.cone + 1e-9,
        )
    )


def check_first_target_at_arm(drill: DrilledStation) -> None:
    """Check that the first target after arming and resuming lies at the arm."""
    for trap, name in (
        (4, "first target after arming, from the measured pose"),
        (3, "first target after a hold, from the measured pose"),
    ):
        drill.ready()
        drill.do(streaming=False)
        drill.spin(lambda: time.time() - drill.moved_at > 0.3, 3.0)
        if trap == 4:
            drill.ask(drill.arming, SetBool.Request(data=False))
            drill.spin(lambda: drill.state().state == SafetyState.DISARMED, 0.5)
            drill.ask(drill.arming, SetBool.Request(data=True))
        drill.spin_for(0.2)
        drill.do(streaming=True)
        drill.spin(lambda: drill.state().state == SafetyState.ACTIVE, 2.0)
        gap_m = math.dist(drill.targets[-1][2][:3], drill.pose[:3])
        drill.add(
            Row(
                requirement="S13",
                trap=trap,
                name=name,
                bound="10 mm",
                measured=f"{1e3 * gap_m:.1f} mm",
                held=gap_m <= 0.01,
            )
        )


def check_only_publisher(drill: DrilledStation) -> None:
    """Check that only the interlock publishes targets."""
    # includes publishers of killed processes
    publishers = sorted(
        {
            info.node_name
            for info in drill.node.get_publishers_info_by_topic(
                f"/{drill.recipe.station.name}/target_pose"
            )
        }
    )
    drill.add(
        Row(
            requirement="",
            trap=10,
            name="publishers that command the robot side, resets included",
            bound="only the interlock",
            measured=", ".join(publishers),
            held=publishers == ["interlock"],
        )
    )


def check_second_interlock_refused(drill: DrilledStation) -> None:
    """Check S23: a second interlock of the same station never starts."""
    command = [
        sys.executable,
        "-m",
        "rlinf_interlock.interlock",
        "--ros-args",
        "-r",
        f"__ns:=/{drill.recipe.station.name}",
        "-p",
        f"limits_file:={drill.run_dir / 'robot/limits.yaml'}",
    ]
    code, output = _run(drill, command)
    refused = code != 0 and "RL-E208" in output and "another interlock commands" in output
    drill.add(
        Row(
            requirement="S23",
            name="a second interlock for the same station",
            bound="refused, with the reason",
            measured=output,
            held=refused,
        )
    )


def check_wrong_resets_refused(drill: DrilledStation) -> None:
    """Check S13, and a spoofed release of a pressed e-stop."""
    drill.ready()
    drill.do(estop="press")
    drill.spin(lambda: drill.state().state == SafetyState.FAULT, 2.0)
    answers = [
        drill.ask(drill.resetting, ResetFault.Request(cause=cause))
        for cause in ("stale_state", "estop:pendant")
    ]
    drill.add(
        Row(
            requirement="S13",
            name="resets with another cause, or while the e-stop is pressed",
            bound="refused, with the reason",
            measured="; ".join(answer.message for answer in answers),
            held=not any(answer.success for answer in answers)
            and "estop:pendant" in answers[0].message,
        )
    )
    drill.do(estop="press", rogue="estop/pendant")
    tries = []
    for _ in range(20):
        tries.append(drill.ask(drill.resetting, ResetFault.Request(cause=drill.state().cause)))
        drill.spin_for(0.05)
    drill.do(estop="press", rogue="")
    drill.add(
        Row(
            requirement="S14",
            trap=18,
            name="a pressed e-stop, a second publisher that reports it as released, an enable, 20 "
            "resets",
            bound="refused",
            measured=f"{sum(answer.success for answer in tries)} of {len(tries)} cleared the fault",
            held=not any(answer.success for answer in tries),
        )
    )


def check_requests_in_motion(drill: DrilledStation) -> None:
    """Check S25: the interlock keeps ticking under any request while the arm moves."""
    drill.ready()
    pid, ticks = drill.supervisor.children["interlock"].popen.pid, drill.state().ticks
    changing = drill.node.create_client(ChangeState, "interlock/change_state")
    for number in (
        77,
        Transition.TRANSITION_CONFIGURE,
        Transition.TRANSITION_CLEANUP,
        Transition.TRANSITION_DEACTIVATE,
    ):
        drill.ask(changing, ChangeState.Request(transition=Transition(id=number)))
    for name, value in (("gripper_width", 0.0), ("speed", -1.0), ("tick", 0.02)):
        set_limit(drill, name, value)
    many = [Parameter(name=f"a{index}") for index in range(100_000)]
    drill.setting.call_async(SetParameters.Request(parameters=many))
    drill.spin_for(4.0)
    alive = (
        drill.supervisor.children["interlock"].popen.pid == pid
        and drill.state().ticks > ticks + 300
    )
    drill.add(
        Row(
            requirement="S25",
            trap=17,
            name="impossible transitions and limits, 100,000 parameters, while it moves",
            bound="continues to tick, ACTIVE",
            measured=f"{drill.state().ticks - ticks} ticks, state {drill.state().state}",
            held=alive and drill.state().state == SafetyState.ACTIVE,
        )
    )


def check_heavy_messages(drill: DrilledStation) -> None:
    """Check S25: messages of any size are refused unread, and do not delay the e-stop."""
    drill.ready()
    heavy = publisher(drill.node, "teleop/action")
    drill.spin(heavy.get_subscription_count, 5.0)
    names = ActionChunk(
        source="operator",
        session="h",
        seq=1,
        dt=0.05,
        horizon=1,
        dim=3,
        joint_names=[f"joint_{index}" for index in range(100_000)],
    )
    numbers = ActionChunk(
        source="operator", session="h", seq=2, dt=0.05, horizon=1, dim=3, data=[0.0] * 1_000_000
    )
    for _ in range(3):
        heavy.publish(names)
        heavy.publish(numbers)
    start_s = drill.do(estop="press")
    first_match = drill.first_state("FAULT estop:pendant", start_s, 2.0)
    drill.node.destroy_publisher(heavy)
    took = 1e3 * (first_match - start_s)
    causes = ", ".join(
        dict.fromkeys(m.cause for at, m in drill.states[-100:] if at > start_s - 1.0 and m.cause)
    )
    drill.add(
        Row(
            requirement="S25",
            name="chunks of 100,000 names and of 1,000,000 numbers, with an e-stop at the same "
            "time",
            bound="FAULT within 135 ms of the e-stop, or earlier from the chunks",
            measured=f"{f'{took:.0f} ms' if took < math.inf else 'before'}; {causes}",
            held=took <= 135.0
            or "invalid_command" in causes
            and drill.state().state == SafetyState.FAULT,
        )
    )


def check_scripted_operator_refused(drill: DrilledStation) -> None:
    """Check S26: the scripted operator ends at the interlock of a real arm, however it started."""
    settings = {"limits_file": str(drill.run_dir / "robot/limits.yaml")}
    drill.supervisor.start(
        Process(
            "real_interlock",
            "rlinf_interlock",
            "interlock",
            "rlinf_interlock.interlock",
            "/real_arm",
            settings,
        )
    )
    command = [
        sys.executable,
        "-m",
        "rlinf_operator.operator",
        "--ros-args",
        "-r",
        "__ns:=/real_arm",
        "-p",
        "kind:=scripted",
        "-p",
        f"task_file:={_task_file(drill)}",
    ]
    code, output = _run(drill, command)
    drill.supervisor.children.pop("real_interlock").popen.terminate()
    drill.add(
        Row(
            requirement="S26",
            trap=15,
            name="the scripted operator, started at the interlock of a real arm",
            bound="refused, with the reason",
            measured=output,
            held=code != 0 and "RL-E503" in output and "A person arms" in output,
        )
    )


def _task_file(drill: DrilledStation) -> str:
    from rlinf_core.recipes.station import task_file

    return str(task_file(drill.recipe))


def _run(drill: DrilledStation, command: list[str]) -> tuple[int, str]:
    """Run a process that should refuse to start; return its exit code and last line.

    The drill keeps listening meanwhile.
    """
    process = subprocess.Popen(
        command, env=drill.supervisor.environment, stderr=subprocess.PIPE, text=True
    )
    if not drill.spin(lambda: process.poll() is not None, 60.0):
        process.kill()
    assert process.stderr is not None
    return process.wait(), (process.stderr.read().strip().splitlines() or [""])[-1]


def check_target_envelope(drill: DrilledStation) -> None:
    """Check every target of the drill, by its stamps and from tick to tick."""
    limits = drill.limits
    group = Group(
        "position",
        limits.tick,
        limits.speed,
        limits.acceleration,
        limits.jerk,
        limits.box_low,
        limits.box_high,
    )
    worst = np.zeros(3)
    fastest = 0.0
    out = 0
    breaks = sorted(drill.reseeds)
    run: list[tuple[float, ...]] = []
    tick_ns = round(limits.tick * NS)
    bound = np.array([group.speed, group.acceleration, group.jerk]) + [1e-9, 1e-8, 1e-4]
    for (_, before_ns, before), (_, at_ns, target) in zip(
        drill.targets, drill.targets[1:], strict=False
    ):
        rest: list[tuple[float, ...]] = [before[:3]] * 3
        placed = any_between(breaks, before_ns, at_ns) or any(
            start <= at_ns <= end + 10 * NS and end - start > 5 * NS for start, end in drill.deaths
        )
        if placed:
            run = []
        elif (
            at_ns - before_ns > 1.5 * tick_ns
            and (_steps([*rest, target[:3]], limits.tick) <= bound).all()
        ):
            run = rest  # the tick was late, and the arm rested meanwhile: start from rest
        if not placed:
            fastest = max(
                fastest, math.dist(before[:3], target[:3]) / max((at_ns - before_ns) / NS, 1e-9)
            )
        run = [*run[-3:], target[:3]]
        out += not group.inside(target[:3])
        worst = np.maximum(worst, _steps(run, limits.tick))
    drill.add(
        Row(
            requirement="S8",
            name=f"all {len(drill.targets)} targets of the drill: speed, acceleration, jerk, "
            "outside the box",
            bound=f"{group.speed} m/s, {group.acceleration} m/s^2, {group.jerk} m/s^3, 0",
            measured=f"{worst[0]:.4f} m/s, {worst[1]:.4f} m/s^2, {worst[2]:.3f} m/s^3, {out}",
            held=bool((worst <= bound).all()) and out == 0,
        )
    )
    drill.add(
        Row(
            requirement="S24",
            trap=16,
            name="the same targets: speed by their stamps, stalls included",
            bound=f"{group.speed} m/s",
            measured=f"{fastest:.4f} m/s",
            held=fastest <= group.speed + 1e-6,
        )
    )


def _steps(run: list[tuple[float, ...]], tick: float) -> np.ndarray:
    """Return the last speed, acceleration and jerk of up to four positions, one per tick.

    An entry is 0 if there are too few positions.
    """
    result = np.zeros(3)
    for order in range(1, len(run)):
        result[order - 1] = (
            np.linalg.norm(np.diff(np.array(run[-order - 1 :]), order, axis=0)[-1]) / tick**order
        )
    return result


def check_publishing_gaps(drill: DrilledStation) -> None:
    """Check S12: no silence while armed. Stalls of the whole machine count separately."""
    # S1's worst case without a real-time kernel, after a tick
    limit = 25.0 + 1e3 * drill.limits.tick
    longest_ms = 0.0
    longest_raw_ms = 0.0
    when_ns = 0
    for (_, before_ns, _), (_, at_ns, _) in zip(drill.targets, drill.targets[1:], strict=False):
        if drill.none_due(before_ns, at_ns):
            continue
        gap_ms = (at_ns - before_ns) / 1e6
        suspended_ms = (
            sum(max(0, min(end, at_ns) - max(start, before_ns)) for start, end in drill.stalls)
            / 1e6
        )
        longest_raw_ms = max(longest_raw_ms, gap_ms)
        if gap_ms - suspended_ms > longest_ms:
            longest_ms, when_ns = gap_ms - suspended_ms, before_ns
    stalls = [(end - start) / 1e6 for start, end in drill.stalls]
    drill.longest_silence_ms = longest_ms
    during = [
        f"{when_ns / 1e9 - at:.2f} s into '{name}'"
        for at, name in drill.scenario_starts
        if at < when_ns / 1e9
    ][-1:]
    drill.add(
        Row(
            requirement="S12",
            trap=19,
            name="longest time between two targets",
            bound=f"{limit:.0f} ms",
            measured=f"{longest_ms:.1f} ms ({longest_raw_ms:.1f} ms including stalls of the whole "
            f"machine: {len(stalls)} times, {max(stalls, default=0.0):.1f} ms at most), "
            f"{''.join(during) or 'at the start'}",
            held=longest_ms <= limit,
        )
    )


def check_joints_stop_together(drill: DrilledStation) -> None:
    """Check in joint mode, through the core, that all joints stop together.

    The core is used because the simulated arm takes poses.
    """
    limits = replace(drill.limits, control_mode="joint_delta")
    joints = tuple(0.5 * (a + b) for a, b in zip(limits.joint_low, limits.joint_high, strict=True))
    joints = (*joints[:3], limits.joint_high[3] - limits.joint_margin - 0.05, *joints[4:])
    start = joints
    action = (0.03, 0.02, -0.01, 0.02, 0.0, 0.04, 0.0)
    state = State()
    worst = 0.0
    pose = (0.5, 0.0, 0.2, *limits.nominal)
    for tick in range(400):
        now = tick * round(limits.tick * 1e9)
        chunks = (
            (Chunk("policy", "a", tick + 1, 0, now, 0.1, "joint_delta", (action,)),)
            if tick % 10 == 0
            else ()
        )
        state, output, _ = step(
            limits,
            state,
            Inputs(
                pose=pose,
                joints=joints,
                chunks=chunks,
                arm=tick == 0 or None,
                restart=tick == 0,
                enable=True,
                enable_age_s=0.0,
            ),
            now,
        )
        joints = output.joints
        moved = np.subtract(joints, start)
        worst = max(worst, np.abs(moved - moved[3] / action[3] * np.array(action)).max())
    drill.add(
        Row(
            requirement="",
            trap=6,
            name="one joint at the end of its range: others leave the common path by (core)",
            bound="1e-9 rad",
            measured=f"{worst:.0e} rad, after {moved[3]:.3f} of 0.8 rad",
            held=bool(worst < 1e-9 and moved[3] < 0.051),
        )
    )


def check_limits_in_force(drill: DrilledStation) -> None:
    """Check S9: the limits in force."""
    limits = drill.limits
    infinite = [name for name, value in vars(limits).items() if value == math.inf]
    drill.add(
        Row(
            requirement="S9",
            trap=7,
            name="limits in force: those of the FR3, none infinite",
            bound="0.25 m/s, 1 m/s^2, 10 m/s^3",
            measured=f"{limits.speed} m/s, {limits.acceleration} m/s^2, {limits.jerk} m/s^3, "
            f"{len(infinite)} infinite",
            held=not infinite
            and limits.speed <= 0.25
            and limits.acceleration <= 1.0
            and limits.jerk <= 10.0,
        )
    )


def check_fault_evidence(drill: DrilledStation) -> None:
    """Check S20: the evidence of faults."""
    boxes = sorted((drill.run_dir / "faults/closed").glob("*"))
    modes = [False, *(safety.state == SafetyState.FAULT for _, safety in drill.states)]
    # a custom list of scenarios may have none
    faults = sum(now > before for before, now in pairwise(modes))
    drill.add(
        Row(
            requirement="S20",
            name="events, and recordings of the half minute before a fault",
            bound="one per fault",
            measured=f"{faults} faults, {drill.events} events, {len(boxes)} recordings",
            held=drill.events > (50 if faults >= 5 else faults - 1)
            and len(boxes) >= min(5, faults),
        )
    )


def set_limit(drill: DrilledStation, name: str, value: float) -> Any:
    """Set one limit live; return the answer."""
    parameter_value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
    request = SetParameters.Request(
        parameters=[Parameter(name=f"limits.{name}", value=parameter_value)]
    )
    return drill.ask(drill.setting, request).results[0]


CHECKS: tuple[Callable[[Any], None], ...] = (
    check_reaction_time,
    check_live_limits,
    check_rotation_cone,
    check_first_target_at_arm,
    check_only_publisher,
    check_second_interlock_refused,
    check_wrong_resets_refused,
    check_requests_in_motion,
    check_heavy_messages,
    check_scripted_operator_refused,
    check_target_envelope,
    check_publishing_gaps,
    check_joints_stop_together,
    check_limits_in_force,
    check_fault_evidence,
)
