"""Check leader-follower teleoperation of an SO-101: collect with a leader, clone, evaluate the policy.

    python benchmarks/leader_follower.py --json benchmarks/results/leader_follower.json

Leader and follower are twins on pseudo-terminals that speak the bus of Feetech servos. The station
runs in real time: `rlinf collect so101_twin` with the leader as the operator's device. A thread
imitates a hand: it reads the goal and the follower's joints, and turns the leader's servos towards
the goal. Keys at the terminal arm the station and begin each demonstration. The policy is cloned
from the demonstrations (SFT) and evaluated at the same station on scenes of other seeds. A policy of
random weights (one step of SFT) is evaluated on the same scenes. The command fails if the random
policy succeeds in more than 20 % of them, or the cloned one in less than 80 %.

The benchmark does not cover real servos, a person's hand, cameras, or the gripper.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RECIPE, DOMAIN, HZ, PLAYING_S = "so101_twin", 69, 20.0, 0.4
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
SPEED = 0.8  # the hand's step, as a fraction of the task's largest step
MAX_RANDOM, MIN_CLONED, SEED = 0.2, 0.8, 0


class Hand(threading.Thread):
    """Turns the leader's servos so that the follower's tool comes to the goal.

    Args:
        leader: the twin of the leader's servos.
        domain: the station's ROS_DOMAIN_ID.
    """

    def __init__(self, leader: Any, domain: int) -> None:
        super().__init__(daemon=True)
        self.leader, self.domain, self.over = leader, domain, threading.Event()

    def run(self) -> None:
        """Move the leader in small turns until ``over`` is set."""
        import rclpy
        from geometry_msgs.msg import PoseStamped
        from rclpy.executors import SingleThreadedExecutor
        from rlinf_msgs.msg import TimeStep
        from sensor_msgs.msg import JointState

        from rlinf_core.recipes import load_recipe, station_task
        from rlinf_core.robots.servos import RAD_PER_TICK, TICKS_PER_TURN
        from rlinf_core.tasks.scripts import make_script
        from rlinf_ros.qos import lossless_profile, received

        context, newest = rclpy.Context(), dict[str, Any]()
        rclpy.init(context=context, domain_id=self.domain)
        node = rclpy.create_node("hand", namespace="/station_a", context=context)
        for name, kind in (
            ("joint_states", JointState),
            ("goal_pose", PoseStamped),
            ("current_pose", PoseStamped),
        ):
            node.create_subscription(
                kind,
                name,
                lambda message, name=name: newest.update({name: message}),
                received(name, False),
            )
        stepped_at = [float("-inf")]
        node.create_subscription(
            TimeStep,
            "timestep",
            lambda step: stepped_at.append(
                time.monotonic() if step.step_type != TimeStep.LAST else float("-inf")
            ),
            lossless_profile("timestep"),
        )
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        task = station_task(load_recipe(RECIPE))
        script, angles = make_script(task, noise=0.05), np.zeros(len(JOINTS))
        size, last = np.asarray(task.spec.action.scale) * task.spec.control_hz, time.monotonic()
        while not self.over.is_set():
            executor.spin_once(timeout_sec=1.0 / HZ)
            now = time.monotonic()
            if now - stepped_at[-1] > PLAYING_S:  # the hand rests between demonstrations
                last = now
            if len(newest) < 3 or now - last < 1.0 / HZ:
                continue
            positions = dict(
                zip(newest["joint_states"].name, newest["joint_states"].position, strict=True)
            )
            places = {
                name: np.array(
                    [*map(newest[name].pose.position.__getattribute__, "xyz"), 0, 0, 0, 1.0]
                )
                for name in ("goal_pose", "current_pose")
            }
            step = script.act(
                {"joint_states": np.array([positions[name] for name in JOINTS]), **places}
            )
            angles += SPEED * step * size * min(now - last, 0.2)
            last = now
            self.leader.place(
                {
                    servo + 1: TICKS_PER_TURN / 2 + angle / RAD_PER_TICK
                    for servo, angle in enumerate(angles)
                }
            )
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown(context=context)


def collect(folder: Path, takes: int, domain: int) -> None:
    """Record ``takes`` successful demonstrations by `rlinf collect`, with a hand and keys."""
    from sim_bridges.twins.servos import Servos

    leader = Servos(folder / "leader", "feetech", range(1, len(JOINTS) + 1))
    hand = Hand(leader, domain)
    joints = ", ".join(f"{name}: {{id: {number}}}" for number, name in enumerate(JOINTS, 1))
    operator = (
        f"station.operator={{kind: leader, bus: feetech, baud: 1000000, device: '{leader.path}', "
        f"joints: {{{joints}}}}}"
    )
    terminal, inside = os.openpty()
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "collect",
        RECIPE,
        "--quiet",
        "--episodes",
        str(takes),
        "--out",
        str(folder / "takes"),
        "--set",
        operator,
        f"station.domain_id={domain}",
    ]
    process = subprocess.Popen(
        command,
        stdin=inside,
        cwd=ROOT,
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
    )
    hand.start()
    try:
        while process.poll() is None:
            status = {}
            with contextlib.suppress(OSError, ValueError):
                status = json.loads((folder / "takes/status.json").read_text())
            waits = status.get("waiting_for", "")
            if "disarmed" in waits:
                os.write(terminal, b"e")
            elif waits:
                os.write(terminal, b"g")
            time.sleep(1.0)
        if process.returncode:
            raise SystemExit(f"rlinf collect: expected exit code 0, got {process.returncode}")
    finally:
        process.terminate()
        process.wait()
        hand.over.set()
        hand.join()
        leader.unplug()
        os.close(terminal)
        os.close(inside)


def clone_and_evaluate(folder: Path, name: str, steps: int, evaluations: int, domain: int) -> float:
    """Clone the demonstrations, without RL; return the policy's success at the same station."""
    from rlinf_core.reports.curves import read_events

    settings = [
        f"collect.recordings=[{folder / 'takes'}]",
        "collect.episodes=0",
        "online.max_env_steps=0",
        f"sft.steps={steps}",
        f"evaluate.episodes={evaluations}",
        f"seed={SEED}",
        f"station.domain_id={domain}",
    ]
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "demo",
        RECIPE,
        "--quiet",
        "--out",
        str(folder / name),
        "--set",
        *settings,
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        while True:  # the first evaluation suffices; the second has the same policy
            ended = process.poll() is not None
            for event in read_events(folder / name):
                if event.get("event") == "evaluation":
                    return float(event["success"])
            if ended:
                raise SystemExit(f"rlinf demo: expected an evaluation, got {process.returncode}")
            time.sleep(0.5)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Collect, clone, evaluate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--takes", type=int, default=40, help="successful demonstrations with the leader"
    )
    parser.add_argument(
        "--evaluations", type=int, default=10, help="scenes on which the policy is evaluated"
    )
    parser.add_argument("--steps", type=int, default=1500, help="gradient steps of SFT")
    parser.add_argument("--domain", type=int, default=DOMAIN, help="ROS_DOMAIN_ID")
    parser.add_argument(
        "--out", type=Path, help="folder of the recordings and runs (default: a temporary one)"
    )
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the station ends, too
    from benchmarks.figures import write
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(options.domain):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(options.domain))
    with contextlib.ExitStack() as stack:
        folder = options.out or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="rlinf-leader-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        collect(folder, options.takes, options.domain)
        collected = time.monotonic()
        random, cloned = (
            clone_and_evaluate(folder, name, steps, options.evaluations, options.domain)
            for name, steps in (("random", 1), ("cloned", options.steps))
        )
    figures = {
        "takes": options.takes,
        "evaluations": options.evaluations,
        "seed": SEED,
        "success_random": random,
        "success": cloned,
        "collect_minutes": round((collected - started) / 60.0, 1),
        "minutes": round((time.monotonic() - started) / 60.0, 1),
    }
    print(json.dumps(figures))
    if options.json:
        write(options.json, figures)
    if random > MAX_RANDOM or cloned < MIN_CLONED:
        raise SystemExit(
            f"expected at most {MAX_RANDOM:.0%} by random weights and at least {MIN_CLONED:.0%} "
            f"after cloning, got {random:.0%} and {cloned:.0%}"
        )


if __name__ == "__main__":
    main()
