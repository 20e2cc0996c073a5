"""Measure the interlock: time of a tick, response of the node, and what other guards let through.

    python benchmarks/interlock.py --json results.json --lerobot PATH_OF_A_LEROBOT_CHECKOUT

* Core: time of one ``step`` while it plays chunks, under tool limits (position, rotation, gripper,
  all with acceleration and jerk) and under joint limits.
* Node: an armed interlock process on the real middleware. It measures the time from a chunk's arrival
  to the published target itself, at several rates, with the machine idle and with every core loaded.
  It keeps the times of its last 1000 chunks, so 20 s pass before --seconds begin.
* Guards: 20,000 goals at 100 Hz, of which some are NaN, jump, or lie outside. The figures count the
  outputs of each guard beyond a limit. HIL-SERL-style environments use ``np.clip``; LeRobot's two
  guards come from their own files. A guard that raises stops its loop, and the robot keeps its last
  command.

The benchmark does not cover a real-time kernel, a loaded network, or how a robot's own controller
treats the outputs of a guard.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import logging
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402

DOMAIN, TIMEOUT_S, ARM_TIMEOUT_S = 73, 60.0, 10.0
HISTORY = 1000  # chunks whose times the node keeps
CHUNK_HZ = 50
HOME = (0.5, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0)
TICK = 0.01


def fr3_limits(**changes: Any) -> Any:
    from rlinf_core.interlock import load_limits, with_values

    return with_values(
        load_limits(ROOT / "robots/franka_fr3/limits.yaml"), {"enable_lease": "unlimited"} | changes
    )


def core_times(steps: int, **changes: Any) -> dict[str, float]:
    """Return the microseconds of one step, with chunks at 20 Hz."""
    from rlinf_core.interlock import Chunk, Inputs, State, step

    limits = fr3_limits(**changes)
    joints = tuple(0.5 * (a + b) for a, b in zip(limits.joint_low, limits.joint_high, strict=True))
    size = max(limits.action_sizes)
    random, state, pose, gripper = np.random.default_rng(0), State(), HOME, 0.04
    actions = [tuple(row) for row in (random.normal(0.0, 0.01, (997, size))).tolist()]
    times = np.empty(steps)
    for tick in range(steps):
        now = tick * 10_000_000
        chunks = (
            (
                Chunk(
                    "policy",
                    "a",
                    tick + 1,
                    0,
                    now,
                    0.05,
                    limits.control_mode,
                    (actions[tick % 997],) * 2,
                ),
            )
            if tick % 5 == 0
            else ()
        )
        inputs = Inputs(
            pose=pose,
            joints=joints,
            gripper=gripper,
            chunks=chunks,
            arm=tick == 0 or None,
            restart=tick == 0,
        )
        started = time.perf_counter()
        state, output, _ = step(limits, state, inputs, now)
        times[tick] = time.perf_counter() - started
        pose = output.target or pose
        joints = output.joints or joints
        gripper = output.gripper or gripper
    p50, p99 = 1e6 * np.percentile(times, [50, 99])
    return {"p50_us": p50, "p99_us": p99, "worst_us": 1e6 * times.max()}


def burn() -> None:
    """Load one core."""
    while True:
        math.sqrt(2.0)


def sync(folder: Path) -> None:
    """Write and sync for ever."""
    with open(folder / "hog", "wb") as file:
        while True:
            file.seek(0)
            file.write(os.urandom(1 << 22))
            os.fsync(file.fileno())


@contextlib.contextmanager
def running(hogs: list[multiprocessing.Process]) -> Iterator[None]:
    """Run these processes during the block."""
    for hog in hogs:
        hog.start()
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()  # SIGTERM may meet rclpy's signal handlers, copied from this process
            hog.join()


LOADS = {
    "idle": "nothing beside it",
    "loaded": "one busy process on each core",
    "synced": "the same, and one that writes 4 MB and syncs, without end, on the disk of the "
    "node's log",
}


def node_times(hz: int, load: str, seconds: float) -> dict[str, float]:
    """Return the node's times from a chunk to its target, and of late ticks [ms]."""
    with figures.folder("rlinf-interlock-") as folder:
        return node_times_in(folder, hz, load, seconds)


def node_times_in(folder: Path, hz: int, load: str, seconds: float) -> dict[str, float]:
    import rclpy
    import yaml
    from diagnostic_msgs.msg import DiagnosticArray
    from geometry_msgs.msg import PoseStamped
    from rlinf_msgs.msg import ActionChunk, SafetyState
    from std_srvs.srv import SetBool

    from rlinf_core.launch.graph import RESPAWN, Process
    from rlinf_core.launch.supervisor import Supervisor
    from rlinf_ros.qos import profile
    from rlinf_ros.workarounds import single_threaded

    values = yaml.safe_load((ROOT / "robots/franka_fr3/limits.yaml").read_text())
    values |= {
        "tick": 1.0 / hz,
        "enable_lease": "unlimited",
        "stale_state": 1.0,
        "lost_state": 5.0,
        **dict.fromkeys(("contact_force", "contact_torque", "contact_fault"), "unlimited"),
        **dict.fromkeys(("joint_names", "joint_low", "joint_high"), []),
    }
    (folder / "limits.yaml").write_text(yaml.safe_dump(values))
    node = rclpy.create_node("bench", namespace="/bench")
    executor = single_threaded()
    executor.add_node(node)
    pose, seq, diagnostics, safety = PoseStamped(), [0], {}, [SafetyState()]
    p, q = pose.pose.position, pose.pose.orientation
    p.x, p.y, p.z, q.x, q.y, q.z, q.w = HOME
    poses = node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
    chunks = node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))

    def on_target(message: PoseStamped) -> None:
        pose.pose = message.pose

    def publish() -> None:
        seq[0] += 1
        poses.publish(pose)
        if seq[0] % 2 == 0:
            chunk = ActionChunk(
                source="policy",
                session="b",
                seq=seq[0],
                dt=0.05,
                control_mode="tcp_delta",
                horizon=2,
                dim=3,
                data=[0.0, 0.002 * (-1) ** (seq[0] // 50), 0.0] * 2,
            )
            chunk.observation_stamp = node.get_clock().now().to_msg()
            chunks.publish(chunk)

    def on_diagnostics(message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == "bench/interlock":
                diagnostics.update({value.key: value.value for value in status.values})

    def wait(ready: Callable[[], Any], what: str, limit_s: float = TIMEOUT_S) -> None:
        end = time.monotonic() + limit_s
        while not ready():
            executor.spin_once(timeout_sec=0.05)
            if time.monotonic() > end:
                raise SystemExit(
                    f"{hz} Hz, {load}: waited {limit_s:.0f} s for {what}; logs in {folder / 'logs'}"
                )

    node.create_subscription(PoseStamped, "target_pose", on_target, profile("target_pose"))
    node.create_subscription(DiagnosticArray, "/diagnostics", on_diagnostics, 10)
    node.create_subscription(
        SafetyState, "safety", lambda message: safety.__setitem__(0, message), profile("safety")
    )
    arming = node.create_client(SetBool, "interlock/arm")
    node.create_timer(0.5 / CHUNK_HZ, publish)
    burners = [
        multiprocessing.Process(target=burn, daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    burners = {
        "idle": [],
        "loaded": burners,
        "synced": [*burners, multiprocessing.Process(target=sync, args=(folder,), daemon=True)],
    }[load]
    process = Process(
        "interlock",
        "rlinf_interlock",
        "interlock",
        "rlinf_interlock.interlock",
        "/bench",
        {
            "limits_file": str(folder / "limits.yaml"),
            "no_estop_reason": "a benchmark: no arm is there",
        },
        (),
        RESPAWN,
    )
    with Supervisor(folder, DOMAIN) as supervisor, running(burners):
        supervisor.start(process)
        wait(lambda: diagnostics and arming.service_is_ready(), "the interlock")
        requests = [arming.call_async(SetBool.Request(data=True))]

        def armed() -> bool:
            # it has not seen the arm at rest for long enough
            if requests[-1].done() and not requests[-1].result().success:
                requests.append(arming.call_async(SetBool.Request(data=True)))
            return safety[0].state in (SafetyState.ARMED, SafetyState.ACTIVE)

        wait(armed, "the interlock to be armed", ARM_TIMEOUT_S)
        # every second pose a chunk: what was before it was armed is forgotten by then
        last = seq[0] + 2 * HISTORY
        wait(lambda: seq[0] >= last, f"{HISTORY} chunks", TIMEOUT_S + 4 * HISTORY / CHUNK_HZ)
        end = time.monotonic() + seconds
        wait(lambda: time.monotonic() > end, "the end", seconds + TIMEOUT_S)
        wait(
            lambda: safety[0].state == SafetyState.ACTIVE,
            "the interlock to follow the chunks to the end",
            5.0,
        )
    executor.shutdown()
    node.destroy_node()
    if "reaction_p99_ms" not in diagnostics:
        raise SystemExit(
            f"the interlock said nothing of its reaction: {diagnostics}; logs in {folder / 'logs'}"
        )
    return {
        key: float(diagnostics[f"reaction_{key}"]) for key in ("p50_ms", "p99_ms", "worst_ms")
    } | {key: float(diagnostics[key]) for key in ("tick_late_p99_ms", "tick_late_worst_ms")}


BOX = {"min": np.array([0.35, -0.20, 0.02]), "max": np.array([0.65, 0.20, 0.40])}
STEP = 0.25 * TICK  # the same 0.25 m/s for every guard


def goals(count: int) -> np.ndarray:
    """Yield a slow wander through and beyond the box, with NaN, infinities, jumps and stops."""
    random = np.random.default_rng(3)
    positions = np.array(HOME[:3]) + np.cumsum(random.normal(0.0, 4e-4, (count, 3)), axis=0)
    positions[random.integers(0, count, count // 200)] = np.nan
    positions[random.integers(0, count, count // 400), 1] = np.inf
    positions[random.integers(0, count, count // 100)] += random.normal(0.0, 0.5, (count // 100, 3))
    return positions


def lerobot_guards(checkout: Path) -> tuple[Any, Any]:
    """Load LeRobot's ``ensure_safe_goal_position`` and ``EEBoundsAndSafety`` from their files."""
    names: dict[str, Any] = {
        "np": np,
        "dataclass": dataclass,
        "field": field,
        "pformat": pformat,
        "RobotActionProcessorStep": object,
        "RobotAction": dict,
        "PolicyFeature": object,
        "PipelineFeatureType": object,
        "logger": logging.getLogger("lerobot"),
    }
    names["logger"].setLevel(logging.CRITICAL)
    for file, name in (
        ("src/lerobot/robots/utils.py", "ensure_safe_goal_position"),
        ("src/lerobot/robots/so_follower/robot_kinematic_processor.py", "EEBoundsAndSafety"),
    ):
        tree = ast.parse((checkout / file).read_text())
        (node,) = [node for node in tree.body if getattr(node, "name", "") == name]
        node.decorator_list = [
            decorator
            for decorator in node.decorator_list
            if getattr(decorator, "id", "") == "dataclass"
        ]
        code = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), node], [])
        exec(compile(ast.fix_missing_locations(code), file, "exec"), names)  # noqa: S102
    return names["ensure_safe_goal_position"], names["EEBoundsAndSafety"]


class InterlockGuard:
    """The interlock's core as a guard of absolute goals."""

    def __init__(self) -> None:
        from rlinf_core.interlock import Inputs, State, step

        self.limits = fr3_limits(refusals_to_fault=100)
        self.state = State()
        self.inputs = Inputs
        self.step = step
        self.now, self.pose = 0, HOME
        self(np.array(HOME[:3]), arm=True)

    def __call__(self, goal: np.ndarray, **inputs: Any) -> np.ndarray:
        from rlinf_core.interlock import Chunk

        delta = tuple((goal - self.pose[:3]).tolist())
        chunk = Chunk(
            "policy", "a", self.now // 10_000_000 + 1, 0, self.now, TICK, "tcp_delta", (delta,)
        )
        self.state, output, _ = self.step(
            self.limits,
            self.state,
            self.inputs(pose=self.pose, chunks=(chunk,), **inputs),
            self.now,
        )
        self.now, self.pose = self.now + 10_000_000, output.target
        return np.array(output.target[:3])


def guards(checkout: Path | None) -> dict[str, Any]:
    """Return functions from goal to command by name; they may have state and may raise."""
    last = {"clip": np.array(HOME[:3]), "cap": np.array(HOME[:3])}

    def clip(goal: np.ndarray) -> np.ndarray:
        last["clip"] = np.clip(goal, BOX["min"], BOX["max"])
        return last["clip"]

    result: dict[str, Any] = {"rlinf": InterlockGuard(), "np_clip": clip}
    if checkout:
        ensure, bounds = lerobot_guards(checkout)

        def ensure_safe(goal: np.ndarray) -> np.ndarray:
            present = dict(
                zip("xyz", zip(goal.tolist(), last["cap"].tolist(), strict=True), strict=True)
            )
            last["cap"] = np.array(list(ensure(present, STEP).values()))
            return last["cap"]

        def make_bounds_guard(raises: bool) -> Any:
            guard = bounds(end_effector_bounds=BOX, max_ee_step_m=STEP, raise_on_jump=raises)

            def apply(goal: np.ndarray) -> np.ndarray:
                action = dict(zip(("ee.x", "ee.y", "ee.z"), goal, strict=True)) | {
                    f"ee.w{axis}": 0.0 for axis in "xyz"
                }
                out = guard.action(action)
                return np.array([out["ee.x"], out["ee.y"], out["ee.z"]])

            return apply

        result |= {
            "lerobot_ensure_safe_goal_position": ensure_safe,
            "lerobot_ee_bounds": make_bounds_guard(True),
            "lerobot_ee_bounds_rate_limited": make_bounds_guard(False),
        }
    return result


def measure_guard(guard: Any, positions: np.ndarray) -> dict[str, float]:
    """Return what a guard let through against the limits of the FR3, per tick, and its cost."""
    out, raised, times = [np.array(HOME[:3])], 0, []
    for goal in positions:
        started = time.perf_counter()
        try:
            out.append(guard(goal))
        except ValueError:
            raised += 1
            out.append(out[-1])
        times.append(time.perf_counter() - started)
    out = np.array(out)
    v = np.diff(out, axis=0) / TICK
    a, j = np.diff(v, axis=0) / TICK, np.diff(v, 2, axis=0) / TICK**2

    def beyond(x: np.ndarray, most: float, slack: float) -> int:
        return int((~(np.linalg.norm(x, axis=1) <= most + slack)).sum())

    inside = ((out >= BOX["min"] - 1e-9) & (out <= BOX["max"] + 1e-9)).all(axis=1)
    finite = np.isfinite(out).all(axis=1)
    return {
        "not_finite": int((~finite).sum()),
        "outside_box": int((~inside & finite).sum()),
        "too_fast": beyond(v, 0.25, 1e-9),
        "too_much_acceleration": beyond(a, 1.0, 1e-8),
        "too_much_jerk": beyond(j, 10.0, 1e-4),
        "raised": raised,
        "cost_us": 1e6 * float(np.median(times)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the core")
    parser.add_argument("--seconds", type=float, default=12.0, help="per rate and load of the node")
    parser.add_argument("--hz", type=int, nargs="*", default=[100, 250, 500])
    parser.add_argument("--goals", type=int, default=20_000)
    parser.add_argument("--lerobot", type=Path, help="checkout of LeRobot")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(DOMAIN))
    result: dict[str, float] = {}
    print(f"core, {options.steps:,} steps            p50        p99      worst   (bar: p99 150 us)")
    for name, changes in (
        ("tool", {"gripper_width": 0.08}),
        ("joints", {"control_mode": "joint_delta"}),
    ):
        times = core_times(options.steps, **changes)
        print(
            f"  {name:<24}{times['p50_us']:8.1f} us{times['p99_us']:8.1f} "
            f"us{times['worst_us']:8.0f} us",
            flush=True,
        )
        result |= {f"core_{name}_{key}": value for key, value in times.items()}
    import rclpy

    rclpy.init()
    print(
        "node, from a chunk's arrival to the target   p50        p99      worst   (bar: p99 12 ms, "
        "idle, 100 Hz)"
    )
    for hz in options.hz:
        for load in LOADS:
            times = node_times(hz, load, options.seconds)
            name = f"{hz}hz_{load}"
            print(
                f"  {name:<36}{times['p50_ms']:8.2f} ms{times['p99_ms']:8.2f} "
                f"ms{times['worst_ms']:8.2f} ms   tick late {times['tick_late_p99_ms']:.2f} ms at "
                f"p99, {times['tick_late_worst_ms']:.1f} ms at worst",
                flush=True,
            )
            result |= {f"node_{name}_{key}": value for key, value in times.items()}
    rclpy.try_shutdown()
    positions = goals(options.goals)
    print(
        f"guards, {options.goals:,} goals            not finite  outside  too fast  acceleration   "
        f"jerk  raised    cost"
    )
    for name, guard in guards(options.lerobot).items():
        row = measure_guard(guard, positions)
        print(
            f"  {name:<34}{row['not_finite']:10d}{row['outside_box']:9d}{row['too_fast']:10d}"
            f"{row['too_much_acceleration']:14d}{row['too_much_jerk']:7d}{row['raised']:8d}"
            f"{row['cost_us']:6.1f} us",
            flush=True,
        )
        result |= {f"guard_{name}_{key}": value for key, value in row.items()}
    if options.json:
        figures.write(options.json, result)


if __name__ == "__main__":
    main()
